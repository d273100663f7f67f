"""How sources are read during a fit: in parts of one length, and ahead of the work."""

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from numpyro_vips.errors import quoted
from numpyro_vips.rows.source import RandomAccess, Rows, RowSource, SourceColumn

# How many times what is handed over at once may wait.
_READ_AHEAD = 2
# Seconds that a thread waits before it looks whether it should end.
_PATIENCE = 0.1

_T = TypeVar("_T")

# What a fit reads next: rows one after the other, or those that were drawn.
Selection = range | np.ndarray


def cannot_be_drawn_from(leaves: Mapping[str, Any]) -> list[str]:
    """The names of columns whose source cannot be read at random."""
    return [
        name
        for name, leaf in leaves.items()
        if isinstance(leaf, SourceColumn) and not isinstance(leaf.source, RandomAccess)
    ]


def read_columns(
    columns: Mapping[str, SourceColumn],
    pieces: Sequence[Selection] | Iterable[Selection],
) -> Iterator[dict[str, np.ndarray]]:
    """Reads columns piece by piece, each source once for all of its columns.

    Args:
      columns: The columns, at least one.
      pieces: Which rows are read next. Either all are ranges, each of which begins
        where the one before ended, or all are arrays of indices that grow.

    Yields:
      The columns' rows of the next piece, with exactly the declared shapes and dtypes.

    Raises:
      RuntimeError: A source has raised, or given something else than it has declared.
        The message quotes no value, nor which rows it was.
    """
    pieces = list(pieces)
    sources = {id(column.source): column.source for column in columns.values()}
    of_source = {
        key: {name: c for name, c in columns.items() if id(c.source) == key}
        for key in sources
    }
    readers = [
        _pieces_of(source, of_source[key], pieces) for key, source in sources.items()
    ]
    for parts in zip(*readers, strict=True):
        yield {name: array for part in parts for name, array in part.items()}


def _pieces_of(
    source: RowSource, columns: Mapping[str, SourceColumn], pieces: Sequence[Selection]
) -> Iterator[dict[str, np.ndarray]]:
    """The pieces of one source's columns."""
    if not pieces:
        return
    names = list(columns)
    ranges = [piece for piece in pieces if isinstance(piece, range)]
    if not ranges:
        # That it has `read` was checked before; another check may run its own code.
        at_random: Any = source
        for indices in pieces:
            # Its own copy: another source reads the same rows, whatever this one does.
            given = np.array(indices)
            rows = _quietly(lambda given=given: at_random.read(given), names)
            yield _checked(rows, columns, len(indices))
        return
    start, stop = ranges[0].start, ranges[-1].stop
    parts = _quietly(lambda: iter(source.scan(start, stop)), names)
    held: list[dict[str, np.ndarray]] = []  # Read, and not yet part of a piece.
    available = 0
    for piece in ranges:
        if not piece:
            yield _none_of(columns)
            continue
        while available < len(piece):
            rows = _quietly(lambda: next(parts, None), names)
            if rows is None:
                raise RuntimeError(
                    f"The source of {quoted(names)} gave fewer rows than its length."
                )
            part = _checked(rows, columns, None)
            held.append(part)
            available += _length(part)
        yield _taken(held, len(piece))
        available -= len(piece)


def _taken(held: list[dict[str, np.ndarray]], count: int) -> dict[str, np.ndarray]:
    """Takes the first rows off a list of parts; views, where one part has them all."""
    found = []
    while count:
        first = held.pop(0)
        if _length(first) > count:
            held.insert(0, {name: array[count:] for name, array in first.items()})
            first = {name: array[:count] for name, array in first.items()}
        if _length(first):
            found.append(first)
        count -= _length(first)
    if len(found) == 1:
        return found[0]
    return {name: np.concatenate([part[name] for part in found]) for name in found[0]}


def _none_of(columns: Mapping[str, SourceColumn]) -> dict[str, np.ndarray]:
    return {
        name: np.zeros((0, *column.shape[1:]), column.dtype)
        for name, column in columns.items()
    }


def _length(part: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(part.values())))


def _checked(
    rows: Rows, columns: Mapping[str, SourceColumn], count: int | None
) -> dict[str, np.ndarray]:
    """A copy of a source's rows, by the names of the columns, if they are as declared.

    A source may fill one array again for the next part. While others wait to be worked
    on, its rows would count several times.
    """

    def converted() -> dict[str, np.ndarray]:
        return {
            name: np.array(rows if column.name is None else rows[column.name])
            for name, column in columns.items()
        }

    found = _quietly(converted, list(columns))
    lengths = {array.shape[:1] for array in found.values()}
    is_declared = len(lengths) == 1 and (count is None or lengths == {(count,)})
    for name, array in found.items():
        column = columns[name]
        declared = (column.shape[1:], column.dtype)
        is_declared &= (array.shape[1:], array.dtype) == declared
    if not is_declared:
        raise RuntimeError(
            f"The source of {quoted(columns)} gave rows of another shape, dtype or "
            "number than it has declared."
        )
    return found


def _quietly(read: Callable[[], _T], names: list[str]) -> _T:
    """What `read` returns; its exceptions, which may quote rows, are not passed on."""
    try:
        return read()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # Panics of libraries in Rust are no `Exception`.
        kind = type(error).__name__
    # Outside of the `except`, so that the new exception does not refer to that one.
    raise RuntimeError(
        f"Reading {quoted(names)} failed with {kind}. Its message may quote rows, so "
        "it is left out here: read the source by itself to see it."
    )


# --- ahead ----------------------------------------------------------------------------


@contextlib.contextmanager
def read_ahead(values: Iterator[_T], at_once: int = 1) -> Iterator[Iterator[_T]]:
    """Works an iterator off in a thread, some values ahead of who takes them.

    The thread ends with the context, after the value that it is at.

    Args:
      values: What is worked off.
      at_once: How many are handed over together. Each time threads wait for each other,
        which takes longer than to read a few rows.
    """
    waiting: queue.Queue[tuple[str, Any]] = queue.Queue(_READ_AHEAD)
    ended = threading.Event()

    def put(kind: str, value: Any) -> bool:
        while not ended.is_set():
            try:
                waiting.put((kind, value), timeout=_PATIENCE)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            while several := list(itertools.islice(values, at_once)):
                if not put("values", several):
                    return
            put("end", None)
        except BaseException as error:  # Raised again where the value would be taken.
            put("error", error)

    def taken() -> Iterator[_T]:
        while True:
            kind, value = waiting.get()
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield from value

    thread = threading.Thread(target=work, name="reading rows ahead", daemon=True)
    try:
        # Here, as Ctrl-C may come while the thread starts.
        thread.start()
        yield taken()
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()
