"""The examples and the benchmark of DPVI measure what they say, and run."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import potential_energy
from scipy import stats

import _datasets
import bayesian_neural_network
import gaussian_mixture
import poisson_regression

TINY = ["--no-progress", "--insecure-seed", "0", "--num-steps", "2", "--epsilon", "2"]


@pytest.fixture(scope="module")
def benchmark(repository: Path) -> Any:
    """The module `benchmarks/dpvi_paper.py`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(repository / "benchmarks"))
        import dpvi_paper  # type: ignore[import-not-found]

        yield dpvi_paper
    sys.modules.pop("dpvi_paper", None)


# --- examples -------------------------------------------------------------------------

EXAMPLES = {
    "mixture": (gaussian_mixture, ["--num-rows", "100"], "weight", "predictive"),
    "poisson": (poisson_regression, ["--num-rows", "100"], "w", "log_likelihood"),
    "network": (bayesian_neural_network, ["--num-units", "3"], "inner", "auc"),
}


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*insecure_seed")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param("mixture", marks=pytest.mark.slow),
        "poisson",
        pytest.param("network", marks=pytest.mark.slow),
    ],
)
def test_example_reports_and_leaves_its_files(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    example, options, latent, measure = EXAMPLES[case]
    output, json_file = tmp_path / "output", tmp_path / "report.json"
    example.main([*options, *TINY, "--output", str(output), "--json", str(json_file)])
    report = json.loads(json_file.read_text())
    assert report["engine"] == "dpvi"
    assert report["epsilon"] == 2.0 and 0.0 < report["delta"] <= 1e-5
    assert math.isfinite(report[measure])
    idata: Any = az.from_netcdf(str(output / "posterior.nc"))
    assert latent in idata.posterior
    assert "observed_data" not in list(idata)
    if case == "mixture":
        assert (output / "components.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "Privacy statement" in printed and "insecure" in printed


@pytest.mark.thorough
def test_poisson_regression_comes_close_to_the_truth(tmp_path: Path):
    report = poisson_regression.main(
        ["--num-rows", "4000", "--no-progress", "--output", str(tmp_path)]
    )
    nothing_learnt = poisson_regression.mean_log_likelihood(
        np.zeros(5), *poisson_regression.generate(5000, seed=1)
    )
    gain = report["log_likelihood_truth"] - nothing_learnt
    assert report["log_likelihood"] > report["log_likelihood_truth"] - 0.05 * gain


def test_rows_of_the_poisson_regression_have_norm_at_most_one():
    X, visits = poisson_regression.generate(1000, seed=3)
    assert np.max(np.linalg.norm(X, axis=1)) <= 1.0
    rates = np.exp(
        X @ (poisson_regression.coefficients() * poisson_regression.largest_norm())
    )
    # The counts are Poisson with these rates: mean and variance of the residuals.
    residuals = (visits - rates) / np.sqrt(rates)
    assert abs(residuals.mean()) < 5 / math.sqrt(1000)
    assert abs(residuals.var() - 1) < 0.3


def test_predictive_likelihood_is_that_of_the_mixture():
    rng = np.random.default_rng(0)
    samples = {
        "weight": rng.dirichlet(np.ones(3), 4),
        "mean": rng.normal(size=(4, 3, 2)),
        "variance": rng.uniform(0.5, 2.0, (4, 3)),
    }
    x = rng.normal(size=(6, 2))
    densities = np.zeros(6)
    for draw in range(4):
        for component in range(3):
            normal: Any = stats.multivariate_normal(
                samples["mean"][draw, component],
                samples["variance"][draw, component] * np.eye(2),
            )
            weight = samples["weight"][draw, component]
            densities += weight * normal.pdf(x) / 4
    found = gaussian_mixture.predictive_log_likelihood(samples, x)
    np.testing.assert_allclose(found, np.log(densities).mean(), rtol=1e-10)


def test_abalone_is_within_its_public_ranges(shared_data: Callable[[str], Path]):
    folder = shared_data("abalone")
    dataset = _datasets.load(str(folder))
    assert dataset.train_features.shape == (3341, 11)
    assert dataset.test_features.shape == (836, 11)
    labels = np.concatenate([dataset.train_labels, dataset.test_labels])
    assert round(100 * labels.mean(), 2) == 49.82
    np.testing.assert_allclose(
        np.linalg.norm(dataset.train_features, axis=1), 1.0, atol=1e-6
    )
    assert set(np.count_nonzero(dataset.train_features[:, :3], axis=1)) == {1}
    low, high = np.array(list(_datasets.ABALONE_RANGES.values())).T
    raw = _datasets.read_abalone(folder)[list(_datasets.ABALONE_RANGES)].to_numpy()
    assert np.mean((raw >= low) & (raw <= high)) > 0.999


# --- the benchmark --------------------------------------------------------------------


def toy(benchmark: Any, **changes: Any) -> Any:
    """A logistic regression on 400 rows, without noise to speak of."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2)).astype(np.float32)
    y = (rng.random(400) < stats.logistic.cdf(X @ [1.0, -1.0])).astype(np.int32)
    settings = {
        "name": "toy",
        "model": benchmark.logistic,
        "train": (X, y),
        "score": lambda samples: 0.0,
        "sampling_rate": 0.5,
        "num_steps": 2000,
        "clipping_norm": 100.0,
        "learning_rate": 0.5,
        "langevin_rate": 2.0,
    }
    return benchmark.Experiment(**(settings | changes))


@pytest.mark.thorough
def test_log_joint_of_the_baseline_is_numpyros(benchmark: Any):
    experiment = toy(
        benchmark,
        model=gaussian_mixture.mixture(3),
        train=(gaussian_mixture.generate(7, seed=0),),
    )
    terms, constrain, start = benchmark._log_joint(experiment, jax.random.key(0))
    values = jax.jit(constrain)(start)
    assert abs(float(jnp.sum(values["weight"])) - 1) < 1e-5
    prior, likelihood = jax.jit(terms)(start, experiment.train)
    free = {
        "weight": benchmark.biject_to(benchmark.dist.constraints.simplex).inv(
            values["weight"]
        ),
        "mean": values["mean"],
        "variance": jnp.log(values["variance"]),
    }
    energy = jax.jit(
        lambda free: potential_energy(experiment.model, experiment.train, {}, free)
    )
    expected = -energy(free)
    np.testing.assert_allclose(prior + likelihood, expected, rtol=1e-4)


@pytest.mark.thorough
def test_the_baseline_samples_the_posterior_without_much_noise(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(benchmark, "LAST_SAMPLES", 1500)
    monkeypatch.setattr(benchmark.nv.accounting, "calibrate", lambda **_: 1e-6)
    experiment = toy(benchmark, sampling_rate=1.0)
    samples = benchmark.dp_sgld(experiment, 1.0, "pld", 0)["w"]
    X, y = experiment.train
    w, precision = np.zeros(2), np.eye(2)
    for _ in range(20):
        p = stats.logistic.cdf(X @ w)
        precision = X.T @ (X * (p * (1 - p))[:, None]) + np.eye(2)
        w = w + np.linalg.solve(precision, X.T @ (y - p) - w)
    sd = np.sqrt(np.diag(np.linalg.inv(precision)))
    assert np.max(np.abs(samples.mean(0) - w) / sd) < 0.5
    # Langevin's noise gives the samples the posterior's width.
    np.testing.assert_allclose(samples.std(0), sd, rtol=0.35)


def test_the_baseline_adds_the_noise_that_privacy_asks_for(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(benchmark, "LAST_SAMPLES", 1)
    monkeypatch.setattr(benchmark.nv.accounting, "calibrate", lambda **_: 3.0)
    experiment = toy(
        benchmark,
        train=(np.ones((400, 300), np.float32), np.ones(400, np.int32)),
        num_steps=1,
        clipping_norm=2.0,
        sampling_rate=1e-9,
    )
    start = benchmark._log_joint(experiment, jax.random.key(0))[2]
    moved = benchmark.dp_sgld(experiment, 1.0, "pld", 0)["w"][0]
    # η/2 · σC/q, with nobody drawn: far above Langevin's own sqrt(η).
    expected = 2.0 / 400 / 2 * 3.0 * 2.0 / 1e-9
    ratio = np.std(moved - np.asarray(start)) / expected
    assert abs(ratio - 1) < 5 / math.sqrt(2 * 300)


def test_tables_go_between_their_markers(benchmark: Any):
    records = [
        {"data": "A", "run": "ours", "epsilon": "inf", "scores": [0.8]},
        {"data": "A", "run": "ours", "epsilon": 1.0, "scores": [0.7, 0.9]},
    ]
    text = benchmark.table(records)
    assert "| A | ours | 0.800 | 0.800 ± 0.141 | 2 |" in text
    page = "before\n<!-- x -->\nold\n<!-- end of x -->\nafter\n"
    once = benchmark.insert(page, "x", text)
    assert once == benchmark.insert(once, "x", text)
    assert once.startswith("before\n") and once.endswith("after\n")
    assert "old" not in once and text in once
    with pytest.raises(ValueError, match="markers of 'y'"):
        benchmark.insert(page, "y", text)
