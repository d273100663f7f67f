"""The Gaussian mechanism: it holds its bound and adds its noise; nothing else does.

Everything that a step releases from one batch is one vector. A row's *joint vector* is
the concatenation of its blocks, each times its `scale`; a symmetric matrix enters
through its diagonal and √2 times its upper triangle, which keeps the Frobenius norm.
Rows are clipped in the norm of this vector, and the noise is equal in its coordinates.

What changes when a row is replaced depends on where contributions can lie. With rows
u, v of norm at most C:

============= ================================================= ==================
geometry       why                                               ‖u − v‖ at most
============= ================================================= ==================
"signed"       triangle inequality                               2C
"nonnegative"  ⟨u, v⟩ ≥ 0, so ‖u − v‖² ≤ ‖u‖² + ‖v‖²             √2·C; one number C
"psd"          tr(UV) ≥ 0 for positive semidefinite U and V      √2·C
"box"          each entry in [lower, upper] or, clipped, nearer  width·√n, or less
               to 0                                              where C is the limit
============= ================================================= ==================

Adding or removing a row changes the sum by at most C whatever the geometry.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float, Float64, Int

from numpyro_vips import _validate
from numpyro_vips.accounting import RELATIONS, Relation
from numpyro_vips.privacy.exact_gaussian import grid_spacing, rounded_gaussian

Geometry = Literal["signed", "nonnegative", "psd", "box"]
# What a party sends lies on a grid that is finer than that of the sum by this factor.
_FINER = 2**10
GEOMETRIES = ("signed", "nonnegative", "psd", "box")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """One array among those that a step releases together.

    Attributes:
      name: Key of the array.
      shape: Shape of one row's contribution, and of the sum.
      symmetric: The last two axes form a symmetric matrix; leading axes count a batch
        of matrices.
      hollow: Symmetric matrices whose diagonal is zero in every row: it is neither
        counted nor noised.
      scale: Factor of the block in the joint vector. It decides how the noise is shared
        between blocks and has no other effect: arrays go in and come out unscaled.
      geometry: Where a row's contribution can lie; see the module's table. Numbers that
        are never positive, and negative semidefinite matrices, count as their opposite.
      lower: For `"box"`, a public lower bound on every entry.
      upper: For `"box"`, a public upper bound on every entry.
      norm_bound: Public bound on the block's L2 norm in one row, before scaling, where
        one is known without clipping.
      directions: How many numbers of what is estimated its noise moves, where these are
        not as many as its coordinates: the precision matrix of d coefficients enters
        multiplied by them, as d numbers. No noise depends on it, only how blocks are
        scaled against each other.
      additions: How many numbers of one row may be added, one after the other, to an
        entry of the sum over rows. The rounding of sums depends on it.
    """

    name: str
    shape: tuple[int, ...]
    symmetric: bool = False
    hollow: bool = False
    scale: float = 1.0
    geometry: Geometry = "signed"
    lower: float = -math.inf
    upper: float = math.inf
    norm_bound: float = math.inf
    directions: int | None = None
    additions: int = 1

    def __post_init__(self) -> None:
        """Refuses a block whose shape or bounds do not fit what is said of it.

        Raises:
          ValueError: A number is out of range, a matrix is not square, or a geometry is
            one that such an array cannot have.
        """
        _validate.moderate(scale=self.scale)
        _validate.positive(norm_bound=self.norm_bound)
        _validate.positive_integer(additions=self.additions)
        _validate.one_of(GEOMETRIES, geometry=self.geometry)
        square = len(self.shape) >= 2 and self.shape[-1] == self.shape[-2]
        if self.symmetric and not square:
            raise ValueError(
                f"Expected block {self.name!r} with symmetric=True to end in two equal "
                f"axes, got shape {self.shape}."
            )
        if self.geometry == "psd" and not self.symmetric:
            raise ValueError(
                f"Expected block {self.name!r} with geometry='psd' to have "
                "symmetric=True: positive semidefinite matrices are symmetric."
            )
        if self.hollow and (self.geometry == "psd" or not self.symmetric):
            raise ValueError(
                f"Expected block {self.name!r} with hollow=True to have symmetric=True "
                "and another geometry than 'psd'."
            )
        bounded = math.isfinite(self.lower) and math.isfinite(self.upper)
        if self.geometry == "box" and not (bounded and self.lower <= self.upper):
            raise ValueError(
                f"Expected block {self.name!r} with geometry='box' to have finite "
                f"lower <= upper, got {self.lower!r} and {self.upper!r}."
            )

    @property
    def num_coordinates(self) -> int:
        """Free numbers in the block: a symmetric matrix counts its upper triangle."""
        if not self.symmetric:
            return math.prod(self.shape)
        return math.prod(self.shape[:-2]) * len(self.triangle[0])

    @property
    def num_directions(self) -> int:
        """The number of directions in which a row can move the block; see `directions`.

        By default the number of its coordinates.
        """
        return self.num_coordinates if self.directions is None else self.directions

    @property
    def triangle(self) -> tuple[Int[np.ndarray, " free"], Int[np.ndarray, " free"]]:
        """Rows and columns of the free entries of a symmetric matrix."""
        return np.triu_indices(self.shape[-1], k=int(self.hollow))

    @property
    def edges(self) -> tuple[int, float, float]:
        """How many numbers lie in a box, and its hull's edges in the joint vector.

        Two equal entries of a hollow matrix are one number, larger by √2.
        """
        lower, upper = (self.scale * edge for edge in self._hull)
        if self.hollow:
            root = math.sqrt(2.0)
            return self.num_coordinates, root * lower, root * upper
        return math.prod(self.shape), lower, upper

    @property
    def _hull(self) -> tuple[float, float]:
        """The box with zero: clipping pulls towards 0, a refused row counts as 0."""
        return min(self.lower, 0.0), max(self.upper, 0.0)

    @property
    def scaled_norm_bound(self) -> float:
        """Public bound on the L2 norm of the block's share of the joint vector."""
        bound = self.scale * self.norm_bound
        if self.geometry == "box":
            size, lower, upper = self.edges
            bound = min(bound, math.sqrt(size) * max(-lower, upper))
        return bound

    @property
    def keeps_sign(self) -> bool:
        """Whether two rows' contributions have a nonnegative inner product."""
        if self.geometry == "box":
            lower, upper = self._hull
            return lower == 0 or upper == 0
        return self.geometry != "signed"


