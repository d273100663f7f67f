"""The contract of tokens: equal ones stand for the same function of the row.

Proofs of sensitivity rest on it, so it is tested on functions that are made here, on
the proofs, and on every model that the other tests compile.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _models import MODELS, graph_of, uncertified

from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    Label,
    OneHot,
    Slot,
    Term,
    constant_key,
    same_constant,
)
from numpyro_vips.conjugacy.structure import log_joint
from numpyro_vips.conjugacy.structure.geometry import geometry
from numpyro_vips.conjugacy.structure.latents import Latent
from numpyro_vips.conjugacy.structure.row_constants import with_slots
from numpyro_vips.vips.compile.compiler import compile_model
from numpyro_vips.vips.engine import VipsEngine
from numpyro_vips.vips.m_step import starts
from numpyro_vips.vips.program.program import ConjugateProgram

ROW = {"x": np.array([0.5, -2.0, 3.0], np.float32), "n": np.int32(2)}
ROWS = {
    name: jax.ShapeDtypeStruct((1, *np.shape(x)), x.dtype) for name, x in ROW.items()
}
FUNCTIONS: tuple[Callable[[Any, Any], Any], ...] = (
    lambda x, n: x,
    lambda x, n: 2.0 * x,
    lambda x, n: x[::-1],
    lambda x, n: x + 0.0 * n,
    lambda x, n: jnp.abs(x),
    lambda x, n: jnp.where(x > 0, x, 0.0),
    lambda x, n: n * x,
    lambda x, n: x[0],
    lambda x, n: x[1],
    lambda x, n: jnp.exp(-x),
    lambda x, n: jnp.ones_like(x),
    lambda x, n: jnp.zeros_like(x),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """Constants in terms, as an interpretation of a model finds them."""

    terms: tuple[Term, ...]

    def with_arrays(self, replace: Callable[[Dense | OneHot], Any]) -> "Found":
        return Found(tuple(term.with_arrays(replace) for term in self.terms))

    @property
    def arrays(self) -> list[Any]:
        return [factor.array for term in self.terms for factor in term.constants]


def of(*arrays: Any, is_private: bool = True) -> Found:
    return Found(
        tuple(
            Term(1.0, (Dense(x, tuple(map(Label, np.shape(x))), is_private),))
            for x in arrays
        )
    )


def test_a_slot_stands_for_its_own_function_of_the_row() -> None:
    """Each function twice, in two orders; a token must lead to what was put there."""
    order = [*range(len(FUNCTIONS)), *reversed(range(len(FUNCTIONS)))]

    def interpret(rows: Any) -> tuple[Found, Any]:
        x, n = rows["x"][0], rows["n"][0]
        return of(*(FUNCTIONS[i](x, n) for i in order)), jnp.all(x < 10)

    found, constants = with_slots(interpret, ROWS)
    arrays, valid = constants(ROW)
    assert bool(valid)
    for i, slot in zip(order, found.arrays, strict=True):
        assert isinstance(slot, Slot) and isinstance(slot.token, int)
        expected = FUNCTIONS[i](ROW["x"], ROW["n"])
        assert (slot.shape, slot.dtype) == (
            np.shape(expected),
            arrays[slot.token].dtype,
        )
        np.testing.assert_array_equal(arrays[slot.token], expected)


def test_different_functions_never_share_a_token_and_one_variable_does() -> None:
    def interpret(rows: Any) -> tuple[Found, Any]:
        x, n = rows["x"][0], rows["n"][0]
        made = [function(x, n) for function in FUNCTIONS]
        return of(*made, *made), True

    found, _ = with_slots(interpret, ROWS)
    slots = found.arrays
    first, again = slots[: len(FUNCTIONS)], slots[len(FUNCTIONS) :]
    assert first == again
    for a, b in itertools.combinations(first, 2):
        assert a.token != b.token
        assert not same_constant(a, b)
        assert constant_key(a) != constant_key(b)
    assert all(map(same_constant, first, again))


def test_whether_a_row_counts_is_no_constant_of_its_terms() -> None:
    """Even where a term has the very same variable."""

    def interpret(rows: Any) -> tuple[Found, Any]:
        valid = jnp.all(rows["x"] > 0)
        return of(valid, rows["x"]), valid

    found, constants = with_slots(interpret, ROWS)
    arrays, valid = constants.zero_if_invalid(ROW)
    assert not bool(valid)
    assert set(arrays) == {slot.token for slot in found.arrays}
    assert all(not np.any(array) for array in arrays.values())


def test_a_row_that_does_not_count_brings_zeros() -> None:
    def interpret(rows: Any) -> tuple[Found, Any]:
        x = rows["x"][0]
        return of(x, jnp.log(x), rows["n"]), jnp.all(jnp.isfinite(x))

    _, constants = with_slots(interpret, ROWS)
    bad = {**ROW, "x": np.array([1.0, np.nan, np.inf], np.float32)}
    arrays, valid = constants.zero_if_invalid(bad)
    assert not bool(valid)
    for array in arrays.values():
        np.testing.assert_array_equal(array, np.zeros_like(array))
    kept, valid = constants.zero_if_invalid(ROW)
    assert bool(valid)
    for token, array in constants(ROW)[0].items():
        np.testing.assert_array_equal(kept[token], array)


def test_public_constants_are_evaluated_once() -> None:
    known = np.array([1.0, 2.0], np.float32)

    def interpret(rows: Any) -> tuple[Found, Any]:
        public = of(jnp.log(jnp.asarray(known)), is_private=False)
        return Found((*public.terms, *of(rows["x"]).terms)), True

    found, constants = with_slots(interpret, ROWS)
    public, private = found.arrays
    assert isinstance(public, np.ndarray) and isinstance(private, Slot)
    np.testing.assert_allclose(public, np.log(known), rtol=1e-6)
    assert constants.tokens == (private.token,)


@pytest.mark.parametrize("function", FUNCTIONS[:7])
def test_a_constant_that_reads_the_row_cannot_be_public(function: Callable) -> None:
    def interpret(rows: Any) -> tuple[Found, Any]:
        return of(function(rows["x"][0], rows["n"][0]), is_private=False), True

    with pytest.raises(AssertionError, match="depends on the row"):
        with_slots(interpret, ROWS)


def test_public_constants_are_the_same_if_their_numbers_are() -> None:
    large = 2**53
    arrays = [
        np.arange(3.0),
        np.arange(1.0, 4.0),
        np.arange(3.0)[None],
        np.array([0.0, 1.0, 2.0 + 1e-15 * 2]),
        np.array([large, large + 1]),
        np.array([large, large]),
        np.zeros(0),
    ]
    for (i, a), (j, b) in itertools.product(enumerate(arrays), repeat=2):
        assert same_constant(a, b.copy()) == (i == j)
        assert (constant_key(a) == constant_key(b.copy())) == (i == j)
    assert constant_key(np.arange(3)) == constant_key(np.arange(3.0))
    slot = Slot(1, (3,), np.dtype(float))
    for array in arrays:
        assert not same_constant(slot, array)
        assert constant_key(slot) != constant_key(array)
    # The mean of a latent that is called "1" is no constant of a row.
    assert not same_constant(slot, Slot("1", (3,), np.dtype(float)))
    assert constant_key(slot) != constant_key(Slot("1", (3,), np.dtype(float)))


@pytest.mark.parametrize(("tokens", "expected"), [((4, 4), "psd"), ((4, 5), "signed")])
def test_a_matrix_is_semidefinite_only_if_its_tokens_are_equal(
    tokens: tuple[int, int], expected: str
) -> None:
    """x xᵀ is, and x yᵀ is not, whatever shapes and types they have."""
    labels = Label(3), Label(3)
    constants = tuple(
        Dense(Slot(token, (3,), np.dtype(float)), (label,), is_private=True)
        for token, label in zip(tokens, labels, strict=True)
    )
    atoms = tuple(Atom("w", "x", (label,)) for label in labels)
    term = Term(-0.5, (*constants, *atoms), frozenset(labels))
    latent = Latent(name="w", role="global", shape=(3,), support=None)
    assert geometry([(term, labels)], ((), (0,), (1,)), {"w": latent}) == expected


# --- models -------------------------------------------------------------------------


@pytest.fixture(scope="module", params=sorted(MODELS))
def program(request: pytest.FixtureRequest) -> ConjugateProgram:
    model = MODELS[request.param]
    return uncertified(model.fn, model.rows())


@pytest.mark.thorough
def test_terms_of_models_are_data(program: ConjugateProgram) -> None:
    """Nothing is left that was traced, and the prior needs no row."""
    forms = [x.weight for x in program.structure.latents.values() if x.weight]
    row_terms = [*program.row_terms, *(term for form in forms for term in form.terms)]
    slots = set()
    for term in (*row_terms, *program.centred_terms):
        for factor in term.constants:
            assert isinstance(factor.array, np.ndarray | Slot)
            if isinstance(factor.array, Slot):
                slots.add(factor.array)
                is_mean = isinstance(factor.array.token, str)
                assert factor.is_private != is_mean
    assert {s.token for s in slots if isinstance(s.token, int)} <= set(
        program.row_constants.tokens
    )
    # One token has one shape and one type.
    assert len({slot.token for slot in slots}) == len(slots)
    for term in program.prior_terms:
        for factor in term.constants:
            assert isinstance(factor.array, np.ndarray)
    moments = jax.eval_shape(
        lambda key: starts.start(program, key).moments, jax.random.key(0)
    )
    assert set(moments) == {
        factor.name for factor in program.structure.posterior_factors_of("global")
    }


def test_a_square_has_one_token_twice() -> None:
    """Of Σ x_i x_j w_i w_j: by this the released matrix is known to be semidefinite."""
    program = uncertified(
        MODELS["linear_regression"].fn, MODELS["linear_regression"].rows()
    )
    squares = [
        term
        for term in program.row_terms
        if [atom.latent for atom in term.atoms].count("w") == 2
    ]
    assert squares
    for term in squares:
        assert len(term.slots) == 2 and same_constant(*term.slots)


def test_nothing_that_runs_interprets_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The model's program is read twice: once to run, once in double precision."""
    calls = []
    interpret = log_joint.interpret

    def counted(*args: Any) -> Any:
        calls.append(args)
        return interpret(*args)

    monkeypatch.setattr(log_joint, "interpret", counted)
    rows = MODELS["linear_regression"].rows(6)
    marked, graph = graph_of(MODELS["linear_regression"].fn, rows)
    compiled = compile_model(marked, graph)
    assert len(calls) == 2
    calls.clear()
    engine = VipsEngine(compiled, num_rows=6, local_steps=2)
    state = engine.initial_state(jax.random.key(0))
    names = [s.name for s in engine.statistics if s.release != "public"]
    arguments = graph.arguments
    taken = arguments.as_taken(arguments.take(np.arange(6)))
    engine.row_norms(state, taken, names)
    sums = engine.bounded_sum(
        state,
        taken,
        np.ones(6, bool),
        scales=dict.fromkeys(names, 1.0),
        clipping_norm=1.0,
    )
    state = engine.update(state, sums, dict.fromkeys(names, 0.1), 1.0)
    assert engine.has_posterior(state)
    assert not calls
