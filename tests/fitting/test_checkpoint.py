"""Fits that go on after an interruption: no step is lost, and none released twice."""

import json
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _interrupted_fit
import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from _models import logistic

import numpyro_vips as nv
from numpyro_vips.fitting import checkpoint as checkpoints
from numpyro_vips.fitting.checkpoint import Checkpoint, opened_checkpoint
from numpyro_vips.fitting.pricing import PricedSteps
from numpyro_vips.fitting.step import Step, events_of
from numpyro_vips.model import arguments
from numpyro_vips.privacy.gaussian_mechanism import Block

KEY = jax.random.key(3)


class Stopped(Exception):
    pass


def data() -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    return X, (X[:, 0] > 0).astype(np.int32)


def ledger(folder: Path) -> nv.PrivacyBudget:
    return nv.PrivacyBudget(1.0, 1e-5, path=folder / "ledger.json")


def run(
    folder: Path,
    *,
    model: Callable[..., None] = logistic,
    key: Any = KEY,
    name: str = "fit",
    **options: Any,
) -> Any:
    settings: dict[str, Any] = {"num_steps": 5, "budget": ledger(folder), **options}
    with warnings.catch_warnings(action="ignore"):
        return vi_of(model, checkpoint=folder / name, **settings).run(key, *data())


def centred_at(centre: float) -> Callable[..., None]:
    array = np.full(3, centre, np.float32)

    def model(X: Any, y: Any) -> None:
        w: Any = numpyro.sample("w", dist.Normal(array, 1.0).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    return model


def stopping_after(number: int, then: Callable[[], Any] | None = None) -> Any:
    seen: dict[int, Any] = {}

    def callback(t: int, result: Any) -> None:
        seen[t] = jax.tree.map(np.asarray, result.params)
        if t == number:
            if then is not None:
                then()
            raise Stopped

    return callback, seen


def assert_same(one: Any, other: Any) -> None:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


OPTIONS = [
    {"engine": "vips"},
    {"engine": "dpvi"},
    {"engine": "dpvi", "sampling": nv.Poisson(0.3)},
]


@pytest.mark.quick_with("options2")
@pytest.mark.parametrize("options", OPTIONS)
def test_a_fit_goes_on_where_it_was_stopped(options, tmp_path, monkeypatch):
    callback, before = stopping_after(2)
    with pytest.raises(Stopped):
        run(tmp_path, callback=callback, **options)
    after: dict[int, Any] = {}
    result = run(tmp_path, callback=lambda t, r: after.update({t: r.params}), **options)
    assert max(before) == 2
    assert sorted(after) == list(range(3, max(after) + 1))
    assert_same(after[max(after)], result.params)
    assert len(ledger(tmp_path).charges) == 1
    assert ledger(tmp_path).spent().epsilon == pytest.approx(1.0, rel=1e-3)

    # What is finished is told again, and no row is read for it.
    def fail(*_: Any) -> Any:
        raise AssertionError("rows were read")

    monkeypatch.setattr(arguments, "row_chunks", fail)
    again = run(tmp_path, **options)
    assert_same(again.params, result.params)
    assert again.privacy.to_dict() == result.privacy.to_dict()
    assert len(ledger(tmp_path).charges) == 1


@pytest.mark.quick_with("options1-another fit")
@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"num_steps": 6}, "another fit"),
        ({"key": jax.random.key(4)}, "another fit"),
        ({"engine": "dpvi"}, "another fit"),
        ({"num_rows": 400}, "another fit"),
    ],
)
def test_another_fit_does_not_go_on_with_it(options, match, tmp_path):
    callback, _ = stopping_after(1)
    with pytest.raises(Stopped):
        run(tmp_path, callback=callback)
    before = (tmp_path / "fit").read_bytes()
    with pytest.raises(ValueError, match=match):
        run(tmp_path, **options)
    assert (tmp_path / "fit").read_bytes() == before
    assert len(ledger(tmp_path).charges) == 1


def test_a_fit_with_another_number_in_its_model_does_not_go_on(tmp_path):
    """What one has released would be read as if the other had asked for it."""
    callback, _ = stopping_after(1)
    with pytest.raises(Stopped):
        run(tmp_path, model=centred_at(0.0), callback=callback)
    with pytest.raises(ValueError, match="another fit"):
        run(tmp_path, model=centred_at(5.0))
    run(tmp_path, model=centred_at(0.0))
    assert len(ledger(tmp_path).charges) == 1


