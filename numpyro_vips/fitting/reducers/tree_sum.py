"""Sums of many arrays in a fixed tree, in which no number is rounded often."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float64

Sums = Mapping[str, Float64[np.ndarray, "..."]]
# The sum of the 2^level terms from number · 2^level on is at (level, number).
TreePlace = tuple[int, int]


class TreeSum:
    """Adds named arrays that are numbered 0, 1, ...: pairs, pairs of pairs, ...

    What is added to what follows from the terms' numbers alone, not from the order in
    which they come, nor from where: several sums of some of the terms each, put
    together by `merge`, are the sum of all of them to the last bit.

    Attributes:
      sums: Those that wait for the terms beside them. Of n terms that come in order
        they are as many as the binary digits of n are ones.
    """

    def __init__(self) -> None:
        self.sums: dict[TreePlace, Sums] = {}

    def add(self, number: int, term: Sums) -> None:
        """Adds a term. Its arrays must not be changed later."""
        self.merge({(0, number): term})

    def merge(self, sums: Mapping[TreePlace, Sums]) -> None:
        """Adds the partial sums of another tree, which has other terms.

        The order in which they come does not change the result in any bit.

        Args:
          sums: By place in the tree, see `TreePlace`; kept, so not to be changed later.
        """
        for (level, number), found in sums.items():
            # The sum beside it differs in the last binary digit of its number.
            while (beside := (level, number ^ 1)) in self.sums:
                found = _added(self.sums.pop(beside), found)
                level, number = level + 1, number // 2
            self.sums[level, number] = found

    def value(self) -> Sums:
        """The sum of all terms, at least one; none up to the last may be left out."""
        *others, last = sorted(self.sums, key=lambda place: place[1] << place[0])
        total = self.sums[last]
        for larger in reversed(others):
            total = _added(self.sums[larger], total)
        return total


def most_roundings(num_terms: int) -> int:
    """How often a number is rounded at most until it is in a sum of so many terms.

    In sums of 2^k terms k times, and at the end at most once with each larger sum and
    once with what the smaller ones have come to.
    """
    return num_terms.bit_length()


def _added(one: Sums, other: Sums) -> Sums:
    return {name: np.asarray(one[name] + other[name]) for name in one}
