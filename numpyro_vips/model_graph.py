"""What a NumPyro model is made of, found without reading a data value.

The model is traced abstractly, on two and on three rows, and the two programs
must agree except in the unit axis. What the engines run is a third trace, of a
*single* row: they map it over the rows of a minibatch with `jax.vmap`. One row's
contribution therefore cannot depend on another row, whatever the model does; the
certificate only has to check that the sum of the single rows means the same as the
model itself.
"""

import dataclasses
import difflib
import math
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import jax
import jax.core
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.interpreters import partial_eval
from numpyro.distributions import Distribution, biject_to, constraints
from numpyro.primitives import Messenger

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.handlers import private
from numpyro_vips.model_arguments import ModelArguments, captured_arrays
from numpyro_vips.plate_index import picks_rows_only

Role = Literal["global", "local", "observed"]


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Site:
    """One sample statement of the model, as it looks for a single row.

    `shape` is the shape of its value, with an axis of length 1 for the row where
    the site lies under the unit plate (`row_axis` says where; None elsewhere).
    `plates` names the plate of each axis that has one. `num_states` is the number of
    values of a discrete site that has finitely many, 0, 1, ...
    """

    name: str
    role: Role
    distributed: Distributed
    shape: tuple[int, ...]
    dtype: np.dtype
    plates: Mapping[int, str]
    row_axis: int | None
    support: Any
    num_states: int | None = None

    @property
    def is_latent(self) -> bool:
        return self.role != "observed"

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the leading axes, those of plates."""
        names = []
        for axis in range(len(self.shape)):
            if axis not in self.plates:
                break
            names.append(self.plates[axis])
        return tuple(names)

    @property
    def is_discrete(self) -> bool:
        return bool(self.support.is_discrete)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelGraph:
    """The sites of a model and its program for one row.

    Attributes:
      sites: In the order of the model.
      program: Takes (rows, public arrays, latents), each a dict of arrays, and
        returns for every site a dict with "parameters" (nested as `Distributed`),
        "value" (of an observed site), "mask" and "scale". Its rows have a leading
        axis of length 1.
      row_log_joint, prior_log_joint: NumPyro's own log density of the sites under
        the unit plate, respectively of the others, for any number of rows.
      captured: Arrays that the model holds itself; they are treated as public.
      params: The constraint of every `numpyro.param`, which has no prior and is
        estimated by a point.
    """

    unit: str
    sites: Mapping[str, Site]
    arguments: ModelArguments
    program: jex_core.ClosedJaxpr
    program_outputs: Any
    program_inputs: Any
    captured: Mapping[str, np.ndarray]
    run: Callable[..., Mapping[str, dict]]
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def latents(self, role: Role) -> list[Site]:
        return [site for site in self.sites.values() if site.role == role]


class _UnitPlate(Messenger):
    """Checks the unit plate and takes its subsampling over."""

    def __init__(self, unit: str, num_rows: int, index: Any = None):
        self.unit = unit
        self.num_rows = num_rows
        self.index = jnp.arange(num_rows) if index is None else index
        self.seen = False
        self.plate_names: list[str] = []
        self._scale = 1.0  # What the plate multiplies log densities by.
        super().__init__()

    def process_message(self, msg: Any) -> None:
        inside = msg["type"] == "sample" and any(
            frame.name == self.unit for frame in msg["cond_indep_stack"]
        )
        if inside and self._scale != 1.0:
            scale = msg["scale"] / self._scale
            is_one = isinstance(scale, float) and math.isclose(scale, 1.0)
            msg["scale"] = None if is_one else scale
        if msg["type"] != "plate":
            return
        self.plate_names.append(msg["name"])
        if msg["name"] != self.unit:
            return
        size, subsample_size = msg["args"]
        rows_given = self.num_rows in (size, subsample_size)
        if not rows_given:
            raise ValueError(
                f"Expected the unit plate {self.unit!r} to have one entry per row, but "
                f"its size is {size} when the model is given {self.num_rows} rows. "
                f"Write numpyro.plate({self.unit!r}, X.shape[0]), with X one of the "
                "private arguments."
            )
        self.seen = True
        # The engine draws the rows and scales their sum, so the plate covers exactly
        # the rows that it is given and scales nothing.
        self._scale = size / self.num_rows
        msg["args"] = (self.num_rows, self.num_rows)
        msg["value"] = self.index


class _Substitute(Messenger):
    """Gives latents and parameters their values; notices what only a trace shows."""

    def __init__(
        self, values: Mapping[str, Any] | None, params: Mapping[str, Any], unit: str
    ):
        self.values = values
        self.params = params
        self.unit = unit
        # Positions in the loops that are being unrolled, outermost first.
        self._time: list[int] = []
        super().__init__()

    def _unrolled(self, msg: Any) -> Any:
        """Runs the body of NumPyro's `scan` step by step; step t's sites end in [t]."""
        if not getattr(msg["fn"], "__name__", "").startswith("scan"):
            raise UnsafeModelError(
                "The model uses numpyro.contrib.control_flow.cond, which is not "
                "supported. Use jnp.where."
            )
        body, carry, xs, length, reverse = msg["args"]
        count = length if xs is None else len(jax.tree.leaves(xs)[0])
        collected = []
        for t in reversed(range(count)) if reverse else range(count):
            self._time.append(t)
            x = jax.tree.map(lambda leaf, t=t: leaf[t], xs)
            carry, y = body(carry, x)
            self._time.pop()
            collected.append(y)
        if reverse:
            collected.reverse()
        ys = jax.tree.map(lambda *leaves: jnp.stack(leaves), *collected)
        # What NumPyro's scan expects; its sites have been seen one by one already.
        return (count, None, carry), (types.SimpleNamespace(trace={}), ys)

    def _set_param(self, msg: Any) -> None:
        name = msg["name"]
        in_plate = any(frame.name == self.unit for frame in msg["cond_indep_stack"])
        # Without event_dim NumPyro gives a parameter no axis for the plate.
        if in_plate and msg["kwargs"].get("event_dim") is not None:
            raise UnsafeModelError(
                f"The parameter {name!r} stands under the plate {self.unit!r}, so that "
                "every row would have its own and releasing it would release the row. "
                "Write what belongs to a row as a function of the row, with parameters "
                "that all rows share."
            )
        if name in self.params:
            # A copy of the containers, since NumPyro's modules write into them.
            msg["value"] = jax.tree.map(lambda leaf: leaf, self.params[name])

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "param":
            self._set_param(msg)
            return
        if msg["type"] == "mutable":
            raise UnsafeModelError(
                f"{msg['name']!r} is a state that a network carries from one call to "
                "the next, such as the averages of batch normalisation. It would mix "
                "the rows. Use layers without one, such as layer normalisation."
            )
        if msg["type"] == "control_flow":
            msg["value"] = self._unrolled(msg)
            return
        if self._time and msg["type"] in ("sample", "deterministic"):
            msg["name"] += "".join(f"[{t}]" for t in self._time)
        if msg["type"] != "sample" or msg["is_observed"]:
            return
        if msg["value"] is not None:
            raise UnsafeModelError(
                f"The latent {msg['name']!r} is given its value by "
                "numpyro.handlers.substitute, under which it stays a latent to be "
                "fitted. To hold it at a public value use numpyro.handlers.do(model, "
                f"data={{{msg['name']!r}: value}}), or write the value into the model."
            )
        if _is_delta(msg["fn"]):
            # No latent: all its mass lies on what it is given.
            msg["type"] = "deterministic"
            msg["value"] = _delta_value(msg["name"], msg["fn"])
        elif self.values is not None and msg["name"] in self.values:
            msg["value"] = self.values[msg["name"]]
        elif isinstance(_unwrapped(msg["fn"]), numpyro.distributions.ImproperUniform):
            msg["value"] = _somewhere(msg["fn"])


def _unwrapped(fn: Any) -> Any:
    while isinstance(
        fn,
        numpyro.distributions.Independent
        | numpyro.distributions.ExpandedDistribution
        | numpyro.distributions.MaskedDistribution,
    ):
        fn = fn.base_dist
    return fn


def _is_delta(fn: Any) -> bool:
    return isinstance(_unwrapped(fn), numpyro.distributions.Delta)


def _delta_value(name: str, fn: Any) -> Any:
    delta = _unwrapped(fn)
    density = delta.log_density
    if isinstance(density, jax.core.Tracer) or np.any(np.asarray(density) != 0):
        raise UnsafeModelError(
            f"{name!r} is a latent Delta with a log_density of its own. Write the "
            "density with numpyro.factor under the unit plate, and the value with "
            "numpyro.deterministic."
        )
    return jnp.broadcast_to(delta.v, fn.shape())


def _somewhere(fn: Any) -> jax.Array:
    """A value in the support of a distribution that cannot be drawn from."""
    transform = biject_to(fn.support)
    return transform(jnp.zeros(transform.inverse_shape(fn.shape())))


def run_model(
    model: private,
    arguments: ModelArguments,
    rows: Mapping[str, Any],
    *,
    latents: Mapping[str, Any] | None,
    params: Mapping[str, Any] | None = None,
    index: Any = None,
    rng_key: Any = None,
) -> tuple[dict[str, dict], _UnitPlate]:
    """Runs the model once under NumPyro's handlers and returns its messages.

    Latents that are not given are drawn, and parameters that are not given have their
    initial values, both with `rng_key` or else with a fixed key. The index of the unit
    plate is 0, 1, ... unless it is given.
    """
    args, kwargs = arguments.call(rows)
    count = next(iter(rows.values())).shape[0]
    unit_plate = _UnitPlate(model.unit, count, index)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="subsample_size does not match")
        # `trace` is outermost so that it sees the final messages.
        with (
            numpyro.handlers.trace() as trace,
            unit_plate,
            _Substitute(latents, params or {}, model.unit),
            numpyro.handlers.seed(
                rng_seed=jax.random.key(0) if rng_key is None else rng_key
            ),
            numpyro.validation_enabled(False),
        ):
            assert model.fn is not None
            model.fn(*args, **kwargs)
    return dict(trace), unit_plate


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
    base, transforms = fn.base_dist, list(fn.transforms)
    is_exp = isinstance(transforms[-1], numpyro.distributions.transforms.ExpTransform)
    affine = transforms[:-1] if is_exp else transforms
    if not isinstance(base, numpyro.distributions.Normal):
        return fn
    loc, scale = jnp.asarray(base.loc), jnp.asarray(base.scale)
    for transform in affine:
        if not isinstance(transform, numpyro.distributions.transforms.AffineTransform):
            return fn
        shift, factor = jnp.asarray(transform.loc), jnp.asarray(transform.scale)
        loc = shift + factor * loc
        scale = jnp.abs(factor * scale)
    if is_exp:
        return numpyro.distributions.LogNormal(loc, scale)
    return numpyro.distributions.Normal(loc, scale)


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
    return {
        name: jax.ShapeDtypeStruct((count, *row.shape), row.dtype)
        for name, row in arguments.row_shapes().items()
    }


class Trace:
    """The model's program on `count` abstract rows."""

    def __init__(self, model: private, arguments: ModelArguments, count: int):
        self.count = count
        self._model, self._arguments = model, arguments
        rows = abstract_rows(arguments, count)

        def shapes(rows):
            trace, self.unit_plate = run_model(model, arguments, rows, latents=None)
            return {
                name: msg["value"]
                for name, msg in trace.items()
                if msg["type"] == "sample" and not msg["is_observed"]
            }

        latents = _traced(lambda: jax.eval_shape(shapes, rows))
        self.messages: dict[str, Any] = {}
        self.structures: dict[str, Distributed] = {}
        self.params: dict[str, Any] = {}
        self.all_messages: dict[str, Any] = {}

        self.inputs = (rows, latents)
        self.closed, self.output_shapes = _traced(
            lambda: jax.make_jaxpr(self._program, return_shape=True)(rows, latents)
        )

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
            structure, arrays = _take_apart(msg["fn"])
            self.messages[name], self.structures[name] = msg, structure
            outputs[name] = {"parameters": arrays}
            if msg["is_observed"]:
                outputs[name]["value"] = jnp.asarray(msg["value"])
                outputs[name]["in_support"] = _in_support(msg["fn"], msg["value"])
            if msg["scale"] is not None:
                outputs[name]["scale"] = jnp.asarray(msg["scale"])
        return outputs

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


