"""How long the analysis of a model takes, phase by phase, and where XLA comes in.

    python benchmarks/compile_time.py [MODELS.py] [--only NAME ...] [--no-large]

MODELS.py defines a dict `ZOO` of entries with `model`, `unit` and `args(n)`; without it a
few models of this file are analysed. For each model the table gives

    trace     the abstract traces on one, two and three rows, and the checks on them
    rows      the check that rows do not act on each other
    find      forms, families and statistics, from the traced program
    certify   the comparison with NumPyro's log density in double precision
    XLA       the compilation that is part of `rows` and `certify`
    total     all of it, without and with XLA

in milliseconds, every model with JAX's caches cleared. The last lines are topic models
with a vocabulary of 8,000 words and 50 topics, each in a process of its own, with that
process's peak memory (which includes about 250 MB for Python, JAX and NumPyro).
"""

import argparse
import dataclasses
import importlib.util
import multiprocessing
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import numpyro_vips as nv
from numpyro_vips.conjugacy.certificate import check_rows_are_separate
from numpyro_vips.conjugacy.compiler import analyse, certify_model
from numpyro_vips.conjugacy.structure import NotConjugate
from numpyro_vips.model_arguments import bind_arguments
from numpyro_vips.model_graph import build_graph

PHASES = ("trace", "rows", "find", "certify")
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

    def _heard(self, event: str, duration: float, **_: Any) -> None:
        if event == _COMPILATION:
            self.seconds += duration


def measure(entry: Any, clock: XlaClock) -> Timing:
    """Analyses one model as `PrivateVI` does before its first step."""
    jax.clear_caches()
    seconds = dict.fromkeys(PHASES, 0.0)
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
        with phase("find"):
            analyse(graph, {})
        with phase("certify"):
            certify_model(model, graph, {})
    except NotConjugate:
        verdict = "dpvi"
    except (nv.UnsafeModelError, ValueError):
        verdict = "refused"
    return Timing(seconds, clock.seconds - started, verdict)
