"""Sigmoid belief networks on MNIST: time, memory, and the VIPS paper's figure 8.

    python benchmarks/sbn.py --data FOLDER --speed
    python benchmarks/sbn.py --data FOLDER --table --num-units 50 --seeds 10
    python benchmarks/sbn.py --data FOLDER --table --batch-sizes 3200 --seeds 1

`--speed` runs one epoch with K = 50 and S = 400, without and with noise, each in a
process of its own, and prints seconds and peak memory. `--table` prints, for each S,
pixel accuracy and bound per pixel on test images of: the paper's run without noise, the
paper's run at σ = 1 priced by the moments accountant, the noise that strong composition
would need for that ε, and our mode at the ε that the paper's noise really costs (PLD,
the same relation and δ), and the same schedule without noise. `--into docs/sbn.md` and
`--figure docs/sbn.png` write what the documentation shows. With `--json FILE` every fit
is written down when it is done, and is not done again by the next call; so a table can
be made in parts, `--rows`, `--num-units`, `--batch-sizes` and `--seeds` choosing which.
`--finished` shows what there is and fits nothing.

`--wrong W [W ...]` compares values of the example's `WRONG`, which sets the units of
our mode: at S = 400's ε with a tenth of the noise, on a tenth of the training images,
by accuracy on other training images.
"""

import argparse
import functools
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import numpy as np
from _finished import Finished
from _marks import put_between_marks
from _memory import peak_bytes

import numpyro_vips as nv
import sigmoid_belief_network as example

DELTA = 1e-4
# Our mode's schedule: large minibatches, twice through the data.
OUR_STEPS = 20
OUR_RATE = 0.1
SCHEDULE = (
    *("--sampling", "without_replacement"),
    *("--sampling-rate", repr(OUR_RATE)),
    *("--num-steps", str(OUR_STEPS)),
)
ROWS = (
    "non-private",
    "paper, moments",
    "paper, strong",
    "ours",
    "ours, without noise",
)


def main() -> None:
    args = _parse()
    if args.one is not None:
        print(json.dumps(_one(args, **json.loads(args.one))))
        return
    if args.speed:
        for sigma in ("inf", "1"):
            found = _in_process(args, options=["--paper", "400", "--sigma", sigma])
            label = "without noise" if sigma == "inf" else "with noise"
            print(
                f"one epoch, K = 50, S = 400, {label}: {found['seconds']:.0f} s "
                f"(compiling and all), peak memory {found['peak_gb']:.2f} GB",
                flush=True,
            )
    for wrong in args.wrong:
        found = _in_process(args, options=_scaled_down(args), wrong=wrong)
        print(f"WRONG = {wrong}: accuracy {found['accuracy']:.4f}", flush=True)
    if args.table:
        records = _table(args)
        text = _markdown(records)
        print(text)
        if args.into is not None:
            put_between_marks(args.into, text)
        if args.figure is not None:
            _figure(records, args.figure)


def _table(args: argparse.Namespace) -> list[dict[str, Any]]:
    finished = Finished(args.json)
    records = []
    for units in args.num_units:
        for size in args.batch_sizes:
            moments, true = _prices(args.num_rows, size)
            runs = {
                "non-private": ["--paper", str(size), "--sigma", "inf"],
                "paper, moments": ["--paper", str(size), "--sigma", "1"],
                "paper, strong": [
                    *("--paper", str(size)),
                    *("--sigma", f"{_strong_sigma(args.num_rows, size, moments):.4g}"),
                ],
                "ours": ["--epsilon", repr(true), *SCHEDULE],
                "ours, without noise": ["--epsilon", "inf", *SCHEDULE],
            }
            for name in args.rows:
                found = []
                for seed in range(args.seeds):
                    options = [*runs[name], "--seed", str(seed)]
                    key = f"K={units} N={args.num_rows} {' '.join(options)}"
                    if args.finished and key not in finished:
                        continue
                    measure = functools.partial(
                        _in_process, args, options=options, units=units
                    )
                    found.append(finished.get(key, measure))
                if not found:
                    continue
                record = {
                    "K": units,
                    "S": size,
                    "run": name,
                    "moments": moments,
                    "pld": true,
                    "accuracy": [x["accuracy"] for x in found],
                    "bound_per_pixel": [x["bound_per_pixel"] for x in found],
                    "seconds": [x["seconds"] for x in found],
                }
                records.append(record)
                print(json.dumps(record), flush=True)
    return records


def _scaled_down(args: argparse.Namespace) -> list[str]:
    """Our mode with a tenth of the noise, for a tenth of the images."""
    sigma = nv.accounting.calibrate(
        epsilon=_prices(args.num_rows, 400)[1],
        delta=DELTA,
        sampling_rate=OUR_RATE,
        num_steps=OUR_STEPS,
        sampling="without_replacement",
    )
    # The budget is out of the way: these fits are compared, not published.
    return ["--epsilon", "1e4", "--sigma", repr(sigma / 10), *SCHEDULE]


def _prices(num_rows: int, size: int) -> tuple[float, float]:
    """ε of the paper's noise by the moments accountant, and by PLD."""
    prices = [
        nv.accounting.epsilon(
            noise_multiplier=1.0,
            sampling_rate=size / num_rows,
            num_steps=num_rows // size,
            delta=DELTA,
            sampling="without_replacement",
            accountant=accountant,
        )
        for accountant in ("moments", "pld")
    ]
    return prices[0], prices[1]


def _strong_sigma(num_rows: int, size: int, epsilon: float) -> float:
    """The noise that strong composition asks for at this ε."""
    return nv.accounting.calibrate(
        epsilon=epsilon,
        delta=DELTA,
        sampling_rate=size / num_rows,
        num_steps=num_rows // size,
        sampling="without_replacement",
        accountant="strong",
    )


