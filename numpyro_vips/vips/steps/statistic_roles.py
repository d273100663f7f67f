"""Which statistics play which part in a fit, by model and settings alone."""

import functools
import math

from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.privacy.releases import Release, Together
from numpyro_vips.vips.program.program import ConjugateProgram
from numpyro_vips.vips.steps.statistic_coordinates import StatisticCoordinates
from numpyro_vips.vips.units.column_units import columns_with_squares
from numpyro_vips.vips.units.entry_units import vectors_of_entries
from numpyro_vips.vips.units.whitening import whitened_factors

# Numbers in the statistics, and that times numbers in a row, beyond which nobody works
# out what rows leave open: thousands of simulated rows are asked twice for each number.
_MOST_COORDINATES = 200
_MOST_WORK = 4000


def block_of(
    statistic: Statistic, directions: int | None = None, *, has_units: bool = False
) -> Block:
    """What the mechanism has to know of a statistic, at scale 1.

    Args:
      statistic: Which one.
      directions: See `Block`.
      has_units: Whether its entries are multiplied by numbers that are not known yet,
        which no limit on an entry outlasts.
    """
    if has_units and statistic.matrix is None:
        return Block(name=statistic.name, shape=statistic.block_shape)
    geometry, edges = statistic.geometry, (-math.inf, math.inf)
    lower, upper = statistic.lower, statistic.upper
    bounded = math.isfinite(lower) and math.isfinite(upper) and lower < upper
    bounded = bounded and not has_units
    # Of entries known to be of one sign, only a box that says so too is tighter.
    if bounded and (geometry == "signed" or lower >= 0 or upper <= 0):
        geometry, edges = "box", (lower, upper)
    return Block(
        name=statistic.name,
        shape=statistic.block_shape,
        symmetric=statistic.matrix is not None,
        hollow=statistic.diagonal is not None,
        geometry=geometry,
        directions=directions,
        lower=edges[0],
        upper=edges[1],
    )


