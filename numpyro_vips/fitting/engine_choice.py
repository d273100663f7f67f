"""Which engine runs a model, in which steps: known before any data are read."""

import dataclasses
import math
from collections.abc import Hashable, Mapping
from typing import Any, Literal

from numpyro_vips import _validate
from numpyro_vips.dpvi.settings import DPVI
from numpyro_vips.errors import NotConjugateError, UnsafeModelError
from numpyro_vips.fitting.advantages.curvature_noise import (
    SHARES,
    curvature_share,
    hides_curvature,
    may_be_left_to_dpvi,
    noise_over_curvature,
)
from numpyro_vips.fitting.advantages.group_effects import hides_groups, rows_for_groups
from numpyro_vips.fitting.advantages.marginal_latents import (
    affords_scores,
    has_cusps,
    is_better_marginal,
    is_left_open,
)
from numpyro_vips.fitting.advantages.statistics_about_zero import are_about_zero
from numpyro_vips.fitting.bounds.norm_parts import NormPart, norm_parts
from numpyro_vips.fitting.engine import Engine, EngineSettings
from numpyro_vips.fitting.schedule import plan_steps
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.fitting.step import Step
from numpyro_vips.fitting.sum_rounding import with_rounding
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.program_digests import digest_of_programs
from numpyro_vips.jax_tools.user_lines import line_of_error
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.facts.axis_labels import AxisLabels, axis_labels
from numpyro_vips.model.facts.exposures import exposures
from numpyro_vips.model.facts.loops_of_rows import (
    ProgramOfRows,
    loops_until_rows_stop,
    program_of_model,
)
from numpyro_vips.model.facts.parameter_ranges import chances_out_of_range
from numpyro_vips.model.graph import ModelGraph, build_graph
from numpyro_vips.privacy.batch_selection import fixed_batch_size
from numpyro_vips.vips.compile.certificate import check_rows_are_separate
from numpyro_vips.vips.description import can_be_summed_out
from numpyro_vips.vips.engine import VipsEngine
from numpyro_vips.vips.settings import VIPS

EngineChoice = VIPS | DPVI | Literal["auto"]
# What DPVI is better at, where VIPS could run the model; see `curvature_noise`,
# `marginal_latents`, `group_effects` and `statistics_about_zero`.
Advantage = Literal[
    "no curvature", "marginal latents", "no cusps", "group effects", "points"
]


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
      curvature_noise: By how much noise exceeds the curvature that VIPS would release,
        for a noise multiplier of 1; see `curvature_noise`. 0 where VIPS was not tried.
      may_be_left_to_dpvi: Whether that is reason enough to take DPVI; see there.
      hides_curvature: Whether it does so by too much at this fit's budget. Then
        `engine_choice="auto"` has taken DPVI, if that can run the model.
      rows_for_groups: How many rows show effects of groups beside other coefficients,
        where VIPS could run the model; see `group_effects`.
      advantage: Why `engine_choice="auto"` has taken DPVI where VIPS could run the
        model; None where it has not.
      exposed: Which rates are proportional to which arguments, see `exposures`.
      out_of_range: Which chances leave [0, 1], see `chances_out_of_range`.
      loops_until_rows_stop: Whether what runs on rows has such a loop; see
        `loops_of_rows`.
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
    curvature_noise: float = 0.0
    may_be_left_to_dpvi: bool = False
    hides_curvature: bool = False
    rows_for_groups: float = 0.0
    advantage: Advantage | None = None
    exposed: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    out_of_range: Mapping[str, str] = dataclasses.field(default_factory=dict)
    loops_until_rows_stop: bool = False
    rehearsed: set[Hashable] = dataclasses.field(default_factory=set)

    @property
    def digest(self) -> str:
        """What decides what a row contributes at a given state.

        It differs where programs that run on rows do, or what is public in them.
        """
        programs = _programs_of_rows(self.graph, self.engine)
        public = {**self.arguments.public, **self.graph.captured}
        return digest_of_programs([of_rows.program for of_rows in programs], public)


def prepare_fit(
    model: private,
    arguments: ModelArguments,
    engine_choice: EngineChoice,
    options: ScheduleOptions,
    noise_multiplier: float | None,
) -> PreparedFit:
    """Chooses an engine and plans its steps; reads shapes, not values.

    The engine never gets hold of the rows of `arguments`, only of their shapes.

    Args:
      model, arguments: What is fitted.
      engine_choice: By which engine, if the caller says.
      options: In which steps, as far as the caller says.
      noise_multiplier: That of a single release from all rows on which the fit's whole
        budget is spent; None where it is not known, or the caller has fixed the noise.

    Raises:
      NotConjugateError: VIPS was asked for and cannot run the model.
      UnsafeModelError: No engine may run the model.
      TypeError, ValueError: The settings do not fit the model.
    """
    arguments = arguments.without_rows()
    if options.sampling.scheme == "without_replacement":
        fixed_batch_size(options.sampling.rate, arguments.num_rows)
    graph = _graph_of(model, arguments)
    settings, engine, reasons = _build(engine_choice, model, graph, options)
    per_noise, many_columns = 0.0, may_be_left_to_dpvi(engine)
    if options.private:
        per_noise = noise_over_curvature(
            engine,
            num_rows=graph.arguments.public_num_rows,
            share=SHARES[0],
            relation=options.sampling.relation,
        )
    is_hidden = many_columns and hides_curvature(
        per_noise, _noise_of_all_steps(engine, options) or noise_multiplier
    )
    share = curvature_share(per_noise, noise_multiplier)
    advantage, for_groups = None, 0.0
    if isinstance(engine, VipsEngine):
        for_groups = rows_for_groups(engine.program)
    if engine_choice == "auto" and is_hidden:
        advantage = "no curvature"
    elif engine_choice == "auto":
        advantage = _advantage(engine, options, noise_multiplier, for_groups)
    if advantage is not None:
        knows_noise = options.private and advantage != "no curvature"
        dpvi = _dpvi_instead(model, graph, options, knows_noise=knows_noise)
        if dpvi is None:
            advantage = None
        else:
            settings, engine = dpvi
    _check_norms(engine, options)
    needs_norms = options.private and options.clipping_norm is None
    parts = norm_parts(engine, graph) if needs_norms else ()
    steps = plan_steps(engine, parts, options, curvature_share=share)
    return PreparedFit(
        arguments=arguments,
        graph=graph,
        settings=settings,
        engine=engine,
        parts=parts,
        steps=with_rounding(steps, arguments.public_num_rows, options.max_batch_size),
        reasons=reasons,
        axis_labels=axis_labels(model, graph),
        curvature_noise=per_noise,
        may_be_left_to_dpvi=many_columns,
        hides_curvature=is_hidden,
        rows_for_groups=for_groups,
        advantage=advantage,
        exposed=exposures(graph),
        out_of_range=chances_out_of_range(graph),
        loops_until_rows_stop=any(
            map(loops_until_rows_stop, _programs_of_rows(graph, engine))
        ),
    )