def build_graph(model: private, arguments: ModelArguments) -> ModelGraph:
    """Finds the sites of `model` and its program for one row.

    Raises:
      ValueError: The unit plate is missing or has another size than the data, or
        nothing is observed under it.
      UnsafeModelError: No engine may run the model: a global depends on private
        data or on the number of rows, something outside the unit plate is observed,
        or the model cannot be traced.
    """
    assert model.fn is not None
    captured = captured_arrays(model.fn)
    refuse_captured_rows(captured, arguments)
    two, three = (Trace(model, arguments, count) for count in (2, 3))
    one = Trace(model, arguments, 1)
    if not two.unit_plate.seen:
        raise _missing_plate(model.unit, two.unit_plate.plate_names)
    if set(two.messages) != set(three.messages):
        raise UnsafeModelError(
            "The model's sample statements differ with the number of rows. Put what "
            f"belongs to one row under the plate {model.unit!r}."
        )
    for trace in (two, three, one):
        refuse_captured_constants(trace, arguments)
    sites = {}
    for name, msg in one.messages.items():
        sites[name] = _site(name, msg, model.unit, one, two, three)
    _check_globals(sites, two, three, model.unit)
    check_params(model, arguments, two, three)
    local = {name for name, site in sites.items() if site.role == "local"}
    if not three.picks_rows_only(local):
        raise UnsafeModelError(
            f"The model uses the index of the plate {model.unit!r} for something else "
            "than picking rows of its private arguments, as in X[i]. The rows are "
            "drawn anew in every step, so that an array inside the model, a public one "
            "or a formula would meet the wrong rows. Pass it as a private argument "
            "with one entry per row instead."
        )
    if not any(site.role == "observed" for site in sites.values()):
        raise ValueError(
            f"Nothing is observed under the plate {model.unit!r}: every sample "
            "statement in it has obs=None. Pass the observations, as in "
            "run(rng_key, X, y)."
        )
    return ModelGraph(
        unit=model.unit,
        sites=sites,
        arguments=arguments,
        program=_without_dead_code(one.closed),
        program_outputs=one.output_shapes,
        program_inputs=one.inputs,
        captured=captured,
        run=_runner(model, arguments),
        params={
            name: msg["kwargs"].get("constraint", constraints.real)
            for name, msg in one.params.items()
        },
    )


