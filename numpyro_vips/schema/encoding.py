"""What encodes a table: terms, each a column of it or a product of several."""

import abc
import functools
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from numpyro_vips.errors import quoted
from numpyro_vips.schema.columns import (
    Column,
    EncodedColumn,
    Intercept,
    Interval,
    SyntheticPlaces,
)
from numpyro_vips.schema.encoded_rows import encoded_rows
from numpyro_vips.schema.files import opened_table

INTERCEPT = "intercept"

# The columns that are multiplied, by name.
ColumnProduct = Mapping[str, Column]


class Encoding(abc.ABC):
    """Rows of numbers for the rows of a table, by public facts alone.

    A term's part of a row is the product of its columns' parts, every number of one
    with every number of the others, and so of L2 norm at most the product of theirs.
    """

    @property
    @abc.abstractmethod
    def terms(self) -> tuple[ColumnProduct, ...]:
        """What is encoded, in the order of the encoded columns."""

    @property
    def _encoded(self) -> tuple[tuple[EncodedColumn, ...], ...]:
        """For each encoded column the factors that it is the product of."""
        return tuple(
            factors
            for term in self.terms
            for factors in itertools.product(
                *(column.encoded_columns(name) for name, column in term.items())
            )
        )

    @property
    def design_columns(self) -> tuple[str, ...]:
        """Names of the encoded columns, in their order: coordinates for ArviZ."""
        return tuple(
            ":".join(factor.name for factor in factors) for factors in self._encoded
        )

    @property
    def row_norm(self) -> float:
        """The largest L2 norm that an encoded row can have, whatever the row.

        A term of columns that are not standardised adds 1 at most to the square: where
        none is, it is the root of the number of terms.
        """
        norms = (
            math.prod(column.norm for column in term.values()) for term in self.terms
        )
        return math.sqrt(sum(norm**2 for norm in norms))

    @property
    def standardised_columns(self) -> tuple[str, ...]:
        """The table's columns that are encoded by a mean and a standard deviation."""
        return tuple(
            dict.fromkeys(
                name
                for term in self.terms
                for name, column in term.items()
                if isinstance(column, Interval) and column.mean is not None
            )
        )

    # It must not raise where the caller has asked NumPy to: that depends on a cell.
    @np.errstate(all="ignore")
    def encode(self, frame: Any) -> Float[np.ndarray, "rows columns"]:
        """The table's columns as numbers, as private as the table is.

            >>> import numpyro_vips as nv
            >>> schema = nv.Schema(age=nv.Bounded(0, 120), ill=nv.Binary("no", "yes"))
            >>> X = schema.encode({"age": [30, 500], "ill": ["yes", None]})
            >>> X
            array([[-0.5,  1. ],
                   [ 1. ,  0. ]])
            >>> bool(np.linalg.norm(X, axis=1).max() <= schema.row_norm)
            True

        Args:
          frame: A DataFrame of pandas or polars, a table of pyarrow, each read through
            narwhals, a mapping from names to arrays, or the path of a CSV, Parquet or
            Arrow file. Other columns are ignored.

        Returns:
          One row for each row of the table, one column for each of `design_columns`, in
          double precision. Numbers lie in [-1, 1], but for those of columns that are
          standardised, and rows have the norm `row_norm` at most. A fit to them names
          axes of its result after the columns.

        Raises:
          ImportError: The table is no mapping, and narwhals or, for files, pyarrow is
            not installed.
          TypeError: A column has another dtype than the schema expects, or this is no
            table. Messages quote names and dtypes, never values.
          ValueError: A column is absent or there twice, or columns have different
            lengths.
        """
        columns = {name: c for term in self.terms for name, c in term.items()}
        frame = opened_table(frame, columns)
        blocks = {name: column.encode(frame, name) for name, column in columns.items()}
        lengths = {
            len(blocks[name])
            for name, column in columns.items()
            if not isinstance(column, Intercept)
        }
        if len(lengths) > 1:
            raise ValueError("Expected the columns of the table to have one length.")
        return encoded_rows(self._rows(blocks, lengths.pop()), self)

    def synthetic_rows(
        self, rng: np.random.Generator, count: int, *, places: SyntheticPlaces
    ) -> Float[np.ndarray, "rows columns"]:
        """Rows that have nothing to do with those of any table.

        Args:
          rng: Draws them.
          count: How many.
          places: What they are drawn from; see `Column.synthetic`.
        """
        columns = {name: c for term in self.terms for name, c in term.items()}
        blocks = {
            name: column.synthetic(rng, count, places=places)
            for name, column in columns.items()
        }
        return self._rows(blocks, count)

    def _rows(self, blocks: Mapping[str, np.ndarray], rows: int) -> np.ndarray:
        def product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
            return (left[:, :, None] * right[:, None, :]).reshape(rows, -1)

        wide = {
            name: np.broadcast_to(block, (rows, block.shape[1]))
            for name, block in blocks.items()
        }
        parts = [[wide[name] for name in term] for term in self.terms]
        return np.hstack([functools.reduce(product, mine) for mine in parts])

    def decode(
        self,
        weights: Any,
        intercept: Any = 0.0,
        *,
        site: str | None = None,
        rng_key: Any = None,
        num_samples: int = 1000,
    ) -> Any:
        """Coefficients of a linear predictor, in the units of the table.

            >>> import numpyro_vips as nv
            >>> schema = nv.Schema(age=nv.Bounded(0, 120), ill=nv.Binary())
            >>> for name, value in schema.decode([3.0, 1.0], 0.5).items():
            ...     print(name, round(float(value), 6))
            age 0.05
            ill 2.0
            intercept -3.5

        The predictor `intercept + encode(frame) @ weights` is that of the original
        numbers, moved into their ranges, with these coefficients. It is exact.

        Args:
          weights: Coefficients of the encoded columns: an array with these on the last
            axis; or a result of a fit to encoded rows, or draws from it in ArviZ's
            format, of which the site is meant that has an axis with these columns.
          intercept: What is added to the predictor, beside an intercept column: an
            array with the other axes of `weights`, or the name of a site.
          site: Which site has the weights, if several may.
          rng_key: A key of `jax.random` for draws from a result.
          num_samples: How many draws, from a result.

        Returns:
          The coefficients by name, and what they leave as `"intercept"`: the predictor
          where all numbers, and all logarithms, are zero, and all indicators. From
          arrays, a dict of arrays without the last axis; from a result or from draws,
          an `xarray.Dataset` with the axes `chain` and `draw` and the privacy facts as
          attributes, as `arviz.summary` takes it.

        Raises:
          TypeError: A result needs `rng_key`, or the intercept is of another kind.
          ValueError: The shapes are not as described, or no site is.
        """
        if hasattr(weights, "to_arviz"):
            if rng_key is None:
                raise TypeError(
                    "Expected rng_key=, a key of jax.random, to draw from the result."
                )
            weights = weights.to_arviz(rng_key, num_samples=num_samples)
        if hasattr(weights, "data_vars") or hasattr(weights, "posterior"):
            return self._decode_draws(weights, intercept, site)
        return self._decode_arrays(weights, intercept)

    def _decode_arrays(self, weights: Any, intercept: Any) -> dict[str, np.ndarray]:
        """Weights of the columns, from those of the encoded ones; see `decode`.

        Args:
          weights: With a last axis of encoded columns.
          intercept: A number, or one for each vector of weights.

        Raises:
          TypeError: The intercept is the name of a site.
          ValueError: A shape is another one.
        """
        encoded = self._encoded
        weights = np.asarray(weights, np.float64)
        if isinstance(intercept, str):
            raise TypeError(
                "Expected intercept to be an array where weights are one; the name of "
                "a site goes with a result or with draws from it."
            )
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
        # Π (shift + slope x) is a sum over which of the factors x are taken.
        decoded: dict[str, Any] = {}
        for place, factors in enumerate(encoded):
            for taken in itertools.product((True, False), repeat=len(factors)):
                slope = math.prod(
                    factor.slope if is_taken else factor.shift
                    for factor, is_taken in zip(factors, taken, strict=True)
                )
                names = itertools.compress((factor.name for factor in factors), taken)
                name = ":".join(names) or INTERCEPT
                is_named = all(taken) and INTERCEPT not in name.split(":")
                if slope != 0.0 or is_named:
                    decoded[name] = decoded.get(name, 0.0) + slope * weights[..., place]
        rest = decoded.pop(INTERCEPT, 0.0)
        decoded[INTERCEPT] = np.broadcast_to(intercept + rest, weights.shape[:-1])[...]
        return decoded

    def _decode_draws(self, draws: Any, intercept: Any, site: str | None) -> Any:
        """The same of a site in draws; see `decode`.

        Args:
          draws: An xarray data set, or what has one as its group of posterior draws.
          intercept: The name of a site, or a number.
          site: The weights; None for the one site with an axis of encoded columns.

        Raises:
          TypeError: The intercept is an array.
          ValueError: There is no such site, or there are several.
        """
        import xarray

        is_posterior = hasattr(draws, "data_vars") and "posterior" not in draws
        posterior = draws if is_posterior else draws["posterior"]
        if not isinstance(posterior, xarray.Dataset):
            posterior = posterior.to_dataset()  # A node of a tree, with ArviZ 1.
        axes = _axes_with(posterior, self.design_columns)
        if site is None and len(axes) != 1:
            raise ValueError(
                "Expected one site with an axis for the encoded columns, "
                f"{list(self.design_columns)}, found {quoted(axes)}. Say which it is "
                "with site=, and give the columns as coordinates if the model was not "
                "fitted to what encode returned: to_arviz(coords={axis: "
                "schema.design_columns})."
            )
        name = next(iter(axes)) if site is None else site
        if name not in axes:
            raise ValueError(
                f"Expected site={name!r} to have an axis for the encoded columns, "
                f"{list(self.design_columns)}. Those with one are {quoted(axes)}."
            )
        weights = posterior[name].transpose(..., axes[name])
        if not isinstance(intercept, str):
            if np.ndim(intercept):
                raise TypeError(
                    "Expected intercept to be the name of a site, or a number, where "
                    "weights are a result or draws from it."
                )
            added = np.full(weights.shape[:-1], intercept, np.float64)
        elif intercept in posterior and set(posterior[intercept].dims) <= set(
            weights.dims[:-1]
        ):
            of_site = posterior[intercept].broadcast_like(weights.isel({axes[name]: 0}))
            added = of_site.transpose(*weights.dims[:-1]).values
        else:
            raise ValueError(
                f"Expected intercept={intercept!r} to be a site with no axis that "
                f"{name!r} does not have. The sites are {quoted(map(str, posterior))}."
            )
        decoded = self._decode_arrays(weights.values, added)
        kept = {
            dim: posterior.coords[dim]
            for dim in weights.dims[:-1]
            if dim in posterior.coords
        }
        return xarray.Dataset(
            {name: (weights.dims[:-1], values) for name, values in decoded.items()},
            coords=kept,
            attrs=posterior.attrs,
        )


def _axes_with(posterior: Any, columns: tuple[str, ...]) -> dict[str, str]:
    """By site, the axis whose coordinates are the columns."""
    found = {}
    for name, values in posterior.data_vars.items():
        for dim in values.dims:
            if dim in values.coords and tuple(values[dim].values) == columns:
                found[name] = dim
    return found
