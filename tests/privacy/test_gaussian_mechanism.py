"""Stated sensitivities are bounds that an adversary reaches; noise has its scale."""

import itertools
import math

import numpy as np
import pytest
from _coordinates import isometric_coordinates
from scipy import optimize, stats

from numpyro_vips.accounting import Relation
from numpyro_vips.privacy.gaussian_mechanism import (
    Block,
    GaussianMechanism,
    optimal_scales,
)

pytestmark = pytest.mark.optimized

SIGNED = Block(name="signed", shape=(3,))
COUNTS = Block(name="counts", shape=(2, 2), geometry="nonnegative", scale=0.5)
MATRIX = Block(name="matrix", shape=(2, 2), symmetric=True, geometry="psd", scale=2.0)
SYMMETRIC = Block(name="symmetric", shape=(2, 3, 3), symmetric=True)
UNIT_BOX = Block(name="unit_box", shape=(4,), geometry="box", lower=0.0, upper=1.0)
WIDE_BOX = Block(name="wide", shape=(2,), geometry="box", lower=-0.2, upper=2.0)
TWO_SIDED = Block(
    name="two_sided", shape=(4,), geometry="box", lower=-0.1, upper=0.3, scale=3.0
)
HOLLOW = Block(
    name="hollow", shape=(3, 3), symmetric=True, hollow=True, geometry="nonnegative"
)
HOLLOW_BOX = Block(
    name="hollow_box",
    shape=(3, 3),
    symmetric=True,
    hollow=True,
    scale=2.0,
    geometry="box",
    lower=-0.3,
    upper=0.0,
)
HOLLOW_NUMBER = Block(
    name="hollow_number",
    shape=(2, 2),
    symmetric=True,
    hollow=True,
    geometry="box",
    lower=0.0,
    upper=1.0,
)
SMALL = Block(name="small", shape=(2,), norm_bound=0.3)
# Single numbers: of one sign, a matrix of order one, and in boxes.
COUNT = Block(name="count", shape=(), geometry="nonnegative", scale=0.7)
OTHER = Block(name="other", shape=(1,), geometry="nonnegative", norm_bound=0.6)
SQUARE = Block(name="square", shape=(1, 1), symmetric=True, geometry="psd")
UNIT = Block(name="unit", shape=(), geometry="box", lower=0.0, upper=1.0)
UNEVEN = Block(name="uneven", shape=(), geometry="box", lower=-0.3, upper=2.0)


def mechanism(
    *blocks: Block,
    norm: float = 1.5,
    noise: float = 1.0,
    relation: Relation = "add_or_remove",
) -> GaussianMechanism:
    return GaussianMechanism(
        blocks=blocks, clipping_norm=norm, noise_multiplier=noise, relation=relation
    )


# ----------------------------------------------------------------------------------
# Sensitivity


def contribution(block: Block, raw: np.ndarray) -> np.ndarray:
    """Maps free numbers onto what a row may contribute to the block."""
    raw = raw.reshape(block.shape)
    if block.geometry == "nonnegative":
        raw = np.abs(raw)
    elif block.geometry == "psd":
        raw = raw @ np.swapaxes(raw, -1, -2)
    elif block.geometry == "box":
        raw = np.clip(raw, block.lower, block.upper)
    if block.hollow:
        raw = raw * (1.0 - np.eye(block.shape[-1]))
    if block.symmetric:
        raw = (raw + np.swapaxes(raw, -1, -2)) / 2
    norm = np.linalg.norm(raw)
    if norm > block.norm_bound:
        raw = raw * (block.norm_bound / norm)
    return raw


def joint_vector(blocks, raw: np.ndarray, norm: float) -> np.ndarray:
    """A row's clipped joint vector."""
    pieces, start = [], 0
    for block in blocks:
        size = math.prod(block.shape)
        value = contribution(block, raw[start : start + size])
        pieces.append(isometric_coordinates(block, value).ravel())
        start += size
    vector = np.concatenate(pieces)
    length = np.linalg.norm(vector)
    return vector if length <= norm else vector * (norm / length)


def adversarial_search(blocks, norm, relation):
    """The largest change of the sum that optimisation finds."""
    rng = np.random.default_rng(5)
    size = sum(math.prod(block.shape) for block in blocks)

    def change(raw):
        first = joint_vector(blocks, raw[:size], norm)
        if relation == "add_or_remove":
            return -np.linalg.norm(first)
        return -np.linalg.norm(first - joint_vector(blocks, raw[size:], norm))

    alone = relation == "add_or_remove"
    # A row alone needs no more than its norm, two of them have to be opposite.
    free, num_climbs = (size, 2) if alone else (2 * size, 6)
    starts = [
        rng.normal(size=free) * rng.choice([0.1, 0.3, 1.0, 3.0], size=free)
        for _ in range(600)
    ]
    starts = sorted(starts, key=change)[:num_climbs]
    found = [optimize.minimize(change, start, method="Powell") for start in starts]
    return max(-result.fun for result in found)


