"""Fits of rows that are read where they lie: the same bits, in little memory."""

import _thread
import contextlib
import functools
import gc
import importlib
import math
import signal
import threading
import tracemalloc
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.sparse
from _fits import vi_of
from _models import logistic

import numpyro_vips as nv
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism

pytestmark = pytest.mark.usefixtures("without_remarks")

ROWS, COLUMNS = 700, 3
KEY = jax.random.key(0)


def of_batch(batch: Any) -> None:
    logistic(batch["X"], batch["y"])


def topics(counts: Any) -> None:
    ones = jnp.ones((2, counts.shape[1]))
    beta: Any = numpyro.sample("beta", dist.Dirichlet(ones).to_event(1))
    with numpyro.plate("rows", counts.shape[0]):
        theta: Any = numpyro.sample("theta", dist.Dirichlet(jnp.ones(2)))
        total = counts.sum(-1).astype(int)
        numpyro.sample("counts", dist.Multinomial(total, theta @ beta), obs=counts)


def data(rows: int = ROWS, columns: int = COLUMNS) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, columns)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    # Rows that count as zero, wherever they come from.
    X[5, 0] = np.nan
    return X, (X[:, 0] > 0).astype(np.int32)


class Rows:
    """A source in the shortest way, in parts of uneven lengths."""

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self.arrays = {"X": X, "y": y}
        self.row = {name: array[0] for name, array in self.arrays.items()}

    def __len__(self) -> int:
        return len(self.arrays["X"])

    def scan(self, start: int, stop: int) -> Iterator[dict[str, np.ndarray]]:
        length = 1
        while start < stop:
            end = min(stop, start + length)
            yield {name: array[start:end] for name, array in self.arrays.items()}
            start, length = end, length % 200 + 37

    def read(self, indices: np.ndarray) -> dict[str, np.ndarray]:
        assert np.all(np.diff(indices) > 0)
        return {name: array[indices] for name, array in self.arrays.items()}


class Stream:
    """The same without `read`."""

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        rows = Rows(X, y)
        self.row, self.scan, self.length = rows.row, rows.scan, len(rows)

    def __len__(self) -> int:
        return self.length


def fit(*args: Any, model: Any = logistic, **options: Any) -> nv.PrivateVIResult:
    rows, named = options.pop("rows", {}), options
    settings: dict[str, Any] = {"num_steps": 3, "max_batch_size": 128, **named}
    with warnings.catch_warnings(action="ignore"):
        return vi_of(
            model,
            budget=settings.pop("budget", nv.PrivacyBudget(1.0, 1e-5)),
            insecure_seed=settings.pop("insecure_seed", 3),
            **settings,
        ).run(KEY, *args, **rows)


def assert_same_bits(one: nv.PrivateVIResult, other: nv.PrivateVIResult) -> None:
    first, second = jax.tree.leaves(one.params), jax.tree.leaves(other.params)
    assert len(first) == len(second) > 0
    for mine, theirs in zip(first, second, strict=True):
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))
    assert np.all(np.isfinite(np.concatenate([np.ravel(x) for x in first])))


# --- the same released numbers --------------------------------------------------------