@pytest.mark.parametrize(
    ("written", "named"), [("0.0.9", "numpyro_vips 0.0.9"), (None, "an older")]
)
def test_another_version_does_not_go_on(written, named, tmp_path):
    """It may have steps of the same price, and read what they released otherwise."""
    callback, _ = stopping_after(1)
    with pytest.raises(Stopped):
        run(tmp_path, callback=callback)
    header, steps = (tmp_path / "fit").read_bytes().split(b"\n", 1)
    record = json.loads(header)
    assert record.pop("version")
    if written is not None:
        record["version"] = written
    (tmp_path / "fit").write_bytes(json.dumps(record).encode() + b"\n" + steps)
    with pytest.raises(ValueError, match=f"begun by .*{named}.*Go on with that"):
        run(tmp_path)
    assert len(ledger(tmp_path).charges) == 1


def test_an_older_copy_is_refused(tmp_path):
    def copy() -> None:
        shutil.copy(tmp_path / "fit", tmp_path / "copy")

    callback, _ = stopping_after(1, then=copy)
    with pytest.raises(Stopped):
        run(tmp_path, callback=callback)
    # As new as the fit itself, so it may go on in its place.
    callback, _ = stopping_after(2)
    with pytest.raises(Stopped):
        run(tmp_path, name="copy", callback=callback)
    with pytest.raises(ValueError, match="older copy"):
        run(tmp_path)
    run(tmp_path, name="copy")
    assert len(ledger(tmp_path).charges) == 1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"insecure_seed": 1}, "same noise again"),
        ({"budget": nv.PrivacyBudget(1.0, 1e-5)}, "a ledger that is a file"),
        ({"budget": nv.PrivacyBudget(float("inf"))}, "a private fit"),
    ],
)
def test_fits_that_cannot_go_on_are_refused(options, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        run(tmp_path, **options)
    assert not (tmp_path / "fit").exists()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("notes", "something else"),
        ('{"format": "diagnoses"}\n', "something else"),
        ('{"format": "numpyro_vips checkpoint 2"}\n', "'numpyro_vips checkpoint 2'"),
    ],
)
def test_a_file_of_something_else_is_left_alone(content, what, tmp_path):
    (tmp_path / "fit").write_text(content)
    with pytest.raises(ValueError, match=f"to be a checkpoint.*checkpoint 1'.*{what}"):
        run(tmp_path)
    assert (tmp_path / "fit").read_text() == content
    assert not ledger(tmp_path).charges


# --- the file by itself ---------------------------------------------------------------

STEPS = (
    Step(
        blocks=(Block(name="⟨x⟩", shape=(3,)),),
        clipping_norm=1.0,
        noise_multiplier=5_000.0,
        sampling=nv.FullBatch(),
    ),
) * 2_000  # More than the kills of a test leave time for, on any machine.
PRICED = PricedSteps(steps=STEPS, epsilon=0.5, delta=1e-6)


def fresh(step: int) -> dict[str, np.ndarray]:
    """What a step releases: other numbers each time, which name the step."""
    return {"⟨x⟩": np.array([step, *np.frombuffer(os.urandom(16), np.uint64)], float)}


def begun(folder: Path, checkpoint: Checkpoint) -> None:
    if checkpoint.priced is None:
        checkpoint.begin(PRICED)
        ledger(folder).charge(
            epsilon=0.5,
            delta=1e-6,
            unit="rows",
            relation="add_or_remove",
            events=events_of(STEPS),
            in_steps=checkpoint.name,
        )


def test_a_step_of_two_copies_is_released_by_one(tmp_path):
    budget = ledger(tmp_path)
    with opened_checkpoint(tmp_path / "fit", budget, STEPS, "about") as one:
        begun(tmp_path, one)
        one.keep(fresh(0))
        shutil.copy(tmp_path / "fit", tmp_path / "copy")
        with opened_checkpoint(tmp_path / "copy", budget, STEPS, "about") as other:
            assert len(other.released) == 1
            one.keep(fresh(1))
            with pytest.raises(RuntimeError, match="Another program has gone on"):
                other.keep(fresh(1))
        with (
            pytest.raises(ValueError, match="Another process goes on"),
            opened_checkpoint(tmp_path / "fit", budget, STEPS, "about"),
        ):
            pass


def test_what_the_ledger_has_not_counted_cannot_be_read(tmp_path, monkeypatch):
    budget = ledger(tmp_path)
    first, lost = fresh(0), fresh(1)
    with opened_checkpoint(tmp_path / "fit", budget, STEPS, "about") as checkpoint:
        begun(tmp_path, checkpoint)
        checkpoint.keep(first)
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            patch.setattr(nv.PrivacyBudget, "count_step", _stop)
            checkpoint.keep(lost)
    content = (tmp_path / "fit").read_bytes()
    for numbers in (first, lost):
        assert numbers["⟨x⟩"].tobytes() not in content
    with opened_checkpoint(tmp_path / "fit", budget, STEPS, "about") as checkpoint:
        assert_same(checkpoint.released, [first])
        second = fresh(1)
        checkpoint.keep(second)
    with opened_checkpoint(tmp_path / "fit", budget, STEPS, "about") as checkpoint:
        assert_same(checkpoint.released, [first, second])


