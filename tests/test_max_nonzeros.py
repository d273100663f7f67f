"""A program that works on the entries of a row is the one that works on whole rows.

Statistics, norms, sensitivities, bounds and posteriors are compared between both on the
same rows, and, for a topic model, with documents that are written as words and counts.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.sparse as sp
from _dpvi_engines import engine_of_graph
from _fits import fit_to, vi_of
from _models import away_from_prior
from _row_by_row import row_norm, solve_locals
from numpyro.handlers import mask, scale

import numpyro_vips as nv
from numpyro_vips.conjugacy.interpreter import entries
from numpyro_vips.dpvi.guides.posteriors import NoiseAwarePosterior
from numpyro_vips.fitting import private_step
from numpyro_vips.model.arguments import ModelArguments, bind_arguments
from numpyro_vips.model.graph import build_graph
from numpyro_vips.vips.compile.compiler import compile_model
from numpyro_vips.vips.e_step.evidence_bound import row_bound
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.row_sums.bounded_sum import bounded_sum
from numpyro_vips.vips.row_sums.contributions import RowInputs

UNIT = "rows"
LENGTH, WIDTH, TOPICS, COUNT = 11, 5, 3, 12
SWEEPS = 4

Rows = tuple[Any, ...]


def counts(rng: np.random.Generator, shape: tuple[int, ...] = (COUNT,)) -> np.ndarray:
    """Counts of which at most `WIDTH` are not zero, in some rows none."""
    array = np.zeros((*shape, LENGTH))
    for row in array.reshape(-1, LENGTH):
        used = rng.integers(0, WIDTH + 1)
        row[rng.choice(LENGTH, used, replace=False)] = rng.integers(1, 5, used)
    return array


def features(rng: np.random.Generator) -> np.ndarray:
    return counts(rng) * rng.normal(size=(COUNT, LENGTH))


@dataclasses.dataclass(frozen=True)
class Model:
    fn: Callable[..., None]
    make_rows: Callable[[np.random.Generator], Rows]

    def rows(self) -> Rows:
        return self.make_rows(np.random.default_rng(1))


MODELS: dict[str, Model] = {}


def model(make_rows: Callable[[np.random.Generator], Rows]) -> Any:
    def register(fn: Callable[..., None]) -> Callable[..., None]:
        MODELS[fn.__name__] = Model(fn, make_rows)
        return fn

    return register


def _topics_and_shares(num_rows: int, **options: Any) -> Any:
    with numpyro.plate("topics", TOPICS):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.full(LENGTH, 0.5)))
    with numpyro.plate(UNIT, num_rows, **options):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(TOPICS, 0.7)))
    return theta @ beta


@model(lambda rng: (counts(rng),))
def multinomial(x: Any) -> None:
    probs = _topics_and_shares(x.shape[0])
    with numpyro.plate(UNIT, x.shape[0]):
        total = x.sum(-1).astype(int)
        numpyro.sample("x", dist.Multinomial(total, probs), obs=x)


@model(lambda rng: (counts(rng, (COUNT, 4)).astype(int),))
def several_bags_of_a_row(x: Any) -> None:
    probs = _topics_and_shares(x.shape[0], dim=-2)
    with numpyro.plate(UNIT, x.shape[0], dim=-2), numpyro.plate("bags", 4, dim=-1):
        numpyro.sample("x", dist.Multinomial(x.sum(-1), probs), obs=x)


@model(lambda rng: (counts(rng),))
def masked_and_scaled_poissons(x: Any) -> None:
    with numpyro.plate("topics", TOPICS):
        b = numpyro.sample("b", dist.Gamma(0.5, 1.0).expand([LENGTH]).to_event(1))
    with numpyro.plate(UNIT, x.shape[0], dim=-2):
        shares = dist.Gamma(0.7, 1.0).expand([TOPICS]).to_event(1)
        theta = numpyro.sample("theta", shares)
        seen, times = jnp.arange(LENGTH) % 3 > 0, jnp.arange(1.0, LENGTH + 1)
        with (
            numpyro.plate("words", LENGTH, dim=-1),
            scale(scale=times),
            mask(mask=seen),
        ):
            numpyro.sample("x", dist.Poisson((theta @ b)[:, 0]), obs=x)


@model(lambda rng: (counts(rng),))
def naive_bayes(x: Any) -> None:
    pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(TOPICS)))
    with numpyro.plate("classes", TOPICS):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0).expand([LENGTH]).to_event(1))
    with numpyro.plate(UNIT, x.shape[0]):
        z = numpyro.sample("z", dist.Categorical(pi), infer={"enumerate": "parallel"})
        numpyro.sample("x", dist.Bernoulli(p[z]).to_event(1), obs=(x > 0) * 1.0)


@model(lambda rng: (features(rng), rng.normal(size=COUNT)))
def linear_regression(x: Any, y: Any) -> None:
    tau = numpyro.sample("tau", dist.Gamma(1.0, 1.0))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([LENGTH]).to_event(1))
    with numpyro.plate(UNIT, x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w + 0.3, 1 / jnp.sqrt(tau)), obs=y)


@model(lambda rng: (features(rng), (rng.random(COUNT) < 0.5) * 1.0))
def logistic_regression_on_functions(x: Any, y: Any) -> None:
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([LENGTH]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0.0, 3.0))
    bent = jnp.where(x > 0, jnp.sqrt(jnp.abs(x)), jnp.sin(x) - 2 * x**2)
    with numpyro.plate(UNIT, x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=bent @ w + b), obs=y)


@model(lambda rng: (counts(rng),))
def used_in_other_ways(x: Any) -> None:
    lam = numpyro.sample("lam", dist.Gamma(1.0, 1.0))
    probs = _topics_and_shares(x.shape[0])
    with numpyro.plate(UNIT, x.shape[0]):
        numpyro.sample("x", dist.Multinomial(x.sum(-1).astype(int), probs), obs=x)
        numpyro.sample("used", dist.Poisson(lam), obs=(x > 0).sum(-1))
        numpyro.sample("most", dist.Poisson(lam), obs=x.max(-1))
        numpyro.sample("third", dist.Poisson(lam), obs=x[:, 2])


def arguments_of(fn: Any, rows: Rows, width: int | None) -> ModelArguments:
    first = "x"
    declared = None if width is None else {first: width}
    marked = nv.private(fn, unit=UNIT)
    return bind_arguments(marked, rows, {}, max_nonzeros=declared)


def compiled(fn: Any, rows: Rows, width: int | None) -> ConjugateProgram:
    marked = nv.private(fn, unit=UNIT)
    graph = build_graph(marked, arguments_of(fn, rows, width))
    return compile_model(marked, graph)


class Setup:
    """A program, the rows in the form that it takes, and some globals."""

    def __init__(self, fn: Any, rows: Rows, width: int | None):
        self.program = compiled(fn, rows, width)
        arguments = self.program.graph.arguments
        self.rows = jax.tree.map(jnp.asarray, arguments.take(np.arange(len(rows[0]))))
        self.expected_natural, self.scales = away_from_prior(self.program)

    def norms_and_bounds(self) -> tuple[np.ndarray, np.ndarray]:
        def of_row(row: Any) -> Any:
            mine = solve_locals(self.program, self.expected_natural, row, SWEEPS)
            norm = row_norm(self.program, row, mine, self.scales)
            return norm, row_bound(self.program, self.expected_natural, row, SWEEPS)

        norms, bounds = jax.jit(jax.vmap(of_row))(self.rows)
        return np.asarray(norms), np.asarray(bounds)

    def bounded_sum(self, rows: Any, mask: Any, norm: float) -> dict[str, np.ndarray]:
        if not hasattr(self, "_sum"):
            self._sum = jax.jit(
                lambda rows, mask, norm: bounded_sum(
                    self.program,
                    RowInputs(self.expected_natural),
                    rows,
                    mask,
                    self.scales,
                    norm,
                    SWEEPS,
                )
            )
        found = self._sum(rows, jnp.asarray(mask), norm)
        return {name: np.asarray(found[name]) for name in self.scales}

    def joint_norm(self, statistics: dict[str, np.ndarray]) -> float:
        scaled = [self.scales[k] * np.ravel(v) for k, v in statistics.items()]
        return float(np.linalg.norm(np.concatenate(scaled)))


@pytest.mark.optimized
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("several_bags_of_a_row", marks=pytest.mark.slow),
        pytest.param("naive_bayes", marks=pytest.mark.slow),
        pytest.param("logistic_regression_on_functions", marks=pytest.mark.slow),
        pytest.param("masked_and_scaled_poissons", marks=pytest.mark.slow),
        pytest.param("linear_regression", marks=pytest.mark.slow),
        pytest.param("used_in_other_ways", marks=pytest.mark.slow),
    ],
)
def test_statistics_norms_and_bounds_are_those_of_whole_rows(name: str) -> None:
    fn, rows = MODELS[name].fn, MODELS[name].rows()
    by_entries, by_rows = Setup(fn, rows, WIDTH), Setup(fn, rows, None)
    assert not by_entries.program.dense
    for found, expected in zip(
        by_entries.program.structure.statistics,
        by_rows.program.structure.statistics,
        strict=True,
    ):
        # Also what it says of the sensitivity. A box may be larger: 1 - y, written as
        # one less y where there are entries, is no product of numbers of one sign.
        assert found.lower <= expected.lower <= expected.upper <= found.upper
        box = {"lower": expected.lower, "upper": expected.upper}
        assert dataclasses.replace(found, **box) == expected
    norms, bounds = by_entries.norms_and_bounds()
    expected_norms, expected_bounds = by_rows.norms_and_bounds()
    np.testing.assert_allclose(norms, expected_norms, rtol=1e-9)
    np.testing.assert_allclose(bounds, expected_bounds, rtol=1e-9)
    everyone = np.ones(COUNT, bool)
    for norm in (float(np.median(norms)), math.inf):
        found = by_entries.bounded_sum(by_entries.rows, everyone, norm)
        expected = by_rows.bounded_sum(by_rows.rows, everyone, norm)
        for block, value in expected.items():
            np.testing.assert_allclose(found[block], value, rtol=1e-9, atol=1e-9)


@pytest.mark.thorough
def test_it_is_said_for_what_a_row_is_written_out() -> None:
    def written_out(name: str) -> Any:
        fn, rows = MODELS[name].fn, MODELS[name].rows()
        return compiled(fn, rows, WIDTH).densified["x"]

    assert written_out("multinomial") == ()
    assert written_out("used_in_other_ways") == ("'slice'",)


# What an adversary may put in a row: finite, huge, not finite, outside the support.
EXTREMES = (0.0, 1.0, -1.0, 0.5, 3e2, -1e6, 1e12, 3e38, np.nan, np.inf, -np.inf)


@pytest.mark.optimized
@pytest.mark.parametrize(
    "name", [pytest.param("multinomial", marks=pytest.mark.slow), "linear_regression"]
)
def test_no_row_changes_the_sum_by_more_than_the_clipping_norm(name: str) -> None:
    """Whatever the row holds, and also where it has more entries than are kept."""
    rng = np.random.default_rng(5)
    plain = MODELS[name].rows()
    rows = tuple(np.concatenate([array] * 4).astype(np.float32) for array in plain)
    extreme = rng.choice(EXTREMES, rows[0].shape).astype(np.float32)
    often = rng.choice([0.0, 0.1, 0.5, 1.0], len(rows[0]))[:, None]
    hostile = np.where(rng.random(rows[0].shape) < often, extreme, rows[0])
    number = len(rows[0])
    this = Setup(MODELS[name].fn, (hostile, *rows[1:]), WIDTH)
    norm, changes = 0.45, []
    for row in range(number):
        change = this.bounded_sum(this.rows, np.arange(number) == row, norm)
        changes.append(this.joint_norm(change))
    assert np.all(np.isfinite(changes))
    assert max(changes) <= norm * (1 + 1e-9)
    assert max(changes) >= 0.95 * norm
    # Rows that are not finite or hold no counts count as zero.
    kept = np.asarray(this.rows["x"].values)
    illegal = ~np.isfinite(kept).all(1)
    if name == "multinomial":
        illegal |= (kept < 0).any(1)
    assert 3 < illegal.sum() < number
    np.testing.assert_array_equal(np.asarray(changes)[illegal], 0.0)
    everyone = this.bounded_sum(this.rows, np.ones(number, bool), norm)
    for left_out in range(0, number, 7):
        others = this.bounded_sum(this.rows, np.arange(number) != left_out, norm)
        change = {block: everyone[block] - others[block] for block in everyone}
        assert this.joint_norm(change) <= norm * (1 + 1e-9)


# --- the whole way --------------------------------------------------------------------


def hostile_matrix(dtype: Any) -> sp.csr_matrix:
    """Columns in any order, repeated or out of range, with numbers of every size."""
    rng, count = np.random.default_rng(0), 64
    lengths = rng.integers(0, LENGTH + 6, count)
    stored = int(lengths.sum())
    numbers = rng.choice([0, 1, 2, 5], stored).astype(dtype)
    wild = (
        [1e38, -1e38, 1e-38, -0.0, np.nan, np.inf, -np.inf, -1.0]
        if np.dtype(dtype).kind == "f"
        else [np.iinfo(dtype).max, np.iinfo(dtype).min, 65536, 46341, -1]
    )
    some = rng.random(stored) < 0.2
    numbers[some] = np.asarray(wild, dtype)[rng.integers(0, len(wild), some.sum())]
    found = sp.csr_matrix((count, LENGTH), dtype=dtype)
    # Past the checks that SciPy makes of its arguments.
    found.data = numbers
    found.indices = rng.integers(-2, LENGTH + 3, stored).astype(np.int32)
    found.indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return found


def poissons(x: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0).expand([LENGTH]).to_event(1))
    with numpyro.plate(UNIT, x.shape[0]):
        numpyro.sample("x", dist.Poisson(rate).to_event(1), obs=x)


@pytest.mark.optimized
@pytest.mark.thorough
@pytest.mark.parametrize("width", [None, {"x": WIDTH}])
@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize("engine", ["vips", "dpvi"])
def test_rows_of_a_hostile_matrix_are_clipped_in_every_release(
    engine: str, dtype: Any, width: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in histograms, pilots and the release for intervals."""
    chunk_sum, norms = private_step._chunk_sum, []

    def watched(engine: Any, step: Any, state: Any, rows: Any, mask: Any, keys: Any):
        for place in np.flatnonzero(mask):
            alone = np.arange(len(mask)) == place
            found = chunk_sum(engine, step, state, rows, alone, keys)
            mechanism = step.mechanism
            joint = [b.scale * np.ravel(found[b.name]) for b in mechanism.blocks]
            norm = np.linalg.norm(np.concatenate(joint)) / mechanism.clipping_norm
            norms.append(norm)
        return chunk_sum(engine, step, state, rows, mask, keys)

    monkeypatch.setattr(private_step, "_chunk_sum", watched)
    with warnings.catch_warnings(action="ignore"):
        fit_to(
            poissons,
            hostile_matrix(dtype),
            engine=engine,
            budget=20.0,
            num_steps=2,
            max_nonzeros=width,
        )
    assert len(norms) >= 2 * 64
    assert 0.99 <= max(norms) <= 1.0


