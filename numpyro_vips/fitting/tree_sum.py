"""Sums of many arrays in a fixed tree, in which no number is rounded often."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64

Sums = Mapping[str, Float64[np.ndarray, "..."]]


class TreeSum:
    """Adds named arrays that come one after the other, in pairs, pairs of pairs, ...

    In which order they are added follows from their number alone. Kept are as many sums
    as a number's binary digits are ones, as in a binary counter.
    """

    def __init__(self) -> None:
        self._sums: list[Sums] = []  # Of 2^k terms each, with k falling.
        self._count = 0

    def add(self, term: Sums) -> None:
        """Adds a term. The arrays must not be changed later."""
        self._count += 1
        # As many sums are complete with it as the count has zeros at its end.
        remaining = self._count
        while remaining % 2 == 0:
            term = _added(self._sums.pop(), term)
            remaining //= 2
        self._sums.append(term)

    def value(self) -> Sums:
        """The sum of all terms, at least one."""
        *others, total = self._sums
        for larger in reversed(others):
            total = _added(larger, total)
        return total


def most_roundings(num_terms: int) -> int:
    """How often a number is rounded at most until it is in a sum of so many terms.

    In sums of 2^k terms k times, and at the end at most once with each larger sum and
    once with what the smaller ones have come to.
    """
    return num_terms.bit_length()


def _added(one: Sums, other: Sums) -> Sums:
    return {name: np.asarray(one[name] + other[name]) for name in one}
