"""Random models, composed as source code: is the verdict on them right?

Half of them are conjugate by construction, after augmentation at most, and must be
compiled. Into the others something is put that need not be, such as a `tanh` around a
link; what becomes of these is the package's choice, except that whatever is compiled,
of either half, is checked in double precision against NumPyro's `log_density` alone:

- at random values the compiled log density equals NumPyro's;
- as a function of one latent, the others fixed, NumPyro's log density lies in the
  span of the statistics of that latent's family. (Sites with an auxiliary variable are
  left out of this; for them the bound is tight only at a point, which the first check
  shows.)
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _models import compiled
from numpyro.infer.util import log_density

from numpyro_vips.conjugacy.families.gaussian import Normal
from numpyro_vips.errors import NotConjugateError
from numpyro_vips.jax_tools.double_precision import trace_in_double
from numpyro_vips.vips.compile.certificate import (
    _prior_at_point,
    row_and_validity,
    rows_apart,
)
from numpyro_vips.vips.program.program import ConjugateProgram

NUM_ROWS = 4
ARGUMENTS = "X, g, e"  # features, a group of three, a positive number
Pick = Callable[[Sequence[Any]], Any]


class Composer:
    """Writes the source of one model, asking `pick` at every fork."""

    def __init__(self, pick: Pick, spoiled: bool):
        self.pick = pick
        self.globals: list[str] = []
        self.rows: list[str] = []
        self.observed: dict[str, str] = {}
        self.pools: dict[str, list[str]] = {}
        self.has_state = False
        # How many of the links get something around them that is not conjugate.
        self.spoilers_left = 1 if spoiled else 0
        self._numbers = itertools.count()

    def name(self, stem: str) -> str:
        return f"{stem}{next(self._numbers)}"

    def latent(self, kind: str) -> str:
        """A latent of some kind, a new one or one that is there already."""
        pool = self.pools.setdefault(kind, [])
        if pool and self.pick([True, False]):
            return self.pick(pool)
        name = getattr(self, f"new_{kind}")()
        pool.append(name)
        return name

    def _sample(self, name: str, distribution: str) -> str:
        self.globals.append(f'{name} = numpyro.sample("{name}", {distribution})')
        return name

    def _in_plate(self, name: str, distribution: str, size: int) -> str:
        self.globals.append(f'with numpyro.plate("plate_{name}", {size}):')
        self.globals.append(f'    {name} = numpyro.sample("{name}", {distribution})')
        return name

    # --- priors -----------------------------------------------------------------------

    def normal_prior(self) -> str:
        location = self.pick(["0.0", "0.5", None])
        scale = self.pick(["2.0", "1 / jnp.sqrt({})", "{} ** -0.5"])
        if location is None:
            location = self._sample(self.name("m"), "dist.Normal(0.0, 3.0)")
        return f"dist.Normal({location}, {self.filled(scale, 'precision')})"

    def filled(self, template: str, kind: str) -> str:
        return template.format(self.latent(kind)) if "{}" in template else template

    def new_real(self) -> str:
        return self._sample(self.name("b"), self.normal_prior())

    def new_vector(self) -> str:
        spelling = self.pick(["plate", "expand", "zeros", "multivariate"])
        name = self.name("w")
        if spelling == "plate":
            return self._in_plate(name, self.normal_prior(), 2)
        return self._sample(
            name,
            {
                "expand": f"{self.normal_prior()}.expand([2]).to_event(1)",
                "zeros": "dist.Normal(jnp.zeros(2), 1.5).to_event(1)",
                "multivariate": "dist.MultivariateNormal(jnp.zeros(2), "
                "jnp.array([[2.0, 0.3], [0.3, 1.0]]))",
            }[spelling],
        )

    def new_effects(self) -> str:
        return self._in_plate(self.name("a"), self.normal_prior(), 3)

    def new_precision(self) -> str:
        return self._sample(self.name("tau"), self.gamma_prior())

    def gamma_prior(self) -> str:
        prior = self.pick(
            ["dist.Gamma(2.0, 1.5)", "dist.Exponential(0.7)", "dist.Gamma(1.5, {})"]
        )
        if "{}" in prior:
            prior = prior.format(
                self._sample(self.name("rate"), "dist.Gamma(2.0, 1.0)")
            )
        return prior

    def new_precisions(self) -> str:
        return self._in_plate(self.name("tau"), self.gamma_prior(), 3)

    def new_variance(self) -> str:
        return self._sample(self.name("v"), "dist.InverseGamma(3.0, 2.0)")

    def new_probability(self) -> str:
        prior = self.pick(["dist.Beta(1.0, 2.0)", "dist.Uniform(0.0, 1.0)"])
        return self._sample(self.name("p"), prior)

    def new_probabilities(self) -> str:
        return self._in_plate(self.name("p"), "dist.Beta(2.0, 1.5)", 3)

    def new_simplex(self) -> str:
        return self._sample(self.name("theta"), "dist.Dirichlet(jnp.ones(3) * 0.8)")

    def new_simplices(self) -> str:
        return self._in_plate(self.name("theta"), "dist.Dirichlet(jnp.ones(3) + 1)", 3)

    def new_score(self) -> str:
        """A real latent of each row."""
        name = self.name("u")
        self.rows.append(f'{name} = numpyro.sample("{name}", dist.Normal(0.0, 1.0))')
        return name

    def index(self) -> str:
        """What picks one of three: the row's group, or a state that is not observed."""
        if self.pick([True, True, False]):
            return "g"
        if not self.has_state:
            weights = self._sample("weights", "dist.Dirichlet(jnp.ones(3))")
            self.rows.append(
                f'z = numpyro.sample("z", dist.Categorical({weights}), '
                'infer={"enumerate": "parallel"})'
            )
            self.has_state = True
        return "z"

    # --- links ------------------------------------------------------------------------

    def linear(self) -> str:
        pieces = [self.piece() for _ in range(self.pick([1, 1, 2, 3]))]
        return " + ".join(pieces)

    def piece(self) -> str:
        kind = self.pick(["real", "vector", "effects", "score"])
        latent = self.latent(kind)
        if kind == "vector":
            spellings = [
                "X @ {}", "jnp.einsum('nd,d->n', X, {})", "(X * {}).sum(-1)",
                "jnp.dot(X, {}) / 2", "(X * {0}[None, :]) @ jnp.ones(2)",
                "X[:, 0] * {0}[0] - X[:, 1] * {0}[1]",
                "jnp.where(g == 0, {0}[0], {0}[1])",
                "jnp.hstack([X, jnp.ones_like(X)]) @ jnp.concatenate([{0}, 2 * {0}])",
            ]  # fmt: skip
        elif kind == "effects":
            return f"{latent}[{self.index()}]"
        elif kind == "score":
            other = self.latent("real")
            spellings = ["{}", f"{other} * {{}}", "e * {}"]
        else:
            spellings = ["{}", "0.3 * {}", "e * {}", "-{}", "jnp.sin(X[:, 0]) * {}"]
        return self.pick(spellings).format(latent)

    def scale(self) -> str:
        if self.spoil():
            real, positive = self.latent("real"), self.latent("precision")
            return self.pick(
                [
                    f"jnp.exp({real})", f"{positive}", f"1 / jnp.sqrt(1 + {positive})",
                    f"1 / jnp.sqrt({positive} * e + 1)", f"{positive} ** 2",
                    f"jnp.maximum({positive}, 0.3)", f"jax.nn.softplus({real})",
                ]
            )  # fmt: skip
        kind = self.pick(["constant", "precision", "variance", "precisions"])
        if kind == "constant":
            return self.pick(["0.7", "e"])
        latent = self.latent(kind)
        if kind == "variance":
            return f"jnp.sqrt({latent})"
        if kind == "precisions":
            return f"1 / jnp.sqrt({latent}[{self.index()}])"
        spellings = ["1 / jnp.sqrt({})", "{} ** -0.5", "jnp.sqrt(1 / {})"]
        return self.pick([*spellings, "jax.lax.rsqrt({} * e)"]).format(latent)

    def spoil(self) -> bool:
        """Whether to put something here that is not conjugate."""
        if not self.spoilers_left or self.pick([True, False]):
            return False
        self.spoilers_left -= 1
        return True

    def location(self) -> str:
        link = self.linear()
        if not self.spoil():
            return link
        around = self.pick(
            [
                "jnp.tanh({})", "jnp.exp({})", "jnp.sin({})", "jax.nn.relu({})",
                "jnp.abs({})", "jnp.square({})", "({}) ** 3", "jax.nn.sigmoid({})",
                "jnp.clip({}, -0.5, 0.5)", "jax.nn.softplus({})", "1 / (1 + {} ** 2)",
                "jnp.where(({0}) > 0, {0}, 0.1)", "jnp.maximum({}, 0.0)",
                "jnp.cumsum(jnp.tanh({}) * jnp.ones(1))[0]",
                "jnp.round({})", "({0}) * ({0})", "jnp.sqrt(({}) ** 2)",
            ]
        )  # fmt: skip
        return around.format(f"({link})")

    def rate(self) -> str:
        kind = self.pick(["precision", "precisions"])
        latent = self.latent(kind)
        if kind == "precisions":
            latent = f"{latent}[{self.index()}]"
        if self.spoil():
            other = self.latent("real")
            spoilers = [
                "{} + 1.0", "{} ** 2", "jnp.log1p({})", "jnp.maximum({}, 0.2)",
                f"jnp.exp({other})", f"{{}} * jnp.exp({other})", "jnp.sqrt({})",
                "1 / {}", "{0} + e * {0} ** 2",
            ]  # fmt: skip
            return self.pick(spoilers).format(latent)
        return self.pick(
            ["{}", "{} * e", "e / 2 * {}", "{} * jnp.exp(X[:, 1])"]
        ).format(latent)

    def chance(self) -> str:
        kind = self.pick(["probability", "probabilities"])
        latent = self.latent(kind)
        if kind == "probabilities":
            latent = f"{latent}[{self.index()}]"
        if self.spoil():
            return self.pick(
                ["{} ** 2", "0.5 * {}", "jnp.clip({}, 0.2, 0.8)", "jnp.sqrt({})"]
            ).format(latent)
        return self.pick(["{}", "1 - {}"]).format(latent)

    def shares(self) -> str:
        kind = self.pick(["simplex", "simplices"])
        latent = self.latent(kind)
        if kind == "simplices":
            latent = f"{latent}[{self.index()}]"
        if self.spoil():
            return self.pick(
                [
                    "jax.nn.softmax({} * 2.0, -1)", "(0.5 * {} + 1 / 6)",
                    "{0} ** 2 / ({0} ** 2).sum(-1, keepdims=True)",
                ]
            ).format(latent)  # fmt: skip
        return latent

    # --- what is observed -------------------------------------------------------------

    def observe(self) -> None:
        kind = self.pick(
            [
                "normal", "normal", "lognormal", "student", "laplace", "logistic",
                "binomial", "rate", "waiting", "chance", "shares",
            ]
        )  # fmt: skip
        distribution, values = getattr(self, f"observed_{kind}")()
        name = self.name("y")
        line = f'numpyro.sample("{name}", {distribution}, obs={name})'
        around = self.pick(["", "", "", "scale(scale=e)", "mask(mask=e > 0.4)"])
        if around:
            self.rows.append(f"with numpyro.handlers.{around}:")
            line = f"    {line}"
        self.rows.append(line)
        self.observed[name] = values

    def observed_normal(self) -> tuple[str, str]:
        return f"dist.Normal({self.location()}, {self.scale()})", "real"

    def observed_lognormal(self) -> tuple[str, str]:
        return f"dist.LogNormal({self.location()}, {self.scale()})", "positive"

    def observed_student(self) -> tuple[str, str]:
        return f"dist.StudentT(4.0, {self.location()}, {self.scale()})", "real"

    def observed_laplace(self) -> tuple[str, str]:
        return f"dist.Laplace({self.location()}, {self.scale()})", "real"

    def observed_logistic(self) -> tuple[str, str]:
        spelling = self.pick(["logits={}", "probs=jax.nn.sigmoid({})"])
        return f"dist.Bernoulli({spelling.format(self.location())})", "binary"

    def observed_binomial(self) -> tuple[str, str]:
        return f"dist.Binomial(3, logits={self.location()})", "binary"

    def observed_rate(self) -> tuple[str, str]:
        return f"dist.Poisson({self.rate()})", "binary"

    def observed_waiting(self) -> tuple[str, str]:
        family = self.pick(["dist.Exponential({})", "dist.Gamma(2.5, {})"])
        return family.format(self.rate()), "positive"

    def observed_chance(self) -> tuple[str, str]:
        family = self.pick(["dist.Bernoulli({})", "dist.Binomial(2, {})"])
        return family.format(self.chance()), "binary"

    def observed_shares(self) -> tuple[str, str]:
        return f"dist.Categorical({self.shares()})", "state"

    def source(self) -> str:
        for _ in range(self.pick([1, 1, 2])):
            self.observe()
        lines = [f"def model({', '.join([ARGUMENTS, *self.observed])}):"]
        lines += [f"    {line}" for line in self.globals]
        lines.append('    with numpyro.plate("rows", X.shape[0]):')
        lines += [f"        {line}" for line in self.rows]
        return "\n".join(lines)


