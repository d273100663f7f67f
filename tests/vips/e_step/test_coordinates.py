"""The update of one factor of a row, given the others, by hand."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import uncertified

from numpyro_vips.conjugacy.families.dirichlet import Categorical
from numpyro_vips.conjugacy.families.gamma import Gamma
from numpyro_vips.vips.e_step.coordinates import (
    Given,
    by_coupling,
    copies_array,
    divided_by_weight,
    locals_of,
    neutral_auxiliaries,
    whole_factor,
)
from numpyro_vips.vips.program.expectations import expected_natural_of

pytestmark = pytest.mark.usefixtures("x64")

MEANS, Y = np.array([-1.0, 2.0]), 0.6


def model(y: Any) -> None:
    """A class and a precision of each row."""
    with numpyro.plate("components", 2):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.3, 0.7])))
        tau = numpyro.sample("tau", dist.Gamma(2.0, 1.5))
        numpyro.sample("y", dist.Normal(mu[z], 1 / jnp.sqrt(tau)), obs=y)


def given() -> tuple[Any, Given]:
    program = uncertified(model, (np.array([Y]),))
    moments = {
        "x": jnp.asarray(MEANS)[:, None],
        "xx": jnp.asarray(MEANS**2)[:, None, None],
    }
    arrays, _ = program.row_constants.zero_if_invalid({"y": jnp.asarray(Y)})
    natural = expected_natural_of(program.structure, {"mu": moments})
    return program, Given(program.structure, arrays, natural)


def test_each_update_is_the_gradient_of_the_expected_terms() -> None:
    program, known = given()
    factors = program.structure.posterior_factors
    of = {
        name: [t for t in program.row_terms if name in locals_of(known.structure, t)]
        for name in ("z", "tau")
    }
    r, x, log = np.array([0.2, 0.8]), 1.4, 0.1
    others = {
        "z": {"is": jnp.asarray(r).reshape(1, 2)},
        "tau": {"x": jnp.asarray([x]), "log": jnp.asarray([log])},
    }
    squares = (Y - MEANS) ** 2
    _, natural = whole_factor(known, factors["tau"], of["tau"]).update(
        others, known=None
    )
    # Gamma(2 + 1/2, 1.5 + Σ r (y - mu)² / 2).
    assert natural["x"].item() == pytest.approx(-1.5 - 0.5 * r @ squares)
    assert natural["log"].item() == pytest.approx(1.5)
    moments, _ = whole_factor(known, factors["z"], of["z"]).update(others, known=None)
    logits = np.log([0.3, 0.7]) - 0.5 * x * squares
    share = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(moments["is"].ravel(), share, rtol=1e-6)
    # Terms with what has no moments yet are left out: y² is a term by itself.
    update = whole_factor(known, factors["tau"], of["tau"]).update({}, known={"tau"})
    assert update[1]["x"].item() == pytest.approx(-1.5 - 0.5 * Y**2)


def test_terms_are_told_by_whether_other_latents_are_in_them() -> None:
    program, known = given()
    mine = [t for t in program.row_terms if "z" in locals_of(known.structure, t)]
    alone, coupled = by_coupling(known.structure, mine)
    assert alone and coupled and len(alone) + len(coupled) == len(mine)
    assert all(locals_of(known.structure, t) == {"z"} for t in alone)
    assert all(locals_of(known.structure, t) == {"z", "tau"} for t in coupled)


def test_latents_of_the_model_have_one_copy_and_are_no_auxiliaries() -> None:
    program, known = given()
    structure = program.structure
    factors = structure.posterior_factors_of("local")
    for factor in factors:
        assert copies_array(factor, structure.latents, known.arrays) is None
    assert neutral_auxiliaries(structure, factors) == {}


def test_one_of_several_copies_has_its_part_and_of_none_a_neutral_one() -> None:
    weight = jnp.array([4.0, 0.0])
    natural = {"x": jnp.array([-8.0, np.nan]), "log": jnp.array([2.0, np.inf])}
    found = divided_by_weight(natural, weight, Gamma())
    neutral = Gamma().neutral((2,))
    for statistic, first in (("x", -2.0), ("log", 0.5)):
        expected = [first, float(neutral[statistic][1])]
        np.testing.assert_allclose(found[statistic], expected)
    # Of what has several states every number is divided.
    found = divided_by_weight({"is": jnp.ones((2, 3))}, weight, Categorical(3))
    np.testing.assert_array_equal(found["is"], [[0.25] * 3, [0.0] * 3])
