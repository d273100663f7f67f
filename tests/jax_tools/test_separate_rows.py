"""Rows neither meet nor leave, whatever a model or a guide is written with."""

import contextlib
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _printed import read_printed
from _watched_sums import watched_sums
from jax.interpreters import batching, mlir

import numpyro_vips as nv
from numpyro_vips.jax_tools.random_keys import as_threefry
from numpyro_vips.jax_tools.separate_rows import (
    _with_own_operations,
    check_row_program,
    over_rows,
    row_program,
)
from numpyro_vips.privacy.releases import INFORMATION

pytestmark = pytest.mark.optimized

# Where operations are written with others; not every version of JAX has it.
HIJAX = "jax.experimental.hijax"
hijax: Any = importlib.util.find_spec(HIJAX) and importlib.import_module(HIJAX)
WrittenWithOthers: Any = getattr(
    hijax, "HiPrim", getattr(hijax, "VJPHiPrimitive", None)
)
NUM_ROWS = 64
KINDS = ("threefry2x32", "rbg", "unsafe_rbg")


def rows_of(seed: int, count: int = NUM_ROWS) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def private_vi(model: Any, **options: Any) -> nv.PrivateVI:
    settings: dict[str, Any] = {
        "budget": nv.PrivacyBudget(1.0, 1e-5),
        "num_steps": 1,
        "clipping_norm": 0.5,
        # Counts of rows would be a part of what is released, and of its sensitivity.
        "diagnostics": False,
        "progress_bar": False,
        **options,
    }
    return nv.PrivateVI(model, **settings)


# --- keys -----------------------------------------------------------------------------


@nv.private(unit="rows")
def encoded(X: Any) -> None:
    slope: Any = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        t: Any = numpyro.sample("t", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.StudentT(4, t[:, None] * slope, 1).to_event(1), obs=X)


def encoder(X: Any) -> None:
    loc = numpyro.param("loc", jnp.zeros(3))
    weights = numpyro.param("weights", jnp.ones(3))
    numpyro.sample("slope", dist.Normal(loc, 0.1).to_event(1))
    with numpyro.plate("rows", X.shape[0]):
        numpyro.sample("t", dist.Normal(jnp.tanh(X @ weights), 1.0))


def moved_sum(key: jax.Array) -> float:
    """How far replacing one row moves the sum, in units of the claimed sensitivity."""
    X = rows_of(0)
    replaced = X.copy()
    replaced[0] = -3.0
    settings = {
        "engine": nv.DPVI(guide=encoder),
        "sampling": nv.FullBatch(relation="replace_one"),
    }
    with watched_sums() as found:
        private_vi(encoded, **settings).run(key, X)
        private_vi(encoded, **settings).run(key, replaced)
    (sensitivity, first), (_, second) = found
    distance = np.sqrt(sum(np.sum((first[k] - second[k]) ** 2) for k in first))
    return float(distance / sensitivity)


@pytest.mark.quick_with("threefry2x32")
@pytest.mark.parametrize("kind", KINDS)
def test_replacing_a_row_moves_only_its_own_draws(kind: str) -> None:
    assert 0 < moved_sum(jax.random.key(0, impl=kind)) <= 1


@pytest.mark.quick_with("threefry2x32")
@pytest.mark.parametrize("kind", KINDS)
def test_the_default_kind_of_key_makes_rows_meet_no_more_than_a_given_one(
    kind: str,
) -> None:
    with jax.default_prng_impl(kind):
        assert 0 < moved_sum(jax.random.PRNGKey(1)) <= 1
        assert 0 < moved_sum(jax.random.key(1)) <= 1


def test_threefry_keys_keep_their_value_and_others_become_one() -> None:
    key = jax.random.key(7, impl="threefry2x32")
    data = jax.random.key_data
    assert as_threefry(key) is key
    np.testing.assert_array_equal(data(as_threefry(data(key))), data(key))
    others = [jax.random.key(seed, impl="rbg") for seed in (7, 7, 8)]
    words = [data(as_threefry(other)) for other in others]
    np.testing.assert_array_equal(words[0], words[1])
    assert words[0].shape == (2,)
    assert not np.array_equal(words[0], words[2])


