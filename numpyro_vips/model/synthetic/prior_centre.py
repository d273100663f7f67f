"""Where a fit starts: the centre of the prior and its width, found without a private
value."""

import contextlib
import dataclasses
import functools
import math
import weakref
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Float
from numpyro.distributions import biject_to, transforms
from numpyro.primitives import Messenger
from scipy import special

from numpyro_vips.jax_tools.double_precision import evaluate_in_double
from numpyro_vips.jax_tools.random_keys import threefry_key
from numpyro_vips.model.distributions import unwrapped
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.model.synthetic.synthetic_rows import synthetic_rows

# Standard deviation of a prior above which it says that numbers are large.
WIDE_PRIOR = 10.0

_MEDIAN_DRAWS = 101
_QUANTILE_DRAWS = 2_000
_MOST_MEDIAN_NUMBERS = 10_000_000
# The distance between the quartiles of a standard Normal.
_NORMAL_QUARTILES = 1.349
# A vague prior of a scale, such as Gamma(0.001, 0.001), is hundreds of e-folds wide. At
# more of them than these a prior of a logarithm says that little is known.
WIDE_LOGARITHM = 3.0


class GlobalValues(NamedTuple):
    """What a run of the model on a synthetic row says about its globals.

    `priors` are their distributions given the latents before them.
    """

    centres: dict[str, jax.Array]
    priors: dict[str, Any]
    supports: dict[str, Any]


# Kept, as both engines need them several times. By whether double precision is on.
_values: weakref.WeakKeyDictionary[ModelGraph, dict[bool, GlobalValues]]
_values = weakref.WeakKeyDictionary()


def global_values(graph: ModelGraph) -> GlobalValues:
    """Runs the model with its globals at the centres of their priors, once."""
    found = _values.setdefault(graph, {})
    is_double = jnp.result_type(float) == jnp.float64
    if is_double not in found:
        found[is_double] = _global_values(graph)
    return found[is_double]


def _global_values(graph: ModelGraph) -> GlobalValues:
    found = _globals_at(graph, distance=0.0)
    return GlobalValues(
        centres={name: message["value"] for name, message in found.items()},
        priors={name: message["fn"] for name, message in found.items()},
        supports={name: message["fn"].support for name, message in found.items()},
    )


def moved_supports(graph: ModelGraph) -> dict[str, Any]:
    """The supports of the globals where those before them are not at their centres."""
    found = _globals_at(graph, distance=1.0)
    return {name: message["fn"].support for name, message in found.items()}


class _AllSeen(BaseException):
    """Ends a run of a model, whatever exceptions the model itself catches."""


def _globals_at(graph: ModelGraph, *, distance: float) -> dict[str, Any]:
    """The messages of the globals on a synthetic row.

    The run ends with the last of them: what a model does with rows, operation by
    operation, takes long to compile, and says nothing of these.

    Args:
      graph: The model.
      distance: Of the globals from the centres of their priors; see `_PriorCentres`.
    """
    names = [site.name for site in graph.latents("global")]
    handler = _PriorCentres(distance=distance, until=names)
    rows = synthetic_rows(graph.arguments, 1, 0)
    with contextlib.suppress(_AllSeen):
        graph.run(rows, {}, chosen=handler)
    return {name: handler.seen[name] for name in names}


def unconstrained_scale(prior: Any) -> np.ndarray:
    """A prior's standard deviation on the unconstrained space of its support.

    It is read off the quartiles, as heavy tails would say nothing otherwise; one where
    there are none, as of flat priors. Where the space is not that of the values
    themselves but, say, of their logarithms, vague priors are cut short.
    """
    transform = biject_to(prior.support)
    shape = transform.inverse_shape(prior.shape())
    quartiles = _quartiles(prior, transform, functools.partial(threefry_key, 0))
    if quartiles is None:
        return np.ones(shape)
    # In NumPy, which compiles nothing.
    low, high = (np.asarray(quartile, np.float64) for quartile in quartiles)
    scale = np.broadcast_to(abs(high - low) / _NORMAL_QUARTILES, shape)
    scale = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    return scale if is_identity(transform) else np.minimum(scale, WIDE_LOGARITHM)


def moderate_draws(graph: ModelGraph, count: int) -> dict[str, np.ndarray]:
    """Draws of the globals, about as wide as their priors: (count, ...) of each.

    They are the same in every call: Normal on the unconstrained space, with each
    prior's centre and `unconstrained_scale` given the globals before it at their
    centres.
    """
    rng = np.random.default_rng(0)
    centres, priors, supports = global_values(graph)
    found = {}
    for name, centre in centres.items():
        transform, scale = biject_to(supports[name]), unconstrained_scale(priors[name])
        noise = scale * rng.normal(size=(count, *scale.shape))
        found[name] = evaluate_in_double(
            lambda centre, noise, transform=transform: transform(
                transform.inv(centre) + noise
            ),
            np.asarray(centre, np.float64),
            noise,
        )
    return found


