"""Where a row's statistic can lie, read off its terms.

Statistics of one sign have half the squared sensitivity when a row is replaced, because
two rows' contributions then have an inner product that is not negative. That must hold
whatever the rows are, so it is proved from structure: indicators, counts whose support
has been checked, what is left of their range as in 1 - y, squares, and second moments.
In the same way entries are shown to lie between two numbers.
"""

import itertools
import math
from collections.abc import Mapping, Sequence, Set
from typing import Literal

from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    Factor,
    Label,
    Labels,
    OneHot,
    Term,
    labels_of,
    picked_labels,
    range_of,
    same_constant,
    same_labels,
)
from numpyro_vips.conjugacy.families import supports
from numpyro_vips.conjugacy.families.family import Range
from numpyro_vips.conjugacy.structure.latents import Latents, known_family

StatisticGeometry = Literal["signed", "nonnegative", "psd"]
# A term, and for each label of its statistic the term's own.
Entry = tuple[Term, Labels]
Matrix = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]

# Room for rounding errors in single precision, in units of the sum of magnitudes.
_ROUNDING = 2.0**-16


def geometry(
    entries: Sequence[Entry], matrix: Matrix | None, latents: Latents
) -> StatisticGeometry:
    """The geometry of a statistic that is the sum of some terms' coefficients.

    "nonnegative" and "psd" also stand for numbers and matrices that all have the
    opposite sign.

    Args:
      entries: The terms that make the statistic.
      matrix: For a symmetric statistic, the numbers of its batch, row and column
        labels.
      latents: All latents of the model.
    """
    apart = _with_what_is_taken_off(entries, latents)
    if _one_sign([_sign(term.factors, term.scale, latents) for term, _ in apart]):
        return "nonnegative"
    if matrix is not None and _one_sign(
        [_sign_of_matrix(entry, matrix, latents) for entry in entries]
    ):
        return "psd"
    return "signed"


def _with_what_is_taken_off(entries: Sequence[Entry], latents: Latents) -> list[Entry]:
    """Leaves out terms that take less off another one than there is of it.

    That is how 1 - y is written for a sparse label y: as one
    everywhere, less y where there are entries. No two of these are at the same place.
    """
    taken_off: list[Entry] = []
    left: list[Entry] = []  # Of each of these something has been taken off.
    for less, whole in itertools.permutations(entries, 2):
        if less in taken_off or less in left or whole in taken_off or whole in left:
            continue
        if _is_part_of(less, whole, latents):
            taken_off.append(less)
            left.append(whole)
    return [entry for entry in entries if entry not in taken_off]


def _is_part_of(less: Entry, whole: Entry, latents: Latents) -> bool:
    """Whether a term is another one times numbers in [-1, 0], at entries alone."""
    term, labels = less
    one_hots = [f for f in term.factors if isinstance(f, OneHot) and f.origin]
    if len(one_hots) != 1 or one_hots[0].target not in labels:
        return False
    (one_hot,) = one_hots
    entry = one_hot.labels[-1]
    at_entries = [f for f in term.factors if f is not one_hot and entry in labels_of(f)]
    values = at_entries[0] if len(at_entries) == 1 else None
    if not isinstance(values, Dense) or entry in labels:
        return False
    if any(x.size > 1 for x in term.bound - {entry, *labels}):
        return False  # What is taken off would add up.
    other, other_labels = whole
    if len({*labels}) < len(labels) or len({*other_labels}) < len(labels):
        return False
    ratio = term.scale / other.scale
    ends = [ratio * end for end in range_of(values)]
    if not -1.0 <= min(ends) <= max(ends) <= 0.0:
        return False
    swap = dict(zip(labels, other_labels, strict=True))
    removed = (one_hot, values)
    mine = [f for f in term.factors if f not in removed and not is_global(f, latents)]
    theirs = [f for f in other.factors if not is_global(f, latents)]
    return _are_images(mine, theirs, swap)


def _one_sign(signs: Sequence[int]) -> bool:
    return len(set(signs)) == 1 and signs[0] != 0


def _sign(factors: Sequence[Factor], scale: float, latents: Latents) -> int:
    """1 or -1 if the product of what is not global has that sign, else 0."""
    sign = 1 if scale > 0 else -1
    for factor in _without_squares(factors):
        sign *= _sign_of_factor(factor, latents)
    return sign


def _without_squares(factors: Sequence[Factor]) -> list[Factor]:
    """Leaves out pairs of equal factors, whose product is a square."""
    rest: list[Factor] = []
    for factor in factors:
        for other in rest:
            if _is_image(factor, other, {}):
                rest.remove(other)
                break
        else:
            rest.append(factor)
    return rest


def _sign_of_factor(factor: Factor, latents: Latents) -> int:
    if is_global(factor, latents):
        return 1
    lower, upper = _range_of_factor(factor, latents)
    return int(lower >= 0) or -int(upper <= 0)


