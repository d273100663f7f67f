"""Which engine runs a model, in which steps: known before any data are read."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from numpyro_vips import _validate
from numpyro_vips.conjugacy.densities import logistic_bounds
from numpyro_vips.conjugacy.structure.structure import NotConjugate
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.errors import NotConjugateError, UnsafeModelError
from numpyro_vips.fitting.schedule import (
    ScheduleOptions,
    Step,
    dpvi_schedule,
    vips_schedule,
)
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.graph import ModelGraph, build_graph
from numpyro_vips.model.synthetic_rows import rows_of_unit_size
from numpyro_vips.privacy.batch_selection import fixed_batch_size
from numpyro_vips.result import Posterior
from numpyro_vips.vips.certificate import check_rows_are_separate
from numpyro_vips.vips.compiler import compile_model
from numpyro_vips.vips.engine import VipsEngine

# How many synthetic rows the default clipping norms are read off.
NUM_TYPICAL_ROWS = 64


class Engine(Protocol):
    """What the loop needs of VIPS and of DPVI. States hold public numbers only."""

    name: str

    def initial_state(self, rng_key: jax.Array) -> Any: ...

    def bounded_sum(
        self,
        state: Any,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        scales: Mapping[str, float],
        clipping_norm: float,
    ) -> Mapping[str, Any]:
        """The clipped sum of a chunk's row contributions, not yet private."""
        ...

    def update(
        self,
        state: Any,
        released: Mapping[str, np.ndarray],
        noise_stddev: Mapping[str, float],
        step_size: float,
    ) -> Any:
        """The state after a step, from noisy estimates of the sums over all rows."""
        ...

    def has_posterior(self, state: Any) -> bool:
        """Whether all that a posterior needs has been released."""
        ...

    def posterior(self, state: Any) -> Posterior: ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What a caller asks of the engines; see `PrivateVI`.

    `dpvi` holds the options that only DPVI has, by name.
    """

    engine: str = "auto"
    structure: Mapping[str, str] = dataclasses.field(default_factory=dict)
    augmentation: logistic_bounds.Choice = logistic_bounds.DEFAULT
    local_steps: int | None = None
    guide: Any = None
    optimizer: Any = None
    dpvi: Mapping[str, Any] = dataclasses.field(
        default_factory=lambda: {"loss": None, "perturb": None, "averaging": 3.0}
    )


def unused_options(
    engine: str, schedule_options: ScheduleOptions, engine_options: EngineOptions
) -> list[str]:
    """The options that were given and that the engine, once it is known, ignores."""
    if engine == "auto":
        return []
    default = EngineOptions()
    if engine == "dpvi":
        given = {
            "structure": bool(engine_options.structure),
            "augmentation": engine_options.augmentation != default.augmentation,
            "step_size": schedule_options.step_size is not None,
            "release_once": not schedule_options.release_once,
        }
    else:
        given = {k: engine_options.dpvi.get(k, x) != x for k, x in default.dpvi.items()}
        given |= {
            "guide": engine_options.guide is not None,
            "optimizer": engine_options.optimizer is not None,
        }
    return [name for name, is_given in given.items() if is_given]


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedFit:
    """Everything about a fit that is known before the data are read."""

    arguments: ModelArguments
    graph: ModelGraph
    engine: Engine
    steps: tuple[Step, ...]
    reasons: Mapping[str, str]


def prepare_fit(
    model: private,
    arguments: ModelArguments,
    schedule_options: ScheduleOptions,
    engine_options: EngineOptions,
) -> PreparedFit:
    """Chooses an engine and plans its steps; reads shapes, not values.

    Raises:
      NotConjugateError: VIPS was asked for and cannot run the model.
      UnsafeModelError: No engine may run the model.
      TypeError, ValueError: The settings do not fit the model.
    """
    if schedule_options.scheme == "without_replacement":
        fixed_batch_size(schedule_options.rate, arguments.num_rows)
    try:
        graph = build_graph(model, arguments)
        check_rows_are_separate(graph)
    except Exception as error:
        if not isinstance(error, UnsafeModelError):
            # Perhaps the model's own, as after arguments in the wrong order.
            error.add_note(
                "This happened while the model was tried on synthetic arrays shaped "
                f"like its arguments, {arguments!r}, with fewer rows. Nothing was "
                "charged to the privacy budget."
            )
        raise
    reasons: dict[str, str] = {}
    if graph.params:
        reasons = dict.fromkeys(graph.params, "a parameter without a prior")
    elif engine_options.engine != "dpvi" and engine_options.guide is None:
        try:
            program = compile_model(
                model,
                graph,
                structure=engine_options.structure,
                augmentation=engine_options.augmentation,
            )
        except NotConjugate as error:
            reasons = error.reasons
        else:
            engine = VipsEngine(
                program,
                num_rows=arguments.public_num_rows,
                local_steps=engine_options.local_steps,
                num_steps=schedule_options.num_steps,
            )
            steps = _vips_steps(engine, arguments, schedule_options)
            return PreparedFit(
                arguments=arguments,
                graph=graph,
                engine=engine,
                steps=steps,
                reasons={},
            )
    if engine_options.engine == "vips":
        details = "; ".join(f"{site}: {why}" for site, why in reasons.items())
        raise NotConjugateError(
            f"The model is not conjugate-exponential: {details}. Use engine='dpvi' "
            "or 'auto', or change the model there."
        )
    try:
        dpvi = DpviEngine(
            graph,
            guide=engine_options.guide or "mean_field",
            optimizer=engine_options.optimizer,
            local_steps=engine_options.local_steps,
            **engine_options.dpvi,
        )
    except UnsafeModelError as error:
        if not reasons:
            raise
        details = " ".join(f"{site}: {why}." for site, why in reasons.items())
        raise UnsafeModelError(
            f"{error} VIPS cannot run it either. {details}"
        ) from None
    if isinstance(schedule_options.clipping_norm, Mapping):
        raise ValueError(
            "Expected clipping_norm= to be one number: the model runs by DPVI, "
            "whose gradient is one vector. See explain for the reason."
        )
    steps = dpvi_schedule(
        dpvi.blocks,
        _typical_norms(
            dpvi, [b.name for b in dpvi.blocks], arguments, schedule_options
        ),
        schedule_options,
        has_own_optimizer=engine_options.optimizer is not None,
    )
    return PreparedFit(
        arguments=arguments, graph=graph, engine=dpvi, steps=steps, reasons=reasons
    )


def _vips_steps(
    engine: VipsEngine, arguments: ModelArguments, schedule_options: ScheduleOptions
) -> tuple[Step, ...]:
    if isinstance(schedule_options.clipping_norm, Mapping):
        known = [s.name for s in engine.program.structure.statistics]
        given = schedule_options.clipping_norm
        _validate.names("clipping_norm", given, known, of="statistics")
    once, adaptive = engine.blocks("once"), engine.blocks("adaptive")
    names = [block.name for block in (*once, *adaptive)]
    norms = _typical_norms(engine, names, arguments, schedule_options)
    return vips_schedule(once, adaptive, norms, schedule_options)


def _typical_norms(
    engine: VipsEngine | DpviEngine,
    names: Sequence[str],
    arguments: ModelArguments,
    schedule_options: ScheduleOptions,
) -> Mapping[str, np.ndarray]:
    """Norms of each block in synthetic rows, where a default is read off them."""
    if not schedule_options.private or schedule_options.clipping_norm is not None:
        return {}
    state: Any = engine.initial_state(threefry_key(0))
    for rows in rows_of_unit_size(arguments, NUM_TYPICAL_ROWS):
        norms = engine.row_norms(state, arguments.as_taken(rows), names)
        needed = list(norms.values())
        if isinstance(engine, DpviEngine):
            # A layer of a network may well have no gradient at the start.
            needed = [np.sqrt(sum(n**2 for n in needed))]
        if all(np.all(np.isfinite(n)) and np.any(n > 0) for n in needed):
            return norms
    raise ValueError(
        "No default clipping norm could be found for this model: synthetic rows are "
        "not valid observations of it. Pass clipping_norm=, a bound on the L2 norm "
        "of one row's statistics, chosen from public knowledge."
    )
