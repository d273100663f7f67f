"""How long the analysis of a model takes, phase by phase, and what XLA adds to it.

    python benchmarks/compile_time.py [MODELS.py] [--only NAME ...] [--no-large]

MODELS.py defines a dict `ZOO` of entries with `model`, `unit` and `args(n)`; without it
a few models of this file are analysed. For each model the table gives

    trace     the abstract traces on one, two and three rows, and the checks on them
    rows      the check that rows do not act on each other
    compile   forms, families, statistics, and the comparison with NumPyro's log density
    total     all of it without XLA
    XLA       what XLA compiled meanwhile

in milliseconds, JAX's caches cleared before every model. The last lines are topic
models with a vocabulary of 8,000 words and 50 topics, each analysed in a process of its
own, with the peak memory of that process and how much of it the analysis added.
"""

import argparse
import dataclasses
import importlib.util
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _memory import peak_bytes

import numpyro_vips as nv
from numpyro_vips.errors import NotConjugateError
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.vips.compile.certificate import check_rows_are_separate
from numpyro_vips.vips.compile.compiler import compile_model

PHASES = ("trace", "rows", "compile")
_COMPILATION = "/jax/core/compile/backend_compile_duration"


@dataclasses.dataclass(frozen=True)
class Entry:
    model: Callable[..., Any]
    args: Callable[[int], tuple]
    unit: str = "rows"


@dataclasses.dataclass
class Timing:
    """Seconds by phase, those of XLA left out, and what became of the model."""

    seconds: dict[str, float]
    xla: float
    verdict: str

    @property
    def without_xla(self) -> float:
        return sum(self.seconds.values())


class XlaClock:
    """Adds up the time that JAX reports for compiling."""

    def __init__(self) -> None:
        self.seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILATION:
            self.seconds += duration_secs


def measure(entry: Any, clock: XlaClock) -> Timing:
    """Analyses one model as `PrivateVI` does before its first step."""
    jax.clear_caches()
    seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
    started = clock.seconds

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        start, xla = time.perf_counter(), clock.seconds
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            seconds[name] = spent - (clock.seconds - xla)

    verdict = "vips"
    try:
        model = nv.private(entry.model, unit=entry.unit or "N")
        with phase("trace"):
            arguments = bind_arguments(model, entry.args(24), {})
            graph = build_graph(model, arguments)
        with phase("rows"):
            check_rows_are_separate(graph)
        with phase("compile"):
            compile_model(model, graph)
    except NotConjugateError:
        verdict = "dpvi"
    except (nv.UnsafeModelError, ValueError):
        verdict = "refused"
    return Timing(seconds, clock.seconds - started, verdict)


# --- models ---------------------------------------------------------------------------

VOCABULARY, TOPICS, WORDS = 8_000, 50, 121


def logistic_regression(X: Any, y: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Gamma(1.0, 1.0))
    with numpyro.plate("features", X.shape[1]):
        w = numpyro.sample("w", dist.Normal(0.0, 1 / jnp.sqrt(alpha)))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def linear_regression(X: Any, y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, 1 / jnp.sqrt(tau)), obs=y)


def gaussian_mixture(x: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("components", 3):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi), infer={"enumerate": "parallel"})
        scale = 1 / jnp.sqrt(tau[z])
        numpyro.sample("x", dist.Normal(mu[z], scale).to_event(1), obs=x)


def _topics() -> Any:
    with numpyro.plate("topics", TOPICS):
        return numpyro.sample("beta", dist.Dirichlet(jnp.ones(VOCABULARY) * 0.1))


def topics_of_tokens(words: Any) -> None:
    beta = _topics()
    with numpyro.plate("rows", words.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(TOPICS) * 0.5))
        with numpyro.plate("words", words.shape[1], dim=-1):
            z = numpyro.sample(
                "z", dist.Categorical(theta), infer={"enumerate": "parallel"}
            )
            numpyro.sample("w", dist.Categorical(beta[z]), obs=words)


