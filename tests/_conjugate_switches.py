"""Conjugate models in which a row, or a binary latent, switches terms off."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from _cases import Case, Cases, chance, gammas, simplices, wide_normals
from _models import UNIT
from _rows import Rows, answers, coins, counts, feature_and_count, words

CASES = Cases()
conjugate, observed = CASES.of, CASES.observed


# --- terms that a row switches off ----------------------------------------------------


def with_gaps(rng: np.random.Generator, n: int) -> Rows:
    x = rng.normal(size=n)
    x[::3] = np.nan
    return x, rng.normal(size=n)


def _one_coin(y: Any) -> Any:
    right, same = chance("right"), jnp.eye(4)
    confusion = right * same + (1 - right) * (1 - same) / 3
    return dist.Categorical(confusion[1])


for _name, _rows, _density in (
    (
        "a signal in a window that synthetic rows never leave",
        feature_and_count,
        lambda x, y: dist.Poisson(jnp.where(x < 0.95, gammas("a"), 0.0) + gammas("c")),
    ),
    (
        "one of two signals and a background",
        feature_and_count,
        lambda x, y: dist.Poisson(
            jnp.where(x < 0.95, gammas("a") * jnp.sqrt(0.96 - x), gammas("b"))
            + gammas("c")
        ),
    ),
    ("errors that share what is left", lambda r, n: (r.integers(0, 4, n),), _one_coin),
    (
        "a mean where the feature is missing",
        with_gaps,
        lambda x, y: dist.Normal(
            jnp.where(jnp.isnan(x), wide_normals("m"), wide_normals("b") * x), 0.5
        ),
    ),
):
    observed(_name, _rows, _density)


@conjugate(counts)
def one_rate_of_a_one_hot_and_a_background(y: Any) -> None:
    a, c = gammas("a", 3), gammas("c")
    with numpyro.plate(UNIT, y.shape[0]):
        z = numpyro.sample("z", dist.Categorical(jnp.ones(3) / 3))
        rate = (jax.nn.one_hot(z, 3) * a)[:, 1] + c
        numpyro.sample("y", dist.Poisson(rate), obs=y)


@conjugate(answers)
def knowledge_tracing(y: Any) -> None:
    known, learn, guess, slip = map(chance, ("known", "learn", "guess", "slip"))
    with numpyro.plate(UNIT, y.shape[0]):
        k = numpyro.sample("k0", dist.Bernoulli(known))
        for t in range(3):
            p = jnp.where(k == 1, 1 - slip, guess)
            numpyro.sample(f"y{t}", dist.Bernoulli(p), obs=y[:, t])
            if t < 2:
                stays = jnp.where(k == 1, 0.95, learn)
                k = numpyro.sample(f"k{t + 1}", dist.Bernoulli(stays))


@conjugate(words)
def second_order_chain(y: Any) -> None:
    A, rate = simplices("A", 2, 2, 2), gammas("rate", 2)
    with numpyro.plate(UNIT, y.shape[0]):
        before = last = 0
        for t in range(3):
            z = numpyro.sample(f"z{t}", dist.Categorical(A[before, last]))
            numpyro.sample(f"y{t}", dist.Poisson(rate[z]), obs=y[:, t])
            before, last = last, z


# --- chances that a binary latent switches off ----------------------------------------


def _seen_where_present(chances: Callable[[Any], Any]) -> Callable[..., None]:
    """Whether each row is seen, occasion by occasion, if it is there at all."""

    def model(y: Any) -> None:
        share, p = chance("share"), chances(y)
        with numpyro.plate(UNIT, y.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(share))
            seen = dist.Bernoulli(p * z[..., None]).expand([y.shape[0], 5])
            numpyro.sample("y", seen.to_event(1), obs=y)

    return model


def _after_the_first_time(y: Any) -> Any:
    before = jnp.concatenate([jnp.zeros_like(y[:, :1]), y[:, :-1]], -1)
    return jnp.where(before > 0, chance("again"), chance("first"))


def _chosen(z_at: Callable[[Any, Any], Any]) -> Callable[..., None]:
    """The same, where a choice writes the zero."""

    def model(y: Any) -> None:
        share, p = chance("share"), chance("p")
        with numpyro.plate(UNIT, y.shape[0]):
            z = numpyro.sample("z", dist.Bernoulli(share))
            seen = dist.Bernoulli(z_at(z[..., None], p)).expand([y.shape[0], 5])
            numpyro.sample("y", seen.to_event(1), obs=y)

    return model


CASES["a choice between a chance and none"] = Case(
    _chosen(lambda z, p: jnp.where(z == 1, p, 0.0)), answers
)
CASES["a choice between none and a chance"] = Case(
    _chosen(lambda z, p: jnp.where(z == 0, 0.0, p)), answers
)
CASES["one chance of being seen"] = Case(
    _seen_where_present(lambda y: chance("p")), answers
)


CASES["a chance on each occasion"] = Case(
    _seen_where_present(
        lambda y: numpyro.sample("p", dist.Beta(1.0, 2.0).expand([5]).to_event(1))
    ),
    answers,
)


CASES["a chance that changes once seen"] = Case(
    _seen_where_present(_after_the_first_time), answers
)


@conjugate(coins)
def seen_if_there_and_if_awake(y: Any) -> None:
    share, p = chance("share"), chance("p")
    with numpyro.plate(UNIT, y.shape[0]):
        there = numpyro.sample("there", dist.Bernoulli(share))
        awake = numpyro.sample("awake", dist.Bernoulli(0.3 * there))
        numpyro.sample("y", dist.Binomial(4, probs=p * there * awake), obs=4 * y)
