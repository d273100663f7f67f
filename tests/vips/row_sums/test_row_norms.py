"""The guarantee of the conjugacy layer: what one row can do to the released sums.

Norms and clipped sums are computed from structure, without any row's statistic ever
being made; here they are compared with statistics that are made, one row at a time.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _coordinates import isometric_coordinates
from _models import UNIT
from _setups import COUNT, NAMES, SWEEPS, Setup, setup

from numpyro_vips.accounting import Relation
from numpyro_vips.jax_tools import row_sums
from numpyro_vips.privacy.gaussian_mechanism import Block, GaussianMechanism
from numpyro_vips.vips.row_sums import row_norms
from numpyro_vips.vips.row_sums.bounded_sum import bounded_sum
from numpyro_vips.vips.row_sums.contributions import RowInputs
from numpyro_vips.vips.steps.statistic_roles import block_of

pytestmark = pytest.mark.optimized


@pytest.mark.quick_with(
    "gaussian*",
    "gamma*",
    "beta_bernoulli",
    "dirichlet_categorical",
    "logistic_fixed",
    "linear_regression",
)
@pytest.mark.parametrize("name", NAMES)
def test_norms_and_sums_match_materialised_statistics(name: str) -> None:
    this = setup(name)
    made, found = this.row_by_row(this.rows)
    norms = this.joint_norms(made)
    np.testing.assert_allclose(found, norms, rtol=2e-4, atol=1e-6)
    mask = np.arange(COUNT) % 7 != 2
    whole = this.bounded_sum(this.rows, mask, math.inf)
    # Half of the rows are clipped at the median.
    norm = float(np.median(norms))
    clipped = this.bounded_sum(this.rows, mask, norm)
    shrink = norm / np.maximum(norms, norm)
    for block, value in made.items():
        atol = 1e-4 * np.abs(value).sum(0).max()
        expected = value[mask].sum(0)
        np.testing.assert_allclose(whole[block], expected, rtol=1e-4, atol=atol)
        weights = shrink.reshape(-1, *(1,) * (value.ndim - 1))
        expected = (weights * value)[mask].sum(0)
        np.testing.assert_allclose(clipped[block], expected, rtol=1e-4, atol=atol)
        nothing = this.bounded_sum(this.rows, np.zeros(COUNT, bool), norm)
        np.testing.assert_array_equal(nothing[block], np.zeros_like(nothing[block]))


# What an adversary may put in a row: finite, huge, not finite, outside the support.
FLOATS = (0.0, 1.0, -1.0, 3e2, -1e6, 1e6, 1e12, 3e38, np.nan, np.inf, -np.inf)
INTEGERS = (0, 1, 3, -1, 4, 1000, -1000, 2**31 - 1, -(2**31))


def _nasty_rows(this: Setup, count: int) -> dict[str, np.ndarray]:
    """Rows whose entries are mixtures of ordinary and extreme values."""
    rng = np.random.default_rng(5)
    rows = {}
    for name, array in this.rows.items():
        extreme = FLOATS if array.dtype.kind == "f" else INTEGERS
        shape = (count, *array.shape[1:])
        drawn = rng.choice(np.asarray(extreme, array.dtype), shape)
        plain = array[rng.integers(0, len(array), count)]
        rows[name] = np.where(rng.random(shape) < 0.4, drawn, plain)
    # One argument extreme in every entry, the others ordinary.
    number = 0
    for name, array in this.rows.items():
        for value in FLOATS if array.dtype.kind == "f" else INTEGERS:
            if number >= count // 2:
                break
            for other, plain in this.rows.items():
                rows[other][number] = plain[number % len(plain)]
            rows[name][number] = value
            number += 1
    return rows


@pytest.mark.parametrize("name", NAMES)
def test_no_row_changes_the_sum_by_more_than_the_clipping_norm(name: str) -> None:
    this = setup(name)
    rows = _nasty_rows(this, COUNT)
    norm = 0.45  # Every model has rows with a larger norm.
    changes = []
    for number in range(COUNT):
        change = this.bounded_sum(rows, np.arange(COUNT) == number, norm)
        changes.append(this.joint_norms({k: v[None] for k, v in change.items()})[0])
    assert np.all(np.isfinite(changes))
    assert np.max(changes) <= norm * (1 + 1e-9)
    # The bound is attained, so the noise is not larger than it must be.
    assert np.max(changes) >= 0.95 * norm
    # Among others, one row changes the sum by what it contributes alone.
    everyone = this.bounded_sum(rows, np.ones(COUNT, bool), norm)
    for left_out in range(0, COUNT, 9):
        others = this.bounded_sum(rows, np.arange(COUNT) != left_out, norm)
        change = {k: (everyone[k] - others[k])[None] for k in everyone}
        assert this.joint_norms(change)[0] <= norm * (1 + 1e-9)


def _search_rows(this: Setup, count: int) -> dict[str, np.ndarray]:
    """Rows of any sign and size; indices and counts near the real ones."""
    rng = np.random.default_rng(11)
    rows = {}
    for name, array in this.rows.items():
        rows[name] = array[rng.integers(0, len(array), count)]
        if array.dtype.kind == "f":
            axes = (1,) * (array.ndim - 1)
            size = 10.0 ** rng.uniform(-2, 3, (count, *axes))
            wild = (size * rng.normal(size=(count, *array.shape[1:]))).astype("f4")
            rows[name] = np.where(rng.random((count, *axes)) < 0.5, rows[name], wild)
    return rows


# The statistics of one release, None for all that the model has, and how far a row can
# move their sum where it is replaced, in units of the clipping norm.
ATTAINED: list[tuple[str, tuple[str, ...] | None, float]] = [
    # Of either sign: one number, a vector, a matrix, a vector gathered by an index.
    ("gaussian_mean", None, 2.0),
    ("linear_regression", ("⟨w⟩",), 2.0),
    ("factor_analysis", ("⟨W⟩⟨tau⟩",), 2.0),
    ("logistic_groups", ("⟨a w⟩",), 2.0),
    # Of one sign: one number, several, scattered along an index.
    ("gamma_exponential", None, 1.0),
    ("gamma_poisson", None, 1.0),
    ("logistic_intercept", ("⟨b b⟩",), 1.0),
    ("beta_bernoulli", ("⟨log(1-p)⟩",), 1.0),
    ("beta_bernoulli", None, math.sqrt(2)),
    ("mixture", ("⟨log weights⟩",), math.sqrt(2)),
    ("mixture", ("⟨mu mu⟩⟨tau⟩",), math.sqrt(2)),
    ("dirichlet_categorical", None, math.sqrt(2)),
    ("logistic_groups", ("⟨a a⟩",), math.sqrt(2)),
    ("topics", None, math.sqrt(2)),
    # Outer products, and a product of one with each of several numbers.
    ("logistic_fixed", ("⟨w w⟩",), math.sqrt(2)),
    ("linear_regression", ("⟨w w⟩",), math.sqrt(2)),
    ("factor_analysis", ("⟨W W⟩⟨tau⟩",), math.sqrt(2)),
    # Blocks of several kinds together.
    ("gaussian_mean_precision", None, 2.0),
    ("linear_regression", None, 2.0),
    ("regression_with_offset", None, 2.0),
    ("logistic_fixed", None, 2.0),
    ("logistic_groups", None, 2.0),
]


CLIPPING_NORM = 0.03  # Below the norm of most rows.


@functools.cache
def _clipped_rows(name: str) -> Any:
    """From scales of all blocks to the clipped sums of many rows, each row alone."""
    this = setup(name)
    rows = _search_rows(this, 400)

    def contribution(row: Mapping[str, Any], scales: Any) -> dict[str, jax.Array]:
        alone = {key: value[None] for key, value in row.items()}
        return bounded_sum(
            this.program,
            RowInputs(this.expected_natural),
            alone,
            jnp.ones(1, bool),
            scales,
            CLIPPING_NORM,
            SWEEPS,
        )

    compiled = jax.jit(jax.vmap(contribution, in_axes=(0, None)))

    def sums(scales: Mapping[str, float]) -> dict[str, jax.Array]:
        # Filled up to a vector, a sum of one row takes 64 times as long. How rows share
        # vectors is the subject of `test_rounding.py`.
        with mock.patch.object(row_sums, "ROW_ALIGNMENT", 1):
            return compiled(rows, dict(scales))

    return sums


@functools.cache
def _contributions(
    name: str, names: tuple[str, ...] | None
) -> tuple[tuple[Block, ...], np.ndarray]:
    """The blocks, and clipped joint vectors of many rows, by the sum that runs."""
    this = setup(name)
    scales = {k: v for k, v in this.scales.items() if names is None or k in names}
    assert names is None or set(scales) == set(names)
    # A block with a scale of zero has no part in the norm.
    found = _clipped_rows(name)(dict.fromkeys(this.scales, 0.0) | scales)
    blocks = tuple(
        dataclasses.replace(block_of(s), scale=scales[s.name])
        for s in this.program.structure.statistics
        if s.name in scales
    )
    pieces = [isometric_coordinates(b, np.asarray(found[b.name])) for b in blocks]
    joint = np.concatenate([piece.reshape(400, -1) for piece in pieces], axis=1)
    return blocks, joint


def _stated_and_found(
    name: str, names: tuple[str, ...] | None, relation: Relation
) -> tuple[float, float]:
    """The sensitivity, and the largest change that a search over rows finds.

    Both are in units of the clipping norm.
    """
    blocks, joint = _contributions(name, names)
    others = joint if relation == "replace_one" else np.zeros((1, joint.shape[1]))
    changes = np.linalg.norm(joint[:, None] - others[None], axis=-1)
    mechanism = GaussianMechanism(
        blocks=blocks,
        clipping_norm=CLIPPING_NORM,
        noise_multiplier=1.0,
        relation=relation,
    )
    found = float(np.max(changes))
    return mechanism.sensitivity() / CLIPPING_NORM, found / CLIPPING_NORM


@pytest.mark.parametrize("relation", ["add_or_remove", "replace_one"])
@pytest.mark.parametrize(("name", "names", "factor"), ATTAINED)
def test_the_stated_sensitivity_is_attained(
    name: str, names: tuple[str, ...] | None, factor: float, relation: Relation
) -> None:
    stated, found = _stated_and_found(name, names, relation)
    assert stated == pytest.approx(factor if relation == "replace_one" else 1.0)
    assert found <= stated * (1 + 1e-4)
    assert found >= 0.95 * stated


@pytest.mark.parametrize("name", ["mixture", "factor_analysis"])
def test_blocks_of_one_outer_product_move_less_than_is_stated(name: str) -> None:
    """y², y·x and x·xᵀ of a row are one semidefinite matrix; the bound does not know.

    The middle block alone is signed, so the joint bound is 2C. But where it points
    apart, the outer two make up for it: with these scales no pair of rows moves the sum
    by more than √2·C and a little.
    """
    stated, found = _stated_and_found(name, None, "replace_one")
    assert stated == pytest.approx(2.0)
    assert 1.4 < found < 1.6


def _damaged(this: Setup) -> list[tuple[str, dict[str, np.ndarray]]]:
    """Copies of the rows whose row 2 cannot count."""
    found = []
    for name, array in this.rows.items():
        values: list[Any] = []
        if array.dtype.kind == "f":
            values = [np.nan, np.inf, -np.inf]
        else:
            # An index of -1 is the last entry, as in NumPy.
            values = [-1000, 1000, 2**31 - 1]
        for value in values:
            rows = {k: v.copy() for k, v in this.rows.items()}
            rows[name][(2, *(-1,) * (array.ndim - 1))] = value
            found.append((f"{name}={value}", rows))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_an_unusable_row_counts_exactly_as_zero(name: str) -> None:
    this = setup(name)
    without = np.ones(COUNT, bool)
    without[2] = False
    for norm in (math.inf, 0.5):
        expected = this.bounded_sum(this.rows, without, norm)
        for label, rows in _damaged(this):
            found = this.bounded_sum(rows, np.ones(COUNT, bool), norm)
            for block, value in expected.items():
                np.testing.assert_array_equal(found[block], value, err_msg=label)


LABELS = [
    ("beta_bernoulli", "y", (2.0, -1.0, 0.5)),
    ("logistic_fixed", "y", (2.0, -1.0, 0.5)),
    ("logistic_intercept", "y", (2.0, -1.0, 0.5)),
    ("gamma_poisson", "y", (-1.0, 2.5)),
    ("gamma_exponential", "y", (-1.0,)),
    ("dirichlet_categorical", "y", (-1, 4, 100)),
]


@pytest.mark.parametrize(("name", "argument", "values"), LABELS)
def test_an_observation_outside_the_support_counts_as_zero(
    name: str, argument: str, values: tuple
) -> None:
    this = setup(name)
    without = np.ones(COUNT, bool)
    without[2] = False
    expected = this.bounded_sum(this.rows, without, math.inf)
    for value in values:
        rows = {k: v.copy() for k, v in this.rows.items()}
        rows[argument][2] = value
        found = this.bounded_sum(rows, np.ones(COUNT, bool), math.inf)
        for block in expected:
            np.testing.assert_array_equal(found[block], expected[block])


def test_masked_observations_contribute_nothing() -> None:
    """Rows whose only observation is masked out count zero, as do masked entries."""

    def masked(X: Any, y: Any, seen: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
        b = numpyro.sample("b", dist.Normal(0.0, 3.0))
        with numpyro.plate(UNIT, X.shape[0]), numpyro.handlers.mask(mask=seen):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w + b), obs=y)

    plain = setup("logistic_intercept")
    seen = np.arange(COUNT) % 3 != 1
    this = Setup(masked, (plain.rows["X"], plain.rows["y"], seen))
    for block in this.scales:
        assert block in plain.scales
    everything = np.ones(COUNT, bool)
    with_mask = this.bounded_sum(this.rows, everything, math.inf)
    without = plain.bounded_sum(plain.rows, seen, math.inf)
    for block in with_mask:
        np.testing.assert_allclose(with_mask[block], without[block], rtol=1e-5)
    only_hidden = this.bounded_sum(this.rows, ~seen, math.inf)
    for value in only_hidden.values():
        np.testing.assert_array_equal(value, np.zeros_like(value))


@pytest.mark.parametrize("size", [1e3, 1e6, 1e9])
def test_cancellation_does_not_hide_a_large_contribution(size: float) -> None:
    """(y - offset)·x, where y and offset are far larger than their difference.

    The row's norm is a sum of inner products of its terms, y·x and offset·x here; in
    single precision rounding can swallow the difference, and a row that seems to be
    zero would pass unclipped.
    """
    this = setup("regression_with_offset")
    rng = np.random.default_rng(0)
    difference = size * 10.0 ** rng.uniform(-6, 0, COUNT)
    rows = {
        "X": rng.normal(size=(COUNT, 3)).astype(np.float32),
        "y": (size + difference).astype(np.float32),
        "offset": np.full(COUNT, size, np.float32),
    }
    norm = 0.7
    for number in range(COUNT):
        mask = np.arange(COUNT) == number
        change = this.bounded_sum(rows, mask, norm)
        found = this.joint_norms({k: v[None] for k, v in change.items()})[0]
        assert found <= norm * (1 + 1e-3)


@functools.cache
def _chain(length: int) -> Setup:
    """Hidden states that follow one another: a statistic of as many terms as steps."""

    def chain(y: Any) -> None:
        rows = dist.Dirichlet(jnp.ones(3)).expand([3]).to_event(1)
        moves = numpyro.sample("moves", rows)
        seen = numpyro.sample("seen", dist.Beta(1.0, 2.0).expand([3]).to_event(1))
        state: Any = 0
        with numpyro.plate(UNIT, y.shape[0]):
            for t in range(length):
                state = numpyro.sample(
                    f"state_{t}",
                    dist.Categorical(moves[state]),
                    infer={"enumerate": "parallel"},
                )
                numpyro.sample(f"y_{t}", dist.Bernoulli(seen[state]), obs=y[:, t])

    return Setup(chain, (np.random.default_rng(3).integers(0, 2, (COUNT, length)),))


@pytest.mark.thorough
def test_norms_of_many_terms_are_those_of_all_their_pairs() -> None:
    this = _chain(6)
    made, norms = this.row_by_row(this.rows)
    # Never too small, by what rounding may do to sums of magnitudes.
    exact = this.joint_norms({k: v.astype(np.float64) for k, v in made.items()})
    np.testing.assert_allclose(norms, exact, rtol=1e-5)
    with mock.patch.object(row_norms, "_MANY_TERMS", 1000):
        pairs = Setup(this.fn, tuple(this.rows.values()))
        np.testing.assert_allclose(pairs.row_by_row(this.rows)[1], norms, rtol=1e-12)


@pytest.mark.thorough
def test_the_program_of_a_norm_grows_with_its_terms_and_not_their_pairs() -> None:
    def operations(length: int) -> int:
        with mock.patch.object(
            row_norms, "contract", wraps=row_norms.contract
        ) as contract:
            this = _chain(length)
            this.row_by_row(this.rows)
        return contract.call_count

    assert operations(8) <= 2.2 * operations(4)
