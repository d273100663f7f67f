"""Between the bounded sum and the mechanism: where a batch is summed, and by whom.

By default one process sums all rows. `processes.py` spreads them over several, which
take every step together, and `parties.py` simulates parties that add noise each.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from numpyro_vips.fitting.reducers.tree_sum import TreeSum
from numpyro_vips.privacy.batch_selection import split_batch
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism
from numpyro_vips.privacy.sampling import RowSampling
from numpyro_vips.privacy.secure_random import SecureRandom
from numpyro_vips.rows.reading import Selection

_T = TypeVar("_T")

Released = Mapping[str, np.ndarray]


class Batch(NamedTuple):
    """The rows of one step.

    Attributes:
      selection: Which rows they are, by growing numbers.
      num_rows: How many rows there are to draw from.
      number, length: Public number of the chunks that it is worked on in, and how many
        rows each takes.
    """

    selection: Selection
    num_rows: int
    number: int
    length: int


class SumOf(Protocol):
    """The sums of the chunks that hold some pieces of a batch, not yet private."""

    def __call__(self, pieces: Sequence[Selection], first: int = 0) -> TreeSum:
        """The sums of the pieces, of which `first` is the number of the first one."""
        ...


class Reducer:
    """One process that has all rows, and what the others do differently.

    Attributes:
      noise_excess: Standard deviation of all noise that is added over that which is
        priced.
      is_first: Whether this process draws the noise, holds the ledger and shows
        progress.
      described: What the privacy statement says of it, after where noise comes from.
    """

    noise_excess: float = 1.0
    is_first: bool = True
    described: str = ""

    def release(
        self,
        mechanism: GaussianMechanism,
        batch: Batch,
        sum_of: SumOf,
        random: SecureRandom,
    ) -> Released:
        """The noisy sum over a batch; nothing else leaves.

        Args:
          mechanism: Adds the noise.
          batch: The rows.
          sum_of: Sums pieces of at most the length of a chunk.
          random: Draws the noise.
        """
        pieces = split_batch(batch.selection, batch.length, at_least=batch.number)
        return mechanism.add_noise(sum_of(pieces).value(), random.noise)

    def check(self, sampling: RowSampling, *, is_private: bool) -> None:
        """Refuses a fit whose rows cannot be summed like this.

        Raises:
          ValueError: Nothing was charged.
        """

    def check_same(self, about: Callable[[], str]) -> None:
        """Makes sure that all processes are about to run the same fit.

        Args:
          about: Makes a text about it.

        Raises:
          ValueError: They are not. Nothing was charged.
        """

    def check_same_rows(self, rows: Callable[[], Mapping[str, Any]]) -> None:
        """Makes sure that all processes have the same rows, in the same order.

        Called after the charge.

        Args:
          rows: Some of them, the same ones in every process; private.

        Raises:
          RuntimeError: They do not.
        """

    def same_state(self, state: _T) -> _T:
        """The state of the first process, where that of another one differs.

        States follow from what was released, and should be the same. What makes them
        may be the caller's, such as an optimiser, and may round in another way.

        Args:
          state: A tree of arrays, public.
        """
        return state

    def together(self, action: Callable[[], _T]) -> _T:
        """What the action returns, which every process takes.

        Raises:
          What it raises in any of the processes, in all of them.
        """
        return action()

    def on_first(self, action: Callable[[], _T]) -> _T | None:
        """What the action returns in the first process; the others return None.

        Raises:
          What the action raises, in every process.
        """
        return action()

    def from_first(self, make: Callable[[], Any]) -> Any:
        """What `make` returns in the first process, of numbers, texts, lists and dicts
        with texts as keys."""
        return json.loads(json.dumps(make()))

    def sampling_key(self) -> str | None:
        """The key that all processes draw their rows with; None for a fresh one."""
        return None

    def arrays_from_first(self, make: Callable[[], Released]) -> Released:
        """The named arrays that `make` returns in the first process."""
        return make()


@runtime_checkable
class Across(Protocol):
    """Whose rows a fit sums: the choices for `PrivateVI(across=...)`."""

    def reducer(self) -> Reducer:
        """What sums the rows of one fit.

        Raises:
          ValueError: What it needs is not there.
        """
        ...
