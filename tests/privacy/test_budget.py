"""The ledger: refusals before spending, durability, and both rules of composition."""

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
from typing import Any

import numpy as np
import pytest

from numpyro_vips import accounting
from numpyro_vips.accounting import GaussianEvent, Relation
from numpyro_vips.errors import BudgetExceededError
from numpyro_vips.privacy import budget as privacy_budget
from numpyro_vips.privacy.budget import Charge, PrivacyBudget


def full(
    noise: float = 10.0, steps: int = 1, relation: Relation = "add_or_remove"
) -> GaussianEvent:
    return GaussianEvent(
        noise_stddev=noise,
        sensitivity=1.0,
        relation=relation,
        sampling="full",
        sampling_rate=1.0,
        num_steps=steps,
        label="sums",
    )


def poisson(noise=1.0, rate=0.01, steps=100):
    return GaussianEvent(
        noise_stddev=noise,
        sensitivity=1.0,
        relation="add_or_remove",
        sampling="poisson",
        sampling_rate=rate,
        num_steps=steps,
    )


def entry(epsilon, delta=1e-8, relation="add_or_remove", events=(), **other):
    return {
        "epsilon": epsilon,
        "delta": delta,
        "unit": "patients",
        "relation": relation,
        "events": events,
        **other,
    }


def charge(budget, *arguments, **other):
    return budget.charge(**entry(*arguments, **other))


# ----------------------------------------------------------------------------------
# What a ledger is


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1e-6), "epsilon"),
        ((-1.0, 1e-6), "epsilon"),
        ((math.nan, 1e-6), "epsilon"),
        ((1.0, 0.0), "delta.*positive"),
        ((1.0,), "delta.*positive"),
        ((1.0, 1.0), r"\[0, 1\)"),
        ((1.0, -1e-9), r"\[0, 1\)"),
    ],
)
def test_budgets_check_themselves(arguments, message):
    with pytest.raises(ValueError, match=message):
        PrivacyBudget(*arguments)
    unknown: Any = "pld"
    with pytest.raises(ValueError, match="composition"):
        PrivacyBudget(1.0, 1e-6, composition=unknown)
    unknown = "rdp"
    with pytest.raises(ValueError, match="accountant='rdp'"):
        PrivacyBudget(1.0, 1e-6, accountant=unknown)


def test_charges_add_up_and_cannot_be_taken_back():
    budget = PrivacyBudget(1.0, 1e-6)
    first = charge(budget, 0.25, 2e-7, label="first", events=[full(20.0)])
    assert budget.charges == (first,)
    assert first.events == (full(20.0),)
    assert (first.label, first.epsilon, first.delta) == ("first", 0.25, 2e-7)
    assert budget.spent() == (0.25, 2e-7)
    assert budget.remaining() == (0.75, 8e-7)
    for owner, name, value in ((budget, "charges", ()), (first, "epsilon", 0.0)):
        with pytest.raises(AttributeError):
            setattr(owner, name, value)
    assert not hasattr(budget, "refund")


@pytest.mark.parametrize("count", [3, 7, 10, 30])
def test_equal_shares_fit_exactly(count):
    budget = PrivacyBudget(1.0, 1e-6)
    for _ in range(count):
        charge(budget, 1.0 / count, 1e-6 / count)
    assert budget.spent().epsilon == pytest.approx(1.0)
    with pytest.raises(BudgetExceededError):
        charge(budget, 1e-6, 0.0)


def test_what_remains_can_be_charged():
    budget = PrivacyBudget(1.0, 1e-6)
    for share in (0.1, 0.2, 1 / 3):
        charge(budget, share, share * 1e-6)
    charge(budget, *budget.remaining())
    assert budget.remaining().epsilon == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.6, 1e-8), (0.1, 9.5e-7)])
def test_an_overrun_is_refused_and_leaves_nothing(epsilon, delta):
    budget = PrivacyBudget(1.0, 1e-6)
    charge(budget, 0.5, 1e-7)
    before = budget.charges
    for attempt in (
        lambda: charge(budget, epsilon, delta),
        lambda: budget.check(**entry(epsilon, delta)),
    ):
        with pytest.raises(BudgetExceededError, match=r"Nothing was charged"):
            attempt()
    assert budget.charges == before


def test_checking_spends_nothing():
    budget = PrivacyBudget(1.0, 1e-6)
    budget.check(**entry(1.0, 1e-6, events=[full()]))
    assert budget.charges == ()
    assert budget.spent() == (0.0, 0.0)


