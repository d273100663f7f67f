"""Private logistic regression on the UCI Adult data: test AUC and time.

    python benchmarks/adult.py --data FOLDER --epsilon 0.1 1 --repeats 5

Prints, for each engine and ε, the mean and standard deviation of the test AUC over
independent fits, and the AUC without noise. Each fit has a budget of its own. Seconds
are those of processors, on all cores together, which other programs on the machine
change little: of the first fit, which is planned and compiled, and the median of those
after it.
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))

import numpyro_vips as nv
from _datasets import Dataset, load
from logistic_regression import held_out_auc, model


def main() -> None:
    args = _parse()
    dataset = load(args.data)
    records = []
    for engine in args.engine:
        without = nv.PrivacyBudget(math.inf)
        seconds, auc = _fit(dataset, without, engine, None, args.augmentation)
        print(f"{engine}, not private: AUC {auc:.4f}, {seconds:.1f} s")
        records.append({"engine": engine, "epsilon": "inf", "auc": [auc]})
        for epsilon in args.epsilon:
            fits = [
                _fit(
                    dataset,
                    nv.PrivacyBudget(epsilon, args.delta),
                    engine,
                    args.num_steps,
                    args.augmentation,
                    replace_one=args.sampling == "without_replacement",
                )
                for _ in range(args.repeats)
            ]
            (first, *others), aucs = np.transpose(fits)
            spread = aucs.std(ddof=1) if len(aucs) > 1 else math.nan
            print(
                f"{engine}, epsilon {epsilon:g}: AUC {aucs.mean():.4f} "
                f"(standard deviation {spread:.4f}, {len(aucs)} fits), {first:.1f} s "
                f"for the first and {np.median(others or [first]):.1f} s for others",
                flush=True,
            )
            records.append({"engine": engine, "epsilon": epsilon, "auc": aucs.tolist()})
    if args.json is not None:
        args.json.write_text(json.dumps(records, indent=2) + "\n")


def _fit(
    dataset: Dataset,
    budget: nv.PrivacyBudget,
    engine: str,
    num_steps: int | None,
    augmentation: str = "polya-gamma",
    *,
    replace_one: bool = False,
) -> tuple[float, float]:
    """Seconds of processors and test AUC of one fit of full batches."""
    start = time.process_time()
    vi = nv.PrivateVI(
        model,
        budget=budget,
        # VIPS is what "auto" chooses here.
        engine="dpvi" if engine == "dpvi" else nv.VIPS(augmentation=augmentation),
        sampling=nv.FullBatch(
            relation="replace_one" if replace_one else "add_or_remove"
        ),
        num_steps=num_steps,
        progress_bar=False,
    )
    result = vi.run(jax.random.key(0), dataset.train_features, dataset.train_labels)
    return time.process_time() - start, held_out_auc(result, dataset)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="folder of the UCI files")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0])
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--engine", nargs="+", default=["auto"])
    parser.add_argument(
        "--sampling", choices=("poisson", "full", "without_replacement")
    )
    parser.add_argument("--num-steps", type=int)
    parser.add_argument(
        "--augmentation",
        choices=("polya-gamma", "fixed-curvature"),
        default="polya-gamma",
        help="of the logistic likelihood, for VIPS",
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
