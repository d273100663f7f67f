"""ChaCha20 against its specification, and streams that cannot be confused."""

import copy
import pickle
import secrets
import struct
import warnings

import numpy as np
import pytest
import randomgen

from numpyro_vips.privacy import secure_random
from numpyro_vips.privacy.secure_random import SecureRandom

# The other tests have keys of their own, that are the same in every run.
pytestmark = pytest.mark.fresh_noise


def rotate(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & 0xFFFFFFFF


def quarter_round(state: list[int], a: int, b: int, c: int, d: int) -> None:
    """RFC 8439, section 2.1."""
    for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[x] = (state[x] + state[y]) & 0xFFFFFFFF
        state[z] = rotate(state[z] ^ state[x], bits)


def chacha20_block(key: bytes, last_words: tuple[int, int, int, int]) -> bytes:
    """RFC 8439, section 2.3; the last words are the counter and the nonce."""
    initial = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574]
    initial += [*struct.unpack("<8I", key), *last_words]
    state = list(initial)
    for _ in range(10):
        for column in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)):
            quarter_round(state, *column)
        for diagonal in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            quarter_round(state, *diagonal)
    words = [(x + y) & 0xFFFFFFFF for x, y in zip(state, initial, strict=True)]
    return struct.pack("<16I", *words)


def stream(key: bytes, num_bytes: int) -> bytes:
    generator = randomgen.ChaCha(key=int.from_bytes(key, "little"), rounds=20)
    return np.asarray(generator.random_raw(num_bytes // 8), dtype="<u8").tobytes()


def test_the_test_block_function_is_the_rfcs():
    """RFC 8439, section 2.3.2."""
    nonce = bytes.fromhex("000000090000004a00000000")
    got = chacha20_block(bytes(range(32)), (1, *struct.unpack("<3I", nonce)))
    assert got.hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c06803")


def test_known_answers_of_the_zero_key():
    """RFC 8439, appendix A.1, test vectors 1 and 2: blocks 0 and 1."""
    got = stream(bytes(32), 128).hex()
    assert got.startswith(
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    )


def test_every_block_of_other_keys_is_chacha20():
    key = bytes.fromhex("c46ec1b18ce8a878725a37e780dfb7351f68ed2e194c79fb") + bytes(8)
    expected = b"".join(chacha20_block(key, (block, 0, 0, 0)) for block in range(40))
    assert stream(key, len(expected)) == expected


def raw(generator: np.random.Generator) -> list[int]:
    return list(generator.bit_generator.random_raw(8))


def test_streams_are_chacha20_with_twenty_rounds():
    random = SecureRandom()
    for generator in (random.sampling, random.noise):
        assert isinstance(generator.bit_generator, randomgen.ChaCha)
        assert generator.bit_generator.state["state"]["rounds"] == 20


def test_keys_are_those_of_the_operating_system():
    assert secure_random.secrets is secrets


def test_no_two_streams_are_alike():
    with warnings.catch_warnings(action="error"):
        first, second = SecureRandom(), SecureRandom()
    streams = [raw(r) for s in (first, second) for r in (s.sampling, s.noise)]
    assert len({word for words in streams for word in words}) == 32


def test_an_insecure_seed_repeats_and_warns():
    with pytest.warns(UserWarning, match="not private"):
        first = SecureRandom(insecure_seed=7)
    with pytest.warns(UserWarning, match="not private"):
        again = SecureRandom(insecure_seed=7)
    with pytest.warns(UserWarning, match="not private"):
        other = SecureRandom(insecure_seed=8)
    expected = raw(first.sampling), raw(first.noise)
    assert (raw(again.sampling), raw(again.noise)) == expected
    assert expected[0] != expected[1]
    assert raw(other.sampling) != expected[0]
    assert "INSECURE" in first.source
    assert "7" not in first.source
    assert "INSECURE" not in SecureRandom().source


@pytest.mark.parametrize("seed", ["3", 1.5, True, b"key"])
def test_seeds_are_integers(seed):
    with pytest.raises(TypeError, match="insecure_seed"):
        SecureRandom(insecure_seed=seed)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_streams_cannot_be_duplicated(duplicate):
    with pytest.raises(TypeError, match="copied or pickled"):
        duplicate(SecureRandom())


def test_keys_are_not_shown():
    random = SecureRandom()
    words = random.noise.bit_generator.state["state"]["keysetup"]
    assert not any(str(word) in repr(random) for word in words)
