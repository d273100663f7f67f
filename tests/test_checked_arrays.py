"""That annotations of arrays are checked at all while tests run."""

import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from numpyro_vips.dpvi import guides, row_gradients
from numpyro_vips.privacy import batch_selection, gaussian_mechanism


def test_indices_are_whole_numbers():
    with pytest.raises(jaxtyping.TypeCheckError, match="indices"):
        next(batch_selection.padded_chunks(np.array([0.5, 1.5]), 2))


def test_sums_are_arrays_of_floats():
    mechanism = gaussian_mechanism.GaussianMechanism(
        blocks=(gaussian_mechanism.Block(name="x", shape=(2,)),),
        clipping_norm=1.0,
        noise_multiplier=1.0,
        relation="add_or_remove",
    )
    with pytest.raises(jaxtyping.TypeCheckError, match="sums"):
        mechanism.add_noise({"x": np.array([True, False])}, np.random.default_rng(0))


def test_a_row_has_one_fingerprint():
    with pytest.raises(jaxtyping.TypeCheckError, match="numbers"):
        row_gradients._mixed(jnp.ones(3))


def test_a_flat_vector_has_one_axis():
    with pytest.raises(jaxtyping.TypeCheckError, match="vector"):
        guides.UnconstrainedSpace(sites=()).split(jnp.ones((2, 2)))
