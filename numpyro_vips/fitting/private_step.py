"""One step of a fit: rows are drawn, their bounded sum is taken, noise is added.

Everything that touches private rows goes through `release`: the sampler draws rows, the
engine returns the bounded sums of chunks of them, the mechanism adds noise.
"""

import collections
import concurrent.futures
import contextlib
import math
import os
from collections.abc import (
    Callable,
    Generator,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, TypeVar

import jax
import numpy as np

from numpyro_vips.fitting.bounds.column_histogram import column_grid
from numpyro_vips.fitting.engine import Engine
from numpyro_vips.fitting.pass_bar import OnRows
from numpyro_vips.fitting.reducers.reducer import Batch, Reducer
from numpyro_vips.fitting.reducers.tree_sum import TreeSum
from numpyro_vips.fitting.step import Step
from numpyro_vips.jax_tools.compiling_ahead import compiled_by
from numpyro_vips.jax_tools.precision import Precision
from numpyro_vips.jax_tools.row_sums import (
    DEFAULT_CHUNK,
    equal_chunks,
    increasing_edges,
    rows_in,
)
from numpyro_vips.jax_tools.usual_settings import usual_settings
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.row_chunks import Chunk
from numpyro_vips.privacy.batch_selection import select_rows
from numpyro_vips.privacy.releases import VALID_ROWS
from numpyro_vips.privacy.row_keys import RowKeys
from numpyro_vips.privacy.secure_random import SecureRandom
from numpyro_vips.rows.reading import Selection

# Chunks that are worked on at once.
MAX_WORKERS = min(4, os.cpu_count() or 1)
# Chunks that wait for each of them at most.
_AHEAD = 2

_T = TypeVar("_T")
_R = TypeVar("_R")


def release(
    arguments: ModelArguments,
    engine: Engine,
    step: Step,
    state: Any,
    random: SecureRandom,
    max_batch_size: int | None,
    on_rows: OnRows | None = None,
    reducer: Reducer | None = None,
) -> dict[str, np.ndarray]:
    """The release of one step: draw rows, sum what they contribute, add noise.

    Args:
      arguments: The model's, with the rows.
      engine, state: What sums rows, and the state before the step.
      step: What is released.
      random: Draws rows, what these are redrawn by, and noise.
      max_batch_size: Most rows that are worked on at a time.
      on_rows: Called after each chunk with how many rows are done, as is public.
      reducer: Where the batch is summed; by default in this process.

    Returns:
      For each block of `step.released`, a noisy estimate of its sum over all rows.
    """
    reducer = Reducer() if reducer is None else reducer
    number, size = chunks_of(step, arguments.public_num_rows, max_batch_size)
    filled = rows_in(size)
    mechanism = step.mechanism
    names = [block.name for block in mechanism.blocks]
    selection = select_rows(step.event, arguments.num_rows, random.sampling)

    row_keys = RowKeys(random.sampling) if _redraws(step) else None

    def sum_of(numbered: tuple[int, Chunk]) -> dict[str, np.ndarray]:
        place, chunk = numbered
        keys = None
        if row_keys is not None:
            keys = row_keys.of_places(place * filled, size)
        part = _chunk_sum(engine, step, state, chunk.rows(), chunk.mask, keys)
        return {name: np.asarray(part[name], dtype=np.float64) for name in names}

    expected = math.ceil(step.sampling.rate * arguments.public_num_rows)

    def sum_of_pieces(pieces: Sequence[Selection], first: int = 0) -> TreeSum:
        # How many rows there really are is private, and so how many pieces.
        here = min(expected, filled * max(0, min(len(pieces), number - first)))
        total = TreeSum()
        with (
            arguments.chunks(pieces, size) as read,
            contextlib.closing(
                _map_in_threads(sum_of, enumerate(read, first), number)
            ) as parts,
        ):
            for done, part in enumerate(parts):
                total.add(first + done, part)
                if on_rows is not None:
                    on_rows(min((done + 1) * filled, here), here)
        return total

    batch = Batch(selection, arguments.num_rows, number, filled)
    with _values_unchecked():
        noisy = reducer.release(mechanism, batch, sum_of_pieces, random)
    # The expected size of the batch is public; the realised one is not.
    rate = step.sampling.rate
    return {name: np.asarray(value / rate) for name, value in noisy.items()}


def _chunk_sum(
    engine: Engine,
    step: Step,
    state: Any,
    rows: Mapping[str, Any],
    mask: Any,
    row_keys: np.ndarray | None,
) -> Mapping[str, Any]:
    """What a chunk's rows add to the release, not yet private."""
    if step.is_by_column:
        columns = {p.name: increasing_edges(column_grid(p)) for p in step.counted}
        return engine.column_counts(state, rows, mask, edges=columns)
    if step.counts_rows:
        return {VALID_ROWS: engine.valid_count(state, rows, mask)}
    if step.counted:
        return engine.norm_counts(
            state,
            rows,
            mask,
            parts={part.name: part.blocks for part in step.counted},
            edges={p.name: increasing_edges(p.grid) for p in step.counted},
            row_keys=row_keys,
        )
    # A rehearsal may come before the norm is known.
    norm = 1.0 if step.clipping_norm is None else step.clipping_norm
    scales = {block.name: block.scale for block in step.released}
    return engine.bounded_sum(
        state, rows, mask, scales=scales, clipping_norm=norm, row_keys=row_keys
    )


def update(
    engine: Engine, step: Step, state: Any, released: Mapping[str, np.ndarray]
) -> Any:
    """The state after a step that released statistics; public."""
    state = _with_bound(engine, step, state)
    return engine.update(
        state,
        {block.name: released[block.name] for block in step.blocks},
        noise_of_sums(step),
        step.step_size,
        is_pilot=step.is_pilot,
        redraws=_redraws(step),
    )


def _redraws(step: Step) -> bool:
    """Whether rows are redrawn: where nothing is clipped there is no need to."""
    norm = step.clipping_norm
    return step.redraws and norm is not None and math.isfinite(norm)


def _with_bound(engine: Engine, step: Step, state: Any) -> Any:
    """The state that knows how a step's rows are clipped, if they are."""
    if step.clipping_norm is None:
        return state
    scales = {block.name: block.scale for block in step.blocks}
    return engine.with_bound(state, scales, step.clipping_norm, step.sampling.rate)


def rehearse(
    arguments: ModelArguments,
    engine: Engine,
    steps: Sequence[Step],
    state: Any,
    max_batch_size: int | None,
    rehearsed: set[Hashable],
) -> None:
    """Runs every kind of step on zeros, so that what can fail fails unpaid.

    It also compiles everything, so that the fit itself is quick to interrupt.

    Args:
      arguments: The model's, of which only shapes and types are looked at.
      engine: What runs the steps.
      steps: The schedule.
      state: The engine's initial state.
      max_batch_size: Most rows that are worked on at a time.
      rehearsed: The kinds of steps that this engine has run before, which are left out;
        those that are run now are added.
    """
    kinds = {}
    for step in steps:
        _, size = chunks_of(step, arguments.public_num_rows, max_batch_size)
        names = tuple(block.name for block in step.blocks)
        counts = bool(step.counted) + step.is_by_column
        kinds[names, counts, step.is_pilot, step.redraws, size] = step
    kinds = {kind: step for kind, step in kinds.items() if kind not in rehearsed}
    # Sums first: what comes after them compiles beside the counts. Of these, those of
    # most parts: their programs may do for the others.
    kinds = dict(
        sorted(kinds.items(), key=lambda item: (item[0][1], -len(item[1].counted)))
    )

    def sums_of_zeros(step: Step, size: int, state: Any) -> Mapping[str, Any]:
        rows = {
            name: np.zeros((size, *row.shape), row.dtype)
            for name, row in arguments.row_shapes().items()
        }
        mask = np.zeros(size, bool)
        keys = np.zeros((size, 2), np.uint32) if step.redraws else None
        return _chunk_sum(engine, step, state, arguments.as_taken(rows), mask, keys)

    with concurrent.futures.ThreadPoolExecutor(MAX_WORKERS) as pool:
        with compiled_by(pool):
            if kinds:
                engine.compile_update(state)
            for (*_, size), step in kinds.items():
                sums_of_zeros(step, size, state)
        for (*_, size), step in kinds.items():
            sums = sums_of_zeros(step, size, state)
            if step.only_counts:
                continue
            state = engine.update(
                state,
                {b.name: np.asarray(sums[b.name], np.float64) for b in step.blocks},
                {b.name: 1.0 if step.noise_multiplier else 0.0 for b in step.blocks},
                step.step_size,
                is_pilot=step.is_pilot,
                redraws=step.redraws,
            )
    if kinds or not rehearsed:
        engine.posterior(state)
    rehearsed.update(kinds)


def _map_in_threads(
    function: Callable[[_T], _R], values: Iterable[_T], number: int
) -> Generator[_R, None, None]:
    """Applies a function to values, some at a time, and yields results in order.

    XLA runs many programs on one core, and hands the interpreter's lock back meanwhile.
    Where the generator is closed, as by Ctrl-C, no further value is taken, and those
    that are worked on are waited for.

    Args:
      function: What is applied.
      values: Taken a few ahead of the results.
      number: How many there are, about; one needs no thread.
    """
    if number == 1:
        yield from map(function, values)
        return
    # JAX keeps these settings apart for every thread.
    precision = Precision.of_caller()
    device = getattr(jax.config, "jax_default_device")  # noqa: B009

    def in_context(value: _T) -> _R:
        with precision.restored(), jax.default_device(device), _values_unchecked():
            return function(value)

    pending: collections.deque[concurrent.futures.Future[_R]] = collections.deque()
    with concurrent.futures.ThreadPoolExecutor(MAX_WORKERS) as pool:
        try:
            for value in values:
                pending.append(pool.submit(in_context, value))
                if len(pending) > _AHEAD * MAX_WORKERS:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()


@contextlib.contextmanager
def _values_unchecked() -> Iterator[None]:
    """Switches off JAX's checks that raise where some number is not finite, and NumPy's
    of what overflows or is too small.

    Whether a private row makes one would show in the exception, or in the warning.
    """
    with usual_settings(), np.errstate(all="ignore"):
        yield


def noise_of_sums(step: Step) -> dict[str, float]:
    """Standard deviation of the noise in each estimated sum over all rows."""
    mechanism = step.mechanism
    return {
        block.name: mechanism.block_noise_stddev(block.name) / step.sampling.rate
        for block in step.blocks
    }


def chunks_of(step: Step, num_rows: int, max_batch_size: int | None) -> tuple[int, int]:
    """Number and length of the chunks that a batch is worked on in; both are public.

    There are few and equal ones, of a length at which it does not matter where a row
    stands (`row_sums.aligned`). None is left out when a Poisson batch is short:
    its size would show in how long the step takes. A batch longer than six standard
    deviations above its mean takes a further chunk: of large batches one in a billion,
    of batches of few rows one in some hundred thousand.
    """
    longest = step.sampling.rate * num_rows
    if step.sampling.scheme == "poisson":
        longest += 6.0 * math.sqrt(longest) + 1.0
    # A fixed size is a whole number up to rounding, which is not to add a row.
    longest = max(1, min(math.ceil(longest - 1e-6), num_rows))
    return equal_chunks(longest, max_batch_size or DEFAULT_CHUNK)
