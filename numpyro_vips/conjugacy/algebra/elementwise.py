"""Elementwise functions of forms: powers, logarithms, exponentials.

They pass through selectors, so an exclusive form has them (see `forms`).
"""

import dataclasses
import itertools
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra.contractions import constant_product, expand_to
from numpyro_vips.conjugacy.algebra.forms import (
    Form,
    broadcast,
    common_axes,
    constant,
    constant_array,
    is_single_choice,
    multiply,
    place,
    product,
    simplified,
)
from numpyro_vips.conjugacy.algebra.normal_form import OperandMark, simplify
from numpyro_vips.conjugacy.algebra.scatters import map_scatters
from numpyro_vips.conjugacy.algebra.terms import (
    ArrayLike,
    Atom,
    Dense,
    Factor,
    Label,
    NotInAlgebra,
    Term,
    is_public,
    split_selectors,
)


def map_dense(
    function: Callable[[ArrayLike], ArrayLike],
    dense: Dense,
    selectors: list[Factor],
    instead: float = 1.0,
) -> Dense:
    """Applies a function to a constant, to `instead` where it is switched off."""
    array, labels = dense.array, dense.labels
    for mask in selectors:
        if isinstance(mask, Dense):
            union = tuple(dict.fromkeys((*labels, *mask.labels)))
            array = expand_to(array, labels, union)
            chosen = expand_to(mask.array, mask.labels, union)
            xp = np if is_public(array) and is_public(chosen) else jnp
            array, labels = xp.where(chosen != 0, array, instead), union
    with np.errstate(all="ignore"):
        return dataclasses.replace(
            dense,
            array=function(array),
            labels=labels,
            lower=-math.inf,
            upper=math.inf,
        )


def spared(term: Term) -> Term:
    """The term with ones for the numbers of a row that a choice leaves out.

    They need not be finite, as in `jnp.where(jnp.isnan(x), m, b * x)`.
    """
    masks = [f for f in term.factors if isinstance(f, Dense) and f.branch]
    factors: list[Factor] = []
    for factor in term.factors:
        if isinstance(factor, Dense) and factor.is_private and not factor.branch:
            over = [
                m for m in masks if m.is_private and set(m.labels) <= set(factor.labels)
            ]
            lower, upper = min(factor.lower, 1.0), max(factor.upper, 1.0)
            factor = map_dense(lambda a: a, factor, list(over)) if over else factor
            factor = dataclasses.replace(factor, lower=lower, upper=upper)
        factors.append(factor)
    return Term(term.scale, tuple(factors), term.bound)


def power(form: Form, exponent: float) -> Form:
    """Raises a form to a power, elementwise.

    Raises:
      NotInAlgebra: The form is a sum and the exponent is not 1 or 2.
    """
    if exponent == 1:
        return form
    if _is_sum_of_constants(form):
        return map_constant(lambda a: a**exponent, lambda a: a**exponent, form)
    if not form.exclusive or not form.terms:
        if exponent == 2:
            return multiply(form, form)
        raise NotInAlgebra(f"a power {exponent:g} of a sum")
    terms = []
    for term in form.terms:
        selectors, values = split_selectors(term)
        if term.scale < 0 and exponent != round(exponent):
            raise NotInAlgebra(f"a power {exponent:g} of a negative number")
        powers: list[Factor] = []
        for value in values:
            if isinstance(value, Atom):
                powers.append(_power_of_atom(value, exponent))
            elif isinstance(value, Dense):
                if exponent < 0 and _is_zero_or_one(value) and not np.all(value.array):
                    raise NotInAlgebra(f"a power {exponent:g} of what may be zero")
                powers.append(map_dense(lambda a: a**exponent, value, selectors))
        factors = (*selectors, *powers)
        terms.append(Term(term.scale**exponent, factors, term.bound))
    return simplified(form.axes, terms, True)


def _is_sum_of_constants(form: Form) -> bool:
    """Whether a form is an array by itself, though not one factor."""
    return form.is_constant and bool(form.terms) and not form.exclusive


