"""The model's program on abstract rows: its sites' parameters as a traced function."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.jaxprs import with_used_inputs
from numpyro_vips.jax_tools.plate_index import picks_rows_only
from numpyro_vips.jax_tools.separate_rows import check_row_program
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.distributions import (
    Distributed,
    check_parameters,
    has_traced_bounds,
    in_support,
    shape_as_written,
    take_apart,
)
from numpyro_vips.model.handler_stack import unvalidated
from numpyro_vips.model.model_errors import log_prob, traced
from numpyro_vips.model.run import run_model
from numpyro_vips.model.sparse_rows import SparseRows


def abstract_rows(arguments: ModelArguments, count: int) -> dict[str, Any]:
    """Rows without values, as the model gets them."""
    return {
        name: jax.ShapeDtypeStruct((count, *row.shape), row.dtype)
        for name, row in arguments.row_shapes().items()
    }


def abstract_taken_row(arguments: ModelArguments) -> dict[str, Any]:
    """A row without values, as the engines get it: with a leading axis of length 1."""
    rows = abstract_rows(arguments, 1)
    for name, width in arguments.widths.items():
        *leading, length = rows[name].shape
        shape = (*leading, width)
        rows[name] = SparseRows(
            indices=jax.ShapeDtypeStruct(shape, np.int32),
            values=jax.ShapeDtypeStruct(shape, rows[name].dtype),
            length=length,
        )
    return rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class TracedSite:
    """What is known of a statement of the model without running it.

    Attributes:
      kind: NumPyro's word for it: "sample", "param" or "deterministic".
      is_observed: Whether a sample has a value of its own.
      plates: Name and axis of the plates that it stands under; the axis is counted
        from the right, event axes left out.
      shape: That of its value, if this is an array.
      distribution: The class of a sample's distribution, wrappers included.
      event_dim: The number of its event axes.
      support: What it has probability on; None of a `numpyro.factor`. Its bounds are
        variables of the trace where they depend on latents, and then mean nothing else.
      parameters_shape: The batch shape of its parameters, before plates expand it.
      is_reparametrised: Whether gradients pass through its draws.
      structure: What it is made of.
      constraint: What a parameter without a prior keeps to; None of others.
    """

    kind: str
    is_observed: bool
    plates: tuple[tuple[str, int], ...]
    shape: tuple[int, ...]
    distribution: type[dist.Distribution] | None = None
    event_dim: int = 0
    support: Any = None
    parameters_shape: tuple[int, ...] = ()
    is_reparametrised: bool = False
    structure: Distributed | None = None
    constraint: Any = None

    @property
    def is_factor(self) -> bool:
        """Whether it is a `numpyro.factor`, under a mask or not."""
        plain = None if self.structure is None else self.structure.kind
        return dist.Unit in (self.distribution, plain)


def _traced_site(msg: Mapping[str, Any], structure: Distributed | None) -> TracedSite:
    """What NumPyro's message says of a statement, without what was traced."""
    site = TracedSite(
        kind=msg["type"],
        is_observed=bool(msg.get("is_observed")),
        plates=tuple((f.name, f.dim) for f in msg.get("cond_indep_stack", ())),
        shape=tuple(getattr(msg["value"], "shape", ())),
    )
    if site.kind == "param":
        constraint = msg["kwargs"].get("constraint", constraints.real)
        return dataclasses.replace(site, constraint=constraint)
    if site.kind != "sample":
        return site
    fn = msg["fn"]
    return dataclasses.replace(
        site,
        distribution=type(fn),
        event_dim=fn.event_dim,
        support=None if isinstance(fn, dist.Unit) else fn.support,
        parameters_shape=shape_as_written(fn),
        is_reparametrised=bool(fn.has_rsample),
        structure=structure,
    )


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, eq=False)
class _Noted:
    """What a trace returns beside arrays.

    Attributes:
      sites: Every statement of the model, by name, in its order.
      has_unit_plate: Whether it has the unit plate.
      plate_names: The names of all plates, in their order.
    """

    sites: dict[str, TracedSite]
    has_unit_plate: bool
    plate_names: tuple[str, ...]