def test_another_relation_is_refused():
    budget = PrivacyBudget(1.0, 1e-6)
    charge(budget, 0.1, relation="replace_one")
    assert budget.relation == "replace_one"
    with pytest.raises(ValueError, match="relation='replace_one'"):
        charge(budget, 0.1)
    with pytest.raises(ValueError, match="every event"):
        charge(budget, 0.1, relation="replace_one", events=[full()])
    assert len(budget.charges) == 1


def test_another_unit_is_refused(tmp_path):
    """A patient has many visits: one visit's epsilon says little about the patient."""
    for budget in (
        PrivacyBudget(1.0, 1e-6),
        PrivacyBudget(math.inf),
        PrivacyBudget(1.0, 1e-6, path=tmp_path / "ledger.json"),
    ):
        assert budget.unit is None
        charge(budget, 0.1, unit="patients")
        assert budget.unit == "patients"
        assert budget.charges[0].unit == "patients"
        for attempt in (budget.check, budget.charge):
            with pytest.raises(ValueError, match=r"unit='patients'.*the same name"):
                attempt(**entry(0.1, unit="visits"))
        assert len(budget.charges) == 1
        assert "patients" in str(budget)
    again = PrivacyBudget(1.0, 1e-6, path=tmp_path / "ledger.json")
    assert again.unit == "patients"
    with pytest.raises(ValueError, match="unit='patients'"):
        charge(again, 0.1, unit="visits")


def test_a_unit_has_a_name():
    budget = PrivacyBudget(1.0, 1e-6)
    for unit, error in ((None, TypeError), ("", ValueError), (" ", ValueError)):
        for attempt in (budget.check, budget.charge):
            with pytest.raises(error, match="unit"):
                attempt(**entry(0.1, unit=unit))
    assert budget.charges == ()


def test_a_charge_below_its_price_is_refused():
    budget = PrivacyBudget(1.0, 1e-6)
    price = accounting.epsilon_of_events([full()], delta=1e-7)
    for attempt in (budget.check, budget.charge):
        with pytest.raises(ValueError, match="at least what the events cost"):
            attempt(**entry(0.99 * price, 1e-7, events=[full()]))
    charge(budget, price, 1e-7, events=[full()])
    assert len(budget.charges) == 1


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"epsilon": math.nan}, ValueError),
        ({"epsilon": np.float64("nan")}, ValueError),
        ({"epsilon": -0.1}, ValueError),
        ({"epsilon": -math.inf}, ValueError),
        ({"epsilon": True}, TypeError),
        ({"epsilon": "0.1"}, TypeError),
        ({"delta": math.nan}, ValueError),
        ({"delta": -1e-9}, ValueError),
        ({"delta": True}, TypeError),
        ({"epsilon": 0.0, "events": [full()]}, ValueError),
    ],
)
@pytest.mark.parametrize("composition", ["split", "rdp"])
@pytest.mark.parametrize("total", [1.0, math.inf])
def test_no_number_makes_a_fit_cheap(change, error, composition, total):
    budget = PrivacyBudget(total, 1e-6, composition=composition)
    for attempt in (budget.check, budget.charge):
        with pytest.raises(error, match="Expected"):
            attempt(**{**entry(0.1), **change})
    assert budget.charges == ()


def test_a_reading_that_is_not_a_number_is_refused(monkeypatch):
    def not_a_number(*arguments, **options):
        return math.nan

    budget = PrivacyBudget(1.0, 1e-6, composition="rdp")
    with monkeypatch.context() as patch:
        patch.setattr(privacy_budget, "filter_epsilon", not_a_number)
        with pytest.raises(BudgetExceededError):
            charge(budget, 0.5, events=[full(100.0)])
    with monkeypatch.context() as patch:
        patch.setattr(accounting, "epsilon_of_events", not_a_number)
        with pytest.raises(ValueError, match="at least what the events cost"):
            charge(budget, 0.5, events=[full(100.0)])
    assert budget.charges == ()


def test_a_filter_does_not_take_what_it_cannot_read():
    """It adds up events: without any, a fit of every epsilon would be free."""
    budget = PrivacyBudget(1.0, 1e-6, composition="rdp")
    with pytest.raises(ValueError, match="composition='split'"):
        charge(budget, 100.0)
    # Nor what publishes every row with a probability of a half.
    with pytest.raises(ValueError, match="composition='split'"):
        charge(budget, 0.0, 0.5)
    assert budget.charges == ()
    charge(budget, 0.0, 0.0)  # Nothing was released.