SETS = [
    (SIGNED,),
    (COUNTS,),
    (MATRIX,),
    (UNIT_BOX,),
    (TWO_SIDED,),
    (SMALL,),
    (COUNTS, MATRIX),
    (SIGNED, COUNTS),
    (SMALL, COUNTS),
    (TWO_SIDED, MATRIX),
    (WIDE_BOX,),
    (WIDE_BOX, TWO_SIDED, UNIT_BOX),
    (SMALL, WIDE_BOX, COUNTS),
    (SYMMETRIC,),
    (SMALL, MATRIX),
    (SMALL, COUNTS, MATRIX),
    # All four geometries; where the norm allows, the box takes what the others leave.
    (SMALL, COUNTS, MATRIX, WIDE_BOX),
    (COUNT,),
    (SQUARE,),
    (UNIT,),
    (UNEVEN,),
    (COUNT, OTHER),
    (SQUARE, COUNTS),
    (SMALL, COUNT),
    (SMALL, COUNT, OTHER),
    (UNEVEN, COUNT),
    (HOLLOW,),
    (HOLLOW_BOX,),
    (HOLLOW_NUMBER,),
    (HOLLOW_BOX, SMALL),
]


@pytest.mark.thorough_with(
    "*-0.5-*",
    "*+matrix*",
    "square+*-replace_one",
    "hollow*-replace_one",
    "symmetric-1.5-replace_one",
    "wide+*-replace_one",
    "small+wide*-replace_one",
)
@pytest.mark.parametrize("relation", ["add_or_remove", "replace_one"])
@pytest.mark.parametrize("norm", [0.5, 1.5])
@pytest.mark.parametrize("blocks", SETS, ids=lambda s: "+".join(b.name for b in s))
def test_sensitivity_is_a_bound_and_is_reached(blocks, norm, relation):
    stated = mechanism(*blocks, norm=norm).sensitivity(relation)
    reached = adversarial_search(blocks, norm, relation)
    assert reached <= stated * (1 + 1e-9)
    assert reached >= 0.95 * stated


@pytest.mark.parametrize(
    ("blocks", "factor"),
    [
        ((SIGNED,), 2),
        ((COUNTS,), math.sqrt(2)),
        ((MATRIX, COUNTS), math.sqrt(2)),
        ((COUNT,), 1),
        ((SQUARE,), 1),
        ((COUNT, SQUARE), math.sqrt(2)),
        ((COUNT, SIGNED), 2),
    ],
)
def test_replacing_a_row_by_geometry(blocks, factor):
    assert mechanism(*blocks, norm=3.0).sensitivity("add_or_remove") == 3.0
    assert mechanism(*blocks, norm=3.0).sensitivity("replace_one") == pytest.approx(
        3 * factor
    )


@pytest.mark.parametrize(
    ("relation", "value"), [("add_or_remove", 1.5), ("replace_one", 3.0)]
)
def test_sensitivity_defaults_to_the_own_relation(relation, value):
    own = mechanism(SIGNED, relation=relation)
    assert own.sensitivity() == value
    assert own.noise_stddev == value


def test_isometric_coordinates_keep_norms_and_inner_products():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(5, 2, 3, 3))
    values = values + np.swapaxes(values, -1, -2)
    coordinates = isometric_coordinates(SYMMETRIC, values)
    assert coordinates.shape == (5, SYMMETRIC.num_coordinates) == (5, 12)
    flat = values.reshape(5, -1)
    np.testing.assert_allclose(coordinates @ coordinates.T, flat @ flat.T)


# ----------------------------------------------------------------------------------
# Noise


def draws(block, num_draws, seed=0, **options):
    own = mechanism(block, **options)
    rng = np.random.default_rng(seed)
    zero = {block.name: np.zeros(block.shape)}
    return own, np.stack(
        [own.add_noise(zero, rng)[block.name] for _ in range(num_draws)]
    )


def accepts_stddev(sample, stddev):
    """Two-sided chi-square test of the variance of a zero-mean Gaussian sample."""
    statistic = np.sum((sample / stddev) ** 2)
    tail = stats.chi2(sample.size).cdf(statistic)
    return 1e-3 < tail < 1 - 1e-3


