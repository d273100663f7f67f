"""What a program that runs on single private rows may consist of.

`jax.vmap` maps the program of one row over a minibatch. That a row's contribution does
not depend on other rows, and that nothing of a row leaves except through the clipped
sum, then rests on the operations in that program. So the program is traced for one
row, every operation in it is looked at, in programs inside it too, and this very
program is what runs. An operation is refused unless it is known to be safe:

| refused                               | because                                   |
|---------------------------------------|-------------------------------------------|
| callbacks, prints, checks of values   | Python code sees rows                     |
| `custom_vmap` functions               | their rules see all rows at once          |
| foreign calls, kernels, primitives of | nothing is known of their rules           |
| one's own                             |                                           |
| keys other than threefry              | a row's draws depend on other rows' keys  |
| collectives                           | they add up what others hold              |
| mutable arrays (`jax.new_ref`)        | they keep what a row wrote into them      |
| 64-bit numbers beside 32-bit ones     | bounds on rounding are those of the type  |
|                                       | that JAX computes in                      |
| convolutions in groups, or of other   | XLA multiplies those of all rows with     |
| numbers than of single precision      | each other                                |

The rules in this package that are marked by `treats_rows_alone` take rows one by one.
`jax.custom_batching.sequential_vmap` does so too, by a rule of JAX's own. But this rule
calls the author's Python function again, which may do something else by then. So what
runs is the program that the function was traced to before, mapped like all the rest,
and the rule never does.

Derivatives that an author has given a function (`jax.custom_jvp`, `jax.custom_vjp`) are
part of the traced program wherever a derivative is taken.

LAPACK prints a line where it is to decompose a matrix with an infinite number. So the
singular values of what is not finite are not looked for: they are not numbers. Nor are
its triangular factors: which of its rows are exchanged depends on where it lies in
memory, so that the sign of a determinant would depend on how many rows stand before.
Nor are incomplete Gamma functions of huge shapes: JAX adds up their series until it
converges, which takes longer than anybody can wait in double precision. Incomplete Beta
functions are evaluated by `incomplete_beta`, since JAX's of a row depends on others,
products by `row_product`, since XLA's depends on where the row stands, and loops by
`asking_once`, since JAX's ask twice whether a row goes on. Where one of these
operations is left, in something that cannot be looked into, the program is refused.
"""

import functools
import math
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax.extend.core import primitives

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.bounded_loops import as_bounded, is_bounded
from numpyro_vips.jax_tools.host_calls import is_own_callback
from numpyro_vips.jax_tools.jaxprs import (
    aval_of,
    called_program,
    closed,
    equations_of,
    programs_in,
    without_dead_code,
)
from numpyro_vips.jax_tools.materialized import makes_no_turn
from numpyro_vips.jax_tools.operations.incomplete_beta import incomplete_beta
from numpyro_vips.jax_tools.operations.row_loops import asking_once
from numpyro_vips.jax_tools.operations.row_products import (
    DotGeneral,
    row_product,
    with_rows_on_the_left,
)
from numpyro_vips.jax_tools.own_functions import OwnFunctions
from numpyro_vips.jax_tools.random_keys import is_key, is_threefry, threefry_key
from numpyro_vips.jax_tools.user_lines import line_of_equation

_INCOMPLETE_BETA = "regularized_incomplete_beta"
# Of JAX's own operations, those by which rows could meet, leave or be kept.
_REFUSED = (
    *("rng_bit_generator_p", "rng_uniform_p"),
    *("all_gather_p", "all_to_all_p", "axis_index_p", "pmax_p", "pmin_p"),
    *("ppermute_p", "psum_p", "ragged_all_to_all_p", "xla_pmap_p"),
    *("get_p", "swap_p", "create_token_p", "after_all_p"),
)


# The parameter by which that one says which it is. JAX has its function, no program.
_HAS_A_FUNCTION = "_prim"
_TAKE_IT_OFF = "Take the decorator off, so that JAX maps the function itself."


def _operation(equation: jex_core.JaxprEqn) -> Any:
    """What an equation does: its primitive, or what goes by a primitive's name."""
    # Since JAX 0.12 one primitive stands for many, of the caller's own making too. Each
    # has a rule of its own for batches, so what it is written out as says too little.
    what = equation.params.get(_HAS_A_FUNCTION, equation.primitive)
    return type(what), equation.primitive


