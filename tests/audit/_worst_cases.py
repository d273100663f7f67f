"""Fits whose results show a canary row as clearly as their guarantee allows.

The canary's contribution is clipped to the full norm, always in the same direction;
the other rows contribute nothing, or under replacement all the opposite. What the
result tells of the canary is then one number, normal with the noise's spread, and
shifted by the whole sensitivity.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from _fits import vi_of
from scipy import special

import numpyro_vips as nv
from numpyro_vips.fitting.private_step import release
from numpyro_vips.fitting.progress import Progress, advanced
from numpyro_vips.fitting.step import Step
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS, ZERO_ROWS
from numpyro_vips.privacy.releases import COVARIATES, INFORMATION
from numpyro_vips.privacy.sampling import RowSampling
from numpyro_vips.privacy.secure_random import SecureRandom

KEY = jax.random.key(0)
DELTA = 1e-5
# Far beyond any clipping norm, and more than rounding can lose.
LARGE = 1e4


class RepeatedFits:
    """Runs a fit over and over, each time with other minibatches and noise.

    Nothing of the package is replaced: a fit like one before compiles nothing.
    """

    def __init__(self, make: Callable[[int], nv.PrivateVI]):
        self._make = make

    def run(self, seed: int, *args: Any) -> nv.PrivateVIResult:
        """One fit with its own minibatches and noise."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "insecure_seed", UserWarning)
            return self._make(seed).run(KEY, *args)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorstCase:
    """A fit, two neighbouring data sets, and how to tell them apart.

    Attributes:
      model: A model of one private argument.
      absent, present: The rows without and with the canary.
      options: For `PrivateVI`.
      score: Reads off the released parameters how likely the canary was there.
      watched: Whether the adversary sees the result after every step, as `callback=`
        shows it, and not only the last one.
    """

    model: Callable[..., None]
    absent: np.ndarray
    present: np.ndarray
    options: Mapping[str, Any]
    score: Callable[[Mapping[str, Any]], float]
    watched: bool = False

    def vi(self, seed: int = 0, **further: Any) -> nv.PrivateVI:
        """The fit, with its seed and what is no part of `options`."""
        return vi_of(
            nv.private(self.model, unit="patients"),
            budget=math.inf,
            delta=DELTA,
            insecure_seed=seed,
            **self.options,
            **further,
        )

    def scores(
        self, count: int, first_seed: int = 0
    ) -> tuple[np.ndarray, np.ndarray, nv.PrivateVIResult]:
        """Scores of `count` independent fits on either data set, and the last result.

        Seeds are never used twice, so all fits are independent. Where the steps are
        watched, each fit has a score after each of them.
        """
        seen: list[float] = []
        further: dict[str, Any] = {}
        if self.watched:
            further["callback"] = lambda _, found: seen.append(self.score(found.params))
        fits = RepeatedFits(lambda seed: self.vi(seed, **further))
        found: tuple[list, list] = [], []
        result: Any = None
        for number in range(count):
            for world, rows in enumerate((self.absent, self.present)):
                seen.clear()
                result = fits.run(first_seed + 2 * number + world, rows)
                found[world].append(
                    list(seen) if self.watched else self.score(result.params)
                )
        return np.array(found[0]), np.array(found[1]), result


# --- DPVI: a row's gradient points where its value is ---------------------------------


def location(x: Any) -> None:
    """Each row's log density has the gradient x − z in the location z."""
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("x", dist.Normal(z, 1.0).to_event(1), obs=x)


# Plain gradient steps, so short that the location stays near where it is: what is
# released is added up. (A step's size is no secret and has no part in the guarantee.)
_SLOW = 0.01


def location_score(params: Mapping[str, Any]) -> float:
    return float(np.asarray(params["z.loc"])[0])


# --- VIPS: a row's statistic is its value, in the cluster that it belongs to ----------


def clusters(x: Any) -> None:
    """Two known clusters; rows release r·x and r, where r tells the cluster.

    The first coordinate decides about r. The clusters' priors are so narrow that they
    stay where they are. The last column is in no density: of such rows the model does
    not say all, so that no rows are simulated for the posterior, which takes time and
    changes nothing of what is released.
    """
    size = x.shape[1] - 1
    loc = np.zeros((2, size), np.float32)
    loc[:, 0] = -1.0, 1.0
    with numpyro.plate("cluster", 2, dim=-2), numpyro.plate("axis", size, dim=-1):
        centre = numpyro.sample("centre", dist.Normal(loc, CLUSTER_SCALE))
    with numpyro.plate("patients", x.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.5, 0.5])))
        mean = jnp.asarray(centre)[z]
        numpyro.sample("x", dist.Normal(mean, 1.0).to_event(1), obs=x[:, :-1])


