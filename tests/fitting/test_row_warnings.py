"""What is said of rows that were clipped or not seen, and that doing so helps."""

import math
import re
import warnings
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to, vi_of

import numpyro_vips as nv
from numpyro_vips.fitting.row_warnings import _hints_at_heavy_rows
from numpyro_vips.jax_tools.row_sums import CLIPPED_ROWS
from numpyro_vips.privacy.statement import NoisyShare

RNG = np.random.default_rng(0)


def counts(y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def totals(y):
    chance = numpyro.sample("chance", dist.Beta(2.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.NegativeBinomialProbs(5.0, chance), obs=y)


def regression(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.StudentT(3.0, x @ w, spread), obs=y)


Y = RNG.poisson(3.0, 5000)
X = RNG.normal(size=(5000, 2)).astype(np.float32)
LINE = (X @ [1.0, -1.0] + 0.5 * RNG.standard_t(3, 5000)).astype(np.float32)


def fit(model: Any, *rows: np.ndarray, epsilon: float = 1.0, **options: Any) -> Any:
    """The result, and what was warned of, but for the seed."""
    vi = vi_of(model, budget=epsilon, **{"insecure_seed": 0, **options})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = vi.run(jax.random.key(0), *rows)
    texts = [str(w.message) for w in caught if w.category is UserWarning]
    return result, [text for text in texts if "insecure_seed" not in text]


def clipped_in(texts: list[str]) -> str:
    (text,) = (text for text in texts if "rows were clipped" in text)
    return text


def advised(text: str) -> Any:
    """The `clipping_norm=` that a warning says, as the code that it is."""
    (code,) = re.findall(r"clipping_norm=(\{.*?\}|[\d.e+-]+),", text)
    return eval(code)


def total_of(options: dict[str, Any]) -> float:
    norm = options["clipping_norm"]
    return sum(norm.values()) if isinstance(norm, dict) else norm


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("model", "rows", "options", "said"),
    [
        (
            counts,
            (Y,),
            {"clipping_norm": 1.0},
            ("⟨log rate⟩ was longer than 1,", "'rate' comes out too small"),
        ),
        (
            totals,
            (Y,),
            {"clipping_norm": {"⟨log chance⟩": 1.0, "⟨log(1-chance)⟩": 1.0}},
            ("'chance' ", "⟨log chance⟩"),
        ),
        (
            regression,
            (X, LINE),
            {"clipping_norm": 0.2, "engine": "dpvi"},
            (
                "gradients in 'w' and 'spread' were longer than 0.2,",
                "'w' and 'spread' are drawn towards the rows that were not clipped",
            ),
        ),
    ],
    ids=["one sum", "two sums", "gradients"],
)
def test_a_warning_names_what_was_cut_which_way_and_what_helps(
    model: Any, rows: Any, options: dict[str, Any], said: tuple[str, ...]
):
    result, texts = fit(model, *rows, **options)
    text = clipped_in(texts)
    for part in said:
        assert part in text
    share = result.privacy.shares[CLIPPED_ROWS]
    assert text.startswith(f"{share} of the rows were clipped")
    assert text in result.privacy.remarks
    # The larger norm that it says, as often as it says so, ends it; so does none.
    given = dict(options)
    for _ in range(6):
        before, given["clipping_norm"] = total_of(given), advised(text)
        assert total_of(given) == pytest.approx(2 * before, rel=0.01)
        result, texts = fit(model, *rows, **given)
        fewer = result.privacy.shares[CLIPPED_ROWS]
        assert fewer.share < share.share + 3 * (fewer.stddev + share.stddev)
        share = fewer
        if not any("rows were clipped" in text for text in texts):
            break
        text = clipped_in(texts)
    else:
        pytest.fail("clipping did not end")
    assert "leave clipping_norm= out" in text
    del given["clipping_norm"]
    _, texts = fit(model, *rows, **given)
    assert not any("rows were clipped" in text for text in texts)


@pytest.mark.quick_with("600")
@pytest.mark.parametrize("num_far", [0, 600])
def test_few_rows_that_the_model_does_not_expect_are_told(num_far: int):
    """Three of a hundred beyond a norm that Poisson counts of 3 hardly ever reach."""
    rng = np.random.default_rng(3)
    rows = rng.poisson(3.0, 20_000)
    rows[:num_far] = 40
    _, texts = fit(counts, rows, clipping_norm=10.0)
    assert len(texts) == bool(num_far)
    if num_far:
        assert "where the model expects 0." in clipped_in(texts)
        assert "'rate' comes out too small" in clipped_in(texts)


@pytest.mark.thorough
def test_norms_about_released_means_are_not_advised():
    """With norms of the caller's sums are about zero again, and others."""

    def outliers(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 100.0))
        spread = numpyro.sample("spread", dist.HalfNormal(50.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, spread), obs=y)

    far = RNG.standard_t(0.7, size=5000)
    _, texts = fit(outliers, far.astype(np.float32))
    text = clipped_in(texts)
    assert "'spread' comes out too small" in text
    assert "clipping_norm=" not in text
    assert "a larger epsilon" in text


