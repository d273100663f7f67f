"""Several parties that fit one model, simulated: sums add up, and so does noise.

Each party sums its own rows and adds noise of its own before anything leaves it, and
only the sum over all parties becomes known, as secure aggregation makes it. Parties
that work together may take off the noise that they have added, so with N parties, T of
whom may do so, each adds 1/(N − T − 1) of the variance that is priced (Heikkilä et al.
2017, section 3.1): of the noise of all but T + 1 of them there is enough.

Here one process plays all parties. It shows what they would get, and it is no protocol:
`docs/parties.md` says what is missing.
"""

import dataclasses
import itertools
import math

import numpy as np

from numpyro_vips import _validate
from numpyro_vips.fitting.reducers.reducer import Batch, Reducer, Released, SumOf
from numpyro_vips.privacy.batch_selection import split_batch
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism
from numpyro_vips.privacy.sampling import RowSampling
from numpyro_vips.privacy.secure_random import SecureRandom
from numpyro_vips.rows.reading import Selection


@dataclasses.dataclass(frozen=True)
class SimulatedParties:
    """Parties with equally many rows each, in their order, that add noise each.

        >>> SimulatedParties(10, colluding=2)
        SimulatedParties(number=10, colluding=2)

    Args:
      number: How many parties there are.
      colluding: How many of them may work together, or fail to add their noise. The
        guarantee for the rows of the others then holds towards any `colluding + 1`
        parties together.

    Raises:
      TypeError, ValueError: They are no such numbers: at least `colluding + 2` parties
        are needed.
    """

    number: int
    colluding: int = 0

    def __post_init__(self) -> None:
        _validate.positive_integer(number=self.number)
        if self.colluding != 0:
            _validate.positive_integer(colluding=self.colluding)
        if self.number < self.colluding + 2:
            raise ValueError(
                f"Expected number={self.number} to be at least colluding + 2 = "
                f"{self.colluding + 2}: of fewer parties none is left whose noise "
                "nobody can take off."
            )

    def reducer(self) -> Reducer:
        return PartyReducer(self)


class PartyReducer(Reducer):
    """Sums the rows of each party, and adds up what they send."""

    def __init__(self, parties: SimulatedParties) -> None:
        counted_on = parties.number - parties.colluding - 1
        self._number = parties.number
        self.noise_excess = math.sqrt(parties.number / counted_on)
        self.described = (
            f"; each of {parties.number} simulated parties adds 1/{counted_on} of the "
            f"variance that is priced, since {parties.colluding + 1} of them may take "
            "off their own"
        )

    def check(self, sampling: RowSampling, *, is_private: bool) -> None:
        if not is_private:
            raise ValueError(
                "Expected SimulatedParties with a private fit: without noise they have "
                "nothing to divide. Leave across= out."
            )
        if sampling.scheme == "without_replacement":
            raise ValueError(
                "Expected parties to draw their rows by themselves. How many rows of a "
                "batch of fixed size each of them has is secret. Use sampling='full' "
                "or nv.Poisson(rate). Nothing was charged to the privacy budget."
            )

    def release(
        self,
        mechanism: GaussianMechanism,
        batch: Batch,
        sum_of: SumOf,
        random: SecureRandom,
    ) -> Released:
        # What a party draws, with six standard deviations to spare.
        longest = batch.number * batch.length / self._number
        at_least = math.ceil((longest + 6.0 * math.sqrt(longest)) / batch.length)
        sums, first = [], 0
        for rows in _by_party(batch, self._number):
            pieces = split_batch(rows, batch.length, at_least=at_least)
            sums.append(sum_of(pieces, first).value())
            first += len(pieces)  # No two rows of a batch have the same key.
        return mechanism.add_noise_of_parties(sums, [random.noise] * self._number)


def _by_party(batch: Batch, number: int) -> list[Selection]:
    """The rows of a batch, those of each party by themselves."""
    places = [batch.num_rows * party // number for party in range(number + 1)]
    if not isinstance(batch.selection, range):
        places = np.searchsorted(batch.selection, places).tolist()
    return [batch.selection[a:b] for a, b in itertools.pairwise(places)]
