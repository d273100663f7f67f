"""The file that keeps a ledger, written so that no charge is ever lost.

Several processes may share one: whoever reads it in order to write it holds its lock.

The file is JSON, which a charge replaces. After it come lines that count the steps of
fits which may go on, each with the key by which its step is read. Such a key must not
be on the disk before the step counts, and a file that is about to replace this one is
there before it does: a process that is killed in between leaves it behind. So a line is
added where it is, in place of blanks, and counts with its last byte.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import filelock

from numpyro_vips.accounting import jsonable
from numpyro_vips.privacy.charges import Charge, FitInSteps

_FORMAT = "numpyro_vips privacy ledger 3"
# What a line that counts a step has before its key.
_BEFORE_KEY = '"key": "'
# Lines that count steps, before they become part of what they follow.
_MOST_LINES = 64
# Seconds until a file is looked at again that ends within a line.
_PAUSES = (0.001, 0.01)


@dataclasses.dataclass(frozen=True)
class LedgerFile:
    """Where a ledger is kept, and what every version of it has to agree about."""

    path: Path
    epsilon: float
    delta: float
    composition: str
    accountant: str

    def contents(self) -> tuple[tuple[Charge, ...], dict[str, FitInSteps]]:
        """What has been charged, oldest first, and fits that may go on, by their names.

        Raises:
          ValueError: The file is damaged, has another format, or is of another budget.
          OSError: It cannot be read.
        """
        with self._damage_named():
            record, lines, _ = _parts(self._text())
            body = record["ledger"]
            found_format = body["format"]
            if record["sha256"] != _checksum(body):
                raise ValueError("The checksum is another one.")
        if found_format != _FORMAT:
            raise ValueError(
                f"Expected {str(self.path)!r} in the format {_FORMAT!r}, got "
                f"{found_format!r}. Nothing was charged. Open it with the version of "
                "numpyro_vips that wrote it."
            )
        with self._damage_named():
            charges = tuple(map(Charge.from_dict, body["charges"]))
            fits = {
                name: FitInSteps(**fields)
                for name, fields in (body.get("fits", {}) | _counted(lines)).items()
            }
            found = (
                float(body["epsilon"]),
                body["delta"],
                body["composition"],
                body["accountant"],
            )
        if found != (self.epsilon, self.delta, self.composition, self.accountant):
            raise ValueError(
                f"Expected the ledger {str(self.path)!r} to have epsilon="
                f"{self.epsilon!r}, delta={self.delta!r}, composition="
                f"{self.composition!r}, accountant={self.accountant!r}; it has "
                f"{found[0]!r}, {found[1]!r}, {found[2]!r}, {found[3]!r}. "
                "Open it with its own settings, or use another file."
            )
        return charges, fits

    def _text(self) -> str:
        """All that the file holds.

        Who does not hold the lock may see a line that is just being written, and looks
        again.

        Raises:
          OSError: It cannot be read.
        """
        try:
            text = self.path.read_bytes().decode()
            for pause in _PAUSES:
                if text.endswith("\n"):
                    break
                time.sleep(pause)
                text = self.path.read_bytes().decode()
            return text
        except OSError as error:
            raise OSError(
                error.errno,
                "The privacy ledger cannot be read, and nothing was charged: "
                f"{error.strerror}. Choose another path, or restore the file from a "
                "copy",
                str(self.path),
            ) from error

    @contextlib.contextmanager
    def _damage_named(self) -> Generator[None]:
        """Says of whatever a file makes fail that the file is damaged."""
        try:
            yield
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(
                f"Expected {str(self.path)!r} to be a privacy ledger, and it is "
                "damaged or was edited. Nothing was charged. Restore it from a copy; a "
                "ledger that is lost must count as spent in full."
            ) from error

    def write(
        self, charges: tuple[Charge, ...], fits: Mapping[str, FitInSteps]
    ) -> None:
        """Replaces the file in one step that survives a crash."""
        body = jsonable(
            {
                "format": _FORMAT,
                "epsilon": self.epsilon,
                "delta": self.delta,
                "composition": self.composition,
                "accountant": self.accountant,
                "charges": charges,
                # Few ledgers have any.
                **({"fits": dict(fits)} if fits else {}),
            }
        )
        text = json.dumps({"sha256": _checksum(body), "ledger": body}, indent=1)
        replace_file(self.path, text + "\n")

    def count(self, name: str, fit: FitInSteps) -> None:
        """Notes how far a fit has come, which is on the disk when this returns.

        The key is nowhere in a file before the fit has come so far; see the module.

        Args:
          name: The fit's, of those in the file.
          fit: It, with one step more.
        """
        _, lines, cut = _parts(self._text())
        if len(lines) >= _MOST_LINES:
            self.write(*self.contents())
            cut = ""
        step = {"fit": name, **dataclasses.asdict(fit)}
        record = json.dumps({"sha256": _checksum(step), "step": step})
        line = f"{record}\n".encode()
        with self.path.open("r+b") as file:
            # What a process that was killed has left behind goes.
            end = file.seek(-len(cut.encode()), os.SEEK_END)
            file.truncate()
            # A full disk is met by blanks, since a line that it cuts off within the key
            # would take the whole ledger along.
            for content in (b" " * len(line), line):
                file.seek(end)
                file.write(content)
                file.flush()
                os.fsync(file.fileno())

    @contextlib.contextmanager
    def locked(self) -> Generator[None]:
        """Keeps other processes and threads out while the file is read and replaced.

        The lock is the operating system's, which goes with the process that holds it.

        Raises:
          OSError: The lock's file cannot be written, or there are no such locks.
        """
        lock = self._lock()
        try:
            # filelock would make the folder, of a path that may be misspelt.
            os.stat(os.path.join(self.path.parent, ""))
            lock.acquire()
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
                raise self._no_locks() from error
            raise OSError(
                error.errno,
                "The privacy ledger cannot be written, and nothing was spent: "
                f"{error.strerror}. Choose a path in a folder that exists and can be "
                "written to",
                str(self.path),
            ) from error
        try:
            yield
        finally:
            lock.release()

    def _lock(self) -> filelock.BaseFileLock:
        """A new lock each time: one that is held again lets its own thread through."""
        # Where the system has no locks, filelock takes the mere existence of a file for
        # one: a killed process would leave it locked, and whoever removes it, open.
        if not issubclass(
            filelock.FileLock, filelock.UnixFileLock | filelock.WindowsFileLock
        ):
            raise self._no_locks()
        return filelock.FileLock(
            self.path.with_name(f".{self.path.name}.lock"),
            mode=0o600,
            poll_interval=0.01,
            fallback_to_soft=False,
        )

    def _no_locks(self) -> OSError:
        return OSError(
            errno.ENOLCK,
            "The privacy ledger cannot be locked, and nothing was spent: this system "
            "or this disk has no file locks, so that two processes could spend the "
            "same budget. Choose a path on a disk that has them, or leave path= out: "
            "the ledger then belongs to one process, and counts as spent in full when "
            "it ends",
            str(self.path),
        )


def replace_file(path: Path, text: str) -> None:
    """Writes a file, or leaves it as it was: nobody sees it in between."""
    descriptor, temporary = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"
    )
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes the renaming itself durable, where folders can be opened."""
    with contextlib.suppress(PermissionError, IsADirectoryError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _parts(text: str) -> tuple[dict[str, Any], list[str], str]:
    """The ledger in a file, the lines after it, and one that was cut off.

    Raises:
      ValueError: It is no such file, or a line was cut off behind the beginning of its
        key: whether that can be read nobody knows.
    """
    record, end = json.JSONDecoder().raw_decode(text)
    *lines, cut = text[end:].split("\n")
    if _BEFORE_KEY in cut:
        raise ValueError("A line was cut off.")
    return record, [line for line in lines if line], cut


def _counted(lines: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Fits by name, as the lines have them that count their steps.

    Raises:
      ValueError, KeyError, TypeError: A line is damaged.
    """
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        record = json.loads(line)
        step = record["step"]
        if record["sha256"] != _checksum(step):
            raise ValueError("The checksum is another one.")
        found[step.pop("fit")] = step
    return found


def _checksum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