# --- models and guides by which rows would meet or leave ------------------------------


@jax.custom_vjp
def printing(x: Any) -> Any:
    """The identity, which prints its gradient."""
    return x


def _printed(_: Any, gradient: Any) -> tuple[Any]:
    jax.debug.print("{}", gradient)
    return (gradient,)


printing.defvjp(lambda x: (x, None), _printed)


@jax.custom_jvp
def calling(x: Any) -> Any:
    """The identity, whose derivative passes through Python."""
    return x


@calling.defjvp
def _called(primals: Any, tangents: Any) -> Any:
    (x,), (tangent,) = primals, tangents
    like = jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))
    factor = jax.pure_callback(
        lambda x: np.ones_like(x), like, x, vmap_method="expand_dims"
    )
    return x, factor * tangent


@jax.custom_batching.custom_vmap
def mixing(x: Any) -> Any:
    """The identity for one row; for several, their sum decides."""
    return x


@mixing.def_vmap
def _mixed(axis_size: int, in_batched: Any, x: Any) -> Any:
    return x * jnp.sign(jnp.sum(x)), True


_own_p = jex_core.Primitive("my_identity")
_own_p.def_impl(lambda x: x)
_own_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(_own_p, lambda ctx, x: [x])
batching.primitive_batchers[_own_p] = lambda args, dims: (  # type: ignore[assignment]
    args[0] * jnp.sign(jnp.sum(args[0])),
    dims[0],
)


def own_primitive(x: Any) -> Any:
    return jax.lax.stop_gradient(_own_p.bind(jnp.asarray(x))) * x


def own_operation(x: Any) -> Any:
    """As `mixing`, by an operation that says what it does for one row."""

    class Mixing(WrittenWithOthers):
        skip_linearization_on_zero_tangents = True

        def __init__(self, aval: Any) -> None:
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

        def expand(self, x: Any) -> Any:
            return x

        def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
            return args[0] * jnp.sign(jnp.sum(args[0])), dims[0]

    return Mixing(jax.typeof(x))(jax.lax.stop_gradient(x)) * x


def kept(x: Any) -> Any:
    jax.debug.callback(lambda x: None, x)
    return x


def in_a_loop(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def looped(x: Any) -> Any:
        def body(carry: Any, _: Any) -> tuple[Any, None]:
            return jax.jit(look)(carry), None

        return jax.lax.scan(body, x, None, length=2)[0]

    return looped


def in_a_root(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def rooted(x: Any) -> Any:
        return jax.lax.custom_root(
            lambda y: y - x, x, lambda f, y: look(y - f(y)), lambda g, y: y
        )

    return rooted


def bit_generator(x: Any) -> Any:
    words = jax.lax.bitcast_convert_type(jnp.ones(4) * jnp.sum(x), jnp.uint32)
    _, bits = jax.lax.rng_bit_generator(words, (1,))
    return x + 1e-9 * bits.astype(float)


def foreign_keys(x: Any) -> Any:
    return x * jax.random.normal(jax.random.key(0, impl="rbg"))


def foreign_call(x: Any) -> Any:
    like = jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x))
    return jax.ffi.ffi_call("somewhere_else", like, vmap_method="broadcast_all")(x)


def remembering(x: Any) -> Any:
    """What a mutable array holds would outlive the step."""
    memory = jax.new_ref(jnp.zeros(()))
    memory[...] += jnp.sum(x)
    return x + 0 * memory[...]


