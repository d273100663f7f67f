"""Where the sites of a Gaussian block lie in its coordinates."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.conjugacy.algebra.terms import Label
from numpyro_vips.conjugacy.structure.gaussian_layout import GaussianLayout

# w[i, g] and b[g], one Gaussian for each g; c[j] is of none.
LAYOUT = GaussianLayout(
    shapes={"w": (3, 2), "b": (2,)}, batch_axes={"w": (1,), "b": (0,)}
)
FLAT = GaussianLayout(shapes={"a": (), "c": (2, 2)}, batch_axes={"a": (), "c": ()})


def test_shapes() -> None:
    assert (LAYOUT.batch_shape, LAYOUT.size) == ((2,), 4)
    assert (FLAT.batch_shape, FLAT.size) == ((), 5)
    assert LAYOUT.block_shape("w") == (3,) and LAYOUT.block_shape("b") == ()
    assert [LAYOUT.span(site) for site in "wb"] == [slice(0, 3), slice(3, 4)]
    assert [FLAT.span(site) for site in "ac"] == [slice(0, 1), slice(1, 5)]
    i, g = Label(3), Label(2)
    assert LAYOUT.labels("w", (i, g)) == ((g,), (i,))


@pytest.mark.parametrize("leading", [(), (7,), (7, 5)])
def test_sites_are_where_their_coordinates_are(leading) -> None:
    coordinates = np.random.default_rng(0).normal(size=(*leading, 2, 4))
    sites = LAYOUT.sites(coordinates, len(leading))
    assert sites["w"].shape == (*leading, 3, 2)
    for g in range(2):
        np.testing.assert_array_equal(sites["b"][..., g], coordinates[..., g, 3])
        for i in range(3):
            np.testing.assert_array_equal(sites["w"][..., i, g], coordinates[..., g, i])


@pytest.mark.parametrize("layout", [LAYOUT, FLAT])
def test_there_is_a_way_back(layout: GaussianLayout) -> None:
    shape = (*layout.batch_shape, layout.size)
    coordinates = jnp.arange(float(np.prod(shape))).reshape(shape)
    found = layout.coordinates(layout.sites(coordinates))
    np.testing.assert_array_equal(found, coordinates)
    again = GaussianLayout.from_dict(json.loads(json.dumps(layout.to_dict())))
    assert again == layout
