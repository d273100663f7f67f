"""Digests by which two processes see that they would run the same program."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jax.extend.core as jex_core

from numpyro_vips.jax_tools.program_constants import values_in
from numpyro_vips.jax_tools.random_keys import numbers_of

# Where a function lies in memory, as a program that is printed shows it.
_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")


def digest_of_programs(
    programs: Iterable[jex_core.ClosedJaxpr], arrays: Mapping[str, Any]
) -> str:
    """A digest of operations and of all numbers in them, to the last bit.

    Equal in all processes that have traced the same programs. Of functions that an
    operation refers to, such as derivative rules, only the names count: what programs
    run of them is part of the programs.

    Args:
      programs: What is to run.
      arrays: What it is given, by name.
    """
    hashed = hashlib.sha256()
    for program in programs:
        hashed.update(_ADDRESS.sub("", str(program)).encode())
        for value in values_in(program):
            hashed.update(_content(value))
    for name, value in sorted(arrays.items()):
        hashed.update(name.encode() + _content(value))
    return hashed.hexdigest()


def digest_of_arrays(arrays: Iterable[Any]) -> bytes:
    """A digest of numbers, to the last bit, in this order."""
    return hashlib.sha256(b"".join(map(_content, arrays))).digest()


def _content(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    array = numbers_of(value)
    return f"{array.dtype} {array.shape} ".encode() + array.tobytes()
