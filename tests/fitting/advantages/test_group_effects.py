"""Where "auto" takes DPVI because of effects of groups."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _engine_choice import advantage_of
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.fitting.prepare import PreparedFit

pytestmark = pytest.mark.usefixtures("own_prepared_fits")

ROWS = 500


def effects(name: str, mean: Any = 0.0) -> Any:
    with numpyro.plate(f"{name}s", 4):
        return numpyro.sample(name, dist.Normal(mean, 1.0))


def beside_a_mean(g: Any, h: Any, X: Any, y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    a = effects("a")
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mean + a[g], 1.0), obs=y)


def crossed(g: Any, h: Any, X: Any, y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 2.0))
    a, b = effects("a"), effects("b")
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a[g] + b[h], 1.0 / jnp.sqrt(tau)), obs=y)


def with_slopes(g: Any, h: Any, X: Any, y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    a = effects("a", mean)
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a[g] + X @ w, 1.0), obs=y)


def slopes(g: Any, h: Any, X: Any, y: Any) -> None:
    """Both effects are of one kind of groups."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    a, b = effects("a", mean), effects("b")
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a[g] + b[g] * X[:, 0], 1.0), obs=y)


def vectors(g: Any, h: Any, X: Any, y: Any) -> None:
    """The same, with the effects of a group in one vector."""
    with numpyro.plate("groups", 4):
        b: Any = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(jnp.sum(b[g] * X, -1), 1.0), obs=y)


def means_of_classes(g: Any, h: Any, X: Any, y: Any) -> None:
    """No number of a row stands beside the products of a class's means."""
    with numpyro.plate("groups", 4):
        b: Any = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    root = jnp.array([[1.0, 0.0], [0.5, 1.0]])
    with numpyro.plate("rows", len(y)):
        numpyro.sample("X", dist.MultivariateNormal(b[g], scale_tril=root), obs=X)


def alone(g: Any, h: Any, X: Any, y: Any) -> None:
    """The groups' mean is no coefficient of a row."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    a = effects("a", mean)
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a[g], 1.0), obs=y)


def regression(g: Any, h: Any, X: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(b + X @ w, 1.0), obs=y)


def logistic(g: Any, h: Any, X: Any, y: Any) -> None:
    """Takes Newton steps, which know of such directions."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    a = effects("a")
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=mean + a[g]), obs=y)


def arguments(rows: int) -> tuple[np.ndarray, ...]:
    codes = np.zeros(rows, np.int32)
    return codes, codes, np.zeros((rows, 2)), np.zeros(rows)


def plan_of(fn: Any, *, rows: int = ROWS, **more: Any) -> Any:
    return vi_of(fn, **more).explain(*arguments(rows))


@pytest.mark.quick_with("crossed")
@pytest.mark.parametrize("fn", [beside_a_mean, crossed, with_slopes, slopes, vectors])
def test_dpvi_is_taken_and_explain_says_why(fn: Any) -> None:
    plan = plan_of(fn)
    assert plan.engine == "dpvi"
    assert not plan.reasons  # VIPS could run it.
    (note,) = [note for note in plan.notes if "VIPS can run this model" in note]
    assert "for each effect of a group" in note


def test_the_budget_decides_anew_in_every_fit() -> None:
    """Prepared fits are kept: the one for much noise is not that for little."""
    engines = [plan_of(crossed, budget=e).engine for e in (1.0, 100.0, 1.0, 100.0)]
    assert engines == ["dpvi", "vips"] * 2


@pytest.mark.quick_with("alone", "means_of_classes")
@pytest.mark.parametrize("fn", [alone, means_of_classes, regression, logistic])
def test_vips_runs_other_models(fn: Any) -> None:
    assert plan_of(fn).engine == "vips"


@pytest.fixture(scope="module")
def by_vips() -> PreparedFit:
    return vi_of(crossed, engine="vips")._prepare_fit(arguments(ROWS), {})[0]


@pytest.mark.parametrize(
    "more",
    [
        {"num_steps": 5},
        {"clipping_norm": 3.0},
        {"sampling": nv.Poisson(0.5)},
        {"budget": math.inf},
        {"rows": 100},
        {"rows": 100_000},
    ],
    ids=str,
)
def test_vips_has_no_disadvantage(by_vips: PreparedFit, more: Any) -> None:
    """Where the caller chose its steps; without noise; and for few rows, or so many
    that noise hides no group."""
    rows = more.get("rows", ROWS)
    vi = vi_of(crossed, **{name: more[name] for name in more if name != "rows"})
    assert advantage_of(by_vips, vi, rows) is None
    assert advantage_of(by_vips, vi_of(crossed), ROWS) == "group effects"


@pytest.mark.parametrize("more", [{"engine": "vips"}, {"rows": 100_000}], ids=str)
def test_vips_stays(more: Any) -> None:
    """Where the caller chose it, and where it has no disadvantage."""
    assert plan_of(crossed, **more).engine == "vips"


@pytest.mark.quick_with("crossed*", "with_slopes*")
@pytest.mark.parametrize(
    ("fn", "engine"),
    [(beside_a_mean, "dpvi"), (crossed, "dpvi"), (with_slopes, "vips")],
)
def test_rows_that_are_many_show_groups_beside_slopes_alone(
    fn: Any, engine: str
) -> None:
    """What `benchmarks/group_effects.py` finds: more of a mean and less of all effects
    is hidden by less noise."""
    assert plan_of(fn, rows=3_000).engine == engine