def _readable(folder: Path) -> int:
    """How many steps somebody can read who has all files of a folder."""
    files = [path.read_bytes() for path in folder.iterdir() if path.is_file()]
    keys = {
        key.decode() for file in files for key in re.findall(rb"\b[0-9a-f]{64}", file)
    }
    with (folder / "fit").open("rb") as file:
        file.readline()
        sealed = [record.content for record in checkpoints._records(file)]

    def is_open(content: bytes, key: str) -> bool:
        try:
            checkpoints._opened(content, key)
        except ValueError:
            return False
        return True

    return sum(any(is_open(content, key) for key in keys) for content in sealed)


@pytest.mark.parametrize("operation", ["fsync", "replace"])
def test_no_file_of_any_instant_has_the_key_of_a_step_that_does_not_count(
    operation, tmp_path, monkeypatch
):
    """Of files that a process leaves that is killed, or that are copied meanwhile."""
    folder, copies = tmp_path / "fit", []
    folder.mkdir()
    operate = getattr(os, operation)

    def copying(*args: Any) -> Any:
        copies.append(tmp_path / str(len(copies)))
        shutil.copytree(folder, copies[-1])
        return operate(*args)

    with opened_checkpoint(
        folder / "fit", ledger(folder), STEPS, "about"
    ) as checkpoint:
        begun(folder, checkpoint)
        monkeypatch.setattr(os, operation, copying)
        for step in range(3):
            checkpoint.keep(fresh(step))
        ledger(folder)  # It writes the file, which then has the keys in it.
    monkeypatch.undo()
    assert copies
    for copy in copies:
        assert _readable(copy) == _steps_counted(copy)
    assert _readable(folder) == _steps_counted(folder) == 3


def _steps_counted(folder: Path) -> int:
    header = json.loads((folder / "fit").read_bytes().splitlines()[0])
    found = ledger(folder).fit_in_steps(header["name"])
    assert found is not None
    return found[1].steps


def _stop(*_: Any) -> None:
    raise Stopped


def _keep_all(folder: Path, begins: int) -> None:
    """Releases steps and publishes them, until it is killed."""
    with opened_checkpoint(
        folder / "fit", ledger(folder), STEPS, "about"
    ) as checkpoint:
        os.write(begins, b"!")
        while len(checkpoint.released) < len(STEPS):
            step = len(checkpoint.released)
            numbers = fresh(step)
            checkpoint.keep(numbers)
            with (folder / "published").open("ab") as file:  # As a callback would.
                file.write(numbers["⟨x⟩"].tobytes())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a process of its own")
