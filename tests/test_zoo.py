"""The zoo of models that the project was given, where it lies beside the repository.

Every model has to get the engine that it names. Every one that VIPS accepts has to be
a correct variational algorithm: its bound never falls, and it means what NumPyro's own
log density says.
"""

import functools
import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from _fits import fit_to, vi_of
from _full_batch import FullBatch
from _slow import some_fast
from numpyro.infer.util import log_density

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.vips.compile.compiler import compile_model

PATH = Path(__file__).resolve().parents[2] / "shared" / "zoo" / "models.py"
# Lifted by an augmentation that the zoo's notes leave open.
LIFTED = ("gauss_halfcauchy", "logreg_laplace", "student_direct")
NUM_ROWS = 10
NUM_SWEEPS = 9
LOCAL_SWEEPS = 300
NUM_DRAWS = 4000


def load() -> ModuleType | None:
    if not PATH.exists():
        return None
    specification = importlib.util.spec_from_file_location("zoo_models", PATH)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    # Dataclasses look their module up by name.
    sys.modules["zoo_models"] = module
    specification.loader.exec_module(module)
    return module


_MODULE = load()
ZOO: dict[str, Any] = {} if _MODULE is None else _MODULE.ZOO
pytestmark = pytest.mark.skipif(not ZOO, reason="the zoo is not beside the repository")


def engine_of(name: str) -> str:
    return "vips" if name in LIFTED else ZOO[name].engine


def names_of(engine: str) -> list[str]:
    return [name for name in ZOO if engine_of(name) == engine]


def marked(name: str) -> nv.private:
    return nv.private(ZOO[name].model, unit=ZOO[name].unit or "N")


def plan_of(name: str) -> Any:
    return vi_of(marked(name), budget=math.inf).explain(*ZOO[name].args())


@pytest.mark.thorough
@pytest.mark.parametrize("name", names_of("vips"))
def test_conjugate_entry_gets_vips(name: str) -> None:
    plan = plan_of(name)
    assert plan.engine == "vips"
    assert not plan.reasons
    assert plan.statistics


# What the reason has to name, besides the site that it is listed under.
CAUSES = {
    "hier_dawid_skene": "softmax",
    "logreg_hier_reparam": "exponential family",
    "negbin_latent_r": "trials",
    "probit": "'w'",
    "poisson_glm": "exp of 'w'",
    "ppca_collapsed": "'W'",
    "bnn": "tanh of 'W1'",
    "adv_square": "x^4",
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", names_of("dpvi"))
def test_other_entry_gets_dpvi_with_a_reason(name: str) -> None:
    plan = plan_of(name)
    assert plan.engine == "dpvi"
    sites = {site["site"] for site in plan.sites}
    assert plan.reasons and set(plan.reasons) <= sites
    text = " ".join(plan.reasons.values())
    assert CAUSES[name] in text
    assert any(f"'{site}'" in text for site in sites)


# A word of the remedy.
REMEDIES = {
    "control_flow_latent": "jnp.where",
    "control_flow_data": "jnp.where",
    "leak_prior": "public",
    "no_plate": "numpyro.plate",
}


@pytest.mark.parametrize("name", names_of("refuse"))
def test_unsafe_entry_is_refused(name: str) -> None:
    with pytest.raises(nv.UnsafeModelError, match=REMEDIES[name]):
        plan_of(name)


# --- what the accepted models compute -----------------------------------------------


class Fitted:
    """An accepted model after some full-batch sweeps, in double precision."""

    def __init__(self, name: str):
        args = tuple(_double(a) for a in ZOO[name].args(NUM_ROWS))
        model = marked(name)
        arguments = bind_arguments(model, args, {})
        program = compile_model(model, build_graph(model, arguments))
        self.name, self.args = name, args
        self.batch = FullBatch(program, arguments.private, LOCAL_SWEEPS)
        state = self.batch.step(self.batch.start())
        self.bounds = [self.batch.bound(state)]
        self.early = state
        for _ in range(NUM_SWEEPS):
            state = self.batch.step(state)
            self.bounds.append(self.batch.bound(state))
        self.state = state


def _double(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


@functools.cache
def fitted(name: str) -> Fitted:
    with jax.enable_x64(True):
        return Fitted(name)


@pytest.fixture(autouse=True, scope="module")
def _forget_fits() -> Iterator[None]:
    yield
    fitted.cache_clear()


# A few in the fast run; all of them in the slow one.
FAST = (
    "gauss_mean_prec",
    "gauss_halfcauchy",
    "logreg_alpha",
)
ACCEPTED = some_fast(names_of("vips"), FAST)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ACCEPTED)
def test_bound_never_falls(name: str) -> None:
    bounds = np.array(fitted(name).bounds)
    assert np.all(np.isfinite(bounds))
    steps = np.diff(bounds)
    assert np.all(steps >= -1e-8 * (1 + np.abs(bounds[1:]))), bounds


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ACCEPTED)
def test_batch_sums_are_sums_of_rows(name: str) -> None:
    this = fitted(name)
    whole = this.batch.sums(this.state)
    single = [
        this.batch.sums(this.state, np.arange(NUM_ROWS) == row)
        for row in range(NUM_ROWS)
    ]
    for statistic, value in whole.items():
        added = sum(one[statistic] for one in single)
        size = np.sum([np.abs(one[statistic]) for one in single], 0).max(initial=1.0)
        np.testing.assert_allclose(value, added, rtol=1e-10, atol=1e-10 * size)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", ACCEPTED)