def executed(source: str) -> Callable[..., None]:
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "numpyro": numpyro, "dist": dist}
    exec(compile(source, "<composed model>", "exec"), names)
    return names["model"]


def rows_of(observed: Sequence[str], seed: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    make = {
        "real": lambda: rng.normal(size=NUM_ROWS),
        "positive": lambda: rng.gamma(2.0, size=NUM_ROWS),
        "binary": lambda: rng.integers(0, 2, NUM_ROWS).astype(float),
        "state": lambda: rng.integers(0, 3, NUM_ROWS),
    }
    return (
        rng.normal(size=(NUM_ROWS, 2)),
        rng.integers(0, 3, NUM_ROWS),
        rng.uniform(0.2, 1.5, NUM_ROWS),
        *(make[kind]() for kind in observed),
    )


# --- checks on what was compiled ------------------------------------------------------


def latents_of(program: ConjugateProgram, rng: np.random.Generator) -> dict[str, Any]:
    """Random values of all latents, further from zero than those of the certificate."""
    values = {}
    for site in program.graph.sites.values():
        if not site.is_latent:
            continue
        values[site.name] = np.asarray(draw_value(program, site.name, rng))
    return values


def draw_value(program: ConjugateProgram, name: str, rng: np.random.Generator) -> Any:
    site = program.graph.sites[name]
    shape = tuple(
        NUM_ROWS if i == site.row_axis else n for i, n in enumerate(site.shape)
    )
    if site.is_discrete:
        return rng.integers(0, 3, shape)
    family = program.structure.posterior_factors[
        program.structure.factor_of[name]
    ].family.name
    if family == "Normal":
        return rng.normal(0.0, 2.0, shape)
    if family == "Dirichlet":
        return rng.dirichlet(np.ones(shape[-1]), shape[:-1])
    if family == "Beta":
        return rng.uniform(0.05, 0.95, shape)
    return rng.gamma(2.0, 1.0, shape) + 0.05


def check_density(
    program: ConjugateProgram, model: Any, rows: tuple[np.ndarray, ...]
) -> None:
    """The compiled log density against NumPyro's, at three points."""
    rng = np.random.default_rng(7)
    names = list(program.graph.arguments.private)
    singles = [
        {name: values[number] for name, values in zip(names, rows, strict=True)}
        for number in range(NUM_ROWS)
    ]

    def of_row(row: Any, latents: Any) -> jax.Array:
        return row_and_validity(program, row, latents)[0]

    def of_globals(latents: Any) -> jax.Array:
        return _prior_at_point(program, latents)

    def of_all(latents: Any) -> jax.Array:
        return jnp.asarray(log_density(model, rows, {}, latents)[0])

    latents = latents_of(program, rng)
    row_part = trace_in_double(
        of_row, singles[0], rows_apart(program.graph, latents, NUM_ROWS)[0]
    )
    prior_part = trace_in_double(of_globals, latents)
    numpyros = trace_in_double(of_all, latents)
    for _ in range(3):
        apart = rows_apart(program.graph, latents, NUM_ROWS)
        found = float(prior_part(latents))
        found += sum(
            float(row_part(*pair)) for pair in zip(singles, apart, strict=True)
        )
        expected = float(numpyros(latents))
        assert np.isfinite(expected)
        assert found == pytest.approx(expected, rel=1e-8, abs=1e-7)
        latents = latents_of(program, rng)


STATISTICS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "x": lambda x: x,
    "1/x": lambda x: 1 / x,
    "log": np.log,
    "log1m": lambda x: np.log1p(-x),
    "x^2": lambda x: x**2,
    "x^-2": lambda x: x**-2.0,
}


