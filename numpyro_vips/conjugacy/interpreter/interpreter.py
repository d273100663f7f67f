"""Runs a model's program in the algebra of forms instead of on arrays.

Constants are evaluated as they are; what depends on a latent variable goes by the
rule of its primitive, state by state where it is a function of discrete latents. Loops
of a known number of steps are written out.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.core
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import Label, NotInAlgebra, is_public
from numpyro_vips.conjugacy.interpreter import (
    axis_rules,
    elementwise_rules,
    indexing_rules,
    reduction_rules,
)
from numpyro_vips.conjugacy.interpreter.axis_rules import (
    along_axis,
    concatenated,
    joined_forms,
    reshape_to,
    with_last_axis,
)
from numpyro_vips.conjugacy.interpreter.entries import (
    apply_elementwise,
    apply_to_entries,
)
from numpyro_vips.conjugacy.interpreter.reduction_rules import apply_to_shift
from numpyro_vips.conjugacy.interpreter.signs import (
    is_nonnegative,
    public_is_nonnegative,
)
from numpyro_vips.conjugacy.interpreter.values import (
    Constant,
    Opaque,
    Rule,
    Shift,
    Transformed,
    Value,
    as_form,
    is_logsumexp,
    latents_of,
    names_of,
)
from numpyro_vips.jax_tools.index_ranges import index_operands, is_in_range
from numpyro_vips.jax_tools.jaxprs import (
    apply_equation,
    aval_of,
    called_program,
    chosen_branch,
    evaluate_and_note,
    unrolled_scan,
)
from numpyro_vips.jax_tools.numpy_primitives import NUMPY

_RULES: dict[str, Rule] = {
    **elementwise_rules.RULES,
    **axis_rules.RULES,
    **indexing_rules.RULES,
    **reduction_rules.RULES,
}


def interpret(
    closed: jex_core.ClosedJaxpr, inputs: Sequence[Value]
) -> tuple[list[Value], list[Any]]:
    """Evaluates a program on values of the algebra.

    Args:
      closed: The program.
      inputs: One value per input of the program.

    Returns:
      One value per output, and boolean arrays that are true where a private index into
      a constant lies in range; a row that fails one must count as zero.
    """
    return evaluate_and_note(closed, inputs, _apply, constant=_public)


def _public(array: Any) -> Constant:
    is_traced = isinstance(array, jax.core.Tracer)
    return Constant(array if is_traced else np.asarray(array), is_private=False)


def _apply(
    eqn: jex_core.JaxprEqn, operands: list[Value]
) -> tuple[list[Value] | None, list[Any]]:
    """The values of an equation, None for a call to look into, and new checks."""
    name = eqn.primitive.name
    inner = called_program(eqn)
    if inner is not None:
        known = _known_function(eqn, inner, operands)
        return None if known is None else [known], []
    if all(isinstance(operand, Constant) for operand in operands):
        constants = [op for op in operands if isinstance(op, Constant)]
        return _apply_to_constants(eqn, constants), _index_checks(eqn, constants)
    latents = set().union(*map(latents_of, operands))
    try:
        for operand in operands:
            if type(operand) is Opaque:
                raise NotInAlgebra(operand.reason)
        discrete = _apply_state_by_state(eqn, operands)
        if discrete is not None:
            return [discrete], []
        if any(isinstance(operand, Shift) for operand in operands):
            return [apply_to_shift(eqn, operands)], []
        if name in _CONTROL_FLOW:
            return _CONTROL_FLOW[name](eqn, operands)
        rule = _RULES.get(name)
        if rule is None:
            raise NotInAlgebra(f"{_READABLE.get(name, name)} of {names_of(latents)}")
        result = rule(eqn, *operands)
        return result if isinstance(result, list) else [result], []
    except NotInAlgebra as error:
        reason = str(error)
        if "'" not in reason:
            reason = f"{reason} ({names_of(latents)})"
        shapes = [tuple(aval_of(var).shape) for var in eqn.outvars]
        return [Opaque(reason, latents, shape) for shape in shapes], []


_READABLE = {"cholesky": "a Cholesky factor", "max": "a maximum"}


def _known_function(
    eqn: jex_core.JaxprEqn, inner: jex_core.ClosedJaxpr, operands: Sequence[Value]
) -> Value | None:
    """The value of a function of JAX's that the algebra has a form for.

    It is recognised by doing, step by step, exactly what JAX's own function does.
    """
    has_rules = called_program(eqn, keep_rules=True) is None
    if not has_rules or len(operands) != 2:
        return None
    if all(isinstance(x, Constant) for x in operands):
        return None
    written = str(inner)
    for function, meaning in _KNOWN_FUNCTIONS.items():
        reference = jax.make_jaxpr(function)(*inner.in_avals)
        if any(str(called_program(call)) == written for call in reference.eqns):
            shape = tuple(aval_of(eqn.outvars[0]).shape)
            try:
                return meaning(shape, *operands)
            except NotInAlgebra:
                return None
    return None


def _xlogy(shape: tuple[int, ...], x: Value, y: Value) -> Value:
    return as_form(x) * elementwise.log(as_form(y))


def _logaddexp(shape: tuple[int, ...], *operands: Value) -> Value:
    axes = tuple(map(Label, shape))
    parts = []
    for x in operands:
        if is_logsumexp(x):
            last = x.form.axes[-1]
            parts.append(forms.place(x.form, (*axes, last)))
        else:
            parts.append(with_last_axis(as_form(x), axes))
    states = sum(part.axes[-1].size for part in parts)
    return Transformed("logsumexp", joined_forms(parts, len(axes), (*shape, states)))


# JAX writes these with guards against infinities, which no rule sees through.
_KNOWN_FUNCTIONS: dict[Callable[..., Any], Callable[..., Value]] = {
    jnp.logaddexp: _logaddexp,
    jax.scipy.special.xlogy: _xlogy,
}


# --- constants --------------------------------------------------------------------


def _apply_to_constants(
    eqn: jex_core.JaxprEqn, operands: Sequence[Constant]
) -> list[Value]:
    is_private = any(operand.is_private for operand in operands)
    nonnegative = is_nonnegative(eqn, [_has_no_negative(op) for op in operands])
    if any(operand.entries is not None for operand in operands):
        of_entries = apply_to_entries(
            eqn,
            operands,
            elementwise=eqn.primitive.name in _ELEMENTWISE,
            nonnegative=nonnegative,
        )
        if of_entries is not None:
            return [of_entries]
    arrays = [operand.array for operand in operands]
    if all(operand.is_public for operand in operands):
        results = _evaluate_public(eqn, arrays)
    else:
        results = apply_equation(eqn, _match_dtypes(eqn, arrays))
    return [Constant(result, is_private, nonnegative) for result in results]


def _has_no_negative(x: Constant) -> bool:
    if x.is_public:
        return public_is_nonnegative(x.array)
    return x.nonnegative or x.array.dtype == bool


def _index_checks(eqn: jex_core.JaxprEqn, operands: Sequence[Constant]) -> list[Any]:
    """Whether private indices into a constant array lie in range."""
    return [
        is_in_range(operands[position].array, largest)
        for position, largest in index_operands(eqn)
        if operands[position].is_private
    ]


def _match_dtypes(eqn: jex_core.JaxprEqn, arrays: Sequence[Any]) -> list[Any]:
    """Gives public NumPy arrays the dtype that the program was traced with."""
    return [
        jnp.asarray(a, dtype=aval_of(var).dtype) if is_public(a) else a
        for a, var in zip(arrays, eqn.invars, strict=True)
    ]


def _evaluate_public(eqn: jex_core.JaxprEqn, arrays: Sequence[np.ndarray]) -> list[Any]:
    function = NUMPY.get(eqn.primitive.name)
    aval = aval_of(eqn.outvars[0])
    if function is not None:
        with np.errstate(all="ignore"):
            result = function(eqn.params, *arrays)
        return [np.broadcast_to(np.asarray(result, aval.dtype), aval.shape)]
    with jax.ensure_compile_time_eval():
        results = apply_equation(eqn, _match_dtypes(eqn, arrays))
        return [
            result
            if jnp.issubdtype(result.dtype, jax.dtypes.prng_key)
            else np.asarray(result)
            for result in results
        ]


# --- functions of discrete latents -------------------------------------------------

_ELEMENTWISE = {
    "abs", "add", "and", "ceil", "clamp", "convert_element_type", "cos", "div", "eq",
    "erf", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite",
    "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg",
    "not", "or", "pow", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sqrt",
    "square", "sub", "tanh", "xor",
}  # fmt: skip


# These keep a form readable as it is, so the table of states is not needed.
_POLYNOMIAL = {"add", "sub", "mul", "neg", "convert_element_type"}


def _apply_state_by_state(
    eqn: jex_core.JaxprEqn, operands: Sequence[Value]
) -> Form | None:
    """Applies any elementwise operation to functions of one discrete latent."""
    if eqn.primitive.name not in _ELEMENTWISE:
        return None
    discrete = []
    for operand in operands:
        if isinstance(operand, Transformed | Opaque):
            return None
        form = as_form(operand)
        if not form.is_discrete:
            return None
        discrete.append(form)
    is_float = jnp.issubdtype(aval_of(eqn.outvars[0]).dtype, jnp.floating)
    if (
        eqn.primitive.name in _POLYNOMIAL
        and is_float
        and (
            len(set().union(*(form.latents for form in discrete))) > 1
            or any(len(form.terms) > 1 for form in discrete)
            or _mixes_elements(discrete)
        )
    ):
        return None
    if len({latent for form in discrete for latent in form.latents}) > 2:
        return None

    return elementwise.map_discrete(
        lambda *arrays: apply_elementwise(eqn, arrays), *discrete
    )


def _mixes_elements(discrete: Sequence[Form]) -> bool:
    """Whether one latent's different elements meet, as z[:, 0] and z[:, 1] do."""
    seen: dict[str, tuple] = {}
    for form in discrete:
        for term in form.terms:
            for atom in term.atoms:
                labels = atom.labels[:-1]
                if seen.setdefault(atom.latent, labels) != labels and any(
                    label in term.bound for label in labels
                ):
                    return True
    return False


