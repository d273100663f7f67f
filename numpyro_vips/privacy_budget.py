"""The ledger: what may be spent on one data set, and what has been spent on what."""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import math
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

from numpyro_vips import _validate, accounting
from numpyro_vips.accounting import (
    ACCOUNTANTS,
    RELATIONS,
    Accountant,
    GaussianEvent,
    Relation,
    json_number,
)
from numpyro_vips.errors import BudgetExceededError

Composition = Literal["split", "rdp"]
COMPOSITIONS = ("split", "rdp")

_FORMAT = "numpyro_vips privacy ledger 1"
# Shares such as 1/3 are rounded; their sum may pass the budget by that much.
_ROUNDING = Fraction(1, 10**12)


class Spending(NamedTuple):
    """An amount of privacy loss."""

    epsilon: float
    delta: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Charge:
    """One entry of the ledger.

    Attributes:
      label: What was fitted.
      epsilon: The entry's epsilon by itself.
      delta: The entry's delta by itself.
      relation: The neighbouring relation that both are about.
      accountant: Who priced it.
      events: Every noisy release, in physical quantities.
      time: When it was charged, ISO 8601 in UTC.
    """

    label: str
    epsilon: float
    delta: float
    relation: Relation
    accountant: Accountant
    events: tuple[GaussianEvent, ...]
    time: str

    def to_dict(self) -> dict[str, Any]:
        """JSON-able fields; an infinite number becomes the string `"inf"`."""
        return {
            "label": self.label,
            "epsilon": json_number(self.epsilon),
            "delta": self.delta,
            "relation": self.relation,
            "accountant": self.accountant,
            "events": [event.to_dict() for event in self.events],
            "time": self.time,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Charge":
        """The inverse of `to_dict`."""
        return cls(
            label=fields["label"],
            epsilon=float(fields["epsilon"]),
            delta=float(fields["delta"]),
            relation=fields["relation"],
            accountant=fields["accountant"],
            events=tuple(GaussianEvent.from_dict(event) for event in fields["events"]),
            time=fields["time"],
        )


class PrivacyBudget:
    """An append-only ledger, shared by every fit on one data set.

    Guarantees:
      What is charged stays charged: there is no refund. A charge that would overrun the
      budget is refused and leaves nothing behind. With a file, a charge is on the disk
      before `charge` returns, and a kill at any instant leaves the file as it was
      before or after, never between. All that is released under the ledger together is
      (epsilon, delta)-differentially private, also when later fits are chosen after
      looking at earlier results.

    How fits compose is fixed when the ledger is made, and never mixed:

    * `"split"`: each fit has its own (epsilon, delta), and the sums stay within the
      budget. Sums are exact in decimals: ten times 0.1 is 1.
    * `"rdp"`: every event goes through one Rényi filter, which is better for many fits.
      It reads a single fit a little dearer than the `"pld"` accountant does, so let
      `calibrate_events` find the noise.

    Methods may be called from several threads, and several processes may share a file.
    """

    def __init__(
        self,
        epsilon: float,
        delta: float = 0.0,
        *,
        composition: Composition = "split",
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Opens a ledger.

        Args:
          epsilon: What all fits together may spend. `math.inf` means NOT PRIVATE: no
            noise, no clipping.
          delta: Likewise; positive when epsilon is finite, and well below one over the
            number of rows.
          composition: `"split"` or `"rdp"`.
          path: File that keeps the ledger. An existing one is continued, if it has the
            same epsilon, delta and composition.

        Raises:
          ValueError: A number out of range, a damaged file, or one of another budget.
          OSError: The file cannot be written. Nothing has been spent.
        """
        _validate.positive(epsilon=epsilon)
        _validate.one_of(COMPOSITIONS, composition=composition)
        if not 0 <= delta < 1:
            raise ValueError(f"Expected delta={delta!r} in [0, 1).")
        if math.isfinite(epsilon) and delta == 0:
            raise ValueError(
                f"Expected delta={delta!r} to be positive with a finite "
                f"epsilon={epsilon!r}: Gaussian noise never gives pure differential "
                "privacy. Choose a delta well below 1 / num_rows, such as 1e-6."
            )
        self._epsilon = float(epsilon)
        self._delta = float(delta)
        self._composition: Composition = composition
        # A link would be replaced by the first charge, and other programs go on with
        # the file that it pointed to; a relative path would move with the process.
        self._path = None if path is None else Path(path).resolve()
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._charges: tuple[Charge, ...] = ()
        if self._path is not None:
            with self._file_lock():
                if self._path.exists():
                    self._charges = self._read()
                # Also proves, before anything is spent, that charging will work.
                self._write(self._charges)

    @property
    def epsilon(self) -> float:
        """The whole budget's epsilon."""
        return self._epsilon

    @property
    def delta(self) -> float:
        """The whole budget's delta."""
        return self._delta

    @property
    def composition(self) -> Composition:
        """How fits compose: `"split"` or `"rdp"`."""
        return self._composition

    @property
    def is_private(self) -> bool:
        """False for an infinite epsilon."""
        return math.isfinite(self._epsilon)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Everything that was charged, oldest first, also by other processes."""
        with self._lock:
            return self._current_charges()

    @property
    def relation(self) -> Relation | None:
        """The relation of the first charge, which every later one must share."""
        charges = self.charges
        return charges[0].relation if charges else None

    def spent(self) -> Spending:
        """What has been spent so far, by the ledger's own rule of composition."""
        with self._lock:
            return self._spending(self._current_charges())

    def remaining(self) -> Spending:
        """What a next fit may still ask for.

        Under `"rdp"` the delta is the whole budget's, shared by all fits, and the
        epsilon is the difference to what the filter reads, so a fit may get more by
        asking `calibrate_events`.
        """
        with self._lock:
            if not self.is_private:
                return Spending(math.inf, self._delta)
            charges = self._current_charges()
            if self._composition == "rdp":
                spent = self._spending(charges)
                return Spending(max(0.0, self._epsilon - spent.epsilon), self._delta)
            left_epsilon = _exact(self._epsilon) - _total("epsilon", charges)
            left_delta = _exact(self._delta) - _total("delta", charges)
            return Spending(float(max(0, left_epsilon)), float(max(0, left_delta)))

    def check(
        self,
        epsilon: float,
        delta: float,
        relation: Relation,
        events: Sequence[GaussianEvent],
    ) -> None:
        """Raises what `charge` would raise, and spends nothing.

        Raises:
          BudgetExceededError: The charge would overrun the budget.
          ValueError: The relation is not the ledger's or not the events', or a number
            is out of range.
        """
        with self._lock:
            self._check(self._current_charges(), epsilon, delta, relation, events)

    def charge(
        self,
        *,
        epsilon: float,
        delta: float,
        relation: Relation,
        events: Sequence[GaussianEvent],
        accountant: Accountant = "pld",
        label: str = "",
    ) -> Charge:
        """Charges a fit, durably, before its data are read.

        Args:
          epsilon: The fit's own epsilon, as `accountant` prices `events`, or its share.
          delta: The fit's own delta.
          relation: The neighbouring relation.
          events: Every noisy release of the fit.
          accountant: Who priced it.
          label: What is fitted, for people.

        Returns:
          The entry. On an exception nothing was charged.

        Raises:
          BudgetExceededError: The charge would overrun the budget.
          ValueError: The relation is not the ledger's or not the events', a number is
            out of range, or the events cost more than `epsilon`.
          RuntimeError: The ledger has no file and was opened by another process.
        """
        _validate.one_of(ACCOUNTANTS, accountant=accountant)
        if self.is_private and self._path is None and os.getpid() != self._process:
            raise RuntimeError(
                "This ledger is kept in the memory of the process that opened it, and "
                "a process that was forked from it has a copy: what one spends the "
                "others do not see. Nothing was charged. Open the ledger with path=, "
                "which processes may share."
            )
        with self._lock, self._file_lock():
            charges = self._current_charges()
            self._check(charges, epsilon, delta, relation, events)
            self._check_price(epsilon, delta, events, accountant)
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            entry = Charge(
                label=label,
                epsilon=float(epsilon),
                delta=float(delta),
                relation=relation,
                accountant=accountant,
                events=tuple(events),
                time=now,
            )
            if self._path is not None:
                self._write((*charges, entry))
            self._charges = (*charges, entry)
            return entry

    def calibrate_events(
        self,
        events: Sequence[GaussianEvent],
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        accountant: Accountant = "pld",
    ) -> float:
        """The smallest factor on the events' noise with which the ledger takes them.

        Args:
          events: The schedule of the next fit.
          epsilon: The fit's share; by default all that is left.
          delta: The fit's share; by default all that is left.
          accountant: Who prices the share.

        Returns:
          Factor for `accounting.scale_noise`; 0 without privacy.

        Raises:
          BudgetExceededError: Nothing is left.
        """
        if not self.is_private and epsilon is None:
            return 0.0
        left = self.remaining()
        # A fit that takes all leaves what its calibration could not resolve.
        least = self._epsilon * 2e-3 if self._composition == "rdp" else 0.0
        if left.epsilon <= least or left.delta == 0:
            raise BudgetExceededError(
                "Nothing is left of the privacy budget. "
                f"{self._summary(self.charges)} Use other data, or decide on a larger "
                "budget and open a new ledger."
            )
        share_delta = left.delta if delta is None else delta
        if self._composition == "split" or not self.is_private:
            share = left.epsilon if epsilon is None else epsilon
            return accounting.calibrate_events(
                events, epsilon=share, delta=share_delta, accountant=accountant
            )
        before = [event for charge in self.charges for event in charge.events]

        def filter_epsilon(factor: float) -> float:
            scaled = [accounting.scale_noise(event, factor) for event in events]
            return _filter_epsilon([*before, *scaled], self._epsilon, self._delta)

        start = accounting.calibrate_events(
            events, epsilon=left.epsilon, delta=self._delta, accountant="moments"
        )
        factor = accounting.smallest_factor(filter_epsilon, self._epsilon, start=start)
        if epsilon is None:
            return factor
        share_factor = accounting.calibrate_events(
            events, epsilon=epsilon, delta=share_delta, accountant=accountant
        )
        return max(factor, share_factor)

    def _check(
        self,
        charges: tuple[Charge, ...],
        epsilon: float,
        delta: float,
        relation: Relation,
        events: Sequence[GaussianEvent],
    ) -> None:
        if not epsilon >= 0:
            raise ValueError(f"Expected epsilon={epsilon!r} to be zero or positive.")
        if not 0 <= delta < 1:
            raise ValueError(f"Expected delta={delta!r} in [0, 1).")
        _validate.one_of(RELATIONS, relation=relation)
        if any(event.relation != relation for event in events):
            raise ValueError(
                f"Expected every event to have relation={relation!r}, the fit's own."
            )
        if charges and charges[0].relation != relation:
            raise ValueError(
                f"Expected relation={charges[0].relation!r}, which this ledger's "
                f"first fit used, got {relation!r}: epsilons about different "
                "neighbours do not add up. Choose the sampling that belongs to the "
                "ledger's relation, or open another ledger for other data."
            )
        if not self.is_private:
            return
        if math.isinf(epsilon):
            raise BudgetExceededError(
                "The fit has no noise, so its epsilon is infinite. "
                f"{self._summary(charges)} Nothing was charged. Use "
                "PrivacyBudget(math.inf) for a fit that need not be private."
            )
        if self._composition == "rdp":
            total = [event for charge in charges for event in charge.events]
            total += events
            reading = _filter_epsilon(total, self._epsilon, self._delta)
            if reading > self._epsilon * (1 + float(_ROUNDING)):
                raise BudgetExceededError(
                    "The fit would raise the ledger's Rényi filter to epsilon="
                    f"{reading:.6g}. {self._summary(charges)} Nothing was charged. "
                    "Use more noise (calibrate_events finds how much), fewer steps or "
                    "a lower sampling rate."
                )
            return
        over_epsilon = _total("epsilon", charges) + _exact(epsilon) > _exact(
            self._epsilon
        ) * (1 + _ROUNDING)
        over_delta = _total("delta", charges) + _exact(delta) > _exact(self._delta) * (
            1 + _ROUNDING
        )
        if over_epsilon or over_delta:
            raise BudgetExceededError(
                f"The fit asks for epsilon={epsilon:.6g}, delta={delta:.3g}. "
                f"{self._summary(charges)} Nothing was charged. Ask for a smaller "
                "share (epsilon=, delta=), or open the ledger with a larger budget "
                "before the first fit."
            )

    def _check_price(
        self,
        epsilon: float,
        delta: float,
        events: Sequence[GaussianEvent],
        accountant: Accountant,
    ) -> None:
        """Refuses a charge that is lower than what its events cost."""
        if math.isinf(epsilon):
            return
        price = accounting.epsilon_of_events(events, delta=delta, accountant=accountant)
        if price > epsilon * (1 + 1e-9):
            raise ValueError(
                f"Expected epsilon={epsilon!r} to be at least what the events cost at "
                f"delta={delta!r}, which is {price!r} by accountant={accountant!r}. "
                "Nothing was charged. Charge that price, or calibrate the noise to "
                "the share."
            )

    def _current_charges(self) -> tuple[Charge, ...]:
        """Takes note of what other processes have charged to the same file."""
        if self._path is not None:
            charges = self._read()
            if charges[: len(self._charges)] != self._charges:
                raise ValueError(
                    f"Expected the ledger {str(self._path)!r} to begin with the "
                    "charges that this program has seen. It was replaced by another or "
                    "an older one, and nothing was charged: restore the newest copy."
                )
            self._charges = charges
        return self._charges

    def _spending(self, charges: tuple[Charge, ...]) -> Spending:
        if not charges:
            return Spending(0.0, 0.0)
        if any(math.isinf(charge.epsilon) for charge in charges):
            return Spending(math.inf, float(_total("delta", charges)))
        if self._composition == "rdp" and self.is_private:
            events = [event for charge in charges for event in charge.events]
            reading = _filter_epsilon(events, self._epsilon, self._delta)
            return Spending(reading, self._delta)
        return Spending(
            float(_total("epsilon", charges)), float(_total("delta", charges))
        )

    def _summary(self, charges: tuple[Charge, ...]) -> str:
        spent = self._spending(charges)
        return (
            f"Of the budget epsilon={self._epsilon:.6g}, delta={self._delta:.3g}, "
            f"{len(charges)} earlier fit(s) have spent epsilon={spent.epsilon:.6g}, "
            f"delta={spent.delta:.3g}."
        )

    def __reduce__(self) -> str:
        raise TypeError(
            "PrivacyBudget cannot be copied or pickled: a copy could be spent once "
            "more. Use the same object, or a file (path=) that several programs open."
        )

    def __repr__(self) -> str:
        spent = self.spent()
        return (
            f"PrivacyBudget(epsilon={self._epsilon!r}, delta={self._delta!r}, "
            f"composition={self._composition!r}, spent_epsilon={spent.epsilon:.6g}, "
            f"spent_delta={spent.delta:.3g}, charges={len(self.charges)})"
        )

    def __str__(self) -> str:
        """A table of what was spent on what."""
        with self._lock:
            spent, left, charges = self.spent(), self.remaining(), self._charges
        kind = "" if self.is_private else "   NOT PRIVATE"
        lines = [
            f"Privacy budget: epsilon = {self._epsilon:.6g}, "
            f"delta = {self._delta:.3g}, composition {self._composition!r}{kind}"
        ]
        rows = [("charged (UTC)", "epsilon", "delta", "releases", "accountant", "for")]
        for charge in charges:
            rows.append(
                (
                    charge.time.removesuffix("+00:00").replace("T", " "),
                    f"{charge.epsilon:.6g}",
                    f"{charge.delta:.3g}",
                    str(sum(event.num_steps for event in charge.events)),
                    charge.accountant,
                    charge.label or "(no label)",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows if charges else []:
            cells = [cell.ljust(w) for cell, w in zip(row, widths, strict=True)]
            lines.append("  " + "  ".join(cells).rstrip())
        lines.append(
            f"Spent: epsilon = {spent.epsilon:.6g}, delta = {spent.delta:.3g}. "
            f"Left: epsilon = {left.epsilon:.6g}, delta = {left.delta:.3g}."
        )
        return "\n".join(lines)

    # ------------------------------------------------------------------------------
    # The file

    def _read(self) -> tuple[Charge, ...]:
        assert self._path is not None
        damaged = (
            f"Expected {str(self._path)!r} to be a privacy ledger, and it is damaged "
            "or was edited. Nothing was charged. Restore it from a copy; a ledger that "
            "is lost must count as spent in full."
        )
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise OSError(
                error.errno,
                "The privacy ledger cannot be read, and nothing was charged: "
                f"{error.strerror}. Choose another path, or restore the file from a "
                "copy",
                str(self._path),
            ) from error
        try:
            record = json.loads(content)
            body = record["ledger"]
            if record["sha256"] != _checksum(body) or body["format"] != _FORMAT:
                raise ValueError(damaged)
            charges = tuple(Charge.from_dict(fields) for fields in body["charges"])
            found = (float(body["epsilon"]), body["delta"], body["composition"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(damaged) from error
        if found != (self._epsilon, self._delta, self._composition):
            raise ValueError(
                f"Expected the ledger {str(self._path)!r} to have epsilon="
                f"{self._epsilon!r}, delta={self._delta!r}, composition="
                f"{self._composition!r}; it has {found[0]!r}, {found[1]!r}, "
                f"{found[2]!r}. Open it with its own numbers, or use another file."
            )
        return charges

    def _write(self, charges: tuple[Charge, ...]) -> None:
        """Replaces the file in one step that survives a crash."""
        assert self._path is not None
        body = {
            "format": _FORMAT,
            "epsilon": json_number(self._epsilon),
            "delta": self._delta,
            "composition": self._composition,
            "charges": [charge.to_dict() for charge in charges],
        }
        text = json.dumps({"sha256": _checksum(body), "ledger": body}, indent=1)
        folder = self._path.parent
        descriptor, temporary = tempfile.mkstemp(
            dir=folder, prefix=f".{self._path.name}.", suffix=".tmp"
        )
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_folder(folder)

    @contextlib.contextmanager
    def _file_lock(self) -> Iterator[None]:
        """Keeps other processes out while the file is read and replaced."""
        if self._path is None:
            yield
            return
        try:
            descriptor = os.open(
                self._path.with_name(f".{self._path.name}.lock"),
                os.O_RDWR | os.O_CREAT,
                0o600,
            )
        except OSError as error:
            raise OSError(
                error.errno,
                "The privacy ledger cannot be written, and nothing was spent: "
                f"{error.strerror}. Choose a path in a folder that exists and can be "
                "written to",
                str(self._path),
            ) from error
        try:
            _lock_descriptor(descriptor)
            yield
        finally:
            os.close(descriptor)


def _lock_descriptor(descriptor: int) -> None:
    # Only on POSIX; the lock goes with the descriptor, also when the process dies.
    with contextlib.suppress(ImportError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX)


def _sync_folder(folder: Path) -> None:
    """Makes the renaming itself durable, where folders can be opened."""
    with contextlib.suppress(PermissionError, IsADirectoryError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _checksum(body: Mapping[str, Any]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _exact(value: float) -> Fraction:
    """The decimal number that was written, so that ten times 0.1 is 1."""
    return Fraction(repr(float(value)))


def _total(name: Literal["epsilon", "delta"], charges: tuple[Charge, ...]) -> Fraction:
    return sum((_exact(getattr(charge, name)) for charge in charges), Fraction(0))


# ----------------------------------------------------------------------------------
# The Rényi filter


def _filter_epsilon(
    events: Sequence[GaussianEvent], epsilon: float, delta: float
) -> float:
    """What the filter reads after the events.

    For one order, a filter on the sum of Rényi divergences holds for fits that are
    chosen adaptively (Feldman and Zrnic 2021). Which order ends up the best may then
    depend on the results, so the orders share delta by a union bound: half of it goes
    to the order that suits full batches, fixed by the budget, the rest to a few others.
    """
    orders, shares = _filter_orders(epsilon, delta)
    divergences = accounting.renyi_of_events(events, orders)
    return min(
        accounting.renyi_to_epsilon(order, float(divergence), share)
        for order, divergence, share in zip(orders, divergences, shares, strict=True)
    )


def _filter_orders(
    epsilon: float, delta: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    def capacity(order: float) -> float:
        # How much squared mu of full-batch releases the order admits.
        return (epsilon - accounting.renyi_to_epsilon(order, 0.0, delta / 2)) / order

    best = max(accounting.RENYI_ORDERS, key=capacity)
    # Subsampled steps suit lower orders; a ledger that is hardly used, higher ones.
    others = [1 + (best - 1) * 2 ** (k / 2) for k in (-4, -3, -2, -1, 1, 2, 4, 6, 8)]
    orders = (best, *others)
    shares = (delta / 2, *[delta / 2 / len(others)] * len(others))
    return orders, shares
