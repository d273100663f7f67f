"""How far one image moves the sums of a belief network, found by search.

For every block alone and for the joint vector, under both logistic bounds and both
neighbouring relations: mutation and selection over globals and images look for the
largest change, which must come up to the stated sensitivity and never exceed it.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _belief_network import belief_network
from _coordinates import isometric_coordinates

import sigmoid_belief_network
from numpyro_vips.accounting import Relation
from numpyro_vips.jax_tools import row_sums
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.privacy.gaussian_mechanism import Block, GaussianMechanism
from numpyro_vips.vips.compile.compiler import compile_model
from numpyro_vips.vips.engine import VipsEngine
from numpyro_vips.vips.program.expectations import expected_natural_of, means_of
from numpyro_vips.vips.row_sums.bounded_sum import bounded_sum
from numpyro_vips.vips.row_sums.contributions import RowInputs

pytestmark = pytest.mark.optimized

PIXELS, UNITS, SWEEPS = 24, 12, 8
# Below the norm of most rows, so that clipping is what counts.
SMALL = 0.05
RELATIONS: tuple[Relation, ...] = ("add_or_remove", "replace_one")
BLOCKS = {
    "polya-gamma": ("⟨b⟩", "⟨c c⟩", "⟨c⟩", "⟨W c⟩", "⟨W⟩", "⟨W W⟩"),
    "fixed-curvature": ("⟨b⟩", "⟨c⟩", "⟨W c⟩", "⟨W⟩", "⟨W W⟩"),
}
# What the example uses with each bound: in paper mode, and in ours.
UNITS_OF_EXAMPLE = {
    "polya-gamma": sigmoid_belief_network.worst_norms(PIXELS, UNITS),
    "fixed-curvature": sigmoid_belief_network.clipping_norms(PIXELS, UNITS),
}
Search = tuple[str, tuple[str, ...], str, Relation]


class Contributions:
    """One row's clipped joint vector for many choices of globals and of the row."""

    def __init__(self, num_pixels: int, num_units: int, augmentation: str):
        y = np.zeros((3, num_pixels))
        model = belief_network(num_units, "gaussian")
        arguments = bind_arguments(model, (y,), {}, num_rows=None)
        graph = build_graph(model, arguments)
        self.shape = (num_pixels, num_units)
        self.program = compile_model(model, graph, augmentation=augmentation)
        engine = VipsEngine(self.program, num_rows=100, local_steps=SWEEPS)
        released = (*engine.blocks("once"), *engine.blocks("adaptive"))
        self.blocks = {block.name: block for block in released}

    @functools.cached_property
    def _sums(self) -> Any:
        def of_candidate(parameters: Any, y: Any, scales: Any, clipping: Any) -> Any:
            moments = self._moments(parameters)
            return bounded_sum(
                self.program,
                RowInputs(
                    expected_natural_of(self.program.structure, moments),
                    means_of(self.program.structure, moments),
                ),
                {"y": y[None]},
                jnp.ones(1, bool),
                scales,
                clipping,
                SWEEPS,
            )

        return jax.jit(jax.vmap(of_candidate, in_axes=(0, 0, None, None)))

    def _moments(self, parameters: Mapping[str, jax.Array]) -> Any:
        """Nearly certain globals with the given means."""
        tiny = 1e-6
        w, b = parameters["w"], parameters["b"][:, None]
        square = w[..., None] * w[..., None, :] + tiny * jnp.eye(w.shape[-1])
        return {
            "b": {"x": b, "xx": b[..., None] * b[..., None, :] + tiny},
            "c+W": {"x": w, "xx": square},
        }

    def vectors(
        self, parameters: Any, y: np.ndarray, blocks: tuple[Block, ...], clipping: float
    ) -> np.ndarray:
        """The joint vectors, one per candidate."""
        # A block with a scale of zero has no part in the norm.
        scales = dict.fromkeys(self.blocks, 0.0) | {b.name: b.scale for b in blocks}
        # Filled up to a vector, a sum of one row takes 64 times as long. How rows share
        # vectors is the subject of `test_rounding.py`.
        with mock.patch.object(row_sums, "ROW_ALIGNMENT", 1):
            sums = self._sums(parameters, jnp.asarray(y), scales, clipping)
        parts = [isometric_coordinates(b, np.asarray(sums[b.name])) for b in blocks]
        return np.concatenate(parts, axis=-1)

    def search(
        self,
        blocks: tuple[Block, ...],
        clipping: float,
        relation: Relation,
        enough: float,
        rounds: int = 60,
    ) -> float:
        """The largest change of the joint vector that mutation and selection find.

        A search that has found `enough` goes on for some rounds, to find too much.
        """
        rng = np.random.default_rng(0)
        w, b, first, second = _starts(*self.shape, rng)
        count = len(w)
        best = -np.inf
        for number in range(rounds):
            if best >= enough and number >= 12:
                break
            parameters = {"w": jnp.asarray(w), "b": jnp.asarray(b)}
            change = self.vectors(parameters, first, blocks, clipping)
            if relation == "replace_one":
                change = change - self.vectors(parameters, second, blocks, clipping)
            norms = np.linalg.norm(change, axis=1)
            best = max(best, float(norms.max()))
            order = np.argsort(-norms)[: count // 8]
            parents = np.concatenate([order, rng.choice(order, count - len(order))])
            w, b = w[parents], b[parents]
            first, second = first[parents], second[parents]
            fresh = slice(len(order), None)
            step = 30.0 * rng.random((count - len(order), 1)) ** 4
            w[fresh] += (
                step[..., None]
                * rng.normal(size=w[fresh].shape)
                * (rng.random(w[fresh].shape) < 0.3)
            )
            b[fresh] += step * rng.normal(size=b[fresh].shape)
            for image in (first, second):
                flip = rng.random(image[fresh].shape) < 0.1
                image[fresh] = np.where(flip, 1.0 - image[fresh], image[fresh])
        return best


def _starts(
    num_pixels: int, num_units: int, rng: np.random.Generator, count: int = 192
) -> tuple[np.ndarray, ...]:
    """Globals w (with c in front) and b, and two images, for each candidate.

    Most are random. In some, one image has all units on and every logit at zero, and
    the other no units and large logits; or they have different units on, none or one
    of them shared, which is no pair.
    """
    sizes = rng.choice([0.0, 1.0, 10.0, 60.0], size=(count, 3))
    w = rng.normal(size=(count, num_pixels, num_units + 1))
    w[..., 0] *= sizes[:, :1]
    w[..., 1:] *= sizes[:, 1:2, None]
    b = rng.normal(size=(count, num_units)) * sizes[:, 2:]
    first = (rng.random((count, num_pixels)) < 0.5).astype(float)
    left, middle, units = num_pixels // 2, num_units // 2, np.arange(num_units)
    for i, size in enumerate((1.0, 10.0, 60.0, 300.0)):
        flat, *apart = range(3 * i, 3 * i + 3)
        w[flat, :, 0], w[flat, :, 1:], b[flat] = size, -size / num_units, -size
        first[flat] = 0.0
        for shared, candidate in enumerate(apart):
            # On unless pixels that are off speak against it.
            w[candidate], b[candidate] = 0.0, 5.0 * size
            w[candidate, :left, 1:] = np.where(units < middle, size, 0.0)
            w[candidate, left:, 1:] = np.where(units >= middle + shared, size, 0.0)
            first[candidate, :left], first[candidate, left:] = 1.0, 0.0
    return w, b, first, 1.0 - first


@functools.cache
def contributions(augmentation: str) -> Contributions:
    return Contributions(PIXELS, UNITS, augmentation)


def stated_and_found(case: Search) -> tuple[float, float]:
    """The sensitivity of the mechanism, and the largest change that is found."""
    augmentation, names, units, relation = case
    this = contributions(augmentation)
    blocks = tuple(this.blocks[name] for name in names)
    clipping = SMALL
    if units == "example":
        # As the planner makes of norms by name.
        norms = UNITS_OF_EXAMPLE[augmentation]
        blocks = tuple(dataclasses.replace(b, scale=1 / norms[b.name]) for b in blocks)
        clipping = math.sqrt(len(blocks))
    mechanism = GaussianMechanism(
        blocks=blocks, clipping_norm=clipping, noise_multiplier=1.0, relation=relation
    )
    stated = mechanism.sensitivity()
    return stated, this.search(blocks, clipping, relation, enough=0.99 * stated)


JOINT_OF_PAPER: Search = (
    "polya-gamma",
    BLOCKS["polya-gamma"],
    "example",
    "replace_one",
)
RESIDUAL_OF_UNITS: Search = ("fixed-curvature", ("⟨b⟩",), "example", "replace_one")
CASES: list[Search] = [
    (augmentation, names, units, relation)
    for augmentation, every in BLOCKS.items()
    for names in (*((name,) for name in every), every)
    for units in ("small", "example")
    for relation in RELATIONS
]


@pytest.mark.quick_with("*W W*-small-replace_one")
@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case not in (JOINT_OF_PAPER, RESIDUAL_OF_UNITS)],
    ids=lambda case: f"{case[0]}-{'+'.join(case[1])}-{case[2]}-{case[3]}",
)
def test_sensitivity_is_attained_and_never_exceeded(case: Search, x64: None):
    stated, found = stated_and_found(case)
    assert found <= stated * (1 + 1e-9)
    assert found >= 0.95 * stated


