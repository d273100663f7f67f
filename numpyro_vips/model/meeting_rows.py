"""Where in a model's program rows meet, and what to do about it; for messages alone.

Whether rows act on each other is decided elsewhere, by what the log density is. Here
the programs for two and for three rows are read side by side: an axis whose length
differs is one of rows, and the first operation along such an axis is named.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax.extend.core as jex_core
import numpy as np

from numpyro_vips.jax_tools.jaxprs import aval_of, called_program, programs_in
from numpyro_vips.jax_tools.user_lines import line_of_equation

# What to do about a quantity that is computed from all rows.
PUBLIC_IN_ITS_PLACE = (
    "Put a public number in the place of what is computed from all rows. For a mean "
    "that is subtracted, as in X - X.mean(0), zero will do if the model has an "
    "intercept. Numbers from public data may be an argument that public= names."
)
_NO_RISK_SETS = (
    "A likelihood of ranks or of risk sets, such as Cox's partial likelihood, has no "
    "part that is one row's: take a hazard of time itself, such as a Weibull's or one "
    "that is constant between public times, and public thresholds in place of ranks."
)
_PAIRS = (
    "If it is not meant to, shapes such as (N, 1) and (N,) were combined, N being the "
    "number of rows: make both (N,), with X[:, 0] or .squeeze(-1). "
)
_SERIES = (
    "A number of another row, or one that is computed from all of them, must be public "
    "to be used for a row. Rows that follow each other, such as visits or the times of "
    "a series, belong to one individual: make them one row, of shape (N, T) for all."
)
_NUMBER = "Pass the number of rows as a public number of its own, a Python int."


class Meeting(NamedTuple):
    """An operation at which rows meet.

    Attributes:
      kind: "all", "order", "pairs", "others" or "number".
      what: What it does.
      remedy: What to write in its place.
      where: The user's line, as `user_lines` gives it.
    """

    kind: str
    what: str
    remedy: str
    where: str = ""

    @property
    def advice(self) -> str:
        """Line, operation and remedy as sentences."""
        return f"The model {self.what}{self.where}. {self.remedy}"


_KINDS = {
    "all": ("computes something of all rows at once", PUBLIC_IN_ITS_PLACE),
    "order": ("orders the rows, or adds them up one after the other", _NO_RISK_SETS),
    "pairs": ("compares every row with every other", _PAIRS + _NO_RISK_SETS),
    "others": ("gives a row the numbers of another one", _SERIES),
    "number": ("computes with the number of rows that it is given", _NUMBER),
}


def first_meeting(
    two: jex_core.ClosedJaxpr, three: jex_core.ClosedJaxpr
) -> Meeting | None:
    """The first operation at which rows meet, in programs without dead code.

    Args:
      two, three: The model's program for so many rows.

    Returns:
      The operation; None if none is found, or if the programs do not correspond.
    """
    # Rows are also picked by the index of their plate, and sizes stand where indices
    # are brought into range: both count only where there is nothing else.
    for kind_of in (_kind_of, _kind_of_index, _kind_of_number):
        found = next(_found(two, three, kind_of), None)
        if found is not None:
            kind, where = found
            return Meeting(kind, *_KINDS[kind], where)
    return None


_KindOf = Callable[[jex_core.JaxprEqn, jex_core.JaxprEqn], str | None]


def _found(two: Any, three: Any, kind_of: _KindOf) -> Iterator[tuple[str, str]]:
    """Kinds and lines of the operations at which rows meet."""
    for pair in zip(two.jaxpr.eqns, three.jaxpr.eqns, strict=False):
        if pair[0].primitive.name != pair[1].primitive.name:
            return
        calls = [called_program(eqn) for eqn in pair]
        is_call = None not in calls
        kind = None if is_call else kind_of(*pair)
        if kind is not None:
            yield kind, line_of_equation(pair[0])
            continue
        # Programs inside may have been traced for another call, in another line.
        for a, b in [calls] if is_call else zip(*_inner(pair), strict=False):
            for kind, where in _found(a, b, kind_of):
                yield kind, line_of_equation(pair[0]) or where


def _inner(pair: tuple[jex_core.JaxprEqn, ...]) -> list[list[Any]]:
    return [list(programs_in(eqn.params)) for eqn in pair]


def _growing(two: Any, three: Any) -> set[int]:
    """The axes of rows, whose lengths differ."""
    shapes = [getattr(atom.aval, "shape", ()) for atom in (two, three)]
    return {i for i, (a, b) in enumerate(zip(*shapes, strict=False)) if a != b}


def _kind_of(two: jex_core.JaxprEqn, three: jex_core.JaxprEqn) -> str | None:
    """How rows meet in an operation, if they do."""
    name, params, array = two.primitive.name, two.params, two.outvars[0]
    ins = [_growing(*atoms) for atoms in zip(two.invars, three.invars, strict=False)]
    outs = [_growing(*atoms) for atoms in zip(two.outvars, three.outvars, strict=False)]
    most = max(map(len, ins), default=0)
    if max(map(len, outs), default=0) > max(1, most):
        return "pairs"
    if most == 0:
        return None
    if name.startswith(("cum", "sort", "top_k", "approx_top_k")):
        axis = params.get("axis", params.get("dimension", -1))
        along = axis % max(1, len(aval_of(two.invars[0]).shape))
        return "order" if along in ins[0] else None
    if name == "scan" and params["length"] != three.params["length"]:
        return "order"
    if name == "rev":
        return "others" if ins[0] & set(params["dimensions"]) else None
    if name in _MOVES:
        kept = (
            _lengths(v, g) == _lengths(array, g)
            for v, g in zip(two.invars, ins, strict=True)
        )
        return None if all(kept) else "others"
    if not any(outs):
        return "others" if name == "gather" else "all"
    return None


# Operations that put rows elsewhere if they change how many there are.
_MOVES = ("slice", "dynamic_slice", "concatenate", "pad")


def _lengths(var: Any, axes: set[int]) -> list[int]:
    return [var.aval.shape[axis] for axis in sorted(axes)]


def _kind_of_index(two: jex_core.JaxprEqn, three: jex_core.JaxprEqn) -> str | None:
    if two.primitive.name != "gather":
        return None
    mapped = set(two.params["dimension_numbers"].start_index_map)
    return "others" if mapped & _growing(two.invars[0], three.invars[0]) else None


def _kind_of_number(two: jex_core.JaxprEqn, three: jex_core.JaxprEqn) -> str | None:
    for pair in zip(two.invars, three.invars, strict=False):
        numbers = [a.val for a in pair if isinstance(a, jex_core.Literal)]
        if len(numbers) == 2 and not np.array_equal(numbers[0], numbers[1]):
            return "number"
    return None


def in_rows(two: tuple[int, ...], three: tuple[int, ...]) -> str:
    """A shape with N, the number of rows, in place of what it is for two and three."""
    if len(two) != len(three):
        return f"{two} for two rows and {three} for three"
    lengths = [_length(a, b) for a, b in zip(two, three, strict=True)]
    return f"({', '.join(lengths)}{',' * (len(lengths) == 1)})"


def _length(two: int, three: int) -> str:
    slope = three - two
    rest = two - 2 * slope
    text = {0: "", 1: "N"}.get(slope, f"{slope} N")
    if slope == 0:
        return str(rest)
    return text if rest == 0 else f"{text} {'+' if rest > 0 else '-'} {abs(rest)}"
