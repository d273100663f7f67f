"""Several processes that take each step together: threads here, and real ones."""

import concurrent.futures
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from _fits import vi_of
from _models import logistic

import numpyro_vips as nv
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.fitting import private_step
from numpyro_vips.fitting.reducers.packed_arrays import packed
from numpyro_vips.fitting.reducers.processes import ProcessReducer, share_of
from numpyro_vips.fitting.reducers.reducer import Reducer
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
X = RNG.normal(size=(1000, 3)).astype(np.float32)
Y = (X[:, 0] + RNG.logistic(size=1000) > 0).astype(np.int32)


class Exchange:
    """Threads that stand for processes."""

    def __init__(self, index: int, board: list[bytes], barrier: threading.Barrier):
        self.index, self.count = index, len(board)
        self._board, self._barrier = board, barrier

    def gather(self, message: bytes) -> list[bytes]:
        self._board[self.index] = message
        self._barrier.wait(60)
        messages = list(self._board)
        self._barrier.wait(60)
        return messages


class OneAtATime(ProcessReducer):
    """NumPyro's stack of handlers is that of the whole process."""

    lock = threading.Lock()

    def together(self, action: Callable[[], Any]) -> Any:
        def alone() -> Any:
            with self.lock:
                return action()

        return super().together(alone)


class Across:
    def __init__(self, exchange: Exchange):
        self.exchange = exchange

    def reducer(self) -> Reducer:
        return OneAtATime(self.exchange)

    def __repr__(self) -> str:
        return "Across()"


def in_each(count: int, work: Callable[[int, Across], Any]) -> list[Any]:
    """What the work returns, or raises, in each of so many threads."""
    board, barrier = [b""] * count, threading.Barrier(count)

    def caught(index: int) -> Any:
        try:
            return work(index, Across(Exchange(index, board, barrier)))
        except Exception as error:
            return error

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(caught, range(count)))


def fit(across: Any = None, *args: Any, budget: Any = None, **options: Any) -> Any:
    settings: dict[str, Any] = {"num_steps": 3, "max_batch_size": 64, **options}
    return vi_of(
        logistic,
        budget=nv.PrivacyBudget(1.0, 1e-5) if budget is None else budget,
        across=across,
        **settings,
    ).run(KEY, *(args or (X, Y)))


class Source:
    """Rows of the table; what a test is about says how they are read."""

    @property
    def row(self) -> dict[str, np.ndarray]:
        return {"X": np.empty(3, np.float32), "y": np.empty((), np.int32)}

    def __len__(self) -> int:
        return len(X)

    def scan(self, start: int, stop: int) -> Any:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings(action="ignore"):
        yield


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("number", [0, 1, 2, 5, 31, 100, 24_415])
def test_every_chunk_is_summed_by_one_process(count, number):
    shares = [share_of(index, count, number) for index in range(count)]
    assert [n for share in shares for n in share] == list(range(number))
    sizes = [len(share) for share in shares]
    assert max(sizes) - number / count <= max(1.0, number / count / 8)


@pytest.mark.quick_with("sampling2-dpvi")
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
@pytest.mark.parametrize(
    "sampling", ["full", nv.Poisson(0.3), nv.WithoutReplacement(0.3)]
)
def test_sums_before_the_noise_have_the_bits_of_one_process(
    engine, sampling, monkeypatch
):
    sums: dict[int, list[bytes]] = {}
    add_noise = GaussianMechanism.add_noise

    def watched(self, found, rng):
        sums.setdefault(threading.get_ident(), []).append(packed(found))
        return add_noise(self, found, rng)

    monkeypatch.setattr(GaussianMechanism, "add_noise", watched)
    options = {"engine": engine, "sampling": sampling, "insecure_seed": 5}
    alone = fit(**options)
    (of_one,) = sums.values()
    sums.clear()
    together = in_each(3, lambda _, across: fit(across, **options))
    # Noise is drawn once, in one process.
    (of_three,) = sums.values()
    assert of_three == of_one
    for result in together:
        found = jax.tree.leaves(result.posterior.params)
        expected = jax.tree.leaves(alone.posterior.params)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        assert "rows summed by 3 processes" in str(result.privacy)