def words_and_counts(ids: Any, counts: Any) -> None:
    with numpyro.plate("topics", TOPICS):
        beta = numpyro.sample("beta", dist.Dirichlet(jnp.full(LENGTH, 0.5)))
    with numpyro.plate(UNIT, ids.shape[0], dim=-2):
        theta = numpyro.sample("theta", dist.Dirichlet(jnp.full(TOPICS, 0.7)))
        with (
            numpyro.plate("words", ids.shape[1], dim=-1),
            mask(mask=counts > 0),
            scale(scale=jnp.maximum(counts, 1.0)),
        ):
            z = numpyro.sample(
                "z", dist.Categorical(theta), infer={"enumerate": "parallel"}
            )
            numpyro.sample("w", dist.Categorical(beta[z]), obs=ids)


OPTIONS: dict[str, Any] = {
    "engine": nv.VIPS(local_steps=9),
    "num_steps": 3,
    "progress_bar": False,
}


def fitted(fn: Any, rows: Rows, **options: Any) -> np.ndarray:
    vi = vi_of(fn, budget=math.inf, **OPTIONS, **options)
    counted = vi.run(jax.random.key(0), *rows).params["beta/concentration"] - 0.5
    # Shares: how much counts are worth is known only where rows can be simulated.
    return np.asarray(counted / counted.sum(-1, keepdims=True))