def test_a_fit_without_noise_needs_an_infinite_budget():
    unprotected = [full(0.0)]
    with pytest.raises(BudgetExceededError, match=r"math\.inf"):
        charge(PrivacyBudget(1.0, 1e-6), math.inf, 0.0, events=unprotected)
    budget = PrivacyBudget(math.inf)
    assert not budget.is_private
    assert budget.calibrate_events([full()]) == 0.0
    charge(budget, math.inf, 0.0, events=unprotected)
    charge(budget, 0.5, 1e-6, events=[])
    assert budget.spent().epsilon == math.inf
    assert budget.remaining() == (math.inf, 0.0)
    assert "NOT PRIVATE" in str(budget)


def test_printing_tells_what_was_spent_on_what():
    budget = PrivacyBudget(2.0, 1e-6, accountant="moments")
    charge(budget, 0.5, 1e-7, label="income regression", events=[full(50.0, steps=12)])
    charge(budget, 0.25, 1e-7, label="topics")
    text = str(budget)
    assert "income regression" in text
    assert "moments" in text
    assert " 12 " in text
    assert "Spent: epsilon = 0.75, delta = 2e-07" in text
    assert "Left: epsilon = 1.25" in text
    assert "spent_epsilon=0.75" in repr(budget)


def test_a_ledger_that_is_spent_shows_no_crumbs():
    budget = PrivacyBudget(1.0, 1e-6)
    charge(budget, 1.0 - 3e-14, 1e-6)
    assert budget.remaining().epsilon > 0.0
    assert "Spent: epsilon = 1, delta = 1e-06. Left: epsilon = 0," in str(budget)
    budget = PrivacyBudget(1.0, 1e-6)
    charge(budget, 1.0 - 1e-5, 1e-6)
    assert "Left: epsilon = 1e-05," in str(budget)


# ----------------------------------------------------------------------------------
# Threads and files


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


# ----------------------------------------------------------------------------------
# Calibration and the Rényi filter


def test_split_shares_are_calibrated_by_the_accountant():
    budget = PrivacyBudget(1.0, 1e-6)
    events = [full(1.0, 10)]
    factor = budget.calibrate_events(events, epsilon=0.3, delta=1e-7)
    assert factor == accounting.calibrate_events(events, epsilon=0.3, delta=1e-7)
    charge(budget, 0.3, 1e-7, events=[accounting.scale_noise(events[0], factor)])
    rest = budget.calibrate_events(events)
    assert rest == accounting.calibrate_events(events, epsilon=0.7, delta=9e-7)
    charge(budget, *budget.remaining())
    with pytest.raises(BudgetExceededError, match="Nothing is left"):
        budget.calibrate_events(events)


@pytest.mark.quick_with("pld", "strong")
@pytest.mark.parametrize("accountant", ["pld", "moments", "strong"])
def test_the_ledgers_accountant_prices_everything(accountant):
    budget = PrivacyBudget(1.0, 1e-6, accountant=accountant)
    assert budget.accountant == accountant
    events = [poisson(20.0)]
    factor = budget.calibrate_events(events, epsilon=0.3, delta=1e-7)
    scaled = [accounting.scale_noise(events[0], factor)]
    price = accounting.epsilon_of_events(scaled, delta=1e-7, accountant=accountant)
    assert 0.29 < price <= 0.3
    assert charge(budget, 0.3, 1e-7, events=scaled).accountant == accountant
    too_low = price * 0.99
    with pytest.raises(ValueError, match=f"accountant='{accountant}'"):
        charge(budget, too_low, 1e-7, events=scaled)
    with pytest.raises(TypeError, match="accountant"):
        charge(budget, 0.3, 1e-7, events=scaled, accountant=accountant)


def test_a_file_keeps_its_accountant(tmp_path):
    path = tmp_path / "ledger.json"
    charge(PrivacyBudget(1.0, 1e-6, accountant="moments", path=path), 0.5, 1e-7)
    with pytest.raises(ValueError, match=r"accountant='pld'; it has .*'moments'"):
        PrivacyBudget(1.0, 1e-6, path=path)
    again = PrivacyBudget(1.0, 1e-6, accountant="moments", path=path)
    assert [entry.accountant for entry in again.charges] == ["moments"]