def _in_process(
    args: argparse.Namespace,
    *,
    options: list[str],
    units: int = 50,
    wrong: int | None = None,
) -> dict[str, Any]:
    """One run in a process of its own, so that its peak memory is its own."""
    task = json.dumps({"options": options, "units": units, "wrong": wrong})
    command = [sys.executable, __file__, "--data", args.data, "--one", task]
    if args.subset is not None:
        command += ["--subset", str(args.subset)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _one(
    args: argparse.Namespace, *, options: list[str], units: int, wrong: int | None
) -> dict[str, Any]:
    images = example.load(args.data)
    train, test = images.train[: args.subset], images.test
    if wrong is not None:
        example.WRONG = wrong
        tenth = len(train) // 10
        train, test = train[:tenth], train[tenth : 2 * tenth]
    parsed = example._parser().parse_args(
        [
            *("--num-units", str(units), "--prior", "tpbn"),
            *("--delta", str(DELTA), "--no-progress", *options),
        ]
    )
    start = time.perf_counter()
    result = example.fit(train, parsed)
    seconds = time.perf_counter() - start
    peak = peak_bytes() / 1e9
    accuracies, bounds = example.evaluate(result, test, 10)
    return {
        "seconds": seconds,
        "peak_gb": peak,
        "accuracy": float(np.mean(accuracies)),
        "bound_per_pixel": float(np.mean(bounds)),
    }


def _markdown(records: list[dict[str, Any]]) -> str:
    """A row for each K and S, a column for each run; blank where nothing was run."""
    shown = [name for name in ROWS if any(r["run"] == name for r in records)]
    cells = {(r["K"], r["S"], r["run"]): r for r in records}
    lines = [
        f"| K | S | ε, moments accountant | ε, PLD | {' | '.join(shown)} "
        "| gap, ours / paper | fits |",
        "|---:|---:|---:|---:|" + "---:|" * len(shown) + "---:|---:|",
    ]
    for units, size in dict.fromkeys((r["K"], r["S"]) for r in records):
        row = [cells.get((units, size, name)) for name in shown]
        first = next(r for r in row if r is not None)
        counts = [len(r["accuracy"]) for r in row if r is not None]
        columns = [
            f"{units} | {size} | {first['moments']:.3f} | {first['pld']:.3f}",
            *map(_cell, row),
            _gap_ratio(cells, units, size),
            " to ".join(str(n) for n in sorted({min(counts), max(counts)})),
        ]
        lines.append(f"| {' | '.join(columns)} |")
    return "\n".join(lines) + "\n"


def _gap_ratio(
    cells: dict[tuple[int, int, str], dict[str, Any]], units: int, size: int
) -> str:
    """How far our mode is from the run without noise, in units of the paper's gap."""
    names = ("non-private", "paper, moments", "ours")
    found = [cells.get((units, size, name)) for name in names]
    if None in found:
        return ""
    whole, paper, ours = (np.mean(r["accuracy"]) for r in found if r is not None)
    return f"{(whole - ours) / (whole - paper):.2f}"


def _cell(record: dict[str, Any] | None) -> str:
    """Accuracy, and in brackets the bound per pixel; means over the fits."""
    if record is None:
        return ""
    accuracy, bound = record["accuracy"], record["bound_per_pixel"]
    spread = f" ± {np.std(accuracy, ddof=1):.3f}" if len(accuracy) > 1 else ""
    return f"{np.mean(accuracy):.3f}{spread} ({np.mean(bound):.3f})"


def _figure(records: list[dict[str, Any]], path: Path) -> None:
    """Accuracy against S, a panel per K: the counterpart of figure 8."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes = sorted({record["K"] for record in records})
    figure, axes = pyplot.subplots(
        1,
        len(sizes),
        squeeze=False,
        sharey=True,
        figsize=(4.5 * len(sizes), 3.6),
        layout="constrained",
    )
    for axis, units in zip(axes[0], sizes, strict=True):
        for name in dict.fromkeys(record["run"] for record in records):
            mine = [r for r in records if r["run"] == name and r["K"] == units]
            mean = [np.mean(r["accuracy"]) for r in mine]
            spread = [np.std(r["accuracy"]) for r in mine]
            axis.errorbar([r["S"] for r in mine], mean, spread, label=name, marker="o")
        axis.set_xscale("log")
        axis.set_xticks(sorted({r["S"] for r in records}))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.set_title(f"K = {units}")
        axis.set_xlabel("images per minibatch of the paper")
    axes[0][0].set_ylabel("pixel accuracy on test images")
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5
    )
    figure.savefig(str(path), bbox_inches="tight", dpi=120)
    pyplot.close(figure)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of MNIST's idx files")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--wrong", type=int, nargs="+", default=[], metavar="W")
    parser.add_argument("--num-units", type=int, nargs="+", default=[50, 100])
    parser.add_argument(
        "--batch-sizes", type=int, nargs="+", default=[400, 800, 1600, 3200]
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=ROWS)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--subset", type=int, help="train on the first images only")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--into", type=Path, metavar="FILE", help="put the table between its marks"
    )
    parser.add_argument("--finished", action="store_true", help="no further fits")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.num_rows = args.subset or 60_000
    if not (args.speed or args.table or args.wrong or args.one):
        parser.error("Ask for --speed, --table or --wrong.")
    if math.prod(args.batch_sizes) <= 0:
        parser.error("Expected --batch-sizes to be positive.")
    return args


if __name__ == "__main__":
    main()
