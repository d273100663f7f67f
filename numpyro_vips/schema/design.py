"""`Design`: the terms of a formula, encoded by a schema's public facts."""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Shaped

from numpyro_vips.errors import did_you_mean
from numpyro_vips.schema.columns import Column, Intercept
from numpyro_vips.schema.encoding import INTERCEPT, ColumnProduct, Encoding
from numpyro_vips.schema.files import opened

# What the formulas of other packages compute from all rows, or may.
_REMEDY = (
    "A formula has columns of the schema, products of them (a:b, a*b) and an "
    "intercept. What is computed from a column, such as scale, center, bs or log, goes "
    "into the schema with constants that are known without the rows: Bounded(low, "
    "high) centres and scales, LogBounded takes logarithms, and a spline is a column "
    "of the table that you compute with knots of your own."
)


@dataclasses.dataclass(frozen=True, eq=True)
class Design(Encoding):
    """What a formula takes from a table, made by `Schema.design`.

    It encodes and decodes as a `Schema` does. A product of columns is encoded as the
    products of their numbers.

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
        return column.response(opened(frame, {name: column}), name)

    def __repr__(self) -> str:
        return f"Design({self.formula!r}: {', '.join(self.design_columns)})"


def design_of(formula: str, schema: Mapping[str, Column]) -> Design:
    """Reads a formula, of which no data are seen.

    Raises:
      ImportError: formulae is not installed.
      ValueError: It cannot be read, names what the schema does not have, or has more
        than columns and products of them.
    """
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
    columns: dict[str, Column] = {}

    def named(component: Any) -> str:
        name = component.name
        if type(component).__name__ != "Variable" or not isinstance(name, str):
            raise ValueError(f"{formula!r} has {name!r}. {_REMEDY}")
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
        columns[name] = schema[name]
        return name

    products: list[tuple[str, ...]] = []
    for term in found.common_terms:
        if type(term).__name__ == "Intercept":
            columns[INTERCEPT] = Intercept()
            products.append((INTERCEPT,))
        else:
            products.append(tuple(named(part) for part in term.components))
    response = None
    if found.response is not None:
        (component,) = found.response.term.components
        response = named(component)
        if any(response in names for names in products):
            raise ValueError(f"{formula!r} has {response!r} on both sides.")
    if not any(names != (INTERCEPT,) for names in products):
        raise ValueError(f"Expected {formula!r} to have a column of the table.")
    return Design(formula, tuple(columns.items()), tuple(products), response)