@functools.cache
def _listed() -> frozenset[Any]:
    """JAX's own operations that treat rows under `jax.vmap` one by one."""
    listed = {**vars(jax.lax), **vars(primitives)}
    return frozenset(
        (type(value), value)
        for name, value in listed.items()
        if isinstance(value, jex_core.Primitive) and name not in _REFUSED
    )


def _loop(x: jax.Array) -> jax.Array:
    return jax.lax.scan(lambda c, y: (c * y, c * jnp.sin(y)), 1.0, x)[1].sum()


def _root(x: jax.Array) -> jax.Array:
    return jax.lax.custom_root(
        lambda y: y - x, 0.0, lambda f, y: y - f(y), lambda g, y: y / g(1.0)
    )


def _with_own_derivative(x: jax.Array) -> jax.Array:
    sine: Any = jax.custom_vjp(jnp.sin)
    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (g * jnp.cos(x),))
    return sine(x)


# Functions that have more of them, with an argument, of which None is a key: operations
# on keys, and what differs between versions. The most frequent ones come first.
_UNLISTED: dict[Callable[[Any], Any], Any] = {
    lambda key: jax.random.wrap_key_data(jax.random.key_data(key)): None,
    jax.random.clone: None,
    jnp.diagonal: np.zeros((3, 3), np.float32),
    lambda x: jnp.searchsorted(x, x): np.zeros(3, np.float32),
    jax.checkpoint(jnp.sin): 0.0,
    lambda x: jnp.nonzero(x, size=2): np.zeros(3, np.float32),
    lambda x: jnp.ldexp(*jnp.frexp(x)): 1.0,
    jax.grad(_root): 0.0,
    jax.nn.relu: 0.0,
    _with_own_derivative: 0.0,
    jax.grad(_loop): np.zeros(3, np.float32),
}


@functools.cache
def _operations_of(function: Callable[[Any], Any]) -> frozenset[Any]:
    """The operations of a function in `_UNLISTED`, as `_operation` names them."""
    argument = _UNLISTED[function]
    given = threefry_key(0) if argument is None else argument
    program = jax.make_jaxpr(function)(given)
    return frozenset(map(_operation, equations_of(program)))


def _treats_rows_one_by_one(operation: Any) -> bool:
    """Whether an operation, as `_operation` names it, is known to do so."""
    if operation in _listed():
        return True
    return any(operation in _operations_of(function) for function in _UNLISTED)


# Rules of `custom_vmap` in this package, under which a row's result depends on that row
# alone, to the last digit.
_RULES_OF_OURS = OwnFunctions()
treats_rows_alone = _RULES_OF_OURS.note
treats_rows_alone(with_rows_on_the_left)


def _rule_of(equation: jex_core.JaxprEqn) -> Any:
    """The function that was given to `def_vmap`; None if JAX does not show it."""
    return getattr(equation.params.get("rule"), "__wrapped__", None)


@functools.cache
def _code_of_sequential_vmap() -> types.CodeType:
    """Each of its functions has a rule of its own, all of the same code."""
    program = jax.make_jaxpr(jax.custom_batching.sequential_vmap(jnp.sin))(0.0)
    return _rule_of(program.jaxpr.eqns[0]).__code__


def _is_hidden(equation: jex_core.JaxprEqn) -> bool:
    """Whether what an operation is written with cannot be looked at."""
    return _HAS_A_FUNCTION in equation.params and called_program(equation) is None


def _is_safe_batching(equation: jex_core.JaxprEqn) -> bool:
    rule = _rule_of(equation)
    is_function = isinstance(rule, types.FunctionType)
    is_sequential = is_function and rule.__code__ is _code_of_sequential_vmap()
    return is_sequential or _is_ours(equation)


def _is_ours(equation: jex_core.JaxprEqn) -> bool:
    return _rule_of(equation) in _RULES_OF_OURS


def _is_sequential(equation: jex_core.JaxprEqn) -> bool:
    """Whether it is a function of `sequential_vmap`, in a program that was checked."""
    return equation.primitive.name == "custom_vmap_call" and not _is_ours(equation)


