"""What is wrong with a model that looks at values while it is traced, and the remedy.

JAX raises errors about its tracers; here they are told in terms of the model. Other
errors stay as they are, with notes that name the site, and in `prepare_fit` the line.
The model has been given arrays without values, so that nothing here depends on one.
"""

from collections.abc import Callable, Mapping
from typing import Any

import jax

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


def traced(call: Callable[[], Any]) -> Any:
    """Traces a model, and says how to write what looks at a value in another way.

    Raises:
      UnsafeModelError: It looks at a value.
      Exception: Whatever else the model raises.
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
        error.add_note(
            f"The distribution of {name!r}, of batch shape {tuple(fn.batch_shape)} and "
            f"event shape {tuple(fn.event_shape)}, has no log density for its value, "
            f"of dtype {dtype} and shape {shape}."
        )
        raise
