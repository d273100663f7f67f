"""A process that goes on with one fit, in one folder after the other.

A script that reads names of folders. In each it goes on with the fit that is there and
publishes what callbacks see, until the fit is over or the folder holds `abandoned`. It
says "step" when the first new step is public, and "done" when it is through.
"""

import contextlib
import struct
import sys
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from _models import logistic

import numpyro_vips as nv

# Of a step that was published: its number, and the posterior mean of two weights.
PUBLISHED = struct.Struct("<q2d")


class AbandonedError(Exception):
    """Somebody else goes on with a copy of this fit."""


def run(folder: Path, num_steps: int, name: str = "fit", callback: Any = None) -> Any:
    """The fit, from where the checkpoint `name` of the folder leaves it."""
    X = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    vi = nv.PrivateVI(
        nv.private(logistic, unit="rows"),
        budget=nv.PrivacyBudget(1.0, 1e-5, path=folder / "ledger.json"),
        checkpoint=folder / name,
        engine="vips",
        clipping_norm=1.0,
        num_steps=num_steps,
        progress_bar=False,
        callback=callback,
    )
    with warnings.catch_warnings(action="ignore"):
        return vi.run(jax.random.key(3), X, (X[:, 0] > 0).astype(np.int32))


def published(folder: Path) -> list[tuple[int, float, float]]:
    """What callbacks have seen, in their order, but for one that was cut off."""
    path = folder / "published"
    content = path.read_bytes() if path.exists() else b""
    whole = len(content) // PUBLISHED.size * PUBLISHED.size
    return list(PUBLISHED.iter_unpack(content[:whole]))


def record(step: int, result: Any) -> bytes:
    return PUBLISHED.pack(step, *np.asarray(result.params["w/loc"], float))


def go_on(folder: Path, num_steps: int) -> None:
    """Goes on with a folder's fit; what was cut off of the last record is dropped."""
    before = b"".join(PUBLISHED.pack(*step) for step in published(folder))
    (folder / "published").write_bytes(before)
    is_first = True

    def callback(step: int, result: Any) -> None:
        nonlocal is_first
        with (folder / "published").open("ab") as file:
            file.write(record(step, result))
        if is_first:
            print("step", flush=True)
            is_first = False
        if (folder / "abandoned").exists():
            raise AbandonedError

    with contextlib.suppress(AbandonedError):
        run(folder, num_steps, callback=callback)
    print("done", flush=True)


if __name__ == "__main__":
    for line in sys.stdin:
        go_on(Path(line.strip()), int(sys.argv[1]))
