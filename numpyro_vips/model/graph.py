"""What a NumPyro model is made of, found without reading a data value.

The model is traced abstractly, on two and on three rows, and the two programs
must agree except in the unit axis. What the engines run is a third trace, of a
*single* row: they map it over the rows of a minibatch with `jax.vmap`. One row's
contribution therefore cannot depend on another row, whatever the model does; the
certificate only has to check that the sum of the single rows means the same as the
model itself.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.core
import jax.extend.core as jex_core
import numpy as np
import numpyro

from numpyro_vips.errors import UnsafeModelError, quoted
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.jaxprs import with_used_inputs, without_dead_code
from numpyro_vips.jax_tools.program_constants import (
    constants_of,
    refuse_program_constants,
    unnamed,
)
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.distributions import Distributed
from numpyro_vips.model.references.captured import captured_arrays
from numpyro_vips.model.refused_sites import (
    beside,
    depends_on_number,
    depends_on_rows,
    misfit,
    missing_plate,
    where_to_put,
)
from numpyro_vips.model.run import run_model
from numpyro_vips.model.trace import Trace, abstract_rows

Role = Literal["global", "local", "observed"]


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


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ModelGraph:
    """The sites of a model and its program for one row.

    Attributes:
      unit: Name of the unit plate.
      sites: In the order of the model.
      arguments: The model's, of which only shapes and types are looked at.
      program: Takes (rows, public arrays, latents), each a dict of arrays, and
        returns for every site a dict with "parameters" (nested as `Distributed`),
        "value" (of an observed site), "mask" and "scale". Its rows have a leading
        axis of length 1.
      program_outputs, program_inputs: The tree of what it returns, and that of what it
        takes, in the order in which the flat program has them.
      captured: Arrays that the model holds itself; they are treated as public.
      run: The model with these rows and latents: the message of every site.
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

    def read_for(
        self, wanted: Callable[[str, str], bool] = lambda site, output: True
    ) -> tuple[set[str], set[str]]:
        """The private arguments and the latents that some outputs depend on.

        Args:
          wanted: Whether an output of the program is meant, by its site and its name,
            such as "parameters"; by default all are.
        """
        leaves, _ = jax.tree_util.tree_flatten_with_path(self.program_outputs)
        keep = [wanted(path[0].key, path[1].key) for path, _ in leaves]
        _, used = with_used_inputs(self.program, keep)
        rows, latents = map(sorted, self.program_inputs)
        of_rows, of_latents = used[: len(rows)], used[len(rows) :]
        return (
            set(itertools.compress(rows, of_rows)),
            set(itertools.compress(latents, of_latents)),
        )

    def latents(self, role: Role) -> list[Site]:
        return [site for site in self.sites.values() if site.role == role]

    @property
    def num_globals(self) -> int:
        """How many numbers the globals are."""
        return sum(math.prod(site.shape) for site in self.latents("global"))


def build_graph(model: private, arguments: ModelArguments) -> ModelGraph:
    """Finds the sites of `model` and its program for one row.

    Raises:
      ValueError: The unit plate has another size than the data, or nothing is observed
        under it.
      UnsafeModelError: No engine may run the model: the unit plate is missing, a global
        depends on private data or on the number of rows, something outside the unit
        plate is observed, or the model cannot be traced.
    """
    assert model.fn is not None
    captured = captured_arrays(model.fn, arguments.num_rows)
    two, three = (Trace(model, arguments, count) for count in (2, 3))
    one = Trace(model, arguments, 1)
    if not two.has_unit_plate:
        raise missing_plate(model.unit, two, three)
    if set(two.samples) != set(three.samples):
        raise UnsafeModelError(
            "The model's sample statements differ with the number of rows. Put what "
            f"belongs to one row under the plate {model.unit!r}."
        )
    for trace in (two, three, one):
        refuse_program_constants(trace.closed, arguments)
    sites = {}
    for name in one.samples:
        sites[name] = _site(name, model.unit, one, two, three)
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
        local = [name for name, site in sites.items() if site.row_axis is not None]
        raise ValueError(
            f"Nothing is observed under the plate {model.unit!r}: every sample "
            f"statement in it ({quoted(local)}) has obs=None. Pass the observations, "
            "as in run(rng_key, X, y), and give them to their site, as in "
            f"numpyro.sample({(local or ['y'])[-1]!r}, ..., obs=y)."
        )
    captured = with_captured_constants(captured, model.fn, one, arguments)
    return ModelGraph(
        unit=model.unit,
        sites=sites,
        arguments=arguments,
        program=without_dead_code(one.closed),
        program_outputs=one.output_shapes,
        program_inputs=one.inputs,
        captured=captured,
        run=_runner(model, arguments),
        params={name: param.constraint for name, param in one.params.items()},
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
        program=without_dead_code(one.closed),
        program_outputs=one.output_shapes,
        program_inputs=one.inputs,
        run=_runner(model, arguments),
    )