WAYS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "print in a derivative": (printing, "calls back to Python"),
    "callback in a derivative": (calling, "calls back to Python"),
    "callback": (kept, "calls back to Python"),
    "callback in a loop": (in_a_loop(kept), "calls back to Python"),
    "custom_vmap": (mixing, "custom_vmap"),
    "custom_vmap in a loop": (in_a_loop(mixing), "custom_vmap"),
    "custom_vmap in a root": (in_a_root(mixing), "custom_vmap"),
    "own primitive": (own_primitive, "my_identity"),
    "foreign call": (foreign_call, "ffi_call"),
    "mutable array": (remembering, "not known that it treats"),
    "bit generator": (bit_generator, "rng_bit_generator"),
    "foreign keys": (foreign_keys, "keys of the kind"),
}
if WrittenWithOthers:
    WAYS["own operation"] = own_operation, "not known that it treats"
# Derivatives in arguments of rows alone are never taken, so these are as good as the
# identity there.
DERIVATIVES = ("print in a derivative", "callback in a derivative")


class Watching(dist.Normal):
    """A Normal whose log density does something with the value."""

    def __init__(self, loc: Any, look: Callable[[Any], Any]) -> None:
        self.look = look
        super().__init__(loc, 1.0)

    def log_prob(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return super().log_prob(self.look(value - self.loc) + self.loc)


def model_of(where: str, look: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A model, and perhaps a guide, that uses `look` in one place."""

    def model(X: Any) -> None:
        slope: Any = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            loc = jnp.zeros(X.shape[0])
            if where in ("guide", "local"):
                prior = dist.Normal(0.0, 1.0)
                loc = loc + numpyro.sample("t", prior)
            if where == "arguments":
                X = jax.vmap(look)(X) if look is foreign_keys else look(X)
            loc = loc + X @ slope
            if where == "parameters":
                loc = look(loc)
            likelihood: Any = dist.StudentT(4, loc, 1)
            if where in ("log_prob", "local"):
                likelihood = Watching(loc, look)
            numpyro.sample("y", likelihood, obs=jnp.ones(X.shape[0]))

    def guide(X: Any) -> None:
        loc = numpyro.param("loc", jnp.zeros(3))
        numpyro.sample("slope", dist.Normal(loc, 0.1).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            weights = numpyro.param("weights", jnp.ones(3))
            numpyro.sample("t", dist.Normal(look(X @ weights), 1.0))

    has_guide = where in ("guide", "local")
    identity = model_of("guide", lambda x: x)[1] if where == "local" else guide
    return nv.private(model, unit="rows"), identity if has_guide else "mean_field"


CASES = [
    (way, where)
    for where in ("arguments", "parameters", "log_prob", "guide", "local")
    for way in WAYS
    if not (where == "arguments" and way in DERIVATIVES)
]


@pytest.mark.quick_with(
    "*-log_prob",
    "callback-*",
    "callback in a loop-*",
    "print in a derivative-parameters",
    "mutable array-*s",
    "custom_vmap-*s",
)
@pytest.mark.parametrize(("way", "where"), CASES)
def test_refused_before_anything_is_charged_or_shown(
    way: str, where: str, capfd: Any
) -> None:
    look, message = WAYS[way]
    model, guide = model_of(where, look)
    vi = private_vi(model, engine=nv.DPVI(guide=guide))
    X = rows_of(1)
    for call in (vi.explain, lambda X: vi.run(jax.random.key(0), X)):
        with pytest.raises(nv.UnsafeModelError, match=message):
            call(X)
    assert vi.budget.remaining().epsilon == 1.0
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("way", [way for way in WAYS if way not in DERIVATIVES])
def test_vips_refuses_them_too(way: str) -> None:
    look, message = WAYS[way]

    @nv.private(unit="rows")
    def model(X: Any) -> None:
        slope: Any = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            seen = look(X)
            numpyro.sample("y", dist.Normal(seen @ slope, 1), obs=jnp.ones(X.shape[0]))

    with pytest.raises(nv.UnsafeModelError, match=message):
        private_vi(model, engine="vips").explain(rows_of(1))


@pytest.mark.parametrize("way", ["print in a derivative", "custom_vmap"])
def test_conjugate_locals_show_nothing(way: str, capfd: Any) -> None:
    """DPVI solves for them by itself, without the derivatives that an author gave."""
    look, _ = WAYS[way]

    @nv.private(unit="rows")
    def model(X: Any) -> None:
        slope: Any = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            t: Any = numpyro.sample("t", dist.Normal(look(jnp.tanh(X @ slope)), 1.0))
            numpyro.sample("y", dist.Normal(t, 1.0), obs=jnp.ones(X.shape[0]))

    refused = contextlib.nullcontext()
    if way == "custom_vmap":
        refused = pytest.raises(nv.UnsafeModelError, match="custom_vmap")
    with refused:
        private_vi(model, engine="dpvi").run(jax.random.key(0), rows_of(1))
    assert capfd.readouterr().out == ""


def test_rows_inside_a_derivative_are_refused() -> None:
    """A rule that the author gave is part of what runs, and so are its constants."""
    hidden = [float(x) for x in rows_of(5)[:, 0]]
    # No reference to the numbers is left but that of the function's own code.
    rule = f"lambda _, gradient: (gradient * jnp.asarray({hidden})[0],)"

    @jax.custom_vjp
    def identity(x: Any) -> Any:
        return x

    identity.defvjp(lambda x: (x, None), eval(rule, {"jnp": jnp, "__name__": "math"}))

    @nv.private(unit="rows")
    def model(X: Any) -> None:
        slope: Any = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            loc = identity(X @ slope)
            numpyro.sample("y", dist.StudentT(4, loc, 1), obs=jnp.ones(X.shape[0]))

    with pytest.raises(nv.UnsafeModelError, match="axis of the length of the data"):
        private_vi(model, engine="dpvi").explain(rows_of(1))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    "function",
    [
        jnp.linalg.svd,
        lambda x: jnp.linalg.svd(x, compute_uv=False),
        lambda x: jnp.linalg.svd(x)[1],
        jnp.linalg.pinv,
        jax.grad(lambda x: jnp.linalg.norm(x, ord="nuc")),
        lambda x: jax.lax.map(lambda y: jnp.linalg.svd(y)[1], jnp.stack([x, 2 * x])),
        in_a_root(lambda x: jnp.linalg.svd(x)[0]),
    ],
)
def test_lapack_prints_nothing_of_a_row_that_is_not_finite(
    function: Any, value: float, capfd: Any
) -> None:
    rows = np.random.default_rng(0).normal(size=(3, 30, 30)).astype(np.float32)
    rows[1, 4, 7] = value
    mapped = over_rows(lambda _, x: function(x))
    found = jax.tree.leaves(jax.jit(mapped)((), jnp.asarray(rows)))
    expected = jax.tree.leaves(jax.jit(jax.vmap(function))(rows[::2]))
    for mine, plain in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine[::2], plain, rtol=1e-4, atol=1e-4)
        assert np.isnan(mine[1]).all()
    assert read_printed(capfd) == ("", "")


@pytest.mark.parametrize(
    "function",
    [
        jax.scipy.special.gammainc,
        jax.scipy.special.gammaincc,
        jax.grad(jax.scipy.special.gammainc),
        jax.jit(jax.scipy.special.gammaincc),
    ],
)
def test_incomplete_gamma_functions_end_whatever_a_row_holds(function: Any) -> None:
    """JAX's series at equal numbers has 4 · 10¹⁵ terms in double precision."""
    with jax.enable_x64(True):
        rows = jnp.asarray([[2.0, 1.0], [1e26, 1e26], [0.3, 7.0], [1e6, 1e6]])
        mapped = over_rows(lambda _, row: function(row[0], row[1]))
        found = jax.jit(mapped)((), rows)
        usual = np.array([0, 2, 3])
        expected = jax.vmap(function)(*rows[usual].T)
        np.testing.assert_allclose(found[usual], expected, rtol=1e-12)
        assert np.isnan(found[1])


@pytest.mark.parametrize(
    "function",
    [
        jax.scipy.special.betainc,
        jax.grad(jax.scipy.special.betainc, 2),
        lambda a, b, x: jax.lax.custom_linear_solve(
            lambda y: y * jax.scipy.special.betainc(a, b, x),
            x,
            lambda product, y: y / product(1.0),
            symmetric=True,
        ),
        lambda a, b, x: in_a_root(lambda y: jax.scipy.special.betainc(a, b, y))(x),
        lambda *given: jax.lax.cond(
            given[0] > 1, jax.scipy.special.betainc, lambda a, b, x: a, *given
        ),
        lambda a, b, x: jax.scipy.special.gammainc(a, 40.0 * b * x),
        lambda a, b, x: jax.scipy.special.gammaincc(a, 40.0 * b * x),
        lambda a, b, x: jax.grad(jax.scipy.special.gammainc)(a, b),
        lambda a, b, x: jax.scipy.special.zeta(1.0 + a, b),
        lambda a, b, x: jax.scipy.special.polygamma(2, a),
    ],
)
def test_functions_that_loop_wait_for_no_other_row(function: Any) -> None:
    """A slow row changed the incomplete Beta functions of 62 others, by 3e-6."""
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.1, (3.0, 3.0, 1.0), (64, 3)).astype(np.float32)
    mapped = jax.jit(over_rows(lambda _, row: function(*row)))
    expected = np.asarray(mapped((), rows))
    for slow in ((300.0, 200.0, 0.6), (1e5, 1e5, 0.5), (1e-30, np.nan, 2.0)):
        found = np.asarray(mapped((), np.concatenate([[slow], rows[1:]]).astype("f4")))
        np.testing.assert_array_equal(found[1:], expected[1:])


@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_a_row_that_takes_long_moves_a_sum_by_its_own_part_alone(engine: str) -> None:
    """It moved a sum by 127 times the sensitivity, by rows that were made for it."""

    @nv.private(unit="rows")
    def model(X: Any, y: Any) -> None:
        mean: Any = numpyro.sample("mean", dist.Normal(0, 1))
        shares = jax.scipy.special.betainc(X[:, 0], X[:, 1], X[:, 2])
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=1e12 * (y - shares))

    rows = np.random.default_rng(0).uniform(0.1, (3.0, 3.0, 1.0), (63, 3)).astype("f4")
    slow = np.array([[1e5, 1e5, 0.5]], np.float32)
    alone = np.asarray(jax.scipy.special.betainc(*rows.T))
    beside = np.asarray(jax.scipy.special.betainc(*np.concatenate([rows, slow]).T))[:-1]
    # JAX 0.12 has none such.
    one = next(iter(np.flatnonzero(alone != beside)), 0)
    X = np.repeat(rows[one : one + 1], 63, axis=0)
    y = np.repeat(np.float32((float(alone[one]) + float(beside[one])) / 2), 63)
    neighbour = np.concatenate([slow, X]), np.append(np.float32(0.6), y)
    with watched_sums() as found:
        for given in ((X, y), neighbour):
            vi = private_vi(model, engine=engine, num_rows=64)
            vi.run(jax.random.key(0), *given)
    half = len(found) // 2
    for (sensitivity, first), (_, second) in zip(
        found[:half], found[half:], strict=True
    ):
        moved = [first[name] - second[name] for name in first]
        distance = np.sqrt(sum(np.sum(each**2) for each in moved))
        assert 0 < distance <= sensitivity


