"""Guides of the user's own: NumPyro functions with `sample` and `param` statements.

A guide never sees the private rows as a whole. Its globals are drawn on a synthetic
row, of which they must not depend; its latents of single rows are drawn by a program of
one row, which `dpvi` maps over the minibatch like the model. So an encoder's output can
depend on its own row only, and its parameters learn from clipped per-row gradients.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray
from numpyro.infer.autoguide import AutoGuide

from numpyro_vips.errors import UnsafeModelError, quoted
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.program_constants import refuse_program_constants
from numpyro_vips.jax_tools.random_keys import as_threefry, threefry_key
from numpyro_vips.model.graph import (
    ModelGraph,
    check_params,
    initial_values,
    with_captured_constants,
)
from numpyro_vips.model.log_density import site_log_density
from numpyro_vips.model.references.captured import captured_arrays
from numpyro_vips.model.run import run_model
from numpyro_vips.model.synthetic.synthetic_rows import synthetic_row
from numpyro_vips.model.trace import Trace, TracedSite


class GuideDraw(NamedTuple):
    """Draws of some latents by a guide, with NumPyro's messages of their sites."""

    values: dict[str, Float[Array, "..."]]
    messages: dict[str, Mapping[str, Any]]

    def log_density(self, name: str) -> Any:
        """log q of a site; zero where the guide holds it at a point."""
        message = self.messages[name]
        if message["type"] != "sample":
            return 0.0
        return site_log_density(message)


class UserGuide:
    """A guide that has been checked against its model.

    Attributes:
      globals: Names of the globals that it draws, those of the model.
      locals: Names of the latents of single rows that it draws.
      constraints: The constraint of each of its parameters.
      captured: Arrays that it holds itself; they are treated as public.
    """

    def __init__(self, guide: Any, graph: ModelGraph) -> None:
        """Traces the guide abstractly; no private value is read.

        Raises:
          TypeError: `guide` is no function of the model's arguments or of none.
          UnsafeModelError: Its latents are not the model's, or a global depends on
            rows.
        """
        self._graph = graph
        self._marked = private(_with_arguments(guide, graph), unit=graph.unit)
        self._row = synthetic_row(graph)
        arguments = graph.arguments
        try:
            captured = captured_arrays(guide, arguments.num_rows)
            one, two, three = (Trace(self._marked, arguments, n) for n in (1, 2, 3))
            for trace in (one, two, three):
                refuse_program_constants(trace.closed, arguments)
            self.captured = with_captured_constants(captured, guide, one, arguments)
            check_params(self._marked, arguments, two, three)
        except UnsafeModelError as error:
            raise UnsafeModelError(f"In the guide: {error}") from None
        self.constraints = {
            name: param.constraint for name, param in one.params.items()
        }
        drawn = self._checked_sites(one.sites)
        model_sites = graph.sites
        self.globals = [n for n in drawn if model_sites[n].row_axis is None]
        self.locals = [n for n in drawn if model_sites[n].row_axis is not None]
        self._check_globals()
        if not three.picks_rows_only(set(self.locals)):
            raise UnsafeModelError(
                f"The guide uses the index of the plate {graph.unit!r} for something "
                "else than picking rows of its arguments. A parameter for every row "
                "would release the rows: write an amortised guide, a function of the "
                "row with parameters that all rows share."
            )

    def _checked_sites(self, sites: Mapping[str, TracedSite]) -> list[str]:
        """The model's latents that the guide draws; refuses all else."""
        latents = {s.name: s for s in self._graph.sites.values() if s.is_latent}
        drawn = []
        for name, mine in sites.items():
            is_point = mine.kind == "deterministic" and name in latents
            if mine.kind != "sample" and not is_point:
                continue
            if name not in latents or mine.is_observed:
                raise UnsafeModelError(
                    f"The guide samples {name!r}, which is no latent of the model. Its "
                    f"latents are {quoted(latents)}."
                )
            site = latents[name]
            if site.is_discrete:
                raise UnsafeModelError(
                    f"The guide samples the discrete latent {name!r}. Leave it out: "
                    "discrete latents of a row are summed out exactly."
                )
            if not is_point and not mine.is_reparametrised:
                kind = mine.distribution
                assert kind is not None
                raise UnsafeModelError(
                    f"The guide's distribution of {name!r}, {kind.__name__}, has no "
                    "reparametrised draws, so gradients cannot pass through them. Use "
                    "another one, such as a transformed Normal."
                )
            is_local = any(plate == self._graph.unit for plate, _ in mine.plates)
            if not is_point and is_local != (site.row_axis is not None):
                inside, outside = ("guide", "model") if is_local else ("model", "guide")
                raise UnsafeModelError(
                    f"{name!r} stands under the plate {self._graph.unit!r} in the "
                    f"{inside} and outside it in the {outside}."
                )
            if mine.shape != site.shape:
                raise UnsafeModelError(
                    f"{name!r} has the shape {site.shape} in the model, for a single "
                    f"row, and {mine.shape} in the guide."
                )
            drawn.append(name)
        missing = [
            name
            for name, site in latents.items()
            if name not in drawn and not (site.is_discrete and site.role == "local")
        ]
        if missing:
            raise UnsafeModelError(
                f"The guide does not sample {quoted(missing)}. Give every continuous "
                "latent of the model a numpyro.sample statement of the same name."
            )
        return drawn

    def _check_globals(self) -> None:
        """Refuses a global whose draw depends on rows or on how many there are."""
        for name in self.globals:
            two, three = (
                initial_values(self._marked, self._graph.arguments, (name,), count)
                for count in (2, 3)
            )
            argument = two.argument or three.argument
            if argument is not None:
                raise UnsafeModelError(
                    f"The guide's distribution of {name!r}, which all rows share, "
                    f"depends on the private argument {argument!r}: its parameters "
                    "would reveal the data. Use numpyro.param instead."
                )
            if str(two.program) != str(three.program):
                raise UnsafeModelError(
                    f"The guide's distribution of {name!r}, which all rows share, "
                    "depends on latents of single rows or on the number of rows."
                )

    def initial_params(self, rng_key: PRNGKeyArray) -> dict[str, Any]:
        """The parameters as the guide itself initialises them."""
        messages = self._run(self._row, {}, None, rng_key)
        return {name: messages[name]["value"] for name in self.constraints}

    def draw_globals(
        self, params: Mapping[str, Any], rng_key: PRNGKeyArray
    ) -> GuideDraw:
        """Draws every global latent, in its support."""
        messages = self._run(self._row, None, params, rng_key)
        return _chosen(messages, self.globals)

    def draw_locals(
        self,
        row: Mapping[str, Any],
        global_values: Mapping[str, Any],
        params: Mapping[str, Any],
        rng_key: PRNGKeyArray,
    ) -> GuideDraw:
        """Draws the latents of one row given the globals."""
        messages = self._run(row, global_values, params, rng_key)
        return _chosen(messages, self.locals)

    def _run(self, row: Any, latents: Any, params: Any, rng_key: Any) -> Any:
        rows = {name: jnp.asarray(value)[None] for name, value in row.items()}
        messages, _ = run_model(
            self._marked,
            self._graph.arguments,
            rows,
            latents=latents,
            params=params,
            rng_key=rng_key,
        )
        return messages


