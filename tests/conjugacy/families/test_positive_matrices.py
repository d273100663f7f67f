"""Linear algebra of many matrices, of which LAPACK sees one at a time."""

from typing import Any

import _models
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from numpyro_vips.conjugacy.families import positive_matrices
from numpyro_vips.jax_tools.jaxprs import aval_of, equations_of
from numpyro_vips.vips.m_step.m_step import GlobalInputs, update_globals
from numpyro_vips.vips.m_step.starts import start
from numpyro_vips.vips.program.expectations import expected_natural_of
from numpyro_vips.vips.row_sums.bounded_sum import bounded_sum
from numpyro_vips.vips.row_sums.contributions import RowInputs

# One program each: by itself every operation would be compiled on its own.
inverse, log_det, eigh = map(
    jax.jit,
    (positive_matrices.inverse, positive_matrices.log_det, positive_matrices.eigh),
)

# The primitives that jaxlib gives to LAPACK.
LAPACK = {"cholesky", "triangular_solve", "lu", "eigh", "svd", "geqrf", "eig", "schur"}
SIZES = [1, 2, 5, 8, 9, 20, 75]


def matrices(size: int, batch: tuple[int, ...] = (3, 2), seed: int = 0) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(*batch, size, 2 * size))
    return root @ root.swapaxes(-1, -2) + 0.1 * np.eye(size)


def batches(function: Any, *arguments: Any) -> list[tuple[int, ...]]:
    """Shapes of the batches that LAPACK gets."""
    found = []
    for equation in equations_of(jax.make_jaxpr(function)(*arguments)):
        if equation.primitive.name in LAPACK:
            found.append(aval_of(equation.invars[0]).shape[:-2])
    return found


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("size", SIZES)
def test_values_agree_with_numpy(size: int) -> None:
    a = matrices(size)
    np.testing.assert_allclose(inverse(a), np.linalg.inv(a))
    np.testing.assert_allclose(log_det(a), np.linalg.slogdet(a)[1])
    values, vectors = map(np.asarray, eigh(a))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(a))
    rebuilt = (vectors * values[..., None, :]) @ vectors.swapaxes(-1, -2)
    np.testing.assert_allclose(rebuilt, a, atol=1e-10)
    one = a[0, 0]
    np.testing.assert_allclose(inverse(one), np.linalg.inv(one))


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("size", SIZES)
def test_derivatives_agree_with_jax(size: int) -> None:
    a, weights = matrices(size), matrices(size, seed=1)

    def slope(inverse: Any, log_det: Any) -> Any:
        return jax.jit(
            jax.grad(lambda a: (inverse(a) * weights).sum() + (log_det(a) ** 2).sum())
        )(a)

    expected = slope(jnp.linalg.inv, lambda a: jnp.linalg.slogdet(a)[1])
    found = slope(positive_matrices.inverse, positive_matrices.log_det)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("size", [3, 12, 40])
def test_what_is_not_positive_definite_gives_no_number(size: int) -> None:
    a = matrices(size)
    a[1, 0] *= -1.0
    a[2, 1] = 0.0
    valid = np.ones((3, 2), bool)
    valid[1, 0] = valid[2, 1] = False
    assert (np.isfinite(inverse(a)).all((-2, -1)) == valid).all()
    assert (np.isfinite(log_det(a)) == valid).all()


@pytest.mark.parametrize("size", [3, 12, 40])
def test_lapack_never_gets_a_batch(size: int) -> None:
    a = matrices(size, batch=(4, 3))

    def all_of_them(a: jax.Array) -> Any:
        return (
            positive_matrices.inverse(a),
            positive_matrices.log_det(a),
            positive_matrices.eigh(a),
        )

    for function in (
        all_of_them,
        jax.vmap(all_of_them),
        jax.vmap(jax.vmap(all_of_them)),
    ):
        found = batches(function, a)
        assert found
        assert set(found) == {()}
    # What this looks for can be found.
    assert (4, 3) in batches(jnp.linalg.inv, a)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["linear_regression", "factor_analysis"])
def test_compiled_models_give_lapack_no_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positive_matrices, "_TINY", 0)
    model = _models.MODELS[name]
    program = _models.uncertified(model.fn, model.rows())
    rows = program.graph.arguments.as_taken(program.graph.arguments.take(np.arange(12)))
    moments = start(program, jax.random.key(0)).moments
    expected_natural = expected_natural_of(program.structure, moments)
    sums = {s.name: jnp.zeros(s.block_shape) for s in program.structure.statistics}
    noise = dict.fromkeys(sums, jnp.ones(()))

    def e_step(rows: Any) -> Any:
        scales = dict.fromkeys(sums, 1.0)
        mask = jnp.ones(12, bool)
        return bounded_sum(
            program, RowInputs(expected_natural), rows, mask, scales, 1.0, sweeps=3
        )

    def m_step(sums: Any) -> Any:
        return update_globals(program, GlobalInputs(sums, noise, {}), moments)

    of_rows, of_globals = batches(e_step, rows), batches(m_step, sums)
    assert of_globals
    assert bool(of_rows) == (name == "factor_analysis")
    assert set(of_rows + of_globals) == {()}


