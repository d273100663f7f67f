"""Gradients of rows at random places, and which rows pick entries by their numbers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.dpvi.gradients.trial_gradients import picks_entries, trial_gradients

START = {"a": np.array([1.0, 2.0]), "b": np.array(-3.0)}


def density(values: Any, row: Any) -> Any:
    return jnp.sum(values["a"] ** 2) * row["x"] + values["b"] * row["x"] ** 2


def trials(**options: Any) -> list[Any]:
    rows = {"x": np.array([1.0, 0.5, -2.0], np.float32)}
    return [*trial_gradients(density, START, rows, number=3, seed=1, **options)]


def test_each_row_has_its_gradient_at_each_place() -> None:
    x = np.array([1.0, 0.5, -2.0])
    for place, gradients in trials():
        expected = 2.0 * x[:, None] * np.asarray(place["a"])
        np.testing.assert_allclose(gradients["a"], expected, rtol=1e-6)
        np.testing.assert_allclose(gradients["b"], x**2, rtol=1e-6)


def test_places_differ_and_are_the_same_in_each_trial_of_a_seed() -> None:
    first, again = trials(), trials()
    places = np.array([np.append(place["a"], place["b"]) for place, _ in first])
    assert len(np.unique(places, axis=0)) == len(places) == 3
    for (place, _), (other, _) in zip(first, again, strict=True):
        np.testing.assert_array_equal(place["a"], other["a"])


def test_a_row_picks_entries_by_an_index_alone() -> None:
    a = jnp.arange(4.0)
    assert picks_entries(jax.make_jaxpr(lambda i: a[i])(jnp.int32(2)))
    assert not picks_entries(jax.make_jaxpr(lambda x: a * x)(jnp.float32(2.0)))
