"""Secret bits of rows: where they come from, and that none are used twice."""

import copy
import pickle

import numpy as np
import pytest
import randomgen
from scipy import stats

from numpyro_vips.privacy.row_keys import RowKeys
from numpyro_vips.privacy.secure_random import SecureRandom

pytestmark = pytest.mark.fresh_noise


def test_they_are_the_stream_of_a_key_that_the_secure_generator_draws() -> None:
    """Place n has the n-th 64 bits of ChaCha20, the lower half first."""
    random, same = (SecureRandom(sampling_key=f"{7:064x}") for _ in range(2))
    found = RowKeys(random.sampling).of_places(0, 100)
    key = int.from_bytes(same.sampling.bytes(32), "little")
    stream = randomgen.ChaCha(key=key, rounds=20).random_raw(100)
    expected = np.stack([stream & 0xFFFFFFFF, stream >> np.uint64(32)], axis=1)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.uint32 and found.shape == (100, 2)


def test_a_place_has_the_same_bits_however_the_batch_is_split() -> None:
    keys = RowKeys(SecureRandom().sampling)
    whole = keys.of_places(0, 1000)
    for size in (1, 7, 64, 192, 999):
        parts = [
            keys.of_places(start, min(size, 1000 - start))
            for start in range(0, 1000, size)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_no_two_rows_and_no_two_batches_share_theirs() -> None:
    random = SecureRandom()
    batches = [RowKeys(random.sampling).of_places(0, 5000) for _ in range(3)]
    together = np.concatenate(batches)
    assert len(np.unique(together, axis=0)) == len(together)


def test_every_bit_is_as_often_one_as_zero() -> None:
    found = RowKeys(SecureRandom().sampling).of_places(0, 20_000)
    ones = np.unpackbits(found.view(np.uint8), axis=1).sum(0).astype(float)
    scores = (ones - 10_000) / np.sqrt(5000)
    assert stats.kstest(scores, "norm").pvalue > 1e-4


def test_they_cannot_be_copied() -> None:
    keys = RowKeys(SecureRandom().sampling)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="used once"):
            attempt(keys)