class Trace:
    """The model's program on `count` abstract rows.

    Attributes:
      closed: The program of the sites' parameters, given the latents.
      drawn: The program that draws the latents and initialises the parameters.
      sites: Every statement of the model, by name, in its order.
      has_unit_plate: Whether it has the unit plate.
      plate_names: The names of all plates, in their order.
    """

    def __init__(self, model: private, arguments: ModelArguments, count: int):
        self.count = count
        self._run = functools.partial(run_model, model, arguments)
        rows = abstract_rows(arguments, count)

        def drawn(rows: Any) -> tuple[dict[str, Any], list[Any]]:
            messages, _ = self._run(rows, latents=None)
            latents = {
                name: msg["value"]
                for name, msg in _of_type("sample", messages).items()
                if not msg["is_observed"]
            }
            params = _of_type("param", messages).values()
            return latents, [msg["value"] for msg in params]

        def program(rows: Any, latents: Any) -> tuple[dict[str, Any], _Noted]:
            messages, unit_plate = self._run(rows, latents=latents)
            sites, outputs = {}, {}
            for name, msg in messages.items():
                structure = None
                if msg["type"] == "sample":
                    check_parameters(name, msg["fn"])
                    structure, outputs[name] = site_outputs(msg)
                sites[name] = _traced_site(msg, structure)
            plates = tuple(unit_plate.plate_names)
            return outputs, _Noted(sites, unit_plate.seen, plates)

        self.drawn, (latents, _) = traced(
            lambda: jax.make_jaxpr(drawn, return_shape=True)(rows)
        )
        self.inputs = (rows, latents)
        self.closed, (self.output_shapes, noted) = traced(
            lambda: jax.make_jaxpr(program, return_shape=True)(rows, latents)
        )
        self.sites: dict[str, TracedSite] = self._with_known_bounds(noted.sites)
        self.has_unit_plate: bool = noted.has_unit_plate
        self.plate_names: tuple[str, ...] = noted.plate_names
        check_row_program(self.closed)

    def _with_known_bounds(self, sites: dict[str, TracedSite]) -> dict[str, TracedSite]:
        """The sites, with numbers for bounds that JAX computes of constants alone."""
        unclear = [
            name for name, site in sites.items() if has_traced_bounds(site.support)
        ]
        if not unclear:
            return sites

        def bounds(rows: Any, latents: Any) -> dict[str, list[Any]]:
            messages, _ = self._run(rows, latents=latents)
            return {n: jax.tree.leaves(messages[n]["fn"].support) for n in unclear}

        closed, shapes = traced(
            lambda: jax.make_jaxpr(bounds, return_shape=True)(*self.inputs)
        )
        found = dict(sites)
        for name in unclear:
            wanted = {n: [n == name] * len(of) for n, of in shapes.items()}
            program, used = with_used_inputs(closed, jax.tree.leaves(wanted))
            if any(used):
                continue  # They are other latents, or depend on them.
            values = map(np.asarray, jex_core.jaxpr_as_fun(program)())
            support = jax.tree.unflatten(
                jax.tree.structure(sites[name].support), values
            )
            found[name] = dataclasses.replace(sites[name], support=support)
        return found

    @property
    def samples(self) -> dict[str, TracedSite]:
        """The sample statements."""
        return {name: s for name, s in self.sites.items() if s.kind == "sample"}

    @property
    def params(self) -> dict[str, TracedSite]:
        """The parameters without a prior."""
        return {name: s for name, s in self.sites.items() if s.kind == "param"}

    def programs(self) -> list[Any]:
        """All that the model computes: its draws, its parameters, its densities."""
        densities = traced(lambda: jax.make_jaxpr(self._densities)(*self.inputs))
        for program in (self.drawn, densities):
            check_row_program(program)
        return [self.drawn, self.closed, densities]

    def _densities(self, rows: Any, latents: Any) -> dict[str, Any]:
        messages, _ = self._run(rows, latents=latents)
        with unvalidated():
            return {
                name: log_prob(name, msg)
                for name, msg in _of_type("sample", messages).items()
            }

    def picks_rows_only(self, local: set[str]) -> bool:
        """Whether the unit plate's index serves to pick rows and nothing else.

        Args:
          local: Names of the latents with one entry per row.
        """
        rows, latents = self.inputs
        index = jax.ShapeDtypeStruct((self.count,), jnp.result_type(int))

        def outputs(rows: Any, latents: Any, index: Any) -> list[dict[str, Any]]:
            messages, _ = self._run(rows, latents=latents, index=index)
            samples = _of_type("sample", messages).values()
            return [site_outputs(msg)[1] for msg in samples]

        try:
            closed = jax.make_jaxpr(outputs)(rows, latents, index)
        except jax.errors.TracerArrayConversionError:
            return False  # It indexes a NumPy array, which is none of the arguments.
        has_rows = [True] * len(jax.tree.leaves(rows))
        has_rows += [name in local for name in sorted(latents)]
        return picks_rows_only(
            closed,
            has_rows=[*has_rows, False],
            is_index=[False] * len(has_rows) + [True],
        )

    def shape(self, name: str) -> tuple[int, ...]:
        outputs = self.output_shapes[name]
        if "value" in outputs:
            return tuple(outputs["value"].shape)
        return tuple(self.inputs[1][name].shape)


def _of_type(kind: str, messages: Mapping[str, Any]) -> dict[str, Any]:
    return {name: msg for name, msg in messages.items() if msg["type"] == kind}


def site_outputs(msg: Mapping[str, Any]) -> tuple[Distributed, dict[str, Any]]:
    """A site's structure, and what `ModelGraph.program` returns for it."""
    structure, arrays = take_apart(msg["fn"])
    outputs: dict[str, Any] = {"parameters": arrays}
    if msg["is_observed"]:
        outputs["value"] = jnp.asarray(msg["value"])
        outputs["in_support"] = in_support(msg["fn"], msg["value"])
    if msg["scale"] is not None:
        outputs["scale"] = jnp.asarray(msg["scale"])
    return structure, outputs