def _runner(model: private, arguments: ModelArguments) -> Callable[..., Any]:
    def run(rows: Any, latents: Any, **options: Any) -> Mapping[str, dict]:
        return run_model(model, arguments, rows, latents=latents, **options)[0]

    return run


def retrace(graph: ModelGraph, model: private, arguments: ModelArguments) -> ModelGraph:
    """The graph of a model on other rows or in another precision, not checked."""
    one = Trace(model, arguments, 1)
    return dataclasses.replace(
        graph,
        arguments=arguments,
        program=_without_dead_code(one.closed),
        program_outputs=one.output_shapes,
        program_inputs=one.inputs,
        run=_runner(model, arguments),
    )


def _without_dead_code(closed: jex_core.ClosedJaxpr) -> jex_core.ClosedJaxpr:
    """The program without what no output needs, such as its unused random keys."""
    outputs = [True] * len(closed.jaxpr.outvars)
    jaxpr, _ = partial_eval.dce_jaxpr(closed.jaxpr, outputs, instantiate=True)
    return jex_core.ClosedJaxpr(jaxpr, closed.consts)


def _missing_plate(unit: str, names: list[str]) -> UnsafeModelError:
    message = f"The model has no plate named {unit!r}, the unit given to private()."
    nearest = difflib.get_close_matches(unit, names, n=1, cutoff=0.5)
    if nearest:
        message += f" Did you mean {nearest[0]!r}?"
    elif names:
        message += f" Its plates are {', '.join(map(repr, dict.fromkeys(names)))}."
    else:
        message += (
            " It has no plate at all: put the sample statements of one row under "
            f"`with numpyro.plate({unit!r}, X.shape[0]):`."
        )
    return UnsafeModelError(message)