def check_conjugacy(
    program: ConjugateProgram, model: Any, rows: tuple[np.ndarray, ...]
) -> int:
    """NumPyro's log density as a function of one factor's latents at a time.

    Returns:
      How many factors were looked at.
    """
    structure = program.structure
    augmented = {n.split(":")[0] for n in structure.latents if ":" in n}
    rng = np.random.default_rng(8)
    base = latents_of(program, rng)

    def remaining(latents: Any) -> jax.Array:
        substituted = numpyro.handlers.substitute(model, data=latents)
        trace = numpyro.handlers.trace(numpyro.handlers.seed(substituted, 0)).get_trace(
            *rows
        )
        total = jnp.zeros(())
        for name, site in trace.items():
            if site["type"] == "sample" and name not in augmented:
                density = site["fn"].log_prob(site["value"])
                scale = 1.0 if site["scale"] is None else site["scale"]
                total += jnp.sum(scale * density)
        return total

    density = trace_in_double(remaining, base)
    checked = 0
    for factor in structure.posterior_factors.values():
        names = [n for n in factor.latents if n in base]
        if (
            not names
            or "is" in factor.family.statistics
            or program.graph.sites[names[0]].is_discrete
        ):
            continue
        features, values = [], []
        for _ in range(40):
            point = dict(base)
            if type(factor.family) is Normal:
                # Along a line through the whole block it must be a parabola.
                t = rng.uniform(-3.0, 3.0)
                direction = np.random.default_rng(9)
                for name in names:
                    step = direction.normal(size=np.shape(base[name]))
                    point[name] = base[name] + t * step
                features.append([1.0, t, t**2])
            else:
                (name,) = names
                new = draw_value(program, name, rng)
                point[name] = new
                columns = [STATISTICS[s](new).ravel() for s in factor.family.statistics]
                features.append([1.0, *np.concatenate(columns)])
            values.append(float(density(point)))
        matrix, target = np.asarray(features), np.asarray(values)
        matrix = matrix / np.abs(matrix).max(0)
        assert matrix.shape[1] < len(target) - 10
        solution, *_ = np.linalg.lstsq(matrix, target, rcond=None)
        residual = np.abs(matrix @ solution - target).max()
        size = np.abs(matrix * solution).max() + 1.0
        assert residual <= 1e-8 * size, (factor.name, factor.family.name, residual)
        checked += 1
    return checked