@pytest.mark.slow
def test_every_spelling_of_topics_counts_the_same_words() -> None:
    """Also with rows that have more words than are kept."""
    rng = np.random.default_rng(2)
    x = counts(rng, (40,)).astype(int)
    x[:5] = rng.permuted(np.tile(np.arange(1, LENGTH + 1), (5, 1)), axis=1)
    kept = np.zeros_like(x)
    ids = np.argsort(-x, axis=1, kind="stable")[:, :WIDTH]
    values = np.take_along_axis(x, ids, 1)
    np.put_along_axis(kept, ids, values, 1)
    kept, x = kept.astype(np.float32), x.astype(np.float32)
    expected = fitted(words_and_counts, (ids, values.astype(np.float32)))
    fn = MODELS["multinomial"].fn
    for found in (
        fitted(fn, (kept,)),
        fitted(fn, (x,), max_nonzeros={"x": WIDTH}),
        fitted(fn, (sp.csr_matrix(x),), max_nonzeros=WIDTH),
        fitted(fn, (sp.csr_array(kept),), max_nonzeros=WIDTH),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    assert not np.allclose(fitted(fn, (x,)), expected, rtol=0.05)


@pytest.mark.thorough
def test_the_bound_of_visible_rows_leaves_nothing_out() -> None:
    """It is that of whole rows, also of some that a fit would cut."""
    x = MODELS["multinomial"].rows()[0].astype(np.float32)
    marked = nv.private(MODELS["multinomial"].fn, unit=UNIT)
    result = fit_to(marked, x, budget=math.inf, max_nonzeros=1, **OPTIONS)
    shown = np.concatenate([x, np.full((1, LENGTH), 3, np.float32)])
    whole = dataclasses.replace(
        result, settings={**result.settings, "max_nonzeros": {}}
    )
    for rows in (x, sp.csr_matrix(x), shown):
        expected = whole.elbo(rows)
        np.testing.assert_allclose(result.elbo(rows), expected, rtol=1e-5, atol=1e-4)
    assert result.local_posterior(x)["theta"].batch_shape == (COUNT,)


@pytest.mark.thorough
def test_the_plan_and_the_statement_tell_the_width() -> None:
    x = MODELS["multinomial"].rows()[0].astype(np.float32)
    marked = nv.private(MODELS["multinomial"].fn, unit=UNIT)
    vi = vi_of(marked, max_nonzeros=WIDTH, clipping_norm=2.0, **OPTIONS)
    plan = vi.explain(x)
    assert plan.engine == "vips"
    (note,) = plan.notes
    assert "'x' the 5 largest entries" in note
    assert note.endswith("all the work is done on them.")
    result = vi.run(jax.random.key(0), x)
    assert "at most 5 entries of a row of 'x'" in str(result.privacy)
    assert result.settings["max_nonzeros"] == {"x": WIDTH}


def tokens(x: Any) -> None:
    probs = numpyro.sample("probs", dist.Dirichlet(jnp.ones(5)))
    with numpyro.plate(UNIT, x.shape[0], dim=-2), numpyro.plate("words", LENGTH):
        numpyro.sample("x", dist.Categorical(probs), obs=x)


@pytest.mark.thorough
def test_whole_rows_are_worked_on_where_entries_are_not_enough() -> None:
    """Of an index no function is known that entries would be enough for."""
    x = counts(np.random.default_rng(0)).astype(np.int32)
    by_entries, by_rows = Setup(tokens, (x,), WIDTH), Setup(tokens, (x,), None)
    assert "a gather at an index" in by_entries.program.dense["x"]
    everyone = np.ones(COUNT, bool)
    found = by_entries.bounded_sum(by_entries.rows, everyone, 1.0)
    expected = by_rows.bounded_sum(by_rows.rows, everyone, 1.0)
    for block, value in expected.items():
        np.testing.assert_allclose(found[block], value, rtol=1e-6)
    vi = vi_of(tokens, budget=math.inf, max_nonzeros=WIDTH, **OPTIONS)
    assert "made dense again: x: a gather at an index" in vi.explain(x).notes[-1]


@pytest.mark.thorough
def test_whole_rows_are_worked_on_where_less_noise_is_worth_it() -> None:
    """cos(x) is not zero where x is: of x xᵀ that is no product of entries any more.

    Taken by entries, its second moments would be matrices of any sign, and replacing a
    row could change them by 2 C in place of √2 C.
    """

    def regression(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([LENGTH]).to_event(1))
        with numpyro.plate(UNIT, x.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.cos(x) @ w, 1.0), obs=y)

    program = compiled(regression, MODELS["linear_regression"].rows(), WIDTH)
    assert program.dense["x"] == (
        "by entries ⟨w w⟩ would not be known to have one sign"
    )
    geometries = {s.name: s.geometry for s in program.structure.statistics}
    assert geometries["⟨w w⟩"] == "psd"