def _site(name: str, msg: Any, unit: str, one: Trace, two: Trace, three: Trace) -> Site:
    fn = msg["fn"]
    # NumPyro splits a site with obs_mask= into an observed and an unobserved one.
    stem = name.removesuffix("_unobserved").removesuffix("_observed")
    if stem != name and f"{stem}_unobserved" in one.messages:
        raise UnsafeModelError(
            f"{stem!r} has obs_mask=, which is not supported. Leave missing entries "
            "out with `numpyro.handlers.mask(mask=observed)` around the sample "
            "statement instead, filled with any finite value: they then contribute "
            "nothing."
        )
    event_dim = fn.event_dim
    plates = {}
    row_axis = None
    shape = one.shape(name)
    for frame in msg["cond_indep_stack"]:
        axis = len(shape) - event_dim + frame.dim
        plates[axis] = frame.name
        if frame.name == unit:
            row_axis = axis
    shapes = two.shape(name), three.shape(name)
    differs = [axis for axis, (a, b) in enumerate(zip(*shapes, strict=False)) if a != b]
    if row_axis is None and (differs or len(shapes[0]) != len(shapes[1])):
        raise UnsafeModelError(
            f"{name!r} has an axis with one entry per row but stands outside the "
            f"plate {unit!r}. Put it under the plate."
        )
    if row_axis is not None and (
        differs != [row_axis] or [s[row_axis] for s in shapes] != [2, 3]
    ):
        raise UnsafeModelError(
            f"{name!r} under the plate {unit!r} must have one entry per row along the "
            f"plate's axis and no other axis that grows with the rows; its shapes for "
            f"2 and 3 rows are {shapes[0]} and {shapes[1]}."
        )
    role: Role
    if msg["is_observed"]:
        if row_axis is None:
            raise UnsafeModelError(
                f"{name!r} is observed outside the plate {unit!r}, so no bound on one "
                "row's influence covers it. Put it under the plate. If it is a latent "
                "that you hold at a public value, write the value into the model or "
                "use numpyro.handlers.do instead of condition."
            )
        role = "observed"
    else:
        role = "global" if row_axis is None else "local"
    value = one.output_shapes[name].get("value", one.inputs[1].get(name))
    return Site(
        name=name,
        role=role,
        distributed=one.structures[name],
        shape=shape,
        dtype=np.dtype(value.dtype),
        plates=plates,
        row_axis=row_axis,
        support=fn.support if not isinstance(fn, numpyro.distributions.Unit) else None,
        num_states=_num_states(one, name),
    )