CLUSTER_SCALE = 1e-3


def clusters_score(params: Mapping[str, Any]) -> float:
    return float(np.asarray(params["centre/loc"])[1, 1, 0])


# --- the data sets --------------------------------------------------------------------


def rows_of(engine: str, values: np.ndarray) -> np.ndarray:
    """Rows with these values, as the engine's model takes them."""
    values = np.asarray(values, np.float32)
    if engine == "dpvi":
        return values
    # All belong to the second cluster.
    first, last = np.full((len(values), 1), 20.0, np.float32), np.zeros_like(values)
    return np.concatenate([first, values, last[:, :1]], axis=1)


def worst_case(
    engine: str,
    sampling: RowSampling,
    *,
    noise_multiplier: float,
    num_rows: int = 10,
    num_steps: int = 1,
    watched: bool = False,
    step: float = _SLOW,
) -> WorstCase:
    """The worst case for an engine and a sampling.

    Adding or removing a row: the others hold something that is not a number, and count
    as zero. Replacing one: the canary is the opposite of all others, so that every
    batch without it is alike. DPVI's step in the location is `step` times the mean
    gradient.
    """
    if sampling.relation == "replace_one":
        values = np.full((num_rows, 1), -LARGE)
        absent = rows_of(engine, values)
        values[-1] = LARGE
        present = rows_of(engine, values)
    else:
        values = np.full((num_rows, 1), np.nan)
        values[-1] = LARGE
        present = rows_of(engine, values)
        absent = present[:-1]
    optimizer = optax.sgd(step * num_rows)
    return WorstCase(
        model=location if engine == "dpvi" else clusters,
        absent=absent,
        present=present,
        score=location_score if engine == "dpvi" else clusters_score,
        watched=watched,
        options={
            # The last iterate is all that gradients were added up to.
            "engine": nv.DPVI(optimizer=optimizer, averaging=None)
            if engine == "dpvi"
            else engine,
            "sampling": sampling,
            "noise_multiplier": noise_multiplier,
            "clipping_norm": 1.0,
            # All of the joint vector is what the adversary sees.
            "diagnostics": False,
            "num_rows": num_rows,
            "num_steps": num_steps,
        },
    )


def histogram_scores(
    engine: str, count: int, *, noise_multiplier: float, number: int = 0
) -> tuple[np.ndarray, np.ndarray, float]:
    """What histograms of norms betray of a row that is alone in its bin.

    Args:
      engine: Whose rows are counted. With `"dpvi"` its own optimiser is used, so that
        there is a histogram of the information, too.
      count: Number of releases from either data set.
      noise_multiplier: Of the step.
      number: Which of the fit's histograms.

    Returns:
      The noisy counts of that bin without the row and with it, from `count` releases
      each, and the μ that is claimed.
    """
    case = worst_case(engine, nv.FullBatch(), noise_multiplier=noise_multiplier)
    options = {k: v for k, v in case.options.items() if k != "clipping_norm"}
    vi = dataclasses.replace(case, options={**options, "engine": engine}).vi()

    def histogram(steps: Sequence[Step]) -> Step:
        return [step for step in steps if step.counts_norms][number]

    step, found = _released(case, vi, histogram, count, noise_multiplier)
    names = [part.name for part in step.counted]
    counts = [np.array([[r[n] for n in names] for r in world]) for world in found]
    return _scores_of_bins(step, counts, noise_multiplier)