def memory_maps(folder: Path, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    maps = {}
    for name, array in (("X", X), ("y", y)):
        np.save(folder / f"{name}.npy", array)
        maps[name] = np.load(folder / f"{name}.npy", mmap_mode="r")
    return maps


def hdf5(folder: Path, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    file = h5py.File(folder / "rows.h5", "w")
    file.create_dataset("X", data=X, chunks=(50, X.shape[1]), compression=1)
    file.create_dataset("y", data=y)
    return {name: nv.ArrayRows(file[name]) for name in ("X", "y")}


def zarr(folder: Path, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    module = pytest.importorskip("zarr")
    rows = {}
    for name, array in (("X", X), ("y", y)):
        path = str(folder / f"{name}.zarr")
        chunks = (50, *array.shape[1:])
        made = module.create_array(
            path, shape=array.shape, dtype=array.dtype, chunks=chunks
        )
        made[:] = array
        rows[name] = nv.ArrayRows(module.open_array(path, mode="r"))
    return rows


def tensorstore(folder: Path, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    module = pytest.importorskip("tensorstore")
    zarr(folder, X, y)
    rows = {}
    for name in ("X", "y"):
        store = {"driver": "file", "path": str(folder / f"{name}.zarr")}
        opened = module.open({"driver": "zarr3", "kvstore": store})
        rows[name] = nv.ArrayRows(opened.result())
    return rows


def array_records(folder: Path, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Read by the random-access interface of Grain."""
    pytest.importorskip("array_record")
    grain = pytest.importorskip("grain")
    module = importlib.import_module("array_record.python.array_record_module")
    path = str(folder / "rows.array_record")
    writer = module.ArrayRecordWriter(path, "group_size:1")
    for x, label in zip(X, y, strict=True):
        writer.write(x.tobytes() + label.tobytes())
    writer.close()

    def decoded(record: bytes) -> dict[str, np.ndarray]:
        (label,) = np.frombuffer(record[X[0].nbytes :], y.dtype)
        return {"X": np.frombuffer(record[: X[0].nbytes], X.dtype), "y": label}

    row = {"X": X[0], "y": y[0]}
    stored = grain.sources.ArrayRecordDataSource([path])
    return dict(nv.columns(nv.RecordRows(stored, row, decode=decoded)))


def records(_: Path, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    listed = [{"X": x, "y": label} for x, label in zip(X, y, strict=True)]
    return dict(nv.columns(nv.RecordRows(listed, {"X": X[0], "y": y[0]})))


def own(_: Path, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    return dict(nv.columns(Rows(X, y)))


def half_in_memory(folder: Path, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    return {"X": memory_maps(folder, X, y)["X"], "y": jnp.asarray(y)}


def stream(_: Path, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    return dict(nv.columns(Stream(X, y)))


def parquet(folder: Path, X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = [f"x{number}" for number in range(X.shape[1])]
    table = pa.table({**dict(zip(names, X.T, strict=True)), "y": y})
    paths = [folder / "a.parquet", folder / "b.parquet"]
    for path, part in zip(paths, (table.slice(0, 300), table.slice(300)), strict=True):
        pq.write_table(part, path, row_group_size=90)
    return dict(nv.columns(nv.ParquetRows(paths, {"X": names, "y": "y"})))


ANYWHERE = [memory_maps, hdf5, records, own, half_in_memory]
# What the package's tests do not install, and are skipped without.
NOT_INSTALLED = [zarr, tensorstore, array_records]
IN_ORDER = [stream, parquet]
SAMPLINGS = [nv.FullBatch(), nv.Poisson(0.3), nv.WithoutReplacement(0.2)]


def readings() -> Iterator[Any]:
    """Sources and how their rows are drawn; streams are read from end to end.

    Engines are handed what sources gave: one of each kind will do for the second.
    """
    for sampling in SAMPLINGS:
        is_full = sampling.scheme == "full"
        for source in (*ANYWHERE, *IN_ORDER) if is_full else ANYWHERE:
            yield source, sampling, "vips"
            few = is_full and source in (memory_maps, stream)
            slow = () if few else pytest.mark.slow
            yield pytest.param(source, sampling, "dpvi", marks=slow)


@pytest.mark.quick_with("half_in_memory-sampling22-vips", "stream-sampling11-dpvi")
@pytest.mark.parametrize(("source", "sampling", "engine"), list(readings()))
def test_released_numbers_are_the_same_bits(source, sampling, engine, tmp_path):
    rows = source(tmp_path, *data())
    found = fit(rows=rows, sampling=sampling, engine=engine)
    expected = of_arrays(sampling, engine)
    assert_same_bits(found, expected)
    # Nor does the statement tell where rows lie.
    assert found.privacy.to_dict() == expected.privacy.to_dict()


@pytest.mark.thorough
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("source", NOT_INSTALLED)
def test_so_are_those_of_files_that_few_can_read(source, sampling, tmp_path):
    found = fit(rows=source(tmp_path, *data()), sampling=sampling)
    assert_same_bits(found, of_arrays(sampling, "vips"))


@functools.cache
def of_arrays(sampling: Any, engine: str) -> nv.PrivateVIResult:
    return fit(*data(), sampling=sampling, engine=engine)


@pytest.mark.thorough
def test_a_source_of_mappings_stands_for_a_dict_of_arrays():
    X, y = data()
    expected = fit({"X": X, "y": y}, model=of_batch)
    assert_same_bits(fit(Rows(X, y), model=of_batch), expected)
    plan = vi_of(of_batch).explain(Rows(X, y))
    assert plan.engine == "vips"


@pytest.mark.thorough
@pytest.mark.parametrize("sampling", [nv.FullBatch(), nv.Poisson(0.3)])
def test_rows_of_a_source_may_be_sparse(sampling, tmp_path):
    counts = counts_of_words()
    np.save(tmp_path / "counts.npy", counts)
    there = np.load(tmp_path / "counts.npy", mmap_mode="r")
    options = {"model": topics, "sampling": sampling, "max_nonzeros": 6}
    here = fit(counts, **options)
    assert_same_bits(fit(there, **options), here)
    one = here.local_posterior(counts)
    other = here.local_posterior(there)
    for mine, theirs in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("engine", "source"),
    [
        ("vips", stream),
        ("dpvi", memory_maps),
        pytest.param("vips", memory_maps, marks=pytest.mark.slow),
        pytest.param("dpvi", stream, marks=pytest.mark.slow),
    ],
)
def test_fits_without_noise_and_queries_take_sources(engine, source, tmp_path):
    X, y = data(300)
    rows = source(tmp_path, X, y)
    budget = nv.PrivacyBudget(math.inf)
    options = {"engine": engine, "insecure_seed": None, "num_steps": None}
    expected = fit(X, y, budget=budget, **options)
    found = fit(rows=rows, budget=budget, **options)
    assert_same_bits(found, expected)
    np.testing.assert_array_equal(found.elbo(**rows), found.elbo(X, y))


def counts_of_words() -> np.ndarray:
    counts = np.random.default_rng(0).poisson(0.4, (400, 12)).astype(np.float32)
    counts[3] = 0.0
    return counts


def csr_in_files(folder: Path, matrix: Any) -> Any:
    """The same matrix, its three arrays mapped into memory."""
    parts = []
    for name in ("data", "indices", "indptr"):
        np.save(folder / f"{name}.npy", getattr(matrix, name))
        parts.append(np.load(folder / f"{name}.npy", mmap_mode="r"))
    return scipy.sparse.csr_matrix(tuple(parts), shape=matrix.shape)


@pytest.mark.thorough
@pytest.mark.parametrize("sampling", [nv.FullBatch(), nv.Poisson(0.3)])
def test_a_sparse_matrix_may_lie_in_files(sampling, tmp_path):
    matrix = scipy.sparse.csr_matrix(counts_of_words())
    there = csr_in_files(tmp_path, matrix)
    options = {"model": topics, "sampling": sampling, "max_nonzeros": 6}
    assert_same_bits(fit(there, **options), fit(matrix, **options))


@pytest.mark.thorough
def seen_entries(X: Any, seen: Any) -> None:
    mean: Any = numpyro.sample("mean", dist.Normal(np.zeros(4), 1.0).to_event(1))
    with numpyro.plate("rows", X.shape[0]), numpyro.handlers.mask(mask=seen):
        numpyro.sample("x", dist.Normal(mean, 1.0).to_event(1), obs=1.0 * X)


@pytest.mark.optimized
def test_a_row_of_a_file_is_clipped_whatever_bytes_its_truth_values_are(
    tmp_path, monkeypatch
):
    """A row alone, so that the sum is what it contributes."""
    moved: list[float] = []

    def watched(self: GaussianMechanism, sums: Any, rng: Any) -> Any:
        if {block.name for block in self.blocks} >= {"⟨mean⟩"}:
            squares = [
                np.sum((block.scale * np.asarray(sums[block.name])) ** 2)
                for block in self.blocks
            ]
            moved.append(math.sqrt(sum(squares)) / self.sensitivity("add_or_remove"))
        return add_noise(self, sums, rng)

    add_noise = GaussianMechanism.add_noise
    monkeypatch.setattr(GaussianMechanism, "add_noise", watched)
    vi = vi_of(
        seen_entries,
        budget=20.0,
        engine="vips",
        num_steps=2,
        num_rows=100,
        clipping_norm=0.7,
        epsilon=1.0,
        delta=1e-7,
    )
    for bytes_of_row in ([1, 1, 0, 1, 1], [1, 1, 0, 1, 255], [2, 3, 2, 3, 253]):
        np.array(bytes_of_row, np.uint8).tofile(tmp_path / "row")
        row = np.memmap(tmp_path / "row", bool, mode="r", shape=(1, 5))
        vi.run(KEY, np.asarray(row[:, :4]), np.asarray(row[:, 4]))
        vi.run(KEY, *(np.memmap(tmp_path / "row", bool, "r", o, s) for o, s in _PARTS))
    assert len(moved) >= 6 and max(moved) <= 1.0


# Offset and shape of the arguments in that file.
_PARTS = ((0, (1, 4)), (4, (1,)))


def test_chunks_without_rows_are_no_trouble(tmp_path):
    """Where fewer rows are there than were declared."""
    counts = counts_of_words()
    np.save(tmp_path / "counts.npy", counts)
    mapped = np.load(tmp_path / "counts.npy", mmap_mode="r")
    options = {"model": topics, "num_rows": 900}
    expected = fit(counts, **options)
    for rows in (mapped, scipy.sparse.csr_matrix(counts)):
        assert_same_bits(fit(rows, **options), expected)


# --- what is refused, unpaid ----------------------------------------------------------


@pytest.mark.parametrize("sampling", [nv.Poisson(0.3), nv.WithoutReplacement(0.2)])
@pytest.mark.parametrize("source", IN_ORDER)
def test_a_stream_is_refused_where_rows_are_drawn(source, sampling, tmp_path):
    budget = nv.PrivacyBudget(1.0, 1e-5)
    rows = source(tmp_path, *data())
    with pytest.raises(TypeError, match=r"'X', 'y' come in their order.*'full'.*Zarr"):
        fit(rows=rows, sampling=sampling, budget=budget)
    assert budget.spent() == (0.0, 0.0)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda X, file: file.create_dataset("X", data=X), r"nv.ArrayRows\(X\)"),
        (lambda X, file: [{"X": x} for x in X], "nv.RecordRows"),
        (lambda X, file: nv.ArrayRows(X.astype(complex)), "complex"),
        (lambda X, file: nv.ArrayRows(X[:-1]), "X has 699, y has 700"),
        (lambda X, file: nv.ArrayRows(X.astype("S4")), "code text"),
    ],
)
def test_what_is_no_source_is_refused_with_the_remedy(make, match, tmp_path):
    X, y = data()
    budget = nv.PrivacyBudget(1.0, 1e-5)
    with (
        h5py.File(tmp_path / "rows.h5", "w") as file,
        pytest.raises((TypeError, ValueError), match=match),
    ):
        fit(make(X, file), y, budget=budget)
    assert budget.spent() == (0.0, 0.0)


def test_a_source_is_never_public():
    model = nv.private(logistic, unit="rows", public=("X",))
    vi = vi_of(model)
    X, y = data()
    with pytest.raises(TypeError, match="'X' is a source of rows"):
        vi.explain(nv.ArrayRows(X), y)


@pytest.mark.parametrize("wrap", [nv.ArrayRows, lambda X: Rows(X, X[:, 0])])
def test_a_source_that_a_model_captures_is_refused(wrap):
    X, _ = data()
    captured = wrap(X)

    def model(y: Any) -> None:
        a: Any = numpyro.sample("a", dist.Normal(0.0, 1.0))
        offset = len(captured)
        with numpyro.plate("rows", y.shape[0]):
            numpyro.sample("y", dist.Normal(a + offset, 1.0), obs=y)

    with pytest.raises(nv.UnsafeModelError, match="captured"):
        fit(X[:, 0], model=model)


# --- what goes wrong later ------------------------------------------------------------

SECRET = 271828.0
X_PART = np.zeros((3, COLUMNS), np.float32)


class Failing(Rows):
    """Fails in the third part, with a row's value in the message."""

    def __init__(self, *arrays: np.ndarray, then: Callable[[], Any]) -> None:
        super().__init__(*arrays)
        self.then = then
        self.parts = 0

    def scan(self, start: int, stop: int) -> Iterator[Any]:
        for part in super().scan(start, stop):
            self.parts += 1
            yield self.then() if self.parts == 3 else part


def raise_it() -> None:
    raise ValueError(f"Cannot read {SECRET}.")


@pytest.mark.parametrize(
    ("then", "match"),
    [
        (raise_it, "Reading 'X', 'y' failed with ValueError"),
        (lambda: {"X": np.full((2, 3), SECRET), "y": np.zeros(2)}, "another shape"),
        (lambda: {"X": np.full((2, 4), SECRET, np.float32)}, "failed with KeyError"),
        (
            lambda: {"X": X_PART, "y": np.zeros(2, np.int32)},
            "another shape",
        ),
    ],
)
def test_a_source_that_fails_quotes_nothing_and_stays_charged(then, match):
    budget = nv.PrivacyBudget(1.0, 1e-5)
    rows = nv.columns(Failing(*data(), then=then))
    with pytest.raises(RuntimeError, match=match) as caught:
        fit(rows=rows, budget=budget)
    error: BaseException | None = caught.value
    while error is not None:
        assert "271828" not in str(error)
        error = error.__cause__ or error.__context__
    assert budget.spent()[0] == pytest.approx(1.0)


class Changing(Rows):
    """Says something else of itself once it is read."""

    def __init__(self, *arrays: np.ndarray, then: Callable[[], Any]) -> None:
        self.then: Callable[[], Any] | None = None
        super().__init__(*arrays)
        self.later = then

    @property
    def row(self) -> Any:
        return self.first if self.then is None else self.then()

    @row.setter
    def row(self, first: Any) -> None:
        self.first = first

    def __len__(self) -> int:
        return super().__len__() if self.then is None else self.then()

    def scan(self, start: int, stop: int) -> Iterator[Any]:
        self.then = self.later
        return super().scan(start, stop)

    def read(self, indices: np.ndarray) -> Any:
        self.then = self.later
        return super().read(indices)


@pytest.mark.parametrize("sampling", [nv.FullBatch(), nv.Poisson(0.3)])
def test_a_source_is_asked_once_what_it_is(sampling):
    """Later on its answers may quote rows, and are not what was planned for."""
    X, y = data()
    source = Changing(X, y, then=raise_it)
    result = fit(rows=nv.columns(source), sampling=sampling)
    assert source.then is not None
    assert_same_bits(result, fit(X, y, sampling=sampling))


def test_rows_of_a_type_that_a_source_takes_on_later_are_refused():
    class Doubles(Changing):
        def scan(self, start: int, stop: int) -> Iterator[Any]:
            for part in super().scan(start, stop):
                yield {"X": np.float64(part["X"]), "y": part["y"]}

    X, y = data()
    row = {"X": np.zeros(COLUMNS), "y": np.zeros((), y.dtype)}
    with pytest.raises(RuntimeError, match="another shape, dtype or number"):
        fit(rows=nv.columns(Doubles(X, y, then=lambda: row)))


def test_columns_of_a_source_that_grows_are_those_of_the_next_fit():
    X, y = data()
    source = Rows(X[:300], y[:300])
    columns = nv.columns(source)
    fit(rows=columns)
    source.arrays = {"X": X, "y": y}
    assert_same_bits(fit(rows=columns), fit(X, y))


def test_a_source_shorter_than_it_says_is_noticed():
    class Short(Rows):
        def scan(self, start: int, stop: int) -> Iterator[Any]:
            return super().scan(start, stop - 1)

    with pytest.raises(RuntimeError, match="fewer rows than its length"):
        fit(rows=nv.columns(Short(*data())))


def reading_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if "rows ahead" in t.name]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Processes that a shell runs in the background ignore Ctrl-C."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.thorough
@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_a_step_between_chunks():
    class Interrupting(Rows):
        read_until = 0

        def scan(self, start: int, stop: int) -> Iterator[Any]:
            for begin in range(start, stop, 64):
                self.read_until = begin
                if begin == 64 * 40:
                    _thread.interrupt_main()
                yield {k: v[begin : begin + 64] for k, v in self.arrays.items()}

    source = Interrupting(*data(64 * 3000))
    budget = nv.PrivacyBudget(1.0, 1e-5)
    results = []
    with pytest.raises(KeyboardInterrupt) as caught:
        fit(
            rows=nv.columns(source),
            budget=budget,
            max_batch_size=64,
            clipping_norm=1.0,
            callback=lambda number, result: results.append(number),
        )
    assert source.read_until < 64 * 1500  # Most of the pass is left.
    assert results == []
    (note,) = caught.value.__notes__
    assert "epsilon=1" in note and "stays" in note
    assert budget.spent()[0] == pytest.approx(1.0)
    assert not reading_threads()


@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_nothing_holds_a_source_after_a_fit(engine):
    source = Rows(*data())
    reference = weakref.ref(source)
    result = fit(rows=nv.columns(source), engine=engine)
    del source
    gc.collect()
    assert reference() is None
    assert result.params


def test_no_thread_is_left_behind(tmp_path):
    X, y = data()
    fit(rows=memory_maps(tmp_path, X, y))
    with contextlib.suppress(RuntimeError):
        fit(rows=nv.columns(Failing(X, y, then=raise_it)))
    assert not reading_threads()


# --- memory ---------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.optimized
def test_memory_is_that_of_parts(tmp_path):
    """Of 64 MB of rows a few parts of 4 MB are held at a time."""
    path = tmp_path / "X.npy"
    shape = (2**18, 64)
    X = np.lib.format.open_memmap(path, "w+", np.float32, shape)
    X[:, 0] = 1.0
    y = np.zeros(len(X), np.int32)
    del X
    there = np.load(path, mmap_mode="r")
    options: dict[str, Any] = {"num_steps": 1, "max_batch_size": 4096, "engine": "dpvi"}
    fit(there, y, **options)  # Compiles.
    gc.collect()
    tracemalloc.start()
    fit(there, y, **options)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.6 * there.nbytes
