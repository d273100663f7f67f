"""Whether noise would hide the curvature of Newton steps, by public facts.

VIPS releases the curvature Σ σ'(ψ) xxᵀ of a logistic regression, a matrix of d × d
numbers, and steps along a direction by what it says of it. With C the norm that a row's
part is clipped to, n rows add up to a trace of n C at most, so to a mean eigenvalue of

    n C / d.

Noise of standard deviation s C on the diagonal, and s C/√2 beside it, is a matrix with
eigenvalues of up to √(2d) s C (Wigner). Their ratio √(2d) s d / n has nothing in it but
sizes and the budget. Where it is large nearly all directions are hidden: steps along
them are as short as the noise makes them, and the fit ends on its way. DPVI, which
releases d numbers in a step, gets there. Test AUC of both:

======= ======= ==== ====== ====== ======
columns rows    ε    ratio  VIPS   DPVI
======= ======= ==== ====== ====== ======
200     10,069  2    3.5    0.734  0.733
400     10,069  4    5.4    0.792  0.793
109     39,073  0.1  6.3    0.892  0.882
200     10,069  1    6.3    0.722  0.713
92      24,000  0.1  8.0    0.710  0.693
150     10,069  0.5  7.9    0.763  0.754
400     10,069  2    9.7    0.784  0.773
200     10,069  0.5  12     0.656  0.694
400     10,069  1    18     0.746  0.756
======= ======= ==== ====== ====== ======

With 10,069 rows they are from `python benchmarks/vips_paper.py --columns 200 --epsilon
0.5 1 2 --methods vips dpvi`, likewise with other columns; with 39,073 from `python
benchmarks/frontier.py logistic Adult --data FOLDER --epsilon 0.1 --repeats 10`, and
with 24,000 from the same for `"like B"`. Up to a ratio of 10 VIPS is ahead or level,
and from 12 on it is DPVI.

Where it is small, more of the budget for the curvature still makes intervals narrower,
as they allow for all that it may be, up to nothing. Logistic regressions at ε = 1,
seven or eight data sets each: the median standard deviation of the posterior, the root
mean square error and the coverage of 90 % intervals, by the share of each of the two
releases. Priors are Normal(0, 10), in the last line Normal(0, 1)
(`python benchmarks/curvature_share.py`).

======= ====== ===== ================== ================== ==================
columns rows   ratio share .04          share .07          share .10
======= ====== ===== ================== ================== ==================
3       1,000  0.14  0.105, 0.112, 88 % 0.103, 0.114, 88 % 0.104, 0.117, 88 %
10      3,000  0.28  0.088, 0.085, 92 % 0.075, 0.086, 88 % 0.073, 0.089, 82 %
20      10,000 0.24  0.066, 0.077, 96 % 0.065, 0.068, 94 % 0.062, 0.073, 94 %
======= ====== ===== ================== ================== ==================

At a smaller ε, where noise hides more, a share of .04 leaves wider intervals than one
of .07. Residuals have the more noise the larger the share is. Where noise hides the
curvature all the same, they need the budget.
"""

import math

from numpyro_vips.accounting import Relation
from numpyro_vips.fitting.engine import Engine
from numpyro_vips.privacy.gaussian_mechanism import Block, GaussianMechanism

# The ratio from which on the curvature counts as hidden; see the first table above.
HIDDEN = 11.0
# Columns up to which it never does. Of tables with fewer none was found on which DPVI
# was ahead; where rows are so few that noise hides the curvature of a few columns, no
# engine learns much.
FEW_COLUMNS = 128
# The shares that a release of it may get: the second between these ratios, which are
# those at the first; see the second table.
SHARES = (0.04, 0.07)
CLEAR, UNCLEAR = 0.06, 0.9


def noise_over_curvature(
    engine: Engine, *, num_rows: int, share: float, relation: Relation
) -> float:
    """The ratio of the block of which most is hidden.

    Args:
      engine: What there is to release.
      num_rows: Public number of rows.
      share: What the release of the curvature spends, see `Step.share`.
      relation: The relation that the noise protects.

    Returns:
      The ratio for a budget that affords a noise multiplier of 1 for a single release
      from all rows. It grows in proportion to that. It is 0 if there is no curvature.
    """
    whole = [block for block in engine.blocks("refreshed") if block.symmetric]
    whole += [
        Block(name="curvature", shape=shape, symmetric=True)
        for shape in engine.curvatures_in_parts
    ]
    noise = 1.0 / math.sqrt(share)
    return max((_ratio(b, num_rows, noise, relation) for b in whole), default=0.0)


def may_be_left_to_dpvi(engine: Engine) -> bool:
    """Whether the curvature has many columns, and only residuals are beside it."""
    others = {block.name for block in engine.blocks("adaptive")} - engine.growing
    if others or engine.blocks("once"):
        return False
    return any(
        block.symmetric and block.shape[-1] > FEW_COLUMNS
        for block in engine.blocks("refreshed")
    )


def hides_curvature(per_noise: float, noise_multiplier: float | None) -> bool:
    """Whether noise of this size exceeds the curvature by too much.

    Args:
      per_noise: See `noise_over_curvature`.
      noise_multiplier: See `curvature_share`.
    """
    return noise_multiplier is not None and per_noise * noise_multiplier > HIDDEN


def curvature_share(per_noise: float, noise_multiplier: float | None) -> float:
    """Which share of the budget each release of the curvature gets.

    Args:
      per_noise: The ratio at the first of `SHARES`, for a noise multiplier of 1.
      noise_multiplier: That of a single release from all rows on which the fit's whole
        budget is spent; None where it is not known.
    """
    is_unclear = CLEAR < per_noise * (noise_multiplier or 0.0) < UNCLEAR
    return SHARES[1] if is_unclear else SHARES[0]


def _ratio(
    block: Block, num_rows: int, noise_multiplier: float, relation: Relation
) -> float:
    """How much noise exceeds the curvature in one block, released by itself.

    Args:
      block: A block of matrices, whose last two axes are columns.
      num_rows: The public number of rows.
      noise_multiplier: Noise standard deviation over the sensitivity.
      relation: Which data sets are neighbours.

    Returns:
      The radius of the noise's spectrum over the largest mean eigenvalue that clipped
      rows can add up to. Clipping norms cancel.
    """
    *batch, _, columns = block.shape
    mechanism = GaussianMechanism(
        blocks=(block,),
        clipping_norm=1.0,
        noise_multiplier=noise_multiplier,
        relation=relation,
    )
    radius = math.sqrt(2.0 * columns) * mechanism.block_noise_stddev(block.name)
    # Of several matrices a row has one norm: together they have traces of √k at most.
    mean = num_rows / (columns * math.sqrt(math.prod(batch)))
    return radius / mean
