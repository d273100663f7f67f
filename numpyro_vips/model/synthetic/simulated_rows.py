"""Rows drawn from the model at given globals.

The model says all that a row holds where every entry of every private argument is an
observation, as it is of plain samples, mixtures and factor models. A regression says
nothing of its covariates, which the caller gives. Nothing here reads a row: of the
private arguments only shapes and types are used.
"""

import copy
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64, Int64, Shaped
from numpyro.distributions import Distribution
from numpyro.primitives import Messenger

from numpyro_vips.jax_tools.bounded_loops import with_bounded_loops
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.distributions import unwrapped
from numpyro_vips.model.graph import ModelGraph, Site
from numpyro_vips.model.synthetic.drawn_observations import Copied, are_drawn
from numpyro_vips.model.synthetic.linear_observations import (
    SolvedEntries,
    linear_observations,
)
from numpyro_vips.model.synthetic.prior_predictive import (
    copied_entries,
    observed_in_random_rows,
    per_row,
)

# Sites of one row beyond which it is not worth the compilation.
_MOST_SITES = 32
# Of a loop in a sampler. Samplers of distributions accept every second draw or more, so
# that none needs as many: the end is for those that accept none, whatever a row holds.
_MOST_TURNS = 256
# What may go wrong where a distribution has a density and no sampler.
_NO_SAMPLER = NotImplementedError, TypeError, ValueError


def seed_of(released: Mapping[str, np.ndarray]) -> int:
    """A seed of its own for every release, as its rows and its noise are."""
    parts = (np.ascontiguousarray(released[name]) for name in sorted(released))
    return zlib.crc32(b"".join(part.tobytes() for part in parts))


