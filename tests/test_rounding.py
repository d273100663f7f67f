"""What a row can do to a sum by its size alone, and by its place among many rows.

Bounds on sensitivity hold for real numbers. Computers round, numbers may be too small
or too large for their type, and what is added last depends on what was added before.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _compiled import reads_without_memory
from _fits import fit_to, vi_of
from _setups import NAMES, Setup, setup
from _watched_sums import watched_sums

import numpyro_vips as nv
from numpyro_vips.dpvi.gradients import clipped_gradients
from numpyro_vips.fitting import private_step
from numpyro_vips.fitting.private_step import chunks_of
from numpyro_vips.fitting.step import Step
from numpyro_vips.jax_tools.row_sums import DEFAULT_CHUNK, in_pieces, rows_in
from numpyro_vips.jax_tools.separate_rows import over_rows
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism
from numpyro_vips.privacy.releases import INFORMATION, VALID_ROWS
from numpyro_vips.vips.row_sums.contributions import piece_size

pytestmark = pytest.mark.optimized

NORM = 0.45


def check_rows_are_clipped(this: Setup, rows: Mapping[str, Any], count: int) -> None:
    """Each row by itself changes the sum by the norm at most, and one by nearly it."""
    largest = 0.0
    for number in range(count):
        change = this.bounded_sum(rows, np.arange(count) == number, NORM)
        (norm,) = this.joint_norms({k: v[None] for k, v in change.items()})
        assert norm <= NORM
        largest = max(largest, norm)
    assert largest > 0.9 * NORM


@pytest.mark.quick_with(
    "gaussian*", "gamma*", "beta_bernoulli", "logistic_fixed", "linear_regression"
)
@pytest.mark.parametrize("name", NAMES)
def test_numbers_of_every_size_are_clipped(name: str) -> None:
    """Squares of small numbers must not vanish from a norm beside large ones."""
    this = setup(name)
    rng = np.random.default_rng(3)
    count = 4 * len(next(iter(this.rows.values())))
    rows = {}
    for argument, array in this.rows.items():
        plain = array[np.arange(count) % len(array)]
        if array.dtype.kind != "f":
            rows[argument] = plain
            continue
        # Of one size along a row, or of all sizes.
        of_rows = rng.uniform(-37, 37, (count, *(1,) * (array.ndim - 1)))
        of_entries = rng.uniform(-37, 37, plain.shape)
        each = rng.random(of_rows.shape)
        exponents = np.where(each < 0.5, of_rows, of_entries)
        wild = rng.choice([-1, 1], plain.shape) * 10.0**exponents
        rows[argument] = np.where(each < 0.8, wild, plain).astype(array.dtype)
    rows = {argument: jnp.asarray(array) for argument, array in rows.items()}
    check_rows_are_clipped(this, rows, count)


@pytest.mark.parametrize("name", ["linear_regression", "logistic_fixed"])
def test_all_that_rows_add_is_in_memory_before_it_is_read(name: str) -> None:
    """Else XLA works it out for the norm and for the sum, and may round in two ways."""
    this = setup(name)
    # As many as are worked on together: others are filled up, in memory too.
    rows = {k: np.resize(of, (64, *of.shape[1:])) for k, of in this.rows.items()}
    lowered = this._bounded_sum.lower(rows, np.ones(64, bool), NORM)
    assert not reads_without_memory(lowered.compile(), "rows")


def of_counts(y: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Poisson(rate), obs=y)


def of_proportions(n: Any, y: Any) -> None:
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Binomial(n, p), obs=y)


def of_integer_columns(X: Any, y: Any) -> None:
    w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(X @ w, 1.0 / jnp.sqrt(tau)), obs=y)


def of_weights(c: Any, y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)), numpyro.handlers.scale(scale=c):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def integers_of_all_sizes(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: Any
) -> np.ndarray:
    """Half of them powers of two, whose squares are zero where they overflow."""
    most = np.iinfo(dtype).max
    bits = rng.uniform(0.0, np.log2(most), shape)
    sizes = np.where(rng.random(shape) < 0.5, 2.0 ** np.floor(bits), 2.0**bits)
    found = np.minimum(sizes, float(most)).astype(np.int64)
    if np.iinfo(dtype).min < 0:
        found *= rng.choice([1, 1, 1, -1], shape)
    found = np.where(rng.random(shape) < 0.1, np.iinfo(dtype).min, found)
    return np.minimum(found, most).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32])
@pytest.mark.parametrize(
    "fn", [of_counts, of_proportions, of_integer_columns, of_weights]
)
def test_integers_of_every_size_are_clipped(fn: Any, dtype: Any) -> None:
    """Products of integers wrap around, and 65536 squared is zero in 32 bits."""
    rng, count = np.random.default_rng(5), 64
    names = list(inspect.signature(fn).parameters)
    rows = tuple(
        integers_of_all_sizes(rng, (count, 3) if name == "X" else (count,), dtype)
        for name in names
    )
    this = Setup(fn, rows)
    check_rows_are_clipped(this, this.rows, count)


def weighted_regression(c: Any, X: Any, y: Any) -> None:
    w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", len(y)), numpyro.handlers.scale(scale=c):
        numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


@pytest.mark.parametrize("size", [30, 100])
def test_products_of_numbers_of_all_sizes_are_clipped(size: int, x64: None) -> None:
    """Double precision has numbers whose squares are zero, beside large ones."""
    rng, count = np.random.default_rng(6), 64
    c, y = 10.0 ** rng.uniform(size / 2, size, (2, count))
    X = 10.0 ** rng.uniform(-1.7 * size, -size, (count, 1)) * [1.0, 0.0]
    for of in (c, X, y):
        of[::8] = 1.0
    this = Setup(weighted_regression, (c, X, y))
    check_rows_are_clipped(this, this.rows, count)


# --- a row's place --------------------------------------------------------------------

COLUMNS = 16
# Numbers that a processor may work on at once: vectors of 16, four of them unrolled.
WIDEST = 64
# Of these some rows are left over when a vector takes as many as it can.
ODD_LENGTHS = (37, 130, 1001, 4004)


@pytest.mark.quick_with("gaussian*", "mixture", "logistic_gamma", "linear_regression")
@pytest.mark.parametrize("name", NAMES)
def test_a_row_contributes_the_same_wherever_it_stands(name: str) -> None:
    """To the last digit: how loops are cut into vectors must not show."""
    this = setup(name)
    count = 37
    rows = {
        k: jnp.asarray(np.repeat(array[1:2], count, axis=0))
        for k, array in this.rows.items()
    }
    places = (0, 15, 31, 35, 36)
    sums = [this.bounded_sum(rows, np.arange(count) == i, NORM) for i in places]
    for other in sums[1:]:
        for block, value in sums[0].items():
            np.testing.assert_array_equal(other[block], value)


def heavy_tails(X: Any, y: Any) -> None:
    w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([COLUMNS]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, X @ w, 1.0), obs=y)


def linear(X: Any, y: Any) -> None:
    """Its gradient at X = 1, y = 0 is -w."""
    w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([COLUMNS]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


def one_factor(X: Any, y: Any) -> None:
    """A row's latent hears Σ X w, and tells the weights X times its mean."""
    w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([COLUMNS]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        z: Any = numpyro.sample("z", dist.Normal(y, 1.0))
        numpyro.sample("X", dist.Normal(z[:, None] * w, 1.0).to_event(1), obs=X)


PLACED = {"dpvi": heavy_tails, "vips": one_factor}


def start_of(fn: Any, engine: str, num_rows: int = 1) -> tuple[Any, Any]:
    """The engine and the state in which `release` takes its first step."""
    vi = vi_of(fn, budget=nv.PrivacyBudget(1.0, 1e-6), engine=engine, num_rows=num_rows)
    rows = np.zeros((1, COLUMNS), np.float32), np.zeros(1, np.float32)
    analysis, _ = vi._prepare_fit(rows, {})
    return analysis.engine, analysis.engine.initial_state(jax.random.key(0))


def contribution(
    start: tuple[Any, Any],
    X: Any,
    mask: Any,
    *,
    is_information: bool = False,
    is_redrawn: bool = False,
    in_coordinates: bool = False,
) -> np.ndarray:
    """What rows add, all of which have the same key where they are redrawn."""
    engine, state = start
    if in_coordinates:
        noise = np.random.default_rng(6).normal(size=(COLUMNS, COLUMNS))
        units = (np.eye(COLUMNS) + 0.1 * (noise + noise.T)).astype(np.float32)
        coordinates = state.coordinates._replace(units=units)
        state = state._replace(coordinates=coordinates)
    blocks = engine.blocks("information") if is_information else blocks_of(engine)
    sums = engine.bounded_sum(
        state,
        {"X": X, "y": np.zeros(len(X), np.float32)},
        mask,
        scales={block.name: 1.0 for block in blocks},
        clipping_norm=1.0,
        row_keys=np.full((len(X), 2), 7, np.uint32) if is_redrawn else None,
    )
    return np.concatenate([np.ravel(sums[name]) for name in sorted(sums)])


def blocks_of(engine: Any) -> Any:
    kinds = ("adaptive", "refreshed", "once")
    return tuple(block for kind in kinds for block in engine.blocks(kind))


def weights_of(engine: str, num_rows: int = 1) -> np.ndarray:
    """What the models above multiply X by in their first step."""
    if engine == "vips":
        _, state = start_of(one_factor, engine, num_rows)
        return np.ravel(state.moments["w"]["x"]).astype(np.float64)
    start = start_of(linear, engine, num_rows)
    rows = np.eye(COLUMNS, dtype=np.float32)
    return -contribution(start, rows, np.ones(COLUMNS, bool))


def cancelling_rows(weights: np.ndarray, count: int) -> np.ndarray:
    """Of X @ w only what is rounded off is left, which depends on the order."""
    rng = np.random.default_rng(5)
    X = rng.normal(0, 1e4, (count, COLUMNS)).astype(np.float32)
    column = np.argmax(np.abs(weights))
    rest = np.delete(X, column, 1) @ np.delete(weights, column)
    X[:, column] = -rest / weights[column]
    return X


ALL_LENGTHS = (*ODD_LENGTHS, 64, 320, 4096)


# A program is compiled for each length, which takes nearly all of the time. In
# `make test` two ways share the lengths.
@pytest.mark.thorough_with("*-all")
@pytest.mark.parametrize(
    ("engine", "way", "lengths"),
    [
        pytest.param("dpvi", "is_information", ALL_LENGTHS[::2], id="information"),
        pytest.param("dpvi", "is_redrawn", ALL_LENGTHS[1::2], id="redrawn"),
        pytest.param("vips", "", ALL_LENGTHS, id="vips-all"),
        *(
            pytest.param("dpvi", way, ALL_LENGTHS, id=f"dpvi-{way}-all")
            for way in (
                *("", "is_information", "is_redrawn", "in_coordinates"),
                "is_information in_coordinates",
            )
        ),
    ],
)
def test_rows_that_cancel_contribute_the_same_wherever_they_stand(
    engine: str, way: str, lengths: Sequence[int]
) -> None:
    """At odd lengths, and at lengths of passes from one piece to many."""
    start = start_of(PLACED[engine], engine)
    rows = cancelling_rows(weights_of(engine), 6)
    norms = []
    for length in lengths:
        places = sorted({0, length // 2, *(max(0, length - i) for i in (9, 5, 2, 1))})
        for row in rows:
            X = jnp.asarray(np.tile(row, (length, 1)))
            found = [
                contribution(
                    start, X, np.arange(length) == i, **dict.fromkeys(way.split(), True)
                )
                for i in places
            ]
            norms.append(np.linalg.norm(found[0]))
            for other in found[1:]:
                np.testing.assert_array_equal(other, found[0])
    assert np.median(norms) > 0.01


def after_a_step(row: Any) -> Any:
    """What is left of a row's residuals after a step of Krylov's kind."""
    left, way, before, shadow, factors = row

    def product(a: Any, b: Any) -> Any:
        return jnp.vdot(a, b, precision="highest")

    ratio = product(shadow, left)
    way = left + ratio / 0.7 * (way - 1.3 * before)
    moved = factors * way
    left = left - ratio / product(shadow, moved) * moved
    moved = factors * left
    return left - product(moved, left) / product(moved, moved) * moved


def of_last_digits(X: Any, y: Any, half: Any) -> None:
    mean: Any = numpyro.sample("mean", dist.Normal(0, 1).expand([6]).to_event(1))
    left = jax.vmap(after_a_step)(X)
    with numpyro.plate("rows", len(y)):
        distance = 1e12 * ((y - left) + half)
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=distance)


@pytest.mark.usefixtures("without_remarks")
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_the_last_rows_of_all_add_what_they_would_add_elsewhere(engine: str) -> None:
    """By rows that were made for it one of them moved a sum by three times its bound.

    Where a vector takes some numbers of each row alone, the last rows are taken by
    themselves, and XLA made one operation of other products and sums there.
    """
    rng = np.random.default_rng(0)
    mapped = jax.jit(over_rows(lambda _, row: after_a_step(row)))
    for _ in range(1000):
        row = rng.normal(size=(5, 6)).astype(np.float32)
        found = np.asarray(mapped((), np.tile(row, (256, 1, 1))))
        if not np.array_equal(found[0], found[-1]):
            break
    else:
        pytest.skip("XLA rounds the last rows as the others, on this machine.")
    y, half = np.minimum(found[0], found[-1]), np.abs(found[0] - found[-1]) / 2

    def sums(count: int) -> list[np.ndarray]:
        rows = [np.tile(array, (count, *(1,) * array.ndim)) for array in (row, y, half)]
        options: dict[str, Any] = {"num_steps": 1, "clipping_norm": 0.5}
        options |= {"diagnostics": False}
        vi = vi_of(of_last_digits, engine=engine, num_rows=256, **options)
        with watched_sums() as watched:
            vi.run(jax.random.key(0), *rows)
        return [
            np.concatenate([np.ravel(array) / sensitivity for array in found.values()])
            for sensitivity, found in watched
        ]

    for few, many in zip(sums(200), sums(256), strict=True):
        assert np.linalg.norm(many - few / 200 * 256) < 1e-6


@pytest.mark.parametrize("kind", [nv.Poisson, nv.WithoutReplacement, None])
@pytest.mark.parametrize("max_batch_size", [None, 1, 7, 100, 1001, 4004])
def test_no_pass_leaves_rows_over(kind: Any, max_batch_size: int | None) -> None:
    """At no size of a batch, whatever the length of a pass may be."""
    for size in range(1, 5001):
        num_rows = size if kind is None else 5000
        sampling = nv.FullBatch() if kind is None else kind(size / num_rows)
        step = Step(
            blocks=(),
            clipping_norm=1.0,
            noise_multiplier=1.0,
            sampling=sampling,
        )
        number, length = chunks_of(step, num_rows, max_batch_size)
        assert length % WIDEST == 0
        assert length < (max_batch_size or DEFAULT_CHUNK) + WIDEST
        assert number * rows_in(length) >= size


def test_no_piece_leaves_rows_over() -> None:
    """Nor where a row takes much memory, and few are worked on at a time."""
    for bytes_per_row in np.unique(np.geomspace(1, 2**34, 4000).astype(int)).tolist():
        size = piece_size(bytes_per_row)
        assert size == 1 or size % WIDEST == 0
        # One by one only if there is no other way.
        assert size > 1 or WIDEST * bytes_per_row > 2**28
        # The shortest may take more.
        assert size <= 2 * WIDEST or size * bytes_per_row <= 2**26
        assert size == 1 or size * bytes_per_row <= 2**29
    rows, mask = {"x": np.arange(1.0, 1001.0)}, jnp.ones(1000, bool)
    for size, shape in [(256, (5, 256)), (192, (6, 192)), (1, (1000, 1))]:
        split, present = in_pieces(rows, mask, size)
        assert split["x"].shape == present.shape == shape
        np.testing.assert_array_equal(split["x"][present], rows["x"])


def test_gradients_that_take_much_memory_are_taken_by_whole_vectors_or_one_by_one(
    monkeypatch: Any,
) -> None:
    rows = cancelling_rows(weights_of("dpvi"), 4)
    length = 130
    places = [0, *range(62, 66), *range(120, length)]
    for most in (2000, 500, 1):
        monkeypatch.setattr(clipped_gradients, "_MOST_GRADIENT_NUMBERS", most)
        start = start_of(heavy_tails, "dpvi")
        for row in rows:
            X = np.tile(row, (length, 1))
            found = [contribution(start, X, np.arange(length) == i) for i in places]
            for other in found[1:]:
                np.testing.assert_array_equal(other, found[0])


# --- many rows ------------------------------------------------------------------------

CHUNK = 4096
NUM_ROWS = 8 * CHUNK


def means(y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(a, 1.0).to_event(1), obs=y)


def offsets(o: Any, y: Any) -> None:
    """Of a row only y - o counts, of which both may be large."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        mean = jnp.asarray(a) + o
        numpyro.sample("y", dist.Normal(mean, 1.0).to_event(1), obs=y)


def groups(group: Any, y: Any) -> None:
    with numpyro.plate("group", 2):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(jnp.asarray(a)[group], 1.0), obs=y)


def halves(first: float, second: float) -> np.ndarray:
    """The same in every chunk: large numbers, and then small ones.

    A small one is a little more than half of what the sum is rounded to, in single
    precision, once the large ones are in. Without the first row the large ones are one
    fewer, the sum is rounded to half of that, and all the small ones are rounded down.
    """
    chunk = np.full(CHUNK, second, np.float32)
    chunk[: CHUNK // 2] = first
    return np.tile(chunk, NUM_ROWS // CHUNK)


def wide(numbers: np.ndarray) -> np.ndarray:
    return np.repeat(numbers[:, None], 4, axis=1)


def start_of_dpvi(released: list[Mapping[str, np.ndarray]]) -> float:
    """A row's gradient is y less this, in which only the key has a say."""
    release(groups, "dpvi", (np.zeros(1, int), np.zeros(1, np.float32)))
    return float(released.pop()["loc"][0])


def release(
    fn: Callable[..., None],
    engine: str,
    arguments: Any,
    num_rows: int = NUM_ROWS,
    max_batch_size: int | None = None,
) -> None:
    fit_to(
        fn,
        *arguments,
        budget=nv.PrivacyBudget(1.0, 1e-6),
        engine=engine,
        num_rows=num_rows,
        max_batch_size=max_batch_size,
        num_steps=1,
        clipping_norm=1.0,
        diagnostics=False,
    )


@pytest.fixture
def released(monkeypatch: Any, without_remarks: None) -> list[Mapping[str, np.ndarray]]:
    """The sums of every step before they get noise, but for information and counts."""
    found: list[Mapping[str, np.ndarray]] = []
    add_noise = GaussianMechanism.add_noise

    def watched(self: Any, sums: Mapping[str, Any], rng: Any) -> Any:
        assert self.sensitivity("add_or_remove") == pytest.approx(1.0, rel=1e-6)
        if sums.keys().isdisjoint({INFORMATION, VALID_ROWS}):
            found.append({name: np.array(value) for name, value in sums.items()})
        return add_noise(self, sums, rng)

    monkeypatch.setattr(GaussianMechanism, "add_noise", watched)
    return found


def distance(sums: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]) -> float:
    changes = [sums[name] - others[name] for name in sums]
    return float(np.sqrt(sum((change**2).sum() for change in changes)))


@pytest.mark.parametrize("engine", PLACED)
def test_a_row_moves_no_other_across_an_edge(
    engine: str, released: list[Mapping[str, np.ndarray]]
) -> None:
    """Rows that cancel move to the end of the pass before, without the first row.

    That one contributes nothing, or for VIPS very little.
    """
    passes, length = 25, 1001
    X = np.zeros((passes * length, COLUMNS), np.float32)
    X[length::length] = cancelling_rows(weights_of(engine, len(X)), passes - 1)
    arguments = X, np.zeros(len(X), np.float32)
    for some in (arguments, [array[1:] for array in arguments]):
        release(PLACED[engine], engine, some, len(X), length)
    with_row, without = released
    assert distance(with_row, without) <= 1 + 1e-9


@pytest.mark.parametrize("case", ["VIPS", "VIPS, cancellation", "DPVI"])
def test_a_row_moves_no_sum_by_rounding(
    case: str, released: list[Mapping[str, np.ndarray]]
) -> None:
    """Every row behind one that is left out has another place in the sum."""
    ulp = 2.0**-13
    if case == "VIPS":
        fn, engine = means, "vips"
        arguments = (wide(halves(0.5, 0.5 * ulp * (1 + 2.0**-6))),)
    elif case == "DPVI":
        fn, engine = groups, "dpvi"
        y = halves(1.0, ulp * (1 + 2.0**-6)) - start_of_dpvi(released)
        y[halves(1.0, 0.0) > 0] = 50.0  # Clipped.
        arguments = (np.zeros(NUM_ROWS, int), y.astype(np.float32))
    else:
        fn, engine = offsets, "vips"
        y = wide(halves(64.0, 64.0 * ulp * (1 + 2.0**-6)))
        arguments = (wide(halves(64.0, 64.0 * ulp * (1 - 2.0**-6))), y)
    for some in (arguments, [array[1:] for array in arguments]):
        release(fn, engine, some)
    with_row, without = released
    assert distance(with_row, without) <= 1 + 1e-9


def logistic(X: Any, y: Any) -> None:
    w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([COLUMNS]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


@pytest.mark.parametrize(
    ("fn", "engine", "products"),
    [
        (linear, "vips", "F32_F32_F32"),
        (logistic, "vips", "F32_F32_F32"),
        (logistic, "vips", "BF16_BF16_F32"),
        (one_factor, "vips", "F32_F32_F32"),
        # The model's own products are as the caller wants them, and no more exact than
        # rows in single precision are in any case.
        (linear, "dpvi", "F32_F32_F32"),
    ],
)
def test_sums_do_not_depend_on_how_the_caller_has_products_rounded(
    fn: Any, engine: str, products: str
) -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(-8, 9, (777, COLUMNS)).astype(np.float32)
    rows = {"X": X, "y": rng.integers(0, 2, 777).astype(np.float32)}

    def sums() -> dict[str, np.ndarray]:
        this, state = start_of(fn, engine)
        found = {}
        for kind in ("adaptive", "refreshed", "once", "information"):
            scales = {block.name: 0.3 for block in this.blocks(kind)}
            if scales:
                found |= this.bounded_sum(
                    state, rows, np.ones(777, bool), scales=scales, clipping_norm=0.7
                )
        return found

    exact = sums()
    with jax.default_matmul_precision(products):
        found = sums()
    assert found.keys() == exact.keys() and exact
    for name, value in exact.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("ulp", [2.0**-42, 2.0**-43])
def test_a_row_moves_no_sum_by_rounding_where_large_numbers_cancel(
    ulp: float, released: list[Mapping[str, np.ndarray]]
) -> None:
    """The same of sums in double precision: were they summed apart, those of y would
    round up, and those of o down.

    The row that is left out contributes nothing, and the others next to nothing.
    """
    first = 2.0**20
    arguments = (
        wide(halves(first, first * ulp * (1 - 2.0**-6))),
        wide(halves(first, first * ulp * (1 + 2.0**-6))),
    )
    for some in (arguments, [array[1:] for array in arguments]):
        release(offsets, "vips", some)
    with_row, without = released
    assert distance(with_row, without) <= 1e-9


def released_bits(
    engine: str, monkeypatch: Any, settings: Sequence[tuple[int, int]]
) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Sums and what is released of them, of the same fit in several settings.

    Args:
      settings: How many threads, and how many rows in a chunk at most.
    """
    found: list[tuple[list[np.ndarray], list[np.ndarray]]] = []
    add_noise = GaussianMechanism.add_noise

    def watched(self: Any, sums: Mapping[str, Any], rng: Any) -> Any:
        noisy = add_noise(self, sums, rng)
        for seen, of in zip(found[-1], (sums, noisy), strict=True):
            seen += [np.array(x) for x in of.values()]
        return noisy

    monkeypatch.setattr(GaussianMechanism, "add_noise", watched)
    y = np.random.default_rng(0).normal(size=(640, 4)).astype(np.float32)
    for workers, rows in settings:
        monkeypatch.setattr(private_step, "MAX_WORKERS", workers)
        found.append(([], []))
        vi = vi_of(
            means,
            budget=nv.PrivacyBudget(1.0, 1e-6),
            engine=engine,
            max_batch_size=rows,
            num_steps=3,
            insecure_seed=1,
        )
        with pytest.warns(UserWarning, match="insecure_seed"):
            vi.run(jax.random.key(0), y)
    return found


@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_threads_change_no_bit_of_what_is_released(
    engine: str, monkeypatch: Any
) -> None:
    """Not of the sums of ten passes, and not of the noise."""
    settings = [(1, 64), (2, 64), (4, 64)]
    first, *others = released_bits(engine, monkeypatch, settings)
    assert len(first[0]) >= 3
    for other in others:
        for mine, theirs in zip(first[0] + first[1], other[0] + other[1], strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.thorough
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_chunks_of_other_lengths_release_the_same_numbers(
    engine: str, monkeypatch: Any
) -> None:
    """Sums may differ in their last bits, which the grid of the releases hides.

    It does not where a sum lies next to the middle between two points of it.
    """
    settings = [(2, 64), (2, 100), (2, 640)]
    first, *others = released_bits(engine, monkeypatch, settings)
    for other in others:
        for mine, theirs in zip(first[1], other[1], strict=True):
            np.testing.assert_array_equal(mine, theirs)
