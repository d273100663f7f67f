"""Full-batch coordinate ascent on a compiled model, with its evidence lower bound.

What the engine does without noise, one sweep at a time and without privacy, so that
tests can look at the bound, at the moments and at draws from every factor.
"""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra import forms
from numpyro_vips.vips.e_step.coordinates import copies_array, divided_by_weight
from numpyro_vips.vips.e_step.e_step import local_factors
from numpyro_vips.vips.e_step.evidence_bound import entropy, row_bound
from numpyro_vips.vips.engine import VipsEngine
from numpyro_vips.vips.program.expectations import (
    MomentsByFactor,
    expected,
    expected_natural_of,
)
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.steps.state import VipsState

Row = Mapping[str, Any]


class FullBatch:
    """A model, all its rows, and a number of sweeps over the latents of a row."""

    def __init__(self, program: ConjugateProgram, rows: Row, local_sweeps: int):
        self.program = program
        self.rows = {name: jnp.asarray(value) for name, value in rows.items()}
        self.count = len(next(iter(self.rows.values())))
        self.local_sweeps = local_sweeps
        self.engine = VipsEngine(program, num_rows=self.count, local_steps=local_sweeps)
        self.released = {
            s.name: 1.0 for s in self.engine.statistics if s.release != "public"
        }

    def start(self, seed: int = 0) -> VipsState:
        return self.engine.initial_state(jax.random.key(seed))

    def sums(self, state: VipsState, chosen: Any = None) -> dict[str, np.ndarray]:
        """The exact sums of the statistics over the chosen rows."""
        mask = np.ones(self.count, bool) if chosen is None else np.asarray(chosen)
        found = self.engine.bounded_sum(
            state, self.rows, mask, scales=self.released, clipping_norm=math.inf
        )
        return {name: np.asarray(value) for name, value in found.items()}

    def step(self, state: VipsState) -> VipsState:
        """One E-step over all rows and the globals brought to convergence for it."""
        zero = dict.fromkeys(self.released, 0.0)
        return self.engine.update(state, self.sums(state), zero, 1.0)

    def bound(self, state: VipsState) -> float:
        """The evidence lower bound, at the optimal local factors."""
        return float(self._bound(state.moments, state.natural))

    @functools.cached_property
    def _bound(self) -> Any:
        def bound(moments: Any, natural: Any) -> jax.Array:
            expected_natural = expected_natural_of(self.program.structure, moments)

            def of_row(row: Row) -> jax.Array:
                return row_bound(self.program, expected_natural, row, self.local_sweeps)

            of_globals = _global_bound(self.program, moments, natural)
            return jax.vmap(of_row)(self.rows).sum() + of_globals

        return jax.jit(bound)

    # --- expectations and draws -------------------------------------------------------

    def local_factors(self, state: VipsState, row: Row) -> tuple[dict, dict]:
        """Moments and natural parameters of a row's factors, at convergence."""
        factors = local_factors(
            self.program, state.expected_natural, row, self.local_sweeps
        )
        moments = {name: mine for name, (mine, _) in factors.items()}
        return moments, {name: natural for name, (_, natural) in factors.items()}

    def expected_log_joint(self, state: VipsState) -> float:
        """E_q log p(rows, latents) where there is no augmentation.

        With one, its lower bound: the auxiliary variables' entropies are included.
        """
        program = self.program

        def of_row(row: Row) -> jax.Array:
            arrays, _ = program.row_constants.zero_if_invalid(row)
            terms = [term.filled(arrays) for term in program.row_terms]
            moments, natural = self.local_factors(state, row)
            total = expected(program.structure, terms, state.expected_natural, moments)
            for factor in program.structure.posterior_factors_of("local"):
                latents = program.structure.latents
                if latents[factor.latents[0]].family is not None:
                    total += entropy(
                        factor,
                        natural[factor.name],
                        moments[factor.name],
                        copies_array(factor, latents, arrays),
                    )
            return total

        total = jax.jit(jax.vmap(of_row))(self.rows).sum()
        # The state keeps them in double precision, as NumPy's.
        moments = jax.tree.map(jnp.asarray, state.moments)
        natural = jax.tree.map(jnp.asarray, state.natural)
        total += expected(program.structure, program.prior_terms, None, moments)
        for factor in program.structure.posterior_factors_of("global"):
            latent = program.structure.latents[factor.latents[0]]
            if latent.family is not None:
                assert latent.weight is not None
                weight = jnp.asarray(forms.constant_array(latent.weight))
                mine = natural[factor.name]
                total += entropy(
                    factor,
                    divided_by_weight(mine, weight, factor.family),
                    moments[factor.name],
                    weight,
                )
        return float(total)

    @property
    def is_augmented(self) -> bool:
        latents = self.program.structure.latents.values()
        return any(latent.family is not None for latent in latents)

    def draw(self, state: VipsState, seed: int, count: int) -> dict[str, jax.Array]:
        """Draws of every latent of the model from q, a leading axis of `count`.

        The posterior that a fit returns is wider where rows hide their latents.
        """
        key_globals, key_rows = jax.random.split(jax.random.key(seed))
        q = self.engine.on_globals.posterior_of(state.natural)
        drawn = q.sample(key_globals, (count,))
        keys = jax.random.split(key_rows, self.count)

        def of_row(row: Row, key: jax.Array) -> dict[str, jax.Array]:
            _, natural = self.local_factors(state, row)
            return self._draw_locals(natural, key, count)

        by_row = jax.jit(jax.vmap(of_row))(self.rows, keys)
        for name, value in by_row.items():
            site = self.program.graph.sites[name]
            assert site.row_axis is not None
            # One row at a time has an axis of length 1 where all rows have theirs.
            value = jnp.squeeze(value, site.row_axis + 2)
            drawn[name] = jnp.moveaxis(value, 0, site.row_axis + 1)
        return drawn

    def _draw_locals(
        self, natural: Mapping[str, Any], key: jax.Array, count: int
    ) -> dict[str, jax.Array]:
        drawn: dict[str, jax.Array] = {}
        factors = [
            factor
            for factor in self.program.structure.posterior_factors_of("local")
            if self.program.structure.latents[factor.latents[0]].family is None
        ]
        keys = jax.random.split(key, max(len(factors), 1))
        for factor, key in zip(factors, keys, strict=False):
            family, mine = factor.family, natural[factor.name]
            distribution = family.distribution(family.parameters(mine))
            draw = jnp.asarray(distribution.sample(key, (count,)))
            if factor.layout is not None:
                drawn.update(factor.layout.sites(draw, leading=1))
            elif len(factor.latents) > 1:
                drawn.update(
                    zip(factor.latents, jnp.moveaxis(draw, -1, 0), strict=True)
                )
            else:
                drawn[factor.name] = draw
        return drawn


def _global_bound(
    program: ConjugateProgram, moments: MomentsByFactor, natural: MomentsByFactor
) -> jax.Array:
    """The globals' part of the bound: E_q of their prior, plus entropies."""
    structure = program.structure
    total = expected(structure, program.prior_terms, None, moments)
    for factor in structure.posterior_factors_of("global"):
        weight = copies_array(factor, structure.latents, {})
        each = natural[factor.name]
        if weight is not None:
            each = divided_by_weight(each, weight, factor.family)
        total = total + entropy(factor, each, moments[factor.name], weight)
    return total
