"""Rules for elementwise primitives: sums, products, powers, exponentials, choices."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra import elementwise, forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.scatters import is_public_number
from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Branch,
    Dense,
    Label,
    NotInAlgebra,
    Term,
    range_of,
)
from numpyro_vips.conjugacy.interpreter.values import (
    Constant,
    OnePlusExp,
    Rule,
    Shifted,
    SumOfExp,
    Transformed,
    Value,
    as_form,
    is_exp,
    is_sigmoid,
    is_uniform,
    latents_of,
    may_be_negative,
    names_of,
    rule_for,
    sum_of_exponents,
    traced_or_public,
)
from numpyro_vips.jax_tools.jaxprs import aval_of

RULES: dict[str, Rule] = {}


@rule_for(RULES, "add", "add_any")
def _add(eqn: Any, x: Value, y: Value) -> Value:
    for one, other in ((x, y), (y, x)):
        if is_exp(other) and is_uniform(one, 1.0):
            reason = f"1 + exp of {names_of(other.latents)}"
            shape = tuple(aval_of(eqn.outvars[0]).shape)
            return OnePlusExp(reason, other.latents, shape, other.form)
    return as_form(x) + as_form(y)


@rule_for(RULES, "sub")
def _sub(eqn: Any, x: Value, y: Value) -> Value:
    if is_uniform(x, 1.0) and is_sigmoid(y):
        return Transformed("sigmoid", -y.form)
    if is_uniform(x, 1.0) and isinstance(y, Form):
        shape = tuple(map(Label, aval_of(eqn.outvars[0]).shape))
        complement = elementwise.complement(forms.broadcast(y, shape))
        if complement is not None:
            return complement
    return as_form(x) - as_form(y)


@rule_for(RULES, "neg")
def _neg(eqn: Any, x: Value) -> Value:
    return -as_form(x)


@rule_for(RULES, "mul")
def _mul(eqn: Any, x: Value, y: Value) -> Value:
    for one, other in ((x, y), (y, x)):
        if isinstance(one, Shifted) and one.stage == "exp":
            # The weights of a logsumexp with b=.
            exponent = sum_of_exponents(Transformed("exp", one.form), other)
            if exponent is not None:
                return dataclasses.replace(one, form=exponent)
    exponent = sum_of_exponents(x, y)
    if exponent is not None:
        return Transformed("exp", exponent)
    return as_form(x) * as_form(y)


@rule_for(RULES, "sign", "abs")
def _magnitude(eqn: Any, x: Value) -> Value:
    if eqn.primitive.name == "abs":
        if isinstance(x, SumOfExp):
            return x
        if isinstance(x, Form) and _is_nonnegative(x):
            return x
    raise NotInAlgebra(f"{eqn.primitive.name} of {names_of(latents_of(x))}")


@rule_for(RULES, "div")
def _div(eqn: Any, x: Value, y: Value) -> Value:
    inverse = None
    if is_exp(y):
        inverse = Transformed("exp", -y.form)
    elif isinstance(y, Constant):
        inverse = Constant(traced_or_public(lambda a: 1 / a, y), y.is_private)
    exponent = None if inverse is None else sum_of_exponents(x, inverse)
    if exponent is not None:
        return Transformed("exp", exponent)
    # 1 / (1 + exp(-ψ)), written out.
    if isinstance(y, OnePlusExp) and is_uniform(x, 1.0):
        return Transformed("sigmoid", -y.form)
    if isinstance(y, OnePlusExp) and is_exp(x) and x.form is y.form:
        return Transformed("sigmoid", x.form)
    return as_form(x) * elementwise.power(as_form(y), -1.0)


def _is_nonnegative(form: Form) -> bool:
    """Whether a form is a product without a factor that may be negative."""
    return not may_be_negative(form) and all(
        range_of(factor)[0] >= 0
        for term in form.terms
        for factor in term.factors
        if isinstance(factor, Dense)
    )


_POWERS = {"square": 2.0, "sqrt": 0.5, "rsqrt": -0.5}


@rule_for(RULES, "integer_pow", *_POWERS)
def _known_power(eqn: Any, x: Value) -> Value:
    exponent = _POWERS.get(eqn.primitive.name) or float(eqn.params["y"])
    return _power_of(x, exponent)


@rule_for(RULES, "pow")
def _pow(eqn: Any, x: Value, y: Value) -> Value:
    if isinstance(y, Constant) and is_public_number(y.array):
        return _power_of(x, float(y.array.flat[0]))
    raise NotInAlgebra("a power that is not a public number")


def _power_of(x: Value, exponent: float) -> Value:
    if is_exp(x):
        return Transformed("exp", x.form * exponent)
    return elementwise.power(as_form(x), exponent)


@rule_for(RULES, "exp")
def _exp(eqn: Any, x: Value) -> Value:
    if isinstance(x, Shifted) and x.stage == "difference":
        return dataclasses.replace(x, stage="exp")
    return Transformed("exp", as_form(x))


@rule_for(RULES, "log")
def _log(eqn: Any, x: Value) -> Value:
    if is_exp(x):
        return x.form
    if isinstance(x, SumOfExp):
        if x.origin is None:
            return Transformed("logsumexp", x.form)
        return Shifted(x.reason, x.latents, x.shape, x.form, x.origin, "log")
    return elementwise.log(as_form(x))


@rule_for(RULES, "log1p")
def _log1p(eqn: Any, x: Value) -> Value:
    return elementwise.log1m(-as_form(x))


@rule_for(RULES, "logistic")
def _logistic(eqn: Any, x: Value) -> Value:
    return Transformed("sigmoid", as_form(x))


@rule_for(RULES, "copy", "stop_gradient")
def _identity(eqn: Any, x: Value) -> Value:
    return x


@rule_for(RULES, "convert_element_type")
def _convert(eqn: Any, x: Value) -> Value:
    is_float = jnp.issubdtype(eqn.params["new_dtype"], jnp.floating)
    if not is_float and not (isinstance(x, Form) and x.is_discrete):
        raise NotInAlgebra(f"a rounding of {names_of(latents_of(x))}")
    return x


@rule_for(RULES, "select_n")
def _select_n(eqn: Any, which: Value, *cases: Value) -> Value:
    """The case that `which` chooses, as a sum of all of them, each with its mask.

    Raises:
      NotInAlgebra: The choice depends on a latent that is not discrete.
    """
    chooser = as_form(which)
    if not chooser.is_discrete:
        raise NotInAlgebra("a choice that depends on a continuous latent")
    group = object()
    terms: list[Term] = []
    axes = tuple(map(Label, aval_of(eqn.outvars[0]).shape))
    exclusive = True
    others = [number for number, case in enumerate(cases) if not is_uniform(case, 0.0)]
    for number, case in enumerate(cases):
        form = as_form(case)
        mask = elementwise.map_discrete(
            lambda c, number=number: (c == np.asarray(number, c.dtype)).astype(
                np.float32
            ),
            chooser,
        )
        if others == [number] and chooser.latents:
            # Where a latent chooses, where(z == 1, p, 0) is p · z, and read alike.
            return forms.product(
                forms.broadcast(mask, axes), forms.broadcast(form, axes), axes, ()
            )
        branches = (_as_branch(term, (group, number)) for term in mask.terms)
        mask = Form(mask.axes, tuple(branches))
        chosen = forms.product(
            forms.broadcast(mask, axes), forms.broadcast(form, axes), axes, ()
        )
        # A case that is zero has no terms, and its powers would be lost.
        exclusive = exclusive and form.exclusive and bool(form.terms)
        terms += map(elementwise.spared, chosen.terms)
    return Form(axes, tuple(terms), exclusive)


def _as_branch(term: Term, branch: Branch) -> Term:
    factors = [
        dataclasses.replace(f, branch=branch) if isinstance(f, Dense) else f
        for f in term.factors
    ]
    return dataclasses.replace(term, factors=tuple(factors))


@rule_for(RULES, "ne")
def _not_equal(eqn: Any, x: Value, y: Value) -> Value:
    """Whether a product of positive latents differs from zero: it does."""
    if isinstance(x, Form) and is_uniform(y, 0.0) and _is_positive(x):
        return Constant(np.ones(aval_of(eqn.outvars[0]).shape, bool), is_private=False)
    raise NotInAlgebra(f"a comparison of {names_of(latents_of(x) | latents_of(y))}")


def _is_positive(form: Form) -> bool:
    return bool(form.exclusive and form.terms) and all(
        term.scale > 0
        and all(
            isinstance(factor, Atom) and not factor.signed for factor in term.factors
        )
        for term in form.terms
    )
