"""Errors about keywords and keys, which say what to write.

Those of `PrivateVI` say where a setting belongs.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, Concatenate, ParamSpec, TypeVar

from numpyro_vips.errors import did_you_mean

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Where settings of a fit belong that an engine's do not have.
SETTINGS_OF_FITS = {
    "batch_size": "PrivateVI(..., sampling=nv.Poisson(0.1))",
    "sampling": "PrivateVI(..., sampling=nv.Poisson(0.1))",
    "num_steps": "PrivateVI(..., num_steps=100)",
    "clipping_norm": "PrivateVI(..., clipping_norm=1.0)",
    "epsilon": "PrivateVI(..., epsilon=0.5)",
    "delta": "PrivateVI(..., delta=1e-6)",
}
# Where else a setting belongs that is none of `PrivateVI`.
_PLACES = {
    "batch_size": "sampling=nv.Poisson(0.1) for a tenth of the rows in each step",
    "subsample_size": "sampling=nv.Poisson(0.1) for a tenth of the rows in each step",
    "learning_rate": "engine=nv.DPVI(optimizer=optax.adam(0.01))",
    "optim": "engine=nv.DPVI(optimizer=optax.adam(0.01))",
    "rng_key": "run(rng_key, X, y)",
    "unit": "nv.private(model, unit='patients') in place of the model",
    "public": "nv.private(model, unit='patients', public=('times',)) for the model",
    "sampling_rate": "sampling=nv.Poisson(0.1)",
    "relation": "sampling=nv.FullBatch(relation='replace_one')",
    "accountant": "budget=nv.PrivacyBudget(epsilon, delta, accountant='moments')",
    "step_size": "engine=nv.VIPS(step_size=lambda t: 1 / (t + 1))",
    "release_once": "engine=nv.VIPS(release_once=False)",
    "structure": "engine=nv.VIPS(structure={'w': 'diag'})",
    "augmentation": "engine=nv.VIPS(augmentation='fixed-curvature')",
    "local_steps": "engine=nv.VIPS(local_steps=20) or nv.DPVI(local_steps=20)",
    "guide": "engine=nv.DPVI(guide='full_rank')",
    "optimizer": "engine=nv.DPVI(optimizer=optax.adam(0.01))",
    "loss": "engine=nv.DPVI(loss=numpyro.infer.TraceMeanField_ELBO())",
    "perturb": "engine=nv.DPVI(perturb='all')",
    "averaging": "engine=nv.DPVI(averaging=None)",
}


def naming_places(
    init: Callable[Concatenate[Any, _P], None],
) -> Callable[Concatenate[Any, _P], None]:
    """Lets errors about keywords say which there is, and where a setting belongs."""
    known = inspect.signature(init).parameters.keys() - {"self", "model"}

    @functools.wraps(init)
    def checked(self: Any, *args: _P.args, **kwargs: _P.kwargs) -> None:
        given = (name for name in kwargs if name != "model")
        _check("PrivateVI", given, known, _PLACES)
        if "budget" not in kwargs:
            raise TypeError(
                "PrivateVI needs budget=nv.PrivacyBudget(epsilon, delta), such as "
                "nv.PrivacyBudget(1.0, 1e-6), the ledger that pays for all fits on the "
                "same people. Its own epsilon= and delta= are one fit's share of it."
            )
        init(self, *args, **kwargs)

    return checked


def needing_key(
    call: str, **places: str
) -> Callable[[Callable[Concatenate[Any, _P], _T]], Callable[Concatenate[Any, _P], _T]]:
    """Lets errors of a method whose first argument is a key say what to pass.

    Args:
      call: How the method is called, with its name, for who has given no key.
      places: What to write in place of keywords that it does not have.
    """
    name, _, _ = call.partition("(")

    def telling(
        method: Callable[Concatenate[Any, _P], _T],
    ) -> Callable[Concatenate[Any, _P], _T]:
        known = inspect.signature(method).parameters.keys() - {"self"}

        @functools.wraps(method)
        def checked(self: Any, *args: _P.args, **kwargs: _P.kwargs) -> _T:
            _check(name, kwargs, known, places)
            if not args and "rng_key" not in kwargs:
                raise TypeError(f"{name} needs a key of jax.random: {call}.")
            return method(self, *args, **kwargs)

        return checked

    return telling


def naming_arguments(**places: str) -> Callable[[type[_T]], type[_T]]:
    """Lets errors about a class's arguments say how it is called.

    Args:
      places: What to write in place of keywords that it does not have.
    """

    def telling(owner: type[_T]) -> type[_T]:
        init: Callable[..., None] = owner.__init__
        # Without types: they would hide which arguments there are.
        given_to_init = inspect.signature(init)
        signature = given_to_init.replace(
            parameters=[
                each.replace(annotation=inspect.Parameter.empty)
                for each in [*given_to_init.parameters.values()][1:]
            ],
            return_annotation=inspect.Signature.empty,
        )
        name, known = owner.__name__, signature.parameters.keys()

        @functools.wraps(init)
        def checked(self: Any, *args: Any, **kwargs: Any) -> None:
            _check(name, kwargs, known, places)
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(
                    f"{name}: {error}. It is called as {name}{signature}."
                ) from None
            init(self, *args, **kwargs)

        # Through `setattr`, since a type checker would have methods stay as they are.
        setattr(owner, "__init__", checked)  # noqa: B010
        return owner

    return telling


def no_attribute(owner: object, name: str, places: Mapping[str, str]) -> AttributeError:
    """The error for an attribute that an object does not have.

    Args:
      owner, name: The object and the attribute.
      places: What to write in place of attributes that it does not have.
    """
    message = f"{type(owner).__name__!r} object has no attribute {name!r}"
    if name in places:
        message += f": write {places[name]}"
    # With these Python looks for a name that is alike.
    return AttributeError(f"{message}.", name=name, obj=owner)


def _check(
    owner: str, names: Iterable[str], known: Set[str], places: Mapping[str, str]
) -> None:
    for name in names:
        if name in places:
            raise TypeError(f"{owner} has no {name}=: write {places[name]}.")
        if name not in known:
            hint = did_you_mean(name, known)
            hint = hint or f"It has {', '.join(f'{k}=' for k in sorted(known))}."
            raise TypeError(f"{owner} has no {name}=. {hint}")
