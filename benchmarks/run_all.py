"""Runs the comparisons in parts, and writes what they print into docs/benchmarks.md.

    python benchmarks/run_all.py              # what has no record yet
    python benchmarks/run_all.py --again NAME # a part anew
    python benchmarks/run_all.py --list

Each part is a script of this folder with arguments. Its output is kept in
`benchmarks/records/all.json` as soon as it has ended, so that a run may be stopped and
goes on where it was. Parts that need public data from elsewhere are not among them.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from _finished import Finished
from _marks import put_between_marks

FOLDER = Path(__file__).parent
RECORDS = FOLDER / "records" / "all.json"
PAGE = FOLDER.parent / "docs" / "benchmarks.md"
# By name: what is measured, and the command.
PARTS = {
    "topics": (
        "Topic models without noise, beside scikit-learn",
        "peers.py topics",
    ),
    "diffprivlib": (
        "Logistic regressions, beside diffprivlib (test AUC)",
        "peers.py logistic",
    ),
    "linear": (
        "Linear regressions: excess error beside AdaSSP",
        "frontier.py linear independent correlated indicators --repeats 3",
    ),
    "logistic": (
        "Logistic regressions: test AUC",
        "frontier.py logistic 'like A' 'like C' --repeats 3",
    ),
    "coverage": (
        "Coverage of intervals of 90 %",
        "coverage.py Gaussian 'regression, unknown noise' visits logistic "
        "--repetitions 40",
    ),
    "start": ("How long a fit takes to start", "repeated_fits.py"),
    "steps": ("What a step of DPVI costs", "dpvi_steps.py"),
    "accountants": ("Accountants: prices and seconds", "accounting.py --quick"),
}
LIBRARIES = ("numpyro_vips", "jax", "jaxlib", "numpyro", "numpy", "scikit-learn")


def measure(command: str) -> dict[str, Any]:
    """What the command prints, how long it takes, and on what."""
    start = time.perf_counter()
    run = subprocess.run(
        f"{sys.executable} {FOLDER}/{command}",
        shell=True,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return {
        "output": run.stdout.strip(),
        "seconds": time.perf_counter() - start,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, "
        f"{platform.system()}, Python {platform.python_version()}",
        "versions": {name: metadata.version(name) for name in LIBRARIES},
    }


def section(title: str, command: str, record: dict[str, Any]) -> str:
    """A part of the page: the command, its output, where it ran."""
    output = record["output"]
    if not output.startswith("|"):
        output = f"```text\n{output}\n```"
    versions = ", ".join(f"{k} {v}" for k, v in record["versions"].items())
    return (
        f"## {title}\n\n```bash\npython benchmarks/{command}\n```\n\n{output}\n\n"
        f"{record['seconds']:.0f} s on {record['machine']}; {versions}.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--again", nargs="+", default=[], choices=PARTS)
    parser.add_argument("--list", action="store_true", help="names of the parts")
    args = parser.parse_args()
    finished = Finished(RECORDS)
    if args.list:
        for name, (title, _) in PARTS.items():
            print(f"{name:12} {'done' if name in finished else '-':5} {title}")
        return
    finished.forget(args.again)
    sections = []
    for name, (title, command) in PARTS.items():
        print(title, flush=True)
        record = finished.get(name, lambda command=command: measure(command))
        sections.append(section(title, command, record))
        put_between_marks(PAGE, "\n".join(sections))


if __name__ == "__main__":
    main()
