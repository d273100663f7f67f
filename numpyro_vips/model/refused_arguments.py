"""Arguments that are neither clearly rows nor clearly constants, and the remedies.

Messages quote names, shapes and dtypes, never values, nor how long a text is.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax.core import Tracer

from numpyro_vips.errors import quoted
from numpyro_vips.jax_tools.random_keys import is_key

_TABLE_PACKAGES = ("pandas", "polars", "modin", "xarray")


def refuse_kind(name: str, value: Any, *, public: bool) -> None:
    """Raises a `TypeError` unless `value` can be rows, or a public array."""
    if scipy.sparse.issparse(value):
        _refuse_sparse(name, value, public=public)
    elif isinstance(value, Tracer):
        raise TypeError(
            f"The argument {name!r} is an array that JAX is tracing. Private "
            "inference draws its own rows and noise and cannot run inside jax.jit, "
            "jax.vmap or jax.grad."
        )
    elif isinstance(value, (np.ndarray, np.generic, jax.Array)):
        _refuse_array(name, value)
    else:
        _refuse_other(name, value)
    refuse_dtype(name, value.dtype)


def _refuse_array(name: str, value: Any) -> None:
    """Raises a `TypeError` for arrays without rows, or with rows out of reach."""
    if isinstance(value, jax.Array) and is_key(value):
        raise TypeError(
            f"The argument {name!r} is a random key. A model takes its randomness "
            "from numpyro.sample; give the key to run() instead."
        )
    if isinstance(value, np.generic) or value.ndim == 0:
        raise TypeError(
            f"The argument {name!r} is a single {value.dtype} of type "
            f"{type_name(value)}, which may have been computed from private rows. If "
            f"it is a public constant, pass it as a Python number, {name}.item()."
        )
    if isinstance(value, jax.Array) and not (
        value.is_fully_addressable or value.is_fully_replicated
    ):
        raise TypeError(
            f"The argument {name!r} is an array that JAX has divided among processes, "
            "and this one cannot read all of it. Write the rows to where every process "
            "can read them, such as a memory map on a shared disk, and pass that, with "
            "PrivateVI(across=nv.Processes()): each process then reads its share."
        )
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(
            f"The argument {name!r} is a masked array, whose mask would be lost. Pass "
            f"{name}.filled(0) and, as a further argument, ~np.ma.getmaskarray({name})"
            "; use it in the model with numpyro.handlers.mask."
        )


def _refuse_other(name: str, value: Any) -> NoReturn:
    """Raises a `TypeError` that says what to pass in place of what is no array."""
    if isinstance(value, (list, set, frozenset, range)):
        raise TypeError(
            f"The argument {name!r} is a {type(value).__name__}, which may be data or "
            "settings. Pass data as one array, np.asarray(...), several arrays as a "
            "tuple or a dict, and records, a mapping each, as nv.RecordRows(...)."
        )
    if type(value).__module__.split(".")[0] in _TABLE_PACKAGES:
        is_column = getattr(value, "ndim", 2) == 1
        encode = (
            "Encode the table that it is a column of by public facts, "
            "Schema(...).encode(table)"
            if is_column
            else f"Encode it by public facts, Schema(...).encode({name})"
        )
        raise TypeError(
            f"The argument {name!r} is a {type_name(value)}. {encode}, or pass its "
            f"numbers, {name}.to_numpy(), one array per dtype, with categories coded "
            "by public lists. Rows are taken in their order, whatever their index."
        )
    if type(value).__module__.split(".")[0] == "pyarrow":
        raise TypeError(
            f"The argument {name!r} is a {type_name(value)}. Pass a table as "
            f"nv.ArrowRows({name}, ...), which says which columns are which array, "
            f"and a column of numbers as np.asarray({name}, float), in which what is "
            "missing is NaN."
        )
    if isinstance(getattr(value, "shape", None), tuple) and hasattr(value, "dtype"):
        raise TypeError(
            f"The argument {name!r} has type {type_name(value)}. If it lies "
            f"elsewhere, as HDF5 and Zarr do, pass nv.ArrayRows({name}), which is read "
            f"a part at a time, else np.asarray({name})."
        )
    raise TypeError(
        f"The argument {name!r} has type {type_name(value)}. Pass arrays, tuples "
        "or dicts of arrays, or Python numbers and strings. "
        f"{_instead_of(name, value)}"
    )


def _instead_of(name: str, value: Any) -> str:
    """What to pass in place of an object that is no array."""
    if isinstance(value, Mapping):
        return f"Of this mapping pass a copy that is a dict, dict({name})."
    if isinstance(value, Iterator):
        return f"Pass what it yields as an array, np.asarray(list({name}))."
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value)]
        as_dict = "vars" if hasattr(value, "__dict__") else "dataclasses.asdict"
        return (
            f"Pass the fields of this dataclass ({', '.join(fields)}) one by one, or "
            f"in a dict, {as_dict}({name}); or make it a typing.NamedTuple, whose "
            "fields may be arrays."
        )
    held = getattr(value, "__dict__", {}).values()
    if any(isinstance(part, (np.ndarray, jax.Array)) for part in held):
        return f"Pass the arrays that it holds one by one, or in a dict, vars({name})."
    return (
        "Give the model anything else, such as a function or a network, beforehand "
        "with functools.partial."
    )


def _refuse_sparse(name: str, value: Any, *, public: bool) -> None:
    if public:
        raise TypeError(
            f"The public argument {name!r} is a sparse matrix, which a NumPyro model "
            f"cannot use. Pass {name}.toarray()."
        )
    if value.format != "csr" or value.ndim != 2:
        raise TypeError(
            f"The argument {name!r} is a sparse {value.format.upper()} array of shape "
            f"{value.shape}. Only two-dimensional CSR has quick rows: pass "
            f"{name}.tocsr()."
        )


def refuse_dtype(name: str, dtype: Any) -> None:
    if dtype.kind == "O":
        raise TypeError(
            f"The argument {name!r} is an array of dtype object, of anything. A model "
            f"computes with numbers: if it holds numbers alone, pass "
            f"{name}.astype(float); code text by its position in a public list of "
            "categories; and make one numeric array out of objects of equal shape."
        )
    if dtype.kind in "UST":
        # The class alone: the dtype says how long the longest of all texts is.
        raise TypeError(
            f"The argument {name!r} is an array of dtype {dtype.type.__name__}. A "
            "model computes with numbers: code text by its position in a public list "
            "of categories, or numbers that were read as text with .astype(float)."
        )
    if dtype.names is not None:
        raise TypeError(
            f"The argument {name!r} is a structured array with the fields "
            f"{quoted(dtype.names)}. Pass a dict of its columns, "
            f"{{key: {name}[key] for key in {name}.dtype.names}}."
        )
    if dtype.kind in "Mm":
        raise TypeError(
            f"The argument {name!r} holds dates or durations ({dtype}). Pass numbers, "
            "such as days since a public date."
        )
    if not getattr(dtype, "isnative", True):
        raise TypeError(
            f"The argument {name!r} has numbers in another byte order than this "
            f"machine's ({dtype.str}), as of some scientific files. Pass "
            f"{name}.astype({name}.dtype.newbyteorder('='))."
        )
    if jnp.issubdtype(dtype, np.complexfloating):
        raise TypeError(
            f"The argument {name!r} is complex ({dtype}). Pass its real and its "
            "imaginary part as real arrays."
        )
    numeric = jnp.issubdtype(dtype, np.number) or jnp.issubdtype(dtype, np.bool_)
    if not numeric or dtype == np.longdouble:
        raise TypeError(
            f"The argument {name!r} has dtype {dtype}. Expected booleans, integers or "
            "floating-point numbers that JAX knows, such as float32; convert it with "
            ".astype(...)."
        )


def misplaced_constant(name: str, value: Any) -> str:
    return (
        f"{name!r} is a Python {type(value).__name__} inside a tuple, which may be "
        "data or settings. Pass data as one array, np.asarray(...); pass a public "
        "setting as an argument of its own or as a value of a dict."
    )


def type_name(value: Any) -> str:
    kind = type(value)
    root = kind.__module__.split(".")[0]
    return kind.__name__ if root == "builtins" else f"{root}.{kind.__name__}"
