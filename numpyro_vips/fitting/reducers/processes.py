"""One fit on several processes, by JAX's own distributed runtime.

Every process runs the same program. All draw the same batch, from one key; each sums a
range of its chunks, whose limits are public; the first adds noise, once, and sends what
was released to the others. So they are always in the same state, and what they release
is, for the same noise, to the last bit what one process would.

The processes are one side: sums without noise, and the key by which rows are drawn, go
from one to the other as JAX sends them, which neither encrypts nor asks who is there.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips import errors
from numpyro_vips.fitting.reducers.packed_arrays import packed, unpacked
from numpyro_vips.fitting.reducers.reducer import Batch, Reducer, Released, SumOf
from numpyro_vips.fitting.reducers.tree_sum import Sums, TreePlace, TreeSum
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.jax_tools.program_digests import digest_of_arrays
from numpyro_vips.jax_tools.random_keys import is_key, numbers_of
from numpyro_vips.jax_tools.rounding import how_numbers_are_rounded
from numpyro_vips.privacy.batch_selection import split_batch
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism
from numpyro_vips.privacy.secure_random import SecureRandom, fresh_key

_T = TypeVar("_T")

# The chunks of a process begin and end at multiples of a power of two, about one in so
# many of what it gets. The larger the multiple, the fewer sums a process sends.
_MULTIPLES = 16
_OK, _FAILED = b"+", b"-"
# What of a state is sent.
_NUMBERS = (np.ndarray, np.generic, jax.Array, bool, int, float)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes:
    """All processes of JAX's distributed runtime take each step together.

        >>> Processes()
        Processes()

    Call `jax.distributed.initialize()` before, and run the same program in every
    process, with rows that each of them can read: memory maps or other sources on a
    disk that all see. Each reads only its share of a step's rows. With one process the
    fit is the same as without. `docs/scale.md` says how to start them.
    """

    def reducer(self) -> Reducer:
        if jax.process_count() == 1:
            return Reducer()
        return ProcessReducer(JaxExchange())


class Exchange(Protocol):
    """How processes send each other messages: all at once, as often as they like.

    Attributes:
      index: The number of this process.
      count: How many there are.
    """

    @property
    def index(self) -> int: ...

    @property
    def count(self) -> int: ...

    def gather(self, message: bytes) -> list[bytes]:
        """The messages of all processes; waits for them.

        Raises:
          RuntimeError: A process has ended.
        """
        ...


class JaxExchange:
    """`multihost_utils`, which every platform of JAX has."""

    @property
    def index(self) -> int:
        return jax.process_index()

    @property
    def count(self) -> int:
        return jax.process_count()

    def gather(self, message: bytes) -> list[bytes]:
        lengths = self._gather(np.array([len(message)], np.uint64).view(np.uint8))
        counts = [int(length.view(np.uint64)[0]) for length in lengths]
        # A power of two, so that few programs serve all messages.
        padded = np.zeros(1 << max(0, max(counts) - 1).bit_length(), np.uint8)
        padded[: len(message)] = np.frombuffer(message, np.uint8)
        messages = self._gather(padded)
        return [
            one[:count].tobytes() for one, count in zip(messages, counts, strict=True)
        ]

    def _gather(self, array: np.ndarray) -> list[np.ndarray]:
        # Not at import: it is of no use to who has one process.
        from jax.experimental import multihost_utils

        try:
            return list(np.asarray(multihost_utils.process_allgather(array)))
        except jax.errors.JaxRuntimeError:
            pass
        # Outside of the `except`: what the runtime says of its sockets is no help.
        raise RuntimeError(
            "Another process of this fit has ended, or cannot be reached, so the fit "
            "ends here, too. What was charged stays charged, and nothing was charged "
            "twice. Start all processes again; with checkpoint= the fit goes on after "
            "the last step that was released, and pays nothing."
        )


class ProcessReducer(Reducer):
    """One of several processes that take each step together."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.is_first = exchange.index == 0
        self.described = f"; rows summed by {exchange.count} processes"

    def release(
        self,
        mechanism: GaussianMechanism,
        batch: Batch,
        sum_of: SumOf,
        random: SecureRandom,
    ) -> Released:
        pieces = split_batch(batch.selection, batch.length, at_least=batch.number)
        mine = share_of(self._exchange.index, self._exchange.count, len(pieces))
        here = pieces[mine.start : mine.stop]
        sums = self._gathered(lambda: _packed_sums(sum_of(here, mine.start).sums))

        def noisy() -> Released:
            total = TreeSum()
            for message in sums:
                total.merge(_unpacked_sums(message))
            return mechanism.add_noise(total.value(), random.noise)

        return self.arrays_from_first(noisy)

    def check_same(self, about: Callable[[], str]) -> None:
        # Leaving a row out moves others from one process to the next, and what these
        # contribute must stay.
        if len(set(self._gathered(lambda: _digest(how_numbers_are_rounded())))) > 1:
            raise ValueError(
                "Expected every process to round numbers alike: the settings of JAX, "
                "such as jax_enable_x64, the environment's XLA_FLAGS, the versions of "
                "the libraries and the kind of processor must be the same. Otherwise "
                "leaving out one row would change what others contribute. Nothing was "
                "charged to the privacy budget."
            )
        fits = self._gathered(lambda: _digest(about()))
        if len(set(fits)) > 1:
            raise ValueError(
                "Expected every process to run the same fit: the model and all numbers "
                "in it, public arguments, the settings, rng_key and the shapes of the "
                "arguments must be the same. A model that reads files or draws numbers "
                "must come to the same ones everywhere. Nothing was charged to the "
                "privacy budget."
            )

    def check_same_rows(self, rows: Callable[[], Mapping[str, Any]]) -> None:
        def digests() -> bytes:
            return json.dumps(
                {k: _digest_of_tree(v) for k, v in rows().items()}
            ).encode()

        found = [json.loads(message) for message in self._gathered(digests)]
        # One of them may have an argument in an array, and another one in a source.
        names = {name for of in found for name in of}
        if any(len({of[name] for of in found if name in of}) > 1 for name in names):
            raise RuntimeError(
                "Expected every process to have the same rows in the same order, so "
                "that each row is summed by one of them. Rows that each process has "
                "shuffled by itself, or its own part of the rows, are not the same. "
                "Nothing was released; what was charged stays charged."
            )

    def same_state(self, state: _T) -> _T:
        leaves, structure = jax.tree.flatten(state)
        arrays = {
            str(place): numbers_of(leaf)
            for place, leaf in enumerate(leaves)
            if isinstance(leaf, _NUMBERS)
        }
        if len(set(self._gathered(lambda: digest_of_arrays(arrays.values())))) == 1:
            return state
        for place, array in self.arrays_from_first(lambda: arrays).items():
            leaves[int(place)] = _like(leaves[int(place)], array)
        return jax.tree.unflatten(structure, leaves)

    def together(self, action: Callable[[], _T]) -> _T:
        done: list[_T] = []

        def act() -> bytes:
            done.append(action())
            return b""

        self._gathered(act)
        return done[0]

    def on_first(self, action: Callable[[], _T]) -> _T | None:
        return self.together(lambda: action() if self.is_first else None)

    def from_first(self, make: Callable[[], Any]) -> Any:
        def made() -> bytes:
            return json.dumps(make()).encode() if self.is_first else b""

        return json.loads(self._gathered(made)[0])

    def sampling_key(self) -> str | None:
        return self.from_first(fresh_key)

    def arrays_from_first(self, make: Callable[[], Released]) -> Released:
        def made() -> bytes:
            return packed(make()) if self.is_first else b""

        return unpacked(self._gathered(made)[0])

    def _gathered(self, make: Callable[[], bytes]) -> list[bytes]:
        """What `make` returns in each process; where one fails, all fail together."""
        try:
            message = _OK + make()
        except BaseException as error:
            self._exchange.gather(_FAILED + _of_error(error))
            raise
        messages = self._exchange.gather(message)
        for number, found in enumerate(messages):
            if found[:1] == _FAILED:
                raise _as_error(found[1:], number)
        return [found[1:] for found in messages]