def _programs_of_rows(graph: ModelGraph, engine: Engine) -> tuple[ProgramOfRows, ...]:
    """All that the caller has written and that runs on rows."""
    return program_of_model(graph), *engine.programs_of_rows


def _graph_of(model: private, arguments: ModelArguments) -> ModelGraph:
    """The model's graph, whose rows are separate.

    Raises:
      Exception: Whatever the model raises, with a note of where that was.
    """
    try:
        graph = build_graph(model, arguments)
        check_rows_are_separate(graph)
    except Exception as error:
        if not isinstance(error, UnsafeModelError):
            # Perhaps the model's own, as after arguments in the wrong order.
            error.add_note(
                "This happened while the model was tried on synthetic arrays shaped "
                f"like its arguments, {arguments!r}, but with one, two or three rows"
                f"{line_of_error(error)}. Nothing was charged to the privacy budget."
            )
        raise
    return graph


def _advantage(
    engine: Engine,
    options: ScheduleOptions,
    noise_multiplier: float | None,
    for_groups: float,
) -> Advantage | None:
    """What DPVI is predicted to be better at than VIPS, but for the curvature.

    Args:
      engine: The one that would run the model.
      options, noise_multiplier: See `prepare_fit`.
      for_groups: See `rows_for_groups`.
    """
    if not isinstance(engine, VipsEngine):
        return None
    program = engine.program
    if is_better_marginal(engine, options, noise_multiplier):
        is_cusp = has_cusps(program) and not can_be_summed_out(program)
        return "no cusps" if is_cusp else "marginal latents"
    if not (options.private and is_left_open(options)):
        return None
    if not affords_scores(engine.num_rows, noise_multiplier):
        return None
    if hides_groups(for_groups, engine.num_rows, noise_multiplier):
        return "group effects"
    return "points" if are_about_zero(program) else None


def _noise_of_all_steps(engine: Engine, options: ScheduleOptions) -> float | None:
    """The noise multiplier of one release that is as dear as all steps of a fit.

    None where the caller has not fixed that of a step.
    """
    if options.noise_multiplier is None:
        return None
    num_steps = options.num_steps or engine.default_num_steps(
        is_private=True, until_converged=False
    )
    return options.noise_multiplier / (options.sampling.rate * math.sqrt(num_steps))


def _dpvi_instead(
    model: private,
    graph: ModelGraph,
    options: ScheduleOptions,
    *,
    knows_noise: bool,
) -> tuple[EngineSettings, Engine] | None:
    """DPVI, if it can run a model that VIPS can.

    Args:
      model, graph, options: See `prepare_fit`.
      knows_noise: Whether it is only taken with a posterior that knows of the noise, as
        of not too many globals.
    """
    if isinstance(options.clipping_norm, Mapping):
        return None  # The caller has VIPS' statistics in mind.
    settings = DPVI()
    try:
        engine = _built(settings, model, graph, options)
    except UnsafeModelError:
        return None
    if knows_noise and not engine.blocks("information"):
        return None
    return settings, engine


def _built(
    settings: EngineSettings,
    model: private,
    graph: ModelGraph,
    options: ScheduleOptions,
) -> Engine:
    """The engine of these settings; see `EngineSettings.build_engine`."""
    return settings.build_engine(
        model,
        graph,
        num_steps=options.num_steps,
        until_converged=options.until_converged,
        has_norms=options.clipping_norm is not None,
    )


def _build(
    choice: EngineChoice, model: private, graph: ModelGraph, options: ScheduleOptions
) -> tuple[EngineSettings, Engine, Mapping[str, str]]:
    """The engine's settings, the engine, and why it is not VIPS if that was tried."""
    settings = VIPS() if choice == "auto" else choice
    try:
        return settings, _built(settings, model, graph, options), {}
    except NotConjugateError as error:
        reasons = error.reasons
    if choice != "auto":
        details = "; ".join(f"{site}: {why}" for site, why in reasons.items())
        raise NotConjugateError(
            reasons,
            f"The model is not conjugate-exponential: {details}. Use engine='dpvi' "
            "or 'auto', or change the model there.",
        )
    settings = DPVI()
    try:
        engine = _built(settings, model, graph, options)
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