class RowSimulator:
    """Draws whole rows of a model; see the module.

    Args:
      graph: The model.
      copies: By observed site, the entries of arguments that it observes; see
        `copied_entries`.
      linear: Likewise, those that follow from what it observes; see
        `linear_observations`.

    Attributes:
      covariates: By argument, the flat places of the entries that no site observes.
      draws_observations: Whether rows with these and with what is drawn are like rows
        of the model; see `drawn_observations`.
    """

    def __init__(
        self,
        graph: ModelGraph,
        copies: Mapping[str, Any],
        linear: Mapping[str, Sequence[SolvedEntries]],
    ):
        self._arguments = graph.arguments
        self.covariates = _covariates(graph, copies, linear)
        self.draws_observations = are_drawn(graph, copies, linear)

        sites = [s for s in graph.sites.values() if s.row_axis is not None]
        observed = {name for of in copies.values() for name, *_ in of}
        observed |= {solved.argument for of in linear.values() for solved in of}
        read, _ = graph.read_for(lambda _, output: output == "parameters")
        # Runs of the model, and the sites that are drawn in each: if no distribution
        # depends on what is observed, one run is enough.
        runs = [[site] for site in sites] if observed & read else [sites]

        def draw(
            graph: ModelGraph, rows: Any, latents: Any, key: jax.Array
        ) -> dict[str, jax.Array]:
            """A row whose observed entries are drawn, its own latents first."""
            # In the model's order, each site given those before it.
            rows, latents = dict(rows), dict(latents)
            for site in sites:
                if site.is_latent and len(runs) > 1:
                    latents[site.name] = jnp.zeros(site.shape, site.dtype)
            for drawn_now in runs:
                drawing = _Drawing(drawn_now, sites, key)
                for site in drawn_now:
                    latents.pop(site.name, None)
                graph.run(rows, latents, chosen=drawing)
                for name, value in drawing.drawn.items():
                    if graph.sites[name].is_latent:
                        latents[name] = value
                    rows = _with_observed(
                        rows, value, copies.get(name, ()), linear.get(name, ())
                    )
            return {name: row[0] for name, row in rows.items()}

        self._traceable = per_row(graph, draw)
        self._draw = jit_unoptimized(self._traceable)
        self._draw_at = jit_unoptimized(jax.vmap(self.row_at))

    @classmethod
    def of(cls, graph: ModelGraph) -> Self | None:
        """The simulator; None where rows cannot be drawn."""
        sites = [s for s in graph.sites.values() if s.row_axis is not None]
        if len(sites) > _MOST_SITES or graph.params:
            return None
        try:
            tried = observed_in_random_rows(graph)
            copies = copied_entries(tried)
            linear = linear_observations(graph, tried, copies)
        except _NO_SAMPLER:
            return None
        simulator = cls(graph, copies, linear)
        zeros = {
            site.name: np.zeros(site.shape, site.dtype)
            for site in graph.latents("global")
        }
        try:
            jax.eval_shape(
                lambda latents: simulator._traceable(
                    simulator._blank_rows(2),
                    latents,
                    jax.random.split(threefry_key(0), 2),
                ),
                zeros,
            )
        except _NO_SAMPLER:
            return None
        return simulator

    @property
    def num_covariates(self) -> int:
        """The number of entries of a row that no site observes."""
        return sum(len(places) for places in self.covariates.values())

    def rows(
        self,
        latents: Mapping[str, Any],
        count: int,
        seed: int,
        covariates: Float64[np.ndarray, "count covariates"] | None = None,
    ) -> dict[str, Any]:
        """So many rows at these globals, by argument; the same for the same seed.

        They are in the form in which a fit takes rows, see `ModelArguments.as_taken`.

        Args:
          latents: By name, a value of each global.
          count: How many rows.
          seed: Other seeds give other rows.
          covariates: Their covariates, in the order of the attribute, rounded where the
            argument holds whole numbers; zero if left out.
        """
        keys = _quick_keys(threefry_key(seed), count)
        drawn = self._draw(self._blank_rows(count, covariates), latents, keys)
        return self._arguments.as_taken(drawn)

    def row_at(
        self, row: Mapping[str, Any], latents: Mapping[str, Any], key: jax.Array
    ) -> dict[str, jax.Array]:
        """One row with what is observed drawn anew; for programs that are compiled.

        Args:
          row: By argument, of which the covariates stay as they are.
          latents: By name, a value of each global.
          key: Other keys give other rows.
        """
        one = {name: value[None] for name, value in row.items()}
        drawn = self._traceable(one, latents, key[None])
        return {name: value[0] for name, value in drawn.items()}

    def rows_at(
        self, rows: Mapping[str, np.ndarray], latents: Mapping[str, Any]
    ) -> dict[str, jax.Array]:
        """The rows with what is observed drawn anew, each at globals of its own.

        They are the same in every call.

        Args:
          rows: By argument, of which the covariates stay as they are.
          latents: By name, a value of each global for each row.
        """
        keys = _quick_keys(threefry_key(0), len(next(iter(rows.values()))))
        return self._draw_at(dict(rows), dict(latents), keys)

    def _blank_rows(
        self,
        count: int,
        covariates: Float64[np.ndarray, "count covariates"] | None = None,
    ) -> dict[str, np.ndarray]:
        """Rows that hold their covariates; all else is zero."""
        blank = {
            name: np.zeros((count, *like.shape), like.dtype)
            for name, like in self._arguments.row_shapes().items()
        }
        start = 0
        for name, places in self.covariates.items():
            if covariates is not None:
                given = covariates[:, start : start + len(places)]
                blank[name].reshape(count, -1)[:, places] = _nearest(
                    given, blank[name].dtype
                )
            start += len(places)
        return blank


def _nearest(
    numbers: Float64[np.ndarray, "count covariates"], dtype: np.dtype
) -> Shaped[np.ndarray, "count covariates"]:
    """The numbers of a dtype that are nearest to these."""
    if dtype.kind == "b":
        return np.rint(numbers) > 0
    if dtype.kind in "iu":
        # A small negative number would become the largest one of an unsigned dtype.
        limits = np.iinfo(dtype)
        high = np.nextafter(float(limits.max) + 1.0, 0.0)
        numbers = np.clip(np.rint(numbers), float(limits.min), high)
    return numbers.astype(dtype)


# JAX's own takes four times as long to compile. It cannot be called while JAX traces.
_quick_keys = jit_unoptimized(jax.random.split, static_argnums=1)


class _Drawing(Messenger):
    """Draws sites of a row as the model runs, each given the latents before it.

    Attributes:
      drawn: What was drawn, by site.
    """

    def __init__(
        self, wanted: Sequence[Site], sites: Sequence[Site], key: jax.Array
    ) -> None:
        """Draws nothing yet.

        Args:
          wanted: The sites that are drawn.
          sites: All sites of a row, by whose number they have keys of their own.
          key: What these are made of.
        """
        self._wanted = {site.name: site for site in wanted}
        self._number = {site.name: number for number, site in enumerate(sites)}
        self._key = key
        self.drawn: dict[str, jax.Array] = {}
        super().__init__()

    def process_message(self, msg: Any) -> None:
        """Draws a site, and gives a latent its value."""
        site = self._wanted.get(msg["name"]) if msg["type"] == "sample" else None
        if site is None:
            return
        fn = _as_wide(with_possible_chances(msg["fn"]), site.shape)
        sample = with_bounded_loops(fn.sample, _MOST_TURNS)
        value = sample(jax.random.fold_in(self._key, self._number[site.name]))
        self.drawn[site.name] = value
        if site.is_latent:
            msg["value"] = value