# --- loops and branches -----------------------------------------------------------


# Steps of a loop that are written out; more would make too large a program.
_MOST_STEPS = 500


def _scan(eqn: Any, operands: Sequence[Value]) -> tuple[list[Value], list[Any]]:
    """A loop of a known number of steps, written out."""
    length = eqn.params["length"]
    if length > _MOST_STEPS:
        raise NotInAlgebra(f"a loop of {length} steps")
    carried, entries, checks = unrolled_scan(eqn, operands, interpret, _step_of)
    stacked = []
    for var, parts in zip(eqn.outvars[len(carried) :], entries, strict=True):
        single = [_with_leading_axis(part) for part in parts]
        stacked.append(concatenated(single, 0, tuple(aval_of(var).shape)))
    return [*carried, *stacked], checks


def _with_leading_axis(x: Value) -> Value:
    if isinstance(x, Constant):
        return Constant(x.dense("a loop")[None], x.is_private)
    if isinstance(x, Transformed) and x.function != "logsumexp":
        return Transformed(x.function, as_form(_with_leading_axis(x.form)))
    form = as_form(x)
    return reshape_to(form, (1, *form.shape))


def _cond(eqn: Any, operands: Sequence[Value]) -> tuple[list[Value], list[Any]]:
    """The branch that a public index chooses."""
    index, *rest = operands
    if not isinstance(index, Constant) or not index.is_public:
        raise NotInAlgebra("a lax.cond, in place of jnp.where,")
    return interpret(chosen_branch(eqn, int(index.array)), rest)


_CONTROL_FLOW = {"scan": _scan, "cond": _cond}


def _step_of(x: Value, step: int) -> Value:
    if isinstance(x, Constant):
        return Constant(x.dense("a loop")[step], x.is_private)
    return along_axis(x, 0, np.arange(step, step + 1), squeeze=True)
