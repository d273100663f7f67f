"""Memory and speed of fits on rows that lie in files, against arrays in memory.

    python benchmarks/row_sources.py
    python benchmarks/row_sources.py --rows 1000000 10000000 100000000 --steps 1
    python benchmarks/row_sources.py --model topics --rows 400000 --steps 1

A private logistic regression on generated rows of 20 single-precision columns, with
full batches. The file, a NumPy array, is written once into `--folder` and mapped into
memory; `--kinds` may also name `hdf5` and `parquet`. Or 50 topics of documents with 52
of 8,000 words, as a sparse matrix in memory or in memory maps. Every fit has a process
of its own, which first fits a few rows, so that nothing large is compiled later.

For each fit: seconds of a pass, rows per second, what share this is of the speed with
arrays (of at most `--memory-rows` rows), and by how much the anonymous memory of the
process (RssAnon, which the page cache is no part of) exceeded what it was before.
"warm" means that the file was read before, "cold" that its pages were dropped.
"""

import argparse
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import scipy.sparse

import numpyro_vips as nv

COLUMNS = 20
TOPICS, VOCABULARY, USED, WIDTH = 50, 8000, 52, 128
_WRITTEN = 1_000_000  # Rows that are made at a time.


def logistic(X: Any, y: Any) -> None:
    prior = dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1)
    w: Any = numpyro.sample("w", prior)
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def topics(counts: Any) -> None:
    ones = jnp.ones((TOPICS, counts.shape[1]))
    beta: Any = numpyro.sample("beta", dist.Dirichlet(ones).to_event(1))
    with numpyro.plate("rows", counts.shape[0]):
        theta: Any = numpyro.sample("theta", dist.Dirichlet(jnp.ones(TOPICS)))
        total = counts.sum(-1).astype(int)
        numpyro.sample("counts", dist.Multinomial(total, theta @ beta), obs=counts)