def _with_observed(
    rows: Mapping[str, Any],
    value: jax.Array,
    copies: Sequence[Copied],
    linear: Sequence[SolvedEntries],
) -> dict[str, Any]:
    """A row of which a site observes this value.

    Args:
      rows: By argument, with a leading axis of one row.
      value: What was drawn.
      copies: The entries that the site observes as they are.
      linear: Those that follow from what it observes.
    """
    rows = dict(rows)
    for name, here, there in copies:
        drawn = value.reshape(-1)[here].astype(rows[name].dtype)
        flat = rows[name].reshape(-1).at[there].set(drawn)
        rows[name] = flat.reshape(rows[name].shape)
    for solved in linear:
        name = solved.argument
        rows[name] = _with_solved(rows[name], value, solved)
    return rows


def with_possible_chances(fn: Any) -> Any:
    """The distribution with what has to lie between two numbers, as a chance, moved
    there.

    NumPyro's sampler of Binomial counts would take all turns that it may at a negative
    chance, and everybody would wait for this row.
    """
    found = copy.copy(fn)
    attributes: dict[str, Any] = vars(fn)
    for name, value in attributes.items():
        if isinstance(value, Distribution):
            moved: Any = with_possible_chances(value)
        elif isinstance(value, list | tuple) and all(
            isinstance(part, Distribution) for part in value
        ):
            moved = type(value)(map(with_possible_chances, value))
        elif (ends := _ends(fn.arg_constraints.get(name))) is not None and (
            jnp.issubdtype(jnp.result_type(value), jnp.floating)
        ):
            moved = jnp.clip(attributes[name], *ends)
        else:
            continue
        vars(found)[name] = moved
    return found


def _ends(constraint: Any) -> tuple[float, float] | None:
    """Between which numbers a parameter has to lie; None unless there are two."""
    low = getattr(constraint, "lower_bound", None)
    high = getattr(constraint, "upper_bound", None)
    if isinstance(low, int | float) and isinstance(high, int | float):
        return float(low), float(high)
    return None


def _as_wide(fn: Any, shape: tuple[int, ...]) -> Any:
    """The distribution of a value of this shape, of which each number is a draw.

    A density broadcasts where an axis of an event has length 1, as that of
    `Exponential(rate[:, None]).to_event(1)` does; a sampler draws one number for all.

    Raises:
      NotImplementedError: Its numbers are not drawn one by one.
    """
    if fn.shape() == shape:
        return fn
    plain, _ = unwrapped(fn)
    if plain.event_dim:
        raise NotImplementedError("A vector is observed in the place of several.")
    return plain.expand(shape)


def _with_solved(row: jax.Array, value: jax.Array, solved: SolvedEntries) -> jax.Array:
    """An argument of which a site observes this value."""
    drawn = jnp.asarray(value.reshape(-1)[solved.here], float)
    drawn = (drawn - jnp.asarray(solved.intercept, float)) / jnp.asarray(
        solved.slope, float
    )
    if not jnp.issubdtype(row.dtype, jnp.floating):
        drawn = jnp.rint(drawn)
    flat = row.reshape(-1).at[solved.zeros].set(0)
    flat = flat.at[solved.there].set(drawn.astype(row.dtype))
    return flat.reshape(row.shape)


def _covariates(
    graph: ModelGraph,
    copies: Mapping[str, Any],
    linear: Mapping[str, Sequence[SolvedEntries]],
) -> dict[str, Int64[np.ndarray, " _entries"]]:
    """Places of the covariates that the model looks at; see `RowSimulator`."""
    found = {}
    looked_at, _ = graph.read_for()
    for name, like in graph.arguments.row_shapes().items():
        if name not in looked_at:
            continue
        observed = np.zeros(int(np.prod(like.shape, dtype=int)), bool)
        for copied in copies.values():
            for argument, _, there in copied:
                if argument == name:
                    observed[np.atleast_1d(there)] = True
        for solved in (one for of_site in linear.values() for one in of_site):
            if solved.argument == name:
                observed[solved.there] = observed[solved.zeros] = True
        if not observed.all():
            found[name] = np.flatnonzero(~observed)
    return found
