"""The baselines of `benchmarks/frontier.py` are what they say, and at their best."""

import importlib
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from numpyro_vips.accounting import gaussian_delta

MODULES = (
    *("_adassp", "_finished", "_generated_tables", "_one_shot", "frontier"),
    "plot_frontier",
)


@pytest.fixture(scope="module")
def modules(repository: Path) -> Iterator[dict[str, Any]]:
    """`benchmarks/frontier.py` and the modules that it imports, by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(repository / "benchmarks"))
        yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def frontier(modules: dict[str, Any]) -> Any:
    return modules["frontier"]


@pytest.fixture
def adassp(modules: dict[str, Any]) -> Any:
    return modules["_adassp"]


@pytest.fixture
def tables(modules: dict[str, Any]) -> Any:
    return modules["_generated_tables"]


@pytest.fixture
def one_shot(modules: dict[str, Any]) -> Any:
    return modules["_one_shot"]


# --- AdaSSP ---------------------------------------------------------------------------


class Recorded:
    """Standard normal numbers, and what has been drawn."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(3)
        self.drawn: list[Any] = []

    def normal(self, size: Any = None) -> Any:
        self.drawn.append(self._rng.normal(size=size))
        return self.drawn[-1]


@pytest.mark.parametrize("num_rows", [50, 200_000])
def test_adassp_is_its_formula(adassp: Any, num_rows: int):
    """Written out with the paper's constants, rows of norm 2 and responses up to 3."""
    epsilon, delta, d = 0.5, 1e-6, 3
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(num_rows, d))
    y = rng.uniform(-3, 3, size=num_rows)
    recorded: Any = Recorded()
    found = adassp.adassp(
        X,
        y,
        row_norm=2.0,
        response=3.0,
        noise=adassp.published_noise(epsilon, delta),
        rng=recorded,
    )
    of_gram, of_least, of_moment = recorded.drawn
    factor = math.sqrt(math.log(6 / delta)) / (epsilon / 3)
    Z = np.triu(of_gram) + np.triu(of_gram, 1).T
    least = np.linalg.eigvalsh(X.T @ X).min() + factor * 4 * of_least
    least = max(least - math.log(6 / delta) / (epsilon / 3) * 4, 0)
    width = math.sqrt(d * math.log(6 / delta) * math.log(2 * d**2 / 0.05))
    ridge = max(0, width * 4 / (epsilon / 3) - least)
    assert (ridge == 0) == (num_rows > 1_000)
    expected = np.linalg.solve(
        X.T @ X + factor * 4 * Z + ridge * np.eye(d), X.T @ y + factor * 6 * of_moment
    )
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def test_exact_noise_spends_epsilon_and_no_more(adassp: Any):
    noise = adassp.exact_noise(1.0, 1e-6)
    # Three releases are one with √3 times the sensitivity (Balle and Wang, 2018).
    spent = gaussian_delta(math.sqrt(3) / noise.multiplier, 1.0)
    assert spent == pytest.approx(1e-6, rel=1e-3)
    assert noise.multiplier < adassp.published_noise(1.0, 1e-6).multiplier / 1.5


def test_rows_of_regressions_keep_their_bounds(tables: Any):
    for name in tables.REGRESSIONS[:-2]:
        table = tables.regression(name)
        lengths = np.linalg.norm(table.X.astype(np.float64), axis=1)
        assert lengths.max() <= table.row_norm, name
        assert np.abs(table.y).max() <= table.response, name
        assert table.excess(table.coefficients) == 0.0


def test_bounds_that_both_know_clip_no_row(frontier: Any, tables: Any):
    """So AdaSSP and the fits with bounds differ by their noise alone."""
    table = tables.regression("few rows")
    X, y = table.X.astype(np.float64), table.y.astype(np.float64)
    bounds = frontier.bounds_of(table)
    outer = np.einsum("ni,nj->nij", X, X) / 2
    assert np.max(y**2 / 2) <= bounds["⟨precision⟩"]
    assert np.linalg.norm(y[:, None] * X, axis=1).max() <= bounds["⟨precision⟩⟨w⟩"]
    assert np.linalg.norm(outer, axis=(1, 2)).max() <= bounds["⟨precision⟩⟨w w⟩"]
    vi = frontier.nv.PrivateVI(
        frontier.linear,
        budget=frontier.nv.PrivacyBudget(1.0, 1e-6),
        clipping_norm=bounds,
    )
    released = {
        row["statistic"]
        for row in vi.explain(table.X, table.y).statistics
        if row["released"] != "public"
    }
    assert released == set(bounds)


