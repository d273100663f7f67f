"""Which latents share a posterior factor, for terms written by hand."""

import itertools
from collections.abc import Mapping

import numpy as np
import pytest
from numpyro.distributions import constraints

from numpyro_vips.conjugacy import families
from numpyro_vips.conjugacy.algebra.terms import Atom, Dense, Label, Labels, Term
from numpyro_vips.conjugacy.families.gaussian import FactorizedNormal, Normal
from numpyro_vips.conjugacy.families.joint_categorical import JointCategorical
from numpyro_vips.conjugacy.structure.latents import Latent
from numpyro_vips.conjugacy.structure.posterior_factors import (
    MAX_JOINT_SIZE,
    PosteriorFactor,
    SiteTerm,
    find_posterior_factors,
    reachable,
)


def latent(name: str, *shape: int, role: str = "global", states: int = 0) -> Latent:
    return Latent(
        name=name,
        role=role,
        shape=shape,
        support=constraints.real,
        states=np.arange(states) if states else None,
    )


def term(*atoms: Atom, row: bool = True) -> SiteTerm:
    bound = frozenset(label for atom in atoms for label in atom.labels)
    return SiteTerm("site", row, Term(1.0, atoms, bound))


def x(name: str, *labels: Label) -> Atom:
    return Atom(name, "x", labels)


def state(name: str, *labels: Label) -> Atom:
    return Atom(name, "is", labels)


def found(
    latents: list[Latent], terms: list[SiteTerm], overrides: Mapping[str, str] = {}
) -> dict[str, PosteriorFactor]:
    chosen = {
        one.name: families.Categorical(len(one.states))
        if one.states is not None
        else families.Normal()
        for one in latents
    }
    return find_posterior_factors(
        terms, {one.name: one for one in latents}, chosen, overrides
    )


def axes(*sizes: int) -> Labels:
    return tuple(map(Label, sizes))


def test_real_latents_that_meet_share_a_gaussian() -> None:
    (i,) = axes(3)
    latents = [latent("a", 3), latent("b"), latent("c")]
    factors = found(latents, [term(x("a", i), x("b")), term(x("c"), x("c"))])
    assert list(factors) == ["a+b", "c"]
    assert factors["a+b"].latents == ("a", "b")
    assert factors["a+b"].shape == (4,)
    assert isinstance(factors["a+b"].family, Normal)
    # Through a third one, too.
    factors = found(latents, [term(x("a", i), x("b")), term(x("b"), x("c"))])
    assert list(factors) == ["a+b+c"]


def test_globals_and_latents_of_rows_have_factors_of_their_own() -> None:
    latents = [latent("a"), latent("l", role="local")]
    assert list(found(latents, [term(x("a"), x("l"))])) == ["a", "l"]


@pytest.mark.parametrize(
    ("labels", "shape"),
    [
        (lambda i, j, k, n: ((i, j), (i, j)), (3, 2, 1)),  # Each entry by itself.
        (lambda i, j, k, n: ((i, j), (n, j)), (2, 3)),  # Rows of a column meet.
        (lambda i, j, k, n: ((i, j), (i, k)), (3, 2)),
        (lambda i, j, k, n: ((i, j), (n, k)), (6,)),
    ],
)
def test_axes_along_which_no_two_entries_meet_are_batch_axes(labels, shape) -> None:
    first, second = labels(*axes(3, 2, 2, 3))
    (factor,) = found(
        [latent("w", 3, 2)], [term(x("w", *first), x("w", *second))]
    ).values()
    assert factor.shape == shape


def test_a_batch_axis_is_one_of_every_latent_in_the_factor() -> None:
    i, j = axes(3, 3)
    latents = [latent("a", 3), latent("b", 3)]
    pairs = [term(x("a", i), x("a", i)), term(x("b", i), x("b", i))]
    together = found(latents, [*pairs, term(x("a", i), x("b", i))])
    assert together["a+b"].shape == (3, 2)
    crossed = found(latents, [*pairs, term(x("a", i), x("b", j))])
    assert crossed["a+b"].shape == (6,)


def test_no_gaussian_is_asked_for_a_product_of_more_than_two() -> None:
    """(a·b)² has no moment in closed form of a joint Gaussian; each by itself has."""
    latents = [latent("a"), latent("b")]
    factors = found(
        latents, [term(x("a"), x("a"), x("b"), x("b")), term(x("a"), x("b"))]
    )
    assert list(factors) == ["a", "b"]


def test_a_large_prior_block_is_taken_apart_and_a_large_likelihood_is_not() -> None:
    half = MAX_JOINT_SIZE // 2 + 1
    i, j = axes(half, half)
    latents = [latent("a", half), latent("b", half)]
    for is_row, names in ((False, ["a", "b"]), (True, ["a+b"])):
        factors = found(latents, [term(x("a", i), x("b", j), row=is_row)])
        assert list(factors) == names


def test_a_latent_that_is_to_be_diagonal_stays_alone() -> None:
    latents = [latent("a"), latent("b"), latent("c")]
    terms = [term(x("a"), x("b")), term(x("b"), x("c"))]
    factors = found(latents, terms, {"b": "diag"})
    assert list(factors) == ["a", "b", "c"]
    assert isinstance(factors["b"].family, FactorizedNormal)


def test_discrete_latents_of_a_row_that_meet_share_a_table() -> None:
    s, t, u = axes(2, 3, 4)
    latents = [
        latent("y", role="local", states=2),
        latent("z", role="local", states=3),
        latent("v", role="local", states=4),
    ]
    factors = found(latents, [term(state("z", t), state("y", s)), term(state("v", u))])
    assert list(factors) == ["y,z", "v"]
    family = factors["y,z"].family
    assert isinstance(family, JointCategorical)
    assert family.states == {"y": 2, "z": 3} and family.cliques == (("y", "z"),)


def test_discrete_latents_of_which_other_elements_meet_share_none() -> None:
    """z[i] and y[j]: the table would be of all elements at once."""
    i, j, s, t = axes(5, 5, 2, 2)
    latents = [latent(name, 5, role="local", states=2) for name in "yz"]
    factors = found(latents, [term(state("y", i, s), state("z", j, t))])
    assert list(factors) == ["y", "z"]
    factors = found(latents, [term(state("y", i, s), state("z", i, t))])
    assert list(factors) == ["y,z"] and factors["y,z"].shape == (5,)


def test_a_table_that_is_too_large_is_not_made() -> None:
    names = [f"z{number}" for number in range(12)]
    latents = [latent(name, role="local", states=4) for name in names]
    together = term(*(state(name, Label(4)) for name in names))
    assert list(found(latents, [together])) == names
    # In a chain two of them at a time are summed out.
    chain = [
        term(state(one, Label(4)), state(other, Label(4)))
        for one, other in itertools.pairwise(names)
    ]
    assert list(found(latents, chain)) == [",".join(names)]


def test_constants_join_nothing() -> None:
    (i,) = axes(3)
    both = SiteTerm(
        "y", True, Term(1.0, (Dense(np.ones(3), (i,)), x("a", i)), frozenset([i]))
    )
    assert list(found([latent("a", 3), latent("b", 3)], [both])) == ["a", "b"]


def test_what_is_reachable_is_so_by_any_number_of_groups() -> None:
    groups = [{"a", "b"}, {"d", "e"}, {"b", "c"}, {"f"}]
    assert reachable({"a"}, groups) == {"a", "b", "c"}
    assert reachable({"f", "e"}, groups) == {"d", "e", "f"}
    assert reachable({"g"}, groups) == {"g"}
