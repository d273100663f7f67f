"""What a step of DPVI costs: milliseconds and peak memory.

    python benchmarks/dpvi_steps.py

Models on generated rows: logistic regression of the size of the Adult data (109
columns, 39,073 rows, rate .005), and three with about 10⁵ globals on batches of 1,000
rows: a Bayesian network, softmax regression on 784 columns with 128 classes, and
effects of 100,000 groups. A fifth has as many weights as the network, but uses them
twice, so that every row's gradient is taken entry by entry.

A step is all of it: drawing the rows, the clipped sum, the noise from the secure
generator, and the update; planning and compiling are told apart. Each model runs in a
process of its own, whose peak resident memory is printed. On a machine with other work,
processor time says more than the clock; both are printed.
"""

import argparse
import multiprocessing
import sys
import time
from typing import Any

from _memory import peak_bytes

NUM_WEIGHTS = (300, 334)
NUM_CLASSES = 128
NUM_GROUPS = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000, help="for Adult's size")
    parser.add_argument("--large-steps", type=int, default=20, help="for the others")
    parser.add_argument("--models", nargs="+", choices=_MODELS, default=list(_MODELS))
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    for case in (
        ("logistic", 39_073, 109, 0.005, args.steps),
        ("network", 10_000, NUM_WEIGHTS[0], 0.1, args.large_steps),
        ("softmax", 10_000, 784, 0.1, args.large_steps),
        ("groups", 10_000, 1, 0.1, args.large_steps),
        ("twice", 10_000, NUM_WEIGHTS[0], 0.1, args.large_steps),
    ):
        if case[0] not in args.models:
            continue
        process = context.Process(target=_measure, args=case)
        process.start()
        process.join()
        if process.exitcode:
            sys.exit(process.exitcode)


def _measure(
    name: str, num_rows: int, num_columns: int, rate: float, num_steps: int
) -> None:
    import jax
    import numpy as np

    import numpyro_vips as nv

    rng = np.random.default_rng(0)
    X = rng.normal(size=(num_rows, num_columns)).astype(np.float32)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = (X[:, 0] > 0).astype(np.float32)
    if name == "softmax":
        y = rng.integers(0, NUM_CLASSES, num_rows)
    if name == "groups":
        X, y = rng.integers(0, NUM_GROUPS, num_rows), rng.poisson(1.0, num_rows)
    before = peak_bytes()
    vi = nv.PrivateVI(
        nv.private(_MODELS[name], unit="rows"),
        budget=nv.PrivacyBudget(1.0, 1e-5),
        engine="dpvi",
        sampling=nv.Poisson(rate),
        num_steps=num_steps,
        progress_bar=False,
    )
    clock, processor = time.perf_counter(), time.process_time()
    result = vi.run(jax.random.key(0), X, y)
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    running = result.seconds["running"]
    numbers = sum(value.size for key, value in result.params.items() if "loc" in key)
    print(
        f"{name}: {numbers:,} parameters, {rate * num_rows:.0f} rows per step: "
        f"{1e3 * running / num_steps:.2f} ms per step over {num_steps} steps; "
        f"planning {result.seconds['planning']:.1f} s, "
        f"compiling {result.seconds['compiling']:.1f} s; "
        f"peak memory {peak_bytes() / 2**20:.0f} MiB, {before / 2**20:.0f} MiB of it "
        f"before the fit; {processor / clock:.2f} processors on average",
        flush=True,
    )


def _logistic(X: Any, y: Any) -> None:
    import numpyro
    import numpyro.distributions as dist

    prior = dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1)
    w: Any = numpyro.sample("w", prior)
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def _network(X: Any, y: Any) -> None:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    inputs, hidden = NUM_WEIGHTS
    inner: Any = numpyro.sample(
        "inner", dist.Normal(0.0, 0.1).expand([inputs, hidden]).to_event(2)
    )
    outer: Any = numpyro.sample(
        "outer", dist.Normal(0.0, 0.1).expand([hidden]).to_event(1)
    )
    with numpyro.plate("rows", X.shape[0]):
        logits = jnp.tanh(X @ inner) @ outer
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def _softmax(X: Any, y: Any) -> None:
    import numpyro
    import numpyro.distributions as dist

    shape = [X.shape[1], NUM_CLASSES]
    prior = dist.Normal(0.0, 0.1).expand(shape).to_event(2)
    w: Any = numpyro.sample("w", prior)
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.CategoricalLogits(X @ w), obs=y)


def _groups(group: Any, y: Any) -> None:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    spread: Any = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("group", NUM_GROUPS):
        effect: Any = numpyro.sample("effect", dist.Normal(0.0, spread))
    with numpyro.plate("rows", group.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(effect[group])), obs=y)


def _twice(X: Any, y: Any) -> None:
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist

    inner: Any = numpyro.sample(
        "inner", dist.Normal(0.0, 0.1).expand(NUM_WEIGHTS).to_event(2)
    )
    with numpyro.plate("rows", X.shape[0]):
        logits = jnp.sum(jnp.tanh(X @ inner) ** 2, -1) - jnp.sum(inner[0])
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


_MODELS = {
    "logistic": _logistic,
    "network": _network,
    "softmax": _softmax,
    "groups": _groups,
    "twice": _twice,
}

if __name__ == "__main__":
    main()
