"""A statistic that rows release, and a diagonal in it that repeats another one."""

import dataclasses
import math
from typing import Any, Literal

from numpyro_vips.conjugacy.structure.geometry import Matrix, StatisticGeometry


@dataclasses.dataclass(frozen=True, kw_only=True)
class Diagonal:
    """Where the diagonal of a hollow statistic is found.

    Attributes:
      statistic: Name of the statistic that it repeats.
      factor: The diagonal is this times that statistic.
      axes: For each batch axis of the matrices, and for their diagonal, the axis of
        that statistic.
    """

    statistic: str
    factor: float
    axes: tuple[int, ...]

    def of(self, values: Any) -> Any:
        """The diagonal, from an array in the shape of the other statistic."""
        return self.factor * values.transpose(self.axes)


StatisticRelease = Literal["public", "once", "refreshed", "adaptive"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistic:
    """A product of moments of globals which a row's terms multiply.

    Attributes:
      name: Such as `⟨tau⟩⟨w w⟩`.
      atoms: (latent, function, power, label numbers) of each factor.
      shape: Size of each label on which rows' coefficients depend, in the order of
        their numbers.
      summed: Sizes of the labels with the numbers that follow. No row has different
        numbers along these, so the products are summed over them: of Σ_j z_k z_l w_jk
        w_jl a row releases z_k z_l, once and not for every j.
      rank: A term that fits several statistics belongs to the one that comes first.
      recentred: Whether it is another one when taken about the origins of latents that
        are recentred; see `conjugacy.structure.centring`.
      release: "public" if no row changes it, though the globals may; "once" if it
        does not depend on the globals; "refreshed" if noise in it only slows a fit, so
        that it is released rarely; else "adaptive".
      matrix: For a symmetric statistic, the numbers of its batch labels, row labels
        and column labels.
      geometry: Where a row's contribution lies; see `conjugacy.structure.geometry`.
      lower, upper: Bounds on every entry of a row's contribution.
      diagonal: Which statistic the diagonal repeats. Then it is not released, and a
        row's contribution is what is left without it.
    """

    name: str
    atoms: tuple[tuple[str, str, float, tuple[int, ...]], ...]
    shape: tuple[int, ...]
    release: StatisticRelease
    matrix: Matrix | None
    geometry: StatisticGeometry = "signed"
    lower: float = -math.inf
    upper: float = math.inf
    diagonal: Diagonal | None = None
    summed: tuple[int, ...] = ()
    rank: int = 0
    recentred: bool = False

    @property
    def latents(self) -> tuple[str, ...]:
        """The latent of each atom; that of a square stands twice."""
        return tuple(latent for latent, *_ in self.atoms)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of the released array; a symmetric one ends in a square matrix."""
        if self.matrix is None:
            return self.shape
        batch, rows, _ = self.matrix
        size = math.prod(self.shape[i] for i in rows)
        return (*(self.shape[i] for i in batch), size, size)
