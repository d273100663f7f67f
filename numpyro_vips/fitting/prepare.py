"""A fit as it is known before any data are read: its engine and its steps."""

import dataclasses
from collections.abc import Hashable, Mapping

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.fitting.advantages.curvature_noise import curvature_share
from numpyro_vips.fitting.bounds.norm_parts import NormPart, norm_parts
from numpyro_vips.fitting.engine import Engine, EngineSettings
from numpyro_vips.fitting.engine_choice import (
    ChosenEngine,
    EngineChoice,
    choose_engine,
)
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
from numpyro_vips.model.facts.parameter_ranges import (
    OutOfRange,
    parameters_out_of_range,
)
from numpyro_vips.model.graph import ModelGraph, build_graph
from numpyro_vips.privacy.batch_selection import fixed_batch_size
from numpyro_vips.vips.compile.certificate import check_rows_are_separate


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparedFit:
    """Everything about a fit that is known before the data are read.

    Attributes:
      arguments: The model's arguments; the only field that may hold rows.
      graph: What was found in the model.
      choice: The engine, and why it was chosen.
      parts: What has a norm, and what is known of it; empty where the caller gave
        norms.
      steps: What is released when, with noise up to a common factor.
      axis_labels: What numbers the axes of globals, where it is known, see
        `axis_labels`.
      exposed: Which rates are proportional to which arguments, see `exposures`.
      out_of_range: See `parameters_out_of_range`.
      loops_until_rows_stop: Whether what runs on rows has such a loop; see
        `loops_of_rows`.
      rehearsed: The kinds of steps that the engine has compiled, see `rehearse`.
    """

    arguments: ModelArguments
    graph: ModelGraph
    choice: ChosenEngine
    parts: tuple[NormPart, ...]
    steps: tuple[Step, ...]
    axis_labels: AxisLabels
    exposed: Mapping[str, tuple[str, ...]]
    out_of_range: tuple[OutOfRange, ...]
    loops_until_rows_stop: bool
    rehearsed: set[Hashable] = dataclasses.field(default_factory=set)

    @property
    def engine(self) -> Engine:
        """What runs the steps."""
        return self.choice.engine

    @property
    def settings(self) -> EngineSettings:
        """The settings that the engine was built with."""
        return self.choice.settings

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
      engine_choice, options, noise_multiplier: See `choose_engine`.

    Raises:
      NotConjugateError: VIPS was asked for and cannot run the model.
      UnsafeModelError: No engine may run the model.
      TypeError, ValueError: The settings do not fit the model.
    """
    arguments = arguments.without_rows()
    if options.sampling.scheme == "without_replacement":
        fixed_batch_size(options.sampling.rate, arguments.num_rows)
    graph = _graph_of(model, arguments)
    choice = choose_engine(model, graph, engine_choice, options, noise_multiplier)
    needs_norms = options.private and options.clipping_norm is None
    parts = norm_parts(choice.engine, graph) if needs_norms else ()
    share = curvature_share(choice.curvature_noise, noise_multiplier)
    counts_rows = arguments.num_rows_declared and choice.engine.has_public_sums
    steps = plan_steps(
        choice.engine,
        parts,
        options,
        curvature_share=share,
        counts_rows=counts_rows and options.private,
    )
    of_rows = _programs_of_rows(graph, choice.engine)
    return PreparedFit(
        arguments=arguments,
        graph=graph,
        choice=choice,
        parts=parts,
        steps=with_rounding(steps, arguments.public_num_rows, options.max_batch_size),
        axis_labels=axis_labels(model, graph),
        exposed=exposures(graph),
        out_of_range=parameters_out_of_range(graph),
        loops_until_rows_stop=any(map(loops_until_rows_stop, of_rows)),
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
