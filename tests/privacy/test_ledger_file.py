"""The ledger's file by itself: what is written is read, or is refused."""

import dataclasses
import hashlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from numpyro_vips.accounting import GaussianEvent
from numpyro_vips.privacy import ledger_file
from numpyro_vips.privacy.charges import Charge, FitInSteps
from numpyro_vips.privacy.ledger_file import LedgerFile, replace_file

EVENT = GaussianEvent(
    noise_stddev=3.0,
    sensitivity=1.5,
    sampling="poisson",
    sampling_rate=0.1,
    num_steps=7,
    relation="add_or_remove",
)


def charge(label: str, epsilon: float = 0.1) -> Charge:
    return Charge(
        label=label,
        unit="patients",
        epsilon=epsilon,
        delta=1e-7,
        relation="add_or_remove",
        accountant="pld",
        events=(EVENT,),
        time="2026-01-02T03:04:05+00:00",
    )


CHARGES = (charge("first"), charge("sécond", 0.25))
FITS = {"a": FitInSteps(charge=1, steps=4, key="ff00")}


@pytest.fixture
def ledger(tmp_path: Path) -> LedgerFile:
    return LedgerFile(tmp_path / "ledger.json", 1.0, 1e-6, "sum", "pld")


def rewritten(ledger: LedgerFile, change) -> None:
    """Changes the body of a file and puts the checksum right."""
    body = json.loads(ledger.path.read_text())["ledger"]
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    ledger.path.write_text(json.dumps({"sha256": checksum, "ledger": body}))


def test_what_is_written_is_read(ledger: LedgerFile) -> None:
    ledger.write(CHARGES, FITS)
    assert ledger.contents() == (CHARGES, FITS)
    ledger.write(CHARGES[:1], {})
    assert ledger.contents() == (CHARGES[:1], {})
    assert "fits" not in json.loads(ledger.path.read_text())["ledger"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epsilon", 2.0),
        ("delta", 1e-5),
        ("composition", "joint"),
        ("accountant", "moments"),
    ],
)
def test_another_budget_cannot_read_it(ledger: LedgerFile, name, value) -> None:
    ledger.write(CHARGES, {})
    other = dataclasses.replace(ledger, **{name: value})
    with pytest.raises(ValueError, match="Open it with its own settings") as error:
        other.contents()
    assert repr(value) in str(error.value)


def counted(ledger: LedgerFile, steps: int) -> None:
    ledger.count("a", FitInSteps(charge=1, steps=steps, key=f"{steps:064x}"))


def test_steps_are_counted_behind_what_was_charged(ledger: LedgerFile) -> None:
    ledger.write(CHARGES, FITS)
    before = ledger.path.read_bytes()
    for steps in range(5, 8):
        counted(ledger, steps)
    assert ledger.path.read_bytes().startswith(before)
    charges, fits = ledger.contents()
    assert charges == CHARGES
    assert fits == {"a": FitInSteps(charge=1, steps=7, key=f"{7:064x}")}
    ledger.write(charges, fits)
    assert ledger.contents() == (charges, fits)


def test_a_long_fit_does_not_make_the_file_long(ledger: LedgerFile) -> None:
    ledger.write(CHARGES, FITS)
    for steps in range(5, 405):
        counted(ledger, steps)
        assert ledger.contents()[1]["a"].steps == steps
    assert len(ledger.path.read_bytes().splitlines()) < 200


