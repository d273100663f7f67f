"""`PrivateVI`: plans a fit, charges for it, and has `FitLoop` run its steps."""

import contextlib
import dataclasses
import functools
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from tqdm.auto import tqdm

from numpyro_vips import _html, _validate, accounting
from numpyro_vips._keywords import naming_places
from numpyro_vips._settings import code_of_value, frozen
from numpyro_vips.dpvi.settings import DPVI
from numpyro_vips.errors import UnusablePosteriorError
from numpyro_vips.fitting.checkpoint import (
    Checkpoint,
    check_may_be_resumed,
    opened_checkpoint,
    priced_by_first,
)
from numpyro_vips.fitting.engine_choice import EngineChoice, as_engine_choice
from numpyro_vips.fitting.explanation import with_number_of_rows
from numpyro_vips.fitting.fit_loop import FitLoop
from numpyro_vips.fitting.paid_warnings import shown_not_raised
from numpyro_vips.fitting.plan import Plan
from numpyro_vips.fitting.prepare import PreparedFit
from numpyro_vips.fitting.prepared_fits import prepared_fit
from numpyro_vips.fitting.pricing import (
    BudgetShare,
    PricedSteps,
    noise_of_one_release,
    price,
    warning_of_delta,
    warning_of_no_globals,
)
from numpyro_vips.fitting.private_step import rehearse
from numpyro_vips.fitting.progress import Progress
from numpyro_vips.fitting.reducers.reducer import Across, Reducer
from numpyro_vips.fitting.results import FitResults, kept_if_lost
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.fitting.step import Step, events_of
from numpyro_vips.fitting.sum_rounding import check_number_of_rows
from numpyro_vips.handlers import check_marked, name_of, private
from numpyro_vips.jax_tools.entry_points import computing
from numpyro_vips.jax_tools.random_keys import as_threefry, platforms, single_key
from numpyro_vips.jax_tools.rounding import check_numbers_that_are_not_finite_are_seen
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.facts.loops_of_rows import warning_of_loops
from numpyro_vips.model.facts.parameter_ranges import warnings_of_ranges
from numpyro_vips.model.max_nonzeros import check_widths
from numpyro_vips.privacy.budget import PrivacyBudget, check_is_budget
from numpyro_vips.privacy.sampling import RowSampling, as_sampling
from numpyro_vips.privacy.secure_random import SecureRandom
from numpyro_vips.privacy.statement import NoisyShare
from numpyro_vips.result import PrivateVIResult
from numpyro_vips.vips.settings import VIPS

# Rows by which processes see whether they have the same ones.
_COMPARED_ROWS = 64


def _warnings_before_charge(
    prepared: PreparedFit, priced: PricedSteps
) -> Iterator[str]:
    """What the caller may want to know before the budget pays for the fit."""
    for warning in (
        warning_of_no_globals(prepared.graph),
        *warnings_of_ranges(prepared.out_of_range),
        warning_of_loops(prepared.loops_until_rows_stop),
        warning_of_delta(priced, prepared.arguments.public_num_rows),
    ):
        if warning is not None:
            yield warning


