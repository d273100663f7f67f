"""`Schema`: the public facts about a table, and the only source of its encoding."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from numpyro_vips.errors import did_you_mean
from numpyro_vips.schema.columns import Column, EncodedColumn, Intercept

INTERCEPT = "intercept"


class Schema(Mapping[str, Column]):
    """What is public of a table's columns: ranges, categories, rules for odd values.

    A mapping from names to columns that cannot change. Rows are encoded one by one:
    what a row becomes depends on that row and the schema alone. Nothing is read off the
    rows and kept, so there is nothing to fit.

        >>> import numpyro_vips as nv
        >>> schema = nv.Schema(
        ...     age=nv.Bounded(0, 120),
        ...     job=nv.Categorical(["nurse", "cook"]),
        ...     ill=nv.Binary(),
        ... )
        >>> features = schema.drop("ill")
        >>> features.design_columns
        ('age', 'job=nurse', 'job=cook', 'job=other')
        >>> people = {"age": [30, 500], "job": ["cook", "spy"], "ill": [True, False]}
        >>> features.encode(people)
        array([[-0.5,  0. ,  1. ,  0. ],
               [ 1. ,  0. ,  0. ,  1. ]])
        >>> schema.response(people, "ill")
        array([1., 0.])

    Args:
      columns: The columns by name, for names that Python does not take as keywords.
      **named: More of them. `intercept=Intercept()` adds a column of ones.

    Raises:
      TypeError, ValueError: These are not columns, or none of a table, or two that are
        encoded under the same name.
    """

    def __init__(
        self, columns: Mapping[str, Column] | None = None, /, **named: Column
    ) -> None:
        self._columns = {**(columns or {}), **named}
        for name, column in self._columns.items():
            if not isinstance(column, Column):
                raise TypeError(
                    f"Expected {name!r} to be a column, such as Bounded(0, 120), got "
                    f"{type(column).__name__}."
                )
            if (name == INTERCEPT) != isinstance(column, Intercept):
                raise ValueError(
                    f"Expected the name {INTERCEPT!r} for Intercept() and for nothing "
                    f"else, got {name!r} for {column!r}."
                )
        if not self._columns.keys() - {INTERCEPT}:
            raise ValueError("Expected a column of the table at least.")
        names = self.design_columns
        if len(set(names)) < len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ValueError(f"Expected encoded columns to differ, got {twice} twice.")

    def __getitem__(self, name: str) -> Column:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __eq__(self, other: object) -> bool:
        # Another order is another encoding.
        return isinstance(other, Schema) and [*self.items()] == [*other.items()]

    def __hash__(self) -> int:
        return hash(tuple(self.items()))

    def __repr__(self) -> str:
        lines = [f"    {name!r}: {column!r},\n" for name, column in self.items()]
        return f"Schema({{\n{''.join(lines)}}})"

    def drop(self, *names: str) -> "Schema":
        """The schema of the other columns, as of the features without the response.

        Raises:
          ValueError: There is no such column, or none of the table is left.
        """
        for name in names:
            self._check(name)
        return Schema({name: self[name] for name in self if name not in names})

    def _check(self, name: str) -> None:
        if name not in self:
            raise ValueError(
                f"Expected {name!r} to be a column of the schema, which has "
                f"{list(self)}. {did_you_mean(name, self)}"
            )

    @property
    def _encoded(self) -> tuple[EncodedColumn, ...]:
        return tuple(
            encoded
            for name, column in self.items()
            for encoded in column.encoded_columns(name)
        )

    @property
    def design_columns(self) -> tuple[str, ...]:
        """Names of the encoded columns, in their order: coordinates for ArviZ."""
        return tuple(encoded.name for encoded in self._encoded)

    @property
    def row_norm(self) -> float:
        """The largest L2 norm that an encoded row can have, whatever the row.

        A column adds 1 at most to the square, so it is the root of their number.
        """
        return math.sqrt(len(self))

    def encode(self, frame: Any) -> Float[np.ndarray, "rows columns"]:
        """The table's columns as numbers, as public as the table is.

        Args:
          frame: A DataFrame of pandas or polars, a table of pyarrow, each read through
            narwhals, or a mapping from names to arrays. Other columns are ignored.

        Returns:
          One row for each row of the table, one column for each of `design_columns`, in
          double precision. Numbers lie in [-1, 1], and rows have the norm `row_norm` at
          most.

        Raises:
          ImportError: The table is no mapping, and narwhals is not installed.
          TypeError: A column has another dtype than the schema expects, or this is no
            table. Messages quote names and dtypes, never values.
          ValueError: A column is absent, or columns have different lengths.
        """
        blocks = {name: column.encode(frame, name) for name, column in self.items()}
        lengths = {len(block) for name, block in blocks.items() if name != INTERCEPT}
        if len(lengths) > 1:
            raise ValueError("Expected the columns of the table to have one length.")
        rows = lengths.pop()
        return np.hstack(
            [
                np.broadcast_to(block, (rows, block.shape[1]))
                for block in blocks.values()
            ]
        )

    def response(self, frame: Any, name: str) -> Shaped[np.ndarray, " rows"]:
        """One column of the table as a likelihood takes it, not scaled.

        Args:
          frame: A table, as for `encode`.
          name: A column of the schema.

        Returns:
          One number for each row: of a range, the number in its own unit, moved into
          the range; of two values, 0 and 1; of categories, their places in the list,
          after which come `"other"` and `"missing"`. What is missing is NaN, and -1 a
          category that has no place. No likelihood supports these, so a fit counts such
          a row as zero.

        Raises:
          ImportError, TypeError, ValueError: As `encode`; or the schema has no such
            column.
        """
        self._check(name)
        return self[name].response(frame, name)

    def decode(
        self,
        weights: Float[Any, "*draws columns"],
        intercept: Float[Any, "*draws"] | float = 0.0,
    ) -> dict[str, Float[np.ndarray, "*draws"]]:
        """Coefficients of a linear predictor, in the units of the table.

        The predictor `intercept + encode(frame) @ weights` is that of the original
        numbers, moved into their ranges, with these coefficients. It is exact.

        Args:
          weights: Coefficients of the encoded columns, on the last axis.
          intercept: What is added to the predictor, beside an `Intercept()` column.

        Returns:
          The coefficients by name, and what they leave as `"intercept"`: the predictor
          where all numbers, and all logarithms, are zero, and all indicators.

        Raises:
          ValueError: The shapes are not as described.
        """
        encoded = self._encoded
        weights = np.asarray(weights, np.float64)
        intercept = np.asarray(intercept, np.float64)
        if weights.shape[-1:] != (len(encoded),):
            raise ValueError(
                f"Expected weights to have a last axis of length {len(encoded)}, got "
                f"the shape {weights.shape}."
            )
        if intercept.shape not in ((), weights.shape[:-1]):
            raise ValueError(
                f"Expected intercept to have the shape {weights.shape[:-1]}, got "
                f"{intercept.shape}."
            )
        # w (shift + slope x) adds w slope to the coefficient of x, and w shift here.
        decoded = {
            column.name: weights[..., place] * column.slope
            for place, column in enumerate(encoded)
        }
        shifts = np.array([column.shift for column in encoded])
        decoded[INTERCEPT] = intercept + weights @ shifts
        return decoded