@pytest.mark.filterwarnings("ignore:.*fork")
@pytest.mark.parametrize("times", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_killed_at_any_time_no_step_is_lost_or_released_twice(times, tmp_path):
    delays, longest, published = random.Random(0), 0.012, 0
    with opened_checkpoint(
        tmp_path / "fit", ledger(tmp_path), STEPS, "about"
    ) as checkpoint:
        begun(tmp_path, checkpoint)
    (tmp_path / "published").touch()
    for kills in range(times):
        ready, begins = os.pipe()
        process = os.fork()
        if process == 0:
            try:
                _keep_all(tmp_path, begins)
            finally:
                os._exit(0)
        os.close(begins)
        os.read(ready, 1)
        os.close(ready)
        time.sleep(delays.uniform(0.0, longest))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        # On a busy machine a step may take longer.
        before, published = published, len((tmp_path / "published").read_bytes())
        longest = 0.012 if published > before else 2.0 * longest
        # A copy of any instant is refused later or holds what was published.
        if kills % 10 == 0:
            shutil.copy(tmp_path / "fit", tmp_path / f"copy{kills}")
    with opened_checkpoint(
        tmp_path / "fit", ledger(tmp_path), STEPS, "about"
    ) as checkpoint:
        kept = np.array([numbers["⟨x⟩"] for numbers in checkpoint.released])
    assert 0.1 * times < len(kept) < len(STEPS)
    np.testing.assert_array_equal(kept[:, 0], np.arange(len(kept)))
    written = (tmp_path / "published").read_bytes()
    seen = np.frombuffer(written[: len(written) // 24 * 24]).reshape(-1, 3)
    # Of each step one version alone was ever seen, and it is the one that is kept.
    steps = seen[:, 0].astype(int)
    assert len(set(steps)) == len(steps)
    np.testing.assert_array_equal(seen, kept[steps])
    assert len(ledger(tmp_path).charges) == 1
    copies = sorted(tmp_path.glob("copy*[0-9]"))
    assert len(copies) == times // 10
    refused = []
    for copy in copies:
        budget = ledger(tmp_path)
        try:
            with opened_checkpoint(copy, budget, STEPS, "about") as checkpoint:
                old = [numbers["⟨x⟩"] for numbers in checkpoint.released]
                assert_same(old, list(kept))
        except ValueError as error:
            # Its last step may have been written, drawn again, and counted since.
            assert re.search("older copy|before its last step", str(error))
            refused.append(copy)
    # Steps were counted after the first one was made.
    assert tmp_path / "copy0" in refused


# --- whole fits -----------------------------------------------------------------------

FIT_STEPS = 1_000
# Seconds: a few steps, with what their callbacks take.
LONGEST_WAIT = 0.03


def _said(process: subprocess.Popen[bytes]) -> str:
    """The next word of a process, which has a minute for it."""
    assert process.stdout is not None
    assert select.select([process.stdout], [], [], 60.0)[0], "the process is stuck"
    return process.stdout.readline().decode().strip()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="stops a process")
def test_a_fit_that_is_killed_at_any_time_goes_on_as_if_it_had_not_been(tmp_path):
    """What a process leaves in files when it is killed is what is there while it is
    stopped. So one process, which has compiled the fit, stands for all: it is stopped,
    its folder is copied, and the copy is what the next one finds.
    """
    waits, times = random.Random(0), 200
    script = Path(_interrupted_fit.__file__)
    folder = tmp_path / "0"
    folder.mkdir()
    command = [sys.executable, str(script), str(FIT_STEPS)]
    tests = os.pathsep.join([str(script.parent), os.environ.get("PYTHONPATH", "")])
    copies: list[Path] = []
    counted = 0
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,  # So that all that is there has not been read.
        env={**os.environ, "PYTHONPATH": tests},
    ) as process:
        assert process.stdin is not None
        try:
            for number in range(1, times + 1):
                process.stdin.write(f"{folder}\n".encode())
                # In a step, or while it opens files and takes over released numbers.
                in_step = number == 1 or waits.random() < 0.75
                if in_step:
                    assert _said(process) == "step"
                time.sleep(waits.uniform(0.0, LONGEST_WAIT))
                process.send_signal(signal.SIGSTOP)
                found = tmp_path / str(number)
                shutil.copytree(folder, found)
                (folder / "abandoned").touch()
                process.send_signal(signal.SIGCONT)
                while _said(process) != "done":
                    assert not in_step, "it says of each folder that a step is there"
                steps = _counted(found)
                # What was seen is durable, and what is durable stays.
                seen = [step for step, *_ in _interrupted_fit.published(found)]
                assert len(seen) == len(set(seen)) and max(seen) < steps
                assert steps >= counted
                counted = steps
                if number % 10 == 1:
                    copies.append(found / "fit")
                folder = found
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()
    assert times / 2 < counted < FIT_STEPS  # Kills have hit a fit that went on.
    seen = _interrupted_fit.published(folder)
    after: list[tuple[int, float, float]] = []

    def callback(step: int, result: Any) -> None:
        values = _interrupted_fit.record(step, result)
        after.append(_interrupted_fit.PUBLISHED.unpack(values))

    result = _interrupted_fit.run(folder, FIT_STEPS, callback=callback)
    # Every step is made by one process alone.
    made = [step for step, *_ in after]
    assert made == list(range(counted, made[-1] + 1)) and made[-1] >= FIT_STEPS - 1
    assert len(ledger(folder).charges) == 1
    assert ledger(folder).spent().epsilon == pytest.approx(1.0, rel=1e-3)
    assert _counted(folder) == made[-1] + 1
    again = _interrupted_fit.run(folder, FIT_STEPS)
    assert_same(again.params, result.params)
    for number, copy in enumerate(copies):
        shutil.copy(copy, folder / f"copy{number}")
        with pytest.raises(ValueError, match="older copy"):
            _interrupted_fit.run(folder, FIT_STEPS, name=f"copy{number}")
    assert len(ledger(folder).charges) == 1


def _counted(folder: Path) -> int:
    """How many steps the ledger has counted, which the checkpoint has as well."""
    with (folder / "fit").open("rb") as file:
        header = json.loads(file.readline())
        found = ledger(folder).fit_in_steps(header["name"])
        records = len(list(checkpoints._records(file)))
    assert found is not None
    # The record of a step is written before it counts, and nobody can read it then.
    assert records - found[1].steps in (0, 1)
    return found[1].steps