@pytest.mark.thorough
def test_what_too_few_rows_say_stands_in_the_statement(tmp_path):
    result, texts = fit(counts, Y[:30], epsilon=0.3)
    (text,) = (text for text in texts if text.startswith("Too few rows"))
    assert "So the norm is that of rows that the priors draw" in text
    norm = result.diagnostics["clipping_norms"]["⟨log rate⟩"]
    assert f"({norm:.3g} for ⟨log rate⟩)" in text
    assert text in result.privacy.remarks
    assert text in str(result.privacy)
    assert text in result.privacy.to_dict()["remarks"]
    result.save(tmp_path / "fit.nc")
    assert nv.load(tmp_path / "fit.nc").privacy == result.privacy
    # As it says, more rows help, and so does a larger epsilon.
    for rows, epsilon in ((Y, 0.3), (Y[:300], 10.0)):
        result, texts = fit(counts, rows, epsilon=epsilon)
        assert not texts and not result.privacy.remarks


@pytest.mark.thorough
def test_a_prior_that_disagrees_stands_in_the_statement():
    def ages(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mean, 10.0), obs=y)

    result, texts = fit(ages, (45.0 + 10.0 * RNG.normal(size=5000)).astype(np.float32))
    (text,) = (text for text in texts if "'mean' and the data disagree" in text)
    assert text in result.privacy.remarks
    assert text in str(result.privacy)


@pytest.mark.parametrize("engine", ["vips", "dpvi"])
@pytest.mark.parametrize("num_odd", [0, 1])
def test_without_noise_a_single_odd_row_is_told(engine: str, num_odd: int) -> None:
    def mean(y: Any) -> None:
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    y = RNG.normal(size=200).astype(np.float32)
    y[:num_odd] = np.nan
    result = fit_to(mean, y, budget=math.inf, engine=engine)
    texts = [t for t in result.diagnostics["warnings"] if "counted as zero" in t]
    assert len(texts) == num_odd
    if num_odd:
        share = result.diagnostics["rows that count as zero"]
        assert share == {"share": pytest.approx(1 / 200), "stddev": 0.0}
        assert "The posterior is that of the other rows." in texts[0]


def weighted_mean(w, y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    spread = numpyro.sample("spread", dist.HalfNormal(5.0))
    with numpyro.plate("rows", y.shape[0]), numpyro.handlers.scale(scale=w):
        numpyro.sample("y", dist.Normal(mean, spread), obs=y)


def survey(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Who has a large number answers less often, and is weighted by the inverse."""
    rng = np.random.default_rng(100)
    everyone = rng.normal(2.0, 1.0, 10 * rows)
    chance = np.clip(1 / (1 + np.exp(1.5 * (everyone - 1.0))), 0.02, 1.0)
    asked = np.flatnonzero(rng.random(10 * rows) < 0.5 * chance)[:rows]
    weights = 1 / chance[asked]
    return weights / weights.mean(), everyone[asked]


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_that_heavy_rows_were_clipped_is_said_before_they_are_many(engine: str):
    """3 % of the rows are clipped, and the mean is off by many standard deviations."""
    weights, y = (rows.astype(np.float32) for rows in survey(5000))
    result, texts = fit(weighted_mean, weights, y, engine=engine, insecure_seed=1)
    mean = result.posterior.moments()["mean"]
    assert mean.mean + 4 * mean.stddev < 2.0  # It is still so.
    (text,) = (text for text in texts if "weights of their own" in text)
    assert "'w', by numpyro.handlers.scale around 'y'" in text
    assert "numpy.minimum(w, 3)" in text
    assert text in result.privacy.remarks


@pytest.mark.thorough
def test_weights_with_a_limit_raise_no_warning():
    weights, y = survey(50_000)
    limited = np.minimum(weights, 3.0).astype(np.float32)
    _, texts = fit(weighted_mean, limited, y.astype(np.float32))
    assert not any("weights of their own" in text for text in texts)


@pytest.mark.parametrize(
    ("share", "stddev", "warns"),
    [(-0.026, 0.022, False), (0.01, 0.022, False), (0.03, 0.005, True)],
)
def test_noise_alone_is_no_hint_at_heavy_rows(share, stddev, warns):
    assert _hints_at_heavy_rows(NoisyShare(share=share, stddev=stddev)) == warns