class Verdict(NamedTuple):
    """What became of a model: the refusal, or how many factors were checked."""

    refusal: NotConjugateError | None
    checked: int = 0


def verdict(source: str, observed: Sequence[str]) -> Verdict:
    """Compiles a model, and checks it if it is not refused."""
    with jax.enable_x64(True):
        rows, model = rows_of(observed, seed=0), executed(source)
        try:
            program = compiled(model, rows)
        except NotConjugateError as refusal:
            return Verdict(refusal)
        others = rows_of(observed, seed=1)
        check_density(program, model, others)
        return Verdict(None, check_conjugacy(program, model, others))


@st.composite
def composed(draw: Any, spoiled: bool) -> tuple[str, tuple[str, ...]]:
    composer = Composer(lambda options: draw(st.sampled_from(options)), spoiled)
    source = composer.source()
    return source, tuple(composer.observed.values())


def _examples(count: int) -> hypothesis.settings:
    return hypothesis.settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=[hypothesis.HealthCheck.too_slow],
    )


def verdicts(count: int, spoiled: bool) -> list[Verdict]:
    """Of `count` composed models. One that is conjugate must not be refused."""
    found: list[Verdict] = []

    @_examples(count)
    @hypothesis.given(composed(spoiled=spoiled))
    def each(model: tuple[str, tuple[str, ...]]) -> None:
        this = verdict(*model)
        conjugate = spoiled or this.refusal is None
        assert conjugate, f"refused, though conjugate: {this.refusal}\n{model[0]}"
        found.append(this)

    each()
    assert len(found) >= count
    return found


def check_conjugate(count: int) -> None:
    found = verdicts(count, spoiled=False)
    # A model whose latents are all discrete or augmented has no factor to look at.
    assert sum(this.checked > 0 for this in found) >= 0.5 * count


def check_spoiled(count: int) -> None:
    found = verdicts(count, spoiled=True)
    # Neither all are refused, so that there is something to check, nor none.
    refused = sum(this.refusal is not None for this in found)
    assert 0.1 * count <= refused <= 0.9 * count
    assert sum(this.checked > 0 for this in found) >= 0.1 * count


@pytest.mark.thorough
def test_conjugate_models() -> None:
    check_conjugate(6)


@pytest.mark.thorough
def test_models_with_something_else() -> None:
    check_spoiled(12)


@pytest.mark.slow
def test_many_conjugate_models() -> None:
    check_conjugate(250)


@pytest.mark.slow
def test_many_models_with_something_else() -> None:
    check_spoiled(300)
