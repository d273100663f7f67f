"""Walks through traced programs, on programs with calls, loops and constants."""

import dataclasses
import struct
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from numpyro_vips.jax_tools import jaxprs
from numpyro_vips.jax_tools.index_ranges import indices_in_range
from numpyro_vips.jax_tools.program_constants import constants_of

X = np.arange(1.0, 4.0, dtype=np.float32)
TABLE = np.array([2.0, 3.0, 5.0], np.float32)


@jax.custom_jvp
def own_jvp(x: Any) -> Any:
    return jnp.sin(x)


own_jvp.defjvp(lambda x, t: (jnp.sin(x[0]), 100.0 * t[0]))


@jax.custom_vjp
def own_vjp(x: Any) -> Any:
    return jnp.sin(x)


own_vjp.defvjp(lambda x: (jnp.sin(x), None), lambda _, g: (100.0 * g,))


def root(x: Any) -> Any:
    return lax.custom_root(
        lambda y: y - jnp.sin(x), x, lambda f, y: y - f(y), lambda _, y: y
    )


def loop(x: Any) -> Any:
    return lax.scan(lambda c, y: (c * y, c + y + TABLE[0] * x[1]), 1.0, x)[1]


CALLS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit(jnp.sin),
    "jit in a jit": jax.jit(lambda x: 2 * jax.jit(jnp.sin)(x)),
    "checkpoint": jax.checkpoint(jnp.sin),
    "custom_jvp": own_jvp,
    "custom_vjp": own_vjp,
    "custom_vmap": jax.custom_batching.sequential_vmap(jnp.sin),
    "relu": jax.nn.relu,
    # Since JAX 0.12 these are operations that say what they do by a function.
    "nonzero": lambda x: jnp.sin(x)[jnp.nonzero(x > 1, size=2)[0]],
    "tril_indices": lambda x: jnp.sin(x)[jnp.tril_indices(3)[0]],
    "ldexp": lambda x: jnp.ldexp(jnp.sin(x), 2),
    "searchsorted": lambda x: jnp.sin(x)[jnp.searchsorted(x, 2.5)],
    "custom_root": root,
}
LOOPS: dict[str, Callable[[Any], Any]] = {
    "scan": loop,
    "while_loop": lambda x: lax.while_loop(lambda c: c[0] < 9, lambda c: c + x, x),
    "cond": lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
}


def doubled(equation: Any, operands: list[Any]) -> list[Any] | None:
    """A rule that doubles every sine."""
    if equation.primitive.name != "sin":
        return None
    return [2 * jnp.sin(operands[0])]


@pytest.mark.thorough
@pytest.mark.parametrize("name", {**CALLS, **LOOPS})
def test_a_program_keeps_its_value(name: str) -> None:
    function = {**CALLS, **LOOPS}[name]
    program = jax.make_jaxpr(function)(X)
    for keep_rules in (False, True):
        flat = jaxprs.inlined(program, keep_rules=keep_rules)
        (found,) = jex_core.jaxpr_as_fun(flat)(X)
        np.testing.assert_array_equal(found, function(X))


@pytest.mark.thorough
@pytest.mark.parametrize("name", CALLS)
def test_calls_are_looked_into(name: str) -> None:
    program = jax.make_jaxpr(CALLS[name])(X)
    flat = jaxprs.inlined(program)
    assert not any(map(jaxprs.called_program, flat.jaxpr.eqns))
    (found,) = jaxprs.evaluate(program, [X], doubled)
    factor = 1 if name == "relu" else 2
    np.testing.assert_allclose(found, factor * CALLS[name](X), rtol=1e-6)


def test_notes_come_back_in_the_order_of_the_equations() -> None:
    def function(x: Any) -> Any:
        return jax.jit(lambda y: jnp.sin(jnp.exp(y)))(x) * jnp.cos(x)

    def rule(equation: Any, operands: Any) -> tuple[None, list[str]]:
        return None, [equation.primitive.name]

    program = jax.make_jaxpr(function)(X)
    (found,), notes = jaxprs.evaluate_and_note(program, [X], rule)
    # A call is noted before what it calls.
    call, *rest = notes
    assert jaxprs.called_program(program.jaxpr.eqns[0]) is not None
    assert call == program.jaxpr.eqns[0].primitive.name
    assert rest == ["exp", "sin", "cos", "mul"]
    np.testing.assert_allclose(found, function(X), rtol=1e-6)