# --- noisy matrices -------------------------------------------------------------------


def symmetric_noise(rng: np.random.Generator, size: int) -> np.ndarray:
    """As a mechanism adds it: of variance 1 on the diagonal and 1/2 elsewhere."""
    noise = rng.normal(size=(size, size))
    return (noise + noise.T) / 2


def deviations(size: int) -> np.ndarray:
    return np.where(np.eye(size, dtype=bool), 1.0, np.sqrt(0.5))


def cut_at_zero(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.maximum(values, 0)) @ vectors.T


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("spectrum", "most"),
    [
        # One direction that stands out, and many that are below the noise.
        (np.r_[200.0, np.full(59, 1.0)], 0.4),
        (np.geomspace(100.0, 0.1, 60), 0.95),
        # Far above the noise there is nothing to be gained.
        (np.linspace(1e3, 1e5, 60), 1.01),
        (np.array([3.0, 0.5, 0.1]), 1.0),
    ],
)
def test_denoised_matrices_are_nearer_than_those_cut_at_zero(
    spectrum: np.ndarray, most: float
):
    rng, size = np.random.default_rng(0), len(spectrum)
    errors = []
    for _ in range(10):
        axes = np.linalg.qr(rng.normal(size=(size, size)))[0]
        truth = (axes * spectrum) @ axes.T
        noisy = truth + symmetric_noise(rng, size)
        found = positive_matrices.denoised(
            jnp.asarray(noisy), jnp.asarray(deviations(size)), 0.0
        )
        assert np.linalg.eigvalsh(found).min() >= 0
        pair = (np.asarray(found), cut_at_zero(noisy))
        errors.append([np.sum((each - truth) ** 2) for each in pair])
    ours, cut = np.sqrt(np.mean(errors, axis=0))
    assert ours < most * cut


@pytest.mark.usefixtures("x64")
def test_denoised_matrices_keep_their_trace():
    rng = np.random.default_rng(1)
    noisy = 20 * np.eye(30) + symmetric_noise(rng, 30)
    found = positive_matrices.denoised(
        jnp.asarray(noisy), jnp.asarray(deviations(30)), 0.0
    )
    assert jnp.trace(found) == pytest.approx(np.trace(noisy), rel=1e-9)
    # The noise had driven the eigenvalues apart: all are 20.
    apart = np.ptp(np.linalg.eigvalsh(np.asarray(found)))
    assert apart < 0.3 * np.ptp(np.linalg.eigvalsh(noisy))


@pytest.mark.usefixtures("x64")
def test_blocks_with_little_noise_stay_beside_those_with_much():
    """As of two latents whose sums are released at different scales."""
    rng = np.random.default_rng(2)
    sizes = np.r_[np.ones(5), np.full(5, 1e-3)]
    units = np.outer(sizes, sizes)
    truth = np.diag(np.r_[np.full(5, 40.0), np.linspace(1e-4, 1e-3, 5)])
    noisy = truth + symmetric_noise(rng, 10) * units
    found = positive_matrices.denoised(
        jnp.asarray(noisy), jnp.asarray(deviations(10) * units), 0.0
    )
    small = np.asarray(found)[5:, 5:]
    np.testing.assert_allclose(small, truth[5:, 5:], atol=1e-5)


@pytest.mark.usefixtures("x64")
def test_matrices_without_noise_are_left_alone():
    matrices = np.stack([np.diag([1.0, -2.0]), np.diag([3.0, 1.0])])
    deviation = np.stack([np.zeros((2, 2)), deviations(2)])
    found = positive_matrices.denoised(jnp.asarray(matrices), jnp.asarray(deviation))
    np.testing.assert_array_equal(found[0], matrices[0])
    assert (np.asarray(found[1]) != matrices[1]).any()