def test_rows_are_drawn_alike_and_each_is_read_by_one_process():
    drawn: list[list[np.ndarray]] = [[], []]
    scanned: list[list[range]] = [[], []]

    class Watched(Source):
        def __init__(self, index: int):
            self.index = index

        def scan(self, start: int, stop: int) -> Any:
            scanned[self.index].append(range(start, stop))
            yield {"X": X[start:stop], "y": Y[start:stop]}

        def read(self, indices: np.ndarray) -> Any:
            drawn[self.index].append(indices)
            return {"X": X[indices], "y": Y[indices]}

    def work(index: int, across: Across) -> Any:
        rows = nv.columns(Watched(index))
        options = {"num_steps": 1, "engine": "dpvi", "clipping_norm": 1.0}
        return fit(across, *rows.values(), sampling=nv.Poisson(0.5), **options)

    for result in in_each(2, work):
        assert isinstance(result, nv.PrivateVIResult), result
    # Before the first step the same few rows are read, to compare them. One step draws
    # rows; the information after it is of all rows.
    assert len(drawn[0][0]) == 64
    np.testing.assert_array_equal(drawn[0][0], drawn[1][0])
    first, second = (np.concatenate(batches[1:]) for batches in drawn)
    assert min(len(first), len(second)) > 100
    assert not set(first) & set(second)
    ((first,), (second,)) = scanned
    assert (first.start, first.stop, second.stop) == (0, second.start, len(X))


def test_a_ledger_in_a_file_is_charged_once_and_one_in_memory_in_every_copy(tmp_path):
    path = tmp_path / "ledger.json"
    budgets = [nv.PrivacyBudget(1.0, 1e-5, path=path) for _ in range(2)]
    in_each(2, lambda index, across: fit(across, budget=budgets[index]))
    assert len(budgets[0].charges) == 1
    budgets = [nv.PrivacyBudget(1.0, 1e-5) for _ in range(2)]
    in_each(2, lambda index, across: fit(across, budget=budgets[index]))
    assert [len(budget.charges) for budget in budgets] == [1, 1]


def test_what_the_first_process_refuses_ends_all_uncharged():
    budgets = [nv.PrivacyBudget(1.0, 1e-5) for _ in range(2)]
    fit(budget=budgets[0])
    found = in_each(2, lambda index, across: fit(across, budget=budgets[index]))
    assert all(isinstance(error, nv.BudgetExceededError) for error in found), found
    assert not budgets[1].charges


def test_processes_that_round_in_different_ways_are_refused_before_the_charge():
    """A row that is left out moves others to another process, and so what they add."""

    def work(index: int, across: Across) -> Any:
        budget = nv.PrivacyBudget(1.0, 1e-5)
        with jax.enable_x64(index == 1):
            try:
                fit(across, budget=budget)
            except ValueError as error:
                return error, budget.charges
        raise AssertionError("The fit ran.")

    for error, charges in in_each(2, work):
        assert "round numbers alike" in str(error)
        assert charges == ()


def test_processes_that_run_different_fits_are_refused_before_the_charge():
    budgets = [nv.PrivacyBudget(1.0, 1e-5) for _ in range(2)]

    def work(index: int, across: Across) -> Any:
        rows = slice(0, len(X) - index)
        return fit(across, X[rows], Y[rows], budget=budgets[index], num_rows=1000)

    for error in in_each(2, work):
        assert isinstance(error, ValueError)
        assert "every process to run the same fit" in str(error)
    assert not any(budget.charges for budget in budgets)


def scaled(factor: Any) -> nv.private:
    """A logistic regression with a number that only its program shows."""
    return nv.private(lambda X, y: of_factor(X, y, factor), unit="rows")