def test_a_unit_of_one_image_and_of_another_differ_by_one_at_most(x64: None):
    """z - σ(b) with the same b for both: no two residuals of norm √K are opposite.

    That the residual lies between -σ(b) and 1 - σ(b) is a fact about the tangent, which
    the compiler does not know. Jointly the bound is attained all the same.
    """
    stated, found = stated_and_found(RESIDUAL_OF_UNITS)
    assert stated == pytest.approx(2.0)
    assert 0.95 <= found <= 1.0 + 1e-9


@pytest.mark.thorough
def test_blocks_of_the_paper_cannot_all_move_by_their_widths(x64: None):
    """⟨b⟩ asks for a unit that is on in one image alone, ⟨W⟩ for one on in both.

    In units of their widths, the squares of ⟨b⟩ and ⟨W⟩ change by (z - z')² and by
    (z + z')²/4 where the pixels are opposite, so together by 5/4 at most and not by 2.
    The bound takes each block alone.
    """
    stated, found = stated_and_found(JOINT_OF_PAPER)
    assert stated == pytest.approx(math.sqrt(6.0), rel=1e-4)
    # So the noise of paper mode is the paper's, √7 times σ.
    noise = sigmoid_belief_network.paper_noise_multiplier(1.5) * stated
    assert noise == pytest.approx(1.5 * math.sqrt(7.0), rel=1e-4)
    assert 0.95 * math.sqrt(5.25) <= found <= math.sqrt(5.25) * (1 + 1e-9)


