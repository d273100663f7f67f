"""What norms in synthetic rows say of blocks."""

from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _models import means

from numpyro_vips.fitting.bounds.synthetic_norms import (
    NUM_TYPICAL_ROWS,
    SyntheticNorms,
    exclusive_blocks,
    square_blocks,
    varying_blocks,
)
from numpyro_vips.privacy.releases import Together


def test_blocks_vary_that_are_larger_in_rows_of_another_size() -> None:
    largest = {"indicator": 1.0, "square": 2.0}
    same = {"indicator": np.array([1.0, 0.0]), "square": np.array([1.0, 2.0])}
    larger = {"indicator": np.ones(2), "square": np.array([2.0, 2.1])}
    assert varying_blocks([same], largest) == set()
    assert varying_blocks([same, larger], largest) == {"square"}


def test_all_blocks_may_vary_where_no_row_of_another_size_is_valid() -> None:
    largest = {"a": 1.0, "b": 2.0}
    none = {"a": np.zeros(0), "b": np.zeros(0)}
    assert varying_blocks([none], largest) == {"a", "b"}


def test_blocks_of_one_size_that_no_row_has_both_of_share_a_norm() -> None:
    labels = np.array([0.0, 1.0, 1.0])
    tried = {"y": labels, "1 - y": 1.0 - labels, "both": np.ones(3), "large": labels}
    largest = {"y": 1.0, "1 - y": 1.0, "both": 1.0, "large": 3.0}
    (found,) = exclusive_blocks([tried], largest)
    assert found == Together("y or 1 - y", ("y", "1 - y"), None)


def test_typical_rows_are_valid_and_have_norms_of_every_block() -> None:
    y = np.linspace(-1.0, 1.0, 40)
    fit, _ = vi_of(means)._prepare_fit((y,), {})
    names = [block.name for block in fit.engine.blocks("once")]
    trial = SyntheticNorms(fit.engine, fit.arguments, names)
    rows, norms = trial.typical_norms(fit.graph)
    assert len(rows["y"]) == NUM_TYPICAL_ROWS
    assert set(norms) == set(names)
    np.testing.assert_array_equal(trial.norms(rows)[names[0]], norms[names[0]])


def test_categories_that_the_model_compares_with_numbers_are_seen() -> None:
    """Of which two have no row in common, and whose code may be larger than one."""

    def churn(tenure: Any, contract: Any, y: Any) -> None:
        a, b, c, d = (numpyro.sample(n, dist.Normal(0.0, 1.0)) for n in "abcd")
        logits = a + b * tenure + c * (contract == 1) + d * (contract == 2)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    count = 3000
    rows = np.ones(count, np.float32), np.zeros(count, int), np.zeros(count, int)
    fit, _ = vi_of(churn)._prepare_fit(rows, {})
    parts = {name: part for part in fit.parts for name in part.blocks}
    # No limit is known of a tenure, in whatever category.
    assert not parts["⟨b c⟩"].is_fixed and not parts["⟨b d⟩"].is_fixed
    assert parts["⟨c c⟩"] == parts["⟨d d⟩"] and parts["⟨d d⟩"].is_fixed
    assert parts["⟨c c⟩"].reference < 0.2
    # It is zero in every row.
    assert parts["⟨c d⟩"].is_fixed and parts["⟨c d⟩"].reference < 0.2


def test_squares_of_norms_are_known_from_rows_of_several_sizes() -> None:
    norms = np.geomspace(0.01, 100.0, 20)
    tried = {
        "mean": np.append(norms, 0.0),
        "square": np.append(0.5 * norms**2, 0.0),
        "cube": np.append(norms**3, 0.0),
        "other": np.append(norms**1.9, 0.0),
        "constant": np.ones(21),
    }
    found = square_blocks(
        [tried, {name: 1.0 * of[:0] for name, of in tried.items()}], tried
    )
    assert found.keys() == {"square"}
    assert found["square"].name == "mean"
    assert found["square"].factor == pytest.approx(0.5)


def test_a_norm_that_is_there_without_its_root_is_no_square() -> None:
    norms = np.geomspace(0.01, 100.0, 20)
    tried = {"mean": norms * (norms > 1.0), "square": norms**2}
    assert square_blocks([tried], tried) == {}


def test_one_size_of_rows_shows_no_squares() -> None:
    tried = {"one": np.full(20, 3.0), "nine": np.full(20, 9.0)}
    assert square_blocks([tried], tried) == {}