def of_factor(X: Any, y: Any, factor: Any) -> None:
    w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        logits = jnp.asarray(factor)[0] * (X @ w)
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def shifted_guide(shift: float) -> Callable[..., None]:
    """A guide that reads the rows, with a number that only its program shows."""

    def guide(X: Any, y: Any) -> None:
        loc = numpyro.param("loc", jnp.zeros(3))
        numpyro.sample("w", dist.Normal(loc, 0.1).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("t", dist.Normal(shift * X[:, 0], 0.1))

    return guide


def with_latents(X: Any, y: Any) -> None:
    w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        t: Any = numpyro.sample("t", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Bernoulli(logits=X @ w + jnp.sin(t)), obs=y)


def fit_of_process(what: str, index: int) -> tuple[Any, tuple[Any, ...], dict]:
    """A model, its arguments and options, one number of which is the process's own."""
    number = np.array([1.0 + 2.0**-20 * index, 3.0], np.float32)
    fitted: Any = scaled(np.ones(2, np.float32)), (X, Y), {}
    if what == "a captured array":
        fitted = scaled(number), (X, Y), {}
    elif what == "a public argument":
        model = nv.private(of_factor, unit="rows", public=("factor",))
        fitted = model, (X, Y, number), {}
    elif what == "a guide":
        engine = nv.DPVI(guide=shifted_guide(float(number[0])))
        fitted = nv.private(with_latents, unit="rows"), (X, Y), {"engine": engine}
    elif what == "a seed":
        fitted = (*fitted[:2], {"insecure_seed": index})
    return fitted


@pytest.mark.quick_with("a captured array-dpvi", "a seed-vips")
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
@pytest.mark.parametrize(
    "what", ["a captured array", "a public argument", "a guide", "a seed"]
)
def test_processes_with_other_numbers_in_their_programs_are_refused(
    what: str, engine: str
) -> None:
    """What rows that move from one process to the other contribute would change."""

    def work(index: int, across: Across) -> Any:
        model, arguments, options = fit_of_process(what, index)
        options = {"engine": engine, "num_steps": 1, "clipping_norm": 1.0, **options}
        vi = vi_of(model, across=across, **options)
        with pytest.raises(ValueError, match="every process to run the same fit"):
            vi.run(KEY, *arguments)
        return vi.budget.charges

    assert in_each(2, work) == [(), ()]


class Stream(Source):
    """Rows in an order of their own, which can be read in this order alone."""

    def __init__(self, order: np.ndarray):
        self.order = order

    def scan(self, start: int, stop: int) -> Any:
        rows = self.order[start:stop]
        yield {"X": X[rows], "y": Y[rows]}


ROWS_IN_ORDER: dict[str, Callable[[np.ndarray, Path], tuple]] = {
    "arrays": lambda order, path: (X[order], Y[order]),
    "memory maps": lambda order, path: (mapped(X[order], path), Y),
    "a stream": lambda order, path: tuple(nv.columns(Stream(order)).values()),
}


def mapped(array: np.ndarray, path: Path) -> np.ndarray:
    np.save(path, array)
    return np.load(path, mmap_mode="r")


@pytest.mark.parametrize("kind", ROWS_IN_ORDER)
def test_processes_with_other_rows_end_before_anything_is_released(
    kind: str, tmp_path: Path
) -> None:
    """As where each has shuffled them by itself: some would be summed twice."""

    def work(index: int, across: Across) -> Any:
        order = np.random.default_rng(index).permutation(len(X))
        given = ROWS_IN_ORDER[kind](order, tmp_path / f"{index}.npy")
        seen: list[int] = []
        with pytest.raises(RuntimeError, match="same rows in the same order") as raised:
            fit(across, *given, callback=lambda step, result: seen.append(step))
        assert not seen
        return str(raised.value)

    first, second = in_each(2, work)
    assert first == second and "what was charged stays charged" in first


def test_rows_are_asked_at_the_state_of_the_first_process(monkeypatch: Any) -> None:
    """Whatever the others have made of what was released, as by another optimiser."""
    states: list[list[Any]] = [[], []]
    bounded_sum = DpviEngine.bounded_sum
    index_of: dict[int, int] = {}

    def watched(self: Any, state: Any, rows: Any, mask: Any, **options: Any) -> Any:
        if np.any(mask):  # Else it is a rehearsal.
            leaf, *_ = jax.tree.leaves(state.variational)
            states[index_of[threading.get_ident()]].append(np.asarray(leaf))
        return bounded_sum(self, state, rows, mask, **options)

    monkeypatch.setattr(DpviEngine, "bounded_sum", watched)

    def in_this_thread(function: Any, values: Any, _number: int) -> Any:
        return (function(value) for value in values)

    monkeypatch.setattr(private_step, "_map_in_threads", in_this_thread)

    def work(index: int, across: Across) -> Any:
        index_of[threading.get_ident()] = index
        optimizer = optax.sgd(lambda step: 0.1 * (1 + index))
        engine = nv.DPVI(optimizer=optimizer, perturb="location")
        options = {"engine": engine, "clipping_norm": 1.0, "diagnostics": False}
        return fit(across, **options)

    results = in_each(2, work)
    assert all(isinstance(result, nv.PrivateVIResult) for result in results), results
    # The same states came in the same order, if not as often.
    first, second = (
        list(dict.fromkeys(state.tobytes() for state in of)) for of in states
    )
    assert len(first) >= 3 and first == second


@pytest.mark.parametrize("broken", [0, 1])
def test_where_one_cannot_read_its_rows_all_end(broken):
    class Broken(Source):
        def scan(self, start: int, stop: int) -> Any:
            raise OSError(f"row {X[0, 0]}")
            yield

    def work(index: int, across: Across) -> Any:
        if index == broken:
            return fit(across, *nv.columns(Broken()).values())
        return fit(across)

    for error in in_each(2, work):
        assert isinstance(error, RuntimeError)
        assert "Reading 'X', 'y' failed with OSError" in str(error)
        assert str(X[0, 0]) not in str(error)


def test_a_checkpoint_is_kept_by_the_first_and_all_go_on_from_it(tmp_path):
    class Stopped(Exception):
        pass

    def options(index: int) -> dict[str, Any]:
        budget = nv.PrivacyBudget(1.0, 1e-5, path=tmp_path / "ledger.json")
        return {"budget": budget, "checkpoint": tmp_path / "fit"}

    seen: list[list[int]] = [[], []]

    def stopped(index: int, across: Across) -> Any:
        def callback(step: int, result: Any) -> None:
            seen[index].append(step)
            if step == 1:
                raise Stopped

        return fit(across, callback=callback, **options(index))

    def goes_on(index: int, across: Across) -> Any:
        def callback(step: int, result: Any) -> None:
            seen[index].append(step)

        return fit(across, callback=callback, **options(index))

    assert all(isinstance(error, Stopped) for error in in_each(2, stopped))
    first, second = in_each(2, goes_on)
    assert seen[0] == seen[1] == list(range(seen[0][0], seen[0][-1] + 1))
    draws = (r.sample_posterior(KEY, sample_shape=(3,))["w"] for r in (first, second))
    np.testing.assert_array_equal(*draws)
    charges = nv.PrivacyBudget(1.0, 1e-5, path=tmp_path / "ledger.json").charges
    assert len(charges) == 1


@pytest.mark.parametrize("across", ["all", 2, nv.Processes])
def test_what_says_nothing_about_where_rows_are_summed_is_refused(across):
    with pytest.raises(TypeError, match=r"Expected across to be nv\.Processes\(\)"):
        fit(across)


# --- real processes -------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, warnings
import jax
index, count, address, ledger, victim = sys.argv[1:]
if int(count) > 1:
    jax.distributed.initialize(
        address, int(count), int(index), heartbeat_timeout_seconds=10
    )
warnings.simplefilter("ignore")
import numpy as np, numpyro, numpyro.distributions as dist
import numpyro_vips as nv

def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

def callback(step, result):
    if index == victim:
        os.kill(os.getpid(), signal.SIGKILL)

vi = nv.PrivateVI(
    nv.private(model, unit="rows"), budget=nv.PrivacyBudget(1.0, 1e-5, path=ledger),
    across=nv.Processes(), sampling=nv.Poisson(0.5), num_steps=3, max_batch_size=64,
    insecure_seed=1, progress_bar=False, callback=callback,
)
rows = np.linspace(-1, 1, 1000, dtype=np.float32)
if int(count) > 1:
    from jax.sharding import NamedSharding, PartitionSpec
    mesh = jax.make_mesh((int(count),), ("rows",))
    sharding = NamedSharding(mesh, PartitionSpec("rows"))
    divided = jax.make_array_from_process_local_data(sharding, rows[:500])
    try:
        vi.run(jax.random.key(0), divided)
    except TypeError as error:
        assert "divided among processes" in str(error)
result = vi.run(jax.random.key(0), rows)
draws = result.sample_posterior(jax.random.key(1), sample_shape=(3,))
print("draws", np.asarray(draws["mu"]).tobytes().hex())
"""


def started(count: int, ledger: Path, victim: int = -1) -> list[Any]:
    """Return codes and outputs of so many processes."""
    with contextlib.closing(socket.socket()) as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM]
            + [str(of) for of in (index, count, address, ledger, victim)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
        )
        for index in range(count)
    ]
    outputs = [program.communicate(timeout=200)[0] for program in programs]
    return [(p.returncode, o) for p, o in zip(programs, outputs, strict=True)]


def draws_of(output: str) -> str:
    return next(line for line in output.splitlines() if line.startswith("draws"))


@pytest.mark.thorough
def test_two_processes_of_jax_release_what_one_does(tmp_path):
    ((code, alone),) = started(1, tmp_path / "one.json")
    assert code == 0, alone
    for code, output in started(2, tmp_path / "two.json"):
        assert code == 0, output
        assert draws_of(output) == draws_of(alone)
    charges = nv.PrivacyBudget(1.0, 1e-5, path=tmp_path / "two.json").charges
    assert len(charges) == 1


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_where_one_process_is_killed_the_other_ends_and_nothing_is_charged_twice(
    victim, tmp_path
):
    found = started(2, tmp_path / "ledger.json", victim)
    code, output = found[1 - victim]
    assert found[victim][0] == -signal.SIGKILL
    assert code != 0
    # The runtime may be quicker to end what cannot go on without the first process.
    said = ("Another process of this fit has ended", "another task died")
    assert any(text in output for text in said), output
    charges = nv.PrivacyBudget(1.0, 1e-5, path=tmp_path / "ledger.json").charges
    assert len(charges) == 1
