"""What was paid for is handed over whatever becomes of the posterior."""

from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to

import numpyro_vips as nv
from numpyro_vips.fitting import fit_loop
from numpyro_vips.vips.engine import VipsEngine

Y = np.linspace(-1.0, 1.0, 40, dtype=np.float32)


def model(y: Any) -> None:
    m: Any = numpyro.sample("m", dist.Normal(0.0, 1.0))
    s: Any = numpyro.sample("s", dist.Gamma(2.0, 2.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(m, 1.0 / s**0.5), obs=y)


class Singular:
    """A function that fails from the time on at which a fit is charged."""

    def __init__(self, function: Any, budget: nv.PrivacyBudget, calls: int = 0):
        self.function, self.budget, self.calls = function, budget, calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.budget.charges:
            self.calls -= 1
            if self.calls < 0:
                raise np.linalg.LinAlgError("Singular matrix")
        return self.function(*args, **kwargs)


def lost(budget: nv.PrivacyBudget, **options: Any) -> nv.UnusablePosteriorError:
    with pytest.raises(nv.UnusablePosteriorError) as caught:
        fit_to(model, Y, budget=budget, engine="vips", num_steps=4, **options)
    error = caught.value
    assert len(budget.charges) == 1 and "charge stays" in str(error)
    assert "LinAlgError: Singular matrix" in str(error) and error.result is None
    assert isinstance(error.__cause__, np.linalg.LinAlgError)
    return error


def test_sums_are_handed_over_where_no_posterior_can_be_made_of_them(monkeypatch):
    budget, seen = nv.PrivacyBudget(1.0, 1e-5), []
    failing = Singular(VipsEngine.posterior, budget, calls=1)
    monkeypatch.setattr(
        VipsEngine, "posterior", lambda self, state: failing(self, state)
    )
    error = lost(budget, callback=lambda step, result: seen.append(step))
    assert seen == [0]  # Not after the steps that have no posterior.
    sums = {k: v for k, v in error.released.items() if "noise_stddev" not in k}
    assert sums and all(np.isfinite(value).all() for value in sums.values())


def test_a_release_that_no_step_can_be_taken_from_is_handed_over(monkeypatch):
    budget = nv.PrivacyBudget(1.0, 1e-5)
    failing = Singular(fit_loop.advanced, budget, calls=2)
    monkeypatch.setattr(fit_loop, "advanced", failing)
    assert lost(budget).released


def test_without_privacy_errors_are_as_they_were(monkeypatch):
    def fails(self: Any, state: Any) -> Any:
        raise np.linalg.LinAlgError("Singular matrix")

    monkeypatch.setattr(VipsEngine, "posterior", fails)
    with pytest.raises(np.linalg.LinAlgError):
        fit_to(model, Y, budget=np.inf, engine="vips")
