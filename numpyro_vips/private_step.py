"""One step of a fit: rows are drawn, their bounded sum is taken, noise is added.

Everything that touches private rows goes through three lines of `run_step`: the sampler
draws rows, the engine returns their bounded sum, the mechanism adds noise.
"""

import concurrent.futures
import math
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np

from numpyro_vips.batch_selection import padded_chunks, select_rows
from numpyro_vips.engine_choice import Engine
from numpyro_vips.model_arguments import ModelArguments
from numpyro_vips.planning import Step
from numpyro_vips.secure_random import SecureRandom

# Rows that are worked on at a time, unless max_batch_size says otherwise.
DEFAULT_CHUNK = 4096
# Chunks that are worked on at once.
MAX_WORKERS = min(4, os.cpu_count() or 1)

_T = TypeVar("_T")
_R = TypeVar("_R")


def run_step(
    arguments: ModelArguments,
    engine: Engine,
    step: Step,
    state: Any,
    random: SecureRandom,
    max_batch_size: int | None,
) -> Any:
    """One step: draw rows, sum what they contribute within bounds, add noise."""
    scales = {block.name: block.scale for block in step.blocks}
    chunk = max_batch_size or chunk_size(step, arguments.public_num_rows)
    sums = {block.name: np.zeros(block.shape) for block in step.blocks}
    indices = select_rows(step.event, arguments.num_rows, random.sampling)

    def bounded_sum(chunk: tuple[np.ndarray, np.ndarray]) -> dict[str, np.ndarray]:
        padded, mask = chunk
        part = engine.bounded_sum(
            state,
            arguments.take(padded),
            mask,
            scales=scales,
            clipping_norm=step.clipping_norm,
        )
        return {name: np.asarray(part[name], dtype=np.float64) for name in sums}

    for part in _map_in_threads(bounded_sum, padded_chunks(indices, chunk)):
        for name in sums:
            sums[name] += part[name]
    noisy = step.mechanism.add_noise(sums, random.noise)
    # The expected size of the batch is public; the realised one is not.
    released = {name: value / step.sampling_rate for name, value in noisy.items()}
    return engine.update(state, released, noise_of_sums(step), step.step_size)


def _map_in_threads(function: Callable[[_T], _R], values: Iterable[_T]) -> Iterator[_R]:
    """Applies a function to values, some at a time, and yields results in order.

    XLA runs many programs on one core, and hands the interpreter's lock back meanwhile.
    """
    values = list(values)
    if len(values) == 1:
        yield function(values[0])
        return
    # JAX keeps these settings apart for every thread.
    x64 = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    device = getattr(jax.config, "jax_default_device")  # noqa: B009

    def in_context(value: _T) -> _R:
        with jax.enable_x64(x64), jax.default_device(device):
            return function(value)

    with concurrent.futures.ThreadPoolExecutor(MAX_WORKERS) as pool:
        yield from pool.map(in_context, values)


def noise_of_sums(step: Step) -> dict[str, float]:
    """Standard deviation of the noise in each estimated sum over all rows."""
    mechanism = step.mechanism
    return {
        block.name: mechanism.block_noise_stddev(block.name) / step.sampling_rate
        for block in step.blocks
    }


def chunk_size(step: Step, num_rows: int) -> int:
    """A public number of rows to work on at a time."""
    expected = step.sampling_rate * num_rows
    likely = math.ceil(expected + 6.0 * math.sqrt(expected) + 1.0)
    return max(1, min(likely, num_rows, DEFAULT_CHUNK))
