"""Synthetic rows that are valid observations of a model, drawn from the model itself.

Most models take the rows of `synthetic_rows.py`. These are for the others, such as a
binomial count with a column of totals: rows to which NumPyro gives no finite log
density are left out, and where too few are left, what the model observes is drawn from
its own distributions, at latents and other arguments that nothing private enters.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to

from numpyro_vips.errors import quoted
from numpyro_vips.jax_tools.double_precision import trace_in_double
from numpyro_vips.jax_tools.index_ranges import indices_in_range
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized
from numpyro_vips.jax_tools.random_keys import FAITHFUL
from numpyro_vips.model.distributions import unmasked_in_support, unwrapped
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.handler_stack import unvalidated
from numpyro_vips.model.log_density import site_log_density
from numpyro_vips.model.synthetic.prior_centre import at_initial_params
from numpyro_vips.model.synthetic.synthetic_rows import directions, synthetic_latents

# Of as many rows the valid ones are kept, and as often others are tried: first with
# observations that are no draws, since a program that draws takes long to compile.
_NUM_TRIED = 128
_ATTEMPTS = [False] * 6 + [True] * 24
# Public guesses at what integers are: labels, numbers that may be divided by, counts.
_INTEGERS = ((0, 2), (1, 6), (0, 10))
_INDICES = "array indices"


class NoValidRows(Exception):
    """The model gives a finite log density to none of the rows that were tried.

    Its text names the sites to which that is due.
    """


class SyntheticData(NamedTuple):
    """Rows, and values of all latents at which the rows are valid."""

    rows: dict[str, np.ndarray]
    latents: dict[str, np.ndarray]


def rows_from_model(graph: ModelGraph, count: int, seed: int) -> SyntheticData:
    """Draws rows from the model, and latents with which they are valid.

    Latents are drawn from their supports, of moderate size whatever the prior. For the
    arguments several public ranges are tried, then the same with observations drawn
    given the latents and the other arguments. Of the data only shapes and types are
    used.

    Args:
      graph: The model.
      count: Number of rows.
      seed: Other seeds give other rows.

    Returns:
      Valid rows: every log density under the unit plate is finite, observations lie
      in the support, and indices in their arrays. They repeat if too few are found.

    Raises:
      NoValidRows: None was found.
    """
    graph = at_initial_params(graph)
    draw, judge = _Draw(graph, seed), None
    most, found = 0, None
    possible: dict[str, bool] = {}
    candidates = _candidates(graph, seed)
    for attempt, is_drawn in enumerate(_ATTEMPTS):
        rows = next(candidates)
        latents = synthetic_latents(graph, _NUM_TRIED, seed + attempt)
        if is_drawn:
            rows = draw(rows, latents)
        if judge is None:
            judge = trace_in_double(per_row(graph, _validity), rows, latents)
        verdicts = judge(rows, latents)
        valid = np.flatnonzero(np.all(list(verdicts.values()), axis=0))
        for name, verdict in verdicts.items():
            possible[name] = possible.get(name, False) or bool(np.any(verdict))
        if len(valid) > most:
            most, kept = len(valid), np.resize(valid, count)
            found = SyntheticData(
                {name: value[kept] for name, value in rows.items()},
                _latents_of(graph, latents, kept),
            )
        if most >= min(count, _NUM_TRIED):
            break
    if found is None:
        raise NoValidRows(_explanation(graph, possible))
    return found


# --- candidates -----------------------------------------------------------------------


def _candidates(graph: ModelGraph, seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Guesses at all arguments: first all of one kind, then of mixed kinds."""
    rng = np.random.default_rng(seed)
    shapes = graph.arguments.row_shapes()
    for attempt in itertools.count():
        rows = {}
        for name, like in shapes.items():
            is_float = np.issubdtype(like.dtype, np.floating)
            kind = attempt
            if attempt >= len(_INTEGERS):
                kind = int(rng.integers(len(_INTEGERS) + 2 * is_float))
            elif is_float:
                kind = len(_INTEGERS)
            shape = (_NUM_TRIED, *like.shape)
            if kind < len(_INTEGERS):
                drawn = rng.integers(*_INTEGERS[kind], shape)
            elif kind == len(_INTEGERS) and like.shape:
                drawn = directions(rng, shape)
            else:
                drawn = rng.uniform(0.1, 0.9, shape)
            rows[name] = drawn.astype(like.dtype)
        yield rows


