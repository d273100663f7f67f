"""What rows leave open of their own latents, in the posterior of the globals."""

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.vips.corrections.missing_information import observed
from numpyro_vips.vips.posterior.posterior import ConjugatePosterior
from numpyro_vips.vips.steps.statistic_coordinates import StatisticCoordinates

ROWS = 4_000
WRONG = 0.2
BETWEEN, WITHIN = 0.5, 1.5


def misreported(n: int, y: Any = None) -> None:
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", n):
        true = numpyro.sample(
            "true", dist.Bernoulli(share), infer={"enumerate": "parallel"}
        )
        answer = jnp.where(true == 1, 1.0 - WRONG, WRONG)
        numpyro.sample("y", dist.Bernoulli(answer), obs=y)


def caught(y: Any) -> None:
    """Animals, of which those that are not there are never caught."""
    there = numpyro.sample("there", dist.Uniform(0.0, 1.0))
    chance = numpyro.sample("chance", dist.Uniform(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(there), infer={"enumerate": "parallel"})
        numpyro.sample("sum", dist.Binomial(3, probs=chance * z), obs=y.sum(1))


def repeated(n: int, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 20.0))
    with numpyro.plate("rows", n):
        level = numpyro.sample("level", dist.Normal(mean, BETWEEN))
        for k in range(2):
            seen = None if y is None else y[:, k]
            numpyro.sample(f"y{k}", dist.Normal(level, WITHIN), obs=seen)


