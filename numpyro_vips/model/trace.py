"""The model's program on abstract rows: its sites' parameters as a traced function."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.distributions import Distribution
from numpyro.distributions.transforms import AffineTransform, ExpTransform

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.plate_index import picks_rows_only
from numpyro_vips.jax_tools.row_programs import check_row_program
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.run import run_model
from numpyro_vips.model.sparse_rows import SparseRows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distributed:
    """A distribution taken apart: its class and where its parameters are.

    Attributes:
      kind: The distribution's class, wrappers removed.
      parameters: Names of the array parameters, in the order in which the traced
        program returns them.
      components: Distributions inside it, such as those of a mixture.
      reinterpreted: Number of batch axes that `to_event` turned into event axes.
      event_dim: Number of event axes of `kind` itself.
      static: Attributes that are not arrays, such as an integer total count.
      masked: Whether the program returns a mask after the parameters.
    """

    kind: type[Distribution]
    parameters: tuple[str, ...]
    components: Mapping[str, "Distributed"]
    reinterpreted: int
    event_dim: int
    static: Mapping[str, Any]
    masked: bool


def _take_apart(fn: Distribution) -> tuple[Distributed, dict[str, Any]]:
    """Returns a distribution's structure and its arrays, wrappers removed."""
    reinterpreted = 0
    masks: list[tuple[Any, int]] = []
    while True:
        if isinstance(fn, numpyro.distributions.Independent):
            reinterpreted += fn.reinterpreted_batch_ndims
            fn = fn.base_dist
        elif isinstance(fn, numpyro.distributions.ExpandedDistribution):
            fn = fn.base_dist
        elif isinstance(fn, numpyro.distributions.MaskedDistribution):
            masks.append((jnp.asarray(fn._mask), reinterpreted))
            fn = fn.base_dist
        else:
            plain = _location_and_scale(fn)
            if plain is fn:
                break
            fn = plain
    mask = None
    for array, outside in masks:
        # It lacks the axes that a `to_event` inside of it has taken away.
        array = array.reshape(array.shape + (1,) * (reinterpreted - outside))
        mask = array if mask is None else mask & array
    arrays: dict[str, Any] = {}
    components: dict[str, Distributed] = {}
    static: dict[str, Any] = {}
    for name in _parameter_names(fn):
        value = getattr(fn, name, None)
        if isinstance(value, Distribution):
            components[name], arrays[name] = _take_apart(value)
        elif value is None or isinstance(value, (str, bool)):
            static[name] = value
        else:
            arrays[name] = jnp.asarray(value)
    for name, part in _parts(fn).items():
        components[name], arrays[name] = _take_apart(part)
    structure = Distributed(
        kind=type(fn),
        parameters=tuple(sorted(set(arrays) - set(components))),
        components=components,
        reinterpreted=reinterpreted,
        event_dim=fn.event_dim,
        static=static,
        masked=mask is not None,
    )
    if mask is not None:
        arrays["mask"] = mask
    return structure, arrays


def _parts(fn: Distribution) -> dict[str, Distribution]:
    """The distributions that another one is made of."""
    if isinstance(fn, numpyro.distributions.MixtureSameFamily):
        names = ("_mixing_distribution", "_component_distribution")
        return {name: getattr(fn, name) for name in names}
    if isinstance(fn, numpyro.distributions.MixtureGeneral):
        parts = {
            f"component_{number}": part
            for number, part in enumerate(fn.component_distributions)
        }
        return {"_mixing_distribution": fn.mixing_distribution, **parts}
    if isinstance(fn, numpyro.distributions.TransformedDistribution) and (
        type(fn).arg_constraints
    ):
        return {}  # Such as LogNormal, which has parameters of its own.
    base = vars(fn).get("base_dist")
    return {"base_dist": base} if isinstance(base, Distribution) else {}


def _location_and_scale(fn: Distribution) -> Distribution:
    """A plain distribution in place of one that was only shifted and scaled.

    A Normal that was shifted, scaled and then exponentiated is log-normal.
    """
    if type(fn) is not numpyro.distributions.TransformedDistribution:
        return fn
    base: Any = fn.base_dist
    transforms: list[Any] = list(fn.transforms)
    kind: Any = numpyro.distributions.Normal
    if isinstance(transforms[-1], ExpTransform):
        kind = numpyro.distributions.LogNormal
        transforms.pop()
    affine = [t for t in transforms if isinstance(t, AffineTransform)]
    if not isinstance(base, numpyro.distributions.Normal) or (
        len(affine) < len(transforms)
    ):
        return fn
    loc: Any = base.loc
    scale: Any = base.scale
    for transform in affine:
        loc = transform.loc + transform.scale * loc
        scale = jnp.abs(transform.scale * scale)
    return kind(loc, scale)


def _parameter_names(fn: Distribution) -> list[str]:
    """Names of a distribution's array parameters, read from the instance.

    Its pytree is no guide: MultivariateNormal drops `precision_matrix` from it and
    Multinomial keeps `total_count` elsewhere.
    """
    if isinstance(fn, numpyro.distributions.Delta):
        return ["v", "log_density"]
    if isinstance(fn, numpyro.distributions.Unit):
        return ["log_factor"]
    attributes = vars(fn)
    names = [name for name in fn.arg_constraints if name in attributes]
    if not names:  # A transformed distribution that passes them on by properties.
        names = list(fn.arg_constraints)
    # Such as the rate that NegativeBinomial2 keeps in place of its mean.
    names += [
        name
        for name, value in attributes.items()
        if isinstance(value, jax.Array | np.ndarray) and not name.startswith("_")
    ]
    return list(dict.fromkeys(names))