def _digest_of_tree(tree: Any) -> str:
    return digest_of_arrays(jax.tree.leaves(tree)).hex()


def _like(leaf: Any, array: np.ndarray) -> Any:
    """An array as what the leaf is: a key, an array of JAX or NumPy, a number."""
    if is_key(leaf):
        return jax.random.wrap_key_data(
            jnp.asarray(array), impl=jax.random.key_impl(leaf)
        )
    if isinstance(leaf, jax.Array):
        with double_precision():  # Else 64 bits would become 32.
            return jnp.asarray(array)
    return array if isinstance(leaf, np.ndarray) else type(leaf)(array.item())


def share_of(index: int, count: int, number: int) -> range:
    """Which of a batch's chunks a process sums.

    Args:
      index: The number of the process.
      count: How many processes there are.
      number: How many chunks there are.
    """
    multiple = 1
    while 2 * multiple * _MULTIPLES * count <= number:
        multiple *= 2

    def limit(of: int) -> int:
        return number if of == count else number * of // count // multiple * multiple

    return range(limit(index), limit(index + 1))


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def _packed_sums(sums: Mapping[TreePlace, Sums]) -> bytes:
    return packed(
        {
            f"{level} {number} {name}": array
            for (level, number), found in sums.items()
            for name, array in found.items()
        }
    )


def _unpacked_sums(content: bytes) -> Mapping[TreePlace, Sums]:
    sums: dict[TreePlace, dict[str, np.ndarray]] = {}
    for key, array in unpacked(content).items():
        level, number, name = key.split(" ", 2)
        sums.setdefault((int(level), int(number)), {})[name] = array
    return sums


def _of_error(error: BaseException) -> bytes:
    return json.dumps([type(error).__name__, str(error)]).encode()


def _as_error(content: bytes, number: int) -> Exception:
    """The error of another process, of its own kind where that is one of these."""
    name, message = json.loads(content)
    kinds = {"ValueError": ValueError, "TypeError": TypeError}
    kind = kinds.get(name) or getattr(errors, name, RuntimeError)
    if kind is errors.UnusablePosteriorError:
        kind = RuntimeError
    return kind(f"Process {number} ended with {name}: {message}")