def test_a_line_that_was_cut_off_does_not_count(
    ledger: LedgerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its key may be readable: then nothing is known."""
    monkeypatch.setattr(ledger_file, "_PAUSES", ())
    ledger.write(CHARGES, FITS)
    counted(ledger, 5)
    content = ledger.path.read_bytes()
    counted(ledger, 6)
    whole = ledger.path.read_bytes()
    key = whole.index(b'"key": "', len(content))
    for length in range(len(content), len(whole)):
        ledger.path.write_bytes(whole[:length])
        if length < key + len('"key": "'):
            assert ledger.contents()[1]["a"].steps == 5
            counted(ledger, 6)
            assert ledger.path.read_bytes() == whole
        else:
            with pytest.raises(ValueError, match="damaged or was edited"):
                ledger.contents()


@pytest.fixture
def full_at() -> Iterator[Callable[[int], None]]:
    """Makes a disk full for files that would become longer."""
    resource = pytest.importorskip("resource", reason="there are no limits of files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda length: resource.setrlimit(resource.RLIMIT_FSIZE, (length, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_a_ledger_that_can_be_read(
    ledger: LedgerFile, full_at: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in the line the disk becomes full."""
    monkeypatch.setattr(ledger_file, "_PAUSES", ())
    ledger.write(CHARGES, FITS)
    counted(ledger, 5)
    before = len(ledger.path.read_bytes())
    counted(ledger, 6)
    for more in range(0, len(ledger.path.read_bytes()) - before, 5):
        ledger.write(CHARGES, FITS)
        counted(ledger, 5)
        full_at(len(ledger.path.read_bytes()) + more)
        with pytest.raises(OSError, match="too large"):
            counted(ledger, 6)
        full_at(-1)
        assert ledger.contents()[1]["a"].steps == 5
        assert f"{6:064x}".encode()[-8:] not in ledger.path.read_bytes()[before:]
        counted(ledger, 6)
        assert ledger.contents()[1]["a"].steps == 6


def test_a_line_that_is_being_written_is_waited_for(
    ledger: LedgerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.write(CHARGES, FITS)
    counted(ledger, 6)
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[:-3])
    monkeypatch.setattr(time, "sleep", lambda _: ledger.path.write_bytes(whole))
    assert ledger.contents()[1]["a"].steps == 6


@pytest.mark.parametrize(
    ("old", "new"), [('"steps": 6', '"steps": 5'), ('"step"', '"stop"'), ("{", "")]
)
def test_an_edited_count_is_noticed(ledger: LedgerFile, old: str, new: str) -> None:
    ledger.write(CHARGES, FITS)
    before = ledger.path.read_text()
    counted(ledger, 6)
    line = ledger.path.read_text()[len(before) :]
    assert old in line
    ledger.path.write_text(before + line.replace(old, new))
    with pytest.raises(ValueError, match="damaged or was edited"):
        ledger.contents()


@pytest.mark.parametrize("place", range(0, 200, 13))
def test_no_byte_can_be_lost(ledger: LedgerFile, place: int) -> None:
    """A charge that is left out could be spent twice."""
    ledger.write(CHARGES, FITS)
    content = ledger.path.read_bytes()
    ledger.path.write_bytes(content[: len(content) - place - 2])
    with pytest.raises(ValueError, match="damaged or was edited"):
        ledger.contents()


@pytest.mark.parametrize(
    ("old", "new"), [("0.25", "0.02"), ('"num_steps": 7', '"num_steps": 1')]
)
def test_an_edited_number_is_noticed(ledger: LedgerFile, old: str, new: str) -> None:
    ledger.write(CHARGES, {})
    text = ledger.path.read_text()
    assert old in text
    ledger.path.write_text(text.replace(old, new))
    with pytest.raises(ValueError, match="damaged or was edited"):
        ledger.contents()


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("format"),
        lambda body: body.pop("composition"),
        lambda body: body.pop("accountant"),
        lambda body: body["charges"][0].update(epsilon=-0.1),
        lambda body: body["charges"][0].update(epsilon="nan"),
        lambda body: body["charges"][0].pop("unit"),
        lambda body: body.update(fits={"a": {"charge": -1}}),
    ],
)
def test_a_body_that_makes_no_sense_is_refused(ledger: LedgerFile, change) -> None:
    ledger.write(CHARGES, {})
    rewritten(ledger, lambda body: None)
    assert ledger.contents()[0] == CHARGES
    rewritten(ledger, change)
    with pytest.raises(ValueError, match="damaged or was edited"):
        ledger.contents()


@pytest.mark.parametrize("number", [1, 2, 4])
def test_another_format_is_refused(ledger: LedgerFile, number: int) -> None:
    """What its numbers mean is not guessed, and the file stays as it is."""
    ledger.write(CHARGES, {})
    other = f"numpyro_vips privacy ledger {number}"
    rewritten(ledger, lambda body: body.update(format=other))
    content = ledger.path.read_bytes()
    with pytest.raises(ValueError, match=f"ledger 3', got '{other}'.*was charged"):
        ledger.contents()
    assert ledger.path.read_bytes() == content


def test_a_file_that_is_not_there_is_no_empty_ledger(ledger: LedgerFile) -> None:
    with pytest.raises(OSError, match="cannot be read, and nothing was charged"):
        ledger.contents()
    missing = dataclasses.replace(ledger, path=ledger.path.parent / "no" / "ledger")
    with pytest.raises(OSError, match="nothing was spent"), missing.locked():
        pass
    assert not missing.path.parent.exists()


def test_the_lock_keeps_other_threads_out(ledger: LedgerFile) -> None:
    order: list[str] = []
    waiting, inside = threading.Event(), threading.Event()

    def other() -> None:
        inside.wait(10)
        waiting.set()
        with ledger.locked():
            order.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    with ledger.locked():
        inside.set()
        assert waiting.wait(10)
        thread.join(0.1)  # Time in which it could go in, if it were let in.
        order.append("first")
    thread.join(10)
    assert order == ["first", "other"]


def test_a_file_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    replace_file(path, "before")

    def fails(*_) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="no space"):
        replace_file(path, "after")
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]