def repeated_with_scales(n: int, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    between = numpyro.sample("between", dist.Gamma(3.0, 3.0))
    within = numpyro.sample("within", dist.Gamma(3.0, 3.0))
    with numpyro.plate("rows", n):
        level = numpyro.sample("level", dist.Normal(mean, 1 / jnp.sqrt(between)))
        for k in range(3):
            seen = None if y is None else y[:, k]
            numpyro.sample(f"y{k}", dist.Normal(level, 1 / jnp.sqrt(within)), obs=seen)


def fitted(model: Any, y: np.ndarray, epsilon: float = 1e5) -> nv.PrivateVIResult:
    vi = vi_of(
        nv.private(model, unit="rows", public=("n",)),
        budget=epsilon,
        engine="vips",
        insecure_seed=0,
    )
    with warnings.catch_warnings(action="ignore"):
        # Nothing overflows or loses its precision on the way, in a rehearsal neither.
        warnings.filterwarnings("error", category=RuntimeWarning)
        warnings.filterwarnings("error", message="Explicitly requested dtype")
        return vi.run(jax.random.key(0), len(y), y)


@pytest.fixture(scope="module")
def answers() -> np.ndarray:
    yes = round(ROWS * (0.3 * (1.0 - WRONG) + 0.7 * WRONG))
    return (np.arange(ROWS) < yes).astype(np.int32)


@pytest.fixture(scope="module")
def almost_without_noise(answers: np.ndarray) -> nv.PrivateVIResult:
    return fitted(misreported, answers)


@pytest.mark.thorough
def test_a_misreported_share_has_the_exact_posterior(
    answers: np.ndarray, almost_without_noise: nv.PrivateVIResult
) -> None:
    shares = np.linspace(1e-4, 1 - 1e-4, 20_000)
    yes = shares * (1 - WRONG) + (1 - shares) * WRONG
    number = answers.sum()
    density = number * np.log(yes) + (ROWS - number) * np.log1p(-yes)
    density += np.log(shares * (1.0 - shares))
    weights = np.exp(density - density.max())
    weights /= weights.sum()
    mean = weights @ shares
    stddev = math.sqrt(weights @ (shares - mean) ** 2)
    found = almost_without_noise.posterior.moments()["share"]
    assert abs(found.mean - mean) < 0.1 * stddev
    assert found.stddev == pytest.approx(stddev, rel=0.03)


@pytest.mark.thorough
def test_diagnostics_say_how_much_is_missing(
    almost_without_noise: nv.PrivateVIResult,
) -> None:
    found = almost_without_noise.diagnostics
    yes = 0.3 * (1 - WRONG) + 0.7 * WRONG
    complete = 1.0 / (0.3 * 0.7)
    seen = (1 - 2 * WRONG) ** 2 / (yes * (1 - yes))
    assert found["missing_information"] == pytest.approx(1 - seen / complete, abs=0.03)
    assert found["errors_left"] < 0.1
    assert not found["moving"] and not found["warnings"]


@pytest.mark.thorough
def test_privacy_takes_its_part_of_the_width(
    answers: np.ndarray, almost_without_noise: nv.PrivateVIResult
) -> None:
    result = fitted(misreported, answers, epsilon=0.3)
    posterior = result.posterior
    assert isinstance(posterior, ConjugatePosterior)
    parts = posterior.variance_parts()["share"]
    plain = almost_without_noise.posterior.moments()["share"].stddev
    assert parts.data == pytest.approx(plain**2, rel=0.2)
    assert parts.privacy > 0.3 * parts.data
    share = result.posterior.moments()["share"]
    assert abs(share.mean - 0.3) < 3.0 * share.stddev


@pytest.mark.thorough
def test_a_mean_of_levels_has_the_exact_posterior() -> None:
    rng = np.random.default_rng(1)
    level = rng.normal(7.0, BETWEEN, ROWS)
    y = rng.normal(level[:, None], WITHIN, (ROWS, 2)).astype(np.float32)
    found = fitted(repeated, y).posterior.moments()["mean"]
    stddev = math.sqrt((BETWEEN**2 + WITHIN**2 / 2) / ROWS)
    assert abs(found.mean - y.mean()) < 0.1 * stddev
    assert found.stddev == pytest.approx(stddev, rel=0.05)


@pytest.mark.thorough
def test_errors_of_the_first_steps_are_taken_out() -> None:
    # Far from where a fit starts, levels take up what the scale within rows explains.
    rng = np.random.default_rng(2)
    level = rng.normal(-4.9, 1 / math.sqrt(0.5), 2 * ROWS)
    y = rng.normal(level[:, None], 1 / math.sqrt(1.9), (2 * ROWS, 3))
    found = fitted(repeated_with_scales, y.astype(np.float32), 1.0).posterior.moments()
    for name, truth in (("mean", -4.9), ("between", 0.5), ("within", 1.9)):
        assert abs(found[name].mean - truth) < 3.5 * found[name].stddev, name


@pytest.mark.thorough
def test_components_to_spare_are_said_to_be_open() -> None:
    def classes(n: int, y: Any = None) -> None:
        share = numpyro.sample("share", dist.Dirichlet(jnp.ones(5)))
        wide = dist.Beta(1.0, 1.0).expand([5, 8]).to_event(2)
        chance = numpyro.sample("chance", wide)
        with numpyro.plate("rows", n):
            z = numpyro.sample("z", dist.Categorical(share))
            numpyro.sample("y", dist.Bernoulli(chance[z]).to_event(1), obs=y)

    rng = np.random.default_rng(0)
    chance = rng.beta(0.7, 0.7, (3, 8))
    z = rng.choice(3, 2_000, p=[0.5, 0.3, 0.2])
    result = fitted(classes, (rng.random((2_000, 8)) < chance[z]).astype(np.int32), 2.0)
    found = result.diagnostics
    assert found["missing_information"] > 0.5 and found["errors_left"] is None
    (text,) = [w for w in found["warnings"] if "could not be corrected" in w]
    assert "components" in text
    # Rows are still told apart: the posterior has not become the prior.
    spread = np.asarray(result.posterior.moments()["chance"].mean).std(0).max()
    assert spread > 0.08


# --- the algebra ----------------------------------------------------------------------


class Linear:
    """Rows and globals that answer linearly; rows are None."""

    def __init__(self, of_natural: np.ndarray, missing: np.ndarray, asked: np.ndarray):
        self.of_natural, self.missing, self.asked = of_natural, missing, asked

    def inside(self, sums: np.ndarray, margins: np.ndarray) -> np.ndarray:
        return sums

    def sizes(self, sums: np.ndarray) -> np.ndarray:
        return np.abs(sums)

    def natural(self, sums: np.ndarray) -> np.ndarray:
        return self.of_natural @ sums

    def rows(self, sums: np.ndarray) -> Any:
        return "rows"

    def sums(self, sums: np.ndarray, rows: Any) -> np.ndarray:
        return self.missing @ self.natural(sums)

    def early_sums(self, rows: Any) -> np.ndarray:
        return self.sums(self.asked, rows)


def random_answers(rng: np.random.Generator, size: int) -> Linear:
    """With up to 0.85 of the information missing, and units far apart."""
    units = np.exp(rng.normal(0.0, 3.0, size))
    root = units[:, None] * (np.eye(size) + 0.2 * rng.normal(size=(size, size)))
    directions = np.linalg.qr(rng.normal(size=(size, size)))[0]
    shares = directions * rng.uniform(0.0, 0.85, size) @ directions.T
    inverse = np.linalg.inv(root)
    asked = rng.normal(size=size) / units
    return Linear(root @ root.T, inverse.T @ shares @ inverse, asked)


def test_linear_answers_are_solved_exactly() -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        answers = random_answers(rng, 6)
        returns = answers.missing @ answers.of_natural
        size = np.sqrt(np.diagonal(np.linalg.inv(answers.of_natural)))
        end = size * rng.normal(size=6)
        stddev = size * rng.uniform(0.1, 2.0, 6)
        # The average of steps that asked elsewhere.
        average = end - returns @ (end - answers.asked)
        found = observed(average, stddev, np.ones(6, bool), answers)
        assert found is not None
        np.testing.assert_allclose(found.sums, end, rtol=1e-6, atol=1e-6 * size.max())
        grown = np.linalg.inv(np.eye(6) - returns)
        of_rows = answers.of_natural @ grown
        of_noise = (of_rows * stddev**2) @ of_rows.T
        assert found.left is not None and found.left < 1e-6
        assert found.missing == pytest.approx(np.linalg.eigvals(returns).real.max())
        # Independent noise in the sums makes the widths, as far as it can.
        for given, wanted in (
            (found.stddev, of_rows - answers.of_natural + of_noise),
            (found.stddev_of_rows, of_rows - answers.of_natural),
        ):
            made = answers.of_natural**2 @ given**2
            assert (given is not found.stddev) or (given >= stddev).all()
            assert np.mean(made / np.diagonal(wanted)) == pytest.approx(1.0, abs=0.3)


def test_sums_that_depend_on_nothing_are_as_they_are() -> None:
    answers = random_answers(np.random.default_rng(0), 3)
    assert observed(np.ones(3), np.ones(3), np.zeros(3, bool), answers) is None


class Astray(Linear):
    """What rows answered in the steps changes with where they are simulated."""

    def rows(self, sums: np.ndarray) -> Any:
        return sums

    def early_sums(self, rows: Any) -> np.ndarray:
        return super().early_sums(rows) + 4.0 * rows


def test_corrections_that_lead_nowhere_are_not_made() -> None:
    linear = random_answers(np.random.default_rng(0), 3)
    answers = Astray(linear.of_natural, linear.missing, linear.asked)
    size = np.sqrt(np.diagonal(np.linalg.inv(linear.of_natural)))
    right = observed(9.0 * size, size, np.ones(3, bool), linear)
    found = observed(9.0 * size, size, np.ones(3, bool), answers)
    assert right is not None and right.left is not None and right.left < 1e-6
    assert found is not None and found.left is None
    np.testing.assert_array_equal(found.sums, 9.0 * size)
    # What rows leave open is width all the same.
    assert (found.stddev >= size).all() and (found.stddev_of_rows > 0).any()
    assert found.stddev.sum() == pytest.approx(right.stddev.sum())


class Late(Linear):
    """Corrections that grow once they have come near the end."""

    def __init__(self, answers: Linear):
        super().__init__(answers.of_natural, answers.missing, answers.asked)
        self.number = 0

    def rows(self, sums: np.ndarray) -> int:
        self.number += 1
        return self.number

    def early_sums(self, rows: Any) -> np.ndarray:
        wrong = {1: 0.0, 2: 0.01}.get(rows, 3.0**rows)
        scale = np.sqrt(np.diagonal(np.linalg.inv(self.of_natural)))
        return super().early_sums(rows) + wrong * scale


def test_rounds_that_came_near_the_end_count() -> None:
    linear = random_answers(np.random.default_rng(0), 3)
    size = np.sqrt(np.diagonal(np.linalg.inv(linear.of_natural)))
    right = observed(9.0 * size, size, np.ones(3, bool), linear)
    found = observed(9.0 * size, size, np.ones(3, bool), Late(linear))
    assert right is not None and found is not None and found.left is not None
    np.testing.assert_allclose(found.sums, right.sums, atol=0.2 * size.max())


class Kinked(Linear):
    """In one direction rows answer with a jump, which is no slope."""

    def sums(self, sums: np.ndarray, rows: Any) -> np.ndarray:
        jump = 1e3 * np.sign(self.natural(sums)[0]) * np.array([0.0, 1.0, 0.0])
        return super().sums(sums, rows) + jump


def test_jumps_are_no_slopes() -> None:
    of_natural = np.eye(3)
    missing = np.diag([0.5, 0.3, 0.7])
    plain = Linear(of_natural, missing, np.zeros(3))
    kinked = Kinked(of_natural, missing, np.zeros(3))
    found = [
        observed(np.zeros(3), np.ones(3), np.ones(3, bool), each)
        for each in (plain, kinked)
    ]
    assert found[0] is not None and found[1] is not None
    assert found[0].missing == pytest.approx(0.7)
    # What is known of the third direction is still known, and of the others nothing.
    assert found[1].missing == pytest.approx(0.7)
    assert found[1].stddev[2] == pytest.approx(found[0].stddev[2], rel=1e-3)
    assert np.isfinite(found[1].stddev).all() and found[1].stddev[1] < 3.0


def test_more_than_all_is_never_missing() -> None:
    """As where components are alike: an error would come back as more than it was."""
    answers = Linear(np.eye(3), np.diag([0.5, 0.3, 1.2]), np.zeros(3))
    found = observed(np.zeros(3), np.ones(3), np.ones(3, bool), answers)
    assert found is not None and found.left is None and found.missing == 1.0
    # Widths are those of nine tenths, where more is missing: 10 is 1/(1 - 0.9).
    nine = Linear(np.eye(3), np.diag([0.5, 0.3, 0.9]), np.zeros(3))
    expected = observed(np.zeros(3), np.ones(3), np.ones(3, bool), nine)
    assert expected is not None
    np.testing.assert_allclose(found.stddev[:2], expected.stddev[:2])
    assert 10.0 < found.stddev[2] < 11.0


def test_rows_without_an_answer_change_nothing() -> None:
    class Silent(Linear):
        """Rows whose sums are not finite."""

        def sums(self, sums: np.ndarray, rows: Any) -> np.ndarray:
            return super().sums(sums, rows) + np.nan

    linear = random_answers(np.random.default_rng(0), 3)
    answers = Silent(linear.of_natural, linear.missing, linear.asked)
    assert observed(np.ones(3), np.ones(3), np.ones(3, bool), answers) is None


def test_coordinates_are_those_of_the_noise() -> None:
    plain = Statistic(name="x", atoms=(), shape=(2,), release="adaptive", matrix=None)
    square = Statistic(
        name="xx",
        atoms=(),
        shape=(2, 3, 3),
        release="adaptive",
        matrix=((0,), (1,), (2,)),
    )
    coordinates = StatisticCoordinates([plain, square])
    rng = np.random.default_rng(0)
    half = rng.normal(size=(2, 3, 3))
    blocks = {"x": rng.normal(size=2), "xx": half + np.swapaxes(half, 1, 2)}
    vector = coordinates.vector(blocks)
    assert len(vector) == len(coordinates) == 2 + 2 * 6
    assert vector @ vector == pytest.approx(sum(np.sum(b**2) for b in blocks.values()))
    back = coordinates.blocks(vector)
    for name, block in blocks.items():
        np.testing.assert_allclose(back[name], block)
    stddevs = coordinates.by_coordinate({"x": 2.0, "xx": np.abs(blocks["xx"])})
    again = coordinates.blocks_of_stddevs(stddevs)
    np.testing.assert_allclose(again["x"], 2.0)
    np.testing.assert_allclose(again["xx"], np.abs(blocks["xx"]))


def test_counts_below_zero_are_looked_at_inside() -> None:
    count = Statistic(
        name="n", atoms=(), shape=(3,), release="adaptive", matrix=None, lower=0.0
    )
    other = Statistic(name="x", atoms=(), shape=(1,), release="adaptive", matrix=None)
    vector = np.array([-3.0, 0.5, 7.0, -3.0])
    found = StatisticCoordinates([count, other]).inside(vector, np.full(4, 2.0))
    np.testing.assert_array_equal(found, [2.0, 2.0, 7.0, -3.0])


@pytest.mark.thorough
def test_rows_are_simulated_where_a_sum_is_observed() -> None:
    """The catches are no covariates, whose moments would have to be released."""
    rng, held, missing = np.random.default_rng(0), [], []
    for seed in range(12):
        there = rng.random(1000) < 0.4
        y = ((rng.random((1000, 3)) < 0.4) & there[:, None]).astype(np.int32)
        result = vi_of(caught, engine="vips").run(jax.random.key(seed), y)
        assert not any("covariates" in event.label for event in result.privacy.events)
        missing.append(result.diagnostics["missing_information"] or 0.0)
        draws = result.sample_posterior(jax.random.key(seed), sample_shape=(1000,))
        for name in ("there", "chance"):
            low, high = np.quantile(np.asarray(draws[name]), [0.05, 0.95])
            held.append(low < 0.4 < high)
    assert np.median(missing) > 0.3
    assert np.mean(held) >= 0.5
