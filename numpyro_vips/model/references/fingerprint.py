"""Fingerprints of models and settings, by all that these refer to."""

import functools
import hashlib
import os
import types
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from numpyro_vips.jax_tools.random_keys import is_key
from numpyro_vips.model.references.array_likes import NUMBERS
from numpyro_vips.model.references.python_objects import (
    SEQUENCES,
    is_of_library,
    package_of,
)
from numpyro_vips.model.references.references import references


class Fingerprint(NamedTuple):
    """What some objects are made of, to be compared.

    Attributes:
      digest: Equal for objects that refer to equal numbers, texts and arrays by equal
        code, through closures, globals, attributes and containers. Instances of the
        caller's classes, what cannot be looked into, and the namespaces in which
        functions look up their globals also count by identity.
      referents: All that counts by identity. As long as these are kept, an identity in
        the digest cannot come to mean another object.
    """

    digest: bytes
    referents: tuple[Any, ...]


def fingerprint(*values: Any) -> Fingerprint:
    """Hashes all that some objects refer to.

    Not seen is what no object refers to, such as files, the time, and the state inside
    a generator of random numbers.

    Raises:
      UnsafeModelError: As `references`.
    """
    hashed = hashlib.sha256()
    identified = []
    for name, value, _, is_whole, earlier in references(*values, each_number=True):
        content = _content(value)
        if earlier is not None:
            # What it refers to does not follow again, so say which one it is.
            content = f"again {earlier}".encode()
        elif content is None:
            # The identity stands for what cannot be looked into.
            identified.append(value)
            content = str(id(value)).encode()
            if is_whole and not isinstance(value, jax.Array):
                # It may change in place and keep its identity.
                content += os.urandom(16)
        elif isinstance(value, types.FunctionType):
            # Another namespace may come to hold other objects under the same names.
            identified.append(value)
            content += str(id(value.__globals__)).encode()
        kind = f"{name} {type(value).__module__}.{type(value).__qualname__}"
        hashed.update(_joined(kind.encode(), content))
    return Fingerprint(hashed.digest(), tuple(identified))


def _content(value: Any) -> bytes | None:
    """What a value is, without what it refers to; None if it is only itself."""
    if isinstance(value, (*NUMBERS, str, bytes, range, np.dtype, type(None))):
        # A number of NumPy is printed with all its digits, and its type is known.
        return repr(value).encode()
    if isinstance(value, Tracer):
        return None
    if isinstance(value, np.ndarray | jax.Array) and not is_key(value):
        array = np.asarray(value)
        head = f"{array.dtype!r} {array.shape} ".encode()
        # What an array of objects refers to is met by itself.
        return head if array.dtype.hasobject else head + array.tobytes()
    if isinstance(value, types.FunctionType):
        return _content_of_code(value.__code__)
    if isinstance(value, types.CodeType):
        return _content_of_code(value)
    if package_of(type(value)) == "numpyro_vips":
        return b""  # Such as settings: their attributes are all there is.
    if not is_of_library(value):
        return None
    if isinstance(value, (*SEQUENCES, dict)):
        return str(len(value)).encode()
    is_structural = isinstance(
        value, types.CellType | types.MethodType | functools.partial
    )
    return b"" if is_structural else None


def _content_of_code(code: types.CodeType) -> bytes:
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    constants = [
        _content_of_code(constant)
        if isinstance(constant, types.CodeType)
        else repr(constant).encode()
        for constant in code.co_consts
    ]
    return _joined(code.co_code, repr(names).encode(), *constants)


def _joined(*parts: bytes) -> bytes:
    """Several strings of bytes as one that has in it where each of them ends."""
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
