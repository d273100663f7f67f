"""Which factors keep every posterior in its family, whatever rows hold."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import uncertified

from numpyro_vips.vips.compile.factor_legality import illegal_factors

# Not what it is judged by: that all of these are positive is an accident of the rows.
ROWS = (np.linspace(0.5, 2.0, 6), np.arange(6) % 2)


def model_with(log_factor: Any) -> Any:
    """A model of a real and a positive global, with a factor of every row."""

    def model(t: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0))
        tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", t.shape[0]):
            numpyro.sample("x", dist.Normal(w, 1.0), obs=t)
            each = log_factor(w, tau, t, y)
            numpyro.factor("mine", jnp.broadcast_to(each, t.shape))

    return model


LEGAL = {
    "a linear function of a real latent": lambda w, tau, t, y: t * w,
    "a negative square": lambda w, tau, t, y: -((t - w) ** 2),
    "a square times a number that is not negative": lambda w, tau, t, y: -(t**2 * w**2),
    "a rate that is not negative": lambda w, tau, t, y: -(jnp.maximum(t, 0.0) * tau),
    "a power that is not negative": lambda w, tau, t, y: jnp.abs(t) * jnp.log(tau),
    "a known rate": lambda w, tau, t, y: -0.5 * tau,
    "a choice": lambda w, tau, t, y: -(jnp.where(t > 1.0, 1.0, 2.0) * tau),
    "a normal's": lambda w, tau, t, y: -0.5 * tau * t**2 + 0.5 * jnp.log(tau),
}
ILLEGAL = {
    "a square": (lambda w, tau, t, y: w**2, "w"),
    "a square times a number of either sign": (lambda w, tau, t, y: -t * w**2, "w"),
    "a rate of either sign": (lambda w, tau, t, y: -t * tau, "tau"),
    "a power of either sign": (lambda w, tau, t, y: t * jnp.log(tau), "tau"),
    "a known negative rate": (lambda w, tau, t, y: 0.5 * tau, "tau"),
    "a choice of either sign": (
        lambda w, tau, t, y: jnp.where(t > 1.0, 1.0, -2.0) * tau,
        "tau",
    ),
}


def reasons_of(log_factor: Any) -> dict[str, str]:
    with jax.enable_x64(True):
        return illegal_factors(uncertified(model_with(log_factor), ROWS))


@pytest.mark.parametrize("name", LEGAL)
def test_what_every_row_leaves_in_its_family_is_legal(name: str) -> None:
    assert reasons_of(LEGAL[name]) == {}


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_some_row_takes_out_of_its_family_is_not(name: str) -> None:
    log_factor, latent = ILLEGAL[name]
    reasons = reasons_of(log_factor)
    assert list(reasons) == ["mine"]
    assert f"no log density in {latent!r}" in reasons["mine"]
    assert "jnp.maximum" in reasons["mine"]  # What to do about it.


def test_distributions_are_not_asked() -> None:
    """What they say of their parameters is always legal."""

    def model(t: Any, y: Any) -> None:
        tau = numpyro.sample("tau", dist.Gamma(2.0, 1.0))
        with numpyro.plate("rows", t.shape[0]):
            numpyro.sample("x", dist.Normal(0.0, 1 / jnp.sqrt(tau)), obs=t)

    with jax.enable_x64(True):
        assert illegal_factors(uncertified(model, ROWS)) == {}
