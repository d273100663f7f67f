"""What is wrong with a model that fails while it is traced: its line, and the remedy.

JAX and NumPyro raise errors about arrays; here they are told in terms of the model.
The model has been given arrays without values, so that nothing here depends on one.
"""

import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.core
import numpyro

from numpyro_vips.errors import UnsafeModelError
from numpyro_vips.jax_tools.user_lines import line_of_error

_SIZE = (
    " A size, as in len(np.unique(group)) or int(np.max(x)) + 1, must be public: pass "
    "the number of groups to the model as a Python int."
)
# Errors of JAX about a value that is not there, and what to write in its place.
_VALUES: Mapping[type[Exception], str] = {
    jax.errors.NonConcreteBooleanIndexError: (
        "As an index, an array of truth values picks as many rows as are true. Leave "
        "rows out with numpyro.handlers.mask, and number two groups 0 and 1, with "
        ".astype(int)."
    ),
    jax.errors.TracerArrayConversionError: (
        "A NumPy function or one of SciPy needs the values: use that of jax.numpy or "
        "jax.scipy, and jnp.where for what an `if` decides. Of a NumPy array that "
        f"is indexed by such an array, write jnp.asarray(table)[index].{_SIZE}"
    ),
    jax.errors.TracerIntegerConversionError: (
        "range(), and the index of a Python list, must be public: make an array of the "
        f"list, jnp.stack(latents)[index].{_SIZE}"
    ),
    jax.errors.TracerBoolConversionError: (
        "An `if`, `while`, `and` or `or` takes one way for all rows: use jnp.where, "
        f"`&` and `|`.{_SIZE}"
    ),
    # The most general comes last.
    jax.errors.ConcretizationTypeError: (
        "int(), float() and .item() take a value out: leave them out, or use "
        ".astype(...). How long the results of jnp.unique, jnp.nonzero and "
        f"jnp.bincount are depends on values: do without, or say a public size=.{_SIZE}"
    ),
}

# What JAX says of an index that is no integer, or no single one.
_INTEGER_INDEX = re.compile(r"(indexer|indices) must (have|be).*\binteger", re.I)
_SHAPES = "Shapes must be 1D sequences of concrete values"
_SINGLE_INTEGER = "Only integer scalar arrays can be converted"


def traced(call: Callable[[], Any]) -> Any:
    """Traces a model, and says in its own terms why it cannot be.

    Raises:
      UnsafeModelError: It looks at a value.
      Exception: Whatever else the model raises, of its type; with another text where
        that is about arrays, and what is wrong with the model is known.
    """
    try:
        return call()
    except UnsafeModelError:
        raise
    except tuple(_VALUES) as error:
        remedy = next(r for kind, r in _VALUES.items() if isinstance(error, kind))
        raise UnsafeModelError(
            "The model looks at the value of a latent variable or of private data "
            f"while it runs{line_of_error(error)}. What it computes would depend on "
            f"single records in ways that no clipping bounds. {remedy} JAX reports "
            f"{type(error).__name__}."
        ) from None
    except (TypeError, ValueError, AttributeError) as error:
        reason = _in_terms_of_the_model(error)
        if not reason:
            raise
        raise _plain(error)(f"{reason} The error was: {error}") from None


def _plain(error: Exception) -> type[Exception]:
    """Python's own class of an error; those derived from it may take more arguments."""
    kinds = (TypeError, ValueError, AttributeError)
    return next(kind for kind in kinds if isinstance(error, kind))


def _in_terms_of_the_model(error: Exception) -> str:
    """What is wrong where an error is known to mean that, else an empty text."""
    where, text = line_of_error(error), str(error)
    if reason := _of_a_plate(error, where):
        return reason
    if not where:
        return ""
    if isinstance(error, AttributeError):
        return _of_an_attribute(error, where)
    if "__format__" in text:
        return (
            f"The model writes an array as text{where}. It is tried on arrays without "
            "values, and of private rows none may be shown: leave the text out, or "
            "keep it for runs of the plain model."
        )
    if "unhashable type" in text and "Tracer" in text:
        return (
            f"The model looks up a dict or a set by an array{where}. Make an array of "
            "what is in it, jnp.asarray([...])[index]."
        )
    if text.startswith(_SHAPES):
        return f"The model makes an array whose size it computes{where}.{_SIZE}"
    if text.startswith(_SINGLE_INTEGER):
        return (
            f"The model indexes a Python list or tuple by an array{where}. Make an "
            "array of it, jnp.stack(latents)[index], and let the index be of integers."
        )
    if _INTEGER_INDEX.search(text):
        return (
            f"The model indexes an array by numbers that are no integers{where}. Codes "
            "of groups are 0, 1, ... in an array of integers: pass group.astype(int), "
            "or write X[:, 0].astype(int) for a column of a matrix."
        )
    return ""


def _of_an_attribute(error: AttributeError, where: str) -> str:
    if isinstance(error.obj, dict) and error.name in error.obj:
        # Such as scikit-learn's `Bunch`, of which the model gets a copy.
        return (
            f"The model takes {error.name!r} from a dict as an attribute{where}. A "
            "dict of any kind among the arguments reaches the model as a plain one: "
            f"write [{error.name!r}]."
        )
    if isinstance(error.obj, jax.core.Tracer):
        return (
            f"The model uses an array as if it were something else{where}. What it is "
            "called with reaches it as arrays of JAX, which have what jnp.zeros(3) has."
        )
    return ""


def _of_a_plate(error: Exception, where: str) -> str:
    """What is wrong with a site whose axes do not fit the plates that it is under."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        plate, message = frame.f_locals.get("self"), frame.f_locals.get("msg")
        if not isinstance(plate, numpyro.plate):
            continue
        size = frame.f_locals.get("size", 1)
        if frame.f_code.co_name == "__init__" and not isinstance(size, int):
            return (
                f"The size of the plate {frame.f_locals.get('name')!r} is of type "
                f"{type(size).__name__}{where}. Expected a Python int, such as "
                "X.shape[0] or len(y)."
            )
        if isinstance(message, dict) and message.get("type") == "sample":
            fn = message["fn"]
            return (
                f"The distribution of {message['name']!r} does not fit the plate "
                f"{plate.name!r}{where}: the plate's axis is number {plate.dim}, with "
                f"{plate.subsample_size} entries, and the distribution has the batch "
                f"shape {tuple(fn.batch_shape)}. An axis of a single row's numbers is "
                "taken into its event by .to_event(1), or gets a plate of its own, and "
                "the plate of the rows then dim=-2. The model was tried on few rows, "
                "so that sizes of 2 and 3 may be their number."
            )
    return ""


def log_prob(name: str, message: Mapping[str, Any]) -> Any:
    """The log density of a site at its value.

    Raises:
      TypeError, ValueError: The distribution cannot take the value; says of which site.
    """
    fn, value = message["fn"], message["value"]
    try:
        return fn.log_prob(value)
    except (TypeError, ValueError) as error:
        dtype = getattr(value, "dtype", type(value).__name__)
        shape = tuple(getattr(value, "shape", ()))
        remedy = ""
        if _INTEGER_INDEX.search(str(error)):
            remedy = (
                " Classes and counts are integers: pass the observations with "
                ".astype(int)."
            )
        raise _plain(error)(
            f"The distribution of {name!r}, of batch shape {tuple(fn.batch_shape)} and "
            f"event shape {tuple(fn.event_shape)}, has no log density for its value, "
            f"of dtype {dtype} and shape {shape}.{remedy} The error was: {error}"
        ) from None