def test_a_wrong_rule_for_entries_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate compares the program that works on entries, too."""
    rules = {**entries._REDUCTIONS, "reduce_sum": lambda told, others: told + 1}
    monkeypatch.setattr(entries, "_REDUCTIONS", rules)
    program = compiled(MODELS["multinomial"].fn, MODELS["multinomial"].rows(), WIDTH)
    assert "certificate" in program.dense["x"]


@pytest.mark.thorough
def test_dpvi_gets_rows_with_their_largest_entries() -> None:
    def regression(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.StudentT(3.0).expand([LENGTH]).to_event(1))
        with numpyro.plate(UNIT, x.shape[0]):
            numpyro.sample("y", dist.Normal(jnp.tanh(x @ w), 1.0), obs=y)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(COUNT, LENGTH)).astype(np.float32)
    y = rng.normal(size=COUNT).astype(np.float32)
    smallest = np.argsort(np.abs(x), axis=1)[:, : LENGTH - WIDTH]
    kept = x.copy()
    np.put_along_axis(kept, smallest, 0.0, 1)
    sums = []
    for rows, width in (((x, y), WIDTH), ((kept, y), None)):
        arguments = arguments_of(regression, rows, width)
        engine = engine_of_graph(
            build_graph(nv.private(regression, unit=UNIT), arguments)
        )
        state = engine.initial_state(jax.random.key(0))
        sums.append(
            engine.bounded_sum(
                state,
                arguments.take(np.arange(COUNT)),
                np.ones(COUNT, bool),
                scales={block.name: 1.0 for block in engine.blocks("adaptive")},
                clipping_norm=0.5,
            )
        )
    for block, value in sums[1].items():
        np.testing.assert_allclose(sums[0][block], value, rtol=1e-5, atol=1e-6)
    plan = vi_of(
        regression,
        budget=math.inf,
        max_nonzeros={"x": WIDTH},
        **{**OPTIONS, "engine": "auto"},
    ).explain(x, y)
    assert plan.engine == "dpvi"
    assert "DPVI makes the row dense again" in plan.notes[-1]


def noise_aware(fn: Any, rows: Rows, **options: Any) -> NoiseAwarePosterior:
    """The posterior of a private fit with DPVI, at a noise that is always the same."""
    marked = nv.private(fn, unit=UNIT)
    settings = {**OPTIONS, "engine": "dpvi", "insecure_seed": 1, **options}
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        posterior = fit_to(marked, *rows, **settings).posterior
    assert isinstance(posterior, NoiseAwarePosterior)
    return posterior


def factors_with_a_latent_per_row(x: Any) -> None:
    loading: Any = dist.LogNormal(0.0, 1.0).expand([TOPICS, LENGTH]).to_event(2)
    beta: Any = numpyro.sample("beta", loading)
    with numpyro.plate(UNIT, x.shape[0]):
        shares: Any = dist.Gamma(0.7, 1.0).expand([TOPICS]).to_event(1)
        theta: Any = numpyro.sample("theta", shares)
        numpyro.sample("x", dist.Poisson(theta @ beta).to_event(1), obs=x)


def factors_with_public_weights(x: Any) -> None:
    theta = jnp.linspace(0.5, 1.5, TOPICS)
    loading: Any = dist.LogNormal(0.0, 1.0).expand([TOPICS, LENGTH]).to_event(2)
    beta: Any = numpyro.sample("beta", loading)
    with numpyro.plate(UNIT, x.shape[0]):
        numpyro.sample("x", dist.Poisson(theta @ beta).to_event(1), obs=x)


@pytest.mark.quick_with("dense-factors_with_public_weights")
@pytest.mark.parametrize(
    "fn", [factors_with_public_weights, factors_with_a_latent_per_row]
)
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix], ids=["dense", "sparse"])
def test_a_private_fit_by_dpvi_releases_what_it_does_of_whole_rows(
    form: Any, fn: Any
) -> None:
    """Gradients, and the information for a posterior that knows of the noise."""
    rng = np.random.default_rng(3)
    x = counts(rng, (200,)).astype(np.float32)
    x[:20] = rng.permuted(np.tile(np.arange(1.0, LENGTH + 1), (20, 1)), axis=1)
    kept = np.where(np.argsort(np.argsort(-x, axis=1)) < WIDTH, x, 0.0)
    kept = kept.astype(np.float32)
    expected = noise_aware(fn, (kept,)).params
    found = noise_aware(fn, (form(x),), max_nonzeros=WIDTH).params
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)
    others = noise_aware(fn, (x,)).params
    assert not np.allclose(others["joint.loc"], expected["joint.loc"], atol=1e-3)


@pytest.mark.parametrize(
    ("declared", "error", "message"),
    [
        (0, ValueError, "max_nonzeros=0 to be a positive integer"),
        ({"x": -3}, ValueError, r"max_nonzeros\['x'\]=-3 to be a positive integer"),
        ({"x": 2.5}, TypeError, r"max_nonzeros\['x'\]=2.5 to be an integer"),
        ({"x": None}, TypeError, r"max_nonzeros\['x'\]=None to be an integer"),
        ("x", TypeError, "max_nonzeros='x' to be an integer"),
        (True, ValueError, "max_nonzeros=True to be a positive integer"),
    ],
)
def test_a_width_is_a_positive_integer(declared, error, message) -> None:
    marked = nv.private(MODELS["multinomial"].fn, unit=UNIT)
    with pytest.raises(error, match=message):
        vi_of(marked, budget=math.inf, max_nonzeros=declared)


def test_a_private_fit_of_what_is_observed_ends_in_a_posterior() -> None:
    """What clipping took off is found on simulated rows, which have the width too."""

    def rates(X: Any) -> None:
        prior = dist.Gamma(jnp.ones(LENGTH), 1.0).to_event(1)
        rate = numpyro.sample("rate", prior)
        with numpyro.plate(UNIT, len(X)):
            numpyro.sample("X", dist.Poisson(rate).to_event(1), obs=X)

    rng = np.random.default_rng(0)
    X = np.concatenate([counts(rng) for _ in range(50)])
    vi = vi_of(rates, budget=20.0, engine="vips", clipping_norm=4.0, max_nonzeros=WIDTH)
    draws = vi.run(jax.random.key(0), X).sample_posterior(jax.random.key(1), (200,))
    np.testing.assert_allclose(np.mean(draws["rate"], 0), X.mean(0), rtol=0.3)


def test_a_width_of_no_argument_costs_nothing() -> None:
    budget = nv.PrivacyBudget(1.0, 1e-5)
    marked = nv.private(MODELS["multinomial"].fn, unit=UNIT)
    vi = vi_of(marked, budget=budget, max_nonzeros={"counts": 3}, **OPTIONS)
    with pytest.raises(ValueError, match="names 'counts'"):
        vi.run(jax.random.key(0), *MODELS["multinomial"].rows())
    assert budget.remaining().epsilon == 1.0
