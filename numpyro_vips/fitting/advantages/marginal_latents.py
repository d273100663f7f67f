"""Where `engine="auto"` takes DPVI because it knows rows without their own latents.

**Discrete latents.** A row with a discrete latent of its own, such as the class in a
mixture, the true label behind several annotators, or the states of a chain, adds under
VIPS its expected class, and the product of this with each of its answers, to as many
sums. All of these sums get noise for the row. Under DPVI the latent is summed out, and
the row's score has one number for each global; scores add up to zero at the optimum, so
that rows are clipped at smaller norms. `benchmarks/coverage.py --engine vips` and
`--engine dpvi` print the errors of both; those of DPVI are in docs/coverage.md.

**Real latents beside globals.** Where an effect of a row stands beside a regression, a
factor's value beside loadings, or a covariate that was measured with an error beside a
slope, what a row says of its latent and of the globals is one thing. VIPS takes turns
between them: some steps, as many as the noise affords, end far from where all of them
would, and the posterior may be many of its standard deviations off. DPVI integrates the
latent out. Where the only global beside an effect is its mean, or that of the level
that the effect has been made (`level_means.py`), VIPS has no such trouble and stays. A
slope beside a level is found by turns with it: in `level + slope * visit` it ends many
of its standard deviations away. Logits are no other case: in
`Binomial(trials, logits=a + b * x + u)` VIPS misses the truth as clearly, and DPVI is
right.

**Cusps.** A Laplace density, symmetric or not, is a mixture of Normals over a variance
of each row. A row's weight in the sums of VIPS is then the inverse of its residual,
which has no limit. Weights are clipped, in sums that the scale depends on, and the
rows' variances have posterior factors of their own, which makes the posterior of the
location too narrow, also without noise. A score has a limit, however small the residual
is.

Without noise it is the same engine. The posterior of VIPS is then a product of factors,
at the best of the optima that some random starts lead to; that of DPVI has the globals'
correlations.
"""

from numpyro_vips.conjugacy.families.logistic_auxiliaries import PolyaGamma
from numpyro_vips.conjugacy.structure.level_means import beside, is_effect, is_mean
from numpyro_vips.conjugacy.structure.structure import is_real
from numpyro_vips.dpvi.newton_fit import may_take_newton_steps
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.vips.description import can_be_summed_out
from numpyro_vips.vips.engine import VipsEngine
from numpyro_vips.vips.program.program import ConjugateProgram

# Rows for each unit of the noise multiplier of a single release on which the whole
# budget is spent, below which VIPS stays: 260 at ε = 1 and δ = 1e-5. The posterior of
# scores needs the rows' information, which is hidden by noise if they are few.
ROWS_PER_NOISE = 70.0
# Rows without noise below which VIPS stays: its families, such as Dirichlet, suit the
# shares of few rows better than a Normal does. Reasoned, not tuned.
FEWEST_ROWS = 200


def affords_scores(num_rows: int, noise_multiplier: float | None) -> bool:
    """Whether rows are enough for scores at this noise.

    Args:
      num_rows: Public number of rows.
      noise_multiplier: That of a single release from all rows on which the fit's whole
        budget is spent; None where it is not known.
    """
    if noise_multiplier is None:
        return False
    return num_rows >= ROWS_PER_NOISE * noise_multiplier


def is_better_marginal(
    engine: VipsEngine, options: ScheduleOptions, noise_multiplier: float | None
) -> bool:
    """Whether DPVI is predicted to be more accurate than this engine.

    That was measured with full batches and the steps that the planner chooses. A
    caller's choice of steps, norms or noise is about the statistics of VIPS.

    Args:
      engine: The one that would run the model.
      options: The caller's choices.
      noise_multiplier: See `affords_scores`.
    """
    program = engine.program
    if not (
        can_be_summed_out(program)
        or has_effects_beside_globals(program)
        or has_cusps(program)
    ):
        return False
    if not options.private:
        is_small = may_take_newton_steps(program.graph)
        return options.until_converged and is_small and engine.num_rows >= FEWEST_ROWS
    return is_left_open(options) and affords_scores(engine.num_rows, noise_multiplier)


def is_left_open(options: ScheduleOptions) -> bool:
    """Whether the caller chose neither steps, norms, noise nor batches."""
    given = options.num_steps, options.clipping_norm, options.noise_multiplier
    return given == (None, None, None) and options.sampling.scheme == "full"


def has_cusps(program: ConjugateProgram) -> bool:
    """Whether a density of rows is a mixture of Normals whose weights have no limit.

    The auxiliary variance of a Laplace density is generalised inverse Gaussian, given
    the rest. The precision that Student t densities have is Gamma, and has a limit.
    """
    return any(
        latent.role == "local" and latent.family == "GeneralizedInverseGaussian"
        for latent in program.structure.latents.values()
    )


def has_effects_beside_globals(program: ConjugateProgram) -> bool:
    """Whether rows have real latents alone, one of them beside globals but its mean.

    The auxiliary variables of logits are no latents of the model.
    """
    latents = program.structure.latents
    effects = [
        latent
        for latent in latents.values()
        if latent.role == "local" and latent.family != PolyaGamma.name
    ]
    if not effects or not all(map(is_effect, effects)):
        return False
    for effect in effects:
        names = beside(effect, program.row_terms)
        others = [latents[name] for name in names if latents[name].role == "global"]
        others = [latent for latent in others if is_real(latent)]
        is_about_mean = len(others) == 1 and is_mean(others[0], effect)
        if others and not is_about_mean:
            return True
    return False
