"""The `private` handler, which says whose data a NumPyro model describes.

It names one plate of the model, the unit plate. Each row of that plate is one
protected individual.

```python
@private(unit="patients")
def model(X, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("patients", X.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)
```
"""

import functools
from collections.abc import Callable
from typing import Any

import numpyro
from numpyro.primitives import Messenger

from numpyro_vips._keywords import naming_arguments
from numpyro_vips.points import in_structure_of


@naming_arguments(plate="unit='patients'", name="unit='patients'")
class private(Messenger):
    """Marks the plate whose rows are the protected individuals.

    The decorated model stays a plain NumPyro model: `NUTS`, `SVI`, `Predictive`,
    `log_density` and `render_model` run it unchanged. The handler adds nothing to
    the model and protects nothing by itself; `PrivateVI` reads from it which rows to
    protect. Points of a network that were read from a file, nested dicts, become what
    the model has in their place.

    Four ways to write it:

    - as a decorator: `@private(unit="patients")` over a `def`,
    - of a method: the same, inside a class,
    - as a wrapper: `private(model, unit="patients", public=("time",))`,
    - as a context manager: `with private(unit="patients"): ...`.

    The context manager is for readers of the code; nothing looks at it.

        >>> def model(x, scale): ...
        >>> private(model, unit="patients", public=("scale",)).unit
        'patients'

    Attributes:
      fn: The model, or None for a context manager.
      unit: Name of the unit plate.
      public: Names of the array arguments that are public. Leaves of a dict or a
        tuple have dotted names: `"batch.vocab"`, `"batch.0"`.

    Args:
      fn: The model: a function, a method, or any callable object.
      unit: Name of the unit plate; required.
      public: Names of array arguments that are not private data.

    Raises:
      TypeError: `unit` is missing or not a string, `public` is not a tuple of
        names, or `fn` is not callable.
      ValueError: `unit` or a name in `public` is empty.
    """

    unit: str
    public: tuple[str, ...]

    def __init__(
        self,
        fn: Callable[..., Any] | None = None,
        *,
        # None so that leaving it out explains itself; see `_check_unit`.
        unit: str | None = None,
        public: tuple[str, ...] = (),
    ):
        if isinstance(fn, str):
            raise TypeError(
                f"Expected a model, got the string {fn!r}. The name of the plate is "
                f"given by keyword: private(unit={fn!r})."
            )
        if fn is not None and not callable(fn):
            raise TypeError(
                f"Expected a model (a callable), got an object of type "
                f"{type(fn).__name__}."
            )
        self.unit = _check_unit(unit)
        self.public = _check_public(public)
        super().__init__(fn)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.fn is not None:
            return super().__call__(*args, **kwargs)
        if len(args) != 1 or kwargs or not callable(args[0]):
            raise TypeError(
                f"private(unit={self.unit!r}) holds no model yet. Put it over the "
                "model as a decorator, or give it the model: "
                f"private(model, unit={self.unit!r})."
            )
        # A new handler, so that one `private(unit=...)` may decorate many models.
        return self._with_fn(args[0])

    def postprocess_message(self, msg: Any) -> None:
        """Gives a parameter that another handler has set the model's own structure."""
        if msg["type"] == "param":
            msg["value"] = in_own_structure(msg)

    def __get__(self, instance: Any, owner: type | None = None) -> "private":
        """Binds a decorated method to its object, as Python does for functions."""
        bind = getattr(type(self.fn), "__get__", None)
        if bind is None:
            return self
        bound = bind(self.fn, instance, owner)
        return self if bound is self.fn else self._with_fn(bound)

    def __repr__(self) -> str:
        name = "" if self.fn is None else f"{name_of(self.fn)}, "
        public = f", public={self.public!r}" if self.public else ""
        return f"private({name}unit={self.unit!r}{public})"

    def _with_fn(self, fn: Callable[..., Any]) -> "private":
        return type(self)(fn, unit=self.unit, public=self.public)


def in_own_structure(msg: Any) -> Any:
    """The value of a parameter's message, in the structure of its initial value.

    See `in_structure_of`. The initial value may be drawn, but no key that other sites
    are drawn with.
    """
    if not isinstance(msg["value"], dict):
        return msg["value"]
    with numpyro.handlers.block(), numpyro.handlers.seed(rng_seed=0):
        own = msg["fn"](*msg["args"], **msg["kwargs"])
    return in_structure_of(own, msg["value"])


def _check_unit(unit: Any) -> str:
    if unit is None:
        raise TypeError(
            "private() needs the name of the plate whose rows are the protected "
            'individuals, for example private(unit="patients") for a model that has '
            'numpyro.plate("patients", X.shape[0]).'
        )
    if not isinstance(unit, str):
        raise TypeError(
            f"Expected unit to be the name of a plate (a string), got an object of "
            f"type {type(unit).__name__}."
        )
    if not unit:
        raise ValueError("Expected unit to be the name of a plate, got ''.")
    return unit


def _check_public(public: Any) -> tuple[str, ...]:
    if isinstance(public, str):
        raise TypeError(
            f"Expected public to be a tuple of argument names, got the string "
            f"{public!r}. For a single name write public=({public!r},)."
        )
    if not isinstance(public, (tuple, list)):
        raise TypeError(
            "Expected public to be a tuple of argument names, got an object of type "
            f"{type(public).__name__}."
        )
    for name in public:
        if not isinstance(name, str):
            raise TypeError(
                "Expected public to hold names of arguments (strings), found an "
                f"object of type {type(name).__name__}. Give the argument's name, not "
                "its value."
            )
        if not name:
            raise ValueError("Expected public to hold names of arguments, found ''.")
    return tuple(dict.fromkeys(public))


def check_marked(model: Any) -> None:
    """Checks that a model says whose records are protected.

    Raises:
      TypeError: It is not marked with `private`, `private` is not the outermost, or
        the model's draws are fixed.
    """
    if isinstance(model, private) and model.fn is not None:
        handler: Any = model.fn
        while isinstance(handler, Messenger):
            if isinstance(handler, numpyro.handlers.seed):
                raise TypeError(
                    "The model is under numpyro.handlers.seed, so that it would draw "
                    "the same numbers in every step. Pass it without: a fit gives it "
                    "keys of its own, from that of run(rng_key, ...)."
                )
            handler = handler.fn
        if hasattr(handler, "trace") and hasattr(handler, "lower"):
            raise TypeError(
                "The model is under jax.jit, which hides its sample statements from "
                "NumPyro. Pass it without: a fit compiles it."
            )
        return
    inner = getattr(model, "fn", None)
    if isinstance(model, private):
        advice = "It holds no model yet: put it over the model as a decorator."
    elif isinstance(inner, private):
        advice = (
            "Mark the model last, private(handler(model), unit=...), so that it is "
            "known whose records are protected."
        )
    else:
        advice = (
            "Put @private(unit='name of the plate') over the model, so that it is "
            "known whose records are protected."
        )
    raise TypeError(
        "Expected a model marked with numpyro_vips.private(unit=...), got "
        f"{type(model).__name__}. {advice}"
    )


def name_of(fn: Any) -> str:
    """What to call a model in messages and ledgers."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    # The functions of NumPy 2.0 have no qualified name.
    name = getattr(fn, "__name__", type(fn).__name__)
    return getattr(fn, "__qualname__", name)