@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianMechanism:
    """Gaussian noise for a sum of clipped rows.

    Guarantees:
      The noise's standard deviation in every coordinate of the scaled joint vector is
      `noise_multiplier` times the L2 sensitivity in `relation`, provided that each
      row's joint vector has norm at most `clipping_norm` and lies where the blocks'
      geometries say.

    Attributes:
      blocks: What is released together.
      clipping_norm: Bound on the norm of a row's joint vector. Infinite only without
        noise.
      noise_multiplier: Standard deviation over sensitivity; zero adds nothing.
      relation: The neighbouring relation that the noise protects.
      rounding: How much further than exact ones neighbouring sums may lie apart because
        they are rounded, relative to the sensitivity; a part of it.

    Raises:
      ValueError: A number is out of range, or there is noise and the sensitivity is so
        small or large that its square is not a floating-point number.
    """

    blocks: tuple[Block, ...]
    clipping_norm: float
    noise_multiplier: float
    relation: Relation
    rounding: float = 0.0

    def __post_init__(self) -> None:
        _validate.positive(clipping_norm=self.clipping_norm)
        _validate.nonnegative(rounding=self.rounding)
        _validate.one_of(RELATIONS, relation=self.relation)
        _validate.nonnegative(noise_multiplier=self.noise_multiplier)
        if math.isinf(self.noise_multiplier):
            raise ValueError(
                f"Expected noise_multiplier={self.noise_multiplier!r} to be finite."
            )
        if not self.blocks:
            raise ValueError("Expected at least one block to release, got none.")
        names = [block.name for block in self.blocks]
        if len(set(names)) < len(names):
            raise ValueError(f"Expected blocks to have distinct names, got {names}.")
        if math.isinf(self.clipping_norm) and self.noise_multiplier > 0:
            raise ValueError(
                "Expected a finite clipping_norm with noise_multiplier="
                f"{self.noise_multiplier!r}: noise cannot hide a row of unbounded size."
            )
        if self.noise_multiplier > 0:
            # Squares that underflow would turn the noise off.
            _validate.moderate(clipping_norm=self.clipping_norm)
            _validate.moderate(sensitivity=self.sensitivity())

    def sensitivity(self, relation: Relation | None = None) -> float:
        """How far one row can move the sum of joint vectors, in L2 norm.

        Args:
          relation: By default the mechanism's own.

        For replacement the worst pair u, v splits its squared norm over the blocks. Of
        a share t = (‖u_b‖² + ‖v_b‖²)/2, signed numbers make up to 4t, nonnegative or
        positive semidefinite ones up to 2t, and a box something between. The bound
        spends the clipping norm where it buys most. A single number of one sign takes
        no more than half of it: |a − b| ≤ max(a, b), so only one of the rows gains.
        """
        relation = self.relation if relation is None else relation
        _validate.one_of(RELATIONS, relation=relation)
        return (1.0 + self.rounding) * self._exact_sensitivity(relation)

    def _exact_sensitivity(self, relation: Relation) -> float:
        """The L2 sensitivity of the sums as real numbers, without rounding."""
        squared_norm = self.clipping_norm**2
        shares = [block.scaled_norm_bound**2 for block in self.blocks]
        if relation == "add_or_remove":
            return math.sqrt(min(squared_norm, sum(shares)))
        signed = nonnegative = 0.0
        boxes: list[tuple[Block, float]] = []
        singles: list[float] = []
        for block, share in zip(self.blocks, shares, strict=True):
            if block.geometry == "box":
                boxes.append((block, share))
            elif not block.keeps_sign:
                signed += share
            elif block.num_coordinates == 1:
                singles.append(share)
            else:
                nonnegative += share
        if squared_norm <= signed:
            return 2 * self.clipping_norm
        # Moving norm from them to signed blocks never loses, so these come first.
        single_limit = squared_norm if boxes else squared_norm - signed
        nonnegative += sum(min(share, single_limit) / 2 for share in singles)
        box_share, box_change = _boxes_change(
            boxes, squared_norm - signed, self.clipping_norm
        )
        rest = min(squared_norm - signed - box_share, nonnegative)
        return math.sqrt(4 * signed + box_change + 2 * rest)

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of the noise in each coordinate of the scaled joint
        vector."""
        if self.noise_multiplier == 0:
            return 0.0
        return self.noise_multiplier * self.sensitivity()

    def block_noise_stddev(self, name: str) -> float:
        """Standard deviation of the noise in an entry of the named block, in the
        block's own units.

        In a symmetric block this is a diagonal entry's; off the diagonal it is smaller
        by √2. Rounding to the grid adds less than a ten millionth to the variance and
        is not counted.
        """
        return self.noise_stddev / self._block(name).scale

    def add_noise(
        self, sums: Mapping[str, Float[np.ndarray, "..."]], rng: np.random.Generator
    ) -> dict[str, Float64[np.ndarray, "..."]]:
        """Adds the noise, once, to all the blocks of one release.

        Sums and noise are added as real numbers and rounded to a public grid, see
        `exact_gaussian`.

        Args:
          sums: The sum over the batch of the clipped rows, unscaled, for every block.
          rng: Secure generator of the noise stream.

        Returns:
          The noisy sums in float64, public from here on. A symmetric block stays
          symmetric: its upper triangle is taken, and the noise mirrored.

        Raises:
          ValueError: The names or shapes are not those of the blocks.
        """
        return {
            block.name: _perturbed(block, value, self.noise_stddev / block.scale, rng)
            if self.noise_multiplier > 0
            else value
            for block, value in self._checked(sums)
        }

    def add_noise_of_parties(
        self,
        sums_of_parties: Sequence[Mapping[str, Float[np.ndarray, "..."]]],
        rngs: Sequence[np.random.Generator],
    ) -> dict[str, Float64[np.ndarray, "..."]]:
        """Adds noise to every party's sums, and the results to each other.

        Of n parties each draws noise with 1/n of the mechanism's variance. What it
        sends is rounded to a fine grid, so that numbers add up without an error; their
        sum is rounded to the grid of `add_noise`.

        Args:
          sums_of_parties: Of each party, its sums, as of `add_noise`.
          rngs: Of each party, its secure generator.

        Returns:
          As `add_noise`. Only the sum of what parties send is as private as the
          mechanism says; what one of them sends is not.

        Raises:
          ValueError: The names or shapes are not those of the blocks, or there is no
            noise to divide.
        """
        if not self.noise_multiplier > 0:
            raise ValueError("Expected noise for parties to divide, got none.")
        checked = [self._checked(sums) for sums in sums_of_parties]
        noisy: dict[str, np.ndarray] = {}
        for of_block in zip(*checked, strict=True):
            block = of_block[0][0]
            stddev = self.noise_stddev / block.scale
            values = [value for _, value in of_block]
            noisy[block.name] = _perturbed_by_parties(block, values, stddev, rngs)
        return noisy

    def _checked(
        self, sums: Mapping[str, Float[np.ndarray, "..."]]
    ) -> list[tuple[Block, Float64[np.ndarray, "..."]]]:
        """The blocks with their sums.

        Raises:
          ValueError: The names or shapes are not those of the blocks.
        """
        names = {block.name for block in self.blocks}
        if set(sums) != names:
            raise ValueError(
                f"Expected sums for the blocks {sorted(names)}, got {sorted(sums)}."
            )
        checked: list[tuple[Block, np.ndarray]] = []
        for block in self.blocks:
            value = np.asarray(sums[block.name], dtype=np.float64)
            if value.shape != block.shape:
                raise ValueError(
                    f"Expected the sum of block {block.name!r} to have shape "
                    f"{block.shape}, got {value.shape}."
                )
            checked.append((block, value))
        return checked

    def _block(self, name: str) -> Block:
        for block in self.blocks:
            if block.name == name:
                return block
        raise ValueError(
            f"Expected name={name!r} to be one of {[b.name for b in self.blocks]}."
        )


def _boxes_change(
    boxes: Sequence[tuple[Block, float]], squared_norm: float, clipping_norm: float
) -> tuple[float, float]:
    """How two rows use their squared norm in boxes, and the squared change it makes.

    An entry in [−l, h] with l ≤ h changes by a + c when the two rows have it at a and
    −c. At a share t = (a² + c²)/2 that is 2·√t while t ≤ l², then l + s with
    s² = 2t − l² and s ≤ h. The square's slope in t falls with s/l, from 4 to at least
    2: the best split has the same s/l in every box, up to the boxes' own limits.
    """

    def split(ratio: float) -> tuple[float, float]:
        share = change = 0.0
        for block, limit in boxes:
            size, *edges = block.edges
            # No entry is larger than the whole row.
            low, high = sorted(min(abs(edge), clipping_norm) for edge in edges)
            # A box that keeps its sign has l = 0 and slope 2 throughout: it comes last.
            edge = high if ratio == math.inf else min(ratio * low, high)
            t = min(limit / size, (edge**2 + low**2) / 2)
            share += size * t
            beyond = low + math.sqrt(max(0.0, 2 * t - low**2))
            change += size * (4 * t if t <= low**2 else beyond**2)
        return share, change

    if not boxes:
        return 0.0, 0.0
    whole = split(math.inf)
    if whole[0] <= squared_norm:
        return whole
    least = split(1.0)
    if squared_norm <= least[0]:
        return squared_norm, 4 * squared_norm
    # Bisection for the ratio, kept on the side that overestimates.
    low, high = 1.0, 2.0
    while split(high)[0] < squared_norm and high < 1e9:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if split(middle)[0] >= squared_norm else (middle, high)
        )
    share, change = split(high)
    # Entries that keep their sign take what is left, at slope 2.
    return squared_norm, change + 2 * max(0.0, squared_norm - share)


def _perturbed(
    block: Block,
    value: Float64[np.ndarray, "*block"],
    stddev: float,
    rng: np.random.Generator,
) -> Float64[np.ndarray, "*block"]:
    stddevs, spacing = _noise_of_coordinates(block, stddev)
    noisy = rounded_gaussian(_coordinates(block, value), stddevs, spacing, rng)
    return _from_coordinates(block, noisy)


def _perturbed_by_parties(
    block: Block,
    values: Sequence[Float64[np.ndarray, "*block"]],
    stddev: float,
    rngs: Sequence[np.random.Generator],
) -> Float64[np.ndarray, "*block"]:
    """The sum of the values, to each of which its own noise is added before."""
    stddevs, spacing = _noise_of_coordinates(block, stddev)
    fine = spacing / _FINER
    total = 0
    for value, rng in zip(values, rngs, strict=True):
        share = stddevs / math.sqrt(len(values))
        sent = rounded_gaussian(_coordinates(block, value), share, fine, rng)
        # Whole numbers of any size, as object arrays hold them.
        total = total + np.vectorize(int, otypes=[object])(sent / fine)
    # The nearest number of coarse steps, the upper of two.
    steps = (2 * total + _FINER) // (2 * _FINER)
    points = np.asarray(np.asarray(steps, np.float64) * spacing)
    return _from_coordinates(block, points)


def _noise_of_coordinates(
    block: Block, stddev: float
) -> tuple[Float64[np.ndarray, "..."], float]:
    """The noise of a block's free numbers, and the spacing of their grid.

    Of entries that are there twice, each has half of the variance. The block has one
    grid, that of its least noise.
    """
    if not block.symmetric:
        return np.array(stddev), grid_spacing(stddev)
    rows, columns = block.triangle
    root = math.sqrt(0.5)
    return stddev * np.where(rows == columns, 1.0, root), grid_spacing(stddev * root)


def _coordinates(
    block: Block, value: Float64[np.ndarray, "*block"]
) -> Float64[np.ndarray, "..."]:
    """A block's free numbers."""
    if not block.symmetric:
        return value
    rows, columns = block.triangle
    return value[..., rows, columns]