def _site(name: str, unit: str, one: Trace, two: Trace, three: Trace) -> Site:
    """What the traces of one, two and three rows say of a site.

    Args:
      name: The site.
      unit: Name of the unit plate.
      one, two, three: The model's traces on so many rows.

    Raises:
      UnsafeModelError: It has `obs_mask=`, an axis of rows outside the unit plate, no
        such axis or another growing one inside, or is observed outside.
    """
    traced = one.samples[name]
    # NumPyro splits a site with obs_mask= into an observed and an unobserved one.
    stem = name.removesuffix("_unobserved").removesuffix("_observed")
    if stem != name and f"{stem}_unobserved" in one.samples:
        raise UnsafeModelError(
            f"{stem!r} has obs_mask=, which is not supported. Leave missing entries "
            "out with `numpyro.handlers.mask(mask=observed)` around the sample "
            "statement instead, filled with any finite value: they then contribute "
            "nothing."
        )
    plates = {}
    row_axis = None
    shape = one.shape(name)
    if math.prod(shape) == 0 and not traced.is_factor:
        raise UnsafeModelError(
            f"{name!r} has shape {shape}, and so no numbers. Expected at least one. "
            "Leave the sample statement out where there is none, as in `if "
            "num_columns:`."
        )
    batch = len(shape) - traced.event_dim
    for plate, dim in traced.plates:
        plates[batch + dim] = plate
        if plate == unit:
            row_axis = batch + dim
    shapes = two.shape(name), three.shape(name)
    differs = [axis for axis, (a, b) in enumerate(zip(*shapes, strict=False)) if a != b]
    if row_axis is None and (differs or len(shapes[0]) != len(shapes[1])):
        also = beside(two, three, "all", "order")
        raise UnsafeModelError(
            f"{name!r} has an axis with one entry per row but stands outside the "
            f"plate {unit!r}. {where_to_put(name, differs, unit, two, three)}{also}"
        )
    if row_axis is not None and (
        differs != [row_axis] or [s[row_axis] for s in shapes] != [2, 3]
    ):
        raise UnsafeModelError(misfit(name, unit, row_axis, batch, two, three))
    role: Role
    if traced.is_observed:
        # A factor of globals observes nothing; `_check_globals` looks for rows in it.
        if row_axis is None and not traced.is_factor:
            raise UnsafeModelError(
                f"{name!r} is observed outside the plate {unit!r}, so no bound on one "
                "row's influence covers it. Put it under the plate. If it is a latent "
                "that you hold at a public value, write the value into the model or "
                "use numpyro.handlers.do instead of condition."
            )
        role = "observed"
    else:
        role = "global" if row_axis is None else "local"
    outputs = one.output_shapes[name]
    value = outputs.get("value", one.inputs[1].get(name))
    structure = traced.structure
    assert structure is not None
    return Site(
        name=name,
        role=role,
        distributed=structure,
        shape=shape,
        dtype=np.dtype(value.dtype),
        plates=plates,
        row_axis=row_axis,
        support=traced.support,
        num_states=_num_states(structure, outputs["parameters"], traced.support),
    )