def test_coordinates_without_noise_get_no_room_for_it():
    """The mean of effects, of which rows say nothing, keeps its prior alone."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(3, 3))
    matrix = np.diag([50.0, 60.0, 70.0, 0.0])
    matrix[:3, :3] += noise + noise.T
    deviation = np.zeros((4, 4))
    deviation[:3, :3] = np.where(np.eye(3) > 0, 2.0, np.sqrt(2.0))
    found = np.asarray(
        positive_matrices.denoised(jnp.asarray(matrix), jnp.asarray(deviation))
    )
    np.testing.assert_allclose(found[3], 0.0, atol=1e-3)
    assert (np.diag(found)[:3] > 45.0).all()


@pytest.mark.thorough
def test_a_coordinate_with_noise_beside_the_diagonal_alone_leaves_it_positive():
    """A mean beside effects: its own square is a public count, its products are not."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        noise = 2.0 * rng.normal(size=(5, 5))
        noise[0, 0] = 0.0
        matrix = np.diag([10.0, 2.0, 2.0, 2.0, 2.0])
        matrix[0, 1:] = matrix[1:, 0] = 2.0
        matrix += noise + noise.T
        deviation = np.full((5, 5), 2.0 * np.sqrt(2.0))
        deviation[np.diag_indices(5)] = 4.0
        deviation[0, 0] = 0.0
        found = np.asarray(
            positive_matrices.denoised(jnp.asarray(matrix), jnp.asarray(deviation))
        )
        assert (np.linalg.eigvalsh(found) > -1e-4).all()


@pytest.mark.usefixtures("x64")
def test_a_public_square_is_in_the_unit_that_its_products_have():
    """An intercept beside raw ages: what ages hide does not hide it."""
    rng = np.random.default_rng(0)
    deviation = deviations(2) * np.outer([1.0, 50.0], [1.0, 50.0])
    deviation[0, 0] = 0.0
    truth = 200.0 * np.array([[1.0, 50.0], [50.0, 2_900.0]])
    noise = symmetric_noise(rng, 2) * np.outer([1.0, 50.0], [1.0, 50.0])
    noise[0, 0] = 0.0
    found = positive_matrices.denoised(
        jnp.asarray(truth + noise), jnp.asarray(deviation)
    )
    # Of the direction in which the intercept makes up for the ages.
    across = np.array([1.0, -1.0 / 50.0])
    kept = across @ np.asarray(found) @ across
    assert 0.8 < kept / (across @ truth @ across) < 1.2


def test_noise_along_directions_is_what_noisy_matrices_have():
    rng = np.random.default_rng(1)
    deviation = deviations(4) * np.outer([1.0, 2.0, 0.5, 3.0], [1.0, 2.0, 0.5, 3.0])
    deviation[0, 0] = 0.0
    vectors = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    upper = np.triu(rng.normal(size=(100_000, 4, 4)))
    noise = (upper + np.triu(upper, 1).transpose(0, 2, 1)) * deviation
    drawn = np.einsum("ik,nij,jk->nk", vectors, noise, vectors).std(0)
    found = positive_matrices.noise_along(jnp.asarray(vectors), jnp.asarray(deviation))
    np.testing.assert_allclose(found, drawn, rtol=0.02)


def test_axes_of_noisy_matrices_are_in_the_units_of_their_noise() -> None:
    """And what is expected along them has the noise that they say."""
    rng, units = np.random.default_rng(0), np.array([1.0, 100.0, 1e-3])
    matrix = np.diag([5.0, 4e4, 3e-6]) + 0.2 * np.outer(units, units)
    deviation = 0.01 * np.outer(units, units) * np.where(np.eye(3) > 0, 1.0, 0.5**0.5)
    noise = rng.normal(size=(2000, 3, 3)) * 0.01 * np.outer(units, units)
    noisy = matrix + 0.5 * (noise + noise.swapaxes(-1, -2))
    axes = positive_matrices.along_axes(
        jnp.asarray(noisy), jnp.broadcast_to(jnp.asarray(deviation), noisy.shape)
    )
    basis, inverse = np.asarray(axes.basis, float), np.asarray(axes.inverse, float)
    np.testing.assert_allclose(inverse @ basis, np.eye(3) + 0 * noisy, atol=1e-4)
    along = basis.swapaxes(-1, -2) @ noisy @ basis
    read = np.diagonal(along, axis1=-2, axis2=-1)
    assert np.abs(along - read[..., None] * np.eye(3)).max() < 1e-4 * read.max()
    # Along the first matrix' axes the noise of all of them is what it says.
    of_noise = np.einsum("ik,nij,jk->nk", basis[0], noisy - matrix, basis[0])
    np.testing.assert_allclose(of_noise.std(0), axes.noise_stddev[0], rtol=0.08)


def test_axes_that_noise_has_made_are_expected_to_read_less() -> None:
    noise = np.random.default_rng(1).normal(size=(500, 6, 6))
    noise = 0.5 * (noise + noise.swapaxes(-1, -2))
    deviation = np.where(np.eye(6) > 0, 1.0, 0.5**0.5) + 0 * noise
    axes = positive_matrices.along_axes(jnp.asarray(noise), jnp.asarray(deviation))
    largest = np.linalg.eigvalsh(noise)[:, -1].mean()
    assert abs(np.asarray(axes.values)[:, -1].mean()) < 0.5 * largest
