"""The ledger: what may be spent on one data set, and what has been spent on what."""

import contextlib
import dataclasses
import datetime
import math
import os
import threading
from collections.abc import Generator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Literal, NamedTuple

from numpyro_vips import _validate, accounting
from numpyro_vips._keywords import naming_arguments
from numpyro_vips._settings import code_of_value
from numpyro_vips.accounting import (
    ACCOUNTANTS,
    Accountant,
    GaussianEvent,
    Relation,
)
from numpyro_vips.accounting.renyi_filter import filter_epsilon
from numpyro_vips.errors import BudgetExceededError
from numpyro_vips.privacy.budget_table import (
    BudgetTable,
    as_html,
    as_text,
    budget_table,
)
from numpyro_vips.privacy.charge_checks import check_neighbours, check_price
from numpyro_vips.privacy.charges import Charge, FitInSteps, exact, total
from numpyro_vips.privacy.ledger_file import LedgerFile

Composition = Literal["split", "rdp"]
COMPOSITIONS = ("split", "rdp")

# Shares such as 1/3 are rounded; their sum may pass the budget by that much.
_ROUNDING = Fraction(1, 10**12)


class Spending(NamedTuple):
    """An amount of privacy loss, as a ledger counts it.

    Attributes:
      epsilon, delta: Of (epsilon, delta)-differential privacy.
    """

    epsilon: float
    delta: float