def information_count_scores(
    count: int, *, noise_multiplier: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """`histogram_scores` of the histogram before DPVI's information, its last."""
    return histogram_scores("dpvi", count, noise_multiplier=noise_multiplier, number=-1)


def _scores_of_bins(
    step: Step, counts: Sequence[np.ndarray], noise_multiplier: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """See `histogram_scores`, of several histograms that count the row once each.

    Args:
      step: What released them, each with noise of its own.
      counts: Without the row and with it: (releases, histograms, bins).
      noise_multiplier: Of the step.
    """
    bins = np.argmax(counts[1].mean(0) - counts[0].mean(0), axis=1)
    absent, present = (
        np.mean([world[:, p, b] for p, b in enumerate(bins)], axis=0)
        for world in counts
    )
    claimed = math.sqrt(len(bins)) / step.mechanism.sensitivity() / noise_multiplier
    return absent, present, claimed


def reporting_scores(
    engine: str, count: int, *, noise_multiplier: float, report: str | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """What a step that also reports on rows betrays of one that is clipped, or of one
    that counts as zero.

    All others count as zero, so that both reports are at work. The adversary knows the
    one row that may be there, and so by which vector it moves what is released.

    Args:
      engine: Whose step.
      count: Number of releases from either data set.
      noise_multiplier: Of the step.
      report: The report that the adversary looks at alone, of a canary that it counts;
        by default all that is released, of one that is clipped.

    Returns:
      The likelihood ratio's logarithm, up to a constant, without the row and with it,
      from `count` releases each, and the μ that is claimed.
    """
    case = worst_case(engine, nv.FullBatch(), noise_multiplier=noise_multiplier)
    if report == ZERO_ROWS:
        case = dataclasses.replace(case, present=np.full_like(case.present, np.nan))
    vi = dataclasses.replace(case, options={**case.options, "diagnostics": True}).vi()

    def reporting(steps: Sequence[Step]) -> Step:
        return next(step for step in steps if step.reports)

    step, found = _released(case, vi, reporting, count, noise_multiplier)
    scales = {block.name: block.scale for block in step.released}
    assert set(DIAGNOSTICS) < scales.keys() and step.clipping_norm is not None
    sums = []
    for rows in (case.absent, case.present):
        prepared, _ = vi._prepare_fit((rows,), {})
        (name,) = prepared.arguments.row_shapes()
        sums.append(
            prepared.engine.bounded_sum(
                prepared.engine.initial_state(KEY),
                {name: rows},
                np.ones(len(rows), bool),
                scales=scales,
                clipping_norm=step.clipping_norm,
            )
        )
    moved = {
        name: scale**2 * (np.asarray(sums[1][name]) - np.asarray(sums[0][name]))
        for name, scale in scales.items()
        if report in (None, name)
    }
    absent, present = (
        np.array([sum(np.sum(moved[n] * r[n]) for n in moved) for r in world])
        for world in found
    )
    return absent, present, 1.0 / noise_multiplier


def information_scores(
    count: int, *, noise_multiplier: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """What the information of rows betrays of one that adds all that it may.

    Returns:
      The released number without the row and with it, from `count` releases each, and
      the μ that is claimed.
    """
    case = worst_case("dpvi", nv.FullBatch(), noise_multiplier=noise_multiplier)
    vi = dataclasses.replace(case, options={**case.options, "engine": "dpvi"}).vi()

    def informing(steps: Sequence[Step]) -> Step:
        (step,) = [step for step in steps if step.informs]
        return step

    _, found = _released(case, vi, informing, count, noise_multiplier)
    absent, present = (
        np.array([released[INFORMATION][0, 0] for released in world]) for world in found
    )
    return absent, present, 1.0 / noise_multiplier


def exposures(x: Any) -> None:
    """A row has a covariate, and a rate of its own."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("patients", x.shape[0]):
        own = numpyro.sample("own", dist.Gamma(3.0, rate))
        numpyro.sample("y", dist.Poisson(jnp.abs(x[:, 0]) * own), obs=x[:, 1])


def _alone(
    model: Callable[..., None],
    canary: Sequence[float],
    noise_multiplier: float,
    *,
    num_rows: int = 10,
) -> WorstCase:
    """A single step of VIPS on a canary and nine rows that count as zero.

    What it releases is looked at, not the parameters, so that they have no score.

    Args:
      model: Of one private argument.
      canary: Its row.
      noise_multiplier: Of the step.
      num_rows: As many as are said to be there.
    """
    present = np.full((10, len(canary)), np.nan, np.float32)
    present[-1] = canary
    return WorstCase(
        model=model,
        absent=present[:-1],
        present=present,
        score=lambda params: 0.0,
        options={
            "engine": "vips",
            "sampling": nv.FullBatch(),
            "noise_multiplier": noise_multiplier,
            "num_rows": num_rows,
            "num_steps": 1,
        },
    )


def labelled(x: Any) -> None:
    """Labels in the last column, features in the others."""
    size = x.shape[1] - 1
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([size]).to_event(1))
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x[:, :-1] @ w), obs=x[:, -1])


def column_scores(
    count: int, *, noise_multiplier: float, engine: str = "vips"
) -> tuple[np.ndarray, np.ndarray, float]:
    """What histograms of columns betray of a row that is alone in its bins.

    Returns:
      The noisy counts of these bins, their mean, without the row and with it, from
      `count` releases each, and the μ that is claimed.
    """
    # So many rows are said to be there that columns have histograms.
    case = _alone(labelled, (LARGE, 1.0, 1.0), noise_multiplier, num_rows=1000)
    case = dataclasses.replace(case, options={**case.options, "engine": engine})

    def of_columns(steps: Sequence[Step]) -> Step:
        (step,) = [step for step in steps if step.is_by_column]
        return step

    step, found = _released(case, case.vi(), of_columns, count, noise_multiplier)
    (part,) = step.counted
    counts = [np.array([released[part.name] for released in world]) for world in found]
    return _scores_of_bins(step, counts, noise_multiplier)


def feature_scores(
    count: int, *, noise_multiplier: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """The same of DPVI, which counts features; see `column_scores`."""
    return column_scores(count, noise_multiplier=noise_multiplier, engine="dpvi")


def covariate_scores(
    count: int, *, noise_multiplier: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """What the covariates' second moments betray of a row that adds all that it may.

    Returns:
      The released square without the row and with it, from `count` releases each, and
      the μ that is claimed.
    """
    case = _alone(exposures, (LARGE, 1.0), noise_multiplier)

    def of_covariates(steps: Sequence[Step]) -> Step:
        (step,) = [step for step in steps if step.label == COVARIATES]
        return dataclasses.replace(step, clipping_norm=1.0)

    _, found = _released(case, case.vi(), of_covariates, count, noise_multiplier)
    absent, present = (
        np.array([released[COVARIATES][1, 1] for released in world]) for world in found
    )
    return absent, present, 1.0 / noise_multiplier


def moment_scores(
    count: int, *, epsilon: float, weights: tuple[float, float] = (1.0, 1.0)
) -> tuple[np.ndarray, np.ndarray, float]:
    """What released moments of a column betray of a row at the end of its range.

    The others lie where neither the mean nor the variance is cut off. Of the joint
    vector the row moves the sum and twice the sum of squares, both by one.

    Args:
      count: Releases of either data set.
      epsilon: Of a release.
      weights: Of the two in what is returned; equal ones show most.

    Returns:
      The two, weighed, without the row and with it, and the μ that is claimed.
    """
    schema = nv.Schema(x=nv.Bounded(-1, 1))
    others = np.tile([-0.7, 0.7], 500)
    scores, claimed = [], math.nan
    for x in (others, np.append(others, 1.0)):
        of_world = []
        for _ in range(count):
            moments = schema.private_moments(
                {"x": x},
                budget=nv.PrivacyBudget(epsilon, DELTA),
                unit="patients",
                epsilon=epsilon,
                delta=DELTA,
                num_rows=len(others),
            )
            mean, sd, *_ = moments["x"]
            both = mean, 2 * (sd**2 + mean**2)
            of_world.append(len(others) * np.dot(weights, both))
            (event,) = moments.privacy.events
            claimed = 1.0 / event.noise_multiplier
        scores.append(np.array(of_world))
    return scores[0], scores[1], claimed


def level(x: Any) -> None:
    """Rows release x - c, with c from a pilot."""
    m = numpyro.sample("m", dist.Normal(0.0, 10.0))
    with numpyro.plate("patients", x.shape[0]):
        numpyro.sample("x", dist.Normal(m, 1.0), obs=x)


def pilot_scores(count: int, *, epsilon: float) -> tuple[np.ndarray, np.ndarray, float]:
    """What all releases of a fit with a pilot betray together of an only row.

    The points about which later sums are taken, and the norms to which rows are
    clipped, depend on earlier releases. The adversary weighs every released number by
    how much the row moves it on average, as half of the fits show.

    Returns:
      The scores of the other half, without the row and with it, and the μ that is
      claimed for all of them.
    """
    nothing = np.full(9, np.nan, np.float32)
    worlds = nothing, np.append(nothing, np.float32(LARGE))
    model = nv.private(level, unit="patients")
    seen: list[np.ndarray] = []
    claimed = 0.0
    for world, rows in enumerate(worlds):
        found = []
        for number in range(2 * count):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "insecure_seed", UserWarning)
                random = SecureRandom(insecure_seed=2 * number + world)
                budget = nv.PrivacyBudget(epsilon, DELTA)
                vi = nv.PrivateVI(model, budget=budget, num_rows=10, progress_bar=False)
            prepared, _ = vi._prepare_fit((rows,), {})
            engine, arguments = prepared.engine, prepared.arguments
            progress = Progress(steps=vi._price(prepared.steps).steps)
            assert any(step.is_pilot for step in progress.steps)
            claimed = math.sqrt(sum(s.noise_multiplier**-2 for s in progress.steps))
            state: Any = engine.initial_state(KEY)
            numbers = []
            for place in range(len(progress.steps)):
                step = progress.steps[place]
                released = release(arguments, engine, step, state, random, None)
                for name in sorted(released):
                    stddev = step.mechanism.block_noise_stddev(name)
                    numbers.append(np.ravel(released[name]) / stddev)
                state, progress = advanced(
                    engine,
                    progress,
                    place,
                    state,
                    released,
                    parts=prepared.parts,
                    graph=prepared.graph,
                )
            found.append(np.concatenate(numbers))
        seen.append(np.array(found))
    moved = seen[1][:count].mean(0) - seen[0][:count].mean(0)
    # Numbers that the row moves by less than chance does are noise to the adversary.
    moved[np.abs(moved) < 4.0 * math.sqrt(2.0 / count)] = 0.0
    absent, present = (each[count:] @ moved for each in seen)
    return absent, present, claimed


def durations(y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    with numpyro.plate("patients", y.shape[0]):
        numpyro.sample("y", dist.Exponential(rate), obs=y)


def redrawn_scores(
    count: int, *, noise_multiplier: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """What a step that redraws rows betrays of the first one.

    Without it every other row has the place, and the bits, that the one before it had.
    Short and long durations take turns: to who knows the bits, all rows change.

    Args:
      count: Number of releases from either data set.
      noise_multiplier: Of the step.

    Returns:
      The released gradients, times -1, without the row and with it, and the μ that is
      claimed. With the bits of the key 0 they are larger with it.
    """
    rows = np.tile(np.array([0.02, 3.0], np.float32), 200)
    options = {
        "engine": "dpvi",
        "num_steps": 2,
        "num_rows": len(rows),
        "clipping_norm": 0.5,
        "noise_multiplier": noise_multiplier,
        "diagnostics": False,
    }
    case = WorstCase(
        model=durations,
        absent=rows[1:],
        present=rows,
        options=options,
        score=lambda params: 0.0,
    )

    def redrawing(steps: Sequence[Step]) -> Step:
        return next(step for step in steps if step.redraws and not step.is_aside)

    step, found = _released(case, case.vi(), redrawing, count, noise_multiplier)
    absent, present = (
        -np.array([float(released["loc"][0]) for released in of_world])
        for of_world in found
    )
    return absent, present, 1.0 / step.noise_multiplier


def _released(
    case: WorstCase,
    vi: nv.PrivateVI,
    choose: Callable[[Sequence[Step]], Step],
    count: int,
    noise_multiplier: float,
) -> tuple[Step, list[list[Mapping[str, np.ndarray]]]]:
    """A step of the schedule, and what it releases without the canary and with it."""
    step = choose(vi._prepare_fit((case.present,), {})[0].steps)
    step = step.scaled(noise_multiplier / step.noise_multiplier)
    found = []
    for world, rows in enumerate((case.absent, case.present)):
        prepared, _ = vi._prepare_fit((rows,), {})
        state = prepared.engine.initial_state(KEY)
        releases = []
        for number in range(count):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "insecure_seed", UserWarning)
                random = SecureRandom(insecure_seed=2 * number + world)
            releases.append(
                release(prepared.arguments, prepared.engine, step, state, random, None)
            )
        found.append(releases)
    return step, found


# --- many canaries at once ------------------------------------------------------------


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
    """One fit with many canaries, each on a coordinate of its own.

    Attributes:
      scores: How much each canary seems to have been there.
      included: Whether it was, by a fair coin of its own.
      result: What the fit released.
    """

    scores: np.ndarray
    included: np.ndarray
    result: nv.PrivateVIResult

    def correct_guesses(self, guesses: int) -> int:
        """Guesses "in" for the highest scores and "out" for the lowest, half each."""
        order = np.argsort(self.scores)
        half = guesses // 2
        right_out = np.sum(~self.included[order[:half]])
        return int(right_out + np.sum(self.included[order[-half:]]))


def one_run(
    engine: str,
    sampling: RowSampling,
    *,
    noise_multiplier: float,
    canaries: int,
    seed: int,
) -> Canaries:
    """Fits once to canaries that were included by coin flips.

    A canary that is not included is left out; where rows are replaced instead, its
    opposite stands in its place.
    """
    included = np.random.default_rng(seed).random(canaries) < 0.5
    values = LARGE * np.eye(canaries)
    if sampling.relation == "replace_one":
        rows = np.where(included[:, None], values, -values)
    else:
        rows = values[included]
    case = worst_case(
        engine,
        sampling,
        noise_multiplier=noise_multiplier,
        num_rows=canaries,
        step=1.0,  # A long one, beside which the random start is small.
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "insecure_seed", UserWarning)
        result = case.vi(seed).run(KEY, rows_of(engine, rows))
    if engine == "dpvi":
        scores = np.asarray(result.params["z.loc"])
    else:
        scores = np.asarray(result.params["centre/loc"])[1, 1:, 0]
    return Canaries(scores=scores, included=included, result=result)


# --- latents of rows that would remember ----------------------------------------------

TOPIC_PRIOR = 0.02
# So strong that noise does not move the topics.
TOPIC_STRENGTH = 1e5


def topics(words: Any) -> None:
    """Two known topics: word 0 tells the first, word 1 the other, word 2 nothing.

    Under the sparse prior a document is of one topic. One of ambiguous words only
    stays even between the two from an even start, and in any one that it starts from.
    The last column is in no density, see `clusters`.
    """
    probabilities = np.array([[0.59, 0.01, 0.4], [0.01, 0.59, 0.4]])
    with numpyro.plate("topic", 2):
        beta = numpyro.sample("beta", dist.Dirichlet(TOPIC_STRENGTH * probabilities))
    with numpyro.plate("patients", words.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(2, TOPIC_PRIOR)))
        with numpyro.plate("word", words.shape[1] - 1, dim=-1):
            z = numpyro.sample("z", dist.Categorical(jnp.asarray(theta)))
            topic = jnp.asarray(beta)[z]
            numpyro.sample("w", dist.Categorical(topic), obs=words[:, :-1])


def topics_score(params: Mapping[str, Any]) -> float:
    """How much more of the ambiguous word the first topic got."""
    concentration = np.asarray(params["beta/concentration"], np.float64)
    return float(concentration[0, 2] - concentration[1, 2])


def topics_case(**options: Any) -> WorstCase:
    """The canary is the first row, of the first topic; all others are ambiguous."""
    present = np.full((60, 101), 2, np.int32)
    present[0] = 0
    return WorstCase(
        model=topics,
        absent=present[1:],
        present=present,
        score=topics_score,
        options={
            "engine": nv.VIPS(local_steps=1),
            "sampling": nv.Poisson(0.03),
            "noise_multiplier": 2.0,
            "clipping_norm": 1.0,
            "diagnostics": False,
            "num_rows": 60,
            "num_steps": 100,
            **options,
        },
    )


def topics_sum(
    log_beta: np.ndarray,
    words: np.ndarray,
    mask: np.ndarray,
    start: np.ndarray,
    sweeps: int,
    clipping_norm: float,
) -> tuple[np.ndarray, np.ndarray]:
    """The clipped sum of the topics' word counts, written out by hand.

    Args:
      log_beta: E[log beta], topics by words.
      words, mask: A chunk of documents, and which of them are meant.
      start: E[log theta] of each document to start from.

    Returns:
      The sum, and E[log theta] at the end.
    """
    likelihood = np.moveaxis(log_beta[:, words], 0, -1)
    log_theta = start
    share = np.zeros_like(likelihood)
    for _ in range(sweeps):
        share = special.softmax(log_theta[:, None, :] + likelihood, axis=-1)
        theta = TOPIC_PRIOR + share.sum(1)
        total = theta.sum(-1, keepdims=True)
        log_theta = special.digamma(theta) - special.digamma(total)
    counts = np.einsum("nlk,nlv->nkv", share, np.eye(log_beta.shape[1])[words])
    norms = np.sqrt((counts**2).sum((1, 2)))
    weights = mask * np.minimum(1.0, clipping_norm / norms)
    return np.einsum("n,nkv->kv", weights, counts), log_theta


def fresh_start(count: int) -> np.ndarray:
    """E[log theta] under the prior."""
    each = special.digamma(TOPIC_PRIOR) - special.digamma(2 * TOPIC_PRIOR)
    return np.full((count, 2), each)
