"""Which families, blocks and statistics are found, and what is said where none are."""

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import MODELS, UNIT, Rows, compiled, uncertified

from numpyro_vips.conjugacy.algebra.terms import Atom, Dense, Label, Term
from numpyro_vips.conjugacy.structure.structure import normal_terms
from numpyro_vips.errors import NotConjugateError

# Model: (blocks with their families, statistics with shapes and release labels).
Expected = tuple[dict[str, str], dict[str, tuple[tuple[int, ...], str]]]

FOUND: dict[str, Expected] = {
    "beta_bernoulli": (
        {"p": "Beta"},
        {"⟨log p⟩": ((), "once"), "⟨log(1-p)⟩": ((), "once")},
    ),
    "gaussian_mean": (
        {"mu": "Normal"},
        {"⟨mu⟩": ((), "once"), "⟨mu mu⟩": ((), "public")},
    ),
    "gaussian_mean_precision": (
        {"mu": "Normal", "tau": "Gamma"},
        {
            "⟨log tau⟩": ((), "public"),
            "⟨mu mu⟩⟨tau⟩": ((), "public"),
            "⟨mu⟩⟨tau⟩": ((), "once"),
            "⟨tau⟩": ((), "once"),
        },
    ),
    "gamma_poisson": (
        {"rate": "Gamma"},
        {"⟨log rate⟩": ((), "once"), "⟨rate⟩": ((), "public")},
    ),
    "linear_regression": (
        {"w+b": "Normal"},
        {
            "⟨b b⟩": ((), "public"),
            "⟨b⟩": ((), "once"),
            "⟨b w⟩": ((3,), "once"),
            "⟨w⟩": ((3,), "once"),
            "⟨w w⟩": ((3, 3), "once"),
        },
    ),
    "logistic_gamma": (
        {"alpha": "Gamma", "w": "Normal"},
        {"⟨w⟩": ((3,), "adaptive"), "⟨w w⟩": ((3, 3), "refreshed")},
    ),
    "logistic_groups": (
        {"mean+a+w": "Normal", "tau": "Gamma"},
        {
            "⟨a a⟩": ((4,), "refreshed"),
            "⟨a⟩": ((4,), "adaptive"),
            "⟨w⟩": ((3,), "adaptive"),
            "⟨a w⟩": ((4, 3), "refreshed"),
            "⟨w w⟩": ((3, 3), "refreshed"),
        },
    ),
    "factor_analysis": (
        {"W": "Normal", "tau": "Gamma"},
        {
            "⟨log tau⟩": ((), "public"),
            "⟨tau⟩": ((), "once"),
            "⟨W⟩⟨tau⟩": ((4, 2), "adaptive"),
            "⟨W W⟩⟨tau⟩": ((2, 2), "adaptive"),
        },
    ),
    "topics": ({"beta": "Dirichlet"}, {"⟨log beta⟩": ((3, 6), "adaptive")}),
}


@pytest.mark.parametrize("name", FOUND)
def test_blocks_and_statistics(name: str) -> None:
    groups, statistics = FOUND[name]
    structure = uncertified(MODELS[name].fn, MODELS[name].rows()).structure
    found = {g.name: g.family.name for g in structure.posterior_factors_of("global")}
    assert found == groups
    assert {s.name: (s.shape, s.release) for s in structure.statistics} == statistics


