"""The places of an average have the weights of the sums from there."""

import jax.numpy as jnp
import pytest

from numpyro_vips.vips.steps.released_sums import Bound, asked_also


def test_places_keep_their_weights() -> None:
    asked, average, bound = (), 0.0, Bound({"s": 1.0}, 1.0)
    for t in range(30):
        weight = 2.0 / (t + 2.0)
        asked = asked_also(asked, weight, {"s": jnp.array([float(t)])}, bound)
        average = (1.0 - weight) * average + weight * t
    assert len(asked) < 20
    assert sum(each.weight for each in asked) == pytest.approx(1.0)
    found = sum(each.weight * each.place["s"][0] for each in asked)
    assert found == pytest.approx(average)
    assert [each.place["s"][0] for each in asked[:5]] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_the_sums_that_an_average_starts_from_are_those_of_the_first_place() -> None:
    found = asked_also((), 0.25, {"s": jnp.array([1.0])}, None)
    assert [each.weight for each in found] == [0.75, 0.25]
    assert [float(each.place["s"][0]) for each in found] == [1.0, 1.0]


def test_a_place_that_lost_its_weight_is_forgotten() -> None:
    before = asked_also((), 1.0, {"s": jnp.array([1.0])}, None)
    (found,) = asked_also(before, 1.0, {"s": jnp.array([2.0])}, None)
    assert found.weight == 1.0 and float(found.place["s"][0]) == 2.0