@pytest.mark.parametrize("function", [jax.lax.linalg.lu, jnp.linalg.slogdet])
def test_a_matrix_that_is_not_finite_is_the_same_wherever_it_stands(
    function: Any,
) -> None:
    """Signs of determinants were 1 or -1, depending on the number of rows before."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(64, 17, 17)).astype(np.float32)
    rows[::2, 3, 5] = np.nan
    mapped = jax.jit(over_rows(lambda _, x: function(x)))
    plain = jax.tree.leaves(jax.jit(jax.vmap(function))(rows[1::2]))
    expected = jax.tree.leaves(mapped((), rows))
    for mine, other in zip(expected, plain, strict=True):
        np.testing.assert_allclose(mine[1::2], other, rtol=1e-3)
    for shift in (1, 2, 3):
        found = jax.tree.leaves(mapped((), np.roll(rows, shift, 0)))
        for mine, before in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine, np.roll(before, shift, 0))


def test_convolutions_in_double_precision_are_refused() -> None:
    """A row that is not a number made those of all others none."""

    def convolved(_: Any, row: Any) -> Any:
        return jnp.convolve(row[0], row[1])

    rows = np.random.default_rng(0).normal(size=(64, 2, 7))
    refused = pytest.raises(nv.UnsafeModelError, match="a convolution of numbers")
    with jax.enable_x64(True), refused:
        over_rows(convolved)((), rows)
    rows[0] = np.nan
    found = jax.jit(over_rows(convolved))((), rows.astype(np.float32))
    assert np.isfinite(found[1:]).all()


def test_convolutions_in_groups_are_refused() -> None:
    """In single precision, too, a row took the kernels' gradients of others along."""

    def of_groups(kernel: Any, image: Any) -> Any:
        found = jax.lax.conv_general_dilated(
            image[None], kernel, (1, 1), "SAME", feature_group_count=3
        )
        return jnp.sum(found**2)

    rows = np.ones((64, 3, 8, 8), np.float32)
    with pytest.raises(nv.UnsafeModelError, match="or in groups"):
        over_rows(jax.grad(of_groups))(np.ones((6, 1, 3, 3), np.float32), rows)


