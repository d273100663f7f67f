"""A second fit like the first one compiles nothing, and what is kept holds no rows."""

import gc
import types
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from _fits import vi_of
from jax.core import Tracer

import numpyro_vips as nv
from numpyro_vips.fitting import prepared_fits

SCALE = 2.0
WEIGHTS = np.array([1.0, 2.0])
SECRET = 1234.56789


pytestmark = pytest.mark.usefixtures("no_prepared_fits")


@nv.private(unit="rows")
def regression(X: Any, y: Any = None, width: float = 1.0) -> None:
    prior = dist.Normal(0.0, SCALE * WEIGHTS[0]).expand([X.shape[1]]).to_event(1)
    w: Any = numpyro.sample("w", prior)
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.Normal(X @ w, width), obs=y)


@nv.private(unit="rows")
def heavy(X: Any, y: Any = None) -> None:
    w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("y", dist.StudentT(4, X @ w, 1), obs=y)


def data(count: int = 50, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(size=(count, 2)), rng.uniform(size=count)


def fitted(model: Any = regression, *args: Any, **options: Any) -> Any:
    return _private_vi(model, **options).run(jax.random.key(0), *(args or data()))


def planned(model: Any = regression, *args: Any, **options: Any) -> None:
    """Prepares a fit, as `fitted` does, and leaves it at that."""
    norm = {"clipping_norm": 1.0}  # Or it would be looked for, which takes as long.
    _private_vi(model, **norm | options).explain(*(args or data()))


def _private_vi(model: Any, **options: Any) -> nv.PrivateVI:
    settings: dict[str, Any] = {"num_steps": 1, "progress_bar": False, **options}
    return vi_of(model, **settings)


# Formulas of priors are traced for the check of the posterior, to run in NumPy.
TRACED = "/jax/core/compile/jaxpr_trace_duration"
COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations() -> Iterator[list[str]]:
    """Grows by an event for all that JAX traces, lowers or compiles.

    And by the name of each program that is compiled.
    """
    events: list[str] = []

    def listen(event: str, duration_secs: float, **about: Any) -> None:
        if "/compile/" in event:
            events.append(event)
        if event == COMPILED:
            events.append(about.get("fun_name", ""))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


def assert_compiled_once(program: str, compilations: list[str]) -> None:
    """Of a program that is jitted. JAX 0.9 does not know the names of partial ones."""
    if jax.__version_info__ >= (0, 10):
        assert compilations.count(f"jit({program})") == 1, program


@pytest.mark.thorough
@pytest.mark.parametrize("model", [regression, heavy])
def test_a_second_fit_compiles_nothing(
    model: Any, prepared: list[Any], compilations: list[str]
) -> None:
    first = fitted(model, *data(seed=0))
    # Or there would be nothing to hear in the second one.
    assert COMPILED in compilations
    # Ahead of the first step, for arguments such as it has.
    assert_compiled_once("update_globals", compilations)
    compilations.clear()
    second = fitted(model, *data(seed=1))
    assert len(prepared) == 1
    assert set(compilations) <= {TRACED}
    assert first.params.keys() == second.params.keys()
    assert any(
        not np.array_equal(first.params[k], second.params[k]) for k in first.params
    )


@pytest.mark.thorough
def test_a_first_fit_compiles_each_program_once(compilations: list[str]) -> None:
    @nv.private(unit="rows")
    def logistic(X: Any, y: Any = None) -> None:
        b: Any = numpyro.sample("b", dist.Normal(0.0, 3.0))
        with numpyro.plate("feature", X.shape[1]):
            w: Any = numpyro.sample("w", dist.Normal(0.0, 3.0))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=b + X @ w), obs=y)

    X, y = data(4000)
    rows = X.astype(np.float32), (y < 0.5).astype(np.int32)
    vi = vi_of(logistic, num_steps=3)
    vi.explain(*rows)
    # Single operations are left to NumPy, and every program takes time.
    assert compilations.count(COMPILED) <= 10
    vi.run(jax.random.key(0), *rows)
    # Rows are counted by the norms of both statistics, and by each of them alone.
    for program in ("newton_targets", "second_moments", "_counts"):
        assert_compiled_once(program, compilations)