def drawing(
    guide: UserGuide, points: Mapping[str, Any]
) -> Callable[[PRNGKeyArray], dict[str, Float[Array, "..."]]]:
    """Draws the globals by the user's guide from a key.

    It is a program by itself: a result that held the guide would hold the graph that it
    was checked with, and with that the rows.

    Args:
      guide: The guide.
      points: Its parameters, as it takes them.
    """

    def draw(rng_key: PRNGKeyArray) -> dict[str, Float[Array, "..."]]:
        return guide.draw_globals(points, rng_key).values

    program, shapes = jax.make_jaxpr(draw, return_shape=True)(threefry_key(0))
    structure = jax.tree.structure(shapes)
    return functools.partial(_drawn, jex_core.jaxpr_as_fun(program), structure)


def _drawn(
    program: Any, structure: Any, rng_key: PRNGKeyArray
) -> dict[str, Float[Array, "..."]]:
    # A constant comes as a number of JAX's own, which is no array.
    values = [jnp.asarray(value) for value in program(as_threefry(rng_key))]
    return jax.tree.unflatten(structure, values)


def _chosen(messages: Mapping[str, Any], names: list[str]) -> GuideDraw:
    return GuideDraw(
        {name: messages[name]["value"] for name in names},
        {name: messages[name] for name in names},
    )


def _with_arguments(guide: Any, graph: ModelGraph) -> Callable[..., Any]:
    """The guide as a function of the model's arguments, whether or not it takes any."""
    if isinstance(guide, AutoGuide):
        raise TypeError(
            f"guide= got NumPyro's {type(guide).__name__}, which keeps the data that "
            "it is given. Use guide='mean_field', 'full_rank' or 'low_rank'."
        )
    arguments = graph.arguments
    signature = inspect.signature(guide)
    try:
        signature.bind(*arguments.positional, **arguments.keywords)
    except TypeError:
        try:
            signature.bind()
        except TypeError:
            raise TypeError(
                f"Expected guide={getattr(guide, '__name__', guide)!s} to take the "
                f"model's arguments or none, but its signature is {signature}."
            ) from None
        return lambda *args, **kwargs: guide()
    return guide