def _from_coordinates(
    block: Block, free: Float64[np.ndarray, "..."]
) -> Float64[np.ndarray, "*block"]:
    """The block that has these free numbers."""
    if not block.symmetric:
        return free
    rows, columns = block.triangle
    result = np.zeros(block.shape)
    result[..., rows, columns] = free
    result[..., columns, rows] = free
    return result


def optimal_scales(
    blocks: Sequence[Block],
    norm_bounds: Mapping[str, float],
    *,
    relation: Relation = "add_or_remove",
    weights: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """The scales that minimise the total expected squared noise in the blocks' units.

    With bounds B_b on the blocks' norms, n_b coordinates and weights w_b, the joint
    bound is C² = Σ (s_b·B_b)² and block b receives noise of total weighted square
    w_b·n_b·(C/s_b)². By Cauchy and Schwarz the sum Σ_b w_b·n_b·C²/s_b² is least at
    s_b² ∝ √(w_b·n_b) / B_b, where it is (Σ_b B_b·√(w_b·n_b))². When a row is replaced,
    B_b² counts 4 times for signed blocks and 2 times for nonnegative ones.

    Args:
      blocks: The blocks of one step; their present scales do not matter.
      norm_bounds: For each block, a public bound on its norm in one row, or a typical
        norm where the joint vector is going to be clipped.
      relation: The relation that the noise protects.
      weights: How much squared error in each block matters; 1 by default.

    Returns:
      Scale of each block by name, such that Σ (s_b·B_b)² = 1: with these scales a
      clipping norm of 1 clips no row that keeps the bounds.
    """
    _validate.one_of(RELATIONS, relation=relation)
    squares: dict[str, float] = {}
    for block in blocks:
        bound = norm_bounds[block.name]
        weight = 1.0 if weights is None else weights[block.name]
        _validate.positive(**{f"norm_bounds[{block.name!r}]": bound})
        _validate.positive(**{f"weights[{block.name!r}]": weight})
        factor = 1.0
        if relation == "replace_one":
            factor = 2.0 if block.keeps_sign else 4.0
        importance = math.sqrt(weight * block.num_coordinates / factor)
        squares[block.name] = importance / bound
    total = sum(square * norm_bounds[name] ** 2 for name, square in squares.items())
    return {name: math.sqrt(square / total) for name, square in squares.items()}