def test_a_statistic_with_a_diagonal_part_is_released_once() -> None:
    """w_j² in one term and w_j w_k in another are read off one matrix."""

    def model(X: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        with numpyro.plate(UNIT, X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)
            noise = dist.Normal(w, 1.0).to_event(1)
            numpyro.sample("x", noise, obs=X)

    program = compiled(model, MODELS["linear_regression"].rows())
    names = [s.name for s in program.structure.statistics]
    assert names == ["⟨w⟩", "⟨w w⟩"]


def test_latents_that_are_independent_given_the_data_get_blocks_of_their_own() -> None:
    def model(x: Any) -> None:
        with numpyro.plate("columns", 2):
            mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate(UNIT, x.shape[0]):
            numpyro.sample("x", dist.Normal(mu, 1.0).to_event(1), obs=x)

    (factor,) = uncertified(
        model, MODELS["mixture"].rows()
    ).structure.posterior_factors_of("global")
    assert factor.shape == (2, 1)
    assert factor.layout is not None
    assert factor.layout.batch_shape == (2,)


# --- what is not conjugate --------------------------------------------------------

Body = Callable[[Any, Any], None]


def _weights(scale: Any = 1.0) -> Any:
    return numpyro.sample("w", dist.Normal(0.0, scale).expand([3]).to_event(1))


def _observe(distribution: dist.Distribution, y: Any) -> None:
    with numpyro.plate(UNIT, y.shape[0]):
        numpyro.sample("y", distribution, obs=y)


def _relu(X: Any, y: Any) -> None:
    _observe(dist.Normal(jax.nn.relu(X @ _weights()), 1.0), y)


def _tanh(X: Any, y: Any) -> None:
    _observe(dist.Normal(jnp.tanh(X @ _weights()), 1.0), y)


def _clip(X: Any, y: Any) -> None:
    _observe(dist.Normal(jnp.clip(X @ _weights(), -1.0, 1.0), 1.0), y)


def _exp_mean(X: Any, y: Any) -> None:
    _observe(dist.Normal(jnp.exp(X @ _weights()), 1.0), y)


def _cubic(X: Any, y: Any) -> None:
    _observe(dist.Normal(X @ _weights() ** 3, 1.0), y)


def _squared_weights(X: Any, y: Any) -> None:
    _observe(dist.Normal(X @ _weights() ** 2, 1.0), y)


def _where(X: Any, y: Any) -> None:
    w = _weights()
    _observe(dist.Normal(jnp.where(w[0] > 0, X[:, 0], X[:, 1]), 1.0), y)


def _probit(X: Any, y: Any) -> None:
    probs = jax.scipy.stats.norm.cdf(X @ _weights())
    _observe(dist.Bernoulli(probs=probs), jnp.where(y > 0, 1.0, 0.0))


def _mean_and_scale(X: Any, y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    _observe(dist.Normal(tau * X[:, 0], 1 / tau), y)


def _poisson_link(X: Any, y: Any) -> None:
    counts = jnp.floor(jnp.abs(y))
    _observe(dist.Poisson(jnp.exp(X @ _weights())), counts)


def _concentration(X: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Gamma(1.0, 1.0))
    _observe(dist.Gamma(a, 1.0), jnp.abs(y) + 0.1)


def _log_normal_prior(X: Any, y: Any) -> None:
    tau = numpyro.sample("tau", dist.LogNormal(0.0, 1.0))
    _observe(dist.Normal(X[:, 0], 1 / jnp.sqrt(tau)), y)


def _latent_product(X: Any, y: Any) -> None:
    a = numpyro.sample("a", dist.Gamma(1.0, 1.0))
    _observe(dist.Normal(X @ (_weights() * a), 1.0), y)


REFUSED: list[tuple[Body, str, str]] = [
    (_relu, "y", r"'w'"),
    (_tanh, "y", r"tanh of 'w'"),
    (_clip, "y", r"'w'"),
    (_exp_mean, "y", r"exp of 'w'"),
    (_cubic, "w", r"x\^3|xxx"),
    (_squared_weights, "w", r"x\^4|xxxx|x\^2"),
    (_where, "y", r"of 'w'"),
    (_probit, "y", r"'w'"),
    (_mean_and_scale, "tau", r"no exponential family"),
    (_poisson_link, "y", r"exp of 'w'"),
    (_concentration, "y", r"concentration.*'a'"),
    (_latent_product, "a", r"x\^2"),
]


@pytest.mark.parametrize(
    ("body", "site", "reason"), REFUSED, ids=[body.__name__ for body, *_ in REFUSED]
)
def test_what_is_not_conjugate_is_refused_with_site_and_cause(
    body: Body, site: str, reason: str
) -> None:
    rows: Rows = MODELS["linear_regression"].rows()
    with pytest.raises(NotConjugateError) as caught:
        compiled(body, rows)
    assert site in caught.value.reasons
    text = f"{site}: {caught.value.reasons[site]}"
    assert re.search(reason, text), text


def test_a_prior_outside_the_families_is_never_accepted() -> None:
    """LogNormal · Gamma precision: statistics log² and x share no family."""
    with pytest.raises(NotConjugateError) as caught:
        compiled(_log_normal_prior, MODELS["linear_regression"].rows())
    assert "tau" in caught.value.reasons


def test_terms_that_mirror_each_other_are_one() -> None:
    """Σ m_jk w_jl z_k z_l is the same with the places of the two z exchanged."""
    unit, row, column = Label(3), Label(2), Label(2)
    mean = np.arange(6.0).reshape(3, 2)

    def term(first: Label, second: Label) -> Term:
        factors = (
            Dense(mean, (unit, first)),
            Atom("w", "x", (unit, second)),
            Atom("z", "is", (row,)),
            Atom("z", "is", (column,)),
        )
        return Term(1.0, factors, frozenset({unit, row, column}))

    (merged,) = normal_terms([term(row, column), term(column, row)], {})
    assert merged.scale == 2.0
    # Not if something tells the two places apart.
    weight = Dense(mean[0], (row,))
    one, other = (
        Term(1.0, (*t.factors, weight), t.bound)
        for t in (term(row, column), term(column, row))
    )
    assert len(normal_terms([one, other], {})) == 2