def topics_of_counts(ids: Any, counts: Any) -> None:
    beta = _topics()
    with numpyro.plate("rows", ids.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(TOPICS) * 0.5))
        with (
            numpyro.plate("words", ids.shape[1], dim=-1),
            numpyro.handlers.mask(mask=counts > 0),
            numpyro.handlers.scale(scale=jnp.maximum(counts, 1.0)),
        ):
            z = numpyro.sample(
                "z", dist.Categorical(theta), infer={"enumerate": "parallel"}
            )
            numpyro.sample("w", dist.Categorical(beta[z]), obs=ids)


def topics_of_dense_counts(counts: Any) -> None:
    beta = _topics()
    with numpyro.plate("rows", counts.shape[0]):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.ones(TOPICS) * 0.5))
        total = counts.sum(-1).astype(int)
        numpyro.sample(
            "x", dist.Multinomial(total_count=total, probs=theta @ beta), obs=counts
        )


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(size=shape).astype(np.float32)


def _ids(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCABULARY, (n, WORDS))


def _bits(n: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 2, n).astype(np.float32)


SMALL: dict[str, Entry] = {
    "logistic_regression": Entry(
        logistic_regression, lambda n: (_floats(n, 5), _bits(n))
    ),
    "linear_regression": Entry(linear_regression, lambda n: (_floats(n, 5), _bits(n))),
    "gaussian_mixture": Entry(gaussian_mixture, lambda n: (_floats(n, 2),)),
}
LARGE: dict[str, Entry] = {
    "topics, tokens": Entry(topics_of_tokens, lambda n: (_ids(n),)),
    "topics, ids+counts": Entry(
        topics_of_counts, lambda n: (_ids(n), _floats(n, WORDS))
    ),
    "topics, dense counts": Entry(
        topics_of_dense_counts, lambda n: (_floats(n, VOCABULARY),)
    ),
}


# --- the table ------------------------------------------------------------------------


def load_models(path: Path) -> Mapping[str, Any]:
    """The dict `ZOO` of a Python file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"Cannot import {path}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module.ZOO


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:8.0f}"


def line(name: str, timing: Timing) -> str:
    cells = [timing.seconds[phase] for phase in PHASES]
    cells += [timing.without_xla, timing.xla]
    return f"{name:24s}" + "".join(map(_milliseconds, cells)) + f"  {timing.verdict}"


def measure_large(name: str) -> tuple[Timing, float, float]:
    """One of the large models, with the peak memory before and after, in MB.

    The first analysis of a process pays for what JAX and NumPyro do only once, so a
    small model goes first.
    """
    clock = XlaClock()
    measure(SMALL["gaussian_mixture"], clock)
    before = peak_bytes() / 1e6
    return measure(LARGE[name], clock), before, peak_bytes() / 1e6


def report_small(models: Mapping[str, Any], names: Sequence[str]) -> None:
    clock = XlaClock()
    measure(SMALL["logistic_regression"], clock)  # What is done once per process.
    timings = []
    for name in names or models:
        timing = measure(models[name], clock)
        timings.append(timing)
        print(line(name, timing), flush=True)
    analysed = [t for t in timings if t.verdict != "refused"] or timings
    median = statistics.median(t.without_xla for t in analysed)
    both = statistics.median(t.without_xla + t.xla for t in analysed)
    print(
        f"median of {len(analysed)} models: {median:.3f} s without XLA, "
        f"{both:.3f} s with it"
    )


def report_large() -> None:
    spawn = multiprocessing.get_context("spawn")
    for name in LARGE:
        with spawn.Pool(1) as pool:
            timing, before, after = pool.apply(measure_large, (name,))
        memory = f"peak {after:.0f} MB, {after - before:.0f} MB of it for the analysis"
        print(f"{line(name, timing)}, {memory}", flush=True)


def main() -> None:
    description = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("models", nargs="?", type=Path, help="file that defines ZOO")
    parser.add_argument("--only", nargs="+", default=(), help="names of models")
    parser.add_argument("--no-large", action="store_true", help="leave topics out")
    arguments = parser.parse_args()
    default = Path(__file__).parents[2] / "shared" / "zoo" / "models.py"
    path = arguments.models or (default if default.exists() else None)
    columns = "".join(f"{name:>8s}" for name in (*PHASES, "total", "XLA"))
    print(f"{'model (milliseconds)':24s}{columns}")
    report_small(load_models(path) if path else SMALL, arguments.only)
    if not arguments.no_large:
        report_large()


if __name__ == "__main__":
    main()
