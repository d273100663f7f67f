"""Runs a model's program in the algebra of forms instead of on arrays.

Constants are evaluated as they are (public ones in NumPy, so that they may shape
the program; private ones as traced arrays, so that they cannot). What depends on a
latent variable becomes a form, one of the few functions of a form that likelihoods
know (`Transformed`), or `Opaque`, which remembers the reason.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

import jax
import jax.core
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy import elementwise, forms
from numpyro_vips.conjugacy.contractions import product_array
from numpyro_vips.conjugacy.forms import Form
from numpyro_vips.conjugacy.signs import is_nonnegative, known_is_nonnegative
from numpyro_vips.conjugacy.terms import (
    Atom,
    Branch,
    Dense,
    Factor,
    Label,
    Labels,
    NotInAlgebra,
    OneHot,
    Term,
    is_known,
    range_of,
    split_selectors,
)
from numpyro_vips.numpy_primitives import NUMPY


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A value without latents; `array` is a NumPy array only if it is public.

    `nonnegative` says that no entry is negative, whatever the rows hold.
    """

    array: Any
    row: bool
    nonnegative: bool = False

    @property
    def known(self) -> bool:
        return is_known(self.array)


@dataclasses.dataclass(frozen=True, eq=False)
class Transformed:
    """`function` of a form: "exp", "sigmoid", or "logsumexp" over its last axis."""

    function: str
    form: Form

    @property
    def latents(self) -> set[str]:
        return self.form.latents


@dataclasses.dataclass(frozen=True, eq=False)
class Opaque:
    """A function of latents outside the algebra."""

    reason: str
    latents: set[str]
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class _OnePlusExp(Opaque):
    """1 + exp(form), on its way to a sigmoid."""

    form: Form


@dataclasses.dataclass(frozen=True, eq=False)
class _Shift(Opaque):
    """A maximum, on its way to be subtracted before an exponential and added back.

    log Σ exp(x - m) + m is the logsumexp of x whatever m is, so no more has to be known
    of it than its origin. Any other use of a maximum leaves the algebra.
    """

    origin: object


@dataclasses.dataclass(frozen=True, eq=False)
class _ShiftIsFinite(Opaque):
    """Whether a maximum is finite, by which logsumexp replaces an infinite one."""

    origin: object


@dataclasses.dataclass(frozen=True, eq=False)
class _Shifted(Opaque):
    """form - m, exp(form - m), or log Σ exp(form - m) over the last axis.

    `stage` says which: "difference", "exp" or "log".
    """

    form: Form
    origin: object
    stage: str


@dataclasses.dataclass(frozen=True, eq=False)
class _SumOfExp(Opaque):
    """Σ exp(form) over the last axis, on its way to a logsumexp.

    With an `origin`, the maximum from there has been subtracted.
    """

    form: Form
    origin: object | None = None


Value = Constant | Form | Transformed | Opaque


def latents_of(value: Value) -> set[str]:
    return set() if isinstance(value, Constant) else value.latents


def as_form(value: Value) -> Form:
    """The value as a form.

    Raises:
      NotInAlgebra: It is not one; the message says what stands in the way.
    """
    if isinstance(value, Form):
        return value
    if isinstance(value, Constant):
        form = forms.constant(value.array, row=value.row)
        return forms.within(form, 0.0, math.inf) if value.nonnegative else form
    if isinstance(value, Transformed):
        product = (
            elementwise.exponential(value.form) if value.function == "exp" else None
        )
        if product is not None:
            return product
        raise NotInAlgebra(f"{value.function} of {_names(value.latents)}")
    raise NotInAlgebra(value.reason)


def _names(latents: set[str]) -> str:
    return ", ".join(repr(name) for name in sorted(latents)) or "constants"


def interpret(
    closed: jex_core.ClosedJaxpr, inputs: Sequence[Value], checks: list[Any]
) -> list[Value]:
    """Evaluates a program on values of the algebra.

    Args:
      closed: The program.
      inputs: One value per input of the program.
      checks: Receives boolean arrays that are true where a private index into a
        constant lies in range; a row that fails one must count as zero.
    """
    constants = [Constant(_public(c), row=False) for c in closed.consts]
    return _interpret(closed.jaxpr, constants, inputs, checks)


def _public(array: Any) -> Any:
    return array if isinstance(array, jax.core.Tracer) else np.asarray(array)


