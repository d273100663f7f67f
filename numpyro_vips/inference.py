"""`PrivateVI`: plans a fit, charges for it, and runs the loop over its steps."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm.auto import tqdm

from numpyro_vips import _validate, accounting
from numpyro_vips.accounting import Accountant, Relation, Sampling
from numpyro_vips.conjugacy.densities import logistic_bounds
from numpyro_vips.dpvi.checks import check_options
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.errors import (
    BudgetExceededError,
)
from numpyro_vips.fitting.engine_choice import (
    EngineOptions,
    PreparedFit,
    prepare_fit,
    unused_options,
)
from numpyro_vips.fitting.explanation import Plan, explain_plan
from numpyro_vips.fitting.private_step import chunks_of, noise_of_sums, run_step
from numpyro_vips.fitting.schedule import ScheduleOptions, Step, events_of
from numpyro_vips.handlers import name_of, private
from numpyro_vips.jax_tools.blas_threads import one_blas_thread
from numpyro_vips.jax_tools.program_constants import listed
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.privacy.budget import PrivacyBudget
from numpyro_vips.privacy.secure_random import SecureRandom
from numpyro_vips.privacy.statement import PrivacyStatement
from numpyro_vips.result import PrivateVIResult

ENGINES = ("auto", "vips", "dpvi")
SAMPLINGS = ("poisson", "without_replacement", "full")


class PrivateVI:
    """Fits a NumPyro model by variational Bayes under differential privacy.

    Args:
      model: A model marked with `private(unit=...)`.
      budget: The ledger that pays; `PrivacyBudget(math.inf)` runs without noise and
        clipping, unless `epsilon` or `noise_multiplier` asks for them.
      engine: `"vips"` for conjugate-exponential models, `"dpvi"` for any other, or
        `"auto"`. There is no silent fallback: `explain` and the result say which ran.
      sampling: `"poisson"` (add or remove one row), `"without_replacement"` (replace
        one row) or `"full"`. A rate of 1 is the full batch in every case.
      num_steps: Number of steps; by default 10 for VIPS (100 without noise) and 200
        for DPVI (500), whatever the sampling rate. A single release of what does not
        depend on the globals comes on top, see `release_once`.
      sampling_rate: Share of the rows in a minibatch; by default all rows.
      clipping_norm: L2 bound on what one row contributes to a step, taken over all
        statistics of the step together. The default suits rows whose features have
        L2 norm 1 and whose real observations lie in [0, 1], see `explain`. For VIPS
        also a mapping from each statistic that `explain` names to its typical norm, by
        which it is scaled before rows are clipped jointly.
      epsilon, delta: This fit's share of the budget; each by default all that is left,
        so several fits of one ledger need both.
      num_rows: Public number of rows. By default the actual length is used and the
        statement says that it is treated as public.
      max_nonzeros: How many entries of a row may differ from zero, a public number that
        a minibatch then costs in place of the length of its rows: `{"counts": 128}`
        for one private array argument, or a number if there is only one. Rows with more
        keep the largest.
      max_batch_size: Most rows worked on at a time, rounded up to a multiple of 64;
        larger minibatches take several passes, so none is ever cut.
      local_steps: Sweeps of coordinate ascent over the latents of a row.
      guide: For DPVI: `"mean_field"` (the default), `"full_rank"` or `"low_rank"`, a
        Normal on the unconstrained globals, or a NumPyro function of the model's
        arguments or of none. Giving one chooses DPVI under `engine="auto"`.
      step_size: Weight of step t = 0, 1, ... in VIPS' running average of statistics, as
        a function of t; by default 2/(t + 2), and 1 for full batches without noise.
      release_once: For VIPS: whether statistics that do not depend on the globals are
        released a single time, from all rows, or with the others in every step.
      callback: Called with (t, result) after step t = 0, 1, ..., once there is a
        posterior. The result holds what has been released until then, under the privacy
        statement of the whole fit.
      optimizer: For DPVI: any optimiser of optax (not of `numpyro.optim`).
      loss: For DPVI: `numpyro.infer.Trace_ELBO` (the default) or `TraceMeanField_ELBO`,
        with their number of particles.
      perturb: For DPVI: `"location"` releases the gradient in the globals and rebuilds
        that of the guide, `"all"` releases the latter, as in the DPVI paper.
      averaging: For DPVI: the power of t with which iterates count in the average that
        becomes the posterior; None takes the last one.
      progress_bar: Whether to show the steps and the ε that was charged.
      insecure_seed: Makes minibatches and noise repeatable. It voids the guarantee
        towards anyone who may know the seed, warns, and is recorded in the statement.
      relation: `"add_or_remove"` or `"replace_one"` for full batches; otherwise the
        sampling decides it.
      noise_multiplier: Noise standard deviation over the L2 sensitivity, in place of
        the smallest that the share affords.
      accountant: `"pld"`, `"moments"` or `"strong"`.
      structure: For VIPS: `{"w": "diag"}` gives every element of `w` its own factor.
      augmentation: For VIPS: the bound that makes logistic likelihoods conjugate,
        `"polya-gamma"` or `"fixed-curvature"`, for all sites or by site
        (`{"y": "fixed-curvature"}`).
      label: What the ledger calls this fit.

    Raises:
      TypeError, ValueError: An argument is not as described.
    """

    def __init__(
        self,
        model: private,
        *,
        budget: PrivacyBudget,
        engine: str = "auto",
        sampling: Sampling = "poisson",
        num_steps: int | None = None,
        sampling_rate: float | None = None,
        clipping_norm: float | Mapping[str, float] | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        num_rows: int | None = None,
        max_nonzeros: int | Mapping[str, int] | None = None,
        max_batch_size: int | None = None,
        local_steps: int | None = None,
        step_size: Callable[[int], float] | None = None,
        callback: Callable[[int, PrivateVIResult], None] | None = None,
        release_once: bool = True,
        guide: Any = None,
        optimizer: Any = None,
        loss: Any = None,
        perturb: Any = None,
        averaging: float | None = 3.0,
        progress_bar: bool = True,
        insecure_seed: int | None = None,
        relation: Relation | None = None,
        noise_multiplier: float | None = None,
        accountant: Accountant = "pld",
        structure: Mapping[str, str] | None = None,
        augmentation: str | Mapping[str, str] = logistic_bounds.DEFAULT,
        label: str | None = None,
    ):
        _check_model(model)
        if not isinstance(budget, PrivacyBudget):
            raise TypeError(
                f"Expected budget to be a PrivacyBudget, got {type(budget).__name__}. "
                "Use PrivacyBudget(epsilon=..., delta=...)."
            )
        _validate.one_of(ENGINES, engine=engine)
        _validate.one_of(SAMPLINGS, sampling=sampling)
        _validate.one_of(accounting.ACCOUNTANTS, accountant=accountant)
        for name, value in {
            "num_steps": num_steps,
            "num_rows": num_rows,
            "max_batch_size": max_batch_size,
            "local_steps": local_steps,
        }.items():
            if value is not None:
                _validate.positive_integer(**{name: value})
        _check_widths(max_nonzeros)
        if sampling_rate is not None:
            _validate.probability(sampling_rate=sampling_rate)
            if sampling == "full" and sampling_rate != 1:
                raise ValueError(
                    f"Expected sampling_rate={sampling_rate!r} to be 1 with "
                    "sampling='full'. Use sampling='poisson' for minibatches."
                )
        norms: dict[str, Any] = {"clipping_norm": clipping_norm}
        if isinstance(clipping_norm, Mapping):
            norms = {f"clipping_norm[{k!r}]": v for k, v in clipping_norm.items()}
        for name, value in norms.items():
            if value is not None:
                _validate.moderate(**{name: value})
        for name, value in {
            "epsilon": epsilon,
            "noise_multiplier": noise_multiplier,
        }.items():
            if value is not None:
                _validate.positive(**{name: value})
        if step_size is not None and not callable(step_size):
            raise TypeError(
                f"Expected step_size={step_size!r} to be a function of the step's "
                "number 0, 1, ..., such as lambda t: 1 / (t + 1)."
            )
        if delta is not None and not 0 < delta < 1:
            raise ValueError(f"Expected delta={delta!r} in (0, 1).")
        for name, value in (structure or {}).items():
            _validate.one_of(("diag",), **{f"structure[{name!r}]": value})
        _check_augmentation(augmentation)
        check_options(
            guide=guide,
            optimizer=optimizer,
            loss=loss,
            perturb=perturb,
            averaging=averaging,
        )
        self.model = model
        self.budget = budget
        self.max_batch_size = max_batch_size
        self.callback = callback
        self.progress_bar = progress_bar
        self.insecure_seed = insecure_seed
        self.accountant: Accountant = accountant
        self.num_rows = num_rows
        self.max_nonzeros = max_nonzeros
        self.epsilon = epsilon
        self.delta = delta
        self.label = label
        self.schedule_options = ScheduleOptions(
            relation=_relation(sampling, relation),
            sampling=sampling,
            num_steps=num_steps,
            sampling_rate=sampling_rate,
            clipping_norm=clipping_norm,
            noise_multiplier=noise_multiplier,
            step_size=step_size,
            release_once=release_once,
            private=budget.is_private or (epsilon, noise_multiplier) != (None, None),
        )
        self.engine_options = EngineOptions(
            engine=engine,
            structure=dict(structure or {}),
            augmentation=(
                augmentation if isinstance(augmentation, str) else dict(augmentation)
            ),
            local_steps=local_steps,
            guide=guide,
            optimizer=optimizer,
            dpvi={"loss": loss, "perturb": perturb, "averaging": averaging},
        )
        unused = unused_options(engine, self.schedule_options, self.engine_options)
        if unused:
            other = "DPVI" if engine == "vips" else "VIPS"
            raise ValueError(
                f"Expected no {'=, '.join(unused)}= with engine={engine!r}: only "
                f"{other} looks at that. Leave it out, or choose the other engine."
            )

    # --- before any data are read -----------------------------------------------------

    @one_blas_thread
    def explain(self, *args: Any, **kwargs: Any) -> Plan:
        """Says which engine would run, site by site, and why.

        Reads the shapes and dtypes of the arguments, not their values, and costs no
        budget.

        Raises:
          What `run` raises before it charges the budget, except that the budget itself
          is not looked at.
        """
        prepared = self._prepare_fit(args, kwargs)
        return self._plan(prepared)

    def _prepare_fit(self, args: tuple, kwargs: Mapping[str, Any]) -> PreparedFit:
        arguments = bind_arguments(
            self.model,
            args,
            dict(kwargs),
            num_rows=self.num_rows,
            max_nonzeros=self.max_nonzeros,
        )
        return prepare_fit(
            self.model, arguments, self.schedule_options, self.engine_options
        )

    def _plan(self, prepared: PreparedFit) -> Plan:
        return explain_plan(
            prepared.graph,
            prepared.engine,
            prepared.steps,
            prepared.reasons,
            self.schedule_options,
            unused_options(
                prepared.engine.name, self.schedule_options, self.engine_options
            ),
        )

    # --- the fit ----------------------------------------------------------------------

    @one_blas_thread
    def run(self, rng_key: jax.Array, *args: Any, **kwargs: Any) -> PrivateVIResult:
        """Charges the budget, then fits the model.

        Args:
          rng_key: A key of `jax.random`, for what is not private: initial values.
          *args, **kwargs: The model's arguments. Arrays are private rows unless named
            in `private(public=...)`.

        Returns:
          The posterior with its privacy statement. It holds no data.

        Raises:
          TypeError, ValueError: The arguments do not fit the model.
          NotConjugateError: VIPS was asked for and cannot run the model.
          UnsafeModelError: No engine may run the model.
          BudgetExceededError: The fit would overrun the budget.
          In all these cases nothing has been charged. After that, what was charged
          stays charged, whatever happens.
        """
        _check_key(rng_key)
        started = time.perf_counter()
        prepared = self._prepare_fit(args, kwargs)
        plan = self._plan(prepared)
        steps, epsilon, delta = self._price(prepared.steps)
        random = SecureRandom(insecure_seed=self.insecure_seed)
        statement = self._statement(
            prepared, steps, epsilon, delta, random, _platform(rng_key)
        )
        state = prepared.engine.initial_state(rng_key)
        planned = time.perf_counter()
        self._rehearse(prepared, steps, state)
        compiled = time.perf_counter()
        if self.schedule_options.private:
            self.budget.charge(
                epsilon=epsilon,
                delta=delta,
                unit=self.model.unit,
                relation=self.schedule_options.relation,
                events=events_of(steps),
                accountant=self.accountant,
                label=self.label
                or f"{name_of(self.model.fn)} ({prepared.engine.name})",
            )
        programs: dict[str, Any] = {}

        def result_of(state: Any) -> PrivateVIResult:
            posterior = prepared.engine.posterior(state)
            jax.block_until_ready(posterior.params)
            return PrivateVIResult(
                posterior=posterior,
                privacy=statement,
                engine=prepared.engine.name,
                plan=str(plan),
                settings=self._settings_used(steps, prepared.arguments.widths),
                seconds={
                    "planning": planned - started,
                    "compiling": compiled - planned,
                    "running": time.perf_counter() - compiled,
                },
                model=self.model,
                _programs=programs,
            )

        shown = f"{epsilon:.3g}" if self.schedule_options.private else "NOT PRIVATE"
        with tqdm(steps, disable=not self.progress_bar, desc="PrivateVI") as bar:
            bar.set_postfix_str(f"ε spent {shown}")
            for number, step in enumerate(bar):
                state = run_step(
                    prepared.arguments,
                    prepared.engine,
                    step,
                    state,
                    random,
                    self.max_batch_size,
                )
                if self.callback is not None and prepared.engine.has_posterior(state):
                    self.callback(number, result_of(state))
        return result_of(state)

    def _rehearse(
        self, prepared: PreparedFit, steps: Sequence[Step], state: Any
    ) -> None:
        """Runs every kind of step on zeros, so that what can fail fails unpaid.

        It also compiles everything, so that the fit itself is quick to interrupt.
        """
        arguments = prepared.arguments
        kinds = {tuple(b.name for b in step.blocks): step for step in steps}
        for step in kinds.values():
            _, size = chunks_of(step, arguments.public_num_rows, self.max_batch_size)
            zeros = {
                name: np.zeros((size, *row.shape), row.dtype)
                for name, row in arguments.row_shapes().items()
            }
            rows = arguments.as_taken(zeros)
            sums = prepared.engine.bounded_sum(
                state,
                rows,
                np.zeros(size, bool),
                scales={block.name: block.scale for block in step.blocks},
                clipping_norm=step.clipping_norm,
            )
            state = prepared.engine.update(
                state,
                {name: np.asarray(value, np.float64) for name, value in sums.items()},
                noise_of_sums(step),
                step.step_size,
            )
        prepared.engine.posterior(state)

    def _price(self, steps: Sequence[Step]) -> tuple[tuple[Step, ...], float, float]:
        """Finds the noise that the share affords, and what the steps then cost."""
        if not self.schedule_options.private:
            return tuple(steps), math.inf, self.budget.delta
        left = self.budget.remaining()
        delta = left.delta if self.delta is None else self.delta
        if not self.budget.is_private and delta == 0:
            raise ValueError(
                "Expected delta= with epsilon= or noise_multiplier=: the budget has "
                "delta=0. Pass a delta well below 1 / num_rows."
            )
        if not steps:
            return (), 0.0, delta
        events = events_of(steps)
        if self.schedule_options.noise_multiplier is None:
            factor = self.budget.calibrate_events(
                events,
                epsilon=self.epsilon,
                delta=self.delta,
                accountant=self.accountant,
            )
            steps = [step.scaled(factor) for step in steps]
            events = events_of(steps)
        epsilon = accounting.epsilon_of_events(
            events, delta=delta, accountant=self.accountant
        )
        share = left.epsilon if self.epsilon is None else self.epsilon
        is_fixed = self.schedule_options.noise_multiplier is not None
        # A Rényi filter says by itself what is left, but knows nothing of shares.
        has_share = self.budget.composition == "split" or self.epsilon is not None
        if is_fixed and has_share and epsilon > share:
            raise BudgetExceededError(
                f"{len(steps)} steps at noise_multiplier="
                f"{self.schedule_options.noise_multiplier:g} cost "
                f"epsilon={epsilon:.4g} at delta={delta:.3g}, and this fit may spend "
                f"{share:.4g}. Take fewer "
                "steps (num_steps=), a lower sampling_rate or more noise, or leave "
                "noise_multiplier out. Nothing was charged."
            )
        self.budget.check(
            epsilon=epsilon,
            delta=delta,
            unit=self.model.unit,
            relation=self.schedule_options.relation,
            events=events,
            accountant=self.accountant,
        )
        return tuple(steps), epsilon, delta

    def _statement(
        self,
        prepared: PreparedFit,
        steps: Sequence[Step],
        epsilon: float,
        delta: float,
        random: SecureRandom,
        platform: str,
    ) -> PrivacyStatement:
        norms = tuple(dict.fromkeys(step.clipping_norm for step in steps))
        return PrivacyStatement(
            unit=self.model.unit,
            relation=self.schedule_options.relation,
            sampling=self.schedule_options.scheme,
            epsilon=epsilon,
            delta=delta,
            accountant=self.accountant,
            events=events_of(steps) if self.schedule_options.private else (),
            noise_source=random.source,
            public=_public_facts(prepared),
            clipping_norm=norms[0] if len(norms) == 1 else norms,
            engine=prepared.engine.name,
            platform=platform,
            num_rows=prepared.arguments.public_num_rows,
            num_rows_declared=prepared.arguments.num_rows_declared,
        )

    def _settings_used(
        self, steps: Sequence[Step], widths: Mapping[str, int]
    ) -> dict[str, Any]:
        guide = self.engine_options.guide
        return {
            "engine": self.engine_options.engine,
            "sampling": self.schedule_options.sampling,
            "sampling_rate": self.schedule_options.rate,
            "num_steps": len(steps),
            "local_steps": self.engine_options.local_steps,
            "max_batch_size": self.max_batch_size,
            "max_nonzeros": dict(widths),
            "structure": self.engine_options.structure,
            "augmentation": self.engine_options.augmentation,
            "guide": guide if isinstance(guide, str | None) else "own",
            "perturb": self.engine_options.dpvi["perturb"],
            # Whether, not which: the seed would take the noise off again.
            "insecure_seed": self.insecure_seed is not None,
        }


def _check_model(model: Any) -> None:
    if isinstance(model, private) and model.fn is not None:
        return
    inner = getattr(model, "fn", None)
    if isinstance(model, private):
        advice = "It holds no model yet: put it over the model as a decorator."
    elif isinstance(inner, private):
        advice = (
            "Mark the model last, private(handler(model), unit=...), so that it is "
            "known whose records are protected."
        )
    else:
        advice = (
            "Put @private(unit='name of the plate') over the model, so that it is "
            "known whose records are protected."
        )
    raise TypeError(
        "Expected a model marked with numpyro_vips.private(unit=...), got "
        f"{type(model).__name__}. {advice}"
    )


def _check_widths(max_nonzeros: Any) -> None:
    widths = {"max_nonzeros": max_nonzeros}
    if isinstance(max_nonzeros, Mapping):
        widths = {f"max_nonzeros[{k!r}]": v for k, v in max_nonzeros.items()}
    for name, width in widths.items():
        if width is None and not isinstance(max_nonzeros, Mapping):
            continue
        if not isinstance(width, int | np.integer):
            raise TypeError(
                f"Expected {name}={width!r} to be an integer, or a dict of one for "
                "each argument meant."
            )
        _validate.positive_integer(
            **{name: width if isinstance(width, bool) else int(width)}
        )


def _check_augmentation(augmentation: Any) -> None:
    bounds = tuple(logistic_bounds.REGISTRY)
    if isinstance(augmentation, Mapping):
        for name, value in augmentation.items():
            _validate.one_of(bounds, **{f"augmentation[{name!r}]": value})
    else:
        _validate.one_of(bounds, augmentation=augmentation)


def _relation(sampling: Sampling, relation: Relation | None) -> Relation:
    implied: dict[str, Relation] = {
        "poisson": "add_or_remove",
        "without_replacement": "replace_one",
    }
    expected = implied.get(sampling)
    if relation is None:
        return expected or "add_or_remove"
    _validate.one_of(("add_or_remove", "replace_one"), relation=relation)
    if expected is not None and relation != expected:
        raise ValueError(
            f"Expected relation={relation!r} to be {expected!r} with "
            f"sampling={sampling!r}. Full batches (sampling='full') may use either."
        )
    return relation


def _check_key(rng_key: Any) -> None:
    is_typed = isinstance(rng_key, jax.Array) and jax.dtypes.issubdtype(
        rng_key.dtype, jax.dtypes.prng_key
    )
    if is_typed and rng_key.shape != ():
        raise TypeError(
            f"Expected a single key, got an array of keys of shape {rng_key.shape}. "
            "Pass one of them, such as keys[0]."
        )
    is_words = (
        isinstance(rng_key, jax.Array | np.ndarray)
        and rng_key.dtype == np.uint32
        and rng_key.shape in ((2,), jax.random.key_data(jax.random.key(0)).shape)
    )
    if not (is_typed or is_words):
        raise TypeError(
            "Expected the first argument of run to be a key such as "
            f"jax.random.key(0), got {type(rng_key).__name__}. The model's arguments "
            "follow it: run(rng_key, X, y)."
        )


def _platform(rng_key: Any) -> str:
    """Where JAX works on rows: on its default device, or where the key lies."""
    arrays = jnp.zeros(()), jnp.asarray(rng_key)
    return ", ".join(sorted({d.platform for x in arrays for d in x.devices()}))


def _public_facts(prepared: PreparedFit) -> tuple[str, ...]:
    arguments = prepared.arguments
    facts = [
        "the model, its priors and plates, and every setting of the fit",
        "the names, shapes (but for the number of rows) and dtypes of the arguments",
    ]
    facts += [f"the argument {name!r}" for name in arguments.public]
    facts += [
        f"the argument {name!r} = {v!r}" for name, v in arguments.constants.items()
    ]
    facts += [
        f"{array} that the model holds" for array in listed(prepared.graph.captured)
    ]
    if isinstance(prepared.engine, DpviEngine):
        held = listed(prepared.engine.captured)
        facts += [f"{array} that the guide holds" for array in held]
    facts += [
        f"that at most {width} entries of a row of {name!r} are looked at, the largest"
        for name, width in arguments.widths.items()
    ]
    facts.append("the clipping norms, which must not be chosen by looking at the data")
    return tuple(facts)
