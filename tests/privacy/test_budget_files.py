"""Ledgers of several threads, processes and files."""

import contextlib
import copy
import errno
import fcntl
import hashlib
import json
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from _charges import charge, full, poisson

from numpyro_vips.errors import BudgetExceededError
from numpyro_vips.privacy import budget as privacy_budget
from numpyro_vips.privacy.budget import Charge, PrivacyBudget


def test_threads_cannot_overrun_the_budget_together():
    budget = PrivacyBudget(1.0, 1e-6)
    refused = []
    start = threading.Barrier(8)

    def work():
        start.wait()
        for _ in range(25):
            try:
                charge(budget, 0.01, 1e-9)
            except BudgetExceededError:
                refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(budget.charges) == 100
    assert len(refused) == 100


@pytest.mark.parametrize("name", [None, "ledger.json"])
def test_a_signal_handler_cannot_charge_in_the_middle_of_a_charge(
    name, tmp_path, monkeypatch
):
    """What it charged was forgotten, and the budget spent twice."""
    budget = PrivacyBudget(1.0, 1e-6, path=name and tmp_path / name)
    granted, errors = [], []

    def handler(*_):
        try:
            granted.append(charge(budget, 1.0, 1e-7))
        except RuntimeError as error:
            errors.append(error)

    def interrupted(entry):
        with monkeypatch.context() as patch:
            patch.setattr(privacy_budget, "check_price", check_price)
            signal.raise_signal(signal.SIGINT)

    check_price = privacy_budget.check_price
    before = signal.signal(signal.SIGINT, handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(privacy_budget, "check_price", interrupted)
            granted.append(charge(budget, 1.0, 1e-7))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(granted) == len(budget.charges) == 1
    with pytest.raises(RuntimeError, match="under way in this thread"):
        raise errors[0]
    with pytest.raises(BudgetExceededError):  # The ledger is open again.
        charge(budget, 0.1, 1e-7)


def test_a_file_keeps_the_ledger(tmp_path):
    path = tmp_path / "ledger.json"
    budget = PrivacyBudget(1.0, 1e-6, path=path)
    charge(budget, 0.4, 1e-7, label="first", events=[full(30.0, steps=2), full(40.0)])
    again = PrivacyBudget(1.0, 1e-6, path=path)
    assert again.charges == budget.charges
    with pytest.raises(BudgetExceededError):
        charge(again, 0.7)
    charge(again, 0.6, 1e-7)
    # The first object sees what the second one charged.
    assert len(budget.charges) == 2
    with pytest.raises(BudgetExceededError):
        charge(budget, 0.1)
    assert sorted(os.listdir(tmp_path)) == [".ledger.json.lock", "ledger.json"]


def test_infinite_budgets_survive_files(tmp_path):
    path = tmp_path / "ledger.json"
    charge(PrivacyBudget(math.inf, path=path), math.inf, 0.0, events=[full(0.0)])
    assert PrivacyBudget(math.inf, path=path).spent().epsilon == math.inf


@pytest.mark.parametrize(
    "arguments",
    [
        {"epsilon": 2.0, "delta": 1e-6},
        {"epsilon": 1.0, "delta": 1e-5},
        {"epsilon": 1.0, "delta": 1e-6, "composition": "rdp"},
    ],
)
def test_a_file_of_another_budget_is_refused(tmp_path, arguments):
    path = tmp_path / "ledger.json"
    PrivacyBudget(1.0, 1e-6, path=path)
    with pytest.raises(ValueError, match="Open it with its own settings"):
        PrivacyBudget(**arguments, path=path)


def damage_nothing_readable(text):
    return ""


def damage_truncated(text):
    return text[: len(text) // 2]


def damage_one_digit(text):
    return text.replace("0.4", "0.1", 1)


def damage_entry_removed(text):
    record = json.loads(text)
    record["ledger"]["charges"].pop()
    return json.dumps(record)


def damage_other_json(text):
    return "[1, 2, 3]"


@pytest.mark.parametrize(
    "damage",
    [
        damage_nothing_readable,
        damage_truncated,
        damage_one_digit,
        damage_entry_removed,
        damage_other_json,
    ],
)
def test_a_damaged_file_is_refused(tmp_path, damage):
    path = tmp_path / "ledger.json"
    budget = PrivacyBudget(1.0, 1e-6, path=path)
    charge(budget, 0.4)
    damaged = damage(path.read_text())
    assert damaged != path.read_text()
    path.write_text(damaged)
    for attempt in (
        lambda: PrivacyBudget(1.0, 1e-6, path=path),
        lambda: charge(budget, 0.1),
    ):
        with pytest.raises(ValueError, match="damaged"):
            attempt()
    assert path.read_text() == damaged


def test_a_file_that_cannot_be_read_is_no_new_ledger(tmp_path, monkeypatch):
    """As on a network's disk; an empty one in its place would forget all charges."""
    path = tmp_path / "ledger.json"
    charge(PrivacyBudget(1.0, 1e-6, path=path), 0.7, 1e-7)

    def fail(self: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(self))

    with monkeypatch.context() as patch:
        # Since Python 3.14 this is what it says of a file that cannot be asked.
        patch.setattr(Path, "exists", lambda self: False)
        patch.setattr(Path, "read_bytes", fail)
        with pytest.raises(OSError, match="cannot be read"):
            PrivacyBudget(1.0, 1e-6, path=path)
    assert PrivacyBudget(1.0, 1e-6, path=path).spent().epsilon == 0.7


def test_a_link_and_its_file_are_one_ledger(tmp_path):
    """A charge must not put a file of its own in the place of the link."""
    path, link = tmp_path / "ledger.json", tmp_path / "elsewhere" / "link.json"
    link.parent.mkdir()
    budget = PrivacyBudget(1.0, 1e-6, path=path)
    link.symlink_to(path)
    charge(PrivacyBudget(1.0, 1e-6, path=link), 0.7, 1e-7)
    assert budget.spent().epsilon == 0.7
    with pytest.raises(BudgetExceededError):
        charge(budget, 0.7, 1e-7)
    assert link.is_symlink()


def test_a_relative_path_stays_where_it_was_opened(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    budget = PrivacyBudget(1.0, 1e-6, path="ledger.json")
    monkeypatch.chdir("other")
    other = PrivacyBudget(1.0, 1e-6, path="ledger.json")
    charge(budget, 0.7, 1e-7)
    assert other.spent().epsilon == 0
    monkeypatch.chdir(tmp_path)
    assert PrivacyBudget(1.0, 1e-6, path="ledger.json").spent().epsilon == 0.7


def test_a_ledger_has_no_subclasses() -> None:
    """One that charges in another way, or not at all, would pass for a ledger."""
    with pytest.raises(TypeError, match="Logged is made a subclass of PrivacyBudget"):

        class Logged(PrivacyBudget):
            """Forgets to charge."""


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_ledger_cannot_be_copied(duplicate, tmp_path):
    for budget in (
        PrivacyBudget(1.0, 1e-6),
        PrivacyBudget(1.0, 1e-6, path=tmp_path / "ledger.json"),
    ):
        with pytest.raises(TypeError, match="cannot be copied"):
            duplicate(budget)


def test_a_forked_process_needs_a_file_to_spend(tmp_path, monkeypatch):
    """Every child of a fork has the ledger as it was then, and could spend it all."""
    alone, shared = (
        PrivacyBudget(1.0, 1e-6, path=path) for path in (None, tmp_path / "ledger.json")
    )
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="path="):
        charge(alone, 0.7, 1e-7)
    assert alone.spent().epsilon == 0
    charge(shared, 0.7, 1e-7)
    charge(PrivacyBudget(1.0, 1e-6), 0.7, 1e-7)  # Opened by the child itself.


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", "nan"), ("epsilon", -5.0), ("delta", "nan"), ("unit", "")],
)
def test_a_file_cannot_give_back(tmp_path, name, value):
    path = tmp_path / "ledger.json"
    charge(PrivacyBudget(1.0, 1e-6, path=path), 0.4)
    ledger = json.loads(path.read_text())["ledger"]
    ledger["charges"][0][name] = value
    text = json.dumps(ledger, sort_keys=True, separators=(",", ":"))
    checksum = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps({"sha256": checksum, "ledger": ledger}))
    with pytest.raises(ValueError, match="damaged"):
        PrivacyBudget(1.0, 1e-6, path=path)