def _power_of_atom(atom: Atom, exponent: float) -> Atom:
    power = atom.power * exponent
    # (x^(-1/3))^(-3) is x, though -1/3 is no number of a machine.
    if abs(2 * power - round(2 * power)) < 1e-6:
        power = round(2 * power) / 2
    # √(w²) is |w| and not w; √(w⁴) is w² whatever the sign.
    if atom.signed and exponent != round(exponent) and power % 2 != 0:
        raise NotInAlgebra(
            f"a power {exponent:g} of {atom.latent!r}, which may be negative"
        )
    return dataclasses.replace(atom, power=power)


# The logarithm of a zero that must not become infinite, as 0 · log 0 is to be 0.
LOG_OF_ZERO = -1e20


_LOGARITHMS = {"x": "log", "1m": "log1m"}


_FROM_LOGARITHM = {logarithm: name for name, logarithm in _LOGARITHMS.items()}


def complement(form: Form) -> Form | None:
    """1 - p as one product, if p is a latent with a single sign (or such a 1 - p).

    Only as one product can it be multiplied and still have a logarithm, as in the
    sticks that are broken off one after the other. See `expanded` for the way back.
    """
    if not form.exclusive or not form.terms:
        return None
    terms = []
    for term in form.terms:
        selectors, values = split_selectors(term)
        value = values[0] if len(values) == 1 and term.scale == 1.0 else None
        if not isinstance(value, Atom) or value.power != 1.0 or value.signed:
            return None
        if value.function not in _LOGARITHMS:
            return None
        other = "1m" if value.function == "x" else "x"
        factors = (*selectors, dataclasses.replace(value, function=other))
        terms.append(Term(1.0, factors, term.bound))
    return Form(form.axes, tuple(terms), True)


def expanded(form: Form) -> Form:
    """Writes what `complement` made as one minus a latent again."""
    terms, queue = [], list(form.terms)
    while queue:
        term = queue.pop(0)
        for factor in term.factors:
            if (
                isinstance(factor, Atom)
                and factor.function == "1m"
                and factor.power in (1.0, 2.0)
            ):
                break
        else:
            terms.append(term)
            continue
        rest = list(term.without(factor).factors)
        if factor.power == 2.0:
            rest.append(dataclasses.replace(factor, power=1.0))
        latent = dataclasses.replace(factor, function="x", power=1.0)
        queue.append(Term(term.scale, tuple(rest), term.bound).with_own_labels())
        queue.append(Term(-term.scale, (*rest, latent), term.bound).with_own_labels())
    if len(terms) == len(form.terms):
        return form
    return simplified(form.axes, terms, False)


def log(form: Form, *, finite: bool = False, least: float = 0.0) -> Form:
    """The logarithm of a form, elementwise.

    With `finite`, that of a constant 0 is `LOG_OF_ZERO`. With `least`, a product in
    which a public number is zero counts as `least`, whatever else is in it.

    Raises:
      NotInAlgebra: The form is a sum, other than one minus a latent.
    """
    complement = _complement(form)
    if complement is not None:
        return log1m(complement)
    log_array = _log_or_finite if finite else _log_array
    if _is_sum_of_constants(form):
        return map_constant(log_array, log_array, form)
    if not form.exclusive or not form.terms:
        raise NotInAlgebra("the logarithm of a sum")
    terms = []
    for term in form.terms:
        selectors, values = split_selectors(term)
        if term.scale <= 0:
            raise NotInAlgebra("the logarithm of a number that is not positive")
        if least:
            zeros, selectors, values = _zeros_apart(selectors, values)
            terms += [Term(math.log(least), tuple(at), term.bound) for at in zeros]
        if term.scale != 1:
            terms.append(Term(math.log(term.scale), tuple(selectors), term.bound))
        for value in values:
            scale = 1.0
            if isinstance(value, Atom):
                if value.function not in _LOGARITHMS:
                    raise NotInAlgebra(f"the logarithm of {value.function}")
                scale = value.power
                function = _LOGARITHMS[value.function]
                value = dataclasses.replace(value, function=function, power=1.0)
            elif isinstance(value, Dense):
                value = map_dense(log_array, value, selectors)
            terms.append(Term(scale, (*selectors, value), term.bound))
    terms = [term.with_own_labels() for term in terms]
    return simplified(form.axes, terms, len(terms) == len(form.terms))


