"""Fingerprints are equal where code and values are, and nowhere else."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from numpyro_vips.model.references.fingerprint import fingerprint


def test_fingerprints_tell_code_and_values_apart() -> None:
    def by(value: Any) -> Callable[[], Any]:
        return lambda: value

    def digest(*values: Any) -> bytes:
        return fingerprint(*values).digest

    assert digest(by(1.0)) == digest(by(1.0))
    assert digest(by(np.ones(3))) == digest(by(np.ones(3)))
    assert digest(functools.partial(by, 1)) == digest(functools.partial(by, 1))
    different = [
        *(by(1.0), by(2.0), by(1), by("1"), by(np.ones(3)), by(np.ones(4))),
        *(by([1, 2]), by((1, 2)), by({"a": 1}), by({"b": 1}), by([1, [2]])),
        *(lambda: 1.0, lambda: 2.0, lambda: jnp.sin(1.0), lambda: jnp.cos(1.0)),
        *(functools.partial(by, 1), functools.partial(by, 2), by(object())),
        *(by(jnp.ones(3, int)), by(np.float32(1)), by(True), by(None), by(print)),
    ]
    assert len({digest(value) for value in different}) == len(different)


def test_models_of_two_namespaces_are_two_fits() -> None:
    """What is traced late would look names up where the first model does."""
    code = compile("def model(y): return scale", "model.py", "exec")

    def digest(namespace: dict[str, Any]) -> bytes:
        exec(code, namespace)
        return fingerprint(namespace["model"]).digest

    mine, other = {"scale": 2.0}, {"scale": 2.0}
    assert digest(mine) != digest(other)
    assert digest(mine) == digest(mine)


def test_classes_without_a_module_of_their_own_have_fingerprints() -> None:
    """A model may refer to such classes through what it imports: Cython makes them."""

    class Kind(type):
        __module__ = property(lambda cls: "elsewhere")  # type: ignore[assignment]

    class Extension(metaclass=Kind):
        pass

    assert not isinstance(type(Extension).__module__, str)
    found = fingerprint(lambda: Extension)
    assert any(value is Extension for value in found.referents)


def test_fingerprints_tell_which_of_several_objects_is_meant() -> None:
    """What was met before is not looked into again, so which one it is must count."""

    def scaled(factor: float) -> Callable[[float], float]:
        return lambda x: factor * x

    for first, second in (([1.0], [2.0]), (scaled(1.0), scaled(2.0))):
        digests = {
            fingerprint([first, second, chosen]).digest for chosen in (first, second)
        }
        assert len(digests) == 2


def test_what_cannot_be_looked_into_counts_by_identity() -> None:
    first, second = object(), object()
    assert fingerprint(first).digest == fingerprint(first).digest
    assert fingerprint(first).digest != fingerprint(second).digest
    assert first in fingerprint(first).referents


def test_what_may_change_in_place_is_never_known_again() -> None:
    content = bytearray(8)
    assert fingerprint(content).digest != fingerprint(content).digest
