"""Products of rows with what they share: right, and the same for any place of a row."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _watched_sums import watched_sums

import numpyro_vips as nv
from numpyro_vips.jax_tools.separate_rows import over_rows

RNG = np.random.default_rng(0)
SHARED = RNG.normal(size=(17, 3)).astype(np.float32)
ROWS = RNG.normal(size=(64, 17, 20)).astype(np.float32)
PRODUCTS: dict[str, Any] = {
    "shared on the left": lambda x: SHARED.T @ x,
    "shared on the right": lambda x: x.T @ SHARED,
    "of the row alone": lambda x: x.T @ x,
    "with a vector": lambda x: SHARED.T @ x[:, 0],
    "of two axes": lambda x: jnp.tensordot(
        np.stack([SHARED] * 20, 1), x, ((0, 1), (0, 1))
    ),
    "in a batch": lambda x: jnp.einsum("bij,bjk->bik", SHARED.T[None], x[None]),
    "in another precision": lambda x: jnp.matmul(SHARED.T, x, precision="highest"),
    "with a derivative": lambda x: jax.grad(lambda x: jnp.sum(jnp.tanh(SHARED.T @ x)))(
        x
    ),
    "in a loop": lambda x: jax.lax.map(lambda s: s @ x, jnp.stack([SHARED.T] * 2)),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_those_of_each_row(name: str) -> None:
    function = PRODUCTS[name]
    found = jax.jit(over_rows(lambda _, row: function(row)))((), ROWS)
    expected = np.stack([function(row) for row in ROWS])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.optimized
@pytest.mark.parametrize("is_double", [False, True])
@pytest.mark.parametrize(
    ("num_rows", "inner", "outer"), [(64, 109, 3), (128, 17, 17), (4096, 3, 3)]
)
def test_equal_rows_have_equal_products(
    num_rows: int, inner: int, outer: int, is_double: bool
) -> None:
    """One in five came out otherwise at these sizes."""
    with jax.enable_x64(is_double):
        left = jnp.asarray(RNG.normal(size=(outer, inner)), float)
        rows = np.repeat(RNG.normal(size=(1, inner, 20)), num_rows, axis=0)
        of_rows = jax.jit(over_rows(lambda _, row: left @ row))
        found = np.asarray(of_rows((), jnp.asarray(rows, float)))
    np.testing.assert_array_equal(found, np.repeat(found[:1], num_rows, axis=0))


@pytest.mark.optimized
@pytest.mark.filterwarnings("ignore")
def test_leaving_a_row_out_moves_a_sum_by_that_row_alone() -> None:
    """It moved one by 2.4 times the clipping norm: rows that cancelled where they had
    stood did not where they came to stand."""
    rng = np.random.default_rng(9)
    by = rng.normal(size=(3, 3)).astype(np.float32)
    matrix = rng.normal(size=(3, 20)).astype(np.float32)

    def value(x: Any) -> Any:
        return jnp.sum(by @ x)

    @nv.private(unit="rows")
    def model(X: Any, y: Any) -> None:
        mean: Any = numpyro.sample("mean", dist.Normal(0, 1))
        values = jax.vmap(value)(X)
        with numpyro.plate("rows", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1.0), obs=1e12 * (y - values))

    X = np.repeat(matrix[None], 4096, axis=0)
    y = np.asarray(jax.jit(jax.vmap(value))(X))
    with watched_sums() as found:
        for first in (0, 1):
            vi = nv.PrivateVI(
                model,
                budget=nv.PrivacyBudget(1.0, 1e-5),
                engine="dpvi",
                num_steps=1,
                clipping_norm=1.0,
                num_rows=4096,
                progress_bar=False,
                insecure_seed=0,
            )
            vi.run(jax.random.key(0), X[first:], y[first:])
    all_rows, others = (sums["loc"] for _, sums in found if "loc" in sums)
    assert abs(all_rows - others).item() <= 1.0