def run_at_quartiles(graph: ModelGraph, seed: int) -> Mapping[str, dict]:
    """The model's messages on a synthetic row, at a quartile of every latent's prior.

    At random it is the first or the third one of each unconstrained coordinate, given
    the latents before it.
    """
    rows = synthetic_rows(graph.arguments, 1, seed)
    return graph.run(rows, {}, chosen=_PriorCentres(signs=np.random.default_rng(seed)))


def units_of_prior(stddev: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """The units in which numbers are, as far as standard deviations of priors say it.

    These are the standard deviations below 1, and a tenth of those above `WIDE_PRIOR`:
    steps at the default rate of DPVI do not reach further within their default number.
    In between a prior says little.
    """
    return np.where(stddev < 1.0, stddev, np.maximum(1.0, stddev / WIDE_PRIOR))


def prior_median(prior: Any) -> jax.Array:
    """The middle of a prior of single numbers: its median, or else its mean."""
    key = functools.partial(threefry_key, 0)
    return _centre(prior, biject_to(prior.support), key)


def prior_quantile(prior: Any, q: float) -> np.ndarray:
    """A quantile of a prior of single numbers, of draws where there is no formula."""
    base, _ = unwrapped(prior)
    try:
        found = _scipy_quantile(base, q)
        return np.asarray(_computed(lambda: base.icdf(q)) if found is None else found)
    except (NotImplementedError, AttributeError, ImportError):
        draws = _computed(lambda: prior.sample(threefry_key(0), (_QUANTILE_DRAWS,)))
        return np.quantile(np.asarray(draws, np.float64), q, axis=0)


def initial_params(graph: ModelGraph, rng_key: jax.Array) -> dict[str, Any]:
    """The model's parameters as its own initialisers make them, from a synthetic
    row."""
    if not graph.params:
        return {}
    rows = synthetic_rows(graph.arguments, 1, 0)
    messages = graph.run(rows, {}, rng_key=rng_key, chosen=_PriorCentres())
    return {name: messages[name]["value"] for name in graph.params}


def at_initial_params(graph: ModelGraph) -> ModelGraph:
    """The graph with its parameters held at initial values, as public constants."""
    if not graph.params:
        return graph
    params = initial_params(graph, threefry_key(0))
    return dataclasses.replace(graph, run=functools.partial(graph.run, params=params))


def is_identity(transform: Any) -> bool:
    """Whether the unconstrained space is that of the values themselves."""
    while isinstance(transform, transforms.IndependentTransform):
        transform = transform.base_transform
    return isinstance(transform, transforms.IdentityTransform)


class _PriorCentres(Messenger):
    """Sets every latent to the centre of its prior given the latents before it.

    Or to values at a distance from it, in every unconstrained coordinate, or to one of
    the quartiles, which random signs choose.

    Attributes:
      seen: The messages of the sites in `until`. The run ends with the last of them, by
        `_AllSeen`.
    """

    def __init__(
        self,
        *,
        distance: float = 0.0,
        signs: np.random.Generator | None = None,
        until: Collection[str] = (),
    ):
        self._num_sites = 0
        self.distance = distance
        self._signs = signs
        self._until = frozenset(until)
        self.seen: dict[str, Any] = {}
        super().__init__()

    def postprocess_message(self, msg: Any) -> None:
        if msg.get("name") in self._until:
            self.seen[msg["name"]] = msg
            if self.seen.keys() == self._until:
                raise _AllSeen

    def process_message(self, msg: Any) -> None:
        if msg["type"] != "sample" or msg["is_observed"] or msg["value"] is not None:
            return
        self._num_sites += 1
        key = functools.partial(threefry_key, self._num_sites)
        fn = msg["fn"]
        try:
            transform = biject_to(fn.support)
        except NotImplementedError:  # Discrete, or refused later.
            msg["value"] = fn.sample(key())
            return
        centre = _centre(fn, transform, key)
        away: Any = self.distance
        if self._signs is not None:
            away = unconstrained_scale(fn) * _NORMAL_QUARTILES / 2.0
            away = away * self._signs.choice([-1.0, 1.0], away.shape)
        # NumPyro's transforms of correlations take no single precision among doubles.
        msg["value"] = _computed(
            lambda: transform(transform.inv(jnp.asarray(centre, float)) + away)
        )


def _centre(fn: Any, transform: Any, key: Callable[[], jax.Array]) -> jax.Array:
    """The prior's median; where it has no formula a mean; else draws' median."""
    base, _ = unwrapped(fn)
    for formula in (
        lambda: base.icdf(0.5),
        lambda: fn.mean,
        lambda: _harmonic_mean(base),
    ):
        try:
            centre = _computed(formula)
        # Some of NumPyro's formulas need a package that may be missing, and the
        # median of a vector's entries is none of the vector.
        # Others, such as InverseGamma(1.0, 1.0).mean, divide Python numbers by zero.
        except (
            NotImplementedError,
            AttributeError,
            ImportError,
            ValueError,
            ZeroDivisionError,
        ):
            continue
        centre = jnp.broadcast_to(centre, fn.shape())
        if np.isfinite(_computed(lambda centre=centre: transform.inv(centre))).all():
            return centre
    draws = _draws(fn, transform, key)
    if draws is None:
        return transform(jnp.zeros(transform.inverse_shape(fn.shape())))
    middle = np.median(np.asarray(draws, np.float64), axis=0)
    return _computed(lambda: transform(middle))


def _harmonic_mean(base: Any) -> jax.Array:
    """The inverse of the mean precision, where vague priors of variances have no mean.

    Draws of InverseGamma(0.001, 0.001) are beyond any number.

    Raises:
      NotImplementedError: It is another distribution.
    """
    if not isinstance(base, dist.InverseGamma):
        raise NotImplementedError
    return base.rate / base.concentration


def _quartiles(
    fn: Any, transform: Any, key: Callable[[], jax.Array]
) -> tuple[Any, Any] | None:
    """The prior's quartiles on the unconstrained space; None for an improper one."""
    base, _ = unwrapped(fn)
    # Elsewhere the quartiles of entries are no values of the whole.
    if not transform.domain.event_dim and not transform.codomain.event_dim:
        try:
            low, high = (_computed_quantile(base, transform, q) for q in (0.25, 0.75))
        except (NotImplementedError, AttributeError, ImportError):
            pass
        else:
            if np.all(np.isfinite(low) & np.isfinite(high)):
                return low, high
    draws = _draws(fn, transform, key)
    if draws is None:
        return None
    with np.errstate(invalid="ignore"):  # Draws may underflow, to a logarithm of -inf.
        low, high = np.quantile(np.asarray(draws, np.float64), [0.25, 0.75], axis=0)
    return low, high


def _computed_quantile(base: Any, transform: Any, q: float) -> jax.Array:
    """A quantile on the unconstrained space.

    Raises:
      NotImplementedError, AttributeError, ImportError: There is no formula for it.
    """
    found = _scipy_quantile(base, q)
    return _computed(lambda: transform.inv(base.icdf(q) if found is None else found))


def _scipy_quantile(base: Any, q: float) -> np.ndarray | None:
    """A quantile by SciPy, where NumPyro's formula needs a package that may be missing.

    Returns:
      None for all other distributions.
    """
    if isinstance(base, dist.Gamma | dist.InverseGamma):
        concentration, rate = np.asarray(base.concentration), np.asarray(base.rate)
        if isinstance(base, dist.Gamma):
            return special.gammaincinv(concentration, q) / rate
        return rate / special.gammaincinv(concentration, 1.0 - q)
    if isinstance(base, dist.Beta):
        shapes = np.asarray(base.concentration1), np.asarray(base.concentration0)
        return special.betaincinv(*shapes, q)
    if isinstance(base, dist.StudentT):
        standard = special.stdtrit(np.asarray(base.df), q)
        return np.asarray(base.loc) + np.asarray(base.scale) * standard
    return None


def _computed(formula: Callable[[], Any]) -> jax.Array:
    """A formula's value, computed in NumPy where that can be: it compiles nothing."""
    dtype = jnp.result_type(float)
    try:
        return jax.device_put(np.asarray(evaluate_in_double(formula), dtype))
    except jax.errors.JAXTypeError:  # It looks at numbers while it is traced.
        return jnp.asarray(formula(), dtype)


def _draws(fn: Any, transform: Any, key: Callable[[], jax.Array]) -> jax.Array | None:
    """Draws from the prior on the unconstrained space; None from an improper one."""
    size = math.prod(fn.shape())
    count = max(1, min(_MEDIAN_DRAWS, _MOST_MEDIAN_NUMBERS // max(size, 1)))
    drawn_with = key()
    try:
        return _computed(lambda: transform.inv(fn.sample(drawn_with, (count,))))
    except NotImplementedError:  # Improper, as flat priors are.
        return None