def _num_states(trace: Trace, name: str) -> int | None:
    kind = trace.structures[name].kind
    if issubclass(
        kind,
        numpyro.distributions.BernoulliProbs | numpyro.distributions.BernoulliLogits,
    ):
        return 2
    parameters = trace.output_shapes[name]["parameters"]
    if issubclass(kind, numpyro.distributions.CategoricalProbs):
        return parameters["probs"].shape[-1]
    if issubclass(kind, numpyro.distributions.CategoricalLogits):
        return parameters["logits"].shape[-1]
    return None


def _check_globals(
    sites: Mapping[str, Site], two: Trace, three: Trace, unit: str
) -> None:
    """Refuses a global whose distribution depends on rows or on their number."""
    for name, site in sites.items():
        if site.role != "global":
            continue
        programs = []
        for trace in (two, three):
            wanted = {
                other: jax.tree.map(lambda _, keep=other == name: keep, outputs)
                for other, outputs in trace.output_shapes.items()
            }
            jaxpr, used_inputs = partial_eval.dce_jaxpr(
                trace.closed.jaxpr, jax.tree.leaves(wanted)
            )
            arguments = sorted(trace.inputs[0])
            for argument, is_used in zip(arguments, used_inputs, strict=False):
                if is_used:
                    raise UnsafeModelError(
                        f"The distribution of {name!r}, which all rows share, depends "
                        f"on the private argument {argument!r}. Its prior would reveal "
                        "the data. Use public constants in the prior, or put the site "
                        f"under the plate {unit!r}."
                    )
            programs.append(str(jaxpr))
        if programs[0] != programs[1]:
            raise UnsafeModelError(
                f"The distribution of {name!r}, which all rows share, depends on the "
                "number of rows that the model is given, and minibatches change it. "
                "Pass the number of rows as a public number of its own."
            )