def test_expected_log_joint_agrees_with_monte_carlo(name: str) -> None:
    this = fitted(name)
    found = this.batch.expected_log_joint(this.state)
    draws = this.batch.draw(this.state, 1, NUM_DRAWS)
    values = np.asarray(log_densities(this, draws))
    assert np.all(np.isfinite(values))
    mean, error = values.mean(), values.std() / math.sqrt(NUM_DRAWS)
    assert found <= mean + 4 * error
    if not this.batch.is_augmented:
        assert found >= mean - 4 * error


def log_densities(this: Fitted, draws: dict[str, jax.Array]) -> Any:
    """NumPyro's log density at each draw."""
    model = ZOO[this.name].model
    if this.name == "logreg_mvn_idx":
        # All rows in place of the four that the plate would draw.
        model = numpyro.handlers.substitute(model, {"N": jnp.arange(NUM_ROWS)})

    def one(latents: dict[str, jax.Array]) -> Any:
        with numpyro.validation_enabled(False):
            return log_density(model, this.args, {}, _stacked(latents))[0]

    return jax.jit(jax.vmap(one))(draws)


def _stacked(latents: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The sites of an unrolled scan as NumPyro's scan has them, time first."""
    steps: dict[str, list[jax.Array]] = {}
    found = {}
    for name, value in latents.items():
        if name.endswith("]"):
            # The carry of this model is int32, also in double precision.
            steps.setdefault(name.split("[")[0], []).append(value.astype(jnp.int32))
        else:
            found[name] = value
    return {**found, **{name: jnp.stack(values) for name, values in steps.items()}}


def _beta(y: np.ndarray, a: float, b: float) -> dict[str, Any]:
    return {
        "p/concentration1": a + y.sum(),
        "p/concentration0": b + (1 - y).sum(),
    }


def _gamma(concentration: float, rate: float) -> dict[str, Any]:
    return {"lam/concentration": concentration, "lam/rate": rate}


EXACT = {
    "beta_bernoulli": lambda y: _beta(y, 1.0, 2.0),
    "uniform_bernoulli": lambda y: _beta(y, 1.0, 1.0),
    "dirichlet_categorical": lambda y: {
        "theta/concentration": 0.7 + np.bincount(y, minlength=4)
    },
    "poisson_gamma": lambda y: _gamma(2.0 + y.sum(), 1.0 + len(y)),
    "exponential_gamma": lambda y: _gamma(2.0 + len(y), 1.0 + y.sum()),
}


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", EXACT)
def test_closed_form(name: str) -> None:
    args = tuple(_double(a) for a in ZOO[name].args(100))
    params = fit_to(marked(name), *args, budget=math.inf).params
    for parameter, value in EXACT[name](args[0]).items():
        np.testing.assert_allclose(params[parameter], value, rtol=1e-6)
