"""While JAX computes, BLAS has one thread; see `jax_tools/blas_threads.py`."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import threadpoolctl
from _fits import vi_of

import numpyro_vips as nv

pytestmark = pytest.mark.optimized


def threads() -> set[int]:
    return {
        library["num_threads"]
        for library in threadpoolctl.threadpool_info()
        if library["user_api"] == "blas"
    }


def test_a_fit_has_one_blas_thread_and_gives_the_others_back():
    @nv.private(unit="N")
    def regression(X, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("N", y.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

    X, y = np.ones((20, 2)), np.zeros(20)
    during = []
    with threadpoolctl.threadpool_limits(limits=2, user_api="blas"):
        before = threads()
        vi = vi_of(
            regression, num_steps=2, callback=lambda t, result: during.append(threads())
        )
        result = vi.run(jax.random.key(0), X, y)
        assert threads() == before
    assert before == {2}
    assert during
    assert all(found == {1} for found in during)
    assert np.isfinite(result.params["w/loc"]).all()