def _may_be_rounded_twice(equation: jex_core.JaxprEqn) -> bool:
    """Whether an equation is a loop that computes with real numbers to know its end.

    Comparing numbers that the loop carries along is exact.
    """
    if equation.primitive.name != "while" or makes_no_turn(equation):
        return False
    asked = without_dead_code(closed(equation.params["cond_jaxpr"]))
    return any(
        jnp.issubdtype(aval_of(result).dtype, jnp.inexact)
        for each in equations_of(asked)
        for result in each.outvars
    )


def _with_own_operations(program: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """The program with what stands in place of some operations.

    These are `_INSTEAD` of JAX's, loops that ask once in a turn whether to go on, and
    calls of their programs for functions of `sequential_vmap` and for operations that
    JAX keeps as functions.

    Raises:
      UnsafeModelError: One of them is left where it cannot be replaced.
    """
    replacing = _Replacing()
    found = replacing.replaced(program)
    for equation in replacing.left_in(found):
        is_sequential = equation.primitive.name == "custom_vmap_call"
        what = "jax.custom_batching.sequential_vmap function"
        what = what if is_sequential else f"operation {equation.primitive.name!r}"
        remedy = _TAKE_IT_OFF if is_sequential else "Compute it outside of this one."
        raise UnsafeModelError(
            f"The model or guide has the {what}{line_of_equation(equation)} in an "
            "operation of a kind that cannot be looked into, where one record could "
            f"act on another one. {remedy}"
        )
    return found


class _Replacing:
    """Puts other operations in the place of some, and remembers where it did so."""

    def __init__(self) -> None:
        # Programs that stand in place of others, which they may have in them.
        self._placed: dict[int, Any] = {}

    def replaced(self, value: Any) -> Any:
        """A program, or what has it in; the same object if nothing changes."""
        # Since JAX 0.12 programs with constants and without are of one class.
        within = _within(value)
        if within is not value:
            jaxpr = self.replaced(within)
            is_same = jaxpr is within
            return value if is_same else jex_core.ClosedJaxpr(jaxpr, value.consts)
        if isinstance(value, jex_core.Jaxpr):
            equations = [self._replaced_equation(equation) for equation in value.eqns]
            is_same = all(map(operator.is_, equations, value.eqns))
            return value if is_same else value.replace(eqns=equations)
        kind: Any = type(value)
        has_names = isinstance(value, tuple) and hasattr(value, "_fields")
        if has_names or kind in (tuple, list):
            parts = [self.replaced(part) for part in value]
            if all(map(operator.is_, parts, value)):
                return value
            return kind(*parts) if has_names else kind(parts)
        return value

    def _replaced_equation(self, equation: jex_core.JaxprEqn) -> jex_core.JaxprEqn:
        params = {name: self.replaced(x) for name, x in equation.params.items()}
        is_same = all(params[name] is x for name, x in equation.params.items())
        new = equation if is_same else equation.replace(params=params)
        instead = _INSTEAD.get(equation.primitive.name)
        if instead is not None:
            call = _call_of(instead(new), [aval_of(x) for x in new.invars], new)
            self._placed[id(_within(call.params.get("jaxpr")))] = call
            return call
        if _may_be_rounded_twice(new):
            programs = (closed(new.params[x]) for x in ("cond_jaxpr", "body_jaxpr"))
            loop = asking_once(new, *programs)
            if is_bounded(equation):
                loop = as_bounded(loop)
            return _call_of(loop, [aval_of(x) for x in new.invars], new)
        is_function = _HAS_A_FUNCTION in equation.params
        if not (is_function or _is_sequential(equation)):
            return new
        # Nothing differentiates a row's program any more, so rules of derivatives are
        # not needed; and what maps it is not the rule of an author.
        called = called_program(new)
        assert called is not None
        if is_function:
            called = self.replaced(called)
        return _call_of(jex_core.jaxpr_as_fun(called), called.in_avals, new)

    def left_in(self, program: jex_core.ClosedJaxpr) -> Iterator[jex_core.JaxprEqn]:
        """The equations of a program once replaced that should be there no more."""
        for inner in programs_in(program, enters=self._is_not_placed):
            for equation in inner.jaxpr.eqns:
                if (
                    equation.primitive.name in _INSTEAD
                    or _may_be_rounded_twice(equation)
                    or _is_sequential(equation)
                ):
                    yield equation

    def _is_not_placed(self, equation: jex_core.JaxprEqn) -> bool:
        return id(_within(equation.params.get("jaxpr"))) not in self._placed


def _within(value: Any) -> Any:
    """The program in a closed one; any other value as it is."""
    return value.jaxpr if isinstance(value, jex_core.ClosedJaxpr) else value


def _call_of(
    function: Callable[..., Any], avals: Sequence[Any], equation: jex_core.JaxprEqn
) -> jex_core.JaxprEqn:
    """A call of a function in the place of an equation; the latter if there is none."""
    like = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak_type) for x in avals
    ]
    # Of arrays in the program JAX would make operands of the call.
    (call,) = jax.make_jaxpr(jax.jit(function))(*like).jaxpr.eqns
    if len(call.invars) != len(equation.invars):
        return equation
    return call.replace(invars=equation.invars, outvars=equation.outvars)