def check_params(
    model: private, arguments: ModelArguments, two: Trace, three: Trace
) -> None:
    """Refuses a parameter whose shape or initial value depends on private rows."""
    if not two.params:
        return
    shapes = []
    for trace in (two, three):

        def values(rows: Any, names: Any = tuple(trace.params)) -> dict[str, Any]:
            messages, _ = run_model(model, arguments, rows, latents=None)
            return {name: messages[name]["value"] for name in names}

        rows = abstract_rows(arguments, trace.count)
        closed, found = jax.make_jaxpr(values, return_shape=True)(rows)
        _, used = partial_eval.dce_jaxpr(
            closed.jaxpr, [True] * len(closed.jaxpr.outvars)
        )
        if any(used):
            argument = sorted(rows)[used.index(True)]
            raise UnsafeModelError(
                f"The initial value of a parameter, one of {sorted(trace.params)}, "
                f"depends on the private argument {argument!r}, and the start of a fit "
                "is public. Use a public constant."
            )
        shapes.append({name: str(found[name]) for name in found})
    for name, shape in shapes[0].items():
        if shape != shapes[1].get(name):
            raise UnsafeModelError(
                f"The shape of the parameter {name!r} depends on the number of rows. "
                "A parameter of every row would release the rows: write what belongs "
                "to a row as a function of it."
            )


def refuse_captured_rows(
    captured: Mapping[str, np.ndarray], arguments: ModelArguments
) -> None:
    for name, array in captured.items():
        _refuse_length(repr(name), np.shape(array), arguments.num_rows)


def refuse_captured_constants(trace: Trace, arguments: ModelArguments) -> None:
    """Refuses arrays of the data's length that the model got hold of in any other way.

    They enter the program as constants. Not meant are arguments that were declared
    public, and arrays without information, such as a prior's np.zeros(num_features)
    where there happen to be as many features as rows.
    """
    for constant in trace.closed.consts:
        if jax.dtypes.issubdtype(constant.dtype, jax.dtypes.prng_key):
            continue  # Such as the one that a network is initialised with.
        array = np.asarray(constant)
        declared = any(
            np.array_equal(array, np.asarray(public, array.dtype))
            for public in arguments.public.values()
            if np.shape(public) == array.shape
        )
        uniform = array.size > 0 and bool(np.all(array == array.flat[0]))
        if not (declared or uniform):
            what = "an array inside the model"
            _refuse_length(what, array.shape, arguments.num_rows)


def _refuse_length(name: str, shape: tuple[int, ...], num_rows: int) -> None:
    if num_rows > 1 and num_rows in shape:
        raise UnsafeModelError(
            f"The model captures {name} of shape {shape}, which has an axis of the "
            f"length of the data ({num_rows} rows). A captured array is not clipped "
            "and not subsampled. Pass it as an argument of the model instead (and name "
            "it in public= if it really is public)."
        )