@pytest.mark.thorough
def test_a_second_run_of_the_same_object_compiles_nothing(
    prepared: list[Any], compilations: list[str]
) -> None:
    vi = vi_of(regression, budget=2.0, epsilon=1.0, delta=5e-6, num_steps=1)
    vi.run(jax.random.key(0), *data(seed=0))
    assert COMPILED in compilations
    compilations.clear()
    vi.run(jax.random.key(1), *data(seed=1))
    assert len(prepared) == 1
    assert set(compilations) <= {TRACED}


@pytest.mark.thorough
def test_explain_prepares_what_run_uses(prepared: list[Any]) -> None:
    vi = vi_of(regression, num_steps=1)
    plan = str(vi.explain(*data()))
    assert vi.run(jax.random.key(0), *data()).plan == plan
    assert len(prepared) == 1


def _guide(loc: float) -> Callable[..., None]:
    def guide() -> None:
        mean = numpyro.param("mean", jnp.full(2, loc))
        numpyro.sample("w", dist.Normal(mean, 0.1).to_event(1))

    return guide


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a global number": lambda patch: patch.setitem(globals(), "SCALE", 3.0),
    "a global array, in place": lambda patch: WEIGHTS.fill(5.0),
    "a global array": lambda patch: patch.setitem(globals(), "WEIGHTS", np.ones(2)),
    "a setting of JAX": lambda patch: patch.setattr(
        prepared_fits, "settings_of_jax", lambda: ("other",)
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_the_model_refers_to_is_looked_at_again(
    change: str, prepared: list[Any], monkeypatch: Any
) -> None:
    held, before = WEIGHTS, WEIGHTS.copy()
    try:
        planned()
        CHANGES[change](monkeypatch)
        planned()
    finally:
        held[:] = before
    assert len(prepared) == 2


DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "steps": ({}, {"num_steps": 2}),
    "sampling": ({}, {"sampling": nv.Poisson(0.5)}),
    "relation": ({}, {"sampling": nv.FullBatch(relation="replace_one")}),
    "clipping norm": ({"clipping_norm": 1.0}, {"clipping_norm": 2.0}),
    "engine": ({}, {"engine": "dpvi"}),
    "engine's settings": (
        {"engine": nv.VIPS(local_steps=3)},
        {"engine": nv.VIPS(local_steps=4)},
    ),
    "step size": (
        {"engine": nv.VIPS(step_size=lambda t: 1.0)},
        {"engine": nv.VIPS(step_size=lambda t: 0.5)},
    ),
    "guide's closure": (
        {"engine": nv.DPVI(guide=_guide(0.0))},
        {"engine": nv.DPVI(guide=_guide(1.0))},
    ),
    "optimiser": (
        {"engine": nv.DPVI(optimizer=optax.adam(0.01))},
        {"engine": nv.DPVI(optimizer=optax.adam(0.02))},
    ),
    "rows": ({}, {"num_rows": 60}),
}
EQUAL: dict[str, Callable[[], dict[str, Any]]] = {
    "settings": lambda: {"engine": nv.VIPS(structure={"w": "diag"})},
    "sampling": lambda: {"sampling": nv.Poisson(0.5)},
    "guide": lambda: {"engine": nv.DPVI(guide=_guide(0.5))},
    "optimiser": lambda: {"engine": nv.DPVI(optimizer=optax.adam(0.01))},
}


@pytest.mark.quick_with("clipping norm", "relation", "steps")
@pytest.mark.parametrize("name", DIFFERENT)
def test_different_settings_are_different_fits(name: str, prepared: list[Any]) -> None:
    for options in DIFFERENT[name]:
        planned(**options)
    assert len(prepared) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("name", EQUAL)
def test_equal_settings_are_one_fit(name: str, prepared: list[Any]) -> None:
    for _ in range(2):
        planned(**EQUAL[name]())
    assert len(prepared) == 1