class _Draw:
    """Replaces those entries of rows that the model observes by draws from it."""

    def __init__(self, graph: ModelGraph, seed: int):
        self.graph = graph
        self.rng = np.random.default_rng(seed)
        self.program: Any = None
        self.copies: dict[str, Any] = {}

    def __call__(
        self, rows: Mapping[str, np.ndarray], latents: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Rows whose observed entries are drawn given the others and the latents.

        Args:
          rows: Synthetic rows, `_NUM_TRIED` of them; every call takes the same shapes.
          latents: Values of the latents.
        """
        # Words of NumPy's: to split a key is one more program to compile.
        keys = {}
        for site in self.graph.latents("observed"):
            words = self.rng.integers(0, 2**32, (_NUM_TRIED, 2), np.uint32)
            keys[site.name] = jax.random.wrap_key_data(
                jnp.asarray(words), impl=FAITHFUL
            )
        if self.program is None:
            function = per_row(self.graph, _observations)
            self.program = trace_in_double(function, rows, latents, keys)

            def drawn_values(rows: Any) -> dict[str, Any]:
                return {
                    site: found["value"]
                    for site, found in self.program(rows, latents, keys).items()
                    if np.shape(found.get("drawn")) == np.shape(found["value"])
                    and "drawn" in found
                }

            tried = observed_in_random_rows(self.graph, drawn_values)
            self.copies = copied_entries(tried)
        rows = {name: np.array(value) for name, value in rows.items()}
        observations = self.program(rows, latents, keys)
        for site, places in self.copies.items():
            drawn = _flat(observations[site]["drawn"])
            for name, here, there in places:
                flat = _flat(rows[name])  # A view.
                with np.errstate(all="ignore"):
                    flat[:, there] = drawn[:, here].astype(flat.dtype)
        return rows


class TriedRows(NamedTuple):
    """Rows of random numbers, and the value of every observed site in each of them."""

    rows: dict[str, np.ndarray]
    observed: Mapping[str, Any]


def copied_entries(tried: TriedRows) -> dict[str, Any]:
    """Which entries of an argument a site observes just as they are.

    However the model reshapes, slices or casts them: over many rows of random numbers
    two entries are equal in every row only if one is a copy.

    Args:
      tried: From `observed_in_random_rows`.

    Returns:
      By site, for each argument that it copies: the name, and the places of the entries
      in the site's value and in the argument, both flat.
    """
    entries = {
        column.tobytes(): (name, place)
        for name, value in tried.rows.items()
        for place, column in enumerate(columns_of(value))
    }
    copies: dict[str, Any] = {}
    for site, value in tried.observed.items():
        by_name: dict[str, Any] = {}
        for here, column in enumerate(columns_of(value)):
            if column.tobytes() in entries:
                name, there = entries[column.tobytes()]
                by_name.setdefault(name, []).append((here, there))
        if by_name:
            copies[site] = [
                (name, *np.transpose(places)) for name, places in by_name.items()
            ]
    return copies


def observed_in_random_rows(
    graph: ModelGraph,
    observations: Callable[[Any], Mapping[str, Any]] | None = None,
) -> TriedRows:
    """What a model observes in rows of random numbers.

    Args:
      graph: The model.
      observations: The value of every observed site, by site, for given rows.
    """
    if observations is None:
        latents = synthetic_latents(graph, _NUM_TRIED, 0)
        program = jit_unoptimized(per_row(graph, _observed_values))
        observations = lambda rows: program(rows, latents)  # noqa: E731
    rng = np.random.default_rng(0)
    rows = {}
    for name, like in graph.arguments.row_shapes().items():
        drawn = rng.uniform(0.1, 0.9, (_NUM_TRIED, *like.shape))
        if not np.issubdtype(like.dtype, np.floating):
            drawn = np.floor(drawn * 20 if like.dtype != bool else drawn * 2)
        rows[name] = drawn.astype(like.dtype)
    return TriedRows(rows, observations(rows))


def _observed_values(graph: ModelGraph, rows: Any, latents: Any) -> dict[str, Any]:
    messages = graph.run(rows, latents)
    return {
        site.name: jnp.asarray(messages[site.name]["value"])
        for site in graph.latents("observed")
    }


def _flat(rows: np.ndarray) -> np.ndarray:
    return rows.reshape(len(rows), -1)


def columns_of(rows: np.ndarray) -> np.ndarray:
    """The entries of an array in all rows: (entries, rows), in one common type."""
    return np.ascontiguousarray(_flat(np.asarray(rows)).T.astype(np.float64))


# --- what the model says of a row -----------------------------------------------------


def per_row(graph: ModelGraph, function: Any) -> Any:
    """Maps a function of (graph, one row, its latents, ...) over rows."""
    axes = {site.name: site.row_axis for site in graph.sites.values()}

    def of_row(row: Any, latents: Any, *more: Any) -> Any:
        rows = {name: value[None] for name, value in row.items()}
        mine = {
            name: value if axis is None else jnp.expand_dims(value, axis)
            for name, value in latents.items()
            for axis in (axes[name],)
        }
        with unvalidated():
            return function(graph, rows, mine, *more)

    def of_rows(rows: Any, latents: Any, *more: Any) -> Any:
        in_axes = (0, {name: axes[name] for name in latents}, *(0 for _ in more))
        return jax.vmap(of_row, in_axes=in_axes)(rows, latents, *more)

    return of_rows


def _latents_of(
    graph: ModelGraph, latents: Mapping[str, np.ndarray], kept: np.ndarray
) -> dict[str, np.ndarray]:
    found = {}
    for name, value in latents.items():
        axis = graph.sites[name].row_axis
        found[name] = value if axis is None else np.take(value, kept, axis)
    return found


def _observations(
    graph: ModelGraph, rows: Any, latents: Any, keys: Any
) -> dict[str, dict[str, Any]]:
    """The value of every observed site, and a draw from its distribution."""
    found = {}
    messages = graph.run(rows, latents)
    for name, key in keys.items():
        message = messages[name]
        found[name] = {"value": jnp.asarray(message["value"])}
        try:
            drawn = _drawn(message["fn"], key)
        except (NotImplementedError, TypeError, ValueError):
            continue  # Not everything with a density can be drawn from.
        found[name]["drawn"] = drawn
    return found


def _drawn(fn: Any, key: jax.Array) -> jax.Array:
    """A value in the support of a continuous distribution, a draw of a discrete one.

    The first like a latent's, of moderate size however heavy the tails are. The
    programs that draw positive numbers take long to compile, too.
    """
    if not fn.support.is_discrete:
        try:
            transform = biject_to(fn.support)
        except NotImplementedError:
            return fn.sample(key)
        free = transform.inverse_shape(fn.shape())
        return transform(jax.random.uniform(key, free, minval=-1.0, maxval=1.0))
    plain, _ = unwrapped(fn)
    if getattr(plain, "total_count_max", 0) is not None:
        return fn.sample(key)
    # NumPyro asks for a bound of the total where it cannot look at it.
    plain.total_count_max = max(high for _, high in _INTEGERS)
    try:
        return fn.sample(key)
    finally:
        plain.total_count_max = None


def _validity(graph: ModelGraph, rows: Any, latents: Any) -> dict[str, jax.Array]:
    """Whether a row is valid at every site under the unit plate."""
    found = {}
    messages = graph.run(rows, latents)
    for site in graph.sites.values():
        if site.row_axis is None:
            continue
        message = messages[site.name]
        valid = jnp.isfinite(site_log_density(message))
        if not site.is_latent:
            valid &= jnp.all(unmasked_in_support(message["fn"], message["value"]))
        found[site.name] = valid
    names = graph.program_inputs[1]
    flat = jax.tree.leaves((rows, {name: latents[name] for name in names}))
    typed = [
        jnp.asarray(value, like.dtype)
        for value, like in zip(flat, graph.program.in_avals, strict=True)
    ]
    found[_INDICES] = indices_in_range(graph.program, typed)
    return found


# --- what could not be satisfied ------------------------------------------------------


def _explanation(graph: ModelGraph, possible: Mapping[str, bool]) -> str:
    never = [name for name, is_possible in possible.items() if not is_possible]
    named = [name for name in (never or possible) if name != _INDICES]
    if not named:
        return "none of the rows that were tried has its array indices in range."
    how = "is not finite" if never else "is finite at times, but not together,"
    described = ", ".join(_described(graph, name) for name in named)
    return (
        f"the log density of {described} {how} in synthetic rows, whose integers are "
        f"below {max(high for _, high in _INTEGERS)} and whose real numbers are in "
        "(-1, 1)."
    )


def _described(graph: ModelGraph, name: str) -> str:
    """A site with its distribution, support and the arguments it depends on."""
    needed, _ = graph.read_for(lambda other, _: other == name)
    site = graph.sites[name]
    details = [site.distributed.kind.__name__]
    if site.support is not None:
        kind = site.support
        details.append(f"support {type(kind).__name__.strip('_')}")
    if needed:
        details.append(f"arguments {quoted(sorted(needed))}")
    return f"{name!r} ({'; '.join(details)})"
