"""Black-box audits: what results betray about a row, against what they claim.

A lower bound above the claim means that a fit is less private than it says. The worst
cases are built so that a bound comes close to the claim; so the audit would notice if
less noise were added, or a row counted for more, and planted bugs show that it does.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from _lower_bounds import (
    epsilon_bound_from_runs,
    mu_bound_from_runs,
    one_run_epsilon_bound,
)
from _worst_cases import (
    DELTA,
    KEY,
    WorstCase,
    column_scores,
    covariate_scores,
    feature_scores,
    fresh_start,
    histogram_scores,
    information_count_scores,
    information_scores,
    moment_scores,
    one_run,
    pilot_scores,
    redrawn_scores,
    reporting_scores,
    topics_case,
    topics_sum,
    worst_case,
)

import numpyro_vips as nv
from numpyro_vips import accounting
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.fitting import private_step
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS
from numpyro_vips.privacy import gaussian_mechanism
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism
from numpyro_vips.privacy.releases import COVARIATES, INFORMATION, WHOLE_VECTOR
from numpyro_vips.privacy.row_keys import RowKeys
from numpyro_vips.schema.moments import PLACES, SQUARES
from numpyro_vips.vips.engine import VipsEngine

CONFIDENCE = 0.99
ENGINES = ("vips", "dpvi")
RUNS = 2000  # On either data set.
FEW_RUNS = 130  # Enough for a bound above zero.
# A canary that may not have been drawn is told with less confidence.
RUNS_OF_SAMPLED = 4000


class Audit:
    """The bounds from many runs of a worst case, beside what they claim.

    Attributes:
      claimed_mu, claimed_epsilon: From the privacy statement.
      mu: Lower bound on μ, if the noise is Gaussian.
      epsilon: What μ makes of it in the statement's own terms.
      plain_epsilon: Lower bound on ε from the error rates alone.
    """

    def __init__(self, case: WorstCase, count: int):
        absent, present, result = case.scores(count)
        statement = result.privacy
        (event,) = statement.events
        rate = event.sampling_rate
        self.claimed_mu = math.sqrt(event.num_steps) / event.noise_multiplier
        self.claimed_epsilon = statement.epsilon
        self.mu = mu_bound_from_runs(absent, present, CONFIDENCE, rate)
        last = absent, present
        if case.watched:
            last = absent[:, -1], present[:, -1]
        self.plain_epsilon = epsilon_bound_from_runs(*last, DELTA, CONFIDENCE)
        if 0 < self.mu < math.inf:
            self.epsilon = accounting.epsilon(
                noise_multiplier=1 / self.mu,
                sampling_rate=rate,
                num_steps=1,
                delta=DELTA,
                sampling=event.sampling,
            )
        else:
            self.epsilon = self.mu

    def __str__(self) -> str:
        return (
            f"mu >= {self.mu:.3f} (claimed {self.claimed_mu:.3f}), "
            f"epsilon >= {self.epsilon:.2f}, from rates alone {self.plain_epsilon:.2f} "
            f"(claimed {self.claimed_epsilon:.2f})"
        )


# --- the audit's own means ------------------------------------------------------------


@pytest.mark.quick_with("dpvi")
@pytest.mark.parametrize("engine", ENGINES)
def test_repeated_fits_are_plain_fits(engine):
    """Programs that are used again change nothing."""
    case = worst_case(engine, nv.Poisson(0.5), noise_multiplier=0.5, num_steps=2)
    absent, present, _ = case.scores(1)
    for seed, found in enumerate([absent[0], present[0]]):
        with pytest.warns(UserWarning, match="insecure_seed"):
            vi = case.vi(seed)
            result = vi.run(KEY, case.present if seed % 2 else case.absent)
        assert case.score(result.params) == found


# --- claims ---------------------------------------------------------------------------

FITS: dict[str, tuple[Any, dict]] = {
    "full": (nv.FullBatch(), {}),
    "full, replace-one": (nv.FullBatch(relation="replace_one"), {}),
    # The running averages weigh the steps unequally; all of them together do not.
    "full, 4 steps": (nv.FullBatch(), {"num_steps": 4, "watched": True}),
    "poisson": (nv.Poisson(0.5), {}),
    "without replacement": (nv.WithoutReplacement(0.5), {}),
}


@pytest.mark.thorough
@pytest.mark.usefixtures("without_remarks")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("full", marks=pytest.mark.slow),
        "poisson",
        pytest.param("without replacement", marks=pytest.mark.slow),
    ],
)
def test_few_runs_refute_no_claim(engine, name):
    """A quick look, with too few runs to come close."""
    sampling, options = FITS[name]
    audit = Audit(
        worst_case(engine, sampling, noise_multiplier=0.2, **options), FEW_RUNS
    )
    assert 0 < audit.mu < audit.claimed_mu
    assert audit.plain_epsilon < audit.claimed_epsilon


@pytest.mark.audit
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", FITS)
def test_bounds_stay_below_the_claims_and_come_close(engine, name, record_property):
    sampling, options = FITS[name]
    noise = 0.4 * math.sqrt(options.get("num_steps", 1))
    runs = RUNS if sampling.scheme == "full" else RUNS_OF_SAMPLED
    audit = Audit(worst_case(engine, sampling, noise_multiplier=noise, **options), runs)
    record_property("audit", f"{engine}, {name}: {audit}")
    assert audit.mu < audit.claimed_mu
    assert audit.epsilon < audit.claimed_epsilon
    assert audit.plain_epsilon < audit.claimed_epsilon
    # 2,000 runs cost some 6 %, and a posterior does not show all that was released.
    assert audit.mu > 0.85 * audit.claimed_mu


@pytest.mark.audit
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "sampling", [nv.FullBatch(), nv.Poisson(0.5), nv.WithoutReplacement(0.5)], ids=repr
)
def test_one_run_stays_below_the_claim(engine, sampling, record_property):
    canaries, guesses = 1000, 400
    found = one_run(
        engine,
        sampling,
        noise_multiplier=0.5,
        canaries=canaries,
        seed=1,
    )
    correct = found.correct_guesses(guesses)
    bound = one_run_epsilon_bound(correct, guesses, canaries, DELTA, CONFIDENCE)
    claimed = found.result.privacy.epsilon
    record_property(
        "audit",
        f"{engine}, {sampling.scheme}, one run: {correct} of {guesses} guesses right, "
        f"epsilon >= {bound:.2f} (claimed {claimed:.2f})",
    )
    assert 0.2 < bound < claimed


# --- planted bugs ---------------------------------------------------------------------


def too_little_noise(patch: pytest.MonkeyPatch) -> None:
    perturbed = gaussian_mechanism._perturbed

    def quieter(block: Any, value: Any, stddev: float, rng: Any) -> Any:
        return perturbed(block, value, 0.8 * stddev, rng)

    patch.setattr(gaussian_mechanism, "_perturbed", quieter)


def no_clipping(patch: pytest.MonkeyPatch) -> None:
    for engine in (VipsEngine, DpviEngine):
        bounded_sum = engine.bounded_sum

        def unbounded(*args: Any, of: Any = bounded_sum, **options: Any) -> Any:
            return of(*args, **{**options, "clipping_norm": math.inf})

        patch.setattr(engine, "bounded_sum", unbounded)


def a_row_twice(patch: pytest.MonkeyPatch) -> None:
    select_rows = private_step.select_rows

    def select(*args: Any) -> np.ndarray:
        indices = np.asarray(select_rows(*args))
        return np.append(indices, indices[-1:])

    patch.setattr(private_step, "select_rows", select)


def root_two_forgotten(patch: pytest.MonkeyPatch) -> None:
    sensitivity = GaussianMechanism.sensitivity

    def smaller(self: Any, relation: Any = None) -> float:
        replaces = (relation or self.relation) == "replace_one"
        return sensitivity(self, relation) / (math.sqrt(2) if replaces else 1)

    patch.setattr(GaussianMechanism, "sensitivity", smaller)


# The bug, the relation, and by how much mu is then larger than claimed.
BUGS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Any, float]] = {
    "noise too small by 20 %": (too_little_noise, "add_or_remove", 1.25),
    "clipping skipped": (no_clipping, "add_or_remove", math.inf),
    "a row counted twice": (a_row_twice, "add_or_remove", 2.0),
    "sqrt(2) forgotten": (root_two_forgotten, "replace_one", math.sqrt(2)),
}
TRUE_MU = 2.5  # Where many runs tell most.


def audit_with_bug(engine: str, name: str, count: int, patch: Any) -> Audit:
    plant, relation, factor = BUGS[name]
    plant(patch)
    claimed = TRUE_MU / (2.0 if factor == math.inf else factor)
    sampling = nv.FullBatch(relation=relation)
    case = worst_case(engine, sampling, noise_multiplier=1 / claimed)
    return Audit(case, count)


@pytest.mark.thorough
@pytest.mark.usefixtures("without_remarks")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "name",
    ["clipping skipped", pytest.param("a row counted twice", marks=pytest.mark.slow)],
)
def test_few_runs_catch_gross_bugs(engine, name, monkeypatch):
    audit = audit_with_bug(engine, name, FEW_RUNS, monkeypatch)
    assert audit.mu > audit.claimed_mu


@pytest.mark.audit
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(engine, name, monkeypatch, record_property):
    audit = audit_with_bug(engine, name, RUNS, monkeypatch)
    record_property("audit", f"{engine}, BUG {name}: {audit}")
    assert audit.mu > audit.claimed_mu
    assert audit.epsilon > audit.claimed_epsilon
    factor = BUGS[name][2]
    if factor < math.inf:
        # As above: 2,000 runs, and what a posterior shows.
        assert 0.85 * TRUE_MU < audit.mu < TRUE_MU
    else:
        assert audit.mu > TRUE_MU


def epsilon_of_full_batch(mu: float) -> float:
    """What a release of all rows claims."""
    return accounting.epsilon(
        noise_multiplier=1 / mu,
        sampling_rate=1.0,
        num_steps=1,
        delta=DELTA,
        sampling="full",
    )


def noiseless_histogram(patch: pytest.MonkeyPatch) -> None:
    add_noise = GaussianMechanism.add_noise

    def added(self: Any, sums: Any, rng: Any) -> Any:
        if all(block.norm_bound == 1.0 for block in self.blocks):
            return {name: np.array(value) for name, value in sums.items()}
        return add_noise(self, sums, rng)

    patch.setattr(GaussianMechanism, "add_noise", added)


@pytest.mark.audit
@pytest.mark.parametrize("engine", ENGINES)
def test_histograms_of_norms_stay_below_their_claim(engine, record_property):
    absent, present, claimed = histogram_scores(engine, RUNS, noise_multiplier=0.4)
    mu = mu_bound_from_runs(absent, present, CONFIDENCE, 1.0)
    found = f"mu >= {mu:.3f} (claimed {claimed:.3f})"
    record_property("audit", f"{engine}, histogram of norms: {found}")
    assert 0.9 * claimed < mu < claimed


@pytest.mark.quick_with("dpvi")
@pytest.mark.parametrize("engine", ENGINES)
def test_a_histogram_without_noise_is_caught(engine, monkeypatch):
    noiseless_histogram(monkeypatch)
    absent, present, mu = histogram_scores(engine, 200, noise_multiplier=4.0)
    bound = epsilon_bound_from_runs(absent, present, DELTA, CONFIDENCE)
    assert bound > epsilon_of_full_batch(mu)


@pytest.mark.audit
@pytest.mark.parametrize("engine", ENGINES)
def test_steps_that_report_on_rows_stay_below_their_claim(engine, record_property):
    absent, present, claimed = reporting_scores(engine, RUNS, noise_multiplier=0.4)
    mu = mu_bound_from_runs(absent, present, CONFIDENCE, 1.0)
    found = f"mu >= {mu:.3f} (claimed {claimed:.3f})"
    record_property("audit", f"{engine}, statistics and reports: {found}")
    assert 0.9 * claimed < mu < claimed


@pytest.mark.quick_with("rows that count as zero-dpvi")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", DIAGNOSTICS)
def test_a_report_without_noise_is_caught(engine, name, monkeypatch):
    add_noise = GaussianMechanism.add_noise

    def forgetful(self: Any, sums: Any, rng: Any) -> Any:
        return {**add_noise(self, sums, rng), name: np.asarray(sums[name])}

    def bound() -> tuple[float, float]:
        absent, present, mu = reporting_scores(
            engine, 200, noise_multiplier=4.0, report=name
        )
        found = epsilon_bound_from_runs(absent, present, DELTA, CONFIDENCE)
        return found, epsilon_of_full_batch(mu)

    found, claimed = bound()
    assert found < claimed
    monkeypatch.setattr(GaussianMechanism, "add_noise", forgetful)
    found, claimed = bound()
    assert found > claimed


@pytest.mark.audit
def test_fits_with_a_pilot_stay_below_their_claim(record_property):
    absent, present, claimed = pilot_scores(RUNS // 2, epsilon=8.0)
    mu = mu_bound_from_runs(absent, present, CONFIDENCE, 1.0)
    found = f"mu >= {mu:.3f} (claimed {claimed:.3f})"
    record_property("audit", f"vips, all of a fit with a pilot: {found}")
    assert 0.5 * claimed < mu < claimed


@pytest.mark.audit
@pytest.mark.parametrize(
    ("scores", "what"),
    [
        (information_scores, "dpvi, information"),
        (information_count_scores, "dpvi, histogram of the information"),
        (covariate_scores, "vips, covariates"),
        (column_scores, "vips, histograms of columns"),
        (feature_scores, "dpvi, histograms of columns"),
    ],
)
def test_what_is_released_beside_steps_stays_below_its_claim(
    record_property, scores, what
):
    absent, present, claimed = scores(RUNS, noise_multiplier=0.4)
    mu = mu_bound_from_runs(absent, present, CONFIDENCE, 1.0)
    record_property("audit", f"{what}: mu >= {mu:.3f} (claimed {claimed:.3f})")
    assert 0.9 * claimed < mu < claimed


@pytest.mark.quick_with("information_count_scores-information")
@pytest.mark.parametrize(
    ("scores", "name"),
    [
        (information_scores, INFORMATION),
        (information_count_scores, INFORMATION),
        (covariate_scores, COVARIATES),
        (column_scores, "⟨w⟩"),
        (feature_scores, WHOLE_VECTOR),
    ],
)
def test_what_is_released_beside_steps_without_noise_is_caught(
    monkeypatch, scores, name
):
    add_noise = GaussianMechanism.add_noise

    def forgetful(self: Any, sums: Any, rng: Any) -> Any:
        noisy = add_noise(self, sums, rng)
        return dict(sums) if name in sums else noisy

    monkeypatch.setattr(GaussianMechanism, "add_noise", forgetful)
    absent, present, mu = scores(200, noise_multiplier=4.0)
    bound = epsilon_bound_from_runs(absent, present, DELTA, CONFIDENCE)
    assert bound > epsilon_of_full_batch(mu)


def known_keys(self: RowKeys, rng: Any) -> None:
    """As if rows were redrawn by a stream that everybody knows."""
    self._key = 0


@pytest.mark.parametrize("is_known", [False, True])
def test_bits_that_rows_are_redrawn_by_must_be_secret(is_known, monkeypatch):
    if is_known:
        monkeypatch.setattr(RowKeys, "__init__", known_keys)
    absent, present, claimed = redrawn_scores(200, noise_multiplier=1.0)
    mu = mu_bound_from_runs(absent, present, CONFIDENCE, 1.0)
    assert mu > claimed if is_known else mu < claimed


@pytest.mark.audit
def test_moments_of_a_column_stay_below_their_claim(record_property):
    absent, present, claimed = moment_scores(RUNS, epsilon=8.0)
    mu = mu_bound_from_runs(absent, present, CONFIDENCE, 1.0)
    record_property("audit", f"moments: mu >= {mu:.3f} (claimed {claimed:.3f})")
    assert 0.8 * claimed < mu < claimed


@pytest.mark.quick_with("squares-weights2")
@pytest.mark.parametrize(
    ("bug", "weights"),
    [(None, (1.0, 1.0)), (PLACES, (1.0, 0.0)), (SQUARES, (0.0, 1.0))],
)
def test_moments_without_noise_are_caught(bug, weights, monkeypatch):
    add_noise = GaussianMechanism.add_noise

    def forgetful(self: Any, sums: Any, rng: Any) -> Any:
        noisy = add_noise(self, sums, rng)
        return noisy if bug is None else {**noisy, bug: sums[bug]}

    monkeypatch.setattr(GaussianMechanism, "add_noise", forgetful)
    absent, present, claimed = moment_scores(200, epsilon=2.0, weights=weights)
    mu = mu_bound_from_runs(absent, present, CONFIDENCE, 1.0)
    assert mu < claimed if bug is None else mu > claimed


def papers_e_step(*, warm: bool) -> Any:
    """The engine's sum for `topics` by hand; if warm, a slot goes on where it was.

    The papers' code keeps q(locals) by their place in the minibatch. A row then reaches
    the contributions of other rows, in later steps, and no clipping bounds that.
    """
    kept: dict[str, np.ndarray] = {}

    def bounded_sum(
        self: Any,
        state: Any,
        rows: Any,
        mask: Any,
        *,
        scales: Any,
        clipping_norm: Any,
        row_keys: Any,
    ) -> Any:
        assert row_keys is None
        ((name, scale),) = scales.items()
        start = kept.get("start", fresh_start(len(mask)))
        total, end = topics_sum(
            np.asarray(state.expected_natural[name], np.float64),
            np.asarray(rows["words"])[:, :-1],
            mask,
            start,
            self.local_steps,
            clipping_norm / scale,
        )
        if warm:
            kept["start"] = np.where(mask[:, None], end, start)
        return {name: total}

    def posterior(self: Any, state: Any, of: Any = VipsEngine.posterior) -> Any:
        kept.clear()  # The fit is over.
        return of(self, state)

    return bounded_sum, posterior


def plant_e_step(patch: pytest.MonkeyPatch, *, warm: bool) -> None:
    bounded_sum, posterior = papers_e_step(warm=warm)
    patch.setattr(VipsEngine, "bounded_sum", bounded_sum)
    patch.setattr(VipsEngine, "posterior", posterior)


@pytest.mark.thorough
def test_the_e_step_by_hand_is_the_engines(monkeypatch):
    """With fresh starts, so that the planted bug is the warm start and nothing else."""
    case = topics_case(num_steps=8, sampling=nv.Poisson(0.5))
    _, _, result = case.scores(1)
    plant_e_step(monkeypatch, warm=False)
    _, _, by_hand = case.scores(1)
    for name, value in result.params.items():
        np.testing.assert_allclose(by_hand.params[name], value, rtol=1e-5)
    plant_e_step(monkeypatch, warm=True)
    _, _, warm = case.scores(1)
    changes = [np.max(np.abs(warm.params[k] - v)) for k, v in result.params.items()]
    assert max(changes) > 0.1


def with_sums_as_released(case: WorstCase, patch: pytest.MonkeyPatch) -> WorstCase:
    """The same for an adversary who sees every noisy sum, as the guarantee allows.

    The average over the steps forgets the first ones, where a row may have told most.
    """
    add_noise, released = GaussianMechanism.add_noise, []

    def seen(self: Any, sums: Any, rng: Any) -> Any:
        noisy = add_noise(self, sums, rng)
        released.extend(noisy.values())
        return noisy

    def score(_: Any) -> float:
        counts = np.sum(released, axis=0)
        released.clear()
        return float(counts[0, 2] - counts[1, 2])

    patch.setattr(GaussianMechanism, "add_noise", seen)
    return dataclasses.replace(case, score=score)


@pytest.mark.audit
@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "warm"])
def test_warm_started_locals_are_caught(warm, monkeypatch, record_property):
    case = with_sums_as_released(topics_case(), monkeypatch)
    if warm:
        plant_e_step(monkeypatch, warm=True)
    absent, present, result = case.scores(300)
    found = epsilon_bound_from_runs(absent, present, DELTA, CONFIDENCE)
    claimed = result.privacy.epsilon
    bug = "BUG locals started warm" if warm else "locals started afresh"
    record_property(
        "audit",
        f"vips, {bug}: from rates alone epsilon >= {found:.2f} (claimed {claimed:.2f})",
    )
    assert (found > claimed) if warm else (found < claimed)