class StatisticRoles:
    """Names of statistics, by what is done with them.

    Args:
      program: The compiled model.
      num_rows: Public number of rows.
      release_once: See `VIPS`.
      has_norms: Whether the caller gave clipping norms.

    Attributes:
      squares: See `columns_with_squares`.
      entries: See `entry_units.vectors_of_entries`.
      recentred_factors: Those whose statistics are taken about the means of a pilot.
      whitened_factors: Those whose features pilots of the curvature standardise; see
        `whitening`.
    """

    def __init__(
        self,
        program: ConjugateProgram,
        *,
        num_rows: int,
        release_once: bool,
        has_norms: bool,
    ):
        self._structure = program.structure
        self._features = program.features.keys() & program.structure.recentred
        shapes = program.graph.arguments.row_shapes().values()
        self._numbers_in_a_row = sum(math.prod(row.shape) for row in shapes)
        self._release_once = release_once
        # Norms that the caller gave are those of statistics as they are.
        self.squares = {} if has_norms else columns_with_squares(program)
        can_pilot = release_once and not has_norms
        self.entries = vectors_of_entries(program) if can_pilot else frozenset[str]()
        self.recentred_factors = (
            program.structure.recentred if can_pilot else frozenset[str]()
        )
        self.whitened_factors = (
            whitened_factors(program, num_rows) if can_pilot else frozenset[str]()
        )

    @property
    def with_units(self) -> frozenset[str]:
        """Residuals and their curvatures, see `column_units`.

        Units of `entries` are positive, and no limit on an entry is known.
        """
        return frozenset({*self.squares, *self.squares.values()})

    @property
    def statistics(self) -> tuple[Statistic, ...]:
        """All statistics, public ones included."""
        return self._structure.statistics

    def blocks(self, release: Release) -> tuple[Block, ...]:
        """What is released of this kind, at scale 1; intervals need nothing more."""
        labels: tuple[Release, ...] = (release,)
        if not self._release_once:
            everything = ("once", "refreshed", "adaptive")
            labels = everything if release == "adaptive" else ()
        return tuple(
            block_of(
                statistic,
                self._directions(statistic),
                has_units=statistic.name in self.with_units,
            )
            for label in labels
            for statistic in self.statistics
            if statistic.release == label
        )

    def _directions(self, statistic: Statistic) -> int | None:
        """The numbers that noise in the precision of Gaussian coordinates moves.

        It is not said of a matrix that many vectors share, as the units of a belief
        network do.
        """
        if statistic.matrix is None or statistic.summed:
            return None
        factor_of = self._structure.factor_of
        factors = {factor_of[latent] for latent in statistic.latents}
        gaussian = [
            name
            for name in factors
            if self._structure.posterior_factors[name].layout is not None
        ]
        return math.prod(statistic.block_shape[:-1]) if len(gaussian) == 1 else None

    @functools.cached_property
    def released_as(self) -> dict[str, Block]:
        """The block of every statistic, by name, at scale 1."""
        return {statistic.name: block_of(statistic) for statistic in self.statistics}

    @functools.cached_property
    def adaptive(self) -> frozenset[str]:
        """Statistics that depend on the globals, and are released in every step."""
        return frozenset(s.name for s in self.statistics if s.release == "adaptive")

    @property
    def recentred(self) -> frozenset[str]:
        """Statistics that are others when taken about the means of a pilot, or of
        features that it has standardised."""
        moved = {
            s.name for s in self.statistics if s.recentred or self._is_of_features(s)
        }
        return frozenset(moved if self.recentred_factors else ())

    def _is_of_features(self, statistic: Statistic) -> bool:
        factor_of = self._structure.factor_of
        factors = {factor_of[latent] for latent in statistic.latents}
        return statistic.release != "public" and not factors.isdisjoint(self._features)

    @property
    def together(self) -> tuple[Together, ...]:
        """The statistics of standardised features: all products of two coefficients
        of a factor, and all that are linear in them.

        Features that pilots of the curvature standardise are counted by column before
        these, so what is released of them is of one size from the start.
        """
        structure = self._structure
        found: dict[tuple, list[Statistic]] = {}
        for statistic in self.statistics:
            if statistic.summed or statistic.release == "public":
                continue
            for factor in sorted(self._features | self.whitened_factors):
                if factor in self._features and statistic.name not in self.recentred:
                    continue
                mine = structure.posterior_factors[factor].latents
                # Labels are numbered in the order of a statistic's own latents.
                others = tuple(
                    (latent, function)
                    for latent, function, *_ in statistic.atoms
                    if latent not in mine
                )
                power = len(statistic.atoms) - len(others)
                if power:
                    key = factor, power, statistic.release, others
                    found.setdefault(key, []).append(statistic)
        together = []
        for (factor, power, _, others), of in found.items():
            if len(of) > 1:
                size = math.prod(structure.posterior_factors[factor].shape)
                names = [f"⟨{factor}⟩" + ("²" if power == 2 else "")]
                names += [f"⟨{latent}⟩" for latent, _ in others]
                together.append(
                    Together(
                        name="".join(names),
                        blocks=tuple(statistic.name for statistic in of),
                        directions=size if power == 2 else None,
                        from_the_start=factor in self.whitened_factors,
                    )
                )
        return tuple(together)

    @functools.cached_property
    def moved(self) -> frozenset[str]:
        """Statistics whose average ends where others are recentred."""
        return self.recentred | (self.adaptive if self.recentred else frozenset())

    @property
    def balanced(self) -> frozenset[str]:
        """Sums of residuals, which the prior alone keeps from zero.

        So are the sums of a regression together: a row is clipped as a whole, so that
        its product yx of response and covariates loses the share that xxᵀ loses, and
        what the estimate xxᵀw = yx lacks are residuals.
        """
        return self.residuals | self._of_regressions

    @property
    def growing(self) -> frozenset[str]:
        """Residuals, for logits are near zero at the start."""
        return self.residuals

    @functools.cached_property
    def linear(self) -> frozenset[str]:
        """The statistics that are others when taken about the current mean."""
        return self._of_degree(1, self._structure.centred)

    @functools.cached_property
    def residuals(self) -> frozenset[str]:
        """The statistics of factors that take Newton steps, which are residuals."""
        return self._of_degree(1, self._structure.newton)

    @functools.cached_property
    def curvatures(self) -> frozenset[str]:
        """The curvature of the factors that take Newton steps."""
        return self._of_degree(2, self._structure.newton)

    def _of_degree(self, degree: int, factors: frozenset[str]) -> frozenset[str]:
        factor_of = self._structure.factor_of
        return frozenset(
            s.name
            for s in self.statistics
            if sum(factor_of[latent] in factors for latent in s.latents) == degree
        )

    @functools.cached_property
    def _of_regressions(self) -> frozenset[str]:
        """The statistics of Gaussian blocks that are all released at once.

        Not those of a mean, whose precision has a public number of rows in it, which
        no clipping makes smaller.
        """
        structure, found = self._structure, set()
        for factor in structure.posterior_factors_of("global"):
            if factor.layout is None or factor.layout.batch_shape:
                continue
            mine = [
                statistic
                for statistic in self.statistics
                if not {*factor.latents}.isdisjoint(statistic.latents)
            ]
            if {statistic.release for statistic in mine} == {"once"}:
                found |= {statistic.name for statistic in mine}
        return frozenset(found)

    @functools.cached_property
    def open(self) -> frozenset[str]:
        """Statistics that are not known although they are released.

        They are expected ones, given what a row says of its latents. Factors that take
        Newton steps have a curvature for that.
        """
        statistics = [s for s in self.statistics if s.release != "public"]
        number = len(StatisticCoordinates(statistics))
        if (
            self._structure.centred
            or self.squares
            or any(s.diagonal is not None for s in statistics)
            or number > _MOST_COORDINATES
            or number * self._numbers_in_a_row > _MOST_WORK
        ):
            return frozenset()
        return self.adaptive
