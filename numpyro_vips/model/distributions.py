"""What a NumPyro distribution is made of, and whether a value lies in its support.

NumPyro wraps distributions in others, by `expand`, `to_event` and `mask`. All that has
to look beneath the wrappers does it here.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import Distribution
from numpyro.distributions.transforms import AffineTransform, ExpTransform


def unwrapped(fn: Distribution) -> tuple[Any, list[Distribution]]:
    """A distribution beneath its wrappers, and the wrappers, the outermost first."""
    wrappers: list[Distribution] = []
    while isinstance(
        fn, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution
    ):
        wrappers.append(fn)
        fn = fn.base_dist
    return fn, wrappers


def shape_as_written(fn: Distribution) -> tuple[int, ...]:
    """The batch shape of a distribution's parameters, before anything expands it."""
    plain, wrappers = unwrapped(fn)
    events = sum(
        wrapper.reinterpreted_batch_ndims
        for wrapper in wrappers
        if isinstance(wrapper, dist.Independent)
    )
    shape = tuple(plain.batch_shape)
    return shape[: max(0, len(shape) - events)]


def check_parameters(name: str, fn: Distribution) -> None:
    """Looks at the parameters of a site that are plain numbers of the model.

    NumPyro looks at none unless it is asked to, and a density that is no number would
    show only when a fit has been paid for. The ends of a range count as in it, as of
    improper priors such as Gamma(0, 0).

    Raises:
      ValueError: One is outside the range of the parameter.
    """
    plain, _ = unwrapped(fn)
    for parameter, constraint in plain.arg_constraints.items():
        value = vars(plain).get(parameter)
        bounds = [getattr(constraint, f"{end}_bound", None) for end in _ENDS]
        if not isinstance(value, int | float | np.ndarray | np.generic):
            continue
        low, high = (
            bound if isinstance(bound, int | float) else end
            for bound, end in zip(bounds, _ENDS.values(), strict=True)
        )
        if not np.all((np.asarray(value) >= low) & (np.asarray(value) <= high)):
            raise ValueError(
                f"Expected the parameter {parameter!r} of {name!r}, a "
                f"{type(plain).__name__}, to be from {low} to {high}: a number of the "
                "model is not. Nothing can be fitted to a density that is no number."
            )


_ENDS = {"lower": -np.inf, "upper": np.inf}


def in_support(fn: Distribution, value: Any) -> jax.Array:
    """Whether each element of a value lies in the support, masked out or not."""
    if isinstance(fn, dist.Unit):
        return jnp.ones((), bool)
    support: Any = fn.support
    return jnp.asarray(support(value))


def unmasked_in_support(fn: Distribution, value: Any) -> jax.Array:
    """Whether each element lies in the support or is masked out."""
    fn, wrappers = unwrapped(fn)
    inside = in_support(fn, value)
    for wrapper in reversed(wrappers):
        if isinstance(wrapper, dist.Independent):
            count = min(wrapper.reinterpreted_batch_ndims, inside.ndim)
            inside = jnp.all(inside, axis=tuple(range(-count, 0)))
        elif isinstance(wrapper, dist.MaskedDistribution):
            inside |= ~jnp.asarray(wrapper._mask)
    return inside


