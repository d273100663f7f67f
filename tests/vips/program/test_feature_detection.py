"""Which numbers of a row are features, against what each coefficient is multiplied by.

That is written out by hand. Fits with features are in `test_features.py`.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import uncertified

from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    Factor,
    Label,
    OneHot,
    Slot,
    Term,
)
from numpyro_vips.conjugacy.structure.gaussian_layout import GaussianLayout
from numpyro_vips.vips.program.feature_detection import (
    _may_be_standardised,
    entries_of,
    find_features,
    picks_of,
)
from numpyro_vips.vips.program.features import Features
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.program.random_trials import are_equal

COUNT = 4
AGE = np.array([31.0, 64.5, 50.25, 18.0], np.float32)
DOSE = np.array([0.5, -1.25, 3.0, 2.0], np.float32)
GROUP = np.array([2, 0, 1, 1])
Y = np.array([1.0, 0.0, 2.0, 1.0], np.float32)


def normal(name: str, *shape: int) -> Any:
    return numpyro.sample(name, dist.Normal(jnp.zeros(shape), 2.0))


def observe(mean: Any, y: Any) -> None:
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def columns(age: Any, dose: Any, group: Any, y: Any) -> None:
    a, b, c = normal("a"), normal("b"), normal("c")
    with numpyro.plate("rows", len(y)):
        observe(a + b * age + c * dose, y)


def functions(age: Any, dose: Any, group: Any, y: Any) -> None:
    a, w = normal("a"), normal("w", 2)
    with numpyro.plate("rows", len(y)):
        observe(a + w[0] * age**2 + w[1] * jnp.exp(dose), y)


def interaction(age: Any, dose: Any, group: Any, y: Any) -> None:
    """A column is a factor of two features, and the intercept is in the vector."""
    w = normal("w", 4)
    with numpyro.plate("rows", len(y)):
        observe(w[0] + w[1] * age + w[2] * dose + w[3] * age * dose, y)


def slopes(age: Any, dose: Any, group: Any, y: Any) -> None:
    a = normal("a")
    with numpyro.plate("groups", 3):
        b = numpyro.sample("b", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(y)):
        observe(a + b[group] * age, y)


def intercepts(age: Any, dose: Any, group: Any, y: Any) -> None:
    b = normal("b")
    with numpyro.plate("groups", 3):
        a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(y)):
        observe(a[group] + b * age, y)


# Of the coefficients, by latent, what a row multiplies them by, None of an intercept
# in their vector; and the intercepts.
Multipliers = Callable[[Any, Any, Any], Mapping[str, Any]]
CASES: dict[Callable[..., None], tuple[Multipliers, dict[str, list[int]]]] = {
    columns: (lambda age, dose, g: {"b": [age], "c": [dose]}, {"a": [0]}),
    functions: (lambda age, dose, g: {"w": [age**2, np.exp(dose)]}, {"a": [0]}),
    interaction: (
        lambda age, dose, g: {"w": [None, age, dose, age * dose]},
        {"w": [0]},
    ),
    slopes: (lambda age, dose, g: {"b": age * np.eye(3)[g]}, {"a": [0]}),
    intercepts: (lambda age, dose, g: {"b": [age]}, {"a": [0, 1, 2]}),
}


def program_of(fn: Callable[..., None]) -> ConjugateProgram:
    return uncertified(fn, (AGE, DOSE, GROUP, Y))


@pytest.mark.thorough
@pytest.mark.parametrize("fn", list(CASES), ids=lambda fn: fn.__name__)
def test_features_are_what_coefficients_are_multiplied_by(fn: Any) -> None:
    multipliers, intercepts = CASES[fn]
    program = program_of(fn)
    ((name, features),) = program.features.items()
    layout = program.structure.posterior_factors[name].layout
    assert layout is not None
    for number in range(COUNT):
        row = AGE[number], DOSE[number], GROUP[number]
        arrays, valid = program.row_constants(
            {"age": row[0], "dose": row[1], "group": row[2], "y": Y[number]}
        )
        assert valid
        expected = {
            layout.span(latent).start + place: value
            for latent, values in multipliers(*row).items()
            for place, value in enumerate(values)
            if value is not None
        }
        found = dict(
            zip(features.places, np.asarray(features.flat(arrays)), strict=True)
        )
        assert found.keys() == expected.keys()
        for place, value in expected.items():
            assert found[place] == pytest.approx(value, rel=1e-6)
    places = [layout.span(n).start + i for n, of in intercepts.items() for i in of]
    assert sorted(features.constant) == sorted(places)


@pytest.mark.parametrize(
    "change",
    [
        lambda f: dataclasses.replace(f, places=f.places[::-1]),
        lambda f: dataclasses.replace(f, tokens=f.tokens[::-1]),
        lambda f: dataclasses.replace(f, tokens=f.tokens[:1], places=f.places[1:]),
        # Without the intercept features are not centred, and it stays itself.
        lambda f: Features(f.tokens[:1], f.places[:1], f.places[1:]),
        lambda f: Features(f.tokens, (f.places[0], *f.constant), f.places[1:]),
    ],
    ids=["places", "tokens", "one for another", "a slope", "the intercept"],
)
def test_other_features_do_not_pass(change: Callable[[Features], Features]) -> None:
    """Whatever is proposed, the density has to be the same function of them."""
    program = program_of(columns)
    ((name, features),) = program.features.items()
    assert len(features.tokens) == len(features.places) == 2

    def passes(features: Features) -> bool:
        terms = program.row_terms
        return _may_be_standardised(program.structure, name, features, terms)

    assert passes(features)
    assert passes(dataclasses.replace(features, constant=()))
    assert passes(Features(features.tokens[:1], features.places[:1], features.constant))
    assert not passes(change(features))


def changed(
    terms: Sequence[Term], token: int, change: Callable[[Dense], Dense]
) -> list[Term]:
    """The terms with another constant in the place of that with this token."""

    def moved(factor: Factor) -> Factor:
        if not (isinstance(factor, Dense) and isinstance(factor.array, Slot)):
            return factor
        return change(factor) if factor.array.token == token else factor

    return [
        dataclasses.replace(term, factors=tuple(map(moved, term.factors)))
        for term in terms
    ]


@pytest.mark.parametrize(
    "change",
    [{"lower": 0.0}, {"lower": 0.0, "upper": 1.0}, {"branch": (object(), 1)}],
    ids=["no negative number", "a share", "whether"],
)
def test_numbers_of_known_range_are_left_alone(change: dict[str, Any]) -> None:
    """Proofs of sensitivity may rest on what is known of them."""
    program = program_of(columns)
    ((name, features),) = program.features.items()
    for number, token in enumerate(features.tokens):
        terms = changed(
            program.row_terms, token, lambda f: dataclasses.replace(f, **change)
        )
        found = find_features(program.structure, terms)[name]
        assert found.tokens == features.tokens[1 - number :][:1]
        assert found.places == features.places[1 - number :][:1]
        assert found.constant == features.constant


def scaled(term: Term, factor: float) -> Term:
    return dataclasses.replace(term, scale=factor * term.scale)


def test_terms_are_equal_only_if_they_are_the_same_function() -> None:
    program = program_of(columns)
    structure, terms = program.structure, list(program.row_terms)

    def equal(others: list[Term], more: Callable[[Any], Any] = dict) -> bool:
        return are_equal(structure, terms, others, more)

    assert equal(terms[::-1])
    for number, term in enumerate(terms):
        others = [scaled(term, 1.0 + 1e-6), *terms[:number], *terms[number + 1 :]]
        assert not equal(others), term
    # A slot that is made of others stands for what it is made of, and nothing else.
    (features,) = program.features.values()
    token = features.tokens[0]

    def as_seven(factor: Dense) -> Dense:
        slot = dataclasses.replace(factor.array, token=-7)
        return dataclasses.replace(factor, array=slot)

    moved = changed(terms, token, as_seven)
    assert equal(moved, lambda numbers: {**numbers, -7: numbers[token]})
    assert not equal(moved, lambda numbers: {**numbers, -7: 0.0 * numbers[token]})
    assert not equal(moved, lambda numbers: {**numbers, -7: numbers[token] ** 2})


def test_a_public_index_picks_an_entry_and_a_rows_own_none() -> None:
    one, group, batch = Label(3), Label(3), Label(4)
    layout = GaussianLayout(
        shapes={"w": (3, 4), "b": (3,)}, batch_axes={"w": (), "b": ()}
    )
    public = OneHot(np.array(2), (), one)
    private = OneHot(Slot(0, (), jnp.dtype(int)), (), group)
    w, b = Atom("w", "x", (one, batch)), Atom("b", "x", (group,))
    term = Term(1.0, (w, b, public, private))
    assert picks_of(w, layout, term) == ((2,), ())
    assert entries_of(w, layout, term) == (batch,)
    assert picks_of(b, layout, term) == ((),)
    assert entries_of(b, layout, term) == (group,)


def test_public_indices_pick_entries_along_a_label_of_their_own() -> None:
    """As in w[1:], which has two of the three entries."""
    one, two = Label(3), Label(2)
    layout = GaussianLayout(shapes={"w": (3,)}, batch_axes={"w": ()})
    w, picked = Atom("w", "x", (one,)), OneHot(np.array([1, 2]), (two,), one)
    term = Term(1.0, (w, picked))
    assert picks_of(w, layout, term) == ((1, 2),)
    assert entries_of(w, layout, term) == (two,)
    # Of an index of -1 there is no entry.
    none = Term(1.0, (w, OneHot(np.array([1, -1]), (two,), one)))
    assert entries_of(w, layout, none) == (one,)
