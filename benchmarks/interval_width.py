"""How much too narrow the intervals of variational posteriors are, against NUTS.

    python benchmarks/interval_width.py

Without privacy: the same model and data through `PrivateVI` with an infinite budget
and through NUTS. Printed per latent: how far the posterior means are apart, in
posterior standard deviations, and the ratio of the standard deviations. A ratio below
1 is what the factorised posterior loses; noise for privacy comes on top.
"""

import argparse
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_vips as nv


def logistic_fixed(X: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def logistic_gamma(X: Any, y: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    with numpyro.plate("feature", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def logistic_groups(X: Any, y: Any, group: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    with numpyro.plate("groups", 8):
        a = numpyro.sample("a", dist.Normal(0.0, 1 / jnp.sqrt(tau)))
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a[group] + X @ w), obs=y)


def regression_noise(X: Any, y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 1 / jnp.sqrt(tau)), obs=y)


def gauss_mean_prec(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(mu, 1 / jnp.sqrt(tau)), obs=y)


def factor_analysis(x: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0).expand([4]).to_event(1))
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        u = numpyro.sample("u", dist.Normal(0.0, 1.0))
        mean = mu + u[:, None] * jnp.array([1.0, 0.8, -0.6, 0.4])
        noise = dist.Normal(mean, 1 / jnp.sqrt(tau)).to_event(1)
        numpyro.sample("x", noise, obs=x)


def cases(seed: int) -> list[tuple[str, Callable[..., None], tuple[np.ndarray, ...]]]:
    rng = np.random.default_rng(seed)

    def labelled(count: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.normal(size=(count, 4))
        logits = X @ [1.5, -1.0, 0.5, 0.0]
        y = rng.random(count) < 1 / (1 + np.exp(-logits))
        return X.astype("f4"), y.astype("f4")

    groups = rng.integers(0, 8, 1500)
    X, noise = labelled(60)[0], rng.normal(size=60).astype("f4")
    numbers = rng.normal(1.5, 0.7, 200).astype("f4")
    factors = rng.normal(size=(300, 1)) * [1.0, 0.8, -0.6, 0.4]
    observed = factors + 0.5 * rng.normal(size=(300, 4))
    return [
        ("logistic, fixed prior, 100 rows", logistic_fixed, labelled(100)),
        ("logistic, fixed prior, 1500 rows", logistic_fixed, labelled(1500)),
        ("logistic, Gamma hyperprior, 1500 rows", logistic_gamma, labelled(1500)),
        ("logistic, 8 groups, 1500 rows", logistic_groups, (*labelled(1500), groups)),
        ("regression, unknown noise, 60 rows", regression_noise, (X, X[:, 0] + noise)),
        ("mean and precision, 10 rows", gauss_mean_prec, (numbers[:10],)),
        ("mean and precision, 200 rows", gauss_mean_prec, (numbers,)),
        ("one factor per row, 300 rows", factor_analysis, (observed.astype("f4"),)),
    ]


def compare(
    fn: Callable[..., None], rows: tuple[np.ndarray, ...], num_samples: int
) -> dict[str, tuple[float, float, float]]:
    """By latent: largest difference of means, smallest and mean ratio of widths."""
    vi = nv.PrivateVI(
        nv.private(fn, unit="rows"),
        budget=nv.PrivacyBudget(math.inf),
        engine="vips",
        num_steps=200,
        progress_bar=False,
    )
    result = vi.run(jax.random.key(0), *rows)
    vb = result.sample_posterior(jax.random.key(1), (100_000,))
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(fn),
        num_warmup=500,
        num_samples=num_samples,
        progress_bar=False,
    )
    mcmc.run(jax.random.key(2), *rows)
    exact = mcmc.get_samples()
    found = {}
    for name, draws in vb.items():
        mine, theirs = np.asarray(draws), np.asarray(exact[name])
        error = np.abs(mine.mean(0) - theirs.mean(0)) / theirs.std(0)
        ratio = mine.std(0) / theirs.std(0)
        found[name] = float(error.max()), float(ratio.min()), float(ratio.mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--num-samples", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(f"{'model':40}{'latent':8}{'means apart':>12}{'ratio min':>11}{'mean':>7}")
    for title, fn, rows in cases(arguments.seed):
        found = compare(fn, rows, arguments.num_samples)
        for name, (error, low, mean) in found.items():
            numbers = f"{error:9.3f} sd{low:11.3f}{mean:7.3f}"
            print(f"{title:40}{name:8}{numbers}", flush=True)


if __name__ == "__main__":
    main()
