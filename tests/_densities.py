"""A log density of the algebra at numbers, with its auxiliary variables beside it."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpyro.distributions as dist
from _evaluate import evaluate

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.densities.log_densities import REGISTRY
from numpyro_vips.conjugacy.interpreter.values import Constant, Value
from numpyro_vips.conjugacy.structure.augmentation import Augmentation, augmented


def constant(array: Any) -> Constant:
    """A public number or array."""
    return Constant(np.asarray(array), is_private=False)


@dataclasses.dataclass(frozen=True)
class Density:
    """What a registered function makes of a value and parameters.

    Attributes:
      form: The log density.
      auxiliaries: By name, the states of each auxiliary variable, None for numbers.
    """

    form: Form
    auxiliaries: Mapping[str, Any]

    @classmethod
    def of(cls, kind: type[dist.Distribution], x: Any, **parameters: Any) -> "Density":
        """Arrays are constants; what is a form or a component stays as it is."""

        def value_of(parameter: Any) -> Any:
            is_array = isinstance(parameter, np.ndarray | float | int)
            return constant(parameter) if is_array else parameter

        values = {name: value_of(value) for name, value in parameters.items()}
        x = x if isinstance(x, Form) else forms.constant(np.asarray(x))
        form, asked_for = augmented(
            lambda augment: REGISTRY[kind](x, augment=augment, **values),
            "y",
            "local",
            {},
        )
        return cls(form, {a.latent.name: a.latent.states for a in asked_for})

    def at(self, **latents: Any) -> np.ndarray:
        """Its value where an auxiliary variable is called by its last word."""
        names = {name.rpartition(":")[2]: name for name in self.auxiliaries}
        values = {names.get(name, name): value for name, value in latents.items()}
        states = {name: s for name, s in self.auxiliaries.items() if s is not None}
        return evaluate(self.form, values, states)


@dataclasses.dataclass(frozen=True)
class Inner:
    """A distribution inside another; see `log_densities.Component`."""

    parameters: Mapping[str, Value]
    density: Callable[[Form], Form] | None = None
    event_dim: int = 0

    def log_density(self, x: Form) -> Form:
        assert self.density is not None
        return self.density(x)


def inner(kind: type[dist.Distribution], **parameters: Value) -> Inner:
    """A component whose density needs no auxiliary variables."""
    none = Augmentation("y", "local", {}, "polya-gamma")
    return Inner(parameters, lambda x: REGISTRY[kind](x, augment=none, **parameters))