def documents(start: int, stop: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Entries, columns and row pointers of a sparse matrix of counts."""
    rng = np.random.default_rng(start)
    shape = (stop - start, USED)
    # One word out of each stretch of the vocabulary, so that those of a row differ.
    stretch = VOCABULARY // USED
    words = np.arange(USED) * stretch + rng.integers(0, stretch, shape)
    counts = 1.0 + rng.poisson(1.0, shape)
    pointers = np.arange(start, stop + 1) * USED
    return (
        counts.astype(np.float32).ravel(),
        words.astype(np.int32).ravel(),
        pointers.astype(np.int32),
    )


def generated(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(start)
    X = rng.standard_normal((stop - start, COLUMNS), dtype=np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    return X, (X[:, 0] > rng.standard_normal(stop - start) / 4).astype(np.int8)


def parts(rows: int) -> Iterator[tuple[int, int]]:
    for start in range(0, rows, _WRITTEN):
        yield start, min(rows, start + _WRITTEN)


def write_documents(folder: pathlib.Path, rows: int) -> list[pathlib.Path]:
    names = ("counts", "words", "pointers")
    paths = [folder / f"{name}-{rows}.npy" for name in names]
    if not all(path.exists() for path in paths):
        for path, array in zip(paths, documents(0, rows), strict=True):
            np.save(path, array)
    return paths


def write(folder: pathlib.Path, rows: int, kind: str) -> list[pathlib.Path]:
    """Writes the files of a kind unless they are there; returns their paths."""
    names = [f"X-{rows}.npy", f"y-{rows}.npy"] if kind == "memmap" else []
    paths = [folder / name for name in names or [f"{rows}.{kind}"]]
    if all(path.exists() for path in paths):
        return paths
    if kind == "memmap":
        shapes = ((rows, COLUMNS), np.float32), ((rows,), np.int8)
        made = [
            np.lib.format.open_memmap(path, "w+", dtype, shape)
            for path, (shape, dtype) in zip(paths, shapes, strict=True)
        ]
        for start, stop in parts(rows):
            made[0][start:stop], made[1][start:stop] = generated(start, stop)
        for array in made:
            array.flush()
    elif kind == "hdf5":
        with h5py.File(paths[0], "w") as file:
            X = file.create_dataset(
                "X", (rows, COLUMNS), np.float32, chunks=(16_384, COLUMNS)
            )
            y = file.create_dataset("y", (rows,), np.int8, chunks=(16_384,))
            for start, stop in parts(rows):
                X[start:stop], y[start:stop] = generated(start, stop)
    else:
        pa: Any = importlib.import_module("pyarrow")
        pq: Any = importlib.import_module("pyarrow.parquet")
        columns = [f"x{number}" for number in range(COLUMNS)]
        writer = None
        for start, stop in parts(rows):
            X, y = generated(start, stop)
            table = pa.table({**dict(zip(columns, X.T, strict=True)), "y": y})
            writer = writer or pq.ParquetWriter(paths[0], table.schema)
            writer.write_table(table)
        assert writer is not None
        writer.close()
    return paths


def matrix(entries: Any, rows: int) -> dict[str, Any]:
    shape = (rows, VOCABULARY)
    return {"counts": scipy.sparse.csr_matrix(tuple(entries), shape=shape)}


def arguments(kind: str, rows: int, paths: list[pathlib.Path]) -> dict[str, Any]:
    if kind == "arrays":
        blocks = [generated(start, stop) for start, stop in parts(rows)]
        X, y = (np.concatenate(block) for block in zip(*blocks, strict=True))
        return {"X": X, "y": y}
    if kind == "memmap":
        X, y = (np.load(path, mmap_mode="r") for path in paths)
        return {"X": X, "y": y}
    if kind == "hdf5":
        file = h5py.File(paths[0])
        return {name: nv.ArrayRows(file[name]) for name in ("X", "y")}
    columns = [f"x{number}" for number in range(COLUMNS)]
    return dict(nv.columns(nv.ParquetRows(paths, {"X": columns, "y": "y"})))


def fit(given: dict[str, Any], args: argparse.Namespace) -> Any:
    of_topics = args.model == "topics"
    vi = nv.PrivateVI(
        nv.private(topics if of_topics else logistic, unit="rows"),
        budget=nv.PrivacyBudget(1.0, 1e-9),
        engine=args.engine,
        num_steps=args.steps,
        clipping_norm=100.0 if of_topics else 1.0,
        max_nonzeros=WIDTH if of_topics else None,
        max_batch_size=args.chunk,
        progress_bar=False,
    )
    return vi.run(jax.random.key(0), **given)


def anonymous_bytes() -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(status.split("RssAnon:")[1].split()[0])


class Peak(threading.Thread):
    """The most that `of` has been since the thread began."""

    def __init__(self, of: Callable[[], int]) -> None:
        super().__init__(daemon=True)
        self.of, self.value, self.ended = of, of(), threading.Event()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            self.value = max(self.value, self.of())


def measure(kind: str, rows: int, cache: str, args: argparse.Namespace) -> dict:
    """One fit, in this process."""
    folder = pathlib.Path(args.folder)
    of_topics = args.model == "topics"
    if kind == "arrays":
        paths = []
    else:
        paths = (
            write_documents(folder, rows) if of_topics else write(folder, rows, kind)
        )
    for path in paths:
        with path.open("rb") as file:
            if cache == "cold":
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while cache == "warm" and file.read(2**24):
                pass
    few = min(rows, 2**13 if of_topics else 2**17)
    if of_topics:
        maps = [np.load(path, mmap_mode="r") for path in paths]
        given = matrix(maps or documents(0, rows), rows)
        first = matrix(documents(0, few), few)
    else:
        given = arguments(kind, rows, paths)
        first = arguments("arrays", few, [])
    warnings.simplefilter("ignore")
    fit(first, args)
    before = anonymous_bytes()
    peak = Peak(anonymous_bytes)
    peak.start()
    started = time.perf_counter()
    result = fit(given, args)
    seconds = time.perf_counter() - started
    peak.ended.set()
    passes = len(result.privacy.events)
    return {
        "seconds": seconds,
        "pass": result.seconds["running"] / passes,
        "passes": passes,
        "speed": rows * passes / result.seconds["running"],
        "anonymous": peak.value - before,
        "whole": peak.value,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 4_000_000])
    parser.add_argument("--memory-rows", type=int, default=4_000_000)
    parser.add_argument("--kinds", nargs="+", default=["memmap"])
    parser.add_argument("--caches", nargs="+", default=["warm"])
    parser.add_argument("--model", choices=["logistic", "topics"], default="logistic")
    parser.add_argument("--engine", default="vips")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--chunk", type=int, help="max_batch_size")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        kind, rows, cache = args.one
        print(json.dumps(measure(kind, int(rows), cache, args)))
        return

    def measured(kind: str, rows: int, cache: str) -> dict[str, Any]:
        command = [sys.executable, *sys.argv, "--one", kind, str(rows), cache]
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return json.loads(run.stdout)

    print("rows         kind     cache  s/pass  10⁶ rows/s  of arrays  RssAnon")
    for rows in args.rows:
        cases = [("arrays", min(rows, args.memory_rows), "")]
        cases += [(kind, rows, cache) for kind in args.kinds for cache in args.caches]
        reference = 0.0
        for kind, number, cache in cases:
            found = measured(kind, number, cache)
            reference = reference or found["speed"]
            print(
                f"{number:<12,} {kind:8} {cache:5} {found['pass']:7.2f} "
                f"{found['speed'] / 1e6:11.2f} {found['speed'] / reference:10.0%} "
                f"{found['anonymous'] / 2**20:+6.0f} MB "
                f"(of {found['whole'] / 2**20:.0f} MB)",
                flush=True,
            )


if __name__ == "__main__":
    main()