@pytest.mark.parametrize("name", LOOPS)
def test_what_runs_not_exactly_once_is_no_call(name: str) -> None:
    program = jax.make_jaxpr(LOOPS[name])(X)
    kinds = {"scan", "while", "cond"}
    (equation,) = [e for e in program.jaxpr.eqns if e.primitive.name in kinds]
    assert jaxprs.called_program(equation) is None


@pytest.mark.parametrize("function", [own_jvp, own_vjp])
def test_a_derivative_of_the_author_is_kept_where_asked_for(function: Any) -> None:
    program = jax.make_jaxpr(jax.jit(function))(X[0])

    def slope(keep_rules: bool) -> Any:
        def evaluated(x: Any) -> Any:
            rule = lambda *_: None  # noqa: E731
            return jaxprs.evaluate(program, [x], rule, keep_rules=keep_rules)[0]

        return jax.grad(evaluated)(X[0])

    assert slope(True) == 100.0
    np.testing.assert_allclose(slope(False), np.cos(X[0]), rtol=1e-6)


def test_constants_of_inner_programs_reach_the_rule() -> None:
    program = jax.make_jaxpr(jax.jit(lambda x: x * jnp.asarray(TABLE) + 1.0))(X)
    seen = []

    def constant(array: Any) -> Any:
        seen.append(np.asarray(array).tolist())
        return array

    (found,) = jaxprs.evaluate(program, [X], lambda *_: None, constant=constant)
    np.testing.assert_array_equal(found, X * TABLE + 1)
    assert TABLE.tolist() in seen or [TABLE.tolist()] == [
        array.tolist() for array in constants_of(program)
    ]
    assert 1.0 in seen


def test_equations_inside_loops_and_branches_are_found() -> None:
    program = jax.make_jaxpr(lambda x: LOOPS["cond"](loop(CALLS["jit"](x))))(X)
    names = [equation.primitive.name for equation in jaxprs.equations_of(program)]
    assert {"sin", "cos", "scan", "cond", "mul"} <= set(names)


def test_equations_of_operations_that_jax_wrote_with_others_are_found() -> None:
    program = jax.make_jaxpr(lambda x: root(x[jnp.nonzero(x, size=3)[0]]))(X)
    names = [equation.primitive.name for equation in jaxprs.equations_of(program)]
    assert {"sin", "cumsum"} <= set(names)


def test_programs_are_found_in_any_container_and_once() -> None:
    program = jax.make_jaxpr(jnp.sin)(X)
    nested = {"a": [program, (program,)], "b": {"c": {"d": program}}}
    assert len(list(jaxprs.programs_in(nested))) == 1


def test_programs_that_differ_in_constants_are_both_found() -> None:
    """The same equations may stand with other arrays, which may be rows."""
    program = jax.make_jaxpr(lambda x: x * jnp.asarray(TABLE))(X)
    if not program.consts:
        pytest.skip("this version of JAX keeps arrays among the literals")
    other = jex_core.ClosedJaxpr(program.jaxpr, [TABLE + 1])
    found = [inner.consts[0] for inner in jaxprs.programs_in([program, other])]
    np.testing.assert_array_equal(found, [TABLE, TABLE + 1])


def test_scan_sizes() -> None:
    program = jax.make_jaxpr(loop)(X)
    (equation,) = [e for e in program.jaxpr.eqns if e.primitive.name == "scan"]
    constants, carried = jaxprs.scan_sizes(equation)
    assert carried == 1
    assert constants == len(equation.invars) - carried - 1 >= 1


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_a_loop_is_its_steps(length: int, reverse: bool) -> None:
    arrays = np.arange(1.0, 1.0 + length, dtype=np.float32)

    def looped(factor: Any, x: Any) -> Any:
        def body(carried: Any, y: Any) -> Any:
            total, product = carried
            return (total + factor * y, product * y), (total, y - product)

        return lax.scan(body, (factor, jnp.ones(())), x, reverse=reverse)

    program = jax.make_jaxpr(looped)(2.0, arrays)
    (equation,) = [e for e in program.jaxpr.eqns if e.primitive.name == "scan"]
    carried, entries, notes = jaxprs.unrolled_scan(
        equation,
        [np.float32(2.0), np.float32(2.0), np.float32(1.0), arrays],
        run=lambda step, values: (
            jex_core.jaxpr_as_fun(step)(*values),
            [float(values[-1])],
        ),
        take=lambda array, step: array[step],
    )
    expected = looped(2.0, arrays)
    found = [*carried, *(np.asarray(one, np.float32) for one in entries)]
    for one, other in zip(found, jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other)
    assert notes == (list(arrays[::-1]) if reverse else list(arrays))


