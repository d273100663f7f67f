"""Where noise would hide the curvature, `engine="auto"` takes DPVI, and says so."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.fitting.advantages.curvature_noise import (
    FEW_COLUMNS,
    HIDDEN,
    SHARES,
    curvature_share,
    noise_over_curvature,
)
from numpyro_vips.fitting.prepared_fits import forget_prepared_fits
from numpyro_vips.privacy.gaussian_mechanism import Block, GaussianMechanism

ROWS, COLUMNS = 500, FEW_COLUMNS + 2
# Budgets for which the ratio is far above and below the threshold.
SMALL, LARGE = 1.0, 300.0


pytestmark = pytest.mark.usefixtures("no_prepared_fits")


def logistic(X: Any, y: Any = None) -> None:
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    with numpyro.plate("feature", X.shape[1]):
        w: Any = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def several_columns(X: Any, y: Any = None) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def linear(X: Any, y: Any = None) -> None:
    with numpyro.plate("feature", X.shape[1]):
        w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


def several(X: Any, y: Any = None) -> None:
    """Logistic, with effects that need more than residuals: of the rows themselves."""
    with numpyro.plate("feature", X.shape[1]):
        w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)
        numpyro.sample("size", dist.Normal(mean, 1.0), obs=X[:, 0])


def fit_of(fn: Any = logistic, *, epsilon: float = SMALL, **options: Any) -> Any:
    return vi_of(fn, budget=epsilon, **options)


def table(columns: int = COLUMNS, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros((rows, columns), np.float32), np.zeros(rows, np.float32)


def plan_of(fn: Any = logistic, columns: int = COLUMNS, **options: Any) -> Any:
    return fit_of(fn, **options).explain(*table(columns))


class OnlyResiduals:
    """What `noise_over_curvature` asks an engine for."""

    growing = frozenset({"⟨w⟩"})
    curvatures_in_parts = ()

    def __init__(self, *batch: int) -> None:
        shape = (*batch, COLUMNS, COLUMNS)
        self._blocks = {
            "refreshed": (Block(name="⟨w w⟩", shape=shape, symmetric=True),),
            "adaptive": (Block(name="⟨w⟩", shape=shape[:-1]),),
        }

    def blocks(self, release: str) -> tuple[Block, ...]:
        return self._blocks.get(release, ())


@pytest.mark.parametrize("relation", ["add_or_remove", "replace_one"])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_ratio_is_that_of_the_mechanism_s_own_noise(
    batch: tuple[int, ...], relation: Any
) -> None:
    """The largest eigenvalue of noise that was drawn, over that of rows whose curvature
    is as large as clipping lets it be, and alike in all directions."""
    engine: Any = OnlyResiduals(*batch)
    share, norm = 0.1, 3.0
    predicted = noise_over_curvature(
        engine, num_rows=ROWS, share=share, relation=relation
    )
    mechanism = GaussianMechanism(
        blocks=engine.blocks("refreshed"),
        clipping_norm=norm,
        noise_multiplier=1.0 / math.sqrt(share),
        relation=relation,
    )
    zeros = np.zeros((*batch, COLUMNS, COLUMNS))
    drawn = mechanism.add_noise({"⟨w w⟩": zeros}, np.random.default_rng(0))["⟨w w⟩"]
    radius = np.abs(np.linalg.eigvalsh(drawn)).max()
    # A row x xᵀ in each of k matrices has norm √k |x|², and trace |x|² in each.
    trace = ROWS * norm / math.sqrt(math.prod(batch))
    # The edge of the spectrum is sharp: of the order d^(-2/3).
    assert predicted == pytest.approx(radius / (trace / COLUMNS), rel=0.08)


def test_the_ratio_does_not_ask_whether_coefficients_have_a_name_each() -> None:
    """Their products are in a block for each pair then, and none is a matrix."""

    def by_name(X: Any, y: Any = None) -> None:
        w = [numpyro.sample(f"w{i}", dist.Normal(0.0, 1.0)) for i in range(3)]
        logits = sum(w[i] * X[:, i] for i in range(3))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    shares = []
    for model in (several_columns, by_name):
        plan = plan_of(model, columns=3)
        of_curvature = [
            entry["share"]
            for entry in plan.schedule
            if entry["steps"] == 2 and "pilot" not in entry["releases"]
            if "histogram" not in entry["releases"]
        ]
        shares.append(of_curvature)
    assert len(shares[0]) == 1
    assert shares[1] == pytest.approx(shares[0], rel=0.05)
    assert shares[0][0] == pytest.approx(2 * SHARES[1], rel=0.05)


@pytest.mark.thorough
def test_auto_takes_dpvi_where_the_curvature_is_hidden() -> None:
    plan = plan_of()
    assert plan.engine == "dpvi"
    assert not plan.reasons
    assert plan.notes[0].startswith("VIPS can run this model, and DPVI was taken")
    assert f"more than {HIDDEN:g} times" in plan.notes[0]


@pytest.mark.thorough
def test_auto_takes_vips_where_the_budget_shows_it() -> None:
    plan = plan_of(epsilon=LARGE)
    assert plan.engine == "vips"
    assert not any("hidden" in note for note in plan.notes)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["vips", nv.VIPS()])
def test_vips_runs_where_it_is_asked_for_and_says_what_to_expect(engine: Any) -> None:
    plan = plan_of(engine=engine)
    assert plan.engine == "vips"
    assert "predicted to be hidden" in plan.notes[0]
    assert plan.notes[0].endswith("engine='dpvi' releases no such matrix.")


@pytest.mark.thorough
def test_rows_decide_as_the_budget_does() -> None:
    assert fit_of().explain(*table(rows=100 * ROWS)).engine == "vips"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fn", "options"),
    [
        (logistic, {"columns": FEW_COLUMNS}),
        (linear, {}),
        (several, {}),
        (logistic, {"clipping_norm": {"⟨w⟩": 1.0, "⟨w w⟩": 1.0}}),
        (logistic, {"epsilon": math.inf}),
    ],
    ids=["few columns", "no residuals", "not residuals alone", "norms", "no noise"],
)
def test_other_fits_stay_with_vips(fn: Any, options: dict[str, Any]) -> None:
    assert plan_of(fn, **options).engine == "vips"


@pytest.mark.thorough
@pytest.mark.parametrize(("noise", "engine"), [(200.0, "dpvi"), (0.2, "vips")])
def test_fixed_noise_decides_without_a_budget(noise: float, engine: str) -> None:
    plan = plan_of(epsilon=math.inf, noise_multiplier=noise)
    assert plan.engine == engine


@pytest.mark.thorough
def test_fixed_noise_says_what_the_budget_says_that_affords_it() -> None:
    """The same fit, described in two ways, has the same ratio."""
    args = table()
    vi = fit_of()
    prepared, _ = vi._prepare_fit(args, {})
    of_budget = prepared.choice.curvature_noise
    priced = vi._price(fit_of(engine="vips")._prepare_fit(args, {})[0].steps)
    noise = priced.steps[-1].noise_multiplier
    num_steps = sum(not step.is_aside for step in priced.steps)
    one = nv.accounting.calibrate(
        epsilon=SMALL, delta=1e-5, sampling_rate=1.0, num_steps=1, sampling="full"
    )
    # What is aside of the steps, the curvature itself included, has a tenth or two.
    assert noise / math.sqrt(num_steps) == pytest.approx(one, rel=0.1)
    assert of_budget * one > HIDDEN


@pytest.mark.thorough
def test_a_share_of_the_budget_decides_by_itself() -> None:
    plan = plan_of(epsilon=LARGE)
    assert plan.engine == "vips"
    vi = vi_of(logistic, budget=LARGE, epsilon=SMALL, delta=5e-6)
    assert vi.explain(*table()).engine == "dpvi"


def test_what_was_spent_before_changes_no_plan() -> None:
    """Else a fit that goes on after a checkpoint would be another one."""
    vi = fit_of(epsilon=LARGE)
    before = vi.explain(*table())
    vi.budget.charge(
        epsilon=LARGE - 0.5,
        delta=5e-6,
        unit="rows",
        relation="add_or_remove",
        events=(),
    )
    forget_prepared_fits()
    assert str(vi.explain(*table())) == str(before)


@pytest.mark.thorough
def test_a_model_that_dpvi_cannot_run_stays_with_vips(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise UnsafeModelError("not this one")

    monkeypatch.setattr(nv.DPVI, "build_engine", refuse)
    plan = plan_of()
    assert plan.engine == "vips"
    assert "predicted to be hidden" in plan.notes[0]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("ratio", "share"), [(0.01, 0), (0.05, 0), (0.1, 1), (0.8, 1), (1.0, 0), (50.0, 0)]
)
def test_the_curvature_gets_more_where_that_shows_it(ratio: float, share: int) -> None:
    """Neither where it is clear anyway, nor where it is hidden all the same."""
    assert curvature_share(ratio / 4.0, 4.0) == SHARES[share]
    assert curvature_share(ratio, None) == SHARES[0]


def test_steps_spend_what_the_curvature_gets() -> None:
    def shares(rows: int) -> list[float]:
        X, y = table(columns=3, rows=rows)
        prepared, _ = fit_of(several_columns)._prepare_fit((X, y), {})
        found = [
            step.share
            for step in prepared.steps
            if [block.name for block in step.blocks] == ["⟨w w⟩"] and not step.counted
        ]
        return found[-2:]  # Pilots and histograms come before.

    assert shares(1000) == pytest.approx([SHARES[1]] * 2)
    assert shares(100_000) == pytest.approx([SHARES[0]] * 2)


def test_budgets_share_what_was_prepared_unless_they_differ_in_this(
    prepared: list[Any],
) -> None:
    tried = [SMALL, 2 * SMALL, LARGE, 1.1 * LARGE, SMALL]
    engines = [plan_of(epsilon=epsilon).engine for epsilon in tried]
    assert engines == ["dpvi", "dpvi", "vips", "vips", "dpvi"]
    assert len(prepared) == 2
