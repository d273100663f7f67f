"""The three accountants on one grid: prices, times, and calibration.

    python benchmarks/accounting.py [--quick] [--json FILE]

Prints, for every schedule, epsilon by privacy loss distributions, by the analytical
moments accountant and by strong composition, how many times dearer the moments
accountant is, and how long a price and a calibration take; for Poisson batches also
dp-accounting's own price. The papers' runs come first.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import dp_accounting

from numpyro_vips import accounting
from numpyro_vips.accounting import Accountant, Sampling


class Schedule(NamedTuple):
    """Steps to price, with the name of the run they come from."""

    name: str
    sampling: Sampling
    noise_multiplier: float
    sampling_rate: float
    num_steps: int
    delta: float


def papers() -> Iterator[Schedule]:
    """The runs of the VIPS papers, as they are: batches without replacement."""
    yield Schedule("LDA", "without_replacement", 1.24, 0.05, 20, 1e-4)
    for size, steps in ((400, 150), (800, 75), (1600, 37), (3200, 18)):
        yield Schedule(
            f"SBN {size}", "without_replacement", 1.0, size / 60_000, steps, 1e-4
        )
    for noise in (1.0, 6.0, 12.0):
        yield Schedule("Adult", "without_replacement", noise, 0.004, 100, 1e-3)


def grid(quick: bool) -> Iterator[Schedule]:
    """A hundred schedules and more, for each kind of batch."""
    noises = (1.0, 4.0) if quick else (0.7, 1.0, 2.0, 5.0, 12.0)
    rates = (0.01,) if quick else (0.002, 0.01, 0.05, 0.2)
    steps = (100,) if quick else (1, 30, 1000)
    samplings: tuple[Sampling, ...] = ("poisson", "without_replacement")
    for sampling, noise, rate, count in itertools.product(
        samplings, noises, rates, steps
    ):
        yield Schedule("", sampling, noise, rate, count, 1e-5)
    for noise, count in itertools.product((1.0, 10.0, 100.0), (1, 30)):
        yield Schedule("", "full", noise, 1.0, count, 1e-5)


def price(schedule: Schedule, accountant: Accountant) -> float:
    """Epsilon of the schedule."""
    return accounting.epsilon(
        noise_multiplier=schedule.noise_multiplier,
        sampling_rate=schedule.sampling_rate,
        num_steps=schedule.num_steps,
        delta=schedule.delta,
        sampling=schedule.sampling,
        accountant=accountant,
    )


def calibrated(schedule: Schedule, accountant: Accountant) -> float:
    """Noise multiplier for epsilon = 1 on the schedule."""
    return accounting.calibrate(
        epsilon=1.0,
        delta=schedule.delta,
        sampling_rate=schedule.sampling_rate,
        num_steps=schedule.num_steps,
        sampling=schedule.sampling,
        accountant=accountant,
    )


def reference(schedule: Schedule) -> float:
    """dp-accounting's own price of Poisson batches, on its usual grid."""
    accountant = dp_accounting.pld.PLDAccountant()
    step = dp_accounting.PoissonSampledDpEvent(
        schedule.sampling_rate,
        dp_accounting.GaussianDpEvent(schedule.noise_multiplier),
    )
    return accountant.compose(step, schedule.num_steps).get_epsilon(schedule.delta)


def timed(function: Callable[[], float]) -> tuple[float, float]:
    """The value, and the seconds it took."""
    start = time.perf_counter()
    value = function()
    return value, time.perf_counter() - start


def main() -> None:
    """Prints the table, and a summary of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small grid")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    args = parser.parse_args()

    reference(Schedule("", "poisson", 1.0, 0.1, 1, 1e-5))  # Imports come first.
    columns = "run  batches  noise  rate  steps  delta  pld  moments  strong  ratio"
    print(f"{columns}  dp-accounting  price_s  calibrate_s")
    records = []
    for schedule in (*papers(), *grid(args.quick)):
        pld, seconds = timed(lambda s=schedule: price(s, "pld"))
        moments, strong = price(schedule, "moments"), price(schedule, "strong")
        _, calibration = timed(lambda s=schedule: calibrated(s, "pld"))
        google = reference(schedule) if schedule.sampling == "poisson" else None
        record = {
            **schedule._asdict(),
            "pld": pld,
            "moments": moments,
            "strong": strong,
            "dp_accounting": google,
            "price_seconds": seconds,
            "calibrate_seconds": calibration,
        }
        records.append(record)
        ratio = f"{moments / pld:.2f}" if pld > 0 else "-"
        print(
            f"{schedule.name or '-':9} {schedule.sampling:20}"
            f"{schedule.noise_multiplier:7g} {schedule.sampling_rate:8.4g}"
            f"{schedule.num_steps:6d} {schedule.delta:7.0e} {pld:9.4g} {moments:9.4g}"
            f"{strong:10.4g} {ratio:>6}"
            f"{'-' if google is None else format(google, '.4g'):>10}"
            f"{seconds:8.3f} {calibration:8.3f}",
            flush=True,
        )
    sampled = [r for r in records if r["sampling"] != "full" and r["pld"] > 0]
    ratios = sorted(r["moments"] / r["pld"] for r in sampled)
    print(
        f"moments / pld on sampled batches: {ratios[0]:.2f} to {ratios[-1]:.2f}, "
        f"median {statistics.median(ratios):.2f} of {len(ratios)}"
    )
    slowest = max(r["calibrate_seconds"] for r in records)
    print(f"slowest calibration: {slowest:.2f} s")
    if args.json is not None:
        args.json.write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