def exponential(form: Form) -> Form | None:
    """The exponential of a sum of logarithms of latents and of constants, as a product.

    None if something else occurs in it.
    """
    result = Form(form.axes, (Term(1.0),))
    constants = [term for term in form.terms if not term.atoms]
    for term in form.terms:
        if term in constants:
            continue
        selectors, values = split_selectors(term)
        value = values[0] if len(values) == 1 else None
        # 0.5 · log(w²) is the logarithm of |w|, which the algebra does not have.
        logarithm = (
            isinstance(value, Atom)
            and not value.signed
            and value.function in _FROM_LOGARITHM
        )
        if not logarithm or not is_single_choice(Form(form.axes, (term,))):
            return None
        assert isinstance(value, Atom)
        atom = dataclasses.replace(value, function=_FROM_LOGARITHM[value.function])
        power = Term(1.0, (*selectors, _power_of_atom(atom, term.scale)), term.bound)
        result = product(result, Form(form.axes, (power,)), form.axes, ())
    if constants:
        exponent = Form(form.axes, tuple(constants))
        factor = map_constant(np.exp, jnp.exp, exponent)
        result = product(result, factor, form.axes, ())
    return result


def _zeros_apart(
    selectors: list[Factor], values: list[Factor]
) -> tuple[list[list[Factor]], list[Factor], list[Factor]]:
    """Takes a product apart by where the public numbers in it are zero.

    Returns:
      For each such number the factors that are one where it is zero, and none of those
      before it is; what selects everything else, and the values there.
    """
    zeros, rest = [], []
    for value in values:
        if not isinstance(value, Dense) or not is_public(value.array):
            rest.append(value)
            continue
        is_zero = value.array == 0
        if is_zero.any():
            zeros.append([*selectors, _mask(value, is_zero)])
            selectors = [*selectors, _mask(value, ~is_zero)]
            array = np.where(is_zero, 1.0, value.array)
            value = dataclasses.replace(value, array=array, upper=math.inf)
        if np.any(value.array != 1):
            rest.append(value)
    return zeros, selectors, rest


def _mask(like: Dense, where: np.ndarray) -> Dense:
    return dataclasses.replace(like, array=where * 1.0, lower=0.0, upper=1.0)


def _log_array(array: ArrayLike) -> ArrayLike:
    return (np if is_public(array) else jnp).log(array)


def _log1m_array(array: ArrayLike) -> ArrayLike:
    return (np if is_public(array) else jnp).log1p(-array)


def _log_or_finite(array: ArrayLike) -> ArrayLike:
    xp = np if is_public(array) else jnp
    return xp.where(array == 0, LOG_OF_ZERO, xp.log(xp.where(array == 0, 1, array)))


def log1m(form: Form) -> Form:
    """log(1 - form), elementwise, for probabilities."""
    complement = _complement(form)
    if complement is not None:
        return log(complement)
    if form.is_constant:
        return map_constant(_log1m_array, _log1m_array, form)
    if form.is_discrete and form.terms:
        return map_discrete(_log1m_array, form)
    if not form.exclusive:
        raise NotInAlgebra("log(1 - p) of a sum")
    terms = []
    for term in form.terms:
        selectors, values = split_selectors(term)
        if all(isinstance(value, Dense) for value in values):
            dense = constant_product(term.scale, values)
            number = map_dense(_log1m_array, dense, selectors, instead=0.0)
            terms.append(Term(1.0, (*selectors, number), term.bound))
            continue
        # log(1 - p·z) = z · log(1 - p) for a z that is 0 or 1 in every state.
        binary = [value for value in values if _is_zero_or_one(value)]
        rest = [value for value in values if not _is_zero_or_one(value)]
        plain = len(rest) == 1 and term.scale == 1.0
        value = rest[0] if plain else None
        if (
            not isinstance(value, Atom)
            or value.power != 1.0
            or value.function not in _LOGARITHMS
        ):
            raise NotInAlgebra("log(1 - p) of a product")
        function = "log1m" if value.function == "x" else "log"
        value = dataclasses.replace(value, function=function)
        terms.append(Term(1.0, (*selectors, *binary, value), term.bound))
    return simplified(form.axes, terms, True)


