"""What the caller gets of a fit: its posterior, and what is to be known of it.

That is made of released numbers and public facts; only a fit without noise looks at
rows once more.
"""

import contextlib
import dataclasses
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from numpyro_vips.accounting import Accountant
from numpyro_vips.errors import UnusablePosteriorError, quoted
from numpyro_vips.fitting.engine import Engine
from numpyro_vips.fitting.prepare import PreparedFit
from numpyro_vips.fitting.pricing import PricedSteps
from numpyro_vips.fitting.prior_disagreement import prior_disagreements
from numpyro_vips.fitting.progress import Progress
from numpyro_vips.fitting.row_warnings import warnings_on_rows
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.fitting.step import events_of
from numpyro_vips.fitting.weighed_draws import weighed_draws
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.program_constants import listed
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.privacy.statement import PrivacyStatement
from numpyro_vips.result import PrivateVIResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitResults:
    """The results of a fit, with what is known of it before its first step.

    Attributes:
      model: The model, which answers what is asked of rows.
      prepared: What was found in it, its engine and the steps.
      options: How rows are drawn, and whether there is noise at all.
      plan: What `explain` says of them.
      priced: The steps with their noise, and what was charged for them.
      accountant: Who priced them.
      settings: All settings of the fit, JSON-able.
      noise_source: What the statement says of the noise.
      platform: What the public side runs on.
      seconds: How long planning and compiling took.
      compiled: When that was done, by `time.perf_counter`.
      programs: What queries of rows have compiled, shared by the fit's results.
    """

    model: private
    prepared: PreparedFit
    options: ScheduleOptions
    plan: str
    priced: PricedSteps
    accountant: Accountant
    settings: Mapping[str, Any]
    noise_source: str
    platform: str
    seconds: Mapping[str, float]
    compiled: float
    programs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def of(self, state: Any, progress: Progress) -> PrivateVIResult:
        """The result of a state, whose posterior may be none that can be used."""
        prepared, engine = self.prepared, self.prepared.engine
        posterior = engine.posterior(state)
        jax.block_until_ready(posterior.params)
        of_engine = engine.diagnostics(state)
        on_rows = warnings_on_rows(prepared, self.options, state, progress, of_engine)
        return PrivateVIResult(
            posterior=posterior,
            privacy=self.statement(progress, on_rows),
            engine=engine.name,
            plan=self.plan,
            settings=self.settings,
            diagnostics=_diagnostics(of_engine, progress, on_rows),
            seconds={**self.seconds, "running": time.perf_counter() - self.compiled},
            axis_labels=prepared.axis_labels,
            model=self.model,
            _for_row_queries=prepared.settings.for_row_queries,
            _programs=self.programs,
        )

    def statement(
        self, progress: Progress, remarks: Sequence[str] = ()
    ) -> PrivacyStatement:
        """The guarantee of the fit, and what has been released of its rows so far.

        Args:
          progress: The steps with the norms that they clip to, as far as released.
          remarks: What was found out about bounds and rows: a sentence or some each.
        """
        arguments = self.prepared.arguments
        norms = tuple(
            dict.fromkeys(
                step.clipping_norm
                for step in progress.steps
                if not step.counted and step.clipping_norm is not None
            )
        )
        if not self.options.private:
            norms = (math.inf,)
        return PrivacyStatement(
            unit=self.prepared.graph.unit,
            relation=self.options.sampling.relation,
            sampling=self.options.sampling.scheme,
            epsilon=self.priced.epsilon,
            delta=self.priced.delta,
            accountant=self.accountant,
            events=events_of(progress.steps) if self.options.private else (),
            noise_source=self.noise_source,
            public=_public_facts(self.prepared),
            clipping_norm=norms[0] if len(norms) == 1 else norms,
            engine=self.prepared.engine.name,
            platform=self.platform,
            num_rows=arguments.public_num_rows,
            num_rows_declared=arguments.num_rows_declared,
            shares=progress.shares,
            remarks=tuple(remarks),
        )

    def of_last(self, state: Any, progress: Progress) -> PrivateVIResult:
        """The result of the last state, and what a look at the whole of it says.

        Raises:
          UnusablePosteriorError: It is no posterior.
        """
        with kept_if_lost(self.prepared.engine, self.options, state):
            result = self.of(state, progress)
        problems = result.posterior.problems()
        if problems:
            raise UnusablePosteriorError(
                _without_posterior(problems, result),
                result=result,
                released=self.prepared.engine.released(state),
            )
        if self.options.private:
            return _with_prior_disagreements(result, self.prepared.graph)
        if self.options.until_converged:
            return _with_weighed_draws(result, self.prepared)
        return result


