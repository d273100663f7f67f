"""`explain`: what its table says, and that it is true, narrow and free."""

import dataclasses
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv
from numpyro_vips.accounting import gaussian_dp_mu
from numpyro_vips.fitting.step import events_of
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS

COUNT = 50


def logistic(X, y=None):
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    with numpyro.plate("feature", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def network(X, y=None):
    hidden = numpyro.sample("hidden", dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2))
    last = numpyro.sample("last", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        logits = jnp.tanh(X @ hidden) @ last
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


LONG = "the_coefficients_of_a_model_whose_author_likes_to_be_explicit_about_everything"
TABLE = np.arange(12.0).reshape(3, 4)


def with_long_names(X, y=None):
    w = numpyro.sample(LONG, dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    other = numpyro.sample(f"{LONG}_too", dist.Normal(TABLE.sum(), 1.0))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample(f"{LONG}_y", dist.Bernoulli(logits=X @ w + other), obs=y)


def plan_of(fn: Any, *, value: float = 0.5, budget: Any = None, **options: Any) -> Any:
    if budget is None:
        budget = nv.PrivacyBudget(1.0, 1e-5)
    vi = vi_of(fn, budget=budget, **options)
    X, y = np.full((COUNT, 3), value, np.float32), np.full(COUNT, value, np.float32)
    plan = vi.explain(X, y)
    assert budget.spent() == (0.0, 0.0)
    return plan


@pytest.mark.thorough
def test_a_conjugate_model_site_by_site():
    plan = plan_of(logistic)
    assert plan.engine == "vips"
    assert not plan.reasons
    sites = {site["site"]: site for site in plan.sites}
    assert {name: site["role"] for name, site in sites.items()} == {
        "alpha": "hyper",
        "w": "global",
        "y": "observed",
    }
    assert sites["y"]["augmentation"] == "Pólya-Gamma"
    assert "Gamma" in sites["alpha"]["posterior"]
    assert sites["w"]["shape"] == [3]
    released = {s["statistic"]: s for s in plan.statistics}
    assert {name: s["released"] for name, s in released.items()} == {
        "⟨w⟩": "adaptive",
        "⟨w w⟩": "refreshed",
    }
    assert released["⟨w w⟩"]["shape"] == [3, 3]
    # Both norms are counted, that of residuals twice again, and that of the curvature
    # before its second step. The last quarter of the others report on rows.
    assert [step["steps"] for step in plan.schedule] == [1, 2, 50, 2, 1, 12]
    assert {s["bound"] for s in plan.statistics} == {"histogram"}


@pytest.mark.quick_with("vips-default", "vips-norm", "dpvi-norm")
@pytest.mark.parametrize(
    "options",
    [{}, {"diagnostics": False}, {"clipping_norm": 0.7}],
    ids=["default", "no diagnostics", "norm"],
)
@pytest.mark.parametrize("fn", [logistic, network], ids=["vips", "dpvi"])
def test_shares_are_those_of_the_noise_that_is_priced(fn, options):
    """μ² of Gaussian differential privacy adds up over releases.

    Each line's share of it is found again in the priced steps, from norms and noise
    alone, up to what rounding adds to sensitivities.
    """
    vi = vi_of(fn, **options)
    rows = np.full((COUNT, 3), 0.5, np.float32), np.full(COUNT, 1.0, np.float32)
    prepared, plan = vi._prepare_fit(rows, {})
    steps = vi._price(prepared.steps).steps
    mu = gaussian_dp_mu(events_of(steps))
    assert mu is not None
    total = mu**2
    # What reporting steps would spend without reports, at the noise that they add. A
    # norm that only a histogram will say is any: the noise is a multiple of it.
    reporting = [step for step in steps if step.reports]
    without = []
    for step in reporting:
        norm = step.clipping_norm or 1.7
        mechanism = dataclasses.replace(step, clipping_norm=norm).mechanism
        without.append((norm / mechanism.noise_stddev) ** 2)
    whole = sum(step.share for step in reporting)
    lines: dict[str, float] = {}
    for line in plan.schedule:  # Histograms of the same norms differ in their noise.
        label = line["releases"]
        lines[label] = lines.get(label, 0.0) + line["share"]
    reports = lines.pop(" and ".join(DIAGNOSTICS), 0.0)
    assert bool(reports) == options.get("diagnostics", True)
    assert reports * total == pytest.approx(whole - sum(without), rel=1e-4)
    expected: dict[str, float] = {}
    for step in steps:
        expected[step.label] = expected.get(step.label, 0.0) + step.share
    if reporting:
        expected[reporting[0].label] -= whole - sum(without)
    assert len(lines) == len(expected)
    for label, spent in expected.items():
        assert lines[label] * total == pytest.approx(spent, rel=1e-4)


@pytest.mark.quick_with("network", "logistic")
@pytest.mark.parametrize("fn", [logistic, network, with_long_names])
def test_the_plan_spends_the_whole_budget_and_no_more(fn):
    """Before shares are divided by anything: what is planned for is one budget."""
    vi = vi_of(fn)
    rows = np.full((COUNT, 3), 0.5, np.float32), np.full(COUNT, 1.0, np.float32)
    prepared, plan = vi._prepare_fit(rows, {})
    assert sum(step.share for step in prepared.steps) == pytest.approx(1.0)
    assert sum(line["share"] for line in plan.schedule) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("options", "factor"),
    [
        ({}, 1.0),
        ({"sampling": nv.FullBatch(relation="replace_one")}, 2.0),
        ({"sampling": nv.WithoutReplacement(0.1)}, 2.0),
    ],
    ids=["add or remove", "replace one", "without replacement"],
)
@pytest.mark.parametrize("fn", [logistic, network], ids=["vips", "dpvi"])
def test_sensitivities_are_those_of_the_mechanism(fn, options, factor):
    plan = plan_of(fn, clipping_norm=0.7, **options)
    for statistic in plan.statistics:
        # Of information it is the gradient's, squared.
        norm = 0.49 if statistic["released"] == "information" else 0.7
        assert statistic["clipping_norm"] == pytest.approx(norm)
        # Where contributions may have either sign, replacing a row counts double.
        is_psd = statistic["statistic"] == "⟨w w⟩"
        expected = math.sqrt(factor) if is_psd else factor
        assert statistic["sensitivity"] == pytest.approx(expected * norm)


@pytest.mark.thorough
def test_dpvi_says_which_site_and_why():
    plan = plan_of(network)
    assert plan.engine == "dpvi"
    assert set(plan.reasons) == {"y"}
    assert "tanh of 'hidden'" in plan.reasons["y"]
    text = str(plan)
    assert text.startswith("Engine: dpvi\nVIPS cannot run it:\n  y: tanh of 'hidden'")
    assert "mean-field" in text
    gradient, moments, information = plan.statistics
    assert gradient["shape"] == [8]
    assert moments["shape"] == information["shape"] == [8, 8]
    assert gradient["bound"] == information["bound"] == "histogram"
    # Asked for by the user: nothing prevents VIPS.
    assert "VIPS cannot" not in str(plan_of(logistic, engine="dpvi"))


@pytest.mark.thorough
def test_settings_are_repeated_as_the_code_that_makes_them():
    plan = plan_of(logistic)
    assert plan.settings == {
        "engine": "VIPS()",
        "sampling": "FullBatch(relation='add_or_remove')",
        "budget": "PrivacyBudget(epsilon=1.0, delta=1e-05)",
    }
    assert "\n  sampling=FullBatch(relation='add_or_remove')\n" in str(plan)
    assert plan.to_dict()["settings"] == plan.settings
    engine = nv.VIPS(local_steps=7, structure={"w": "diag"})
    plan = plan_of(logistic, engine=engine, sampling=nv.Poisson(0.05))
    made = {name: eval(code, {**vars(nv)}) for name, code in plan.settings.items()}
    assert repr(made.pop("budget")) == repr(nv.PrivacyBudget(1.0, 1e-5))
    assert made == {"engine": engine, "sampling": nv.Poisson(0.05)}
    assert "engine=DPVI()" in str(plan_of(network))


def test_every_setting_that_was_given_is_repeated():
    budget = nv.PrivacyBudget(math.inf, 1e-4, composition="rdp", accountant="moments")
    given: dict[str, Any] = {
        "engine": nv.VIPS(local_steps=7),
        "sampling": nv.WithoutReplacement(0.5),
        "num_steps": 5,
        "clipping_norm": 2.0,
        "epsilon": 0.5,
        "delta": np.float64(1e-6),
        "num_rows": np.int64(COUNT),
        "max_batch_size": 64,
        "diagnostics": False,
    }
    shown = {"label": "a", "progress_bar": False, "callback": print}
    plan = plan_of(logistic, budget=budget, **given, **shown)
    made = {
        name: eval(code, {**vars(nv), "math": math})
        for name, code in plan.settings.items()
    }
    assert repr(made.pop("budget")) == repr(budget)
    assert made == given
    for name, code in plan.settings.items():
        assert f"\n  {name}={code}\n" in str(plan)


def test_a_seed_is_not_repeated():
    plan = plan_of(logistic, num_steps=1, insecure_seed=8_675_309)
    assert plan.settings["insecure_seed"] == "..."
    assert "8675309" not in str(plan)


@pytest.mark.thorough
@pytest.mark.parametrize("fn", [logistic, network, with_long_names])
def test_the_table_fits_a_screen_and_the_plan_fits_json(fn):
    plan = plan_of(fn)
    text = str(plan)
    assert repr(plan) == text
    assert all(len(line) <= 100 for line in text.splitlines())
    fields = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert fields["engine"] == plan.engine
    assert [s["site"] for s in fields["sites"]] == [s["site"] for s in plan.sites]


@pytest.mark.thorough
def test_long_names_are_cut_in_the_table_and_whole_in_the_plan():
    plan = plan_of(with_long_names)
    assert "…" in str(plan)
    assert plan.to_dict()["sites"][0]["site"] == LONG
    # What the model holds is public, and said to be.
    assert any("'TABLE'" in note for note in plan.notes)


def test_values_are_not_read():
    plans = {str(plan_of(logistic, value=value)) for value in (0.5, 1e6, math.nan)}
    assert len(plans) == 1


def test_without_privacy_it_says_so():
    plan = plan_of(logistic, budget=nv.PrivacyBudget(math.inf))
    assert "NOT PRIVATE" in str(plan)
    assert {s["sensitivity"] for s in plan.to_dict()["statistics"]} == {"inf"}
    assert "none" in str(plan)


@pytest.mark.thorough
def test_large_covariances_are_pointed_out():
    def wide(X, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([400]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

    vi = vi_of(wide, clipping_norm=1.0)
    plan = vi.explain(np.zeros((5, 400), np.float32), np.zeros(5, np.float32))
    assert any("80,000 noisy numbers" in note for note in plan.notes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("likelihood", "is_logistic"),
    [
        (lambda own, level: dist.Bernoulli(logits=own + level), True),
        (lambda own, level: dist.Normal(own + level, 1.0), False),
    ],
)
def test_what_is_said_of_latents_of_single_rows(likelihood, is_logistic):
    def model(y):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0))
        precision = numpyro.sample("precision", dist.Gamma(2.0, 2.0))
        with numpyro.plate("rows", y.shape[0]):
            own = numpyro.sample("own", dist.Normal(0.0, precision**-0.5))
            numpyro.sample("y", likelihood(own, level), obs=y)

    said = {}
    for engine in ("vips", "dpvi"):
        said[engine] = vi_of(model, budget=math.inf, engine=engine).explain(np.zeros(9))
    (found, of_dpvi) = (
        next(site for site in said[engine].sites if site["site"] == "own")["posterior"]
        for engine in ("vips", "dpvi")
    )
    assert found.startswith("by quadrature" if is_logistic else "Normal")
    assert of_dpvi == (
        "quadrature, per row" if is_logistic else "conjugate, solved per row"
    )
    assert "replaced by a bound" not in str(said["vips"])


def counts(y):
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def notes_on_few_rows(num_rows, epsilon=1.0, **options):
    vi = vi_of(counts, budget=epsilon, **options)
    found = vi.explain(np.ones(num_rows, int)).notes
    return vi, [note for note in found if "are too few for this budget" in note]


@pytest.mark.thorough
def test_rows_that_no_histogram_could_show_are_said_to_be_too_few_before_the_fit():
    vi, (note,) = notes_on_few_rows(100)
    with pytest.warns(UserWarning, match="Too few rows for this budget to find"):
        result = vi.run(jax.random.key(0), np.ones(100, int))
    (histogram,) = [
        release
        for release in result.privacy.to_dict()["events"]
        if "histogram" in release["label"]
    ]
    assert f"of about {histogram['noise_stddev']:.0f}," in note


@pytest.mark.thorough
@pytest.mark.parametrize(
    "num_rows, epsilon, options",
    [
        (1000, 1.0, {}),
        (100, 10.0, {}),
        (100, 1.0, {"clipping_norm": 5.0}),
        (100, math.inf, {}),
    ],
    ids=["many rows", "large epsilon", "a norm is given", "no noise"],
)
def test_nothing_is_said_of_few_rows_where_a_norm_can_be_found(
    num_rows, epsilon, options
):
    assert notes_on_few_rows(num_rows, epsilon, **options)[1] == []
