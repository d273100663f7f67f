"""A small posterior that keeps to the protocol, and results that hold it."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.accounting import GaussianEvent
from numpyro_vips.posterior import MeanAndStddev
from numpyro_vips.privacy.statement import PrivacyStatement
from numpyro_vips.result import PrivateVIResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gaussians:
    """Independent Gaussians: the smallest posterior that keeps to the protocol."""

    params: dict[str, jax.Array]
    site_dims: dict[str, tuple[str, ...]]

    @property
    def specification(self):
        dims = {name: list(names) for name, names in self.site_dims.items()}
        return {"kind": "test gaussians", "site_dims": dims}

    def sample(self, rng_key, sample_shape):
        draws = {}
        for name in self.site_dims:
            rng_key, key = jax.random.split(rng_key)
            mean, scale = self.params[f"{name}.mean"], self.params[f"{name}.scale"]
            noise = jax.random.normal(key, (*sample_shape, *mean.shape))
            draws[name] = mean + scale * noise
        return draws

    def moments(self):
        return {
            name: MeanAndStddev(
                np.asarray(self.params[f"{name}.mean"]),
                np.asarray(self.params[f"{name}.scale"]),
            )
            for name in self.site_dims
        }

    def problems(self):
        return {}

    def weighable(self, rng_key, count):
        return None

    def local_posterior(self, query):
        return {}

    def elbo(self, query):
        return np.zeros(0)

    @classmethod
    def from_specification(cls, specification, params):
        dims = specification["site_dims"]
        return cls(
            params=dict(params),
            site_dims={name: tuple(names) for name, names in dims.items()},
        )


SITES = {
    # name: (mean, plates)
    "alpha": (jnp.array(0.5), ()),
    "w": (jnp.array([1.0, -2.0, 3.0]), ("feature",)),
    "loadings": (jnp.arange(6.0).reshape(3, 2), ("feature",)),
    "net/bias": (jnp.array([7.0, 8.0]), ("net/unit",)),
}


def statement(epsilon=1.0):
    private = math.isfinite(epsilon)
    return PrivacyStatement(
        unit="patients",
        relation="add_or_remove",
        sampling="full",
        epsilon=epsilon,
        delta=1e-5 if private else 0.0,
        accountant="pld",
        events=(
            GaussianEvent(
                noise_stddev=4.0 if private else 0.0,
                sensitivity=1.0,
                relation="add_or_remove",
                sampling="full",
                sampling_rate=1.0,
                label="all",
            ),
        ),
        noise_source="the operating system",
        public=("vocabulary",),
        clipping_norm=1.0 if private else math.inf,
        engine="vips",
        platform="cpu",
        num_rows=100,
        num_rows_declared=False,
    )


def make_result(sites=SITES, epsilon=1.0):
    params = {}
    for name, (mean, _) in sites.items():
        params[f"{name}.mean"] = mean
        params[f"{name}.scale"] = jnp.full(mean.shape, 0.1)
    return PrivateVIResult(
        posterior=Gaussians(
            params=params, site_dims={name: dims for name, (_, dims) in sites.items()}
        ),
        privacy=statement(epsilon),
        engine="vips",
        plan="site  role\nw     global",
        settings={"num_steps": 10, "clipping_norm": math.inf},
        diagnostics={"warnings": ["w is loose."], "steps": 10},
        seconds={"compile": 1.5, "run": 2.0},
        _for_row_queries={"local_steps": 7, "structure": {"w": "diag"}},
    )