def has_traced_bounds(support: Any) -> bool:
    """Whether bounds are only known in a run: computed by JAX, or other latents."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(support))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distributed:
    """A distribution taken apart: its class and where its parameters are.

    Attributes:
      kind: The distribution's class, wrappers removed.
      parameters: Names of the array parameters, in the order in which the traced
        program returns them.
      components: Distributions inside it, such as those of a mixture.
      reinterpreted: Number of batch axes that `to_event` turned into event axes.
      event_dim: Number of event axes of `kind` itself.
      masked: Whether the program returns a mask after the parameters.
    """

    kind: type[Distribution]
    parameters: tuple[str, ...]
    components: Mapping[str, "Distributed"]
    reinterpreted: int
    event_dim: int
    masked: bool


def take_apart(fn: Distribution) -> tuple[Distributed, dict[str, Any]]:
    """Returns a distribution's structure and its arrays, wrappers removed."""
    fn, wrappers = unwrapped(fn)
    fn = _location_and_scale(fn)
    reinterpreted = 0
    masks: list[tuple[Any, int]] = []
    for wrapper in wrappers:
        if isinstance(wrapper, dist.Independent):
            reinterpreted += wrapper.reinterpreted_batch_ndims
        elif isinstance(wrapper, dist.MaskedDistribution):
            masks.append((jnp.asarray(wrapper._mask), reinterpreted))
    mask = None
    for array, outside in masks:
        # It lacks the axes that a `to_event` inside of it has taken away.
        array = array.reshape(array.shape + (1,) * (reinterpreted - outside))
        mask = array if mask is None else mask & array
    arrays: dict[str, Any] = {}
    components: dict[str, Distributed] = {}
    for name in _parameter_names(fn):
        value = getattr(fn, name, None)
        if isinstance(value, Distribution):
            components[name], arrays[name] = take_apart(value)
        elif value is not None and not isinstance(value, (str, bool)):
            arrays[name] = jnp.asarray(value)
    for name, part in _parts(fn).items():
        components[name], arrays[name] = take_apart(part)
    structure = Distributed(
        kind=type(fn),
        parameters=tuple(sorted(set(arrays) - set(components))),
        components=components,
        reinterpreted=reinterpreted,
        event_dim=fn.event_dim,
        masked=mask is not None,
    )
    if mask is not None:
        arrays["mask"] = mask
    return structure, arrays


def _parts(fn: Distribution) -> dict[str, Distribution]:
    """The distributions that another one is made of."""
    if isinstance(fn, dist.MixtureSameFamily):
        names = ("_mixing_distribution", "_component_distribution")
        return {name: getattr(fn, name) for name in names}
    if isinstance(fn, dist.MixtureGeneral):
        parts = {
            f"component_{number}": part
            for number, part in enumerate(fn.component_distributions)
        }
        return {"_mixing_distribution": fn.mixing_distribution, **parts}
    if isinstance(fn, dist.TransformedDistribution) and (type(fn).arg_constraints):
        return {}  # Such as LogNormal, which has parameters of its own.
    base = vars(fn).get("base_dist")
    return {"base_dist": base} if isinstance(base, Distribution) else {}


def _location_and_scale(fn: Distribution) -> Distribution:
    """A plain distribution in place of one that was only shifted and scaled.

    A Normal that was shifted, scaled and then exponentiated is log-normal.
    """
    if type(fn) is not dist.TransformedDistribution:
        return fn
    base: Any = fn.base_dist
    transforms: list[Any] = list(fn.transforms)
    kind: Any = dist.Normal
    if isinstance(transforms[-1], ExpTransform):
        kind = dist.LogNormal
        transforms.pop()
    affine = [t for t in transforms if isinstance(t, AffineTransform)]
    if not isinstance(base, dist.Normal) or (len(affine) < len(transforms)):
        return fn
    loc: Any = base.loc
    scale: Any = base.scale
    for transform in affine:
        loc = transform.loc + transform.scale * loc
        scale = jnp.abs(transform.scale * scale)
    return kind(loc, scale)


def _parameter_names(fn: Distribution) -> list[str]:
    """Names of a distribution's array parameters, read from the instance.

    Its pytree is no guide: MultivariateNormal drops `precision_matrix` from it and
    Multinomial keeps `total_count` elsewhere.
    """
    if isinstance(fn, dist.Delta):
        return ["v", "log_density"]
    if isinstance(fn, dist.Unit):
        return ["log_factor"]
    attributes = vars(fn)
    names = [name for name in fn.arg_constraints if name in attributes]
    if not names:  # A transformed distribution that passes them on by properties.
        names = list(fn.arg_constraints)
    # Such as the rate that NegativeBinomial2 keeps in place of its mean.
    names += [
        name
        for name, value in attributes.items()
        if isinstance(value, jax.Array | np.ndarray) and not name.startswith("_")
    ]
    return list(dict.fromkeys(names))
