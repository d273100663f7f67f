"""Rows that may not count."""

from typing import Any

import jax.numpy as jnp

from numpyro_vips.conjugacy.algebra.terms import Term


class Clear:
    """Zeroes the private constants of a row that may not count."""

    def __init__(self, valid: Any):
        self.valid = valid
        self._cleared: dict[int, Any] = {}

    def array(self, array: Any) -> Any:
        return jnp.where(self.valid, array, jnp.zeros((), jnp.asarray(array).dtype))

    def term(self, term: Term) -> Term:
        return term.with_row_arrays(self._remembered)

    def _remembered(self, array: Any) -> Any:
        # One object per array, so that equal factors stay recognisable.
        if id(array) not in self._cleared:
            self._cleared[id(array)] = (array, self.array(array))
        return self._cleared[id(array)][1]