def _is_zero_or_one(value: Factor) -> bool:
    """Whether a factor is a public constant of zeros and ones."""
    if not isinstance(value, Dense) or not is_public(value.array):
        return False
    return bool(np.isin(value.array, (0, 1)).all())


def _complement(form: Form) -> Form | None:
    """The exclusive p with form = 1 - p, if there is one."""
    ones = [t for t in form.terms if not t.factors and t.scale == 1.0]
    rest = [t for t in form.terms if t.factors]
    if form.is_constant or len(ones) != 1 or len(rest) != len(form.terms) - 1:
        return None
    complement = simplified(
        form.axes,
        [dataclasses.replace(t, scale=-t.scale) for t in rest],
        len(rest) == 1,
    )
    return complement if complement.exclusive else None


def map_constant(
    known: Callable[..., ArrayLike], traced: Callable[..., ArrayLike], *forms: Form
) -> Form:
    """Applies an elementwise function to forms without latents."""
    axes = common_axes(*forms)
    placed = [broadcast(form, axes) for form in forms]
    entries = map_scatters(known, traced, axes, [form.terms for form in placed])
    if entries is not None:
        return Form(axes, entries, False)
    arrays = [constant_array(form) for form in placed]
    with np.errstate(all="ignore"):
        if all(map(is_public, arrays)):
            result = constant(np.asarray(known(*arrays)))
            return place(result, axes)
    array = traced(*arrays)
    is_private = any(form.is_private for form in forms)
    return Form(axes, (Term(1.0, (Dense(array, axes, is_private),)),))


def map_discrete(function: Callable[..., ArrayLike], *forms: Form) -> Form:
    """Applies an elementwise function, state by state, to functions of indicators.

    `function` gets arrays that broadcast against each other.
    """
    axes = common_axes(*forms)
    placed = [_or_zero(broadcast(form, axes)) for form in forms]
    terms = []
    for combination in itertools.product(*(form.terms for form in placed)):
        # One product of all the selectors, to agree on the labels of the states.
        marked: list[Factor] = []
        bound: frozenset[Label] = frozenset()
        for position, term in enumerate(combination):
            term = term.with_own_labels()
            selectors, values = split_selectors(term)
            # Kept apart through simplification as a branch of its own.
            value = constant_product(term.scale, values)
            value = dataclasses.replace(value, branch=(OperandMark(), position))
            marked += [*selectors, value]
            bound |= term.bound
        joint = simplify(Term(1.0, tuple(marked), bound))
        if joint is None:
            continue
        operands = [
            f
            for f in joint.factors
            if isinstance(f, Dense)
            and f.branch
            and isinstance(f.branch[0], OperandMark)
        ]
        operands.sort(key=lambda f: f.branch[1] if f.branch else 0)
        union = tuple(dict.fromkeys(label for f in operands for label in f.labels))
        arrays = [expand_to(f.array, f.labels, union) for f in operands]
        result = function(*arrays)
        xp = np if is_public(result) else jnp
        result = xp.broadcast_to(result, [label.size for label in union])
        value = Dense(result, union, any(f.is_private for f in operands))
        rest = joint.without(*operands).factors
        terms.append(Term(1.0, (*rest, value), joint.bound))
    return Form(axes, tuple(terms), True)


def _or_zero(form: Form) -> Form:
    """A form without terms is the constant zero; this one says so with a term."""
    return form if form.terms else Form(form.axes, (Term(0.0),), True)
