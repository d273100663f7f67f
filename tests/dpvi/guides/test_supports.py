"""Supports in files."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import biject_to, constraints

from numpyro_vips.dpvi.guides.supports import support_from_json, support_to_json

SUPPORTS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "real": (constraints.real, ()),
    "positive": (constraints.positive, (2,)),
    "unit_interval": (constraints.unit_interval, ()),
    "simplex": (constraints.simplex, (4,)),
    "corr_cholesky": (constraints.corr_cholesky, (3, 3)),
    "positive_definite": (constraints.positive_definite, (2, 2)),
    "ordered": (constraints.ordered_vector, (3,)),
    "greater_than": (constraints.greater_than(2.5), ()),
    "less_than": (constraints.less_than(-1.0), ()),
    "interval": (constraints.interval(np.array([0.0, 1.0], np.float32), 3.0), (2,)),
    "open_interval": (constraints.open_interval(0.0, 2.0), ()),
    "zero_sum": (constraints.zero_sum(1), (3,)),
    "vector": (constraints.real_vector, (3,)),
    "independent": (constraints.independent(constraints.positive, 1), (3,)),
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", SUPPORTS)
def test_supports_survive_json(case: str) -> None:
    support, shape = SUPPORTS[case]
    described = json.loads(json.dumps(support_to_json(support)))
    back = support_from_json(described, jnp.float32)
    assert type(back) is type(support)
    transform, again = biject_to(support), biject_to(back)
    z = jax.random.normal(jax.random.key(0), transform.inverse_shape(shape))
    expected, value = (jax.jit(lambda z, of=of: of(z))(z) for of in (transform, again))
    np.testing.assert_array_equal(expected, value)
    assert jnp.all(support(value))
