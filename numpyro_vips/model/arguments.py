"""What a model is called with: private rows, public arrays and constants.

Every array argument is private data, one row per individual, unless its name is in
`private(..., public=...)`. Names are those of the model's parameters; leaves of a
dict or a tuple have dotted names (`"batch.vocab"`, `"batch.0"`), and so have the
entries of `*args` (`"args.0"`). A Python number, string, bool or None is a public
constant, but only as a whole argument or as a value of a dict.

The guarantee needs this sorting to be unambiguous, so whatever is neither clearly
rows nor clearly a constant is refused, with the remedy. Messages quote names, shapes
and dtypes, never values.
"""

import argparse
import dataclasses
import inspect
import math
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from numpyro_vips import _validate
from numpyro_vips.errors import did_you_mean, quoted
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.random_keys import is_key
from numpyro_vips.model.max_nonzeros import widths_of
from numpyro_vips.model.refused_arguments import (
    misplaced_constant,
    refuse_dtype,
    refuse_kind,
    type_name,
)
from numpyro_vips.model.row_chunks import (
    Chunk,
    Csr,
    PrivateLeaf,
    most_entries,
    row_chunks,
    shape_of,
)
from numpyro_vips.model.sparse_rows import SparseRows, keep_largest
from numpyro_vips.privacy.batch_selection import split_batch
from numpyro_vips.rows.array_rows import ArrayRows
from numpyro_vips.rows.reading import Selection, cannot_be_drawn_from
from numpyro_vips.rows.source import RowSource, SourceColumn, columns
from numpyro_vips.schema.encoded_rows import EncodedRows
from numpyro_vips.schema.encoding import Encoding

PlainValue = int | float | complex | str | bool | None