@pytest.mark.thorough
def test_worst_norms_of_a_row_are_those_of_the_paper(x64: None):
    """Appendix 4, with the 1/2 of quadratic statistics: all units on, all weights 0."""
    num_pixels, num_units = 5, 3
    contributions = Contributions(num_pixels, num_units, "polya-gamma")
    J, K = num_pixels, num_units
    worst = {
        "⟨b⟩": math.sqrt(K) / 2,
        "⟨c⟩": math.sqrt(J) / 2,
        "⟨c c⟩": math.sqrt(J) / 8,
        "⟨W c⟩": math.sqrt(J * K) / 4,
        "⟨W⟩": math.sqrt(J * K) / 2,
        "⟨W W⟩": math.sqrt(J * K * (K - 1)) / 8,  # Its diagonal repeats ⟨W c⟩.
    }
    parameters = {"w": jnp.zeros((1, J, K + 1)), "b": jnp.full((1, K), 40.0)}
    for name, bound in worst.items():
        block = contributions.blocks[name]
        vector = contributions.vectors(parameters, np.ones((1, J)), (block,), 1e9)
        np.testing.assert_allclose(np.linalg.norm(vector), bound, rtol=1e-4)
        alone = GaussianMechanism(
            blocks=(block,),
            clipping_norm=1e9,
            noise_multiplier=1.0,
            relation="add_or_remove",
        )
        assert alone.sensitivity() == pytest.approx(bound, rel=1e-4)
    changes = sigmoid_belief_network.worst_norms(J, K)
    signed = ("⟨b⟩", "⟨c⟩", "⟨W⟩")
    assert changes == pytest.approx(
        {name: (2 if name in signed else 1) * bound for name, bound in worst.items()}
    )
