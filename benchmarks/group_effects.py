"""Intervals of regressions with effects of groups, by either engine.

    python benchmarks/group_effects.py [--rows 5000] [--groups 30] [--epsilon 1]
                                       [--repetitions 5] [--engines vips dpvi]
                                       [--predictors "mean + a[g] + slope x"]
                                       [--scale 1]

Rows have a covariate, a group, and in one model a second group; in another each group
has a slope of its own. The table has, for each model and engine, the share of 90 %
intervals that hold the truth, of the globals beside the effects and of the effects; the
residuals' standard deviation, which is 1.5; and how many fits warned. Noise is new in
every run. With a scale the response and its priors are as many times as large, and the
residuals' standard deviation is in units of it.
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_vips as nv

SECOND_GROUPS = 12
SIGMA = 1.5


def effects(name: str, number: int, unit: float, mean: Any = 0.0) -> Any:
    scale = numpyro.sample(f"{name}_scale", dist.HalfNormal(2.0 * unit))
    with numpyro.plate(f"{name}_groups", number):
        return numpyro.sample(name, dist.Normal(mean, scale))


def regression(centre: Any, unit: float, x: Any, y: Any) -> None:
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0 * unit))
    sigma = numpyro.sample("sigma", dist.HalfNormal(3.0 * unit))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(centre + slope * x, sigma), obs=y)


def beside_a_mean(number: int, unit: float, g: Any, h: Any, x: Any, y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0 * unit))
    regression(mean + effects("a", number, unit)[g], unit, x, y)


def about_a_mean(number: int, unit: float, g: Any, h: Any, x: Any, y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0 * unit))
    regression(effects("a", number, unit, mean)[g], unit, x, y)


def crossed(number: int, unit: float, g: Any, h: Any, x: Any, y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0 * unit))
    second = effects("b", SECOND_GROUPS, unit)
    regression(mean + effects("a", number, unit)[g] + second[h], unit, x, y)


def with_slopes(number: int, unit: float, g: Any, h: Any, x: Any, y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0 * unit))
    slope = numpyro.sample("slope", dist.Normal(0.0, 2.0 * unit))
    a, b = effects("a", number, unit, mean), effects("b", number, unit, slope)
    sigma = numpyro.sample("sigma", dist.HalfNormal(3.0 * unit))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(a[g] + b[g] * x, sigma), obs=y)


MODELS: dict[str, Callable[..., None]] = {
    "mean + a[g] + slope x": beside_a_mean,
    "a[g] + slope x": about_a_mean,
    "mean + a[g] + b[h] + slope x": crossed,
    "a[g] + b[g] x": with_slopes,
}


def drawn(
    model: Callable[..., None], args: argparse.Namespace, seed: int
) -> tuple[tuple[np.ndarray, ...], dict[str, Any]]:
    """Rows, and the globals that they were drawn by."""
    rng = np.random.default_rng(seed)
    g = rng.integers(0, args.groups, args.rows)
    h = rng.integers(0, SECOND_GROUPS, args.rows)
    x = rng.normal(size=args.rows)
    mean = rng.normal(0.0, 5.0)
    a, b = rng.normal(size=args.groups), rng.normal(size=SECOND_GROUPS)
    truth = {"mean": mean, "slope": 1.0, "sigma": SIGMA, "a_scale": 1.0, "a": a}
    centre = mean + a[g]
    if model in (about_a_mean, with_slopes):
        truth["a"] = mean + a
    if model is with_slopes:
        b = rng.normal(size=args.groups)
        centre = centre + b[g] * x
        truth |= {"b_scale": 1.0, "b": 1.0 + b}
    if model is crossed:
        centre = centre + b[h]
        truth |= {"b_scale": 1.0, "b": b}
    y = args.scale * (centre + x + SIGMA * rng.normal(size=args.rows))
    return (g, h, x, y), {name: args.scale * value for name, value in truth.items()}


def row_of(name: str, engine: Any, args: argparse.Namespace) -> str:
    """A line of the table."""
    model = MODELS[name]
    beside: list[bool] = []
    of_groups: list[bool] = []
    sigmas, num_warned = [], 0
    for seed in range(args.repetitions):
        rows, truth = drawn(model, args, seed)
        vi = nv.PrivateVI(
            nv.private(model, unit="rows", public=("number", "unit")),
            budget=nv.PrivacyBudget(args.epsilon, 1e-5),
            engine=engine,
            progress_bar=False,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = vi.run(jax.random.key(seed), args.groups, args.scale, *rows)
        num_warned += bool(caught)
        draws = result.sample_posterior(jax.random.key(1), (2000,))
        for site, value in truth.items():
            low, high = np.quantile(np.asarray(draws[site]), [0.05, 0.95], axis=0)
            holds = np.ravel((low <= value) & (value <= high)).tolist()
            (of_groups if site in ("a", "b") else beside).extend(holds)
        sigmas.append(float(np.mean(draws["sigma"])) / args.scale)
    return (
        f"| {name} | {engine} | {np.mean(beside):.2f} | {np.mean(of_groups):.2f} "
        f"| {np.mean(sigmas):.2f} | {num_warned} of {args.repetitions} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--groups", type=int, default=30)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--engines", nargs="+", default=["vips", "dpvi"])
    parser.add_argument("--predictors", nargs="+", choices=MODELS, default=[*MODELS])
    args = parser.parse_args()
    print(
        f"rows {args.rows}, groups {args.groups}, epsilon {args.epsilon}, "
        f"scale {args.scale}"
    )
    print("| predictor | engine | inside | effects inside | sigma | warned |")
    print("|---|---|---|---|---|---|")
    for name in args.predictors:
        for engine in args.engines:
            print(row_of(name, engine, args), flush=True)


if __name__ == "__main__":
    main()
