"""Synthetic rows: what a model may be tried on before any budget is spent."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from numpyro_vips.jax_tools.double_precision import evaluate_in_double
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.distributions import has_traced_bounds
from numpyro_vips.model.graph import ModelGraph, Site
from numpyro_vips.model.handler_stack import alone_with_handlers
from numpyro_vips.schema.columns import SyntheticPlaces


def synthetic_rows(
    arguments: ModelArguments, count: int, seed: int, *, dtype: np.dtype | None = None
) -> dict[str, np.ndarray]:
    """Rows of the right shapes that have nothing to do with the private ones.

    Floats are drawn from (0.1, 0.9), which lies in the support of most observations;
    integers and booleans from {0, 1}. Floats have the private rows' own precision
    unless `dtype` is given.
    """
    rng = np.random.default_rng(seed)
    rows = {}
    for name, row in arguments.row_shapes().items():
        shape = (count, *row.shape)
        if np.issubdtype(row.dtype, np.floating):
            rows[name] = rng.uniform(0.1, 0.9, shape).astype(dtype or row.dtype)
        else:
            rows[name] = rng.integers(0, 2, shape).astype(row.dtype)
    return rows


def synthetic_row(graph: ModelGraph) -> dict[str, jax.Array]:
    """Stands for a row where only shapes and dtypes matter."""
    rows = synthetic_rows(graph.arguments, 1, 0)
    shapes = graph.arguments.row_shapes()
    return {
        name: jax.device_put(np.asarray(values[0], shapes[name].dtype))
        for name, values in rows.items()
    }


def with_synthetic_rows(
    arguments: ModelArguments, count: int, seed: int
) -> ModelArguments:
    """A copy of a call's arguments with synthetic rows in place of the private ones.

    Args:
      arguments: The call's.
      count: How many rows it has afterwards.
      seed: Of the rows, see `synthetic_rows`.
    """
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(np.float64))
    rows = synthetic_rows(arguments, count, seed, dtype=dtype)
    return dataclasses.replace(arguments, private=rows, num_rows=count)


def rows_of_unit_size(
    arguments: ModelArguments, count: int
) -> Iterator[dict[str, np.ndarray]]:
    """Guesses at what a row looks like whose features were scaled as advised.

    Arrays of floats are directions of L2 norm 1; single floats and integers are as in
    `synthetic_rows`. Observations may have to be zeros and ones, so every float is
    tried both ways; the caller takes the first guess whose rows are valid.
    """
    rng = np.random.default_rng(0)
    rows = synthetic_rows(arguments, count, seed=0)
    floats = [name for name, row in rows.items() if row.dtype.kind == "f"]
    for name in floats:
        if rows[name].ndim > 1:
            drawn = directions(rng, rows[name].shape)
            rows[name] = drawn.astype(rows[name].dtype)
    # The last arguments are the likeliest observations.
    for binary in itertools.product((False, True), repeat=min(len(floats), 6)):
        guess = dict(rows)
        for name, is_binary in zip(reversed(floats), reversed(binary), strict=False):
            if is_binary:
                values = rng.integers(0, 2, rows[name].shape)
                guess[name] = values.astype(rows[name].dtype)
        yield guess


def rows_with_codes(
    arguments: ModelArguments, count: int, sizes: Sequence[int]
) -> dict[str, np.ndarray]:
    """Rows some of whose integers are any numbers of entries of arrays.

    Some of them are valid, be their observations counts, labels or real numbers, and
    whichever of their integers are codes of groups.

    Args:
      arguments: Whose rows.
      count: About how many rows.
      sizes: Of the axes that integers may index.
    """
    rng = np.random.default_rng(5)
    guesses = [
        *itertools.islice(rows_of_unit_size(arguments, count // _GUESSES), _GUESSES)
    ]
    rows = {}
    for name, row in arguments.row_shapes().items():
        rows[name] = np.concatenate([guess[name] for guess in guesses]).astype(
            row.dtype
        )
        if sizes and np.issubdtype(row.dtype, np.integer):
            shape = rows[name].shape
            of_row = rng.choice(sizes, (len(rows[name]), *(1,) * (len(shape) - 1)))
            codes = rng.integers(0, np.broadcast_to(of_row, shape)).astype(row.dtype)
            is_code = rng.random(of_row.shape) < 0.7
            rows[name] = np.where(is_code, codes, rows[name])
    return rows


# How many guesses there are at what observations look like.
_GUESSES = 4


def with_large_floats(rows: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows of which some have larger floats, from a tenth to a hundred times as large.

    Over a short way log(10 + x) and x are nearly the same function.
    """
    rng = np.random.default_rng(6)
    found = dict(rows)
    for name, values in rows.items():
        if values.dtype.kind == "f":
            shape = (len(values), *(1,) * (values.ndim - 1))
            is_large = rng.random(shape) < 0.5
            factor = np.where(is_large, 10.0 ** rng.uniform(-1.0, 2.0, shape), 1.0)
            found[name] = (factor * values).astype(values.dtype)
    return found