@dataclasses.dataclass(frozen=True)
class _Slot:
    """Stands in the model's call where the rows of a private argument go."""

    name: str


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class ModelArguments:
    """The arguments of one call of the model, sorted into private and public.

    Built by `bind_arguments`.

    Attributes:
      num_rows: Number of rows present.
      public_num_rows: Number of rows that may be released: the declared one, or
        `num_rows` where none was declared.
      num_rows_declared: Whether a number of rows was declared.
      private: Rows, with the leading axis that of the unit plate, by name.
      public: Public arrays by name.
      constants: Public Python values by name.
      positional: The positional arguments, with slots in place of private arrays.
      keywords: The same for the keyword arguments.
      widths: For each sparse private argument, how many entries of a row are used, a
        public number.
      encodings: The public facts by which `nv.Schema` has encoded a private argument,
        by its name.
    """

    num_rows: int
    public_num_rows: int
    num_rows_declared: bool
    private: Mapping[str, PrivateLeaf]
    public: Mapping[str, np.ndarray]
    constants: Mapping[str, PlainValue]
    positional: tuple[Any, ...]
    keywords: Mapping[str, Any]
    widths: Mapping[str, int] = dataclasses.field(default_factory=dict)
    encodings: Mapping[str, Encoding] = dataclasses.field(default_factory=dict)

    def chunks(
        self, pieces: Sequence[Selection], length: int
    ) -> AbstractContextManager[Iterator[Chunk]]:
        """Rows of every private argument, some at a time; see `row_chunks`."""
        return row_chunks(self.private, self.widths, pieces, length)

    def all_chunks(self, length: int) -> AbstractContextManager[Iterator[Chunk]]:
        """All rows, `length` at a time."""
        return self.chunks(split_batch(range(self.num_rows), length), length)

    def check_can_be_drawn_from(self) -> None:
        """Refuses what can be read in its order alone, for steps that draw their rows.

        Raises:
          TypeError: A source cannot be read at random.
        """
        streams = cannot_be_drawn_from(self.private)
        if streams:
            raise TypeError(
                f"The rows of {quoted(streams)} come in their order alone, and a step "
                "that draws its rows needs to read any of them. To shuffle them in a "
                "buffer is no such draw, and no price is known for it. Use "
                "sampling='full', which reads all rows in every step, or write the "
                "rows once to where they can be read at random, such as a NumPy memory "
                "map, HDF5 or Zarr. Nothing was charged to the privacy budget."
            )

    def take(self, selection: Selection) -> dict[str, np.ndarray | SparseRows]:
        """Returns some rows of every private argument, all at once.

        They are in the form and of the dtypes that `row_shapes` says, or sparse if the
        argument has a width.
        """
        count = len(selection)
        with self.chunks([selection], max(1, count)) as chunks:
            (chunk,) = chunks
            return jax.tree.map(lambda array: array[:count], chunk.rows())

    def some_rows(self, count: int) -> dict[str, np.ndarray | SparseRows]:
        """A few rows of each private argument, by which their order can be compared.

        They are at even distances, the first one among them. Of what can only be read
        in its order they are the first ones, and the name says so.

        Args:
          count: How many, unless there are fewer.
        """
        spaced = np.unique(np.linspace(0, self.num_rows - 1, count, dtype=np.int64))
        streams = cannot_be_drawn_from(self.private)
        others = [name for name in self.private if name not in streams]
        found = self._of(others).take(spaced)
        first = self._of(streams).take(range(len(spaced)))
        return found | {f"first of {name}": rows for name, rows in first.items()}

    def _of(self, names: Iterable[str]) -> "ModelArguments":
        """A copy with some of the private arguments."""
        return dataclasses.replace(
            self, private={name: self.private[name] for name in names}
        )

    def without_rows(self) -> "ModelArguments":
        """A copy with zeros in place of all private rows, which take no memory."""

        def zeros(leaf: PrivateLeaf) -> PrivateLeaf:
            shape = shape_of(leaf)
            if isinstance(leaf, Csr):
                return type(leaf)(shape, dtype=leaf.dtype)
            return np.broadcast_to(np.zeros((), leaf.dtype), shape)

        stand_ins = {name: zeros(leaf) for name, leaf in self.private.items()}
        return dataclasses.replace(self, private=stand_ins)

    def as_taken(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Synthetic rows in the form in which `take` returns private ones."""
        return {
            name: keep_largest(np.asarray(array), self.widths[name])
            if name in self.widths
            else array
            for name, array in rows.items()
        }

    def sparse(self, names: Iterable[str]) -> "ModelArguments":
        """A copy in which rows of some arguments are stored by their nonzero entries.

        The width leaves out no entry. It is read off the rows, so only for rows that
        the caller may see.

        Args:
          names: Private arguments; those with too few zeros stay dense.
        """
        widths = {}
        for name in set(names) & set(self.private):
            leaf = self.private[name]
            # A power of two, so that few programs serve many calls.
            width = 1 << max(0, most_entries(leaf) - 1).bit_length()
            if len(shape_of(leaf)) > 1 and width < shape_of(leaf)[-1]:
                widths[name] = width
        return dataclasses.replace(self, widths=widths)

    def row_shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Returns the shape and dtype of one row, without the leading axis."""
        return {
            name: jax.ShapeDtypeStruct(
                shape_of(leaf)[1:], jax.dtypes.canonicalize_dtype(leaf.dtype)
            )
            for name, leaf in self.private.items()
        }

    @property
    def num_numbers(self) -> int:
        """Public; how many numbers all rows have together."""
        sizes = (math.prod(row.shape) for row in self.row_shapes().values())
        return self.public_num_rows * sum(sizes)

    def call(self, rows: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the model's call with `rows` in place of the private arguments.

        Public arrays and constants stay as they were given. The rows may be of any
        number and may be JAX tracers.

        Raises:
          ValueError: `rows` does not name exactly the private arguments.
        """
        if set(rows) != set(self.private):
            raise ValueError(
                f"Expected rows for {quoted(self.private, 'nothing')}, "
                f"got {quoted(rows, 'nothing')}."
            )
        args = tuple(_fill(value, rows) for value in self.positional)
        kwargs = {name: _fill(value, rows) for name, value in self.keywords.items()}
        return args, kwargs

    def __repr__(self) -> str:
        described = [
            f"{name}: {role} {_described(leaf)}"
            for role, leaves in (("private", self.private), ("public", self.public))
            for name, leaf in leaves.items()
        ]
        described += [f"{name}: {value!r}" for name, value in self.constants.items()]
        return f"ModelArguments({', '.join(described)})"


def bind_arguments(
    model: private,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    num_rows: int | None = None,
    max_nonzeros: int | Mapping[str, int] | None = None,
) -> ModelArguments:
    """Sorts the arguments of `model(*args, **kwargs)` into private and public.

    No value of an array is read; only its shape and dtype are.

    | argument                                         | becomes                  |
    |--------------------------------------------------|--------------------------|
    | array of NumPy or JAX, at least one axis         | private rows             |
    | `scipy.sparse` CSR matrix or array               | private rows             |
    | array whose name is in `model.public`            | public array             |
    | number, string, bool, None as a whole argument   | public constant          |
    | the same as a value of a dict or a namespace     | public constant          |
    | source of rows (`nv.RowSource`), `numpy.memmap`  | private rows, or a dict  |
    | dict, tuple, named tuple                         | sorted leaf by leaf      |
    | list, table, 0-d, text or object array, key, ... | `TypeError` with a remedy|

    A name in `model.public` may also be that of a whole dict or tuple; all arrays in
    it are then public.

    Args:
      model: The model and the names of its public arguments.
      args: Positional arguments of the model.
      kwargs: Keyword arguments of the model.
      num_rows: Public number of rows. It need not be the number of rows present,
        which under add-or-remove is itself private.
      max_nonzeros: Public number of entries of a row that may differ from zero, by the
        name of a private argument, or of the only one whose rows are arrays. Rows with
        more keep the largest. A number that is not below the length of the last axis
        says nothing, and is left out.

    Raises:
      TypeError: An argument is of a kind that is refused, or does not fit the
        model's signature.
      ValueError: The private arguments differ in length, have no rows, rows without
        numbers, or are missing altogether, or a name in `model.public` or
        `max_nonzeros` names nothing of the kind.
    """
    if num_rows is not None:
        _validate.positive_integer(num_rows=num_rows)
    named, parameters = _named_arguments(model, args, kwargs)
    sorter = _Sorter(model.public)
    filled = {key: sorter.sort(name, value) for key, (name, value) in named.items()}
    sorter.check_names(parameters)
    present = _common_length(sorter.private, model.unit)
    return ModelArguments(
        num_rows=present,
        public_num_rows=present if num_rows is None else int(num_rows),
        num_rows_declared=num_rows is not None,
        private=sorter.private,
        public=sorter.public,
        constants=sorter.constants,
        positional=tuple(filled[position] for position in range(len(args))),
        keywords={keyword: filled[keyword] for keyword in kwargs},
        widths=widths_of(max_nonzeros, sorter.private),
        encodings=sorter.encodings,
    )


def _named_arguments(
    model: private, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[int | str, tuple[str, Any]], tuple[str, ...]]:
    """Names each argument, keyed by its position or keyword; and all parameters."""
    if model.fn is None:
        raise TypeError(
            f"{model!r} holds no model. Write private(model, unit={model.unit!r})."
        )
    try:
        signature = inspect.signature(model.fn)
    except (TypeError, ValueError):  # Some callables written in C have none.
        names = [f"args.{i}" for i in range(len(args))]
        parameters = (*names, *kwargs)
    else:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            parameters = ", ".join(signature.parameters) or "none"
            hint = ""
            if any(isinstance(value, jax.Array) and is_key(value) for value in args):
                hint = " A random key is given to run() alone, before them."
            raise TypeError(
                f"The arguments do not fit the model: {error}. Its parameters are "
                f"{parameters}.{hint}"
            ) from None
        names = list(_positional_names(signature, args))
        parameters = tuple(signature.parameters)
    named: dict[int | str, tuple[str, Any]] = {
        position: (name, value)
        for position, (name, value) in enumerate(zip(names, args, strict=True))
    }
    named |= {keyword: (keyword, value) for keyword, value in kwargs.items()}
    return named, parameters


def _positional_names(
    signature: inspect.Signature, args: tuple[Any, ...]
) -> Iterator[str]:
    for name, value in signature.bind_partial(*args).arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            yield from (f"{name}.{i}" for i in range(len(value)))
        else:
            yield name


class _Sorter:
    """Collects the leaves of the arguments by role."""

    def __init__(self, public_names: tuple[str, ...]):
        self.public_names = public_names
        self.private: dict[str, PrivateLeaf] = {}
        self.public: dict[str, np.ndarray] = {}
        self.constants: dict[str, PlainValue] = {}
        self.encodings: dict[str, Encoding] = {}
        self.seen: list[str] = []  # Every argument, container and leaf.

    def sort(
        self, name: str, value: Any, *, public: bool = False, constant: bool = True
    ) -> Any:
        """Files `value`; returns it with slots in place of private arrays.

        Args:
          name: Dotted name of the value.
          value: An argument or a part of one.
          public: Whether a container of it was declared public.
          constant: Whether a Python value may stand here as a public constant.
        """
        if name in self.seen:
            raise ValueError(
                f"Two arguments are both named {name!r}. Rename one of them, so that "
                "it is clear which is private and which is public."
            )
        self.seen.append(name)
        public = public or name in self.public_names

        if isinstance(value, dict):
            return {
                key: self.sort(f"{name}.{key}", part, public=public)
                for key, part in value.items()
            }
        if isinstance(value, tuple):
            keys = getattr(value, "_fields", range(len(value)))
            parts = [
                self.sort(f"{name}.{key}", part, public=public, constant=False)
                for key, part in zip(keys, value, strict=True)
            ]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if isinstance(value, types.SimpleNamespace | argparse.Namespace):
            return self._settings(name, value)
        if _is_constant(value):
            if not constant:
                raise TypeError(misplaced_constant(name, value))
            self.constants[name] = value
            return value
        if isinstance(value, SourceColumn | RowSource) or (
            isinstance(value, np.memmap) and value.ndim and not public
        ):
            return self._source(name, value, public=public)
        refuse_kind(name, value, public=public)
        if isinstance(value, EncodedRows):
            if value.encoding is not None and not public:
                self.encodings[name] = value.encoding
            value = value.view(np.ndarray)
        if public:
            self.public[name] = np.asarray(value)
            return value
        leaf: Any = value
        self.private[name] = leaf
        return _Slot(name)

    def _source(
        self, name: str, value: SourceColumn | RowSource | np.memmap, *, public: bool
    ) -> Any:
        """Files a source, or one column of it, and returns slots for its arrays."""
        if public:
            raise TypeError(
                f"The public argument {name!r} is a source of rows, and rows are "
                "private. Pass public numbers as one array."
            )
        if isinstance(value, np.memmap):
            value = ArrayRows(value)
        if isinstance(value, RowSource) and isinstance(value.row, Mapping):
            found = columns(value)
            for key in found:
                self.seen.append(f"{name}.{key}")
        else:
            is_column = isinstance(value, SourceColumn)
            found = {None: value.reread() if is_column else SourceColumn(value)}
        slots = {}
        for key, column in found.items():
            full = name if key is None else f"{name}.{key}"
            refuse_dtype(full, column.dtype)
            self.private[full] = column
            slots[key] = _Slot(full)
        return slots.get(None, slots)

    def _settings(self, name: str, value: Any) -> Any:
        """Files a namespace, as of command line options, and returns a copy of it."""
        parts = vars(value)
        for key, part in parts.items():
            if not _is_constant(part):
                raise TypeError(
                    f"'{name}.{key}' is of type {type_name(part)}, and a namespace "
                    "may hold Python numbers, strings, bools and None alone, which are "
                    "public. Pass arrays as arguments of their own, or in a dict."
                )
            self.sort(f"{name}.{key}", part)
        return type(value)(**parts)

    def check_names(self, parameters: tuple[str, ...]) -> None:
        for name in self.public_names:
            # The name of a parameter that this call leaves out is no mistake.
            left_out = name.split(".")[0]
            if name in self.seen:
                continue
            if left_out in parameters and left_out not in self.seen:
                continue
            known = [*self.seen, *(p for p in parameters if p not in self.seen)]
            hint = (
                did_you_mean(name, known)
                or f"The arguments are {quoted(known, 'nothing')}."
            )
            raise ValueError(
                f"public names {name!r}, but the model has no such argument. {hint}"
            )


def _is_constant(value: Any) -> bool:
    """Whether it is a Python value that counts as public.

    A NumPy scalar may be a float too, but has usually been computed from data.
    """
    plain = (bool, int, float, complex, str)
    return value is None or (
        isinstance(value, plain) and not isinstance(value, np.generic)
    )


def _common_length(leaves: Mapping[str, PrivateLeaf], unit: str) -> int:
    lengths = {name: shape_of(leaf)[0] for name, leaf in leaves.items()}
    if not lengths:
        raise ValueError(
            f"No argument holds private data. Expected at least one array with one "
            f"row per entry of the plate {unit!r} whose name is not in public."
        )
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} has {count}" for name, count in lengths.items())
        raise ValueError(
            f"Expected every private argument to have one row per entry of the plate "
            f"{unit!r}, but {listed}. If one of them describes no individuals, name "
            f'it in private(..., unit={unit!r}, public=("its name",)). If there are '
            "several rows of one individual, such as visits, bring them to one row per "
            "individual first: see 'One row per unit' in docs/models.md."
        )
    count = next(iter(lengths.values()))
    if count == 0:
        raise ValueError(
            f"The private arguments ({quoted(lengths)}) have no rows. There is "
            "nothing to learn from."
        )
    for name, leaf in leaves.items():
        if math.prod(row := shape_of(leaf)[1:]) == 0:
            raise ValueError(
                f"A row of the private argument {name!r} has shape {row}, and so no "
                "numbers. Expected at least one. Leave the argument out."
            )
    return count


def _fill(value: Any, rows: Mapping[str, Any]) -> Any:
    if isinstance(value, _Slot):
        return rows[value.name]
    if isinstance(value, dict):
        return {key: _fill(part, rows) for key, part in value.items()}
    if isinstance(value, tuple):
        parts = [_fill(part, rows) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, np.ndarray):
        # JAX remembers by identity what it has made of a NumPy array, in whichever
        # precision that was, and int32 does not add up with int64 (seen with jax 0.10).
        return value.view()
    return value


def _described(leaf: Any) -> str:
    return f"{leaf.dtype}[{', '.join(map(str, leaf.shape))}]"