def abstract_rows(arguments: ModelArguments, count: int) -> dict[str, Any]:
    """Rows without values, as the model gets them."""
    return {
        name: jax.ShapeDtypeStruct((count, *row.shape), row.dtype)
        for name, row in arguments.row_shapes().items()
    }


def abstract_taken_rows(arguments: ModelArguments, count: int) -> dict[str, Any]:
    """Rows without values, as the engines get them."""
    rows = abstract_rows(arguments, count)
    for name, width in arguments.widths.items():
        *leading, length = rows[name].shape
        shape = (*leading, width)
        rows[name] = SparseRows(
            indices=jax.ShapeDtypeStruct(shape, np.int32),
            values=jax.ShapeDtypeStruct(shape, rows[name].dtype),
            length=length,
        )
    return rows


class Trace:
    """The model's program on `count` abstract rows.

    Attributes:
      closed: The program of the sites' parameters, given the latents.
      drawn: The program that draws the latents and initialises the parameters.
    """

    def __init__(self, model: private, arguments: ModelArguments, count: int):
        self.count = count
        self._model, self._arguments = model, arguments
        rows = abstract_rows(arguments, count)

        def drawn(rows):
            trace, self.unit_plate = run_model(model, arguments, rows, latents=None)
            latents = {
                name: msg["value"]
                for name, msg in trace.items()
                if msg["type"] == "sample" and not msg["is_observed"]
            }
            return latents, [m["value"] for m in trace.values() if m["type"] == "param"]

        self.drawn, (latents, _) = _traced(
            lambda: jax.make_jaxpr(drawn, return_shape=True)(rows)
        )
        self.messages: dict[str, Any] = {}
        self.structures: dict[str, Distributed] = {}
        self.params: dict[str, Any] = {}
        self.all_messages: dict[str, Any] = {}

        self.inputs = (rows, latents)
        self.closed, self.output_shapes = _traced(
            lambda: jax.make_jaxpr(self._program, return_shape=True)(rows, latents)
        )
        check_row_program(self.closed)

    def _program(self, rows: Any, latents: Any, index: Any = None) -> dict[str, Any]:
        trace, self.unit_plate = run_model(
            self._model, self._arguments, rows, latents=latents, index=index
        )
        outputs = {}
        self.all_messages = trace
        for name, msg in trace.items():
            if msg["type"] == "param":
                self.params[name] = msg
            if msg["type"] != "sample":
                continue
            self.messages[name] = msg
            self.structures[name], outputs[name] = site_outputs(msg)
        return outputs

    def programs(self) -> list[Any]:
        """All that the model computes: its draws, its parameters, its densities."""
        densities = _traced(lambda: jax.make_jaxpr(self._densities)(*self.inputs))
        for program in (self.drawn, densities):
            check_row_program(program)
        return [self.drawn, self.closed, densities]

    def _densities(self, rows: Any, latents: Any) -> dict[str, Any]:
        trace, _ = run_model(self._model, self._arguments, rows, latents=latents)
        with numpyro.validation_enabled(False):
            return {
                name: msg["fn"].log_prob(msg["value"])
                for name, msg in trace.items()
                if msg["type"] == "sample"
            }

    def picks_rows_only(self, local: set[str]) -> bool:
        """Whether the unit plate's index serves to pick rows and nothing else.

        Args:
          local: Names of the latents with one entry per row.
        """
        rows, latents = self.inputs
        index = jax.ShapeDtypeStruct((self.count,), jnp.result_type(int))
        messages, structures = self.messages, self.structures
        self.messages, self.structures = {}, {}
        try:
            closed = jax.make_jaxpr(self._program)(rows, latents, index)
        except jax.errors.TracerArrayConversionError:
            return False  # It indexes a NumPy array, which is none of the arguments.
        finally:
            self.messages, self.structures = messages, structures
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


def site_outputs(msg: Mapping[str, Any]) -> tuple[Distributed, dict[str, Any]]:
    """A site's structure, and what `ModelGraph.program` returns for it."""
    structure, arrays = _take_apart(msg["fn"])
    outputs: dict[str, Any] = {"parameters": arrays}
    if msg["is_observed"]:
        outputs["value"] = jnp.asarray(msg["value"])
        outputs["in_support"] = _in_support(msg["fn"], msg["value"])
    if msg["scale"] is not None:
        outputs["scale"] = jnp.asarray(msg["scale"])
    return structure, outputs


def _in_support(fn: Distribution, value: Any) -> jax.Array:
    """Whether each element of an observation lies in its distribution's support."""
    if isinstance(fn, numpyro.distributions.Unit):
        return jnp.ones((), bool)
    support: Any = fn.support
    return jnp.asarray(support(value))


def _traced(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.NonConcreteBooleanIndexError,
    ) as error:
        raise UnsafeModelError(
            "The model looks at the value of a latent variable or of private data "
            "while it runs (an `if`, a float(), a NumPy function or a boolean index "
            "on a traced array, or a NumPy array indexed by one). What it computes "
            "would depend on single records in ways that no clipping bounds. Use jnp "
            f"functions such as jnp.where instead. JAX reports {type(error).__name__}."
        ) from None
