"""Sigmoid belief networks: the general compiler against the paper's own updates."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import _sbn_reference as reference
import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _belief_network import BIAS_VARIANCE, WEIGHT_VARIANCE, belief_network
from _fits import fit_to, vi_of
from _full_batch import FullBatch
from _row_by_row import solve_locals
from scipy import special

import numpyro_vips as nv
import sigmoid_belief_network
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.vips.compile.compiler import compile_model
from numpyro_vips.vips.e_step.evidence_bound import row_bound
from numpyro_vips.vips.program.expectations import expected_natural_of
from numpyro_vips.vips.program.program import ConjugateProgram


def compiled(model: Any, *args: Any) -> ConjugateProgram:
    arguments = bind_arguments(model, args, {}, num_rows=None)
    return compile_model(model, build_graph(model, arguments), structure={})


def images(num_rows: int, num_pixels: int, num_units: int, seed: int) -> np.ndarray:
    """Draws from a belief network with strong weights."""
    rng = np.random.default_rng(seed)
    weights = rng.normal(scale=2.0, size=(num_pixels, num_units))
    z = rng.random((num_rows, num_units)) < 0.4
    logits = z @ weights.T + rng.normal(size=num_pixels)
    return (rng.random(logits.shape) < special.expit(logits)).astype(np.float64)


def as_reference(moments: Mapping[str, Mapping[str, Any]]) -> reference.Globals:
    """The package's moments in the reference's notation."""
    found = {k: {s: np.asarray(v) for s, v in m.items()} for k, m in moments.items()}
    scales: dict[str, Any] = {}
    if "zeta" in found:
        scales = {
            "zeta": found["zeta"]["x"],
            "inverse_zeta": found["zeta"]["1/x"],
            "xi": found["xi"]["x"],
            "phi": found["phi"]["x"],
            "omega": float(found["omega"]["x"]),
        }
    return reference.Globals(
        b_mean=found["b"]["x"].reshape(-1),
        b_square=found["b"]["xx"].reshape(-1),
        w_mean=found["c+W"]["x"],
        w_square=found["c+W"]["xx"],
        **scales,
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "prior", [pytest.param("gaussian", marks=pytest.mark.slow), "tpbn"]
)
def test_follows_the_papers_updates(prior: str, x64: None):
    y = images(40, 7, 3, seed=0)
    sweeps, rounds = 4, 5
    full = FullBatch(compiled(belief_network(3, prior), y), {"y": y}, sweeps)
    # Few sweeps: where both stop must be the same place, not a common limit.
    full.engine.on_globals.max_sweeps = 10
    state = full.start()
    q = as_reference(state.moments)

    @jax.jit
    def row_bounds(expected_natural: Any, y: jax.Array) -> jax.Array:
        return jax.vmap(
            lambda y: row_bound(full.program, expected_natural, {"y": y}, sweeps)
        )(y)

    for _ in range(rounds):
        rows = reference.e_step(y, q, sweeps)
        bounds = row_bounds(state.expected_natural, y)
        np.testing.assert_allclose(
            bounds, reference.row_bound(y, q, rows), rtol=1e-8, atol=1e-8
        )
        state = full.step(state)
        q = reference.m_step(
            y,
            rows,
            q,
            bias_variance=BIAS_VARIANCE,
            weight_variance=None if prior == "tpbn" else WEIGHT_VARIANCE,
            sweeps=10,
        )
    ours = as_reference(state.moments)
    for field in dataclasses.fields(reference.Globals):
        mine, theirs = getattr(ours, field.name), getattr(q, field.name)
        if theirs is not None:
            np.testing.assert_allclose(
                mine, theirs, rtol=1e-6, atol=1e-6, err_msg=field.name
            )


def random_globals(
    program: ConjugateProgram, key: jax.Array, scale: float
) -> dict[str, dict[str, jax.Array]]:
    """Moments of Gaussian factors with means of a given size."""
    moments = {}
    for factor in program.structure.posterior_factors_of("global"):
        key, subkey = jax.random.split(key)
        mean = scale * jax.random.normal(subkey, factor.shape)
        square = mean[..., None] * mean[..., None, :] + 0.1 * jnp.eye(factor.shape[-1])
        moments[factor.name] = {"x": mean, "xx": square}
    return moments


@pytest.mark.thorough
@pytest.mark.parametrize("scale", [3.0, pytest.param(10.0, marks=pytest.mark.slow)])
def test_bound_of_a_row_never_decreases(scale: float, x64: None):
    y = images(20, 8, 6, seed=1)
    program = compiled(belief_network(6, "gaussian"), y)
    expected_natural = expected_natural_of(
        program.structure, random_globals(program, jax.random.key(1), scale)
    )

    @jax.jit
    def row_bounds(sweeps: Any) -> jax.Array:
        of_row = functools.partial(row_bound, program, expected_natural, sweeps=sweeps)
        return jax.vmap(of_row)({"y": jnp.asarray(y)})

    bounds = [np.asarray(row_bounds(sweeps)) for sweeps in (1, 2, 3, 5, 9)]
    for before, after in itertools.pairwise(bounds):
        assert np.all(after >= before - 1e-9 * np.abs(before))
    # Large weights make units act on each other: more than one sweep is needed.
    if scale > 1.0:
        assert np.max(bounds[-1] - bounds[0]) > 0.1


# --- settings -------------------------------------------------------------------------


EVERY_BLOCK = ("⟨b⟩", "⟨c c⟩", "⟨c⟩", "⟨W c⟩", "⟨W⟩", "⟨W W⟩")


@pytest.mark.thorough
def test_statistics_are_scaled_by_the_norms_given():
    y = np.zeros((40, 4), np.float32)
    norms = {name: 1.0 + i for i, name in enumerate(EVERY_BLOCK)}
    settings: dict[str, Any] = {
        "budget": nv.PrivacyBudget(1.0, 1e-5),
        "num_steps": 3,
        "progress_bar": False,
    }
    model = belief_network(2, "gaussian")
    together = nv.VIPS(release_once=False)
    vi = nv.PrivateVI(model, clipping_norm=norms, engine=together, **settings)
    analysis, _ = vi._prepare_fit((y,), {})
    assert len(analysis.steps) == 3
    for step in analysis.steps:
        # Relative errors are alike, where what the noise moves is counted.
        squares = {b.name: (b.scale * norms[b.name]) ** 2 for b in step.blocks}
        roots = {b.name: math.sqrt(b.num_directions) for b in step.blocks}
        total = sum(roots.values())
        expected = {name: root / total for name, root in roots.items()}
        assert squares == pytest.approx(expected)
        assert step.clipping_norm == 1.0
    apart = nv.PrivateVI(model, clipping_norm=norms, **settings)._prepare_fit((y,), {})[
        0
    ]
    assert [len(step.blocks) for step in apart.steps] == [1, 5, 5, 5]
    del norms["⟨W⟩"]
    with pytest.raises(ValueError, match="⟨W⟩"):
        nv.PrivateVI(model, clipping_norm=norms, **settings).explain(y)
    with pytest.raises(ValueError, match="one number"):
        nv.PrivateVI(model_without_conjugacy, clipping_norm=norms, **settings).explain(
            y
        )


@nv.private(unit="rows")
def model_without_conjugacy(y):
    w: Any = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        location = jnp.broadcast_to(jnp.tanh(w), y.shape)
        numpyro.sample("y", dist.Normal(location, 1.0).to_event(1), obs=y)


@pytest.mark.slow
def test_example_reports_and_leaves_its_files(tmp_path: Path):
    options = ["--num-steps", "2", "--epsilon", "4", "--insecure-seed", "0"]
    with pytest.warns(UserWarning, match="insecure_seed"):
        report = sigmoid_belief_network.main([*options, *tiny(tmp_path)])
    assert 0.0 < report["epsilon"] <= 4.0
    assert 0.0 <= report["accuracy"] <= 1.0
    assert report["bound_per_pixel"] < 0.0
    assert (tmp_path / "belief_network.png").read_bytes().startswith(b"\x89PNG")
    idata: Any = az.from_netcdf(str(tmp_path / "posterior.nc"))
    assert idata.posterior["W"].shape[-2:] == (64, 3)
    assert "observed_data" not in list(idata)


@pytest.mark.slow
def test_paper_mode_of_the_example(tmp_path: Path):
    options = ["--paper", "100", *tiny(tmp_path)]
    private = sigmoid_belief_network.main(options)
    exact = sigmoid_belief_network.main([*options, "--sigma", "inf"])
    assert exact["epsilon"] == "inf"
    test = sigmoid_belief_network.load("digits").test
    # Better than the best image that is the same for all.
    assert exact["accuracy"] > np.maximum(test.mean(0), 1 - test.mean(0)).mean()
    assert exact["accuracy"] > private["accuracy"]
    # Steps of √7·σ, by the moments accountant.
    assert private["epsilon"] == pytest.approx(
        nv.accounting.epsilon(
            noise_multiplier=1.0,
            sampling_rate=100 / 1437,
            num_steps=14,
            delta=1e-4,
            sampling="without_replacement",
            accountant="moments",
        )
    )


def tiny(output: Path) -> list[str]:
    return [
        *("--num-units", "3", "--no-progress", "--num-draws", "2"),
        *("--output", str(output), "--test-seeds", "2"),
    ]


# --- other belief networks ------------------------------------------------------------


def two_layers(num_top: int, num_bottom: int) -> Any:
    @nv.private(unit="rows")
    def model(y):
        num_pixels = y.shape[1]
        a: Any = numpyro.sample(
            "a", dist.Normal(0.0, 2.0).expand([num_top]).to_event(1)
        )
        V: Any = numpyro.sample(
            "V", dist.Normal(0.0, 2.0).expand([num_bottom, num_top]).to_event(2)
        )
        b: Any = numpyro.sample(
            "b", dist.Normal(0.0, 2.0).expand([num_bottom]).to_event(1)
        )
        W: Any = numpyro.sample(
            "W", dist.Normal(0.0, 2.0).expand([num_pixels, num_bottom]).to_event(2)
        )
        c: Any = numpyro.sample(
            "c", dist.Normal(0.0, 2.0).expand([num_pixels]).to_event(1)
        )
        with numpyro.plate("rows", y.shape[0]):
            top: Any = numpyro.sample("top", dist.Bernoulli(logits=a).to_event(1))
            bottom: Any = numpyro.sample(
                "bottom", dist.Bernoulli(logits=top @ V.T + b).to_event(1)
            )
            numpyro.sample(
                "y", dist.Bernoulli(logits=bottom @ W.T + c).to_event(1), obs=y
            )

    return model


def states(count: int) -> np.ndarray:
    return np.array(list(itertools.product([0.0, 1.0], repeat=count)))


def log_bernoulli(logits: Any, value: np.ndarray) -> np.ndarray:
    return (value * logits - np.logaddexp(0.0, logits)).sum(-1)


def two_layer_evidence(y: np.ndarray, draw: Mapping[str, np.ndarray]) -> np.ndarray:
    """log p(row | globals), by summing over all states of both layers."""
    top, bottom = states(len(draw["a"])), states(len(draw["b"]))
    of_top = log_bernoulli(draw["a"], top)
    of_bottom = log_bernoulli(
        top[:, None] @ draw["V"].T + draw["b"],
        np.broadcast_to(bottom, (1, *bottom.shape)),
    )
    of_row = log_bernoulli(bottom @ draw["W"].T + draw["c"], y[:, None, :])
    prior: Any = special.logsumexp(of_top[:, None] + of_bottom, axis=0)
    return np.asarray(special.logsumexp(prior + of_row, axis=1))


@pytest.mark.slow
def test_two_layers_against_enumeration():
    rng = np.random.default_rng(3)
    num_rows = 400
    top = rng.random((num_rows, 1)) < 0.5
    bottom = rng.random((num_rows, 2)) < special.expit(6.0 * top - 3.0)
    weights = np.array([[4.0, 0.0], [4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 4.0]])
    logits = bottom @ weights.T - 2.0
    y = (rng.random(logits.shape) < special.expit(logits)).astype(np.float32)
    model = two_layers(1, 2)
    vi = vi_of(model, budget=math.inf, engine=nv.VIPS(local_steps=5), num_steps=30)
    result = vi.run(jax.random.key(0), y[:300])
    held_out = y[300:]
    draws = result.sample_posterior(jax.random.key(1), sample_shape=(50,))
    exact = np.mean(
        [
            two_layer_evidence(
                held_out, {k: np.asarray(v)[i] for k, v in draws.items()}
            )
            for i in range(50)
        ],
        axis=0,
    )
    bound = result.elbo(held_out)
    # E_q of the evidence is what the bound is a bound on; it is not far below.
    assert bound.mean() < exact.mean()
    assert exact.mean() - bound.mean() < 0.5
    share = y[:300].mean(0)
    independent = log_bernoulli(special.logit(share), held_out).mean()
    assert exact.mean() > independent + 0.3


def tree(num_states: int) -> Any:
    """A root with two children, each with one observed leaf, and tabular CPDs."""

    @nv.private(unit="rows")
    def model(y):
        pi: Any = numpyro.sample("pi", dist.Dirichlet(jnp.ones(num_states)))
        flat = jnp.ones((2, num_states, num_states))
        tables: Any = dist.Dirichlet(flat).to_event(2)
        leaves: Any = dist.Beta(jnp.ones((2, num_states)), 1.0).to_event(2)
        child: Any = numpyro.sample("child", tables)
        leaf: Any = numpyro.sample("leaf", leaves)
        with numpyro.plate("rows", y.shape[0]):
            root: Any = numpyro.sample("root", dist.CategoricalProbs(pi))
            left: Any = numpyro.sample("left", dist.CategoricalProbs(child[0][root]))
            right: Any = numpyro.sample("right", dist.CategoricalProbs(child[1][root]))
            numpyro.sample("y0", dist.Bernoulli(leaf[0][left]), obs=y[:, 0])
            numpyro.sample("y1", dist.Bernoulli(leaf[1][right]), obs=y[:, 1])

    return model


@pytest.mark.slow
def test_tree_of_discrete_latents_is_exact():
    rng = np.random.default_rng(4)
    root = rng.integers(2, size=300)
    y = (rng.random((300, 2)) < np.where(root, 0.9, 0.2)[:, None]).astype(np.int32)
    result = fit_to(tree(2), y, budget=math.inf, engine="vips", num_steps=5)
    parameters = {k: np.asarray(v, np.float64) for k, v in result.params.items()}

    def log_mean(concentration: np.ndarray) -> np.ndarray:
        total = concentration.sum(-1, keepdims=True)
        return special.digamma(concentration) - special.digamma(total)

    pi = log_mean(parameters["pi/concentration"])
    child = log_mean(parameters["child/concentration"])
    leaf = log_mean(
        np.stack(
            [parameters["leaf/concentration0"], parameters["leaf/concentration1"]], -1
        )
    )
    rows = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.int32)
    joint = np.zeros((4, 2, 2, 2))
    for n, r, i, j in np.ndindex(joint.shape):
        joint[n, r, i, j] = (
            pi[r]
            + child[0, r, i]
            + child[1, r, j]
            + leaf[0, i, rows[n, 0]]
            + leaf[1, j, rows[n, 1]]
        )
    evidence: Any = special.logsumexp(joint, axis=(1, 2, 3))
    np.testing.assert_allclose(result.elbo(rows), evidence, rtol=1e-4)
    posterior = np.exp(joint - evidence[:, None, None, None])
    found = result.local_posterior(rows)
    for axis, name in enumerate(("root", "left", "right"), start=1):
        others = tuple(other for other in (1, 2, 3) if other != axis)
        np.testing.assert_allclose(
            found[name].probs, posterior.sum(others), atol=1e-4, err_msg=name
        )


@pytest.mark.slow
def test_no_unit_is_dead_at_the_start():
    """At the first images every unit is on for some and off for others.

    A unit that is off for all of them tells the globals nothing and stays off. With the
    prior's uncertainty in the weights that is every unit.
    """
    num_units = 12
    y = images(60, 400, 4, seed=3)
    program = compiled(sigmoid_belief_network.belief_network(num_units), y)
    full = FullBatch(program, {"y": y}, 5)
    state = full.start()
    solve = functools.partial(solve_locals, program, state.expected_natural, sweeps=5)
    moments = jax.vmap(lambda y: solve({"y": y}))(jnp.asarray(y))
    on = np.asarray(moments["z"]["is"])[..., 1].reshape(60, num_units)
    in_use = (on.max(axis=0) > 0.5) & (on.min(axis=0) < 0.5)
    assert in_use.sum() >= num_units - 2