def _sign_of_matrix(entry: Entry, matrix: Matrix, latents: Latents) -> int:
    """The sign of a term that is positive semidefinite in its row and column labels.

    It is so if every factor with row labels has a mirror image with column labels, a
    constant's own copy or the other atom of a second moment: Σ_n c_n a_n a_nᵀ with
    c ≥ 0. Products of such matrices, entry by entry, stay positive semidefinite.
    """
    term, labels = entry
    _, rows, columns = matrix
    row_labels = tuple(labels[i] for i in rows)
    column_labels = tuple(labels[i] for i in columns)
    same = [r is c for r, c in zip(row_labels, column_labels, strict=True)]
    if all(same):  # On the diagonal.
        return _sign(term.factors, term.scale, latents)
    if any(same):
        return 0
    inside = [f for f in term.factors if not is_global(f, latents)]
    swap = dict(zip(row_labels, column_labels, strict=True))
    swap |= _entry_labels(inside, swap, term.bound - set(labels))
    row_labels, column_labels = tuple(swap), tuple(swap.values())
    if len({*row_labels, *column_labels}) < 2 * len(swap):
        return 0
    in_rows = [f for f in inside if set(labels_of(f)) & set(row_labels)]
    in_columns = [f for f in inside if set(labels_of(f)) & set(column_labels)]
    if any(factor in in_columns for factor in in_rows):
        return 0
    if not _are_images(in_rows, in_columns, swap):
        return 0
    rest = [f for f in inside if not set(labels_of(f)) & {*row_labels, *column_labels}]
    return _sign(rest, term.scale, latents)


def entry_range(entries: Sequence[Entry], latents: Latents) -> Range:
    """Between which numbers each entry of a statistic lies, whatever the row holds.

    Expectations of a product lie where the product does: an indicator in [0, 1], a
    Pólya-Gamma variable's mean in [0, 1/4], a constant in its checked range.

    Args:
      entries: The terms that make the statistic.
      latents: All latents of the model.

    Returns:
      Lower and upper bound, infinite where there is none.
    """
    lower = upper = magnitude = 0.0
    for term, labels in entries:
        low, high = _range_of_term(term, labels, latents)
        if len(set(labels)) < len(labels):  # Zero off the diagonal.
            low, high = min(low, 0.0), max(high, 0.0)
        lower, upper = lower + low, upper + high
        magnitude += max(-low, high)
    if not math.isfinite(magnitude):
        return -math.inf, math.inf
    # A product of numbers of known sign has that sign, whatever the rounding.
    room, is_sum = _ROUNDING * magnitude, len(entries) > 1
    lower -= room if is_sum or lower < 0 else 0.0
    upper += room if is_sum or upper > 0 else 0.0
    return lower, upper


def _range_of_term(term: Term, labels: Labels, latents: Latents) -> Range:
    inside = [f for f in term.factors if not is_global(f, latents)]
    low = high = term.scale
    for factor in inside:
        edges = _range_of_factor(factor, latents)
        if not all(map(math.isfinite, edges)):
            return -math.inf, math.inf
        products = [a * b for a, b in itertools.product((low, high), edges)]
        low, high = min(products), max(products)
    # Sums, but for those of which a selector picks one, and those over a row's entries,
    # of which every place has one at most.
    present = {label for factor in inside for label in labels_of(factor)}
    picked = set(picked_labels(Term(1.0, tuple(inside))))
    placed = {
        factor.labels[-1]
        for factor in inside
        if isinstance(factor, OneHot) and factor.origin and factor.target in labels
    }
    if placed:
        low, high = min(low, 0.0), max(high, 0.0)
    size = math.prod(label.size for label in present - picked - placed - set(labels))
    return size * low, size * high


def _range_of_factor(factor: Factor, latents: Latents) -> Range:
    """The range of a constant, or of an atom's expectation."""
    if isinstance(factor, Dense | OneHot):
        return range_of(factor)
    latent = latents[factor.latent]
    family = known_family(latent)
    lower, upper = -math.inf, math.inf
    if family and factor.function in family.statistics and factor.power == 1.0:
        lower, upper = family.moment_range
    if factor.function == "x" and supports.bounds(latent.support)[0] >= 0:
        lower = max(lower, 0.0)
    return lower, upper


def _entry_labels(
    factors: Sequence[Factor], swap: Mapping[Label, Label], bound: Set[Label]
) -> dict[Label, Label]:
    """The entries that are put at places along the rows, by those along the columns.

    Where a = Σ_l values[l] 1[v = index_l] has a label l of its own in either, the
    matrix is that of a aᵀ, and these labels are mirror images as rows and columns are.
    """
    found = {}
    one_hots = [f for f in factors if isinstance(f, OneHot) and f.labels]
    for a, b in itertools.product(one_hots, repeat=2):
        same = same_constant(a.indices, b.indices)
        same = same and swap.get(a.target) is b.target
        if same and {a.labels[-1], b.labels[-1]} <= bound:
            found[a.labels[-1]] = b.labels[-1]
    return found


def _are_images(
    factors: Sequence[Factor], others: Sequence[Factor], swap: Mapping[Label, Label]
) -> bool:
    """Whether each factor is the same function as one of the others."""
    left = list(others)
    for factor in factors:
        images = [other for other in left if _is_image(factor, other, swap)]
        if not images:
            return False
        left.remove(images[0])
    return not left


def _is_image(a: Factor, b: Factor, swap: Mapping[Label, Label]) -> bool:
    """Whether two factors are the same function, with labels swapped."""
    if isinstance(a, Atom) and isinstance(b, Atom):
        same = (a.latent, a.function, a.power) == (b.latent, b.function, b.power)
    elif not isinstance(a, Atom) and not isinstance(b, Atom):
        same = type(a) is type(b) and same_constant(a.array, b.array)
    else:
        return False
    labels = tuple(swap.get(label, label) for label in labels_of(a))
    return same and same_labels(labels, labels_of(b))


def is_global(factor: Factor, latents: Latents) -> bool:
    return isinstance(factor, Atom) and latents[factor.latent].role == "global"