@contextlib.contextmanager
def kept_if_lost(
    engine: Engine,
    options: ScheduleOptions,
    state: Any,
    last: Mapping[str, np.ndarray] | None = None,
) -> Iterator[None]:
    """Hands over what was paid for where nothing can be made of it.

    At bounds or under noise of extreme size a matrix may be singular, or a number too
    large. An error then is not to take away what has been released. Errors that say
    nothing of numbers, as that memory is full, are raised as they are.

    Args:
      engine, options: Of the fit.
      state: What the steps so far have made of their releases.
      last: A release that is no part of the state yet.

    Raises:
      UnusablePosteriorError: An error of arithmetic or of values was raised, under
        privacy.
    """
    try:
        yield
    except (ArithmeticError, ValueError) as error:
        if not options.private or isinstance(error, UnusablePosteriorError):
            raise
        raise UnusablePosteriorError(
            "No posterior could be made of what was released: "
            f"{type(error).__name__}: {error}. The charge stays, and what it paid for "
            "is in this error's `released`. Clip to a norm that rows have, scale the "
            "rows to about -1 to 1, or give the fit a larger epsilon.",
            result=None,
            released={**engine.released(state), **(last or {})},
        ) from error


def _with_prior_disagreements(
    result: PrivateVIResult, graph: ModelGraph
) -> PrivateVIResult:
    diagnosed = result.diagnostics
    # Either engine says of some of them that noise hides them.
    unclear = {*diagnosed.get("below_noise", ()), *diagnosed.get("clarity", ())}
    found = prior_disagreements(graph, result.posterior.moments(), unclear)
    texts = [*result.diagnostics["warnings"], *found]
    diagnostics = {**result.diagnostics, "warnings": texts}
    privacy = result.privacy
    privacy = dataclasses.replace(privacy, remarks=(*privacy.remarks, *found))
    return dataclasses.replace(result, diagnostics=diagnostics, privacy=privacy)


def _with_weighed_draws(
    result: PrivateVIResult, prepared: PreparedFit
) -> PrivateVIResult:
    found = weighed_draws(prepared.graph, result.posterior, prepared.arguments)
    texts = [*result.diagnostics["warnings"], *found.get("warnings", ())]
    diagnostics = {**result.diagnostics, **found, "warnings": texts}
    return dataclasses.replace(result, diagnostics=diagnostics)


def _diagnostics(
    of_engine: Mapping[str, Any], progress: Progress, on_rows: Sequence[str]
) -> dict[str, Any]:
    """What the engine says of its state, with what was released of the rows."""
    return {
        "clipping_norms": dict(progress.norms),
        **{k: dataclasses.asdict(v) for k, v in progress.shares.items()},
        **of_engine,
        "warnings": [*on_rows, *of_engine.get("warnings", ())],
    }


def _without_posterior(problems: Mapping[str, str], result: PrivateVIResult) -> str:
    sites = "; ".join(f"{site!r}: {problem}" for site, problem in problems.items())
    privacy = result.privacy
    if privacy.is_private:
        charged = (
            f"The charge of epsilon={privacy.epsilon:.6g}, delta={privacy.delta:.3g} "
            "stays, and what it paid for is in this error's `result` and `released`. "
        )
        change = (
            "Scale the rows to about -1 to 1, give a prior that is not flat, or fit "
            "fewer latents or more rows at a larger epsilon"
        )
    else:
        charged = "Nothing was charged. "
        change = "Give a prior that is not flat, or scale the rows"
    return (
        f"The fit ended without a usable posterior: {sites}. {charged}{change}; under "
        "DPVI also a smaller learning rate helps."
    )


def _public_facts(prepared: PreparedFit) -> tuple[str, ...]:
    """All that the privacy statement takes for public beside the number of rows.

    Every one of them is what the caller has declared, or has let the model hold.
    """
    arguments = prepared.arguments
    facts = [
        "the model, its priors and plates, and every setting of the fit",
        "the names, shapes (but for the number of rows) and dtypes of the arguments",
    ]
    facts += [
        f"how {name!r} was encoded: names, ranges and categories of its columns"
        for name in arguments.encodings
    ]
    facts += [
        f"the means and standard deviations by which {name!r} is standardised, of "
        f"{quoted(encoding.standardised_columns)}: known without the rows, or released "
        "before at a price that is in the ledger and not in this statement"
        for name, encoding in arguments.encodings.items()
        if encoding.standardised_columns
    ]
    facts += [f"the argument {name!r}" for name in arguments.public]
    facts += [
        f"the argument {name!r} = {v!r}" for name, v in arguments.constants.items()
    ]
    facts += [
        f"{array} that the model holds" for array in listed(prepared.graph.captured)
    ]
    held = listed(prepared.engine.captured)
    facts += [f"{array} that the guide holds" for array in held]
    facts += [
        f"that at most {width} entries of a row of {name!r} are looked at, the largest"
        for name, width in arguments.widths.items()
    ]
    if any(not part.is_fixed for part in prepared.parts):
        facts.append("the grid on which norms of rows are counted")
    else:
        facts.append(
            "the clipping norms, which must not be chosen by looking at the data"
        )
    return tuple(facts)
