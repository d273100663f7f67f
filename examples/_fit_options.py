"""Options that the examples' fits share, and their report."""

import argparse
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpyro_vips as nv


def add_fit_options(parser: argparse.ArgumentParser) -> None:
    """Adds the budget, the guide and what else `fit_settings` and `budget` read."""
    parser.add_argument("--epsilon", type=float, default=1.0, help="inf: not private")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument(
        "--guide", choices=("mean_field", "full_rank", "low_rank"), default="mean_field"
    )
    parser.add_argument("--num-steps", type=int)
    parser.add_argument("--sampling-rate", type=float)
    parser.add_argument("--clipping-norm", type=float)
    add_run_options(parser)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Adds what every example has: the seed of the noise, and where output goes."""
    parser.add_argument(
        "--insecure-seed", type=int, help="repeatable noise, which protects nobody"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", default=Path("demo-output")
    )
    parser.add_argument("--no-progress", action="store_true")


def given(**settings: Any) -> dict[str, Any]:
    """The settings that were given; the library chooses the others."""
    return {name: value for name, value in settings.items() if value is not None}


def budget(args: argparse.Namespace) -> nv.PrivacyBudget:
    """The ledger of a single fit; without noise for an infinite ε."""
    return nv.PrivacyBudget(
        args.epsilon, args.delta if math.isfinite(args.epsilon) else 0.0
    )


def sampling_of(
    name: str | None, rate: float | None, relation: Any = None
) -> nv.FullBatch | nv.Poisson | nv.WithoutReplacement:
    """What `--sampling`, `--sampling-rate` and `--relation` mean together.

    A rate alone is that of Poisson sampling. Without a rate a step uses all rows.

    Raises:
      ValueError: They contradict each other.
    """
    share = 1.0 if rate is None else rate
    if name == "poisson" or (name is None and rate is not None):
        found = nv.Poisson(share)
    elif name == "without_replacement":
        found = nv.WithoutReplacement(share)
    else:
        found = nv.FullBatch(relation=relation or "add_or_remove")
    if found.rate != share or relation not in (None, found.relation):
        raise ValueError(
            f"Expected --sampling={name}, --sampling-rate={rate} and "
            f"--relation={relation} to go together: a full batch has all rows and may "
            "have either relation, Poisson sampling has add_or_remove, and sampling "
            "without replacement replace_one."
        )
    return found


def fit_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `PrivateVI`; DPVI has a guide."""
    return {
        "engine": nv.DPVI(guide=args.guide),
        "num_steps": args.num_steps,
        "sampling": sampling_of(None, args.sampling_rate),
        "clipping_norm": args.clipping_norm,
        "insecure_seed": args.insecure_seed,
        "progress_bar": not args.no_progress,
    }


def epsilon_for_json(args: argparse.Namespace) -> float | str:
    """JSON has no infinity."""
    return args.epsilon if math.isfinite(args.epsilon) else "inf"


def write_json(report: Mapping[str, Any], args: argparse.Namespace) -> None:
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
