"""Statistics about points: what terms gain is what the change of variables says."""

import numpy as np
import pytest
from _evaluate import evaluate
from numpyro.distributions import constraints

from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import Atom, Dense, Label, Term, is_public
from numpyro_vips.conjugacy.families.gamma import Gamma
from numpyro_vips.conjugacy.families.gaussian import Normal
from numpyro_vips.conjugacy.structure.centring import (
    centred_factors,
    mean_corrections,
    origin_corrections,
    recentred_factors,
)
from numpyro_vips.conjugacy.structure.gaussian_layout import GaussianLayout
from numpyro_vips.conjugacy.structure.latents import Latent
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor

# A global matrix w[i, g], one Gaussian for each g, and a vector u[i], one for all.
W = PosteriorFactor(
    name="w",
    role="global",
    family=Normal(),
    latents=("w",),
    shape=(2, 3),
    layout=GaussianLayout(shapes={"w": (3, 2)}, batch_axes={"w": (1,)}),
)
U = PosteriorFactor(
    name="u",
    role="global",
    family=Normal(),
    latents=("u",),
    shape=(3,),
    layout=GaussianLayout(shapes={"u": (3,)}, batch_axes={"u": ()}),
)
TAU = PosteriorFactor(
    name="tau", role="global", family=Gamma(), latents=("tau",), shape=()
)
L = PosteriorFactor(
    name="l",
    role="local",
    family=Normal(),
    latents=("l",),
    shape=(1,),
    layout=GaussianLayout(shapes={"l": ()}, batch_axes={"l": ()}),
)
XI = PosteriorFactor(name="xi", role="local", family=Gamma(), latents=("xi",), shape=())
FACTORS = {one.name: one for one in (W, U, TAU, L, XI)}
FACTOR_OF = {name: name for name in FACTORS}


def latents(auxiliary: str | None = None) -> dict[str, Latent]:
    return {
        one.name: Latent(
            name=one.name,
            role=one.role,
            shape=() if one.layout is None else one.layout.shapes[one.name],
            support=constraints.positive if one.layout is None else constraints.real,
            family=auxiliary if one.name == "xi" else None,
        )
        for one in FACTORS.values()
    }


N, G, K = Label(3), Label(2), Label(3)
RNG = np.random.default_rng(0)
VALUES = {
    "w": RNG.normal(size=(3, 2)),
    "u": RNG.normal(size=3),
    "tau": np.array(1.7),
    "l": np.array(0.4),
    "xi": np.array(0.2),
}
POINTS = {"w": RNG.normal(size=(3, 2)), "u": RNG.normal(size=3)}


def x(name: str, *labels: Label) -> Atom:
    return Atom(name, "x", labels)


def number(*labels: Label, is_private: bool = True) -> Dense:
    shape = [label.size for label in labels]
    return Dense(RNG.normal(size=shape), labels, is_private=is_private)


def total(terms: list[Term], values=VALUES) -> float:
    """The sum of terms, with the points in the place of slots."""
    whole = [
        term.with_arrays(lambda factor: in_layout(factor.array.token)) for term in terms
    ]
    return float(evaluate(Form((), tuple(whole)), values))


def in_layout(latent: str) -> np.ndarray:
    """A point, with the batch axes in front, as slots of it are laid out."""
    return POINTS["w"].T if latent == "w" else POINTS[latent]


def terms_of(*products) -> list[Term]:
    found = []
    for factors in products:
        bound = frozenset(label for factor in factors for label in factor.labels)
        found.append(Term(-0.5, tuple(factors), bound))
    return found


TERMS = {
    "linear": terms_of([number(N, G), x("w", N, G)]),
    "quadratic": terms_of([number(G), x("w", N, G), x("w", K, G)]),
    "with a scale": terms_of([x("tau"), x("u", N), x("u", N)]),
    "two blocks": terms_of([number(G), x("w", N, G), x("u", N)]),
    "none of them": terms_of([number(), x("tau")]),
}