@pytest.mark.parametrize(
    ("index", "factor"), [(-1, 1), (0, 1), (1, 10), (2, 100), (9, 100)]
)
def test_a_branch_is_chosen_as_jax_does(index: int, factor: int) -> None:
    functions = [lambda x, f=f: f * x for f in (1, 10, 100)]
    program = jax.make_jaxpr(lambda i, x: lax.switch(i, functions, x))(0, 3)
    (equation,) = [e for e in program.jaxpr.eqns if e.primitive.name == "cond"]
    branch = jaxprs.chosen_branch(equation, index)
    assert jex_core.jaxpr_as_fun(branch)(jnp.int32(3)) == [3 * factor]
    assert lax.switch(index, functions, 3) == 3 * factor


def test_the_only_use_of_a_variable_is_found_if_there_is_one() -> None:
    def function(
        once: Any, twice: Any, squared: Any, returned: Any, unused: Any
    ) -> Any:
        return jnp.sin(twice) + once - twice, squared * squared, -returned, returned

    program = jax.make_jaxpr(function)(*np.ones(5, np.float32))
    uses = [jaxprs.only_use(program, x) for x in program.jaxpr.invars]
    assert uses[0] is not None
    equation, place = uses[0]
    assert (equation.primitive.name, place) == ("add", 1)
    assert uses[1:] == [None] * 4


def test_a_program_may_return_what_is_on_the_way() -> None:
    program = jax.make_jaxpr(lambda x, y: jnp.cos(jnp.sin(x) * 2) + y)(1.0, 2.0)
    equations = {e.primitive.name: e for e in program.jaxpr.eqns}
    inner = jaxprs.with_results(program, equations["mul"].outvars)
    assert [e.primitive.name for e in inner.jaxpr.eqns] == ["sin", "mul"]
    (found,) = jex_core.jaxpr_as_fun(inner)(0.5, 7.0)
    np.testing.assert_allclose(found, 2 * np.sin(0.5), rtol=1e-6)


def test_dead_code_goes_and_inputs_stay() -> None:
    def function(x: Any, y: Any) -> Any:
        jnp.cos(y)
        return jnp.sin(x), x + y

    program = jax.make_jaxpr(function)(X, X)
    live = jaxprs.without_dead_code(program)
    assert [e.primitive.name for e in live.jaxpr.eqns] == ["sin", "add"]
    sine, used = jaxprs.with_used_inputs(program, [True, False])
    assert used == [True, False]
    assert [e.primitive.name for e in sine.jaxpr.eqns] == ["sin"]
    assert len(sine.jaxpr.invars) == 1
    of_one = jax.make_jaxpr(lambda x, y: jnp.sin(x))(X, X)
    assert len(jaxprs.without_dead_code(of_one).jaxpr.invars) == 2


# --- indices --------------------------------------------------------------------------

LOOKUPS: dict[str, tuple[Callable[[Any], Any], Sequence[int]]] = {
    "an entry": (lambda i: jnp.asarray(TABLE)[i], range(-3, 3)),
    "compiled": (jax.jit(lambda i: jnp.asarray(TABLE)[i]), range(-3, 3)),
    "two arrays, one index": (
        lambda i: jnp.asarray(TABLE)[i] + jnp.arange(5.0)[i],
        range(-3, 3),
    ),
    "used for nothing but an index": (
        lambda i: jnp.arange(5.0)[jnp.arange(2, 7)[i] - 2],
        range(-5, 5),
    ),
    # The last entry is no start of a slice of two.
    "a slice": (lambda i: lax.dynamic_slice(TABLE, (i,), (2,)), [-3, -2, 0, 1]),
    "the first of several axes": (lambda i: jnp.eye(4)[:, i], range(-4, 4)),
    "nothing": (lambda i: i + 1, range(-9, 10)),
    "filled in": (lambda i: jnp.take(TABLE, i, mode="fill"), range(-9, 10)),
    "a constant index": (lambda i: i + jnp.asarray(TABLE)[1], range(-9, 10)),
}


