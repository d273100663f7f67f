"""Queries about rows that the caller may see, answered a chunk at a time."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from numpyro_vips.handlers import private
from numpyro_vips.model.arguments import ModelArguments

# Rows that are worked on at a time.
_CHUNK = 512


def map_rows(
    arguments: ModelArguments, of_rows: Callable[[Mapping[str, Any]], Any]
) -> Iterator[Any]:
    """Yields the function's results for the chunks, rows along the leading axis."""
    count = arguments.num_rows
    with arguments.all_chunks(min(_CHUNK, count)) as chunks:
        for chunk in chunks:
            kept = int(chunk.mask.sum())
            part = of_rows(chunk.rows())
            yield jax.tree.map(lambda array, kept=kept: array[:kept], part)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowQuery:
    """What is asked about rows that the caller may see.

    Attributes:
      model: The model that was fitted.
      arguments: Its arguments, with these rows.
      settings: How it was fitted.
      programs: Keeps programs, never rows, from one query to the next.
    """

    model: private
    arguments: ModelArguments
    settings: Mapping[str, Any]
    programs: dict[str, Any]

    def sparse(self) -> "RowQuery":
        """The query with those arguments sparse that were sparse in the fit."""
        names = self.settings.get("max_nonzeros", {})
        arguments = self.arguments.sparse(names)
        return dataclasses.replace(self, arguments=arguments)

    def program(self, kind: str, compiled: Callable[[], Any]) -> Any:
        """What was compiled for a call that differs in its rows alone.

        Args:
          kind: What the program is of; others are kept apart from it.
          compiled: Makes it, where there is none yet.
        """
        shapes = self.arguments.row_shapes()
        rows = sorted((k, v.shape, str(v.dtype)) for k, v in shapes.items())
        public = self.arguments.public.items()
        arrays = sorted((k, v.shape, str(v.dtype), v.tobytes()) for k, v in public)
        constants = sorted(self.arguments.constants.items())
        widths = sorted(self.arguments.widths.items())
        key = repr((kind, rows, arrays, constants, widths, jnp.result_type(float)))
        if key not in self.programs:
            self.programs[key] = compiled()
        return self.programs[key]
