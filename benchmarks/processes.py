"""One fit on several processes, each on a core of its own, against one on one core.

    python benchmarks/processes.py --rows 2000000 --processes 1 2

Logistic regression of 20 columns by VIPS, full batches, rows in memory maps that all
processes read. Printed are the seconds of the steps, how many times as fast that is as
with the first number of processes, and a digest of what was released: with the same
insecure seed it is the same for any number.
"""

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_vips as nv

COLUMNS = 20


def logistic(X, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([COLUMNS]).to_event(1))
    with numpyro.plate("people", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def write(folder: Path, rows: int) -> None:
    """Rows in memory maps, some at a time."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=COLUMNS) / 4
    X = np.lib.format.open_memmap(
        folder / "X.npy", mode="w+", dtype=np.float32, shape=(rows, COLUMNS)
    )
    y = np.lib.format.open_memmap(
        folder / "y.npy", mode="w+", dtype=np.int8, shape=(rows,)
    )
    for start in range(0, rows, 100_000):
        part = rng.normal(size=(min(100_000, rows - start), COLUMNS))
        X[start : start + len(part)] = part
        y[start : start + len(part)] = part @ weights + rng.logistic(size=len(part)) > 0


def work(folder: Path, index: int, count: int, address: str, steps: int) -> None:
    """The fit of one process; the first prints what it took."""
    if count > 1:
        jax.distributed.initialize(address, count, index)
    warnings.simplefilter("ignore")
    rows = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("X", "y"))
    vi = nv.PrivateVI(
        nv.private(logistic, unit="people"),
        budget=nv.PrivacyBudget(1.0, 1e-9),
        across=nv.Processes(),
        num_steps=steps,
        insecure_seed=0,
        progress_bar=False,
    )
    result = vi.run(jax.random.key(0), *rows)
    numbers = b"".join(
        np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(result.posterior.params)
    )
    if index == 0:
        digest = hashlib.sha256(numbers).hexdigest()[:12]
        print(json.dumps({"seconds": result.seconds["running"], "digest": digest}))


def measured(folder: Path, count: int, steps: int) -> dict:
    """Runs so many processes, each held to a core if there are enough."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    cores = sorted(os.sched_getaffinity(0))

    def started(index: int) -> subprocess.Popen:
        arguments = [str(folder), str(index), str(count), address, str(steps)]
        return subprocess.Popen(
            [sys.executable, __file__, "--work", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {cores[index % len(cores)]}),
        )

    programs = [started(index) for index in range(count)]
    outputs = [program.communicate()[0] for program in programs]
    assert not any(program.returncode for program in programs), outputs
    (line,) = (line for line in outputs[0].splitlines() if line.startswith("{"))
    return json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description="A fit on several processes.")
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--work", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        folder, index, count, address, steps = options.work
        work(Path(folder), int(index), int(count), address, int(steps))
        return
    with tempfile.TemporaryDirectory() as name:
        write(Path(name), options.rows)
        first = None
        for count in options.processes:
            found = measured(Path(name), count, options.steps)
            first = first or found["seconds"]
            print(
                f"{options.rows} rows, {count} processes: {found['seconds']:.1f} s, "
                f"{first / found['seconds']:.2f} times, released {found['digest']}",
                flush=True,
            )


if __name__ == "__main__":
    main()
