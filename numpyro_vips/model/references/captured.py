"""The arrays that a model holds itself, rather than being given them as arguments.

Such arrays are neither clipped nor subsampled, so they count as public. They hide in
closures, globals, default values, partials, bound methods, callable objects, containers
and the data of effect handlers; `captured_arrays` finds them and gives them readable
names. What a program holds however it got hold of it is found in
`jax_tools/program_constants.py`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from jax.core import Tracer

from numpyro_vips.jax_tools.program_constants import refuse_length
from numpyro_vips.model.references.array_likes import is_settings
from numpyro_vips.model.references.references import references


def captured_arrays(
    fn: Callable[..., Any], num_rows: int = 1, *, with_traced: bool = True
) -> dict[str, np.ndarray]:
    """Finds the arrays with at least one axis that `fn` would use by itself.

    Looked at is whatever `references` follows, and what counts as an array says
    `array_likes`. A few numbers by name in a dict are settings and not listed, though
    refused where there are as many as rows.

    The search follows references, not what the code does with them, so it may list
    an array that is never used. It cannot see what a function reads from a file or
    makes when it is called, nor single numbers.

    Args:
      fn: A model, with or without handlers around it.
      num_rows: Length of the data; 1 refuses nothing.
      with_traced: Whether arrays count that JAX is tracing at the time.

    Returns:
      The arrays by dotted name, such as `"vocabulary"` for a variable or
      `"condition.data.y"` for the data of a handler. Arrays of NumPy and JAX are
      given as they are; of anything else only the shape is right, and of a list of
      arrays of different shapes the shape is its length.

    Raises:
      UnsafeModelError: An array is of the data's length, `fn` refers to more objects
        than can be searched, or it uses functions that read the variables of its
        callers.
    """
    found: dict[str, np.ndarray] = {}
    for name, value, array, *_ in references(fn):
        is_left_out = isinstance(value, Tracer) and not with_traced
        if array is None or array.ndim == 0 or is_left_out:
            continue
        name = name or "array"
        unique, count = name, 2
        while unique in found:
            unique, count = f"{name} ({count})", count + 1
        refuse_length(repr(unique), array.shape, num_rows)
        if not is_settings(value):
            found[unique] = array
    return found
