"""Applies a function of rows to rows that the caller may see, a chunk at a time."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.model_arguments import ModelArguments

# Rows that are worked on at a time.
_CHUNK = 512


def map_rows(
    arguments: ModelArguments, of_rows: Callable[[Mapping[str, Any]], Any]
) -> Iterator[Any]:
    """Yields the function's results for the chunks, rows along the leading axis."""
    count = arguments.num_rows
    chunk = min(_CHUNK, count)
    for start in range(0, count, chunk):
        indices = np.minimum(np.arange(start, start + chunk), count - 1)
        part = of_rows(arguments.take(indices))
        kept = min(chunk, count - start)
        yield jax.tree.map(lambda array, kept=kept: array[:kept], part)


def program_key(arguments: ModelArguments) -> str:
    """Equal for calls that differ in their rows alone."""
    rows = sorted((k, v.shape, str(v.dtype)) for k, v in arguments.row_shapes().items())
    public = sorted((k, v.shape, v.tobytes()) for k, v in arguments.public.items())
    constants = sorted(arguments.constants.items())
    return repr((rows, public, constants, jnp.result_type(float)))
