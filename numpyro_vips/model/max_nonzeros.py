"""How many entries of a sparse row are stored: a public number, `max_nonzeros`."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from numpyro_vips import _validate
from numpyro_vips.errors import did_you_mean, quoted
from numpyro_vips.model.row_chunks import PrivateLeaf, shape_of


def check_widths(max_nonzeros: Any) -> None:
    """Checks what can be checked of `max_nonzeros` before there are arguments.

    Raises:
      TypeError, ValueError: It is neither None, a positive integer nor a mapping to
        such.
    """
    widths = {"max_nonzeros": max_nonzeros}
    if isinstance(max_nonzeros, Mapping):
        widths = {f"max_nonzeros[{k!r}]": v for k, v in max_nonzeros.items()}
    for name, width in widths.items():
        if width is None and not isinstance(max_nonzeros, Mapping):
            continue
        if not isinstance(width, int | np.integer):
            raise TypeError(
                f"Expected {name}={width!r} to be an integer, or a dict of one for "
                "each argument meant."
            )
        _validate.positive_integer(
            **{name: width if isinstance(width, bool) else int(width)}
        )


def widths_of(
    declared: int | Mapping[str, int] | None, leaves: Mapping[str, PrivateLeaf]
) -> dict[str, int]:
    """The declared widths by argument, those that leave something out."""
    if declared is None:
        return {}
    arrays = [name for name, leaf in leaves.items() if len(shape_of(leaf)) > 1]
    if not isinstance(declared, Mapping):
        if len(arrays) != 1:
            raise ValueError(
                f"Expected max_nonzeros={declared!r} with one private argument whose "
                f"rows are arrays, but there are {len(arrays)}: "
                f"{quoted(arrays, 'nothing')}. Say which is meant, as in "
                f"max_nonzeros={{'name': {declared!r}}}."
            )
        declared = {arrays[0]: declared}
    for name in declared:
        if name in arrays:
            continue
        if name in leaves:
            raise ValueError(
                f"max_nonzeros names {name!r}, of which a row is a single number. Only "
                "an array has entries that can be left out."
            )
        hint = did_you_mean(name, arrays) or (
            f"Private arguments whose rows are arrays: {quoted(arrays, 'nothing')}."
        )
        raise ValueError(
            f"max_nonzeros names {name!r}, which is no private argument. {hint}"
        )
    return {
        name: int(width)
        for name, width in declared.items()
        if width < shape_of(leaves[name])[-1]
    }
