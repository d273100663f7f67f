"""Squares of binary latents: what repeats another statistic is not released."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _row_by_row import row_norm, solve_locals

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism
from numpyro_vips.vips.compile.compiler import compile_model
from numpyro_vips.vips.program.expectations import (
    expected,
    expected_natural_of,
    means_of,
)
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.bounded_sum import bounded_sum
from numpyro_vips.vips.row_sums.contributions import RowInputs
from numpyro_vips.vips.row_sums.released_blocks import with_repeats
from numpyro_vips.vips.steps.statistic_roles import block_of

SWEEPS = 4
FIXED = "fixed-curvature"


def logistic(y: Any) -> None:
    """A belief network, with the columns of W before those of c in the model."""
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([3, 5]).to_event(2))
    c = numpyro.sample("c", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.3 * jnp.ones(3)).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=z @ W + c).to_event(1), obs=y)


def additive(y: Any) -> None:
    """Binary factors with Gaussian noise: all outputs share Σ zzᵀ."""
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([5, 3]).to_event(2))
    c = numpyro.sample("c", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.3 * jnp.ones(3)).to_event(1))
        numpyro.sample("y", dist.Normal(z @ W.T + c, 0.5).to_event(1), obs=y)


def without_intercept(y: Any) -> None:
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([5, 3]).to_event(2))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.3 * jnp.ones(3)).to_event(1))
        numpyro.sample("y", dist.Normal(z @ W.T, 0.5).to_event(1), obs=y)


def levels(y: Any) -> None:
    """Units with three levels, 0, 1 and 2: z² is not z."""
    W = numpyro.sample("W", dist.Normal(0.0, 1.0).expand([5, 3]).to_event(2))
    c = numpyro.sample("c", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    with numpyro.plate("rows", y.shape[0]):
        unit: Any = dist.Categorical(jnp.ones((3, 3)) / 3)
        z = numpyro.sample("z", unit.to_event(1))
        mean = (z[..., None, :] * W).sum(-1) + c
        numpyro.sample("y", dist.Normal(mean, 0.5).to_event(1), obs=y)


def with_features(y: Any) -> None:
    """Each unit acts through a number of the row: x²z² is not xz."""
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    c = numpyro.sample("c", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        z = numpyro.sample("z", dist.Bernoulli(0.3 * jnp.ones(4)).to_event(1))
        mean = (z * y[:, :4] * w).sum(-1) + c
        numpyro.sample("y", dist.Normal(mean, 0.5), obs=y[:, 4])


def compiled(model: Any, augmentation: Any = "polya-gamma") -> ConjugateProgram:
    rng = np.random.default_rng(0)
    y = (rng.random((6, 5)) < 0.5).astype(np.float64)
    private = nv.private(model, unit="rows")
    arguments = bind_arguments(private, (y,), {}, num_rows=None)
    graph = build_graph(private, arguments)
    return compile_model(private, graph, augmentation=augmentation)


def diagonals(model: Any, augmentation: Any = "polya-gamma") -> dict[str, Any]:
    return {
        s.name: (s.diagonal.statistic, s.diagonal.factor)
        for s in compiled(model, augmentation).structure.statistics
        if s.diagonal is not None
    }


REPEATS = [
    (logistic, "polya-gamma"),
    (logistic, FIXED),
    (additive, "polya-gamma"),
]


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "augmentation"), REPEATS)
def test_the_diagonal_of_binary_units_is_that_of_the_intercept(
    model: Any, augmentation: str
):
    assert diagonals(model, augmentation) == {"⟨W W⟩": ("⟨W c⟩", 0.5)}


@pytest.mark.parametrize("model", [without_intercept, levels, with_features])
def test_other_diagonals_are_released(model: Any):
    assert diagonals(model) == {}


def moments_at_random(program: ConjugateProgram) -> Any:
    """Moments of Gaussian globals with means of either sign."""
    rng = np.random.default_rng(3)
    moments = {}
    for factor in program.structure.posterior_factors_of("global"):
        mean = 0.3 * rng.normal(size=factor.shape)
        square = mean[..., None] * mean[..., None, :] + 0.2 * np.eye(factor.shape[-1])
        moments[factor.name] = {"x": jnp.asarray(mean), "xx": jnp.asarray(square)}
    return moments


@pytest.mark.thorough
@pytest.mark.parametrize(("model", "augmentation"), REPEATS)
def test_sums_and_norms_are_those_of_the_matrix_without_its_diagonal(
    model: Any, augmentation: str, x64: None
):
    """Against each row's statistics, made in full."""
    program = compiled(model, augmentation)
    statistics = program.structure.statistics
    moments = moments_at_random(program)
    expected_natural, means = (
        expected_natural_of(program.structure, moments),
        means_of(program.structure, moments),
    )
    names = [s.name for s in statistics if s.release != "public"]

    def of_row(row: Any) -> Any:
        mine = solve_locals(program, expected_natural, row, SWEEPS)
        norm = row_norm(program, row, mine, {"⟨W W⟩": 1.0}, means)
        arrays, _ = program.row_constants.zero_if_invalid(row)
        terms = [term.filled(arrays) for term in program.row_terms]
        return norm, jax.grad(lambda n: expected(program.structure, terms, n, mine))(
            dict(expected_natural)
        )

    @jax.jit
    def found(rows: Any) -> Any:
        scales = dict.fromkeys(names, 1.0)
        mask = jnp.ones(len(rows["y"]), bool)
        inputs = RowInputs(expected_natural, means)
        sums = bounded_sum(program, inputs, rows, mask, scales, 1e9, SWEEPS)
        return sums, *jax.vmap(of_row)(rows)

    rng = np.random.default_rng(1)
    sums, norms, made = found({"y": jnp.asarray((rng.random((6, 5)) < 0.5) * 1.0)})
    repeated = next(s for s in statistics if s.diagonal is not None)
    assert repeated.matrix is not None and repeated.diagonal is not None
    order = [0, *(1 + i for part in repeated.matrix for i in part)]
    full = np.asarray(made[repeated.name]).transpose(order)
    full = 0.5 * (full + np.swapaxes(full, -1, -2))
    for matrices, other in zip(full, made["⟨W c⟩"], strict=True):
        diagonal = np.diagonal(matrices, axis1=-2, axis2=-1)
        np.testing.assert_allclose(repeated.diagonal.of(other), diagonal, rtol=1e-12)
    hollow = np.where(np.eye(3, dtype=bool), 0.0, full)
    np.testing.assert_allclose(sums["⟨W W⟩"], hollow.sum(0), rtol=1e-9, atol=1e-12)
    exact = np.sqrt((hollow**2).reshape(len(norms), -1).sum(1))
    np.testing.assert_allclose(norms, exact, rtol=1e-5)
    assert np.all(norms >= exact * (1 - 1e-12))
    whole = with_repeats(statistics, sums)["⟨W W⟩"]
    np.testing.assert_allclose(whole, full.sum(0), rtol=1e-9)