@naming_arguments(eps="epsilon=1.0", file="path='ledger.json'")
class PrivacyBudget:
    """An append-only ledger, shared by every fit on one data set.

    Guarantees:
      What is charged stays charged: there is no refund. A charge that would overrun the
      budget is refused and leaves nothing behind. With a file, a charge is on the disk
      before `charge` returns, and a kill at any instant leaves the file as it was
      before or after, never between. All that is released under the ledger together is
      (epsilon, delta)-differentially private, also when later fits are chosen after
      looking at earlier results.

    How fits compose, and who prices them, is fixed when the ledger is made. The ways to
    compose are never mixed:

    * `"split"`: each fit has its own (epsilon, delta), and the sums stay within the
      budget. Sums are exact in decimals: ten times 0.1 is 1.
    * `"rdp"`: every event goes through one Rényi filter, which is better for many fits.
      It reads a single fit dearer than the `"pld"` accountant does, by 11 to 26 % with
      full batches and by more with small minibatches (docs/privacy_proofs.md has the
      command), so let `calibrate_events` find the noise.

    Methods may be called from several threads, and several processes may share a file.

        >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
        >>> charge = budget.charge(
        ...     epsilon=0.25,
        ...     delta=5e-7,
        ...     unit="people",
        ...     relation="add_or_remove",
        ...     events=(),
        ... )
        >>> budget.spent()
        Spending(epsilon=0.25, delta=5e-07)
        >>> budget.remaining()
        Spending(epsilon=0.75, delta=5e-07)
    """

    def __init__(
        self,
        epsilon: float,
        delta: float = 0.0,
        *,
        composition: Composition = "split",
        accountant: Accountant = "pld",
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        """Opens a ledger.

        Args:
          epsilon: What all fits together may spend. `math.inf` means NOT PRIVATE: no
            noise, no clipping.
          delta: Likewise; positive when epsilon is finite, and well below one over the
            number of rows.
          composition: `"split"` or `"rdp"`.
          accountant: Who prices fits: `"pld"`, privacy loss distributions, the
            tightest; `"moments"`, the analytical moments accountant of the VIPS paper;
            or `"strong"`, strong composition.
          path: File that keeps the ledger. An existing one is continued, if it has the
            same epsilon, delta, composition and accountant.

        Raises:
          ValueError: A number out of range, or a file that is damaged, of another
            format, or of another budget.
          OSError: The file cannot be written. Nothing has been spent.
          TypeError: The ledger is open: opened anew, one in memory would forget what
            was charged, and any could get a larger budget.
        """
        if vars(self):
            raise TypeError(
                "This PrivacyBudget is open already, and was left as it is. Make "
                "another one for other data."
            )
        _validate.positive(epsilon=epsilon)
        _validate.delta(delta=delta)
        _validate.one_of(COMPOSITIONS, composition=composition)
        _validate.one_of(ACCOUNTANTS, accountant=accountant)
        if math.isfinite(epsilon) and delta == 0:
            raise ValueError(
                f"Expected delta={delta!r} to be positive with a finite "
                f"epsilon={epsilon!r}: Gaussian noise never gives pure differential "
                "privacy. Choose a delta well below 1 / num_rows, such as 1e-6."
            )
        self._epsilon = float(epsilon)
        self._delta = float(delta)
        self._composition: Composition = composition
        self._accountant: Accountant = accountant
        # A link would be replaced by the first charge, and other programs go on with
        # the file that it pointed to; a relative path would move with the process.
        self._file = None
        if path is not None:
            resolved = Path(path).resolve()
            self._file = LedgerFile(
                resolved, self._epsilon, self._delta, composition, accountant
            )
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._is_changing = False
        self._charges: tuple[Charge, ...] = ()
        if self._file is not None:
            with self._file.locked():
                fits: dict[str, FitInSteps] = {}
                # Not where it merely cannot be read, which `Path.exists` may take for
                # absence: an empty ledger would be put in its place.
                with contextlib.suppress(FileNotFoundError):
                    self._charges, fits = self._file.contents()
                # Also proves, before anything is spent, that charging will work.
                self._file.write(self._charges, fits)

    def __init_subclass__(cls) -> None:
        raise TypeError(
            f"{cls.__name__} is made a subclass of PrivacyBudget, which has none: a "
            "method of its own could charge something else. Hold a PrivacyBudget in a "
            "class of your own instead."
        )

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
    def accountant(self) -> Accountant:
        """Who prices fits: `"pld"`, `"moments"` or `"strong"`."""
        return self._accountant

    @property
    def path(self) -> Path | None:
        """The file that keeps the ledger, None if it is kept in memory."""
        return None if self._file is None else self._file.path

    @property
    def is_private(self) -> bool:
        """Whether epsilon is finite; if not, there is no noise and no guarantee."""
        return math.isfinite(self._epsilon)

    @property
    def charges(self) -> tuple[Charge, ...]:
        """Everything that was charged, oldest first, also by other processes.

        >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
        >>> charge = budget.charge(
        ...     epsilon=0.25,
        ...     delta=5e-7,
        ...     unit="people",
        ...     relation="add_or_remove",
        ...     events=(),
        ...     label="a survey",
        ... )
        >>> [(charge.label, charge.epsilon) for charge in budget.charges]
        [('a survey', 0.25)]
        """
        with self._lock:
            return self._current_charges()

    @property
    def relation(self) -> Relation | None:
        """The relation of the first charge, which every later one must share."""
        charges = self.charges
        return charges[0].relation if charges else None

    @property
    def unit(self) -> str | None:
        """Whose rows the first charge is about, which every later one must share.

        None before the first charge.
        """
        charges = self.charges
        return charges[0].unit if charges else None

    @property
    def code(self) -> str:
        """The code that opens such a ledger, but for its file.

        >>> PrivacyBudget(1.0, 1e-6, accountant="moments").code
        "PrivacyBudget(epsilon=1.0, delta=1e-06, accountant='moments')"
        """
        arguments: dict[str, float | str] = {"epsilon": self._epsilon}
        arguments["delta"] = self._delta
        if self._composition != "split":
            arguments["composition"] = self._composition
        if self._accountant != "pld":
            arguments["accountant"] = self._accountant
        given = [f"{name}={code_of_value(x)}" for name, x in arguments.items()]
        return f"PrivacyBudget({', '.join(given)})"

    def spent(self) -> Spending:
        """What has been spent so far, by the ledger's own rule of composition.

        >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
        >>> budget.spent()
        Spending(epsilon=0.0, delta=0.0)
        """
        with self._lock:
            return self._spending(self._current_charges())

    def remaining(self) -> Spending:
        """What a next fit may still ask for.

        Under `"rdp"` the delta is the whole budget's, shared by all fits, and the
        epsilon is the difference to what the filter reads, so a fit may get more by
        asking `calibrate_events`.

            >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
            >>> budget.remaining()
            Spending(epsilon=1.0, delta=1e-06)
        """
        with self._lock:
            if not self.is_private:
                return Spending(math.inf, self._delta)
            charges = self._current_charges()
            if self._composition == "rdp":
                spent = self._spending(charges)
                return Spending(max(0.0, self._epsilon - spent.epsilon), self._delta)
            left_epsilon = exact(self._epsilon) - total("epsilon", charges)
            left_delta = exact(self._delta) - total("delta", charges)
            return Spending(float(max(0, left_epsilon)), float(max(0, left_delta)))

    def check(
        self,
        *,
        epsilon: float,
        delta: float,
        unit: str,
        relation: Relation,
        events: Sequence[GaussianEvent],
    ) -> None:
        """Raises what `charge` would raise, and spends nothing.

        The arguments are those of `charge`.

            >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
            >>> budget.check(
            ...     epsilon=1.0,
            ...     delta=1e-6,
            ...     unit="people",
            ...     relation="add_or_remove",
            ...     events=(),
            ... )
            >>> budget.charges
            ()

        Raises:
          BudgetExceededError: The charge would overrun the budget.
          ValueError: The unit or the relation is not the ledger's, a number is out of
            range, or the events cost more than `epsilon`.
        """
        entry = _entry(epsilon, delta, unit, relation, events, self._accountant)
        with self._lock:
            self._check(self._current_charges(), entry)

    def charge(
        self,
        *,
        epsilon: float,
        delta: float,
        unit: str,
        relation: Relation,
        events: Sequence[GaussianEvent],
        label: str = "",
        in_steps: str | None = None,
    ) -> Charge:
        """Charges a fit, durably, before its data are read.

            >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
            >>> step = GaussianEvent(
            ...     noise_stddev=20.0,
            ...     sensitivity=1.0,
            ...     relation="add_or_remove",
            ...     sampling="full",
            ...     sampling_rate=1.0,
            ...     num_steps=10,
            ... )
            >>> charge = budget.charge(
            ...     epsilon=0.7,
            ...     delta=5e-7,
            ...     unit="people",
            ...     relation="add_or_remove",
            ...     events=[step],
            ... )
            >>> charge.unit, round(budget.remaining().epsilon, 3)
            ('people', 0.3)

        Args:
          epsilon: The fit's own epsilon, as the ledger's accountant prices `events`, or
            its share.
          delta: The fit's own delta.
          unit: Who is protected: the name of the plate of private rows.
          relation: The neighbouring relation.
          events: Every noisy release of the fit. A release of another kind has none,
            and counts by its epsilon and delta alone: only with `"split"`.
          label: What is fitted, for people.
          in_steps: A name that no other fit has, if the ledger is to count the fit's
            steps, so that it may go on after an interruption. It must have a file.

        Returns:
          The entry. On an exception nothing was charged.

        Raises:
          BudgetExceededError: The charge would overrun the budget.
          ValueError: The unit or the relation is not the ledger's, a number is out of
            range, or the events cost more than `epsilon`.
          RuntimeError: The ledger has no file and another process opened it, or this
            thread is in the middle of a charge, as where a signal is handled.
        """
        entry = _entry(epsilon, delta, unit, relation, events, self._accountant, label)
        if self.is_private and self._file is None and os.getpid() != self._process:
            raise RuntimeError(
                "This ledger is kept in the memory of the process that opened it, and "
                "a process that was forked from it has a copy: what one spends the "
                "others do not see. Nothing was charged. Open the ledger with path=, "
                "which processes may share."
            )
        with self._changing():
            charges, fits = self._current()
            self._check(charges, entry)
            if self._file is not None:
                if in_steps is not None:
                    fits[in_steps] = FitInSteps(charge=len(charges))
                self._file.write((*charges, entry), fits)
            self._charges = (*charges, entry)
            return entry

    def fit_in_steps(self, name: str) -> tuple[Charge, FitInSteps] | None:
        """What was charged for a fit, and how far it has come; None if there is none.

        Args:
          name: What `charge` got as `in_steps`.
        """
        with self._lock:
            charges, fits = self._current()
            return (charges[fits[name].charge], fits[name]) if name in fits else None

    def count_step(self, name: str, steps: int, key: str) -> None:
        """Counts a step of a fit as released, durably, and only once.

        Args:
          name: What `charge` got as `in_steps`.
          steps: How many have been released with this one.
          key: What the step's numbers are read with.

        Raises:
          RuntimeError: The step was counted before, by who goes on with the same fit.
        """
        assert self._file is not None, "only a file counts steps"
        with self._changing():
            _, fits = self._current()
            if name not in fits or fits[name].steps != steps - 1:
                raise RuntimeError(
                    "Another program has gone on with this fit, and its ledger has "
                    "counted this step. It was not released a second time."
                )
            self._file.count(
                name, dataclasses.replace(fits[name], steps=steps, key=key)
            )

    def calibrate_events(
        self,
        events: Sequence[GaussianEvent],
        *,
        epsilon: float | None = None,
        delta: float | None = None,
    ) -> float:
        """The smallest factor on the events' noise with which the ledger takes them.

            >>> budget = PrivacyBudget(epsilon=1.0, delta=1e-6)
            >>> step = GaussianEvent(
            ...     noise_stddev=20.0,
            ...     sensitivity=1.0,
            ...     relation="add_or_remove",
            ...     sampling="full",
            ...     sampling_rate=1.0,
            ...     num_steps=10,
            ... )
            >>> round(budget.calibrate_events([step]), 2)
            0.67

        Args:
          events: The schedule of the next fit.
          epsilon: The fit's share; by default all that is left.
          delta: The fit's share; by default all that is left.

        Returns:
          Factor for `accounting.scale_noise`; 0 without privacy.

        Raises:
          BudgetExceededError: Nothing is left.
        """
        if not self.is_private and epsilon is None:
            return 0.0
        events = tuple(events)  # More than once, whatever they come from.
        left = self.remaining()
        # A fit that takes all leaves what its calibration could not resolve.
        least = self._epsilon * 2e-3 if self._composition == "rdp" else 0.0
        if left.epsilon <= least:
            raise BudgetExceededError(
                "Nothing is left of the privacy budget. "
                f"{self._summary(self.charges)} Use other data, or decide on a larger "
                "budget and open a new ledger."
            )
        if self.is_private and left.delta == 0:
            raise BudgetExceededError(
                "No delta is left of the privacy budget. "
                f"{self._summary(self.charges)} A fit takes all that is left unless "
                "its share is given: give every fit of a ledger epsilon= and delta=. "
                "This one needs a larger budget."
            )
        share_delta = left.delta if delta is None else delta
        if self._composition == "split" or not self.is_private:
            share = left.epsilon if epsilon is None else epsilon
            return accounting.calibrate_events(
                events, epsilon=share, delta=share_delta, accountant=self._accountant
            )
        before = [event for charge in self.charges for event in charge.events]

        def reading(factor: float) -> float:
            scaled = [accounting.scale_noise(event, factor) for event in events]
            return filter_epsilon([*before, *scaled], self._epsilon, self._delta)

        start = accounting.calibrate_events(
            events, epsilon=left.epsilon, delta=self._delta, accountant="moments"
        )
        factor = accounting.smallest_factor(reading, self._epsilon, start=start)
        if epsilon is None:
            return factor
        share_factor = accounting.calibrate_events(
            events, epsilon=epsilon, delta=share_delta, accountant=self._accountant
        )
        return max(factor, share_factor)

    def _check(self, charges: tuple[Charge, ...], entry: Charge) -> None:
        if charges:
            check_neighbours(charges[0], entry)
        if self.is_private:
            self._check_budget(charges, entry)
        check_price(entry)

    def _check_budget(self, charges: tuple[Charge, ...], entry: Charge) -> None:
        """Refuses what the ledger cannot pay.

        Args:
          charges: What was charged before.
          entry: What is asked for.

        Raises:
          BudgetExceededError: By the ledger's composition, all of them together are
            more than its budget, or the entry has no noise at all.
          ValueError: A Rényi filter gets an entry without events, which it would
            count as free.
        """
        if math.isinf(entry.epsilon):
            raise BudgetExceededError(
                "The fit has no noise, so its epsilon is infinite. "
                f"{self._summary(charges)} Nothing was charged. Use "
                "PrivacyBudget(math.inf) for a fit that need not be private."
            )
        if self._composition == "rdp":
            if (entry.epsilon > 0 or entry.delta > 0) and not entry.events:
                raise ValueError(
                    f"Expected the events of a fit of epsilon={entry.epsilon!r}, "
                    f"delta={entry.delta!r}, got none: the ledger's Rényi filter adds "
                    "up events and would count it as free. Nothing was charged. Charge "
                    "what is no Gaussian release to a ledger with composition='split'."
                )
            events = [event for charge in (*charges, entry) for event in charge.events]
            reading = filter_epsilon(events, self._epsilon, self._delta)
            # Written so that a reading that is not a number is refused.
            if not reading <= self._epsilon * (1 + float(_ROUNDING)):
                raise BudgetExceededError(
                    "The fit would raise the ledger's Rényi filter to epsilon="
                    f"{reading:.6g}. {self._summary(charges)} Nothing was charged. "
                    "Use more noise (calibrate_events finds how much), fewer steps or "
                    "a lower sampling rate."
                )
            return
        together = (*charges, entry)
        most_epsilon = exact(self._epsilon) * (1 + _ROUNDING)
        most_delta = exact(self._delta) * (1 + _ROUNDING)
        if total("epsilon", together) > most_epsilon or (
            total("delta", together) > most_delta
        ):
            raise BudgetExceededError(
                f"The fit asks for epsilon={entry.epsilon:.6g}, "
                f"delta={entry.delta:.3g}. "
                f"{self._summary(charges)} Nothing was charged. Ask for a smaller "
                "share (epsilon=, delta=), or open the ledger with a larger budget "
                "before the first fit."
            )

    @contextlib.contextmanager
    def _changing(self) -> Generator[None]:
        """Keeps all others out while what was spent is looked at and added to.

        The lock lets its own thread through, in which Python may run the handler of a
        signal at any place: what that charged would be forgotten.

        Raises:
          RuntimeError: This thread is in the middle of another change.
        """
        with self._lock:
            if self._is_changing:
                raise RuntimeError(
                    "Another charge of this privacy ledger is under way in this "
                    "thread, as where the handler of a signal runs a fit. Nothing was "
                    "charged. Let the handler leave a note, and run the fit later."
                )
            try:
                self._is_changing = True
                with contextlib.ExitStack() as stack:
                    if self._file is not None:
                        stack.enter_context(self._file.locked())
                    yield
            finally:
                self._is_changing = False

    def _current_charges(self) -> tuple[Charge, ...]:
        charges, _ = self._current()
        return charges

    def _current(self) -> tuple[tuple[Charge, ...], dict[str, FitInSteps]]:
        """What has been charged, and fits that may go on, by their names.

        Takes note of what other processes have charged to the same file.
        """
        fits: dict[str, FitInSteps] = {}
        if self._file is not None:
            charges, fits = self._file.contents()
            if charges[: len(self._charges)] != self._charges:
                raise ValueError(
                    f"Expected the ledger {str(self._file.path)!r} to begin with the "
                    "charges that this program has seen. It was replaced by another or "
                    "an older one, and nothing was charged: restore the newest copy."
                )
            self._charges = charges
        return self._charges, fits

    def _spending(self, charges: tuple[Charge, ...]) -> Spending:
        if not charges:
            return Spending(0.0, 0.0)
        if any(math.isinf(charge.epsilon) for charge in charges):
            return Spending(math.inf, float(total("delta", charges)))
        if self._composition == "rdp" and self.is_private:
            events = [event for charge in charges for event in charge.events]
            reading = filter_epsilon(events, self._epsilon, self._delta)
            return Spending(reading, self._delta)
        return Spending(
            float(total("epsilon", charges)), float(total("delta", charges))
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
            f"composition={self._composition!r}, accountant={self._accountant!r}, "
            f"spent_epsilon={spent.epsilon:.6g}, "
            f"spent_delta={spent.delta:.3g}, charges={len(self.charges)})"
        )

    def __str__(self) -> str:
        """A table of what was spent on what."""
        return as_text(self._table())

    def _repr_html_(self) -> str:
        """The same table for notebooks, as HTML."""
        return as_html(self._table())

    def _table(self) -> BudgetTable:
        with self._lock:
            spent, left, charges = self.spent(), self.remaining(), self._charges
        return budget_table(
            epsilon=self._epsilon,
            delta=self._delta,
            composition=self._composition,
            accountant=self._accountant,
            charges=charges,
            spent=spent,
            left=left,
        )


def _entry(
    epsilon: float,
    delta: float,
    unit: str,
    relation: Relation,
    events: Sequence[GaussianEvent],
    accountant: Accountant,
    label: str = "",
) -> Charge:
    # Numbers are checked as they came: what follows turns them into Python's own.
    _validate.nonnegative(epsilon=epsilon)
    _validate.delta(delta=delta)
    return Charge(
        label=label,
        unit=unit,
        epsilon=float(epsilon),
        delta=float(delta),
        relation=relation,
        accountant=accountant,
        events=tuple(events),
        time=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def check_is_budget(budget: object) -> None:
    """Refuses what is no ledger, with what to write instead."""
    if not isinstance(budget, PrivacyBudget):
        raise TypeError(
            f"Expected budget to be a PrivacyBudget, got {type(budget).__name__}. Use "
            "PrivacyBudget(epsilon=..., delta=...)."
        )