@pytest.mark.parametrize("name", TERMS)
def test_about_an_origin_the_density_is_the_same(name: str) -> None:
    """In every term w is c + v: the old terms in v and the gained ones add up to it."""
    terms, chosen = TERMS[name], frozenset(("w", "u"))
    gained = origin_corrections(terms, FACTORS, FACTOR_OF, chosen)
    v = VALUES | {n: VALUES[n] - POINTS[n] for n in POINTS}
    np.testing.assert_allclose(total([*terms, *gained], v), total(terms), rtol=1e-9)
    assert bool(gained) == (name != "none of them")


def test_only_the_chosen_factors_have_origins() -> None:
    terms = TERMS["two blocks"]
    gained = origin_corrections(terms, FACTORS, FACTOR_OF, frozenset(["u"]))
    v = VALUES | {"u": VALUES["u"] - POINTS["u"]}
    np.testing.assert_allclose(total([*terms, *gained], v), total(terms), rtol=1e-9)
    assert {slot.token for term in gained for slot in term.slots} == {"u"}


def test_about_the_mean_second_moments_are_those_of_the_difference() -> None:
    """ww' = (w - m)(w' - m') + mw' + wm' - mm'."""
    terms = TERMS["quadratic"]
    gained = mean_corrections(terms, FACTORS, FACTOR_OF, frozenset(["w"]))
    about = VALUES | {"w": VALUES["w"] - POINTS["w"]}
    np.testing.assert_allclose(
        total(terms, about) + total(gained), total(terms), rtol=1e-9
    )
    # What is linear in w has no second moment.
    assert mean_corrections(TERMS["linear"], FACTORS, FACTOR_OF, frozenset(["w"])) == []


def test_slots_of_points_are_no_values() -> None:
    for term in origin_corrections(TERMS["linear"], FACTORS, FACTOR_OF, frozenset("w")):
        (slot,) = term.slots
        assert not is_public(slot) and slot.token == "w"
        assert slot.shape == (2, 3)  # The batch axis first.


def centred(terms: list[Term], auxiliary: str):
    return centred_factors(terms, latents(auxiliary), FACTORS, FACTOR_OF)


@pytest.mark.parametrize(
    ("auxiliary", "terms", "expected"),
    [
        # Logits of a regression: centred, and with Newton steps.
        ("PolyaGamma", terms_of([number(N), x("xi"), x("u", N)]), ({"u"}, {"u"})),
        ("Tangent", terms_of([number(N), x("xi"), x("u", N)]), ({"u"}, {"u"})),
        # Without covariates only a bound of fixed curvature is centred.
        ("PolyaGamma", terms_of([x("xi"), x("u", N)]), (set(), set())),
        ("Tangent", terms_of([x("xi"), x("u", N)]), ({"u"}, set())),
        # Beside another latent of the row there are no Newton steps.
        (
            "Tangent",
            terms_of([number(N), x("xi"), x("u", N), x("l")]),
            ({"u"}, set()),
        ),
        # Of a product of two factors the statistic is another one.
        (
            "Tangent",
            terms_of([number(N), x("xi"), x("u", N), x("w", N, G)]),
            (set(), set()),
        ),
        # No logits at all.
        ("Tangent", terms_of([number(N), x("u", N)]), (set(), set())),
    ],
)
def test_which_factors_are_centred(auxiliary, terms, expected) -> None:
    assert centred(terms, auxiliary) == expected


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        (terms_of([number(N), x("tau"), x("u", N)]), {"u"}),
        (terms_of([x("tau"), x("l"), x("u", N)]), {"u"}),  # A level's mean.
        (terms_of([number(N), x("u", N), x("l")]), set()),  # A loading.
        (terms_of([number(N), x("u", N), x("u", K)]), set()),  # Never alone.
        (terms_of([number(N), x("xi"), x("u", N)]), set()),  # A weight of logits.
        (terms_of([x("tau"), x("u", N), x("u", N)]), set()),  # No row pulls.
    ],
)
def test_which_factors_have_origins(terms, expected) -> None:
    found = recentred_factors(
        terms, latents("PolyaGamma"), FACTORS, FACTOR_OF, frozenset()
    )
    assert found == expected


def test_what_is_centred_in_every_step_has_no_origin() -> None:
    terms = terms_of([number(N), x("tau"), x("u", N)])
    for centred, expected in ((frozenset(), {"u"}), (frozenset(["u"]), set())):
        found = recentred_factors(terms, latents(), FACTORS, FACTOR_OF, centred)
        assert found == expected
