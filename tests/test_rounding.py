"""What a row can do to a sum by its size alone, and by its place among many rows.

Bounds on sensitivity hold for real numbers. Computers round, numbers may be too small
or too large for their type, and what is added last depends on what was added before.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from test_row_statistics import NAMES, setup

import numpyro_vips as nv
from numpyro_vips.gaussian_mechanism import GaussianMechanism

NORM = 0.45


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
    largest = 0.0
    for number in range(count):
        change = this.bounded_sum(rows, np.arange(count) == number, NORM)
        (norm,) = this.joint_norms({k: v[None] for k, v in change.items()})
        assert norm <= NORM
        largest = max(largest, norm)
    assert largest > 0.9 * NORM


@pytest.mark.parametrize("name", NAMES)
def test_a_row_contributes_the_same_wherever_it_stands(name: str) -> None:
    """To the last digit: how loops are cut into vectors must not show."""
    this = setup(name)
    count = 37
    rows = {k: np.repeat(array[1:2], count, axis=0) for k, array in this.rows.items()}
    places = (0, 15, 31, 35, 36)
    sums = [this.bounded_sum(rows, np.arange(count) == i, NORM) for i in places]
    for other in sums[1:]:
        for block, value in sums[0].items():
            np.testing.assert_array_equal(other[block], value)


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


def release(fn: Callable[..., None], engine: str, arguments: Any) -> None:
    nv.PrivateVI(
        nv.private(fn, unit="rows"),
        budget=nv.PrivacyBudget(1.0, 1e-6),
        engine=engine,
        num_rows=NUM_ROWS,
        num_steps=1,
        clipping_norm=1.0,
        progress_bar=False,
    ).run(jax.random.key(0), *arguments)


@pytest.mark.parametrize("case", ["VIPS", "VIPS, cancellation", "DPVI"])
def test_a_row_moves_no_sum_by_rounding(case: str, monkeypatch: Any) -> None:
    """Every row behind one that is left out has another place in the sum."""
    released: list[Mapping[str, np.ndarray]] = []
    add_noise = GaussianMechanism.add_noise

    def watched(self: Any, sums: Mapping[str, Any], rng: Any) -> Any:
        assert self.sensitivity("add_or_remove") == 1.0
        released.append(
            {block.name: np.array(sums[block.name]) for block in self.blocks}
        )
        return add_noise(self, sums, rng)

    monkeypatch.setattr(GaussianMechanism, "add_noise", watched)
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
    changes = [with_row[name] - without[name] for name in with_row]
    distance = np.sqrt(sum((change**2).sum() for change in changes))
    assert distance <= 1 + 1e-9