def _of_finite(equation: jex_core.JaxprEqn) -> Callable[[Any], list[Any]]:
    """What an equation does that decomposes matrices, with NaN where one is not finite.

    Zeros are decomposed in its place, and whole numbers, such as which rows are
    exchanged, are theirs.
    """

    def decomposed(matrix: jax.Array) -> list[jax.Array]:
        is_finite = jnp.isfinite(matrix).all((-2, -1))

        def where_finite(array: Any, other: float) -> jax.Array:
            if not jnp.issubdtype(array.dtype, jnp.inexact):
                return array
            axes = tuple(range(is_finite.ndim, array.ndim))
            return jnp.where(jnp.expand_dims(is_finite, axes), array, other)

        found = equation.primitive.bind(where_finite(matrix, 0.0), **equation.params)
        return [where_finite(array, math.nan) for array in found]

    return decomposed


# Up to here series have ten million terms at most, some ten times the shape's root. In
# single precision they have no more whatever the shape.
_LARGEST_SHAPE = 2.0**40


def _of_moderate_shape(equation: jex_core.JaxprEqn) -> Callable[..., list[Any]]:
    """What an equation does that is an incomplete Gamma function, or NaN where the
    first operand, its shape, is huge."""

    def moderate(shape: jax.Array, x: jax.Array) -> list[jax.Array]:
        # Not a number ends at once.
        is_huge = shape > _LARGEST_SHAPE
        given = (jnp.where(is_huge, 1.0, each) for each in (shape, x))
        found = equation.primitive.bind(*given, **equation.params)
        return [jnp.where(is_huge, math.nan, found)]

    return moderate


def _product_of_rows(equation: jex_core.JaxprEqn) -> Callable[..., list[Any]]:
    """What an equation does that is a product, for any place of the row."""
    product = DotGeneral.of(equation)
    return lambda left, right: [row_product(product, left, right)]


# By the name of a primitive, what is done in its place.
_INSTEAD: dict[str, Callable[[jex_core.JaxprEqn], Callable[..., list[Any]]]] = {
    **dict.fromkeys(("svd", "lu"), _of_finite),
    _INCOMPLETE_BETA: lambda _: lambda *given: [incomplete_beta(*given)],
    "dot_general": _product_of_rows,
    **dict.fromkeys(("igamma", "igammac", "igamma_grad_a"), _of_moderate_shape),
}


def _is_wider_than_jax(dtype: Any) -> bool:
    """Whether a type is one that JAX has only where double precision is switched on."""
    return isinstance(dtype, np.dtype) and jax.dtypes.canonicalize_dtype(dtype) != dtype


def _may_be_of_all_rows(convolution: jex_core.JaxprEqn) -> bool:
    """Whether XLA may write a convolution of many rows as one of all with all."""
    counts = ("feature_group_count", "batch_group_count")
    has_groups = any(convolution.params.get(name, 1) != 1 for name in counts)
    return has_groups or any(aval_of(x).dtype != np.float32 for x in convolution.invars)