@pytest.mark.parametrize("relation", ["add_or_remove", "replace_one"])
def test_noise_has_the_stated_scale_and_no_other(relation):
    own, noise = draws(COUNTS, 3000, norm=1.5, noise=0.7, relation=relation)
    factor = 1.0 if relation == "add_or_remove" else math.sqrt(2)
    stddev = 0.7 * 1.5 * factor / COUNTS.scale
    assert own.block_noise_stddev("counts") == pytest.approx(stddev)
    assert accepts_stddev(noise, stddev)
    assert not accepts_stddev(noise, 0.95 * stddev)
    assert not accepts_stddev(noise, 1.05 * stddev)
    assert stats.kstest(noise.ravel() / stddev, "norm").pvalue > 1e-3


def test_symmetric_noise_is_isotropic_in_isometric_coordinates():
    own, noise = draws(SYMMETRIC, 4000, norm=2.0, noise=1.5)
    np.testing.assert_array_equal(noise, np.swapaxes(noise, -1, -2))
    coordinates = isometric_coordinates(SYMMETRIC, noise)
    covariance = coordinates.T @ coordinates / len(coordinates) / own.noise_stddev**2
    np.testing.assert_allclose(
        covariance, np.eye(SYMMETRIC.num_coordinates), atol=5 * math.sqrt(2 / 4000)
    )
    off_diagonal = noise[:, :, 0, 1]
    assert accepts_stddev(off_diagonal, own.noise_stddev / math.sqrt(2))


def test_a_hollow_matrix_has_no_noise_on_its_diagonal():
    own, noise = draws(HOLLOW, 3000, norm=2.0, noise=1.5)
    np.testing.assert_array_equal(noise, np.swapaxes(noise, -1, -2))
    np.testing.assert_array_equal(noise[:, range(3), range(3)], np.zeros((3000, 3)))
    coordinates = isometric_coordinates(HOLLOW, noise)
    assert coordinates.shape == (3000, HOLLOW.num_coordinates) == (3000, 3)
    assert accepts_stddev(coordinates, own.noise_stddev)
    assert accepts_stddev(noise[:, 0, 1], own.noise_stddev / math.sqrt(2))


def test_noise_is_added_to_the_sum_and_independent_between_blocks():
    own = mechanism(SIGNED, COUNTS, noise=0.1)
    sums = {"signed": np.array([1.0, -2.0, 3.0]), "counts": np.full((2, 2), 50.0)}
    rng = np.random.default_rng(1)
    samples = [own.add_noise(sums, rng) for _ in range(2000)]
    signed = np.stack([sample["signed"] for sample in samples])
    counts = np.stack([sample["counts"] for sample in samples])
    assert signed.dtype == counts.dtype == np.float64
    error = own.block_noise_stddev("signed") * 4 / math.sqrt(2000)
    np.testing.assert_allclose(signed.mean(0), sums["signed"], atol=error)
    correlation = np.corrcoef(signed[:, 0], counts[:, 0, 0])[0, 1]
    assert abs(correlation) < 4 / math.sqrt(2000)


def test_no_noise_returns_the_sums():
    own = mechanism(SIGNED, norm=math.inf, noise=0.0)
    sums = {"signed": np.array([1.0, 2.0, 3.0], dtype=np.float32)}
    got = own.add_noise(sums, np.random.default_rng(0))["signed"]
    np.testing.assert_array_equal(got, sums["signed"])
    assert own.noise_stddev == 0.0
    assert own.sensitivity("replace_one") == math.inf


def test_batched_symmetric_sums_take_their_own_noise():
    own, noise = draws(SYMMETRIC, 500)
    first, second = noise[:, 0, 0, 0], noise[:, 1, 0, 0]
    assert abs(np.corrcoef(first, second)[0, 1]) < 4 / math.sqrt(500)
    assert accepts_stddev(np.stack([first, second]), own.noise_stddev)


# ----------------------------------------------------------------------------------
# Scales


@pytest.mark.parametrize("relation", ["add_or_remove", "replace_one"])
def test_optimal_scales_minimise_the_total_squared_noise(relation):
    blocks = (SIGNED, COUNTS, MATRIX)
    bounds = {"signed": 0.4, "counts": 2.0, "matrix": 1.0}
    weights = {"signed": 1.0, "counts": 3.0, "matrix": 0.5}

    def total_error(logs):
        squared_norm = error = 0.0
        for block, log in zip(blocks, logs, strict=True):
            kind = 1.0
            if relation == "replace_one":
                kind = 4.0 if block.geometry == "signed" else 2.0
            squared_norm += kind * (math.exp(log) * bounds[block.name]) ** 2
            error += weights[block.name] * block.num_coordinates * math.exp(-2 * log)
        return squared_norm * error

    scales = optimal_scales(blocks, bounds, relation=relation, weights=weights)
    found = optimize.minimize(total_error, np.zeros(3), method="Nelder-Mead")
    ours = total_error([math.log(scales[block.name]) for block in blocks])
    assert ours <= found.fun * (1 + 1e-9)
    squares = [(scales[name] * bounds[name]) ** 2 for name in scales]
    assert sum(squares) == pytest.approx(1)


