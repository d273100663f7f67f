"""`PrivateVI`: what it makes of rows, and what it returns.

Whether the posteriors are right is tested with the engines and the examples.
"""

import math
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _models import logistic_of_patients as logistic
from _models import probit_of_patients as probit
from _small_fits import KEY, NUM_ROWS, X, Y, fitted, marked, rows

import numpyro_vips as nv


@pytest.fixture
def budget() -> nv.PrivacyBudget:
    return nv.PrivacyBudget(1.0, 1e-5)


BAD_VALUES = {
    "NaN feature": (np.nan, 1.0),
    "infinite feature": (np.inf, 1.0),
    "NaN label": (0.5, np.nan),
    "label 2": (0.5, 2.0),
    "label -1": (0.5, -1.0),
    "label 0.5": (0.5, 0.5),
}


@pytest.mark.quick_with("dpvi")
@pytest.mark.parametrize(
    ("fn", "options"),
    [(logistic, {}), (probit, {"num_steps": 20})],
    ids=["vips", "dpvi"],
)
def test_unusable_rows_count_as_zero_and_change_nothing_else(fn, options):
    vi = vi_of(marked(fn), budget=math.inf, num_rows=NUM_ROWS, **options)
    bad_X, bad_y = np.copy(X), np.copy(Y)
    count = len(BAD_VALUES)
    for row, (feature, label) in enumerate(BAD_VALUES.values()):
        bad_X[row, 1], bad_y[row] = feature, label
    found = vi.run(KEY, bad_X, bad_y)
    without = vi.run(KEY, X[count:], Y[count:])
    for name, value in found.params.items():
        np.testing.assert_allclose(
            value, without.params[name], rtol=2e-5, atol=2e-6, err_msg=name
        )


def network(X, y=None):
    first = numpyro.sample("first", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
    last = numpyro.sample("last", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=jnp.tanh(X @ first) @ last), obs=y)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "fn",
    [
        pytest.param(probit, id="probit"),
        pytest.param(network, id="network", marks=pytest.mark.slow),
    ],
)
def test_other_models_run_by_dpvi(fn, budget, tmp_path):
    many_X, many_y = rows(2000)
    result = fitted(fn, many_X, many_y, budget=budget, num_steps=60)
    assert result.engine == "dpvi"
    assert "VIPS cannot run it" in result.plan
    assert budget.spent().epsilon == pytest.approx(1.0, rel=1e-6)
    result.save(tmp_path / "fit.nc")
    draws = nv.load(tmp_path / "fit.nc").sample_posterior(KEY, (200,))
    again = result.sample_posterior(KEY, (200,))
    for name, draw in draws.items():
        np.testing.assert_array_equal(draw, again[name])
    predictive = numpyro.infer.Predictive(marked(fn), draws)
    probability = predictive(KEY, many_X)["y"].mean(0)
    # Better than always guessing the more frequent label.
    guessed = max(many_y.mean(), 1 - many_y.mean())
    assert ((probability > 0.5) == (many_y > 0.5)).mean() > guessed + 0.1


@pytest.mark.thorough
def test_importing_loads_no_heavy_library(repository: Path):
    heavy = (
        "arviz",
        "scipy.stats",
        "xarray",
        "autodp",
        "dp_accounting",
        "matplotlib",
        "pandas",
        "narwhals",
    )
    code = (
        "import sys, numpyro; before = set(sys.modules); import numpyro_vips; "
        f"print([m for m in {heavy!r} if m in set(sys.modules) - before])"
    )
    output = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=repository,
    )
    assert output.stdout.strip() == "[]"