def check_row_program(program: jex_core.ClosedJaxpr) -> None:
    """Refuses a program by which rows could meet or leave; see the module.

    What no output needs and has no effect is not looked at, since it never runs.

    Raises:
      UnsafeModelError: It has an operation that is not known to be safe.
    """
    for equation in equations_of(without_dead_code(program)):
        name = equation.primitive.name
        if "callback" in name or name in ("debug_print", "check"):
            if is_own_callback(equation):
                continue
            raise UnsafeModelError(
                "The model or guide calls back to Python "
                f"({name}){line_of_equation(equation)}, as jax.debug.print and "
                "jax.pure_callback do. Single records would be shown to code that no "
                "clipping bounds and no budget pays for. Take the call out, or keep it "
                "for runs of the plain model."
            )
        if name == "custom_vmap_call":
            if _is_safe_batching(equation):
                continue
            raise UnsafeModelError(
                "The model or guide has a jax.custom_batching.custom_vmap function"
                f"{line_of_equation(equation)}, whose rule sees all rows of a batch at "
                "once: one record could act on what another one contributes. "
                f"{_TAKE_IT_OFF}"
            )
        if name == "empty":
            # From `jnp.empty` since JAX 0.12; in `numpyro.factor` it has no entries.
            if not any(math.prod(aval_of(x).shape) for x in equation.outvars):
                continue
            raise UnsafeModelError(
                f"The model or guide uses jnp.empty{line_of_equation(equation)}, whose "
                "entries are what stood in memory before, other records too. Use "
                "jnp.zeros."
            )
        if name == "conv_general_dilated" and _may_be_of_all_rows(equation):
            raise UnsafeModelError(
                "The model or guide has a convolution of numbers that are not in "
                f"single precision, or in groups{line_of_equation(equation)}. XLA "
                "multiplies those of all records with each other, and with zero where "
                "they do not belong together, so that one that is not a number would "
                "take all others along. Leave jax_enable_x64 off, or write the "
                "convolution as sums of products."
            )
        is_known = _treats_rows_one_by_one(_operation(equation))
        if not is_known or _is_hidden(equation):
            raise UnsafeModelError(
                f"The model or guide uses the operation {name!r}"
                f"{line_of_equation(equation)}, and it is not known that it treats the "
                "records of a batch one by one. Foreign calls, kernels, collectives, "
                "mutable arrays and primitives of one's own are not supported. Write "
                "it with functions of jax.numpy, jax.scipy, jax.lax and jax.random."
            )
        for variable in (*equation.invars, *equation.outvars):
            aval = aval_of(variable)
            if _is_wider_than_jax(aval.dtype):
                raise UnsafeModelError(
                    f"The model or guide makes numbers of type {aval.dtype}"
                    f"{line_of_equation(equation)}, and JAX computes in single "
                    "precision elsewhere: how far rounding moves what a record adds "
                    "would not be known. Leave them in single precision, or switch on "
                    'double precision for all by jax.config.update("jax_enable_x64", '
                    "True)."
                )
            if is_key(aval) and not is_threefry(aval.dtype):
                raise UnsafeModelError(
                    f"The model or guide draws from keys of the kind {aval.dtype}. "
                    "Under jax.vmap a record's draws would depend on the others. Use "
                    "numpyro.prng_key(), or jax.random.key(seed, impl='threefry2x32')."
                )


def over_rows(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Maps a function of one private row over rows, as a program that was checked.

    Args:
      function: Takes what rows share and one row, both trees of arrays, and returns a
        tree of arrays. It must hold no traced arrays of its own.

    Returns:
      A function of what rows share and of rows, with a leading axis of rows in each
      array, which returns the results with a leading axis of rows.

    Raises:
      UnsafeModelError: When it is called; see `check_row_program`.
    """

    traced = jax.jit(function)  # Keeps the programs that it has traced.

    def mapped(shared: Any, rows: Any) -> Any:
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), rows)
        program, shapes = row_program(traced, shared, one)
        run = jex_core.jaxpr_as_fun(program)

        def of_row(row: Any) -> list[Any]:
            return run(*jax.tree.leaves((shared, row)))

        return jax.tree.unflatten(jax.tree.structure(shapes), jax.vmap(of_row)(rows))

    return mapped


def row_program(
    function: Any, shared: Any, row: Any
) -> tuple[jex_core.ClosedJaxpr, Any]:
    """The checked program of one row, and the shapes of its results.

    Mapped over rows, it runs no code but JAX's and this package's.

    Args:
      function: A function of one row that was given to `jax.jit`.
      shared, row: Its arguments, of which only shapes and types are looked at.

    Raises:
      UnsafeModelError: See `check_row_program`.
    """
    like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (shared, row))
    trace = function.trace(*like)
    program = without_dead_code(trace.jaxpr)
    check_row_program(program)
    return _with_own_operations(program), trace.out_info