def test_optimal_scales_beat_separate_releases():
    """The joint optimum is (Σ B√n)², against k·Σ B²n for an equal split of noise."""
    blocks = (SIGNED, COUNTS)
    bounds = {"signed": 0.1, "counts": 5.0}
    scales = optimal_scales(blocks, bounds)
    error = sum(block.num_coordinates / scales[block.name] ** 2 for block in blocks)
    joint = (0.1 * math.sqrt(3) + 5.0 * 2) ** 2
    assert error == pytest.approx(joint)
    assert joint < 2 * (0.1**2 * 3 + 5.0**2 * 4)


# ----------------------------------------------------------------------------------
# Bad arguments


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scale": 0.0}, "scale"),
        ({"scale": math.inf}, "scale"),
        ({"scale": math.nan}, "scale"),
        ({"scale": 1e-170}, "scale"),
        ({"norm_bound": math.nan}, "norm_bound"),
        ({"geometry": "box", "lower": math.nan, "upper": 1.0}, "lower <= upper"),
        ({"geometry": "round"}, "geometry"),
        ({"symmetric": True}, "two equal axes"),
        ({"geometry": "psd", "shape": (2, 2)}, "symmetric=True"),
        ({"hollow": True}, "symmetric=True"),
        (
            {"hollow": True, "symmetric": True, "geometry": "psd", "shape": (2, 2)},
            "hollow=True",
        ),
        ({"geometry": "box"}, "lower <= upper"),
        ({"geometry": "box", "lower": 1.0, "upper": 0.0}, "lower <= upper"),
    ],
)
def test_blocks_check_themselves(fields, message):
    with pytest.raises(ValueError, match=message):
        Block(**{"name": "block", "shape": (3,), **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm": 0.0}, "clipping_norm"),
        ({"norm": math.inf}, "finite clipping_norm"),
        ({"noise": -1.0}, "noise_multiplier"),
        ({"noise": math.inf}, "noise_multiplier"),
        ({"noise": math.nan}, "noise_multiplier"),
        ({"norm": math.nan}, "clipping_norm"),
        # Their squares are zero or infinite, and so was the noise.
        ({"norm": 1e-200}, "clipping_norm"),
        ({"norm": 1e200}, "clipping_norm"),
        ({"relation": "both"}, "relation"),
    ],
)
def test_mechanisms_check_themselves(fields, message):
    with pytest.raises(ValueError, match=message):
        mechanism(SIGNED, **fields)
    with pytest.raises(ValueError, match="at least one block"):
        mechanism()
    with pytest.raises(ValueError, match="distinct names"):
        mechanism(SIGNED, SIGNED)


@pytest.mark.parametrize(
    "fields",
    [
        {"norm_bound": 1e-200},
        {"geometry": "box", "lower": 0.0, "upper": 1e-200},
        {"geometry": "box", "lower": 0.0, "upper": 0.0},
    ],
)
@pytest.mark.parametrize("relation", ["add_or_remove", "replace_one"])
def test_noise_does_not_underflow(fields, relation):
    block = Block(**{"name": "small", "shape": (3,), **fields})
    with pytest.raises(ValueError, match="sensitivity"):
        mechanism(block, relation=relation)
    assert mechanism(block, relation=relation, noise=0.0).noise_stddev == 0


@pytest.mark.parametrize(
    "sums",
    [{}, {"other": np.zeros(3)}, {"signed": np.zeros(4)}, {"signed": np.zeros((1, 3))}],
)
def test_sums_must_be_those_of_the_blocks(sums):
    with pytest.raises(ValueError, match="Expected"):
        mechanism(SIGNED).add_noise(sums, np.random.default_rng(0))


def test_coordinates_of_symmetric_blocks_count_once():
    for order, batch in itertools.product([1, 2, 5], [(), (3,)]):
        block = Block(name="m", shape=(*batch, order, order), symmetric=True)
        expected = math.prod(batch) * order * (order + 1) // 2
        assert block.num_coordinates == expected