def test_a_fit_that_takes_all_of_delta_is_named_as_the_cause():
    budget = PrivacyBudget(1.0, 1e-6)
    charge(budget, 0.5, 1e-6, events=[full(30.0, 10)])
    with pytest.raises(BudgetExceededError, match=r"No delta is left.*epsilon= and"):
        budget.calibrate_events([full(1.0, 10)])


@pytest.mark.parametrize("composition", ["split", "rdp"])
def test_events_of_an_iterator_are_calibrated_as_those_of_a_list(composition):
    budget = PrivacyBudget(1.0, 1e-6, composition=composition)
    events = [full(1.0, 10), poisson(2.0, 0.05, 100)]
    once: Any = iter(events)
    factor = budget.calibrate_events(once, epsilon=0.5, delta=1e-7)
    assert factor == budget.calibrate_events(events, epsilon=0.5, delta=1e-7) > 0


def filter_reading(events, delta):
    """The best order alone, with all of delta: a lower bound on any filter."""
    orders = accounting.RENYI_ORDERS
    divergences = accounting.renyi_of_events(events, orders)
    return min(
        accounting.renyi_to_epsilon(order, float(d), delta)
        for order, d in zip(orders, divergences, strict=True)
    )


@pytest.mark.parametrize("event", [full(1.0, 10), poisson(2.0, 0.05, 100)])
def test_the_filter_is_sound_and_not_wasteful(event):
    budget = PrivacyBudget(1.0, 1e-6, composition="rdp")
    factor = budget.calibrate_events([event])
    scaled = accounting.scale_noise(event, factor)
    price = accounting.epsilon_of_events([scaled], delta=1e-6)
    charge(budget, price, 1e-6, events=[scaled])
    spent = budget.spent()
    assert spent.delta == 1e-6
    assert price <= filter_reading([scaled], 1e-6) <= spent.epsilon
    assert 0.998 <= spent.epsilon <= 1.0
    # The price of composing adaptively, and of Rényi bounds, is moderate.
    assert spent.epsilon <= 1.25 * price


def test_the_filter_admits_more_fits_than_splitting():
    def count_fits(composition):
        budget = PrivacyBudget(1.0, 1e-6, composition=composition)
        event = full(60.0)
        price = accounting.epsilon_of_events([event], delta=1e-8)
        for count in range(1000):
            try:
                charge(budget, price, 1e-8, events=[event])
            except BudgetExceededError:
                return count
        return math.inf

    assert count_fits("rdp") >= 3 * count_fits("split")


def test_the_filter_refuses_what_overruns_it():
    budget = PrivacyBudget(1.0, 1e-6, composition="rdp")
    event = full(4.0)
    price = accounting.epsilon_of_events([event], delta=1e-6)
    assert price > 1
    with pytest.raises(BudgetExceededError, match="Rényi filter"):
        charge(budget, price, 1e-6, events=[event])
    assert budget.charges == ()


def test_the_filter_calibrates_what_is_left():
    budget = PrivacyBudget(2.0, 1e-6, composition="rdp")
    for _ in range(2):
        factor = budget.calibrate_events([full(1.0, 5)], epsilon=0.5, delta=1e-7)
        scaled = [accounting.scale_noise(full(1.0, 5), factor)]
        charge(budget, 0.5, 1e-7, events=scaled)
    left = budget.remaining()
    assert 1.0 < left.epsilon < 2.0
    factor = budget.calibrate_events([poisson()])
    scaled = [accounting.scale_noise(poisson(), factor)]
    price = accounting.epsilon_of_events(scaled, delta=1e-6)
    charge(budget, price, 1e-6, events=scaled)
    assert 1.996 <= budget.spent().epsilon <= 2.0
    with pytest.raises(BudgetExceededError, match="Nothing is left"):
        budget.calibrate_events([poisson()])


def test_the_filter_takes_batches_without_replacement():
    event = GaussianEvent(
        noise_stddev=1.0,
        sensitivity=1.0,
        relation="replace_one",
        sampling="without_replacement",
        sampling_rate=0.05,
        num_steps=20,
    )
    budget = PrivacyBudget(1.0, 1e-6, composition="rdp")
    scaled = accounting.scale_noise(event, budget.calibrate_events([event]))
    price = accounting.epsilon_of_events([scaled], delta=1e-6)
    charge(budget, price, 1e-6, relation="replace_one", events=[scaled])
    assert price < budget.spent().epsilon <= 1.0
