"""How much of an interval's width is due to privacy."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to

import numpyro_vips as nv
from numpyro_vips.result import PrivateVIResult
from numpyro_vips.uncertainty import (
    KnowsItsParts,
    Uncertainty,
    VarianceParts,
    on_widths_of_prior,
)

Y = np.random.default_rng(0).normal(1.0, 0.5, 2000).astype(np.float32)


def gaussian(n: int, y: Any = None) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    precision = numpyro.sample("precision", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(mean, precision**-0.5), obs=y)


def fitted(epsilon: float, **settings: Any) -> PrivateVIResult:
    return fit_to(
        nv.private(gaussian, unit="rows", public=("n",)),
        len(Y),
        Y,
        budget=epsilon,
        **settings,
    )


NORMS = {"⟨precision⟩": 4.0, "⟨mean⟩⟨precision⟩": 3.0}


@pytest.mark.thorough
def test_the_parts_add_up_to_the_variance_and_the_data_have_theirs() -> None:
    result = fitted(1.0, clipping_norm=NORMS)
    parts, moments = result.uncertainty().parts, result.posterior.moments()
    for site, found in parts.items():
        total = np.asarray(moments[site].stddev) ** 2
        np.testing.assert_allclose(found.data + found.privacy, total)
        assert (found.privacy > 0).all()
    # That of a mean of 2,000 rows of standard deviation 1/2, up to noise in the latter.
    assert math.sqrt(parts["mean"].data) == pytest.approx(0.5 / 2000**0.5, rel=0.15)


def test_entries_bear_the_names_of_their_columns() -> None:
    parts = {
        "w": VarianceParts(data=np.ones((2, 3)), privacy=np.zeros((2, 3))),
        "v": VarianceParts(data=np.ones(2), privacy=np.zeros(2)),
    }
    means = {"w": np.zeros((2, 3)), "v": np.zeros(2)}
    labels = {"w": [None, ["age", "job=cook", "log(pay)"]]}
    printed = str(Uncertainty(parts=parts, means=means, axis_labels=labels))
    names = [line.partition("  ")[0] for line in printed.splitlines()[1:]]
    assert names[:2] == ["w[0, age]", "w[0, job=cook]"]
    assert names[5:] == ["w[1, log(pay)]", "v[0]", "v[1]"]


@pytest.mark.thorough
def test_more_privacy_is_a_larger_part_of_the_width() -> None:
    shares = []
    for epsilon in (0.3, 1.0, 10.0):
        with pytest.warns(UserWarning, match="insecure_seed"):
            result = fitted(epsilon, clipping_norm=NORMS, insecure_seed=0)
        shares.append(result.uncertainty().parts["mean"].share_of_width)
    assert shares == sorted(shares, reverse=True)
    assert 0.0 < shares[-1] < 0.2
    assert shares[0] > 0.5


@pytest.mark.thorough
def test_without_privacy_all_of_it_is_due_to_the_data() -> None:
    for found in fitted(math.inf).uncertainty().parts.values():
        np.testing.assert_array_equal(found.privacy, 0.0)
        np.testing.assert_array_equal(found.share_of_width, 0.0)


@pytest.mark.thorough
def test_it_is_saved(tmp_path: Path) -> None:
    result = fitted(1.0, clipping_norm=NORMS)
    result.save(tmp_path / "fit.nc")
    assert str(nv.load(tmp_path / "fit.nc").uncertainty()) == str(result.uncertainty())


def test_the_table() -> None:
    table = Uncertainty(
        parts={
            "a": VarianceParts(data=np.asarray(1.0), privacy=np.asarray(3.0)),
            "w": VarianceParts(data=np.ones(20), privacy=np.zeros(20)),
            "zero": VarianceParts(data=np.zeros(1), privacy=np.zeros(1)),
        },
        means={"a": np.asarray(5.0), "w": np.zeros(20), "zero": np.ones(1)},
    )
    lines = [line.split() for line in str(table).splitlines()]
    assert lines[1] == ["a", "5", "2", "1", "50%"]
    assert lines[2] == ["w,", "median", "of", "20", "0", "1", "1", "0%"]
    assert lines[3] == ["zero[0]", "1", "0", "0", "0%"]


def test_a_posterior_that_does_not_know_says_so() -> None:
    result = PrivateVIResult(
        posterior=SimpleNamespace(),  # type: ignore[arg-type]
        privacy=SimpleNamespace(is_private=True),  # type: ignore[arg-type]
        engine="other",
    )
    with pytest.raises(
        ValueError, match=r"not allow for the noise.*docs/intervals\.md"
    ):
        result.uncertainty()


@pytest.mark.thorough
def test_without_noise_all_is_due_to_the_data_whichever_the_engine() -> None:
    result = fitted(math.inf, engine="dpvi", num_steps=2)
    assert not isinstance(result.posterior, KnowsItsParts)
    parts, moments = result.uncertainty().parts, result.posterior.moments()
    assert parts.keys() == moments.keys() == {"mean", "precision"}
    for site, found in parts.items():
        np.testing.assert_allclose(np.sqrt(found.data), moments[site].stddev)
        np.testing.assert_array_equal(found.share_of_width, 0.0)


def test_a_posterior_that_is_the_prior_is_said_to_be() -> None:
    """Where rows have something to say of one global, others may well be unknown."""
    assert list(on_widths_of_prior({"w": 1.0, "s": 0.9})) == []
    (text,) = on_widths_of_prior({"w": 0.999, "s": 1.02})
    assert text.startswith("Noise hides what the rows say of 'w', 's': the posterior")
    assert list(on_widths_of_prior({})) == []