@pytest.mark.parametrize("name", LOOKUPS)
def test_indices_in_range(name: str) -> None:
    function, allowed = LOOKUPS[name]
    program = jax.make_jaxpr(function)(np.int32(0))
    check = jax.jit(lambda i: indices_in_range(program, [i]))
    found = [i for i in range(-9, 10) if check(np.int32(i))]
    assert found == list(allowed)


def test_indices_of_a_small_type_do_not_overflow() -> None:
    table = jnp.arange(300.0)
    program = jax.make_jaxpr(lambda i: lax.dynamic_slice(table, (i,), (1,)))(
        np.uint8(0)
    )
    assert indices_in_range(program, [np.uint8(255)])


def test_what_is_made_alike_is_one_variable() -> None:
    def program(x: Any, y: Any) -> tuple[Any, ...]:
        first, second = jnp.where(x < 0, x + 3, x), jnp.where(x < 0, x + 3, x)
        other = jnp.where(y < 0, y + 3, y)
        return first, second, other, jnp.where(x < 0, x + 4, x)

    closed = jax.make_jaxpr(program)(jnp.int32(1), jnp.int32(2))
    found = jaxprs.representatives(closed)
    first, second, other, fourth = (found[x] for x in closed.jaxpr.outvars)
    assert first is second
    assert len({first, other, fourth}) == 3


tagged = jex_core.Primitive("tagged")
tagged.def_abstract_eval(lambda x, tag: x)


def tags_made_alike(*tags: Any) -> bool:
    """Whether results that differ in one parameter alone are called alike."""
    closed = jax.make_jaxpr(lambda x: [tagged.bind(x, tag=0) for _ in tags])(X)
    # Afterwards, since some versions of JAX take no parameter that has no hash.
    equations = [
        equation.replace(params={"tag": tag})
        for equation, tag in zip(closed.jaxpr.eqns, tags, strict=True)
    ]
    closed = closed.replace(jaxpr=closed.jaxpr.replace(eqns=equations))
    found = jaxprs.representatives(closed)
    return len({found[x] for x in closed.jaxpr.outvars}) == 1


@dataclasses.dataclass(frozen=True)
class Record:
    value: Any


@dataclasses.dataclass(frozen=True, eq=False)
class OnlyItself:
    value: Any


NAN = float("nan")
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]


def test_literals_and_parameters_tell_results_apart() -> None:
    def program(x: Any) -> tuple[Any, ...]:
        close = np.nextafter(np.float32(1.5), np.float32(2.0))
        sums = jnp.sum(x, axis=0), jnp.sum(x, axis=1)
        dtypes = x.astype(jnp.int32), x.astype(jnp.int16)
        return x * np.float32(1.5), x * close, *sums, *dtypes

    closed = jax.make_jaxpr(program)(jnp.ones((2, 2), jnp.float32))
    found = jaxprs.representatives(closed)
    assert len({found[x] for x in closed.jaxpr.outvars}) == len(closed.jaxpr.outvars)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (True, 1),
        (0.0, -0.0),
        (NAN, OTHER_NAN),
        (0j, complex(0.0, -0.0)),
        (np.float32(0.0), np.float32(-0.0)),
        (np.float32(1.0), np.float64(1.0)),
        ((1,), (1.0,)),
        ((True,), (1,)),
        ((0.0,), (-0.0,)),
        ((1, (2, (0.0,))), (1, (2, (-0.0,)))),
        ((1,), [1]),
        (frozenset({1}), frozenset({True})),
        ({"a": 1}, {"a": 1.0}),
        ({"a": {"b": 0.0}}, {"a": {"b": -0.0}}),
        ({1: "a"}, {True: "a"}),
        (np.zeros(2), np.zeros(2)),
        (Record(0.0), Record(-0.0)),
        (Record((1,)), Record((True,))),
        (OnlyItself(1), OnlyItself(1)),
    ],
    ids=repr,
)
def test_parameters_that_python_calls_equal_tell_results_apart(
    one: Any, other: Any
) -> None:
    assert not tags_made_alike(one, other)
    assert tags_made_alike(one, one)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (1, 2.5, "a", None, (True, (NAN,))),
        lambda: [1, -0.0],
        lambda: {"a": (1, 2), "b": [frozenset({3, 4})]},
        lambda: np.float32(0.5),
        lambda: Record((1, -0.0)),
        lambda: lax.GatherDimensionNumbers((0,), (1,), (1,)),
    ],
)
def test_parameters_that_are_written_twice_are_alike(make: Callable[[], Any]) -> None:
    assert tags_made_alike(make(), make())