def _interpret(
    jaxpr: jex_core.Jaxpr,
    constants: Sequence[Value],
    inputs: Sequence[Value],
    checks: list[Any],
) -> list[Value]:
    values: dict[Any, Value] = {}

    def read(atom: Any) -> Value:
        if isinstance(atom, jex_core.Literal):
            return Constant(np.asarray(atom.val), row=False)
        return values[atom]

    values.update(zip(jaxpr.constvars, constants, strict=True))
    values.update(zip(jaxpr.invars, inputs, strict=True))
    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        values.update(zip(eqn.outvars, _apply(eqn, operands, checks), strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _aval(var: Any) -> Any:
    """Shape and dtype of a variable of the program."""
    return var.aval


def _apply(
    eqn: jex_core.JaxprEqn, operands: list[Value], checks: list[Any]
) -> list[Value]:
    name = eqn.primitive.name
    inner = _inner_program(eqn)
    if inner is not None:
        known = _known_function(eqn, inner, operands)
        return interpret(inner, operands, checks) if known is None else [known]
    if all(isinstance(operand, Constant) for operand in operands):
        constants = [op for op in operands if isinstance(op, Constant)]
        checks += _index_checks(eqn, constants)
        return _apply_to_constants(eqn, constants)
    latents = set().union(*map(latents_of, operands))
    try:
        for operand in operands:
            if type(operand) is Opaque:
                raise NotInAlgebra(operand.reason)
        discrete = _apply_state_by_state(eqn, operands)
        if discrete is not None:
            return [discrete]
        if any(isinstance(operand, _Shift) for operand in operands):
            return [_apply_to_shift(eqn, operands)]
        if name in _CONTROL_FLOW:
            return _CONTROL_FLOW[name](eqn, operands, checks)
        rule = _RULES.get(name)
        if rule is None:
            raise NotInAlgebra(f"{_READABLE.get(name, name)} of {_names(latents)}")
        result = rule(eqn, *operands)
        return result if isinstance(result, list) else [result]
    except NotInAlgebra as error:
        reason = str(error)
        if "'" not in reason:
            reason = f"{reason} ({_names(latents)})"
        return [Opaque(reason, latents, tuple(_aval(var).shape)) for var in eqn.outvars]


_READABLE = {"erf": "erf", "cholesky": "a Cholesky factor", "max": "a maximum"}


def _inner_program(eqn: jex_core.JaxprEqn) -> jex_core.ClosedJaxpr | None:
    if eqn.primitive.name in ("scan", "while", "cond"):
        return None
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = eqn.params.get(key)
        if isinstance(inner, jex_core.ClosedJaxpr):
            return inner
        if isinstance(inner, jex_core.Jaxpr):
            return jex_core.ClosedJaxpr(inner, ())
    return None


def _known_function(
    eqn: jex_core.JaxprEqn, inner: jex_core.ClosedJaxpr, operands: Sequence[Value]
) -> Value | None:
    """The value of a function of JAX's that the algebra has a form for.

    It is told by doing, step by step, exactly what JAX's own function does.
    """
    if eqn.primitive.name != "custom_jvp_call" or len(operands) != 2:
        return None
    if all(isinstance(x, Constant) for x in operands):
        return None
    written = str(inner)
    for function, meaning in _KNOWN_FUNCTIONS.items():
        reference = jax.make_jaxpr(function)(*inner.in_avals)
        if any(str(_inner_program(call)) == written for call in reference.eqns):
            shape = tuple(_aval(eqn.outvars[0]).shape)
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
        if isinstance(x, Transformed) and x.function == "logsumexp":
            last = x.form.axes[-1]
            parts.append(forms.place(x.form, (*axes, last), range(len(x.form.axes))))
        else:
            parts.append(_with_last_axis(as_form(x), axes))
    states = sum(part.axes[-1].size for part in parts)
    return Transformed("logsumexp", _joined(parts, len(axes), (*shape, states)))


def _with_last_axis(form: Form, axes: Labels) -> Form:
    form = forms.broadcast(form, axes)
    return forms.place(form, (*axes, Label(1)), range(len(axes)))


def stacked(parts: Sequence[Form]) -> Form:
    """Forms that broadcast against each other, along a new last axis."""
    axes = forms.common_axes(*parts)
    single = [_with_last_axis(part, axes) for part in parts]
    shape = (*(axis.size for axis in axes), len(parts))
    return _joined(single, len(axes), shape)


# JAX writes these with guards against infinities, which no rule sees through.
_KNOWN_FUNCTIONS: dict[Callable[..., Any], Callable[..., Value]] = {
    jnp.logaddexp: _logaddexp,
    jax.scipy.special.xlogy: _xlogy,
}


# --- constants ----------------------------------------------------------------------


def _apply_to_constants(
    eqn: jex_core.JaxprEqn, operands: Sequence[Constant]
) -> list[Value]:
    row = any(operand.row for operand in operands)
    arrays = [operand.array for operand in operands]
    if all(operand.known for operand in operands):
        results = _evaluate_known(eqn, arrays)
    else:
        results = eqn.primitive.bind(*_match_dtypes(eqn, arrays), **eqn.params)
        results = results if eqn.primitive.multiple_results else [results]
    nonnegative = is_nonnegative(eqn, [_has_no_negative(op) for op in operands])
    return [Constant(result, row, nonnegative) for result in results]


def _has_no_negative(x: Constant) -> bool:
    if x.known:
        return known_is_nonnegative(x.array)
    return x.nonnegative or x.array.dtype == bool


def _index_checks(eqn: jex_core.JaxprEqn, operands: Sequence[Constant]) -> list[Any]:
    """Whether private indices into a constant array lie in range."""
    if eqn.primitive.name == "gather":
        operand, indices = operands
        if not indices.row:
            return []
        numbers, sizes = eqn.params["dimension_numbers"], eqn.params["slice_sizes"]
        limits = [
            operand.array.shape[axis] - sizes[axis] for axis in numbers.start_index_map
        ]
        return [(indices.array >= 0) & (indices.array <= np.asarray(limits))]
    if eqn.primitive.name == "dynamic_slice":
        operand, *starts = operands
        sizes = eqn.params["slice_sizes"]
        return [
            (start.array >= 0) & (start.array <= length - size)
            for start, length, size in zip(
                starts, operand.array.shape, sizes, strict=True
            )
            if start.row
        ]
    return []


def _match_dtypes(eqn: jex_core.JaxprEqn, arrays: Sequence[Any]) -> list[Any]:
    """Gives public NumPy arrays the dtype that the program was traced with."""
    return [
        jnp.asarray(a, dtype=_aval(var).dtype) if is_known(a) else a
        for a, var in zip(arrays, eqn.invars, strict=True)
    ]


def _evaluate_known(eqn: jex_core.JaxprEqn, arrays: Sequence[np.ndarray]) -> list[Any]:
    function = NUMPY.get(eqn.primitive.name)
    aval = _aval(eqn.outvars[0])
    if function is not None:
        with np.errstate(all="ignore"):
            result = function(eqn.params, *arrays)
        return [np.broadcast_to(np.asarray(result, aval.dtype), aval.shape)]
    with jax.ensure_compile_time_eval():
        results = eqn.primitive.bind(*_match_dtypes(eqn, arrays), **eqn.params)
        results = results if eqn.primitive.multiple_results else [results]
        return [
            result
            if jnp.issubdtype(result.dtype, jax.dtypes.prng_key)
            else np.asarray(result)
            for result in results
        ]


# --- functions of discrete latents --------------------------------------------------

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
    is_float = jnp.issubdtype(_aval(eqn.outvars[0]).dtype, jnp.floating)
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

    def function(*arrays: Any) -> Any:
        if all(map(is_known, arrays)) and eqn.primitive.name in NUMPY:
            typed = [
                np.asarray(a, _aval(v).dtype)
                for a, v in zip(arrays, eqn.invars, strict=True)
            ]
            typed = list(np.broadcast_arrays(*typed))
            with np.errstate(all="ignore"):
                return np.asarray(NUMPY[eqn.primitive.name](eqn.params, *typed))
        typed = [
            jnp.asarray(a, _aval(v).dtype)
            for a, v in zip(arrays, eqn.invars, strict=True)
        ]
        shape = jnp.broadcast_shapes(*(a.shape for a in typed))
        typed = [jnp.broadcast_to(a, shape) for a in typed]
        if all(map(is_known, arrays)):
            with jax.ensure_compile_time_eval():
                return np.asarray(eqn.primitive.bind(*typed, **eqn.params))
        return eqn.primitive.bind(*typed, **eqn.params)

    return elementwise.map_discrete(function, *discrete)


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


# --- rules ----------------------------------------------------------------------------

# A rule returns one value, or a list of them where its primitive has several results.
Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for name in names:
            _RULES[name] = rule
        return rule

    return register


@_rule("add", "add_any")
def _add(eqn: Any, x: Value, y: Value) -> Value:
    for one, other in ((x, y), (y, x)):
        if not isinstance(other, Transformed) or other.function != "exp":
            continue
        if _is_uniform(one, 1.0):
            reason = f"1 + exp of {_names(other.latents)}"
            shape = tuple(_aval(eqn.outvars[0]).shape)
            return _OnePlusExp(reason, other.latents, shape, other.form)
    return as_form(x) + as_form(y)


@_rule("sub")
def _sub(eqn: Any, x: Value, y: Value) -> Value:
    if _is_uniform(x, 1.0) and isinstance(y, Transformed) and y.function == "sigmoid":
        return Transformed("sigmoid", -y.form)
    if _is_uniform(x, 1.0) and isinstance(y, Form):
        shape = tuple(map(Label, _aval(eqn.outvars[0]).shape))
        complement = elementwise.complement(forms.broadcast(y, shape))
        if complement is not None:
            return complement
    return as_form(x) - as_form(y)


@_rule("neg")
def _neg(eqn: Any, x: Value) -> Value:
    return -as_form(x)


@_rule("mul")
def _mul(eqn: Any, x: Value, y: Value) -> Value:
    for one, other in ((x, y), (y, x)):
        if isinstance(one, _Shifted) and one.stage == "exp":
            # The weights of a logsumexp with b=.
            exponent = _sum_of_exponents(Transformed("exp", one.form), other)
            if exponent is not None:
                return dataclasses.replace(one, form=exponent)
    exponent = _sum_of_exponents(x, y)
    if exponent is not None:
        return Transformed("exp", exponent)
    return as_form(x) * as_form(y)


def _apply_to_shift(eqn: Any, operands: Sequence[Value]) -> Value:
    """Lets a maximum pass to the places where it is subtracted and added back."""
    shape = tuple(eqn.outvars[0].aval.shape)
    shift = next(operand for operand in operands if isinstance(operand, _Shift))
    same = dataclasses.replace(shift, shape=shape)
    match eqn.primitive.name, operands:
        case "sub", (Form() | Constant() as x, _Shift()):
            form = forms.broadcast(as_form(x), tuple(map(Label, shape)))
            return _Shifted(
                shift.reason, shift.latents, shape, form, shift.origin, "difference"
            )
        case ("add", (_Shifted(stage="log") as log, _)) | (
            "add",
            (_, _Shifted(stage="log") as log),
        ) if log.origin is shift.origin and log.shape == shape:
            return Transformed("logsumexp", log.form)
        case "max", (Constant() as bound, _) if _is_uniform(bound, -math.inf):
            return same
        case "is_finite", _:
            return _ShiftIsFinite(shift.reason, shift.latents, shape, shift.origin)
        case "select_n", (_ShiftIsFinite(), Constant(), _Shift()):
            return same
        case name, (_,) if name in _STRUCTURAL:
            return same
    raise NotInAlgebra(shift.reason)


_STRUCTURAL = {
    "broadcast_in_dim", "copy", "expand_dims", "reshape", "squeeze", "stop_gradient",
    "transpose",
}  # fmt: skip


@_rule("reduce_max")
def _reduce_max(eqn: Any, x: Value) -> Value:
    latents = latents_of(x)
    shape = tuple(eqn.outvars[0].aval.shape)
    return _Shift(f"a maximum of {_names(latents)}", latents, shape, object())


@_rule("sign", "abs")
def _magnitude(eqn: Any, x: Value) -> Value:
    if eqn.primitive.name == "abs":
        if isinstance(x, _SumOfExp):
            return x
        if isinstance(x, Form) and _is_nonnegative(x):
            return x
    raise NotInAlgebra(f"{eqn.primitive.name} of {_names(latents_of(x))}")


@_rule("div")
def _div(eqn: Any, x: Value, y: Value) -> Value:
    if isinstance(y, Transformed) and y.function == "exp":
        exponent = _sum_of_exponents(x, Transformed("exp", -y.form))
        if exponent is not None:
            return Transformed("exp", exponent)
    if isinstance(y, Constant):
        exponent = _sum_of_exponents(
            x, Constant(_traced_or_known(lambda a: 1 / a, y), y.row)
        )
        if exponent is not None:
            return Transformed("exp", exponent)
    # 1 / (1 + exp(-ψ)), written out.
    logit = _one_plus_exp(y)
    if logit is not None and _is_uniform(x, 1.0):
        return Transformed("sigmoid", -logit)
    if isinstance(x, Transformed) and x.function == "exp" and x.form is logit:
        return Transformed("sigmoid", x.form)
    return as_form(x) * elementwise.power(as_form(y), -1.0)


def _is_exp(value: Value) -> bool:
    return isinstance(value, Transformed) and value.function == "exp"


def _logarithm(value: Value) -> Form | None:
    """log(value) of exp(form), a constant, or a product that is never negative."""
    if isinstance(value, Transformed):
        return value.form if value.function == "exp" else None
    if isinstance(value, Constant):
        log = Constant(_traced_or_known(lambda a: jnp.log(a), value), value.row)
        return as_form(log)
    if not isinstance(value, Form) or _may_be_negative(value):
        return None
    try:
        return elementwise.log(value)
    except NotInAlgebra:
        return None


def _is_nonnegative(form: Form) -> bool:
    """Whether a form is a product without a factor that may be negative."""
    return not _may_be_negative(form) and all(
        range_of(factor)[0] >= 0
        for term in form.terms
        for factor in term.factors
        if isinstance(factor, Dense)
    )


def _may_be_negative(form: Form) -> bool:
    return any(
        term.scale < 0 or any(atom.signed for atom in term.atoms) for term in form.terms
    )


def _sum_of_exponents(x: Value, y: Value) -> Form | None:
    """log(x·y) where one is exp(form) and the other has a logarithm."""
    if not _is_exp(x) and not _is_exp(y):
        return None
    first, second = _logarithm(x), _logarithm(y)
    return None if first is None or second is None else first + second


def _exponents(parts: Sequence[Value]) -> list[Form] | None:
    """Logarithms of values of which one is exp(form), if all have one."""
    if not any(map(_is_exp, parts)):
        return None
    logarithms = [_logarithm(part) for part in parts]
    return None if None in logarithms else [log for log in logarithms if log]


def _traced_or_known(function: Callable[[Any], Any], value: Constant) -> Any:
    if value.known:
        with np.errstate(all="ignore"), jax.ensure_compile_time_eval():
            return np.asarray(function(value.array))
    return function(value.array)


def _one_plus_exp(value: Value) -> Form | None:
    return value.form if isinstance(value, _OnePlusExp) else None


def _is_uniform(value: Value, number: float) -> bool:
    return (
        isinstance(value, Constant)
        and value.known
        and bool(np.all(value.array == number))
    )


@_rule("square")
def _square(eqn: Any, x: Value) -> Value:
    return _power_of(x, 2.0)


@_rule("integer_pow")
def _integer_pow(eqn: Any, x: Value) -> Value:
    return _power_of(x, float(eqn.params["y"]))


@_rule("sqrt")
def _sqrt(eqn: Any, x: Value) -> Value:
    return _power_of(x, 0.5)


@_rule("rsqrt")
def _rsqrt(eqn: Any, x: Value) -> Value:
    return _power_of(x, -0.5)


@_rule("pow")
def _pow(eqn: Any, x: Value, y: Value) -> Value:
    if isinstance(y, Constant) and y.known and np.ptp(y.array) == 0:
        return _power_of(x, float(y.array.flat[0]))
    raise NotInAlgebra("a power that is not a public number")


def _power_of(x: Value, exponent: float) -> Value:
    if isinstance(x, Transformed) and x.function == "exp":
        return Transformed("exp", x.form * exponent)
    return elementwise.power(as_form(x), exponent)


@_rule("exp")
def _exp(eqn: Any, x: Value) -> Value:
    if isinstance(x, _Shifted) and x.stage == "difference":
        return dataclasses.replace(x, stage="exp")
    return Transformed("exp", as_form(x))


@_rule("log")
def _log(eqn: Any, x: Value) -> Value:
    if isinstance(x, Transformed) and x.function == "exp":
        return x.form
    if isinstance(x, _SumOfExp):
        if x.origin is None:
            return Transformed("logsumexp", x.form)
        return _Shifted(x.reason, x.latents, x.shape, x.form, x.origin, "log")
    return elementwise.log(as_form(x))


@_rule("log1p")
def _log1p(eqn: Any, x: Value) -> Value:
    return elementwise.log1m(-as_form(x))


@_rule("logistic")
def _logistic(eqn: Any, x: Value) -> Value:
    return Transformed("sigmoid", as_form(x))


@_rule("copy", "stop_gradient")
def _identity(eqn: Any, x: Value) -> Value:
    return x


@_rule("convert_element_type")
def _convert(eqn: Any, x: Value) -> Value:
    is_float = jnp.issubdtype(eqn.params["new_dtype"], jnp.floating)
    if not is_float and not (isinstance(x, Form) and x.is_discrete):
        raise NotInAlgebra(f"a rounding of {_names(latents_of(x))}")
    return x


@_rule("select_n")
def _select_n(eqn: Any, which: Value, *cases: Value) -> Value:
    chooser = as_form(which)
    if not chooser.is_discrete:
        raise NotInAlgebra("a choice that depends on a continuous latent")
    group = object()
    terms: list[Term] = []
    axes = tuple(map(Label, _aval(eqn.outvars[0]).shape))
    exclusive = True
    for number, case in enumerate(cases):
        form = as_form(case)
        mask = elementwise.map_discrete(
            lambda c, number=number: (c == number) * np.float32(1.0), chooser
        )
        mask = Form(
            mask.axes,
            tuple(
                dataclasses.replace(
                    term,
                    factors=tuple(
                        dataclasses.replace(f, branch=(group, number))
                        if isinstance(f, Dense)
                        else f
                        for f in term.factors
                    ),
                )
                for term in mask.terms
            ),
            True,
        )
        chosen = forms.product(
            forms.broadcast(mask, axes), forms.broadcast(form, axes), axes, ()
        )
        # A case that is zero has no terms, and its powers would be lost.
        exclusive = exclusive and form.exclusive and bool(form.terms)
        terms += map(elementwise.spared, chosen.terms)
    return Form(axes, tuple(terms), exclusive)


def _has_states(x: Value) -> TypeGuard["Transformed | _SumOfExp | _Shifted"]:
    """Whether a value is a sum over the last axis of the form that it has."""
    return (
        isinstance(x, _SumOfExp)
        or (isinstance(x, Transformed) and x.function == "logsumexp")
        or (isinstance(x, _Shifted) and x.stage == "log")
    )


# Rules below change axes only. They work alike on a form and inside exp or sigmoid.


def _structural(*names: str) -> Callable[[Callable[..., Form]], Rule]:
    def register(rule: Callable[..., Form]) -> Rule:
        def apply(eqn: Any, x: Value, *rest: Value) -> Value:
            if isinstance(x, Transformed) and x.function != "logsumexp":
                return Transformed(x.function, rule(eqn, x.form, *rest))
            if _has_states(x):
                # The states that are summed over are an axis that nothing sees.
                form = x.form
                states = form.axes[-1]
                seen = rule(eqn, Form(form.axes[:-1], form.terms), *rest)
                form = Form((*seen.axes, states), seen.terms, False)
                if isinstance(x, Opaque):
                    return dataclasses.replace(x, form=form, shape=seen.shape)
                return dataclasses.replace(x, form=form)
            return rule(eqn, as_form(x), *rest)

        for name in names:
            _RULES[name] = apply
        return apply

    return register


@_structural("broadcast_in_dim")
def _broadcast_in_dim(eqn: Any, x: Form, *_: Value) -> Form:
    axes = tuple(map(Label, eqn.params["shape"]))
    return forms.place(x, axes, eqn.params["broadcast_dimensions"])


@_structural("transpose")
def _transpose(eqn: Any, x: Form) -> Form:
    return Form(
        tuple(x.axes[axis] for axis in eqn.params["permutation"]), x.terms, x.exclusive
    )


@_structural("squeeze")
def _squeeze(eqn: Any, x: Form) -> Form:
    return forms.sum_over(x, [axis % len(x.axes) for axis in eqn.params["dimensions"]])


@_structural("expand_dims")
def _expand_dims(eqn: Any, x: Form) -> Form:
    return _reshape_to(x, tuple(_aval(eqn.outvars[0]).shape))


@_structural("reshape")
def _reshape(eqn: Any, x: Form) -> Form:
    return _reshape_to(x, tuple(eqn.params["new_sizes"]))


def _reshape_to(x: Form, shape: tuple[int, ...]) -> Form:
    # Axes of length 1 come and go freely; what remains must be merged or split.
    x = forms.sum_over(x, [i for i, axis in enumerate(x.axes) if axis.size == 1])
    long = tuple(size for size in shape if size != 1)
    if x.shape != long:
        x = _merge_and_split(x, long)
    axes = tuple(map(Label, shape))
    positions = [i for i, size in enumerate(shape) if size != 1]
    return forms.place(x, axes, positions)


def _merge_and_split(x: Form, shape: tuple[int, ...]) -> Form:
    """Writes a reshape as one selection per old axis, indexed by the new ones."""
    size = math.prod(shape)
    new_axes = tuple(map(Label, shape))
    old = np.unravel_index(np.arange(size).reshape(shape), x.shape)
    result = x
    for indices in old:
        indices, kept = forms.without_constant_axes(np.asarray(indices))
        labels = tuple(new_axes[i] for i in kept)
        index = OneHot(indices, labels, Label(result.axes[0].size))
        # The selected axis is always the first one left; new axes collect behind.
        axes = (*result.axes[1:], *(a for a in labels if a not in result.axes))
        result = forms.select(result, 0, index, axes)
    order = [result.axes.index(axis) for axis in new_axes if axis in result.axes]
    kept_axes = tuple(result.axes[i] for i in order)
    ordered = Form(kept_axes, result.terms, result.exclusive)
    return forms.place(ordered, new_axes, [new_axes.index(axis) for axis in kept_axes])


@_structural("slice")
def _slice(eqn: Any, x: Form) -> Form:
    starts, limits = eqn.params["start_indices"], eqn.params["limit_indices"]
    strides = eqn.params["strides"] or (1,) * len(starts)
    for axis, (a, b, step) in enumerate(zip(starts, limits, strides, strict=True)):
        x = _take_known(x, axis, np.arange(a, b, step))
    return x


@_structural("rev")
def _rev(eqn: Any, x: Form) -> Form:
    for axis in eqn.params["dimensions"]:
        x = _take_known(x, axis, np.arange(x.axes[axis].size)[::-1])
    return x


@_structural("tile")
def _tile(eqn: Any, x: Form) -> Form:
    for axis, count in enumerate(eqn.params["reps"]):
        x = _take_known(x, axis, np.tile(np.arange(x.axes[axis].size), count))
    return x


@_rule("split")
def _split(eqn: Any, x: Value) -> list[Value]:
    axis, start, parts = eqn.params["axis"], 0, []
    for size in eqn.params["sizes"]:
        parts.append(_along(x, axis, np.arange(start, start + int(size))))
        start += int(size)
    return parts


@_rule("unstack")
def _unstack(eqn: Any, x: Value) -> list[Value]:
    axis = eqn.params["axis"]
    return [
        _along(x, axis, np.arange(i, i + 1), squeeze=True)
        for i in range(len(eqn.outvars))
    ]


def _along(x: Value, axis: int, indices: np.ndarray, squeeze: bool = False) -> Value:
    """Some entries along one axis, of a form or inside exp or sigmoid."""
    if isinstance(x, Transformed):
        return Transformed(x.function, as_form(_along(x.form, axis, indices, squeeze)))
    taken = _take_known(as_form(x), axis, indices)
    return forms.sum_over(taken, [axis]) if squeeze else taken


@_rule("stack")
def _stack(eqn: Any, *parts: Value) -> Value:
    axis = eqn.params["axis"]
    whole = tuple(_aval(eqn.outvars[0]).shape)
    shape = list(whole)
    shape[axis] = 1

    def joined(parts: Sequence[Form]) -> Form:
        return _joined([_reshape_to(p, tuple(shape)) for p in parts], axis, whole)

    exponents = _exponents(parts)
    if exponents is not None:
        return Transformed("exp", joined(exponents))
    return joined([as_form(part) for part in parts])


def _take_known(
    x: Form, axis: int, indices: np.ndarray, branch: Branch | None = None
) -> Form:
    """Selects public positions along one axis, -1 giving zero."""
    if np.array_equal(indices, np.arange(x.axes[axis].size)):
        return x
    new = Label(len(indices))
    axes = (*x.axes[:axis], new, *x.axes[axis + 1 :])
    index = OneHot(indices, (new,), Label(x.axes[axis].size), branch=branch)
    return forms.select(x, axis, index, axes)


@_rule("concatenate")
def _concatenate(eqn: Any, *parts: Value) -> Value:
    shape, axis = tuple(_aval(eqn.outvars[0]).shape), eqn.params["dimension"]
    return _concatenated(parts, axis, shape)


def _concatenated(parts: Sequence[Value], axis: int, shape: tuple[int, ...]) -> Value:
    exponents = _exponents(parts)
    if exponents is not None:
        return Transformed("exp", _joined(exponents, axis, shape))
    return _joined([as_form(part) for part in parts], axis, shape)


def _joined(parts: Sequence[Form], axis: int, shape: tuple[int, ...]) -> Form:
    """Concatenates forms along an axis."""
    axes = tuple(map(Label, shape))
    group, offset, terms, exclusive = object(), 0, [], True
    for number, form in enumerate(parts):
        length = form.axes[axis].size
        indices = np.arange(shape[axis]) - offset
        indices = np.where((indices >= 0) & (indices < length), indices, -1)
        placed = _take_known(form, axis, indices, branch=(group, number))
        placed = forms.place(placed, axes, range(len(axes)))
        exclusive = exclusive and form.exclusive and bool(form.terms)
        terms += placed.terms
        offset += length
    return Form(axes, tuple(terms), exclusive)


@_rule("pad")
def _pad(eqn: Any, x: Value, fill: Value) -> Value:
    if not isinstance(fill, Constant) or not fill.known:
        raise NotInAlgebra("padding with a value that is not public")
    number = float(fill.array)
    if isinstance(x, Transformed) and x.function == "exp" and number > 0:
        return Transformed("exp", _padded(eqn, x.form, math.log(number)))
    return _padded(eqn, as_form(x), number)


def _padded(eqn: Any, form: Form, fill: float) -> Form:
    config = eqn.params["padding_config"]
    if fill != 0.0:
        for axis, (low, high, interior) in enumerate(config):
            if interior or low < 0 or high < 0:
                raise NotInAlgebra("padding with a value other than zero")
            shape = list(form.shape)
            parts = [form]
            for count, position in ((low, 0), (high, 2)):
                if count:
                    shape[axis] = count
                    block = forms.constant(np.full(shape, fill))
                    parts.insert(position, block)
            shape[axis] = form.shape[axis] + low + high
            form = _joined(parts, axis, tuple(shape)) if len(parts) > 1 else form
        return form
    for axis, (low, high, interior) in enumerate(config):
        size = form.axes[axis].size
        line = np.full(max(size + (size - 1) * interior, 0), -1)
        line[:: interior + 1] = np.arange(size)
        line = np.concatenate([np.full(max(low, 0), -1), line[max(-low, 0) :]])
        line = line[: len(line) + min(high, 0)]
        line = np.concatenate([line, np.full(max(high, 0), -1)])
        form = _take_known(form, axis, line)
        if np.any(line < 0):
            form = dataclasses.replace(form, exclusive=False)
    return form


def _exponent(x: Value) -> tuple[Form, Any] | None:
    """The form in exp(form), and the maximum that was taken from it, if any."""
    if isinstance(x, Transformed) and x.function == "exp":
        return x.form, None
    if isinstance(x, _Shifted) and x.stage == "exp":
        return x.form, x.origin
    return None


@_rule("reduce_sum")
def _reduce_sum(eqn: Any, x: Value) -> Value:
    axes = eqn.params["axes"]
    inner = _exponent(x)
    if inner is not None and len(axes) == 1:
        form, origin = inner
        kept = [a for i, a in enumerate(form.axes) if i not in axes]
        last = forms.reorder(form, (*kept, form.axes[axes[0]]))
        reason = f"a sum of exponentials of {_names(form.latents)}"
        shape = tuple(_aval(eqn.outvars[0]).shape)
        return _SumOfExp(reason, form.latents, shape, last, origin)
    return forms.sum_over(as_form(x), axes)


@_rule("dot_general")
def _dot_general(eqn: Any, x: Value, y: Value) -> Value:
    (contract_x, contract_y), (batch_x, batch_y) = eqn.params["dimension_numbers"]
    logarithms = _exponents([x, y]) if len(contract_x) == 1 else None
    x, y = logarithms or (as_form(x), as_form(y))
    batch = tuple(Label(x.axes[axis].size) for axis in batch_x)
    summed = tuple(Label(x.axes[axis].size) for axis in contract_x)
    axes_x = _named_axes(x, batch_x, batch, contract_x, summed)
    axes_y = _named_axes(y, batch_y, batch, contract_y, summed)
    free_x = tuple(a for a in axes_x if a not in batch and a not in summed)
    free_y = tuple(a for a in axes_y if a not in batch and a not in summed)
    left = forms.place(x, axes_x, range(len(axes_x)))
    right = forms.place(y, axes_y, range(len(axes_y)))
    kept = (*batch, *free_x, *free_y)
    if logarithms is None:
        return forms.product(left, right, kept, summed)
    axes = (*kept, *summed)
    exponent = forms.place(left, axes, [axes.index(a) for a in axes_x])
    exponent = exponent + forms.place(right, axes, [axes.index(a) for a in axes_y])
    reason = f"a sum of exponentials of {_names(exponent.latents)}"
    shape = tuple(axis.size for axis in kept)
    return _SumOfExp(reason, exponent.latents, shape, exponent)


def _named_axes(
    form: Form,
    batch_positions: Sequence[int],
    batch: Sequence[Label],
    summed_positions: Sequence[int],
    summed: Sequence[Label],
) -> tuple[Label, ...]:
    names = dict(zip(batch_positions, batch, strict=True))
    names.update(zip(summed_positions, summed, strict=True))
    return tuple(names.get(i, Label(a.size)) for i, a in enumerate(form.axes))


@_rule("gather")
def _gather(eqn: Any, operand: Value, indices: Value) -> Value:
    if isinstance(operand, Transformed):
        inner = _gather(eqn, operand.form, indices)
        return Transformed(operand.function, as_form(inner))
    numbers = eqn.params["dimension_numbers"]
    source, where = as_form(operand), as_form(indices)
    shape = tuple(_aval(eqn.outvars[0]).shape)
    axes = tuple(map(Label, shape))
    batch_positions = [i for i in range(len(shape)) if i not in numbers.offset_dims]
    batch_axes = tuple(axes[i] for i in batch_positions)
    sliced = [
        axis
        for axis in range(len(source.axes))
        if axis not in numbers.collapsed_slice_dims
        and axis not in numbers.operand_batching_dims
    ]
    full = dict(zip(sliced, numbers.offset_dims, strict=True))
    for axis in sliced:
        whole = eqn.params["slice_sizes"][axis] == source.axes[axis].size
        if not whole or (
            axis in numbers.start_index_map and source.axes[axis].size > 1
        ):
            raise NotInAlgebra("a gather of part of an axis")
    selections: list[tuple[int, Form]] = []
    for component, axis in enumerate(numbers.start_index_map):
        if axis in full:
            continue
        index = _take_known(where, len(where.axes) - 1, np.asarray([component]))
        index = forms.sum_over(index, [len(index.axes) - 1])
        if forms.is_single_choice(index):
            index = Form(index.axes, index.terms)
        index = forms.place(index, batch_axes, range(len(batch_axes)))
        selections.append((axis, index))
    for axis, position in zip(
        numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True
    ):
        line = np.arange(source.axes[axis].size)
        index = forms.constant(line)
        index = forms.place(index, batch_axes, [position])
        selections.append((axis, index))
    # Select along each indexed axis in turn; the axes kept whole are named last.
    names = {axis: axes[position] for axis, position in full.items()}
    named = tuple(names.get(i, Label(a.size)) for i, a in enumerate(source.axes))
    current = forms.place(source, named, range(len(named)))
    factors_of = [(axis, index_alternatives(index)) for axis, index in selections]
    result = current
    for axis, alternatives in factors_of:
        result = select_by(result, named[axis], alternatives, batch_axes)
    ordered = tuple(axis for axis in axes if axis in result.axes)
    result = Form(ordered, result.terms, result.exclusive)
    return forms.place(result, axes, [axes.index(axis) for axis in ordered])


@dataclasses.dataclass(frozen=True, eq=False)
class Alternative:
    """One index array and the selectors under which it applies."""

    selectors: tuple[Factor, ...]
    bound: frozenset[Label]
    indices: Any
    labels: tuple[Label, ...]
    row: bool


def index_alternatives(index: Form) -> list[Alternative]:
    if not index.is_discrete:
        raise NotInAlgebra("a gather at an index that is not discrete")
    terms = index.terms or (Term(0.0),)
    alternatives = []
    for term in terms:
        selectors, values = split_selectors(term)
        array, labels = product_array(term.scale, values)
        xp = np if is_known(array) else jnp
        alternatives.append(
            Alternative(
                tuple(selectors),
                term.bound,
                xp.round(array).astype(np.int32),
                labels,
                any(getattr(v, "row", False) for v in values),
            )
        )
    return alternatives


def select_by(
    form: Form,
    axis: Label,
    alternatives: Sequence[Alternative],
    batch_axes: tuple[Label, ...],
) -> Form:
    """Selects along one axis by an index that may depend on discrete latents."""
    position = form.axes.index(axis)
    terms: list[Term] = []
    kept = [a for i, a in enumerate(form.axes) if i != position]
    axes = (*kept, *(a for a in batch_axes if a not in kept))
    for alternative in alternatives:
        target = Label(axis.size)
        one_hot = OneHot(
            alternative.indices, alternative.labels, target, alternative.row
        )
        for term in form.terms:
            renamed = term.renamed({axis: target})
            terms.append(
                Term(
                    term.scale,
                    (*renamed.factors, *alternative.selectors, one_hot),
                    renamed.bound | alternative.bound | {target},
                ).refreshed()
            )
    return forms.simplified(axes, terms, form.exclusive)


@_rule("dynamic_slice")
def _dynamic_slice(eqn: Any, operand: Value, *starts: Value) -> Value:
    form = as_form(operand)
    for axis, (start, size) in enumerate(
        zip(starts, eqn.params["slice_sizes"], strict=True)
    ):
        length = form.axes[axis].size
        if size == length:
            continue
        if isinstance(start, Constant) and start.known:
            first = int(np.clip(int(start.array), 0, length - size))
            form = _take_known(form, axis, np.arange(first, first + size))
            continue
        if size != 1:
            raise NotInAlgebra("a slice that starts at a value that is not public")
        new = Label(1)
        renamed = tuple(Label(a.size) for a in form.axes)
        form = forms.place(form, renamed, range(len(renamed)))
        chosen = select_by(form, renamed[axis], index_alternatives(as_form(start)), ())
        axes = (*renamed[:axis], new, *renamed[axis + 1 :])
        kept = [i for i in range(len(axes)) if i != axis]
        form = forms.place(chosen, axes, kept)
    return form


# Steps of a loop that are written out; more would make too large a program.
_MOST_STEPS = 500


def _scan(eqn: Any, operands: Sequence[Value], checks: list[Any]) -> list[Value]:
    """A loop of a known number of steps, written out."""
    params = eqn.params
    length, num_consts, num_carry = (
        params[name] for name in ("length", "num_consts", "num_carry")
    )
    if length > _MOST_STEPS:
        raise NotInAlgebra(f"a loop of {length} steps")
    constants, rest = operands[:num_consts], operands[num_consts:]
    carry, inputs = list(rest[:num_carry]), rest[num_carry:]
    outputs: dict[int, list[Value]] = {}
    steps = range(length)
    for step in reversed(steps) if params["reverse"] else steps:
        now = [_step_of(x, step) for x in inputs]
        found = interpret(params["jaxpr"], [*constants, *carry, *now], checks)
        carry, outputs[step] = found[:num_carry], found[num_carry:]
    stacked = []
    for number, var in enumerate(eqn.outvars[num_carry:]):
        shape = tuple(_aval(var).shape)
        parts = [outputs[step][number] for step in steps]
        single = [_with_leading_axis(part) for part in parts]
        stacked.append(_concatenated(single, 0, shape))
    return [*carry, *stacked]


def _with_leading_axis(x: Value) -> Value:
    if isinstance(x, Constant):
        return Constant(x.array[None], x.row)
    if isinstance(x, Transformed) and x.function != "logsumexp":
        return Transformed(x.function, as_form(_with_leading_axis(x.form)))
    form = as_form(x)
    return _reshape_to(form, (1, *form.shape))


def _cond(eqn: Any, operands: Sequence[Value], checks: list[Any]) -> list[Value]:
    """The branch that a public index chooses."""
    index, *rest = operands
    if not isinstance(index, Constant) or not index.known:
        raise NotInAlgebra("a lax.cond, in place of jnp.where,")
    branches = eqn.params["branches"]
    chosen = int(np.clip(int(index.array), 0, len(branches) - 1))
    return interpret(branches[chosen], rest, checks)


_CONTROL_FLOW = {"scan": _scan, "cond": _cond}


def _step_of(x: Value, step: int) -> Value:
    if isinstance(x, Constant):
        return Constant(x.array[step], x.row)
    return _along(x, 0, np.arange(step, step + 1), squeeze=True)


@_rule("ne")
def _not_equal(eqn: Any, x: Value, y: Value) -> Value:
    """Whether a product of positive latents differs from zero: it does."""
    if isinstance(x, Form) and _is_uniform(y, 0.0) and _is_positive(x):
        return Constant(np.ones(_aval(eqn.outvars[0]).shape, bool), row=False)
    raise NotInAlgebra(f"a comparison of {_names(latents_of(x) | latents_of(y))}")


def _is_positive(form: Form) -> bool:
    return bool(form.exclusive and form.terms) and all(
        term.scale > 0
        and all(
            isinstance(factor, Atom) and not factor.signed for factor in term.factors
        )
        for term in form.terms
    )


@_rule("cumsum")
def _cumsum(eqn: Any, x: Value) -> Value:
    return _cumulative(eqn, as_form(x))


@_rule("cumprod")
def _cumprod(eqn: Any, x: Value) -> Value:
    logarithm = _logarithm(x)
    if logarithm is None:
        raise NotInAlgebra(f"cumprod of {_names(latents_of(x))}")
    return Transformed("exp", _cumulative(eqn, logarithm))


@_rule("reduce_prod")
def _reduce_prod(eqn: Any, x: Value) -> Value:
    logarithm = _logarithm(x)
    if logarithm is None:
        raise NotInAlgebra(f"reduce_prod of {_names(latents_of(x))}")
    return Transformed("exp", forms.sum_over(logarithm, eqn.params["axes"]))


def _cumulative(eqn: Any, form: Form) -> Form:
    axis = eqn.params["axis"]
    old, new = form.axes[axis], Label(form.axes[axis].size)
    lower = np.tril(np.ones((old.size, old.size)))
    array = lower.T if eqn.params["reverse"] else lower
    sums = Form((new, old), (Term(1.0, (Dense(array, (new, old)),)),))
    axes = (*form.axes[:axis], new, *form.axes[axis + 1 :])
    return forms.product(sums, form, axes, (old,))


@_rule("scatter", "scatter-add", "scatter-mul")
def _scatter(eqn: Any, operand: Value, indices: Value, updates: Value) -> Value:
    """`x.at[i].set(y)`, `add` and `multiply`, at public positions that differ."""
    if not isinstance(indices, Constant) or not indices.known:
        raise NotInAlgebra("an update at an index that is not public")
    shape = tuple(_aval(eqn.outvars[0]).shape)
    targets, unique = _scattered(eqn, indices.array, shape)
    if not unique:
        raise NotInAlgebra("several updates of one entry")
    old, new = as_form(operand), as_form(updates)
    # Which update each entry gets; -1 where it gets none.
    source = np.asarray(targets).reshape(-1)
    size, group = math.prod(shape), object()

    def flat(form: Form, indices: np.ndarray, number: int) -> Form:
        form = _reshape_to(form, (math.prod(form.shape),))
        form = _take_known(form, 0, indices, branch=(group, number))
        form = _reshape_to(form, shape)
        complete = form.exclusive and bool(form.terms)
        return Form(form.axes, form.terms, complete or bool(np.all(indices >= 0)))

    updated = flat(new, source, 0)
    if eqn.primitive.name == "scatter-add":
        return old + updated
    if eqn.primitive.name == "scatter-mul":
        kept = forms.constant((source < 0).astype(float).reshape(shape))
        return old * (updated + kept)
    kept = flat(old, np.where(source < 0, np.arange(size), -1), 1)
    placed = forms.place(kept, updated.axes, range(len(shape)))
    exclusive = updated.exclusive and placed.exclusive
    return Form(updated.axes, (*updated.terms, *placed.terms), exclusive)


def _scattered(
    eqn: Any, indices: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, bool]:
    """The number of the update that each entry gets, and whether none gets two."""
    updates = tuple(_aval(eqn.invars[2]).shape)
    numbers = np.arange(math.prod(updates), dtype=np.int32).reshape(updates)
    options = {
        "dimension_numbers": eqn.params["dimension_numbers"],
        "mode": eqn.params["mode"],
    }
    with jax.ensure_compile_time_eval():
        nowhere, zero = np.full(shape, -1, np.int32), np.zeros(shape, np.int32)
        targets = jax.lax.scatter(nowhere, indices, numbers, **options)
        count = jax.lax.scatter_add(zero, indices, np.ones_like(numbers), **options)
    return np.asarray(targets), bool(np.all(np.asarray(count) <= 1))
