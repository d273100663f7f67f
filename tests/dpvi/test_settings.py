"""`DPVI`: a value that checks itself and says how to make it again."""

import functools

import jax.numpy as jnp
import numpyro
import optax
import pytest
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO

import numpyro_vips as nv


def guide(X: object = None) -> None:
    del X


def test_the_code_makes_the_same_settings():
    every = nv.DPVI(guide=guide, perturb="all", averaging=None, local_steps=4)
    assert repr(every) == (
        "DPVI(guide=guide, perturb='all', averaging=None, local_steps=4)"
    )
    low_rank = nv.DPVI(guide="low_rank", averaging=2)
    for settings in (every, low_rank, nv.DPVI()):
        again = eval(repr(settings), {**vars(nv), "guide": guide})
        assert again == settings
        assert hash(again) == hash(settings)
    assert len({every, low_rank, nv.DPVI()}) == 3
    several = nv.DPVI(loss=TraceMeanField_ELBO(num_particles=3))
    assert repr(several) == "DPVI(loss=TraceMeanField_ELBO(num_particles=3))"


def test_optimisers_and_functions_are_compared_by_identity():
    optimizer = optax.adam(0.1)
    assert nv.DPVI(optimizer=optimizer) == nv.DPVI(optimizer=optimizer)
    assert nv.DPVI(optimizer=optimizer) != nv.DPVI(optimizer=optax.adam(0.1))
    assert nv.DPVI(guide=lambda: None) != nv.DPVI(guide=lambda: None)
    assert len({nv.DPVI(optimizer=optimizer), nv.DPVI(optimizer=optimizer)}) == 1


def test_the_code_never_shows_what_a_guide_holds():
    """It is saved with results, and a guide may hold data by mistake."""
    holding = functools.partial(guide, X=jnp.full(3, 123.456))
    assert repr(nv.DPVI(guide=holding)) == "DPVI(guide=guide)"
    optimizer = repr(nv.DPVI(optimizer=optax.sgd(0.1)))
    assert optimizer == "DPVI(optimizer=<GradientTransformationExtraArgs>)"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"guide": "diagonal"}, ValueError, "guide='diagonal' to be one of"),
        ({"guide": 3}, TypeError, "or a NumPyro function"),
        (
            {"optimizer": numpyro.optim.Adam(0.01)},
            TypeError,
            "optimizer to be one of optax",
        ),
        ({"loss": "elbo"}, TypeError, "Trace_ELBO"),
        ({"perturb": "scale"}, ValueError, "perturb='scale'"),
        ({"averaging": -1.0}, ValueError, "averaging=-1.0"),
        ({"averaging": float("nan")}, ValueError, "averaging=nan"),
        ({"averaging": "last"}, TypeError, "averaging='last' to be a number"),
        ({"local_steps": 0}, ValueError, "local_steps=0 to be a positive integer"),
        (
            {"loss": Trace_ELBO(num_particles=2), "perturb": "location"},
            ValueError,
            "single draw",
        ),
        ({"structure": {"w": "diag"}}, TypeError, "structure"),
    ],
)
def test_settings_check_themselves(options, error, message):
    with pytest.raises(error, match=message):
        nv.DPVI(**options)