# --- the one-shot optimum -------------------------------------------------------------


@pytest.fixture
def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2_000, 5))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    logits = X @ [3.0, -2.0, 1.0, 0.0, 4.0]
    return X, (rng.uniform(size=2_000) < 1 / (1 + np.exp(-logits))).astype(int)


def test_without_noise_it_is_the_optimum(one_shot: Any, rows: Any):
    X, y = rows
    found = one_shot.perturbed_optimum(X, y, ridge=2.0)
    sklearn = LogisticRegression(C=0.5, fit_intercept=False, tol=1e-10).fit(X, y)
    np.testing.assert_allclose(found, sklearn.coef_[0], atol=1e-4)


@pytest.mark.parametrize("clip", [0.2, 1.0])
def test_noise_moves_the_gradient_by_as_much(one_shot: Any, rows: Any, clip: float):
    """At the optimum clipped residuals, ridge and noise balance."""
    X, y = rows
    noise = np.random.default_rng(2).normal(size=5) * 20
    w = one_shot.perturbed_optimum(X, y, ridge=3.0, clip=clip, noise=noise)
    residual = np.clip(y - 1 / (1 + np.exp(-X @ w)), -clip, clip)
    np.testing.assert_allclose(X.T @ residual - 3.0 * w + noise, 0, atol=0.05)


def test_its_noise_is_the_gaussian_mechanisms(one_shot: Any):
    multiplier = one_shot.oracle_noise(0.3, 1e-5)
    assert gaussian_delta(1 / multiplier, 0.3) == pytest.approx(1e-5, rel=1e-3)


def test_oracle_takes_the_best_clip_and_ridge(one_shot: Any, rows: Any):
    X, y = rows
    data = (X[:1_000], y[:1_000], X[1_000:], y[1_000:])
    options: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-5, "seeds": range(2)}
    best = one_shot.oracle_auc(*data, **options)
    each = [
        one_shot.oracle_auc(*data, **options, clips=[clip], ridges=[ridge]).auc
        for clip in (0.2, 0.4, 1.0)
        for ridge in (1.0, 3.0, 10.0, 30.0)
    ]
    assert best.auc == pytest.approx(max(each), abs=1e-3)


# --- the tables -----------------------------------------------------------------------


def test_logistic_tables_have_the_shapes_that_they_are_named_for(tables: Any):
    table = tables.logistic_table("like B")
    assert table.X.shape == (24_000, 92)
    np.testing.assert_allclose(np.linalg.norm(table.X, axis=1), 1.0, rtol=1e-5)
    assert table.y.mean() == pytest.approx(0.22, abs=0.01)


@pytest.mark.thorough
def test_records_are_not_measured_again(
    frontier: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def row() -> str:
        return capsys.readouterr().out.splitlines()[2]

    records = str(tmp_path / "records.json")
    options = ["linear", "few rows", "--epsilon", "1", "--repeats", "1"]
    options += ["--records", records]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["frontier.py", *options])
        frontier.main()
        first = row()
        patch.setattr(frontier, "measure_linear", lambda *_: pytest.fail("again"))
        frontier.main()
    assert row() == first
    assert first.startswith("| few rows | 1 |")


def test_the_figure_shows_the_tables_of_the_page(modules, repository):
    plot = modules["plot_frontier"]
    linear, logistic = (
        plot.table("Linear regression"),
        plot.table("Logistic regression"),
    )
    assert {epsilon for _, epsilon, _ in linear + logistic} == set(plot.COLOURS)
    assert len(linear) == 20 and len(logistic) == 12
    figure = (repository / "docs" / "frontier.svg").read_text("utf-8")
    assert plot.described(linear, logistic) in figure, "run plot_frontier.py"
    assert len(figure.encode()) < 60_000