@pytest.mark.thorough
def test_no_budget_is_part_of_a_fit_whose_noise_is_given(prepared: list[Any]) -> None:
    @nv.private(unit="rows")
    def labels(X: Any, y: Any) -> None:
        w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=X @ w), obs=y)

    X, y = np.zeros((1000, 3)), np.zeros(1000, int)
    for epsilon in (0.01, 1.0):
        planned(labels, X, y, noise_multiplier=1.0, epsilon=epsilon, delta=1e-6)
    assert len(prepared) == 1


@pytest.mark.thorough
def test_shapes_types_constants_and_precision_are_part_of_a_fit(
    prepared: list[Any],
) -> None:
    X, y = data()
    planned(regression, X, y)
    planned(regression, X[:40], y[:40])
    planned(regression, X.astype(np.float16), y)
    planned(regression, X, y, 2.0)
    with jax.enable_x64(True):
        planned(regression, X, y)
    assert len(prepared) == 5


def test_models_of_equal_code_are_one_fit(prepared: list[Any]) -> None:
    def model_of(scale: float) -> Any:
        def model(X: Any, y: Any) -> None:
            w: Any = numpyro.sample("w", dist.Normal(0, scale).expand([2]).to_event(1))
            with numpyro.plate("rows", X.shape[0]):
                numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

        return nv.private(model, unit="rows")

    planned(model_of(1.0))
    planned(model_of(1.0))
    assert len(prepared) == 1
    planned(model_of(2.0))
    assert len(prepared) == 2


def test_captured_rows_are_refused_in_every_run() -> None:
    held: dict[str, Any] = {}

    @nv.private(unit="rows")
    def model(X: Any, y: Any) -> None:
        w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        offset = held.get("offset", 0.0)
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Normal(X @ w + offset, 1.0), obs=y)

    planned(model)
    held["offset"] = np.arange(50.0) ** 2
    with pytest.raises(nv.UnsafeModelError, match="axis of the length of the data"):
        fitted(model, clipping_norm=1.0)


def test_a_refused_model_is_refused_again(prepared: list[Any]) -> None:
    @nv.private(unit="rows")
    def model(X: Any) -> None:
        jax.debug.print("{}", X)
        w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("x", dist.Normal(X @ w, 1.0), obs=X[:, 0])

    for _ in range(2):
        with pytest.raises(nv.UnsafeModelError):
            fitted(model, data()[0])
    assert len(prepared) == 2


def _reachable(roots: list[Any]) -> Iterator[Any]:
    """Everything that some objects refer to, but for modules and types."""
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        if id(value) in seen or isinstance(value, types.ModuleType | type):
            continue
        seen.add(id(value))
        yield value
        if isinstance(value, types.FunctionType):
            stack += [*(value.__closure__ or ()), value.__defaults__, vars(value)]
        else:
            stack += gc.get_referents(value)


@pytest.mark.quick_with("regression")
@pytest.mark.parametrize("model", [regression, heavy])
def test_what_is_kept_holds_no_rows(model: Any) -> None:
    X, y = data()
    X[3, 0] = y[4] = SECRET
    fitted(model, X, y)
    assert len(prepared_fits._kept) == 1
    arrays = 0
    for value in _reachable([prepared_fits._kept]):
        if isinstance(value, np.ndarray | jax.Array):
            if isinstance(value, Tracer) or jnp.issubdtype(
                value.dtype, jax.dtypes.prng_key
            ):
                continue
            array = np.asarray(value)
            arrays += 1
            if array.dtype.kind == "f":
                assert not np.any(np.isclose(array, SECRET, rtol=1e-3))
        assert not isinstance(value, float) or abs(value - SECRET) > 1
    assert arrays > 5  # Else nothing was searched.


@pytest.mark.thorough
def test_few_fits_are_kept(
    prepared: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prepared_fits._MOST_KEPT <= 8
    most = 2
    monkeypatch.setattr(prepared_fits, "_MOST_KEPT", most)
    for width in range(most + 1):
        planned(regression, *data(), 1.0 + width)
    planned(regression, *data(), 1.0 + most)
    assert len(prepared) == most + 1
    assert len(prepared_fits._kept) == most
    planned(regression, *data(), 1.0)
    assert len(prepared) == most + 2
