"""`Design`: the terms of a formula, encoded by a schema's public facts."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Shaped

from numpyro_vips.errors import did_you_mean
from numpyro_vips.schema.columns import Bounded, Column, Intercept
from numpyro_vips.schema.encoding import INTERCEPT, ColumnProduct, Encoding
from numpyro_vips.schema.files import opened_table

# What the formulas of other packages compute from all rows, or may.
_REMEDY = (
    "A formula has columns of the schema, products of them (a:b, a*b) and an "
    "intercept. What is computed from a column, such as scale, center, bs or log, goes "
    "into the schema with constants that are known without the rows: Bounded(low, "
    "high) centres and scales, and with mean= and sd= a formula may have scale and "
    "center of it; LogBounded takes logarithms, and a spline is a column of the table "
    "that you compute with knots of your own. Categories are those of the schema, "
    "without C()."
)
_OF_RESPONSES = (
    " A response comes in the units of the table: write its column alone, and compute "
    "the rest from what design.response(table) returns, row by row."
)
# Whether these functions of formulae divide by the standard deviation.
_STANDARDISED = {"center": False, "scale": True, "standardize": True}


@dataclasses.dataclass(frozen=True, eq=True)
class Design(Encoding):
    """What a formula takes from a table, made by `Schema.design`.

    It encodes and decodes as a `Schema` does. A product of columns is encoded as the
    products of their numbers.

        >>> import numpyro_vips as nv
        >>> schema = nv.Schema(
        ...     age=nv.Bounded(0, 100, mean=40, sd=20), sex=nv.Binary("f", "m")
        ... )
        >>> design = schema.design("sex ~ 0 + scale(age)")
        >>> design
        Design('sex ~ 0 + scale(age)': age)
        >>> people = {"age": [20, 60, 80], "sex": ["m", "f", "m"]}
        >>> np.asarray(design.encode(people)).ravel()
        array([-1.,  1.,  2.])
        >>> design.response(people)
        array([1., 0., 1.])

    Attributes:
      formula: The formula as it was given.
      columns: The schema's columns that it names, by name.
      products: For each term the names of the columns that are multiplied.
      response_name: The column before the `~`; None if there is none.
    """

    formula: str
    columns: tuple[tuple[str, Column], ...]
    products: tuple[tuple[str, ...], ...]
    response_name: str | None

    @property
    def terms(self) -> tuple[ColumnProduct, ...]:
        known = dict(self.columns)
        return tuple({name: known[name] for name in names} for names in self.products)

    def response(self, frame: Any) -> Shaped[np.ndarray, " rows"]:
        """The column before the `~`, as `Schema.response` gives it.

        Raises:
          ImportError, TypeError, ValueError: As `encode`; or the formula has none.
        """
        name = self.response_name
        if name is None:
            raise ValueError(
                f"Expected {self.formula!r} to have a response, 'y ~ ...'."
            )
        column = dict(self.columns)[name]
        return column.response(opened_table(frame, {name: column}), name)

    def __repr__(self) -> str:
        return f"Design({self.formula!r}: {', '.join(self.design_columns)})"


def _function_of(component: Any) -> str | None:
    """Which function of `_STANDARDISED` a part of a term is, of a single column."""
    call = getattr(component, "call", None)
    if type(component).__name__ != "Call" or call is None or call.kwargs:
        return None
    of_column = [type(x).__name__ == "LazyVariable" for x in call.args] == [True]
    return call.callee if of_column and call.callee in _STANDARDISED else None


def _standardised(column: Column, *, divides: bool) -> Column | None:
    """A column less its mean, over its standard deviation; None if they are not known.

    Both are constants of the schema, never of the rows. They are those of the numbers
    in a `Bounded` column; a `LogBounded` one has moments of logarithms.
    """
    if not isinstance(column, Bounded) or column.mean is None:
        return None
    return column if divides else column.about(column.mean, 1.0)


def design_of(formula: str, schema: Mapping[str, Column]) -> Design:
    """Reads a formula, of which no data are seen.

    Raises:
      ImportError: formulae is not installed.
      ValueError: It cannot be read, names what the schema does not have, or has more
        than columns, centred or scaled by constants of the schema, and products of
        them.
    """
    found = _parsed(formula)
    columns: dict[str, Column] = {}

    def named(component: Any, *, is_term: bool = False) -> str:
        name, column = _column_of(formula, schema, component, is_term=is_term)
        if columns.setdefault(name, column) != column:
            raise ValueError(f"{formula!r} has {name!r} in two forms. Take one.")
        return name

    products: list[tuple[str, ...]] = []
    for term in found.common_terms:
        if type(term).__name__ == "Intercept":
            columns[INTERCEPT] = Intercept()
            products.append((INTERCEPT,))
        else:
            names = tuple(named(part, is_term=True) for part in term.components)
            if names in products:
                raise ValueError(f"{formula!r} has the term {':'.join(names)!r} twice.")
            products.append(names)
    response = None
    if found.response is not None:
        (component,) = found.response.term.components
        response = named(component)
        if any(response in names for names in products):
            raise ValueError(f"{formula!r} has {response!r} on both sides.")
    if not any(names != (INTERCEPT,) for names in products):
        raise ValueError(f"Expected {formula!r} to have a column of the table.")
    return Design(formula, tuple(columns.items()), tuple(products), response)


def _parsed(formula: str) -> Any:
    """The formula as formulae reads it, without effects of groups."""
    try:
        formulae: Any = importlib.import_module("formulae")
    except ModuleNotFoundError:
        raise ImportError(
            "Formulas are read by formulae: pip install 'numpyro-vips[formulas]'."
        ) from None
    try:
        found = formulae.model_description(formula)
    except (formulae.parser.ParseError, formulae.scanner.ScanError) as error:
        raise ValueError(f"Expected {formula!r} to be a formula: {error}") from None
    if found.group_terms:
        raise ValueError(
            f"Effects of groups, {found.group_terms[0].name!r}, are written in the "
            "model: a plate of groups, and the column's code by schema.response."
        )
    return found


def _column_of(
    formula: str, schema: Mapping[str, Column], component: Any, *, is_term: bool
) -> tuple[str, Column]:
    """The name of a column that a formula has, and the column as it has it.

    Args:
      formula, schema: See `design_of`.
      component: A part of a term, or of the response.
      is_term: Whether it is part of a term, and so may be standardised.
    """
    function = _function_of(component) if is_term else None
    shown = component.name
    if function is not None:
        component = component.call.args[0]
    elif type(component).__name__ != "Variable":
        remedy = _REMEDY if is_term else _REMEDY + _OF_RESPONSES
        raise ValueError(f"{formula!r} has {shown!r}. {remedy}")
    name = component.name
    if not isinstance(name, str):
        raise ValueError(f"{formula!r} has {shown!r}. {_REMEDY}")
    if getattr(component, "reference", None) is not None:
        raise ValueError(
            f"{formula!r} selects a value of {name!r}. Give the schema's column as "
            "Binary(no, yes)."
        )
    if name == INTERCEPT or name not in schema:
        raise ValueError(
            f"{formula!r} names {name!r}, which is no column of the schema. "
            f"{did_you_mean(name, schema)}".rstrip()
        )
    if function is None:
        return name, schema[name]
    column = _standardised(schema[name], divides=_STANDARDISED[function])
    if column is None:
        raise ValueError(
            f"{formula!r} has {shown!r}, and the schema does not have the mean "
            f"and standard deviation of {name!r}. {_REMEDY}"
        )
    return name, column
