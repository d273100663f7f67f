"""A distribution taken apart is the same one, beneath all that it was wrapped in."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions.transforms import (
    AffineTransform,
    ExpTransform,
    SigmoidTransform,
)

from numpyro_vips.model.distributions import (
    check_parameters,
    in_support,
    take_apart,
    unmasked_in_support,
    unwrapped,
)

LOC = jnp.array([[0.5, -1.0, 2.0], [0.0, 1.0, 3.0]])
MASK = np.array([[True, False, True], [True, True, False]])


def test_wrappers_come_off_from_the_outside() -> None:
    inner = dist.Normal(LOC, 1.0)
    wrapped = inner.mask(jnp.asarray(MASK)).to_event(1).expand([4, 2])
    found, wrappers = unwrapped(wrapped)
    assert found is inner
    kinds = [type(wrapper) for wrapper in wrappers]
    assert kinds == [
        dist.Independent,
        dist.ExpandedDistribution,
        dist.MaskedDistribution,
    ]


WHOLE: dict[str, tuple[dist.Distribution, Any]] = {
    "Normal": (dist.Normal(LOC, 2.0), 0.3),
    "Bernoulli": (dist.Bernoulli(logits=LOC), 1),
    "Multinomial": (
        dist.Multinomial(5, jnp.array([0.2, 0.3, 0.5])),
        jnp.array([1, 0, 4]),
    ),
    "spelled by precision": (
        dist.MultivariateNormal(
            jnp.zeros(2), precision_matrix=jnp.array([[2.0, 0.5], [0.5, 1.0]])
        ),
        jnp.array([0.3, -1.0]),
    ),
    "LogNormal": (dist.LogNormal(0.3, 2.0), 1.7),
    "StudentT": (dist.StudentT(3.0, LOC, 1.5), 0.3),
}


@pytest.mark.parametrize("name", WHOLE)
def test_kind_and_arrays_make_the_distribution_again(name: str) -> None:
    fn, value = WHOLE[name]
    structure, arrays = take_apart(fn.to_event(len(fn.batch_shape)))
    assert structure.kind is type(fn)
    assert structure.reinterpreted == len(fn.batch_shape)
    assert structure.event_dim == fn.event_dim
    assert structure.parameters == tuple(sorted(arrays))
    kind: Any = structure.kind
    given = {k: arrays[k] for k in structure.parameters if k in kind.arg_constraints}
    if name == "spelled by precision":
        given = {k: given[k] for k in ("loc", "precision_matrix")}
    np.testing.assert_allclose(kind(**given).log_prob(value), fn.log_prob(value))


@pytest.mark.parametrize("scale", [2.0, -2.0])
@pytest.mark.parametrize("exp", [False, True])
def test_what_was_shifted_and_scaled_is_a_plain_distribution(
    scale: float, exp: bool
) -> None:
    transforms: list[Any] = [AffineTransform(1.0, scale), AffineTransform(-0.5, 3.0)]
    fn = dist.TransformedDistribution(
        dist.Normal(0.7, 1.3), [*transforms, *([ExpTransform()] if exp else [])]
    )
    structure, arrays = take_apart(fn)
    assert structure.kind is (dist.LogNormal if exp else dist.Normal)
    found = structure.kind(**arrays).log_prob(2.5)
    np.testing.assert_allclose(found, fn.log_prob(2.5), rtol=1e-5)


def test_another_transformation_stays() -> None:
    fn = dist.TransformedDistribution(dist.Normal(0.0, 1.0), SigmoidTransform())
    assert take_apart(fn)[0].kind is dist.TransformedDistribution


def test_masks_are_joined_with_the_axes_that_events_took() -> None:
    rows = np.array([True, False])
    fn = dist.Normal(LOC, 1.0).mask(jnp.asarray(MASK)).to_event(1).mask(rows)
    structure, arrays = take_apart(fn)
    assert structure.masked and structure.reinterpreted == 1
    assert "mask" not in structure.parameters
    np.testing.assert_array_equal(arrays["mask"], MASK & rows[:, None])
    # It says which elements count.
    each = np.where(arrays["mask"], dist.Normal(LOC, 1.0).log_prob(0.3), 0.0)
    np.testing.assert_allclose(fn.log_prob(jnp.full((2, 3), 0.3)), each.sum(-1))


def test_components_of_mixtures_are_taken_apart_too() -> None:
    fn = dist.MixtureGeneral(
        dist.Categorical(jnp.array([0.4, 0.6])),
        [dist.Normal(1.0, 2.0), dist.Exponential(3.0)],
        support=dist.constraints.real,
    )
    structure, arrays = take_apart(fn)
    kinds = {name: part.kind for name, part in structure.components.items()}
    assert kinds == {
        "_mixing_distribution": dist.CategoricalProbs,
        "component_0": dist.Normal,
        "component_1": dist.Exponential,
    }
    assert float(arrays["component_1"]["rate"]) == 3.0
    assert structure.parameters == ()


def test_a_value_outside_of_the_support_counts_unless_it_is_masked() -> None:
    value = jnp.array([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])
    fn = dist.Exponential(jnp.ones((2, 3)))
    np.testing.assert_array_equal(in_support(fn, value), value > 0)
    masked = fn.mask(jnp.asarray(MASK))
    np.testing.assert_array_equal(unmasked_in_support(masked, value), np.ones((2, 3)))
    other = fn.mask(jnp.asarray(~MASK)).to_event(1)
    np.testing.assert_array_equal(unmasked_in_support(other, value), [False, False])
    # A row may be masked as a whole, from the outside.
    rows = fn.to_event(1).mask(jnp.array([True, False]))
    np.testing.assert_array_equal(unmasked_in_support(rows, value), [False, True])


def test_a_factor_has_no_value_that_could_lie_outside() -> None:
    assert bool(in_support(dist.Unit(jnp.zeros(3)), jnp.zeros((3, 0))))


@pytest.mark.parametrize(
    ("fn", "parameter"),
    [
        (lambda: dist.Normal(0.0, -1.0), "scale"),
        (lambda: dist.Normal(0.0, -1.0).expand([3]).to_event(1), "scale"),
        (lambda: dist.Beta(1.0, -2.0).mask(True), "concentration0"),
        (lambda: dist.Bernoulli(probs=1.5), "probs"),
        (lambda: dist.Gamma(np.array([1.0, -1.0]), 1.0), "concentration"),
        (lambda: dist.Poisson(float("nan")), "rate"),
    ],
)
def test_a_parameter_out_of_its_range_is_refused_by_its_name(fn, parameter):
    with numpyro.validation_enabled(False):
        made = fn()
    with pytest.raises(ValueError, match=f"'{parameter}' of 'x', a .* to be from 0"):
        check_parameters("x", made)


@pytest.mark.parametrize(
    "fn",
    [
        lambda: dist.Gamma(0.0, 0.0),  # Improper, and meant.
        lambda: dist.Normal(0.0, np.inf),
        lambda: dist.Bernoulli(logits=-3.0),
        lambda: dist.Bernoulli(probs=1),
        lambda: dist.Categorical(np.full(3, 1 / 3, np.float32)),
        lambda: dist.Unit(0.0),
    ],
)
def test_a_parameter_at_the_end_of_its_range_passes(fn):
    with numpyro.validation_enabled(False):
        check_parameters("x", fn())


def test_a_parameter_that_is_traced_is_not_looked_at():
    def density(scale):
        with numpyro.validation_enabled(False):
            fn = dist.Normal(0.0, scale)
            check_parameters("x", fn)
            return fn.log_prob(0.0)

    jax.make_jaxpr(density)(-1.0)
