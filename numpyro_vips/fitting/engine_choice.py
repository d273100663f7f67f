"""Which engine runs a model: chosen before any data are read."""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from numpyro_vips import _validate
from numpyro_vips.dpvi.settings import DPVI
from numpyro_vips.errors import NotConjugateError, UnsafeModelError
from numpyro_vips.fitting.advantages.curvature_noise import (
    SHARES,
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
from numpyro_vips.fitting.engine import Engine, EngineSettings
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.handlers import private
from numpyro_vips.model.graph import ModelGraph
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


class ChosenEngine(NamedTuple):
    """The engine that runs a model, and what it was chosen by; all of it is public.

    Attributes:
      settings: The settings that the engine was built with.
      engine: What runs the steps.
      reasons: Why VIPS cannot run the model, by site, if it was tried.
      curvature_noise: By how much noise exceeds the curvature that VIPS would release,
        for a noise multiplier of 1; see `curvature_noise`. 0 where VIPS was not tried.
      may_be_left_to_dpvi: Whether that is reason enough to take DPVI; see there.
      hides_curvature: Whether it does so by too much at this fit's budget. Then
        `"auto"` has taken DPVI, if that can run the model.
      rows_for_groups: How many rows show effects of groups beside other coefficients,
        where VIPS could run the model; see `group_effects`.
      advantage: Why `"auto"` has taken DPVI where VIPS could run the model; None where
        it has not.
    """

    settings: EngineSettings
    engine: Engine
    reasons: Mapping[str, str]
    curvature_noise: float
    may_be_left_to_dpvi: bool
    hides_curvature: bool
    rows_for_groups: float
    advantage: Advantage | None


def choose_engine(
    model: private,
    graph: ModelGraph,
    engine_choice: EngineChoice,
    options: ScheduleOptions,
    noise_multiplier: float | None,
) -> ChosenEngine:
    """The engine that was asked for, or the one that is predicted to be better.

    Args:
      model, graph: The model, and what was found in it.
      engine_choice: By which engine, if the caller says.
      options: In which steps, as far as the caller says.
      noise_multiplier: That of a single release from all rows on which the fit's whole
        budget is spent; None where it is not known, or the caller has fixed the noise.

    Raises:
      NotConjugateError: VIPS was asked for and cannot run the model.
      UnsafeModelError: No engine may run the model.
      ValueError: The caller's norms do not fit the engine.
    """
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
    return ChosenEngine(
        settings=settings,
        engine=engine,
        reasons=reasons,
        curvature_noise=per_noise,
        may_be_left_to_dpvi=many_columns,
        hides_curvature=is_hidden,
        rows_for_groups=for_groups,
        advantage=advantage,
    )


def _advantage(
    engine: Engine,
    options: ScheduleOptions,
    noise_multiplier: float | None,
    for_groups: float,
) -> Advantage | None:
    """What DPVI is predicted to be better at than VIPS, but for the curvature.

    Args:
      engine: The one that would run the model.
      options, noise_multiplier: See `choose_engine`.
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
      model, graph, options: See `choose_engine`.
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