@pytest.mark.thorough
def test_a_row_with_one_unit_on_has_nothing_off_the_diagonal():
    """Where rounding is all that is left, in single precision, the norm is small."""
    program = compiled(logistic, FIXED)
    expected_natural = expected_natural_of(
        program.structure, moments_at_random(program)
    )
    certain = np.zeros((1, 3, 2), np.float32)
    certain[0, :, 0], certain[0, 1] = 1.0, (0.0, 1.0)

    @jax.jit
    def norm_of(row: Any) -> jax.Array:
        local = dict(solve_locals(program, expected_natural, row, SWEEPS))
        local["z"] = {"is": jnp.asarray(certain)}
        return row_norm(program, row, local, {"⟨W W⟩": 1.0})

    assert 0.0 <= norm_of({"y": jnp.ones(5)}) < 0.01 / 8.0  # 1/8 with the diagonal.


def test_noise_of_the_diagonal_is_that_of_the_statistic_which_it_repeats():
    statistics = compiled(logistic, FIXED).structure.statistics
    blocks = tuple(block_of(s) for s in statistics if s.release != "public")
    mechanism = GaussianMechanism(
        blocks=blocks,
        clipping_norm=1.0,
        noise_multiplier=2.0,
        relation="add_or_remove",
    )
    zeros = {block.name: np.zeros(block.shape) for block in blocks}
    noisy = mechanism.add_noise(zeros, np.random.default_rng(0))
    np.testing.assert_array_equal(np.diagonal(noisy["⟨W W⟩"]), np.zeros(3))
    whole = with_repeats(statistics, noisy)["⟨W W⟩"]
    np.testing.assert_allclose(np.diagonal(whole), noisy["⟨W c⟩"] / 2, rtol=1e-6)
    np.testing.assert_allclose(np.triu(whole, 1), np.triu(noisy["⟨W W⟩"], 1), rtol=1e-6)
    counted = {block.name: block.num_coordinates for block in blocks}
    assert counted["⟨W W⟩"] == counted["⟨W c⟩"] == 3


def test_blocks_are_in_the_box_that_their_factors_make():
    blocks = {s.name: block_of(s) for s in compiled(logistic).structure.statistics}
    for name, edges in {
        "⟨W W⟩": (-0.125, 0.0),
        "⟨W c⟩": (-0.25, 0.0),
        "⟨c c⟩": (-0.125, 0.0),
        "⟨W⟩": (-0.5, 0.5),
        "⟨c⟩": (-0.5, 0.5),
    }.items():
        assert blocks[name].geometry == "box"
        found = (blocks[name].lower, blocks[name].upper)
        assert found == pytest.approx(edges, rel=1e-4)
    signed = {s.name: block_of(s) for s in compiled(additive).structure.statistics}
    assert signed["⟨W⟩"].geometry == "signed"  # y is any number.