def test_an_older_copy_of_the_file_is_refused(tmp_path):
    path = tmp_path / "ledger.json"
    budget = PrivacyBudget(1.0, 1e-6, path=path)
    older = path.read_bytes()
    charge(budget, 0.4)
    path.write_bytes(older)
    with pytest.raises(ValueError, match="restore the newest copy"):
        charge(budget, 0.1)


def test_an_unwritable_path_is_refused_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "no" / "such" / "folder", tmp_path / "file" / "ledger"):
        with pytest.raises(OSError, match="nothing was spent"):
            PrivacyBudget(1.0, 1e-6, path=path)
    with pytest.raises(OSError, match="cannot be read"):
        PrivacyBudget(1.0, 1e-6, path=tmp_path)
    assert not (tmp_path / "no").exists()


def test_a_system_without_locks_is_refused(tmp_path):
    """Without the lock two processes could spend the same budget."""
    path = tmp_path / "ledger.json"
    program = f"""
import sys, warnings
warnings.simplefilter("ignore")
sys.modules["fcntl"] = None  # As where Python has none.
from numpyro_vips.privacy.budget import PrivacyBudget
PrivacyBudget(1.0, 1e-6)
PrivacyBudget(1.0, 1e-6, path={str(path)!r})
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert run.returncode == 1
    assert "OSError" in run.stderr
    assert "no file locks" in run.stderr
    assert "leave path= out" in run.stderr
    assert os.listdir(tmp_path) == []


def test_a_lock_that_the_disk_does_not_have_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "ledger.json"
    budget = PrivacyBudget(1.0, 1e-6, path=path)
    charge(budget, 0.4)
    before = path.read_bytes()

    def missing(*arguments):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(OSError, match="no file locks"):
        charge(budget, 0.1)
    assert path.read_bytes() == before


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_charges_nothing(tmp_path, monkeypatch, failing):
    path = tmp_path / "ledger.json"
    budget = PrivacyBudget(1.0, 1e-6, path=path)
    charge(budget, 0.4)
    before = path.read_bytes()

    def fail(*arguments, **options):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, fail)
        with pytest.raises(OSError, match="disk full"):
            charge(budget, 0.1)
    assert path.read_bytes() == before
    assert len(budget.charges) == 1
    assert sorted(os.listdir(tmp_path)) == [".ledger.json.lock", "ledger.json"]


def charge_until_killed(path, ready):
    budget = PrivacyBudget(1e6, 0.5, path=path)
    ready.set()
    while True:
        charge(budget, 1.0, 0.0)


@pytest.mark.parametrize("attempt", range(4))
def test_a_kill_at_any_instant_leaves_a_whole_ledger(tmp_path, attempt):
    path = tmp_path / "ledger.json"
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=charge_until_killed, args=(path, ready))
    process.start()
    assert ready.wait(30)
    threading.Event().wait(0.05 + 0.03 * attempt)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    survivor = PrivacyBudget(1e6, 0.5, path=path)
    count = len(survivor.charges)
    assert survivor.spent().epsilon == count
    # The lock died with its holder.
    charge(survivor, 1.0, 0.0)
    assert len(PrivacyBudget(1e6, 0.5, path=path).charges) == count + 1


def test_objects_and_threads_of_one_process_exclude_each_other(tmp_path):
    path = tmp_path / "ledger.json"
    budgets = [PrivacyBudget(1.0, 1e-6, path=path) for _ in range(4)]
    start = threading.Barrier(8)

    def work(budget):
        start.wait()
        for _ in range(5):
            with contextlib.suppress(BudgetExceededError):
                charge(budget, 0.05, 1e-9)

    threads = [threading.Thread(target=work, args=(b,)) for b in budgets * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(PrivacyBudget(1.0, 1e-6, path=path).charges) == 20


def charge_some(path):
    budget = PrivacyBudget(1.0, 1e-6, path=path)
    for _ in range(20):
        try:
            charge(budget, 0.05, 1e-9)
        except BudgetExceededError:
            return


def test_processes_cannot_overrun_the_budget_together(tmp_path):
    path = tmp_path / "ledger.json"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=charge_some, args=(path,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    budget = PrivacyBudget(1.0, 1e-6, path=path)
    assert len(budget.charges) == 20
    assert budget.remaining().epsilon == 0


def test_charges_survive_dictionaries():
    before = charge(PrivacyBudget(1.0, 1e-6), 0.5, events=[full(), poisson(20.0)])
    assert Charge.from_dict(json.loads(json.dumps(before.to_dict()))) == before
