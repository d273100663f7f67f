"""Which engine runs a model, in which steps: known before any data are read."""

import dataclasses
import functools
from collections.abc import Hashable, Mapping
from typing import Any, Literal

import numpy as np

from numpyro_vips import _validate
from numpyro_vips.conjugacy.structure.structure import NotConjugate
from numpyro_vips.dpvi.settings import DPVI
from numpyro_vips.errors import NotConjugateError, UnsafeModelError
from numpyro_vips.fitting.engine import Engine, EngineSettings
from numpyro_vips.fitting.schedule import ScheduleOptions, Step, plan_steps
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.graph import ModelGraph, build_graph
from numpyro_vips.model.prior_predictive import NoValidRows, rows_from_model
from numpyro_vips.model.synthetic_rows import rows_of_unit_size
from numpyro_vips.privacy.batch_selection import fixed_batch_size
from numpyro_vips.vips.certificate import check_rows_are_separate
from numpyro_vips.vips.settings import VIPS

# How many synthetic rows the default clipping norms are read off.
NUM_TYPICAL_ROWS = 64
# At the first start the gradients of all rows may be zero, as where the model clips a
# latent at its prior's centre. So many starts are tried.
_NUM_STARTS = 32

EngineChoice = VIPS | DPVI | Literal["auto"]


def as_engine_choice(engine: Any) -> EngineChoice:
    """What `PrivateVI(engine=...)` means: `"vips"` is short for `VIPS()`.

    Raises:
      TypeError, ValueError: It is neither a name nor an engine's settings.
    """
    if isinstance(engine, VIPS | DPVI):
        return engine
    if isinstance(engine, str):
        _validate.one_of(("auto", "vips", "dpvi"), engine=engine)
        if engine == "auto":
            return "auto"
        return VIPS() if engine == "vips" else DPVI()
    got = f"an object of type {type(engine).__name__}"
    if isinstance(engine, type):
        got = f"the class {engine.__name__} itself"
    raise TypeError(
        "Expected engine to be 'auto', 'vips', 'dpvi', nv.VIPS(...) or nv.DPVI(...), "
        f"got {got}."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedFit:
    """Everything about a fit that is known before the data are read.

    Attributes:
      arguments: The model's arguments; the only field that may hold rows.
      graph: What was found in the model.
      settings: The settings that the engine was built with.
      engine: What runs the steps.
      steps: What is released when, with noise up to a common factor.
      reasons: Why VIPS cannot run the model, by site, if it was tried.
      rehearsed: The kinds of steps that the engine has compiled, see `rehearse`.
    """

    arguments: ModelArguments
    graph: ModelGraph
    settings: EngineSettings
    engine: Engine
    steps: tuple[Step, ...]
    reasons: Mapping[str, str]
    rehearsed: set[Hashable] = dataclasses.field(default_factory=set)


def prepare_fit(
    model: private,
    arguments: ModelArguments,
    engine_choice: EngineChoice,
    options: ScheduleOptions,
) -> PreparedFit:
    """Chooses an engine and plans its steps; reads shapes, not values.

    The engine never gets hold of the rows of `arguments`, only of their shapes.

    Raises:
      NotConjugateError: VIPS was asked for and cannot run the model.
      UnsafeModelError: No engine may run the model.
      TypeError, ValueError: The settings do not fit the model.
    """
    arguments = arguments.without_rows()
    if options.sampling.scheme == "without_replacement":
        fixed_batch_size(options.sampling.rate, arguments.num_rows)
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
    settings, engine, reasons = _build(engine_choice, model, graph, options)
    _check_norms(engine, options)
    return PreparedFit(
        arguments=arguments,
        graph=graph,
        settings=settings,
        engine=engine,
        steps=plan_steps(engine, _typical_norms(engine, graph, options), options),
        reasons=reasons,
    )


def _build(
    choice: EngineChoice, model: private, graph: ModelGraph, options: ScheduleOptions
) -> tuple[EngineSettings, Engine, Mapping[str, str]]:
    """The engine's settings, the engine, and why it is not VIPS if that was tried."""
    settings = VIPS() if choice == "auto" else choice
    steps: Any = {
        "num_steps": options.num_steps,
        "until_converged": options.until_converged,
    }
    try:
        return settings, settings.build_engine(model, graph, **steps), {}
    except NotConjugate as error:
        reasons = error.reasons
    if choice != "auto":
        details = "; ".join(f"{site}: {why}" for site, why in reasons.items())
        raise NotConjugateError(
            f"The model is not conjugate-exponential: {details}. Use engine='dpvi' "
            "or 'auto', or change the model there."
        )
    settings = DPVI()
    try:
        engine = settings.build_engine(model, graph, **steps)
    except UnsafeModelError as error:
        details = " ".join(f"{site}: {why}." for site, why in reasons.items())
        raise UnsafeModelError(
            f"{error} VIPS cannot run it either. {details}"
        ) from None
    return settings, engine, reasons


def _check_norms(engine: Engine, options: ScheduleOptions) -> None:
    """Refuses norms of statistics that the engine does not have."""
    given = options.clipping_norm
    if not isinstance(given, Mapping):
        return
    if engine.is_one_vector:
        raise ValueError(
            "Expected clipping_norm= to be one number: the model runs by "
            f"{engine.name.upper()}, whose gradient is one vector. See explain for the "
            "reason."
        )
    known = [row["statistic"] for row in engine.describe_statistics()]
    _validate.names("clipping_norm", given, known, of="statistics")


def _typical_norms(
    engine: Engine, graph: ModelGraph, options: ScheduleOptions
) -> Mapping[str, np.ndarray]:
    """Norms of each block in synthetic rows, where a default is read off them."""
    if not options.private or options.clipping_norm is not None:
        return {}
    names = [b.name for b in (*engine.blocks("once"), *engine.blocks("adaptive"))]

    @functools.cache
    def state_at(start: int) -> Any:
        return engine.initial_state(threefry_key(start))

    def norms_of(rows: Mapping[str, np.ndarray], start: int = 0) -> dict[str, Any]:
        """Of the rows that the engine counts."""
        taken = graph.arguments.as_taken(rows)
        norms = engine.row_norms(state_at(start), taken, names)
        counted = np.all([np.isfinite(n) for n in norms.values()], axis=0)
        return {name: norm[counted] for name, norm in norms.items()}

    valid = []
    for rows in rows_of_unit_size(graph.arguments, NUM_TYPICAL_ROWS):
        norms = norms_of(rows)
        if len(norms[names[0]]) == NUM_TYPICAL_ROWS:
            if _are_known(norms, engine):
                return norms
            valid = [rows]
    why = "the gradient of every synthetic row that was tried is zero or not finite."
    try:
        valid.append(rows_from_model(graph, NUM_TYPICAL_ROWS, seed=0).rows)
    except NoValidRows as error:
        why = str(error)
    for start in range(_NUM_STARTS):
        for rows in valid:
            norms = norms_of(rows, start)
            if _are_known(norms, engine):
                return norms
    raise ValueError(
        f"No default clipping norm could be found for this model: {why} Pass "
        "clipping_norm=, a bound on the L2 norm of one row's statistics, chosen from "
        "public knowledge; or arguments of the type that the model means, such as "
        "real numbers for what it divides by."
    )


def _are_known(norms: Mapping[str, np.ndarray], engine: Engine) -> bool:
    """Whether there is a norm above zero of every block, or of the one vector."""
    if engine.is_one_vector:
        # A part of it, as of a layer of a network, may well be zero at the start.
        return any(np.any(norm > 0) for norm in norms.values())
    return all(np.any(norm > 0) for norm in norms.values())