def test_what_never_runs_is_not_refused() -> None:
    """A key of another kind that only unused draws were made from harms nobody."""

    def of_row(shared: Any, row: Any) -> Any:
        jax.random.normal(jax.random.key(0, impl="rbg"))
        return shared * row

    found = over_rows(of_row)(jnp.asarray(2.0), jnp.arange(3.0))
    np.testing.assert_array_equal(found, [0.0, 2.0, 4.0])


def test_rules_that_take_rows_one_by_one_are_allowed() -> None:
    sequential = jax.custom_batching.sequential_vmap(jnp.sin)
    found = over_rows(lambda shared, row: shared * sequential(row))(
        jnp.asarray(2.0), jnp.arange(3.0)
    )
    np.testing.assert_allclose(found, 2 * np.sin(np.arange(3.0)), rtol=1e-6)


def in_a_branch(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: jax.lax.cond(jnp.sum(x) > 0.0, look, lambda x: 2.0 * x, x)


def with_a_derivative(look: Callable[[Any], Any]) -> Callable[[Any], Any]:
    function = jax.custom_jvp(look)
    function.defjvp(lambda primals, tangents: (function(*primals), *tangents))
    return function


SURROUNDINGS = {
    "plain": lambda look: look,
    "jit": jax.jit,
    "loop": in_a_loop,
    "branch": in_a_branch,
    "root": in_a_root,
    "checkpoint": jax.checkpoint,
    "itself": jax.custom_batching.sequential_vmap,
    "derivative": with_a_derivative,
}


@pytest.mark.parametrize("where", SURROUNDINGS)
def test_a_function_cannot_become_another_once_it_was_checked(where: str) -> None:
    """The rule of `sequential_vmap` would call it again, with nobody to look at it."""
    seen, constants = [], np.arange(3.0, dtype=np.float32)

    @jax.custom_batching.sequential_vmap
    def sly(x: Any) -> Any:
        if was_checked:
            jax.debug.callback(lambda x: seen.append(np.asarray(x)), x)
        return jnp.sin(x) + jnp.asarray(constants).sum() + was_checked

    def of_row(shared: Any, row: Any) -> Any:
        return shared * SURROUNDINGS[where](sly)(row)

    was_checked = False
    two, rows = jnp.asarray(2.0), jnp.linspace(-1.0, 2.0, 5)
    expected = [of_row(two, row) for row in rows]
    program, _ = row_program(jax.jit(of_row), two, rows[0])
    was_checked = True
    run = jax.vmap(jex_core.jaxpr_as_fun(program), (None, 0))
    np.testing.assert_allclose(run(two, rows)[0], expected, rtol=1e-6)
    assert not seen


HIDDEN: dict[str, tuple[Callable[[Any], Any], str]] = {
    "svd": (jnp.linalg.svd, "operation 'svd'"),
    "dot_general": (lambda x: x @ x, "operation 'dot_general'"),
    "sequential_vmap": (
        jax.custom_batching.sequential_vmap(jnp.sin),
        "Take the decorator off",
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_cannot_be_replaced_is_refused(name: str) -> None:
    """As in an operation that keeps its programs where no known one does."""
    function, message = HIDDEN[name]
    matrix = np.ones((3, 3), np.float32)
    hidden = jax.make_jaxpr(function)(matrix)
    program = jax.make_jaxpr(jax.jit(jnp.cos))(matrix)
    (call,) = program.jaxpr.eqns
    keeping = call.replace(params={**call.params, "others": {"hidden": hidden}})
    program = program.replace(jaxpr=program.jaxpr.replace(eqns=[keeping]))
    with pytest.raises(nv.UnsafeModelError) as caught:
        _with_own_operations(program)
    assert message in str(caught.value)


def test_as_many_columns_as_rows_are_no_captured_rows() -> None:
    """What the engine itself makes for a row is as wide as the row."""

    @nv.private(unit="rows")
    def model(X: Any) -> None:
        size = X.shape[1]
        slope: Any = numpyro.sample(
            "slope", dist.Normal(0, 1).expand([size]).to_event(1)
        )
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("x", dist.StudentT(4, slope, 1).to_event(1), obs=X)

    for engine in (nv.DPVI(), nv.DPVI(guide="full_rank")):
        vi = private_vi(model, engine=engine)
        plan = vi.explain(np.random.default_rng(0).normal(size=(17, 17)))
        assert plan.engine == "dpvi"


def test_functions_of_jax_are_allowed() -> None:
    """Those that people write likelihoods and encoders with."""

    def program(x: Any, key: Any) -> Any:
        found = [
            jnp.linalg.cholesky(jnp.eye(3) + jnp.outer(x, x)).sum(),
            jnp.linalg.solve(jnp.eye(3) + jnp.outer(x, x), x).sum(),
            jax.scipy.special.logsumexp(x) + jax.scipy.special.gammaln(x**2).sum(),
            jax.nn.softmax(x)[0] + jnp.sort(x)[0] + jnp.cumsum(x)[-1],
            jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, jnp.argmax(x)),
            jax.lax.cond(x[0] > 0, jnp.sin, jnp.cos, x[1]),
            jax.random.gamma(key, 1.0 + x[0] ** 2) + jax.random.normal(key),
            jax.random.categorical(key, x) + jax.random.permutation(key, x)[0],
            jnp.fft.rfft(x).real[0] + jnp.interp(0.5, x, x) + jnp.convolve(x, x)[0],
            jax.checkpoint(jnp.tanh)(x).sum() + jnp.searchsorted(x, 0.0),
            x.at[jnp.argmax(x)].add(1.0)[0] + jnp.einsum("i,i", x, x),
            x[jnp.nonzero(x, size=2)[0]].sum() + x[jnp.tril_indices(3)[0]].sum(),
            jnp.ldexp(*jnp.frexp(x)).sum() + in_a_root(jnp.sin)(x).sum(),
        ]
        return sum(found, jnp.zeros(()))

    key = jax.random.key(0)
    check_row_program(jax.make_jaxpr(jax.grad(program))(jnp.ones(3), key))


# --- norms of any size ----------------------------------------------------------------


@pytest.mark.quick_with("True-1e+20", "True-1e-20")
@pytest.mark.usefixtures("without_remarks")
@pytest.mark.parametrize("clipping_norm", [1e-29, 1e-20, 1e20])
@pytest.mark.parametrize("is_product", [True, False])
def test_dpvi_clips_numbers_of_every_size(
    is_product: bool, clipping_norm: float
) -> None:
    """A row of entries whose squares are zero in single precision has a norm."""

    @nv.private(unit="rows")
    def model(X: Any) -> None:
        slope: Any = numpyro.sample("slope", dist.Normal(0, 1).expand([64]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            each = X @ slope if is_product else jnp.sum(jnp.sin(slope) * X, -1)
            numpyro.factor("gradient", each)
            numpyro.sample("y", dist.StudentT(4, 0.0, 1), obs=jnp.ones(X.shape[0]))

    largest = 0.0
    for size in (1e-35, 1e-28, 1e-22, 1e-19, 1e-15, 1.0, 1e15, 1e25, 1e37):
        X = np.full((1, 64), size, np.float32)
        vi = private_vi(model, engine="dpvi", clipping_norm=clipping_norm)
        with watched_sums() as found:
            vi.run(jax.random.key(0), X)
        (of_information, information), (sensitivity, sums) = found
        assert np.linalg.norm(information[INFORMATION]) <= of_information
        norm = np.linalg.norm(sums["loc"])
        assert norm <= clipping_norm
        assert sensitivity == pytest.approx(clipping_norm, rel=1e-6, abs=0)
        largest = max(largest, norm)
    assert largest > 0.9 * clipping_norm


def test_a_default_clipping_norm_is_held_to_what_a_given_one_is() -> None:
    @nv.private(unit="rows")
    def model(X: Any) -> None:
        slope: Any = numpyro.sample("slope", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            logits = 1e-33 * (X @ slope)
            numpyro.sample("y", dist.StudentT(4, logits, 1), obs=jnp.ones(X.shape[0]))

    vi = private_vi(model, engine="dpvi", clipping_norm=None)
    with pytest.raises(ValueError, match="between 1e-30 and 1e30"):
        vi.explain(rows_of(1))


@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_checks_for_numbers_that_are_not_finite_show_no_row(engine: str) -> None:
    """JAX would raise, and so tell, when a private row makes such a number."""

    @nv.private(unit="rows")
    def model(X: Any) -> None:
        mean: Any = numpyro.sample("mean", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("x", dist.Normal(mean, 1.0).to_event(1), obs=X)

    X = rows_of(1)
    X[0, 0] = np.nan
    with jax.debug_nans(True), jax.debug_infs(True):
        private_vi(model, engine=engine).run(jax.random.key(0), X)


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (lambda x: jax.debug.print("{}", x[0]) or x, "Python (debug_print), in line "),
        (lambda x: jax.new_ref(x)[...], "operation 'new_ref', in line "),
    ],
)
def test_a_refused_operation_is_told_with_its_line(function, line) -> None:
    with pytest.raises(nv.UnsafeModelError) as caught:
        check_row_program(jax.make_jaxpr(function)(np.ones((1, 3))))
    assert line in str(caught.value) and "of test_separate_rows" in str(caught.value)


# --- doubles beside single precision --------------------------------------------------


def in_doubles(x: jax.Array) -> jax.Array:
    with jax.enable_x64(True):
        return jax.lax.convert_element_type(x, jnp.float64) ** 3


@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_a_model_that_makes_doubles_is_refused_before_anything_is_charged(engine):
    @nv.private(unit="rows")
    def model(X: Any, y: Any) -> None:
        w: Any = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample("y", dist.Normal(in_doubles(X) @ w, 1.0), obs=y)

    rows = rows_of(1), rows_of(2)[:, 0]
    with pytest.raises(nv.UnsafeModelError, match=r"float64, in line .*enable_x64"):
        private_vi(model, engine=engine).explain(*rows)
    # The remedy.
    with jax.enable_x64(True):
        assert private_vi(model, engine=engine).explain(*rows).engine == engine


def test_constants_in_double_precision_are_of_jax_own_type() -> None:
    doubles = np.full(3, 2.0)
    check_row_program(jax.make_jaxpr(lambda x: x @ doubles + np.float64(1))(np.ones(3)))