def _num_states(
    structure: Distributed, parameters: Mapping[str, Any], support: Any
) -> int | None:
    """How many values a discrete site has, 0, 1, ...; None if that is not known.

    Args:
      structure: What its distribution is made of.
      parameters: Shapes of the parameters.
      support: Its support.
    """
    kind = structure.kind
    if issubclass(
        kind,
        numpyro.distributions.BernoulliProbs | numpyro.distributions.BernoulliLogits,
    ):
        return 2
    if issubclass(kind, numpyro.distributions.CategoricalProbs):
        return parameters["probs"].shape[-1]
    if issubclass(kind, numpyro.distributions.CategoricalLogits):
        return parameters["logits"].shape[-1]
    if issubclass(kind, numpyro.distributions.DiscreteUniform):
        # States are counted from zero.
        low, high = support.lower_bound, support.upper_bound
        is_known = isinstance(low, int | np.integer) and isinstance(
            high, int | np.integer
        )
        return int(high) + 1 if is_known and low == 0 else None
    return None


def _check_globals(
    sites: Mapping[str, Site], two: Trace, three: Trace, unit: str
) -> None:
    """Refuses what stands outside the plate and depends on rows or on their number."""
    for name, site in sites.items():
        if site.row_axis is not None:
            continue
        programs = []
        for trace in (two, three):
            wanted = {
                other: jax.tree.map(lambda _, keep=other == name: keep, outputs)
                for other, outputs in trace.output_shapes.items()
            }
            program, used = with_used_inputs(trace.closed, jax.tree.leaves(wanted))
            arguments = sorted(trace.inputs[0])
            for argument, is_used in zip(arguments, used, strict=False):
                if is_used:
                    also = beside(two, three, "order", "pairs")
                    raise depends_on_rows(
                        name, argument, unit, also, is_latent=site.is_latent
                    )
            programs.append(str(program))
        if programs[0] != programs[1]:
            raise depends_on_number(name, unit, is_latent=site.is_latent)


def check_params(
    model: private, arguments: ModelArguments, two: Trace, three: Trace
) -> None:
    """Refuses a parameter whose shape or initial value depends on private rows."""
    if not two.params:
        return
    shapes = []
    for trace in (two, three):
        found = initial_values(model, arguments, tuple(trace.params), trace.count)
        if found.argument is not None:
            raise UnsafeModelError(
                f"The initial value of a parameter, one of {sorted(trace.params)}, "
                f"depends on the private argument {found.argument!r}, and the start of "
                "a fit is public. Use a public constant."
            )
        shapes.append({name: str(shape) for name, shape in found.shapes.items()})
    for name, shape in shapes[0].items():
        if shape != shapes[1].get(name):
            raise UnsafeModelError(
                f"The shape of the parameter {name!r} depends on the number of rows. "
                "A parameter of every row would release the rows: write what belongs "
                "to a row as a function of it."
            )


class InitialValues(NamedTuple):
    """The values of some sites where no latent is given, as a program.

    Attributes:
      program: The program.
      argument: The first private argument that it depends on; None if there is none.
      shapes: What it returns, by site.
    """

    program: jex_core.ClosedJaxpr
    argument: str | None
    shapes: Mapping[str, Any]


def initial_values(
    model: private, arguments: ModelArguments, names: Sequence[str], count: int
) -> InitialValues:
    """Traces the values of some sites on `count` abstract rows."""

    def values(rows: Any) -> dict[str, Any]:
        messages, _ = run_model(model, arguments, rows, latents=None)
        return {name: messages[name]["value"] for name in names}

    rows = abstract_rows(arguments, count)
    closed, shapes = jax.make_jaxpr(values, return_shape=True)(rows)
    program, used = with_used_inputs(closed)
    depends_on = sorted(rows)[used.index(True)] if any(used) else None
    return InitialValues(program, depends_on, shapes)


def with_captured_constants(
    captured: Mapping[str, np.ndarray],
    fn: Callable[..., Any],
    one: Trace,
    arguments: ModelArguments,
) -> dict[str, np.ndarray]:
    """The captured arrays, and those that only show when the model runs.

    They are in the programs of its draws and densities, or have come to where the model
    refers to them while it ran, such as into a cache.

    Args:
      captured: What the model held before it ran.
      fn: The model or guide.
      one: Its trace.
      arguments: Its arguments.

    Raises:
      UnsafeModelError: One of them is of the data's length.
    """
    again = captured_arrays(fn, arguments.num_rows, with_traced=False)
    found = {**again, **captured}
    constants = []
    for program in one.programs():
        refuse_program_constants(program, arguments)
        constants += constants_of(program)
    return {**found, **unnamed(constants, found, arguments)}