def rows_of_encodings(
    arguments: ModelArguments, count: int, places: SyntheticPlaces
) -> dict[str, np.ndarray]:
    """Rows of the arguments that a schema encodes, such as it may return.

    Args:
      arguments: The model's.
      count: How many.
      places: What they are drawn from; see `Column.synthetic`.
    """
    rng = np.random.default_rng(2)
    shapes = arguments.row_shapes()
    return {
        name: encoding.synthetic_rows(rng, count, places=places).astype(
            shapes[name].dtype
        )
        for name, encoding in arguments.encodings.items()
    }


def directions(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Rows of L2 norm 1, in random directions."""
    drawn = rng.normal(size=shape)
    norm = np.sqrt((drawn**2).sum(tuple(range(1, drawn.ndim)), keepdims=True))
    return drawn / norm


def synthetic_latents(
    graph: ModelGraph, count: int, seed: int
) -> dict[str, np.ndarray]:
    """A value in the support of every latent, for `count` rows."""
    rng = np.random.default_rng(seed)
    sites = {site.name: site for site in graph.sites.values() if site.is_latent}
    supports = {name: site.support for name, site in sites.items()}
    if any(map(has_traced_bounds, supports.values())):
        with alone_with_handlers(), _InSupport(sites, rng):
            messages = graph.run(synthetic_rows(graph.arguments, count, seed), {})
        return {name: np.asarray(messages[name]["value"]) for name in sites}
    latents = {}
    for name, site in sites.items():
        shape = [count if i == site.row_axis else n for i, n in enumerate(site.shape)]
        latents[name] = _in_support(site, supports[name], tuple(shape), rng)
    return latents


def _in_support(
    site: Site, support: Any, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    """A value of a latent, of this shape."""
    if site.is_discrete:
        # Without known states it is refused; 0 and 1 are then as good as any.
        return rng.integers(0, site.num_states or 2, shape).astype(site.dtype)
    transform = biject_to(support)
    free = rng.uniform(-1.0, 1.0, transform.inverse_shape(shape))
    return evaluate_in_double(transform, free)


class _InSupport(Messenger):
    """Sets every latent of a run to a value in its support, given those before it."""

    def __init__(self, sites: Mapping[str, Site], rng: np.random.Generator):
        self._sites, self._rng = sites, rng
        super().__init__()

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["name"] in self._sites:
            site, fn = self._sites[msg["name"]], msg["fn"]
            msg["value"] = _in_support(site, fn.support, fn.shape(), self._rng)


def rows_of_other_sizes(
    rows: Mapping[str, np.ndarray], encoded: Mapping[str, np.ndarray] | None = None
) -> Iterator[dict[str, np.ndarray]]:
    """Rows like these, but with arguments that are far from unit size.

    One argument at a time, and all counts together, since counts may be out of totals.
    Many of these rows are no valid observations.

    Args:
      rows: Ordinary rows.
      encoded: Rows of those arguments that a schema encodes, in place of other sizes.
    """
    rng = np.random.default_rng(1)
    encoded = encoded or {}
    if encoded:
        rows = {**rows, **encoded}
        yield dict(rows)
    numbers = {
        k: row
        for k, row in rows.items()
        if row.dtype.kind in "fiu" and k not in encoded
    }
    for most in (5, 100):
        # Counts may come as floats.
        counts = {k: rng.integers(0, most, row.shape) for k, row in numbers.items()}
        counts = {k: row.astype(rows[k].dtype) for k, row in counts.items()}
        yield {**rows, **counts}
        yield from ({**rows, name: row} for name, row in counts.items())
    for name, row in numbers.items():
        if row.dtype.kind == "f":
            for other in (1e3 * row, 1e-3 * row, 1e3 * rng.normal(size=row.shape)):
                yield {**rows, name: other.astype(row.dtype)}
