"""Which engine runs a model, in which steps: known before any data are read."""

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any, Literal

from numpyro_vips import _validate
from numpyro_vips.conjugacy.structure.structure import NotConjugate
from numpyro_vips.dpvi.settings import DPVI
from numpyro_vips.errors import NotConjugateError, UnsafeModelError
from numpyro_vips.fitting.bounds import NormPart, norm_parts
from numpyro_vips.fitting.engine import Engine, EngineSettings
from numpyro_vips.fitting.schedule import ScheduleOptions, Step, plan_steps
from numpyro_vips.fitting.sum_rounding import with_rounding
from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.axis_labels import AxisLabels, axis_labels
from numpyro_vips.model.graph import ModelGraph, build_graph
from numpyro_vips.privacy.batch_selection import fixed_batch_size
from numpyro_vips.vips.certificate import check_rows_are_separate
from numpyro_vips.vips.settings import VIPS

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
      parts: What has a norm, and what is known of it; empty where the caller gave
        norms.
      steps: What is released when, with noise up to a common factor.
      reasons: Why VIPS cannot run the model, by site, if it was tried.
      axis_labels: What numbers the axes of globals, where it is known, see
        `axis_labels`.
      rehearsed: The kinds of steps that the engine has compiled, see `rehearse`.
    """

    arguments: ModelArguments
    graph: ModelGraph
    settings: EngineSettings
    engine: Engine
    parts: tuple[NormPart, ...]
    steps: tuple[Step, ...]
    reasons: Mapping[str, str]
    axis_labels: AxisLabels = dataclasses.field(default_factory=dict)
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
    needs_norms = options.private and options.clipping_norm is None
    parts = norm_parts(engine, graph) if needs_norms else ()
    steps = plan_steps(engine, parts, options)
    return PreparedFit(
        arguments=arguments,
        graph=graph,
        settings=settings,
        engine=engine,
        parts=parts,
        steps=with_rounding(steps, arguments.public_num_rows, options.max_batch_size),
        reasons=reasons,
        axis_labels=axis_labels(model, graph),
    )


def _build(
    choice: EngineChoice, model: private, graph: ModelGraph, options: ScheduleOptions
) -> tuple[EngineSettings, Engine, Mapping[str, str]]:
    """The engine's settings, the engine, and why it is not VIPS if that was tried."""
    settings = VIPS() if choice == "auto" else choice
    steps: Any = {
        "num_steps": options.num_steps,
        "until_converged": options.until_converged,
        "has_norms": options.clipping_norm is not None,
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