class PrivateVI:
    """Fits a NumPyro model by variational Bayes under differential privacy.

        >>> import numpy as np
        >>> import numpyro
        >>> import numpyro.distributions as dist
        >>> @private(unit="people")
        ... def model(y):
        ...     p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        ...     with numpyro.plate("people", len(y)):
        ...         numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> y = np.repeat([0, 1], 500)
        >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
        >>> vi = PrivateVI(model, budget=budget, progress_bar=False)
        >>> vi.explain(y).engine
        'vips'
        >>> vi.run(jax.random.key(0), y)
        PrivateVIResult(vips, epsilon=1, delta=1e-06, unit='people', sites: p)

    It cannot be changed afterwards.

    Args:
      model: A model marked with `private(unit=...)`.
      budget: The ledger that pays, and whose accountant prices;
        `PrivacyBudget(math.inf)` runs without noise and clipping, unless `epsilon` or
        `noise_multiplier` asks for them.
      engine: `"vips"` for conjugate models and logistic regressions, `"dpvi"` for any
        model, or `"auto"`, which takes VIPS where it can run the model, unless DPVI is
        more accurate, see docs/choosing_a_budget.md. `explain` and the result say which
        ran. The names are short for `VIPS()` and `DPVI()`, which take each engine's own
        settings.
      sampling: How a step takes its rows: `"full"`, which is short for `FullBatch()`,
        or `FullBatch(relation=)`, `Poisson(rate)` or `WithoutReplacement(rate)`.
      num_steps: Number of steps. Under noise the default is 200 for DPVI, and for VIPS
        10; 50 for logistic likelihoods; 20 for mixtures and the like. Without noise and
        with all rows in every step both go on until they have converged, VIPS for 2,000
        steps at most, and DPVI where it can take Newton steps, see docs/dpvi.md.
        Elsewhere it is 100 and 500 without noise. A single release of what does not
        depend on the globals comes on top, see `VIPS(release_once=)`.
      clipping_norm: L2 bound on what one row contributes to a step, taken over all
        statistics of the step together, from public knowledge. For VIPS also a mapping
        from each statistic that `explain` names to its typical norm, by which it is
        scaled before rows are clipped jointly. By default private histograms find the
        norms that the model's structure does not bound. `explain` shows their share of
        the budget.
      epsilon, delta: This fit's share of the budget; each by default all that is left,
        so several fits of one ledger need both.
      num_rows: Public number of rows. By default the actual length is used and the
        statement says that it is treated as public. The data may have up to twice as
        many rows, or 65,536 if that is more. Where VIPS needs to know how many there
        are, it releases a noisy count of those that are valid, for 3 % of the budget.
      max_nonzeros: How many entries of a row may differ from zero, a public number, as
        `{"counts": 128}` for one private array argument, or a number if there is only
        one. A step then costs as many entries per row. Rows with more keep the largest.
      max_batch_size: Most rows worked on at a time, with 16 places that hold none,
        rounded up to a multiple of 64, by default 4,096; larger minibatches take
        several passes, so none is ever cut.
      noise_multiplier: Standard deviation of a step's noise over the L2 sensitivity, in
        place of the smallest that the share affords. A fit that then costs more than
        its share is refused.
      diagnostics: Whether the last quarter of the steps also release how many rows were
        clipped, and how many counted as zero, for about 2 % of what these steps cost.
        The shares stand in the statement, with a warning where they matter.
      callback: Called with (t, result) after step t = 0, 1, ..., where there is a
        posterior that can be used. The result holds what has been released until then,
        under the privacy statement of the whole fit.
      checkpoint: Path of a file that keeps what each step has released, before the
        callback sees it. If it is there, `run` goes on after the last step in it, with
        the same model, settings and `rng_key`, and charges nothing. The ledger must be
        a file, too.
      across: Where rows are summed, if not in this process alone: `Processes()` spreads
        them over the processes of `jax.distributed`, `SimulatedParties(number)` shows
        what several parties would get that add noise each.
      label: What the ledger calls this fit; by default the names of the model and the
        engine.
      progress_bar: Whether to show the steps and the ε that was charged.
      insecure_seed: An integer that makes minibatches and noise repeatable. It voids
        the guarantee towards whoever knows or guesses it, or sees two fits with it. A
        fit warns, and the statement says INSECURE.

    Raises:
      TypeError, ValueError: An argument is not as described.
    """

    # Whether the constructor is done.
    _is_made: bool = False

    @naming_places
    def __init__(
        self,
        model: private,
        *,
        budget: PrivacyBudget,
        engine: VIPS | DPVI | str = "auto",
        sampling: RowSampling | Literal["full"] = "full",
        num_steps: int | None = None,
        clipping_norm: float | Mapping[str, float] | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        num_rows: int | None = None,
        max_nonzeros: int | Mapping[str, int] | None = None,
        max_batch_size: int | None = None,
        noise_multiplier: float | None = None,
        diagnostics: bool = True,
        callback: Callable[[int, PrivateVIResult], None] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        across: Across | None = None,
        label: str | None = None,
        progress_bar: bool = True,
        insecure_seed: int | None = None,
    ) -> None:
        check_marked(model)
        check_is_budget(budget)
        if across is not None and (
            isinstance(across, type) or not isinstance(across, Across)
        ):
            raise TypeError(
                "Expected across to be nv.Processes(), nv.SimulatedParties(number) or "
                f"None, got {across!r}."
            )
        if callback is not None and not callable(callback):
            raise TypeError(
                "Expected callback to be a function of the step and the result so far, "
                f"got {type(callback).__name__}."
            )
        if label is not None:
            _validate.text(label=label)
        if num_rows is not None:
            _validate.positive_integer(num_rows=num_rows)
            num_rows = int(num_rows)
        check_widths(max_nonzeros)
        self.model = model
        self.budget = budget
        self.engine: EngineChoice = as_engine_choice(engine)
        self.schedule_options = ScheduleOptions(
            sampling=as_sampling(sampling),
            num_steps=num_steps,
            clipping_norm=clipping_norm,
            noise_multiplier=noise_multiplier,
            diagnostics=diagnostics,
            max_batch_size=max_batch_size,
            private=budget.is_private or (epsilon, noise_multiplier) != (None, None),
        )
        self.share = BudgetShare(epsilon=epsilon, delta=delta)
        self.num_rows = num_rows
        self.max_nonzeros = frozen(max_nonzeros)
        self.max_batch_size = self.schedule_options.max_batch_size
        self.callback = callback
        self.checkpoint = None
        if checkpoint is not None:
            self.checkpoint = Path(checkpoint).resolve()
            check_may_be_resumed(
                budget,
                is_private=self.schedule_options.private,
                is_repeatable=insecure_seed is not None,
            )
        self.across = across
        self.label = label
        self.progress_bar = progress_bar
        self.insecure_seed = insecure_seed
        self._is_made = True

    def __setattr__(self, name: str, value: Any) -> None:
        """Settings are checked together, by the constructor, and stay as they are.

        Raises:
          AttributeError: The constructor is done.
        """
        if self._is_made:
            raise AttributeError(
                f"A PrivateVI cannot be changed, and {name!r} was not set. Make "
                "another one, with the setting as a keyword; on the same budget they "
                "share its ledger."
            )
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        """The model's name, and the settings that were given as code."""
        settings = (f"{name}={code}" for name, code in self._settings().items())
        return f"PrivateVI({', '.join([name_of(self.model.fn), *settings])})"

    def _repr_html_(self) -> str:
        """The same for notebooks, with the ledger to be opened."""
        settings = [f"{name}={code}" for name, code in self._settings().items()]
        return (
            _html.heading(f"PrivateVI({name_of(self.model.fn)})")
            + _html.bullets(settings)
            + _html.folded("Privacy budget", self.budget._repr_html_())
        )

    def _settings(self) -> dict[str, str]:
        """The keywords that bear on a fit, as code; see `Plan.settings`."""
        return {
            "engine": repr(self.engine),
            "sampling": repr(self.schedule_options.sampling),
            **self._given(),
        }

    @computing
    def explain(self, *args: Any, **kwargs: Any) -> Plan:
        """Says which engine would run, site by site, and why.

        Reads the shapes and dtypes of the arguments, not their values, and costs no
        budget.

            >>> import numpyro, numpyro.distributions as dist
            >>> import numpyro_vips as nv
            >>> @nv.private(unit="people")
            ... def model(y):
            ...     rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
            ...     with numpyro.plate("people", len(y)):
            ...         numpyro.sample("y", dist.Poisson(rate), obs=y)
            >>> vi = nv.PrivateVI(model, budget=nv.PrivacyBudget(1.0, 1e-6))
            >>> plan = vi.explain(np.zeros(1000, int))
            >>> plan.engine, plan.sites[0]["posterior"]
            ('vips', 'Gamma [log, x]')

        Args:
          *args: The model's arguments, as of `run`.
          **kwargs: Likewise, by name.

        Returns:
          The plan, which prints as tables.

        Raises:
          What `run` raises before it charges the budget, except that what is left of
          the budget is not looked at.
        """
        _, plan = self._prepare_fit(args, kwargs)
        return plan

    @computing
    def run(self, rng_key: jax.Array, *args: Any, **kwargs: Any) -> PrivateVIResult:
        """Charges the budget, then fits the model.

        Args:
          rng_key: A key of `jax.random`, for what is not private: initial values and
            draws of guides.
          *args: The model's arguments. Arrays are private rows unless named in
            `private(public=...)`. A source of rows (`RowSource`) takes the place of an
            array, or of a dict of arrays where its rows are mappings; it is read some
            thousand rows at a time.
          **kwargs: Likewise, by name.

        Returns:
          The posterior with its privacy statement. It holds no data.

        Raises:
          TypeError, ValueError: The arguments do not fit the model.
          NotConjugateError: VIPS was asked for and cannot run the model.
          UnsafeModelError: No engine may run the model.
          BudgetExceededError: The fit would overrun the budget.
          In all these cases nothing has been charged. After that, what was charged
          stays charged, whatever happens.
          RuntimeError: A source of rows could not be read.
          KeyboardInterrupt: Ctrl-C ends a fit between chunks of rows.
          UnusablePosteriorError: What the fit ended in is no posterior. The error holds
          the result and what was released.
        """
        rng_key = single_key(rng_key, "run(rng_key, X, y)")
        started = time.perf_counter()
        reducer = Reducer() if self.across is None else self.across.reducer()
        options = self.schedule_options
        reducer.check(options.sampling, is_private=options.private)
        prepared, plan = reducer.together(lambda: self._prepare_fit(args, kwargs))
        about = functools.partial(self._about, rng_key, prepared, plan)
        reducer.check_same(lambda: self._of_process(about(), prepared))
        with contextlib.ExitStack() as stack:
            checkpoint = None
            if (path := self.checkpoint) is not None:
                checkpoint = reducer.on_first(
                    lambda: stack.enter_context(
                        opened_checkpoint(path, self.budget, prepared.steps, about())
                    )
                )
            # A caller who has asked NumPy to raise would lose what was paid for.
            stack.enter_context(np.errstate(all="warn", under="ignore"))
            return self._fit(rng_key, prepared, plan, started, reducer, checkpoint)

    def _fit(
        self,
        rng_key: jax.Array,
        prepared: PreparedFit,
        plan: Plan,
        started: float,
        reducer: Reducer,
        checkpoint: Checkpoint | None,
    ) -> PrivateVIResult:
        """Prices, rehearses, charges and runs the steps of a prepared fit.

        The charge comes after the rehearsal, which reads no row, and before the first
        step. A fit that goes on from a checkpoint was charged before.

        Args:
          rng_key: Of draws that are public: where the fit starts, guides' draws.
          prepared: The model, its engine and the steps.
          plan: What `explain` says of them, for the result.
          started: When the call began, by `time.perf_counter`.
          reducer: Where batches are summed.
          checkpoint: Where released numbers are kept; None for nowhere, or in a process
            that is not the first.

        Raises:
          BudgetExceededError: The ledger cannot pay; no row was read.
        """
        priced, resumed = priced_by_first(
            prepared.steps, reducer, checkpoint, lambda: self._price(prepared.steps)
        )
        random = SecureRandom(
            insecure_seed=self.insecure_seed, sampling_key=reducer.sampling_key()
        )
        engine = prepared.engine
        state = engine.initial_state(rng_key)
        planned = time.perf_counter()
        reducer.together(
            lambda: rehearse(
                prepared.arguments,
                engine,
                priced.steps,
                state,
                self.max_batch_size,
                prepared.rehearsed,
            )
        )
        compiled = time.perf_counter()
        if self.schedule_options.private and resumed is None:
            for message in _warnings_before_charge(prepared, priced):
                warnings.warn(message, stacklevel=4)  # That of the caller of `run`.
            label = self.label or f"{name_of(self.model.fn)} ({engine.name})"
            self._charge(priced, label, reducer, checkpoint)
        reducer.check_same_rows(lambda: prepared.arguments.some_rows(_COMPARED_ROWS))
        results = FitResults(
            model=self.model,
            prepared=prepared,
            options=self.schedule_options,
            plan=str(plan),
            priced=priced,
            accountant=self.budget.accountant,
            settings=self._settings_used(prepared, self._num_planned(priced)),
            noise_source=random.source + reducer.described,
            platform=platforms(rng_key),
            seconds={"planning": planned - started, "compiling": compiled - planned},
            compiled=compiled,
        )
        loop = FitLoop(
            prepared=prepared,
            options=self.schedule_options,
            rng_key=rng_key,
            random=random,
            reducer=reducer,
            resumed=resumed or (),
            keeps_steps=self.checkpoint is not None,
            checkpoint=checkpoint,
            shows_passes=self.progress_bar and reducer.is_first,
        )
        is_paid = self.schedule_options.private
        with shown_not_raised() if is_paid else contextlib.nullcontext():
            state, progress = self._after_steps(results, loop, state)
            if not is_paid:
                state = engine.informed(state, prepared.arguments)
            result = results.of_last(state, progress)
            for text in result.diagnostics["warnings"]:
                warnings.warn(text, stacklevel=4)  # That of the caller of `run`.
        return result

    def _num_planned(self, priced: PricedSteps) -> int | None:
        """How many steps a fit takes; None where it ends when it has converged."""
        if self.schedule_options.until_converged:
            return None
        return sum(not step.is_aside for step in priced.steps)

    def _after_steps(
        self, results: FitResults, loop: FitLoop, state: Any
    ) -> tuple[Any, Progress]:
        """Runs the steps, with their bar and the caller's callback.

        Args:
          results: Makes a result of a state.
          loop: The loop over its steps.
          state: The initial state.

        Returns:
          The last state, and what has been released besides.
        """
        priced = results.priced
        spent = f"{priced.epsilon:.3g}"
        shown = spent if self.schedule_options.private else "NOT PRIVATE"
        progress = Progress(steps=priced.steps)
        if not self.schedule_options.private:
            arguments = loop.prepared.arguments
            share = arguments.num_rows / arguments.public_num_rows
            present = NoisyShare(share=share, stddev=0.0)
            progress = dataclasses.replace(progress, present=present)
        state, progress = loop.after_resumed(state, progress)
        done = sum(not step.is_aside for step in priced.steps[: len(loop.resumed)])
        with (
            self._explaining_interrupts(priced),
            tqdm(
                loop.states(state, progress),
                initial=done,
                total=self._num_planned(priced),
                disable=not loop.shows_passes,
                desc="PrivateVI",
            ) as bar,
        ):
            bar.set_postfix_str(f"ε spent {shown}")
            for number, (state, progress) in enumerate(bar, start=done):
                self._call_back(results, number, state, progress)
        return state, progress

    def _call_back(
        self, results: FitResults, number: int, state: Any, progress: Progress
    ) -> None:
        """Shows the caller's callback a posterior that can be used, if there is one."""
        engine = results.prepared.engine
        if self.callback is None or not engine.has_posterior(state):
            return
        try:
            with kept_if_lost(engine, self.schedule_options, state):
                so_far = results.of(state, progress)
        except UnusablePosteriorError:
            return  # The next step may have one.
        if not so_far.posterior.problems():
            self.callback(number, so_far)

    def _prepare_fit(
        self, args: tuple, kwargs: Mapping[str, Any]
    ) -> tuple[PreparedFit, Plan]:
        arguments = bind_arguments(
            self.model,
            args,
            dict(kwargs),
            num_rows=self.num_rows,
            max_nonzeros=self.max_nonzeros,
        )
        if self.schedule_options.private:
            check_number_of_rows(arguments.num_rows, arguments.public_num_rows)
            check_numbers_that_are_not_finite_are_seen()
        if self.schedule_options.sampling.scheme != "full":
            arguments.check_can_be_drawn_from()
        noise = None
        # Noise that the caller has fixed is no part of a budget.
        if self.schedule_options.noise_multiplier is None:
            noise = noise_of_one_release(self.budget, self.share)
        prepared, plan = prepared_fit(
            self.model, arguments, self.engine, self.schedule_options, noise
        )
        plan = with_number_of_rows(plan, prepared, noise)
        settings = {**plan.settings, **self._given()}
        return prepared, dataclasses.replace(plan, settings=settings)

    def _given(self) -> dict[str, str]:
        """The budget and what else the caller gave that bears on a fit, as code."""
        values = {
            "num_steps": self.schedule_options.num_steps,
            "clipping_norm": self.schedule_options.clipping_norm,
            "epsilon": self.share.epsilon,
            "delta": self.share.delta,
            "num_rows": self.num_rows,
            "max_nonzeros": self.max_nonzeros,
            "max_batch_size": self.max_batch_size,
            "noise_multiplier": self.schedule_options.noise_multiplier,
        }
        given = {k: code_of_value(v) for k, v in values.items() if v is not None}
        if not self.schedule_options.diagnostics:
            given["diagnostics"] = "False"
        if self.across is not None:
            given["across"] = repr(self.across)
        if self.insecure_seed is not None:
            given["insecure_seed"] = "..."  # The seed would take the noise off again.
        return {"budget": self.budget.code, **given}

    @contextlib.contextmanager
    def _explaining_interrupts(self, priced: PricedSteps) -> Iterator[None]:
        """Says beside a Ctrl-C what has become of the budget."""
        try:
            yield
        except KeyboardInterrupt as error:
            if self.schedule_options.private:
                error.add_note(
                    f"The fit was interrupted. Its charge of "
                    f"epsilon={priced.epsilon:.6g}, delta={priced.delta:.3g} stays: it "
                    "pays for what was released until then. Of the step that was "
                    "interrupted nothing was released. With checkpoint= the fit goes "
                    "on where it ended, if it is run again."
                )
            raise

    def _about(self, rng_key: jax.Array, prepared: PreparedFit, plan: Plan) -> str:
        """What must be the same where a fit goes on, as text."""
        rows = sorted(
            (name, row.shape, str(row.dtype))
            for name, row in prepared.arguments.row_shapes().items()
        )
        settings = self._settings_used(prepared, None)
        key = np.asarray(jax.random.key_data(as_threefry(rng_key))).tolist()
        counts = prepared.arguments.public_num_rows, self.model.unit
        return repr((str(plan), rows, settings, key, counts, prepared.digest))

    def _of_process(self, about: str, prepared: PreparedFit) -> str:
        """What must be the same in all processes that share a fit, as text.

        Args:
          about: See `_about`.
          prepared: The fit.
        """
        return repr((about, prepared.arguments.num_rows, self.insecure_seed))

    def _price(self, steps: Sequence[Step]) -> PricedSteps:
        return price(
            steps, self.budget, self.schedule_options, self.share, unit=self.model.unit
        )

    def _charge(
        self,
        priced: PricedSteps,
        label: str,
        reducer: Reducer,
        checkpoint: Checkpoint | None,
    ) -> None:
        """Charges the ledger, in the first process if it is a file."""

        def charge() -> None:
            if checkpoint is not None:
                checkpoint.begin(priced)
            self.budget.charge(
                epsilon=priced.epsilon,
                delta=priced.delta,
                unit=self.model.unit,
                relation=self.schedule_options.sampling.relation,
                events=events_of(priced.steps),
                label=label,
                in_steps=None if checkpoint is None else checkpoint.name,
            )

        reducer.on_first(charge)
        if not reducer.is_first and self.budget.path is None:
            charge()  # Of a ledger in memory every process has a copy.

    def _settings_used(
        self, prepared: PreparedFit, num_steps: int | None
    ) -> dict[str, Any]:
        """The settings, each once and JSON-able; objects are the code that makes them.

        Args:
          prepared: The fit, with what follows from the settings.
          num_steps: How many steps were planned; None where it is not known.
        """
        options = self.schedule_options
        settings = {
            "engine": repr(prepared.settings),
            "sampling": repr(options.sampling),
            "budget": self.budget.code,
            "num_steps": num_steps,
            "clipping_norm": options.clipping_norm,
            "epsilon": self.share.epsilon,
            "delta": self.share.delta,
            "num_rows": self.num_rows,
            "max_nonzeros": dict(prepared.arguments.widths),
            "max_batch_size": self.max_batch_size,
            "noise_multiplier": options.noise_multiplier,
            "diagnostics": bool(options.diagnostics),
            # Whether, not which: the seed would take the noise off again.
            "insecure_seed": self.insecure_seed is not None,
            "across": None if self.across is None else repr(self.across),
        }
        return accounting.jsonable(settings)
