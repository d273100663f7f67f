"""What is kept of a fit so that it can go on: the numbers that it has released.

A fit that goes on starts anew, takes the released numbers as they are, and draws rows
and noise for the steps after them only. So nothing is kept but what is public: no rows,
no sums without noise, no state of a generator.

No step may be released twice under one charge, also where somebody copies files while
the fit runs or brings back an old copy. So a step becomes public in one instant. Its
numbers are first written sealed, with a key that is in memory alone. Then a line is
added to the ledger's file, which counts the step and has the key. If the process ends
before that, nobody can read the numbers, and the step is drawn again; if it ends after
it, the step is there. A checkpoint with fewer steps than the ledger has counted is an
old copy, and is refused.

The file begins with a line of JSON about the fit. The record of a step is a line of
JSON with its length and the key of the step before, and then its numbers, sealed.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import filelock

from numpyro_vips.fitting.pricing import PricedSteps
from numpyro_vips.fitting.reducers.packed_arrays import packed, unpacked
from numpyro_vips.fitting.reducers.reducer import Reducer, Released
from numpyro_vips.fitting.step import Step, events_of
from numpyro_vips.privacy.budget import PrivacyBudget
from numpyro_vips.privacy.ledger_file import replace_file
from numpyro_vips.privacy.secure_random import fresh_key, sealed
from numpyro_vips.result_file import version

_FORMAT = "numpyro_vips checkpoint 1"


class Checkpoint:
    """The file of one fit, held by one process at a time.

    Attributes:
      priced: The steps as they were charged; None if the fit is a new one.
      released: What the steps so far have released.
    """

    def __init__(
        self, path: Path, budget: PrivacyBudget, steps: Sequence[Step], about: str
    ) -> None:
        """Reads a checkpoint, if any; `opened_checkpoint` holds its lock meanwhile.

        Args:
          path: The file.
          budget: The ledger that has paid, or is to pay.
          steps: The schedule, with noise up to a common factor.
          about: What the fit is, as text; another one does not go on with it.

        Raises:
          ValueError: The file is no checkpoint, is an older copy, or is about another
            fit or of another ledger.
        """
        self._path = path
        self._budget = budget
        self._about = hashlib.sha256(about.encode()).hexdigest()
        self.name = secrets.token_hex(16)
        self.priced: PricedSteps | None = None
        self.released: list[Released] = []
        self._last_key = ""
        self._end = 0  # Where the file's last step that counts ends.
        if path.exists():
            self._read(steps)

    def _read(self, steps: Sequence[Step]) -> None:
        """Takes over the steps that a file has, if the ledger has counted them.

        Args:
          steps: Those that the fit has planned, without noise multipliers.

        Raises:
          ValueError: The file is no checkpoint, is of another fit or version, or holds
            other steps than the ledger was charged for or has counted. Nothing was
            charged.
        """
        with self._path.open("rb") as file:
            header = _json_line(file)
            if header is None or header.get("format") != _FORMAT:
                raise ValueError(
                    f"Expected {str(self._path)!r} to be a checkpoint of a fit in the "
                    f"format {_FORMAT!r}, or not to be there; "
                    f"{_format_named(header)}. Nothing was charged."
                )
            found = self._budget.fit_in_steps(header["name"])
            records = list(_records(file))
        if found is None:
            if records:
                raise ValueError(
                    f"The ledger knows nothing of the fit in {str(self._path)!r}: open "
                    "the ledger that has paid for it. Nothing was charged."
                )
            return  # The process ended before the charge.
        begun_by = header.get("version", "an older version")
        if begun_by != version():
            raise ValueError(
                f"The fit in {str(self._path)!r} was begun by numpyro_vips {begun_by}, "
                f"and this is {version()}, which may take what it has released for "
                "something else. Nothing was charged. Go on with that version."
            )
        if header["about"] != self._about:
            raise ValueError(
                f"The checkpoint {str(self._path)!r} is of another fit: model, shapes, "
                "settings and rng_key must be the same. Nothing was charged. Take "
                "another path for a new fit."
            )
        charge, fit = found
        if len(records) < fit.steps:
            raise ValueError(
                f"The checkpoint {str(self._path)!r} has {len(records)} steps, and the "
                f"ledger has counted {fit.steps}: it is an older copy, and going on "
                "from it would release steps twice that were paid once. Nothing was "
                "charged. Take the newest copy."
            )
        multipliers = header["noise_multipliers"]
        priced = tuple(
            dataclasses.replace(step, noise_multiplier=multiplier)
            for step, multiplier in zip(steps, multipliers, strict=True)
        )
        if events_of(priced) != charge.events:
            raise ValueError(
                f"The steps in {str(self._path)!r} are not those that were charged. "
                "Nothing was charged."
            )
        self.name, self._last_key = header["name"], fit.key
        self.priced = PricedSteps(
            steps=priced, epsilon=charge.epsilon, delta=charge.delta
        )
        # A step's key is in the record after it, and that of the last in the ledger.
        keys = [record.key_before for record in records[1 : fit.steps]]
        self._end = header["end"]
        for record, key in zip(
            records[: fit.steps], [*keys, fit.key][: fit.steps], strict=True
        ):
            self.released.append(_opened(record.content, key))
            self._end = record.end

    def begin(self, priced: PricedSteps) -> None:
        """Writes the file of a new fit, before it is charged under `name`."""
        header = {
            "format": _FORMAT,
            "version": version(),
            "name": self.name,
            "about": self._about,
            "noise_multipliers": [step.noise_multiplier for step in priced.steps],
        }
        line = json.dumps(header) + "\n"
        replace_file(self._path, line)
        self._end = len(line)  # All of it is ASCII.

    def keep(self, released: Released) -> None:
        """Makes what a step has released durable and public, in one instant.

        Raises:
          RuntimeError: Another program has gone on with the fit.
        """
        key = fresh_key()
        content = sealed(_packed(released), key)
        head = {"bytes": len(content), "key_before": self._last_key}
        record = json.dumps(head).encode() + b"\n" + content
        with self._path.open("r+b") as file:
            # What a process that was killed has left behind goes.
            file.truncate(self._end)
            file.seek(self._end)
            file.write(record)
            file.flush()
            os.fsync(file.fileno())
        self._budget.count_step(self.name, len(self.released) + 1, key)
        self._end += len(record)
        self._last_key = key
        self.released.append(released)


def check_may_be_resumed(
    budget: PrivacyBudget, *, is_private: bool, is_repeatable: bool
) -> None:
    """Refuses a checkpoint of a fit that could not go on from it.

    Args:
      budget: The ledger that pays.
      is_private: Whether there is noise.
      is_repeatable: Whether the noise comes from a seed.

    Raises:
      ValueError: There is no noise, or it is repeatable, or the ledger is no file.
    """
    if not is_private:
        raise ValueError(
            "Expected checkpoint= with a private fit: what is kept is what steps "
            "have released. Run a fit without noise anew."
        )
    if is_repeatable:
        raise ValueError(
            "Expected checkpoint= without insecure_seed=: a fit that goes on would "
            "draw the same noise again."
        )
    if budget.path is None:
        raise ValueError(
            "Expected checkpoint= with a ledger that is a file, which counts the "
            "steps that were released: PrivacyBudget(..., path=...)."
        )


@contextlib.contextmanager
def opened_checkpoint(
    path: Path, budget: PrivacyBudget, steps: Sequence[Step], about: str
) -> Iterator[Checkpoint]:
    """The checkpoint of a fit, which no other process may go on with meanwhile.

    Raises:
      ValueError: As `Checkpoint`, or another process goes on with it.
    """
    lock = filelock.FileLock(
        path.with_name(f".{path.name}.lock"), timeout=0, fallback_to_soft=False
    )
    try:
        lock.acquire()
    except filelock.Timeout:
        raise ValueError(
            f"Another process goes on with the fit of {str(path)!r}. Nothing was "
            "charged."
        ) from None
    try:
        yield Checkpoint(path, budget, steps, about)
    finally:
        lock.release()


def priced_by_first(
    steps: Sequence[Step],
    reducer: Reducer,
    checkpoint: Checkpoint | None,
    price: Callable[[], PricedSteps],
) -> tuple[PricedSteps, Sequence[Released] | None]:
    """The steps at the noise that the first process has for them, in every process.

    Args:
      steps: The schedule, with noise up to a common factor.
      reducer: What the processes share.
      checkpoint: In the process that holds it, if there is one.
      price: Prices a new fit.

    Returns:
      The steps, and what those that ran before have released; None of a new fit.
    """
    released = [] if checkpoint is None else checkpoint.released

    def found() -> dict[str, Any]:
        resumed = None if checkpoint is None else checkpoint.priced
        priced = price() if resumed is None else resumed
        return {
            "noise_multipliers": [step.noise_multiplier for step in priced.steps],
            "epsilon": priced.epsilon,
            "delta": priced.delta,
            "resumed": None if resumed is None else len(released),
        }

    of_first = reducer.from_first(found)
    priced = tuple(
        dataclasses.replace(
            step, noise_multiplier=multiplier, noise_excess=reducer.noise_excess
        )
        for step, multiplier in zip(steps, of_first["noise_multipliers"], strict=True)
    )
    resumed = of_first["resumed"]
    if resumed is not None:
        resumed = [
            reducer.arrays_from_first(lambda number=number: released[number])
            for number in range(resumed)
        ]
    return PricedSteps(
        steps=priced, epsilon=of_first["epsilon"], delta=of_first["delta"]
    ), resumed


@dataclasses.dataclass(frozen=True)
class _Record:
    content: bytes
    key_before: str
    end: int


def _records(file: io.BufferedReader) -> Iterator[_Record]:
    """The records that are there as a whole; the last may be cut off."""
    while (head := _json_line(file)) is not None:
        content = file.read(head["bytes"])
        if len(content) < head["bytes"]:
            return
        yield _Record(content, head["key_before"], file.tell())


def _json_line(file: io.BufferedReader) -> dict[str, Any] | None:
    """The next line, with where it ends; None if it is cut off or no JSON."""
    line = file.readline()
    if not line.endswith(b"\n"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return {**found, "end": file.tell()} if isinstance(found, dict) else None


def _format_named(header: dict[str, Any] | None) -> str:
    """What a file that is no checkpoint is, without a value of any other file."""
    found = str((header or {}).get("format"))
    known = found.startswith(_FORMAT.rstrip("0123456789"))
    return f"its format is {found!r}" if known else "it is something else"


def _packed(released: Released) -> bytes:
    content = packed(released)
    return hashlib.sha256(content).digest() + content


def _opened(content: bytes, key: str) -> Released:
    plain = sealed(content, key)
    if hashlib.sha256(plain[32:]).digest() != plain[:32]:
        raise ValueError(
            "The checkpoint is damaged, or a copy from before its last step counted. "
            "Nothing was charged."
        )
    return unpacked(plain[32:])
