"""How the blocks of a step are scaled against each other."""

import jax
import numpy as np
from _fits import vi_of
from _models import standard_regression

from numpyro_vips.fitting.bounds.block_scales import bounded_blocks
from numpyro_vips.privacy.gaussian_mechanism import Block


def test_noise_of_a_matrix_counts_by_what_it_does_to_coefficients() -> None:
    size, norms = 12, {"linear": 2.0, "matrix": 0.5}
    linear = Block(name="linear", shape=(size,))
    matrix = Block(name="matrix", shape=(size, size), symmetric=True, directions=size)

    def error(share: float) -> float:
        """Of the linear statistic, and of the matrix times a vector, in their norms."""
        scales = {"linear": share**0.5 / 2.0, "matrix": (1 - share) ** 0.5 / 0.5}
        return (
            size / (scales["linear"] * 2.0) ** 2 + size / (scales["matrix"] * 0.5) ** 2
        )

    blocks, norm = bounded_blocks(
        (linear, matrix), norms, relation="add_or_remove", is_one_vector=False
    )
    scales = {block.name: block.scale for block in blocks}
    share = (scales["linear"] * norms["linear"]) ** 2
    assert norm == 1.0
    np.testing.assert_allclose(share + (scales["matrix"] * 0.5) ** 2, 1.0)
    assert error(share) <= min(error(s) for s in np.linspace(0.05, 0.95, 91)) + 1e-9


def test_given_norms_bound_what_one_row_can_do() -> None:
    """Rows of any size move the scaled sums by the stated sensitivity at most."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 3)) * np.geomspace(1e-3, 1e3, 40)[:, None]
    y = rng.normal(size=40) * rng.permutation(np.geomspace(1e-3, 1e3, 40))
    given = {"⟨w⟩": 3.0, "⟨w w⟩": 0.7}
    vi = vi_of(standard_regression, clipping_norm=given)
    plan = vi._prepare_fit((X, y), {})[0]
    (step,) = plan.steps
    norm = step.clipping_norm
    assert norm is not None
    sensitivity = step.mechanism.sensitivity()
    scales = {block.name: block.scale for block in step.blocks}
    engine = plan.engine
    state = engine.initial_state(jax.random.key(0))

    def summed(count: int) -> np.ndarray:
        mask = np.arange(40) < count
        sums = engine.bounded_sum(
            state,
            {"X": X, "y": y},
            mask,
            scales=scales,
            clipping_norm=norm,
        )
        return np.concatenate([np.ravel(scales[b] * sums[b]) for b in sorted(scales)])

    moved = [np.linalg.norm(summed(i + 1) - summed(i)) for i in range(40)]
    assert max(moved) <= sensitivity * (1 + 1e-9)
    assert max(moved) >= norm * (1 - 1e-6)
