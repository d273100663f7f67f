"""Rows that are not valid count as zero."""

from typing import Any

import jax.numpy as jnp

from numpyro_vips.conjugacy.algebra.terms import Term


class ZeroInvalidRows:
    """Zeroes the private constants of a row that is not valid.

    Arrays that are the same object before are the same object after.
    """

    def __init__(self, valid: Any):
        self.valid = valid
        self._zeroed: dict[int, Any] = {}

    def array(self, array: Any) -> Any:
        return jnp.where(self.valid, array, jnp.zeros((), jnp.asarray(array).dtype))

    def term(self, term: Term) -> Term:
        return term.with_row_arrays(self._zeroed_once)

    def _zeroed_once(self, array: Any) -> Any:
        # One object per array, so that equal factors stay recognisable.
        if id(array) not in self._zeroed:
            self._zeroed[id(array)] = (array, self.array(array))
        return self._zeroed[id(array)][1]
