"""Expectations of terms under the posterior, against sums over states and draws."""

import itertools

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import MODELS, away_from_prior, uncertified

from numpyro_vips.conjugacy.algebra.contractions import contract
from numpyro_vips.conjugacy.algebra.terms import Atom, Label
from numpyro_vips.conjugacy.families.gaussian import Normal
from numpyro_vips.conjugacy.structure.gaussian_layout import GaussianLayout
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.errors import NotConjugateError
from numpyro_vips.vips.program.expectations import (
    expected,
    expected_natural_of,
    moment,
    natural_parameters,
    pair_moment,
    without_globals,
)

RNG = np.random.default_rng(4)


def test_pairs_of_independent_states_by_enumeration() -> None:
    p = RNG.dirichlet(np.ones(3), size=(2, 2))
    flat = p.reshape(4, 3)
    by_enumeration = np.zeros((4, 3, 4, 3))
    for states in itertools.product(range(3), repeat=4):
        chance = np.prod([flat[i, s] for i, s in enumerate(states)])
        for (i, s), (j, t) in itertools.product(enumerate(states), repeat=2):
            by_enumeration[i, s, j, t] += chance
    found = pair_moment(jnp.asarray(p))
    np.testing.assert_allclose(
        found, by_enumeration.reshape(2, 2, 3, 2, 2, 3), rtol=1e-5
    )


# w[i, g] and b[g], one Gaussian of four coordinates for each of two g.
FACTOR = PosteriorFactor(
    name="w+b",
    role="global",
    family=Normal(),
    latents=("w", "b"),
    shape=(2, 4),
    layout=GaussianLayout(
        shapes={"w": (3, 2), "b": (2,)}, batch_axes={"w": (1,), "b": (0,)}
    ),
)
MEAN = RNG.normal(size=(2, 4))
ROOT = RNG.normal(size=(2, 4, 4))
SECOND = ROOT @ ROOT.transpose(0, 2, 1) + MEAN[:, :, None] * MEAN[:, None, :]
MOMENTS = {"x": jnp.asarray(MEAN), "xx": jnp.asarray(SECOND)}
N, M, G, H = (Label(n) for n in (3, 3, 2, 2))


def test_moments_of_a_gaussian_have_the_labels_of_the_term() -> None:
    w, b = Atom("w", "x", (N, G)), Atom("b", "x", (G,))
    (operand,) = moment(FACTOR, [w], MOMENTS)
    found = contract(1.0, [operand], (N, G))
    np.testing.assert_allclose(found, MEAN[:, :3].T, rtol=1e-6)
    (operand,) = moment(FACTOR, [b, w], MOMENTS)
    found = contract(1.0, [operand], (N, G))
    np.testing.assert_allclose(found, SECOND[:, 3, :3].T, rtol=1e-6)
    (operand,) = moment(FACTOR, [w, Atom("w", "x", (M, G))], MOMENTS)
    found = contract(1.0, [operand], (N, M, G))
    np.testing.assert_allclose(found, SECOND[:, :3, :3].transpose(1, 2, 0), rtol=1e-6)


def test_no_second_moment_is_made_up_between_independent_gaussians() -> None:
    atoms = [Atom("w", "x", (N, G)), Atom("b", "x", (H,))]
    with pytest.raises(NotConjugateError, match="structure='diag'"):
        moment(FACTOR, atoms, MOMENTS)


def mixed(y) -> None:
    tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
    with numpyro.plate("components", 3):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.2, 0.3, 0.5])))
        numpyro.sample("y", dist.Normal(mu[z], 1 / jnp.sqrt(tau)), obs=y)


@pytest.mark.thorough
def test_the_expected_log_density_of_a_row_by_hand() -> None:
    """E[log N(y | mu_z, 1/tau)] + E[log p(z)], with E[tau], E[log tau], E[mu] given."""
    y = np.array([0.7], np.float32)
    program = uncertified(mixed, (y,))
    arrays, _ = program.row_constants({"y": y[0]})
    terms = [term.filled(arrays) for term in program.row_terms]
    mean, second = np.array([0.1, -1.0, 2.0]), np.array([0.5, 1.3, 4.4])
    r = np.array([0.1, 0.6, 0.3])
    tau, log_tau = 1.4, 0.2
    globals_ = {
        "mu": {
            "x": jnp.asarray(mean[:, None]),
            "xx": jnp.asarray(second[:, None, None]),
        },
        "tau": {"x": jnp.asarray(tau), "log": jnp.asarray(log_tau)},
    }
    own = {"z": {"is": jnp.asarray(r[None])}}
    squares = y[0] ** 2 - 2 * y[0] * mean + second
    by_hand = (
        -0.5 * tau * (r @ squares)
        + 0.5 * log_tau
        - 0.5 * np.log(2 * np.pi)
        + r @ np.log([0.2, 0.3, 0.5])
    )
    found = expected(program.structure, terms, None, {**globals_, **own})
    np.testing.assert_allclose(found, by_hand, rtol=1e-5)
    # From n̄, which is these moments' products.
    n_bar = expected_natural_of(program.structure, globals_)
    found = expected(program.structure, terms, n_bar, own)
    np.testing.assert_allclose(found, by_hand, rtol=1e-5)
    # What the row says of its own latent, and of a global one.
    of_z = natural_parameters(
        program.structure,
        program.structure.posterior_factors["z"],
        terms,
        {**globals_, **own},
    )
    # What all states have in common is no matter.
    by_state = -0.5 * tau * squares + np.log([0.2, 0.3, 0.5])
    differences = np.ravel(of_z["is"]) - by_state
    np.testing.assert_allclose(differences, differences[0], atol=1e-5)
    of_tau = natural_parameters(
        program.structure,
        program.structure.posterior_factors["tau"],
        terms,
        {**globals_, **own},
    )
    np.testing.assert_allclose(of_tau["x"], -0.5 * (r @ squares), rtol=1e-5)
    np.testing.assert_allclose(of_tau["log"], 0.5, rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["mixture", "logistic_gamma"])
def test_with_the_globals_put_in_a_term_is_the_same(name: str) -> None:
    model = MODELS[name]
    rows = model.rows()
    program = uncertified(model.fn, rows)
    n_bar, _ = away_from_prior(program)
    row = {
        name: np.asarray(array)[0]
        for name, array in zip(program.graph.arguments.row_shapes(), rows, strict=True)
    }
    arrays, _ = program.row_constants(row)
    terms = [term.filled(arrays) for term in program.row_terms]
    structure = program.structure
    moments = {
        factor.name: factor.family.neutral_moments(factor.shape)
        for factor in structure.posterior_factors_of("local")
    }
    without = [without_globals(structure, term, n_bar) for term in terms]
    assert {structure.latents[a.latent].role for t in without for a in t.atoms} <= {
        "local"
    }
    np.testing.assert_allclose(
        expected(structure, without, None, moments),
        expected(structure, terms, n_bar, moments),
        rtol=1e-4,
    )
