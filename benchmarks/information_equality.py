"""By how much rows of right and wrong models are found to vary more than these say.

    python benchmarks/information_equality.py [--rows 5000] [--epsilon 1]
        [--repetitions 3]

The first data sets are drawn from the model that is fitted by DPVI, the others from one
with a larger variance. The table has the excess that fits report, see
docs/diagnostics.md, least and largest. Noise is new in every run.
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_vips as nv

Rows = tuple[np.ndarray, np.ndarray]


def line(x: Any) -> Any:
    level: Any = numpyro.sample("level", dist.Normal(0.0, 2.0))
    slope: Any = numpyro.sample("slope", dist.Normal(0.0, 2.0))
    return level + slope * x


def poisson(x: Any, y: Any) -> None:
    mean = jnp.exp(line(x))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Poisson(mean), obs=y)


def negative_binomial(x: Any, y: Any) -> None:
    mean = jnp.exp(line(x))
    shape: Any = numpyro.sample("shape", dist.HalfNormal(3.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.NegativeBinomial2(mean, shape), obs=y)


def weibull(x: Any, y: Any) -> None:
    scale = jnp.exp(line(x))
    shape: Any = numpyro.sample("shape", dist.HalfNormal(3.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Weibull(scale, shape), obs=y)


def gamma(x: Any, y: Any) -> None:
    mean = jnp.exp(line(x))
    shape: Any = numpyro.sample("shape", dist.HalfNormal(3.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Gamma(shape, shape / mean), obs=y)


def means(rng: np.random.Generator, rows: int) -> Rows:
    x = rng.normal(size=rows)
    return x, np.exp(1.0 + 0.5 * x)


def counts(shape: float) -> Callable[..., Rows]:
    def draw(rng: np.random.Generator, rows: int) -> Rows:
        x, mean = means(rng, rows)
        if np.isfinite(shape):
            mean = mean * rng.gamma(shape, 1.0 / shape, rows)
        return x, rng.poisson(mean)

    return draw


def durations(rng: np.random.Generator, rows: int) -> Rows:
    x, mean = means(rng, rows)
    return x, mean * rng.weibull(1.6, rows)


def sizes(rng: np.random.Generator, rows: int) -> Rows:
    x, mean = means(rng, rows)
    return x, rng.gamma(2.0, mean / 2.0)


CASES: dict[str, tuple[Callable[..., None], Callable[..., Rows]]] = {
    "Poisson, right": (poisson, counts(np.inf)),
    "NegativeBinomial2, right": (negative_binomial, counts(1.5)),
    "Weibull, right": (weibull, durations),
    "Gamma, right": (gamma, sizes),
    "Poisson for NegativeBinomial2(shape 3)": (poisson, counts(3.0)),
    "Poisson for NegativeBinomial2(shape 1)": (poisson, counts(1.0)),
    "Poisson for NegativeBinomial2(shape 0.3)": (poisson, counts(0.3)),
}


def excesses(name: str, *, rows: int, epsilon: float, repetitions: int) -> list[float]:
    model, draw = CASES[name]
    found = []
    for number in range(repetitions):
        x, y = draw(np.random.default_rng(number), rows)
        y = y if y.dtype.kind == "i" else y.astype(np.float32)
        vi = nv.PrivateVI(
            nv.private(model, unit="rows"),
            budget=nv.PrivacyBudget(epsilon, 1e-6),
            engine="dpvi",
            progress_bar=False,
        )
        with warnings.catch_warnings(action="ignore"):
            result = vi.run(jax.random.key(number), x.astype(np.float32), y)
        found.append(result.diagnostics["excess"])
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--repetitions", type=int, default=3)
    settings = vars(parser.parse_args())
    print("| model | least | largest |\n|---|---|---|")
    for case in CASES:
        values = excesses(case, **settings)
        print(f"| {case} | {min(values):.2f} | {max(values):.2f} |", flush=True)
