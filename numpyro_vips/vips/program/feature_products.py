"""Terms in which each coefficient is multiplied by one number of its own.

In b x z + c x a row's x is a factor of two features, and in a model of two responses it
is a feature of two Gaussian blocks. For each to be standardised by itself, terms are
written anew: what a coefficient is multiplied by becomes one slot, a product of others
that `RowConstants` makes with them. An intercept that is an entry of a vector beside
coefficients stays itself.

That the terms are still the same function of a row and its latents is not assumed: it
is tried at random numbers.
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import jax.numpy as jnp
import numpy as np

from numpyro_vips.conjugacy.algebra.forms import Form
from numpyro_vips.conjugacy.algebra.terms import (
    Atom,
    Dense,
    Factor,
    Label,
    Labels,
    OneHot,
    Slot,
    Term,
    is_public,
    is_selector,
    labels_of,
    range_of,
)
from numpyro_vips.conjugacy.structure.gaussian_layout import GaussianLayout
from numpyro_vips.conjugacy.structure.log_joint import LogJoint
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.row_constants import (
    Product,
    ProductFactor,
    RowConstants,
)
from numpyro_vips.conjugacy.structure.structure import Structure, normal_terms
from numpyro_vips.vips.program.feature_detection import (
    NO_TOKEN,
    entries_of,
    long_labels,
    picks_of,
)
from numpyro_vips.vips.program.random_trials import are_equal

# A latent, and which of its entries public indices pick.
_Key = tuple[str, tuple[tuple[int, ...], ...]]
_Parts = tuple[ProductFactor, ...]


class _Unclear(Exception):
    """What a coefficient is multiplied by is not known."""


def with_own_products(
    structure: Structure,
    name: str,
    log_joint: LogJoint,
    constants: RowConstants,
    *,
    more_than: int,
) -> tuple[LogJoint, RowConstants] | None:
    """The log joint density in which features of a factor are slots of their own.

    Args:
      structure: What was found in the model.
      name: A Gaussian factor.
      log_joint, constants: The model's, with slots.
      more_than: How many features are known without that.

    Returns:
      None if that is not possible, or there are no more features.
    """
    factor = structure.posterior_factors[name]
    layout = factor.layout
    if layout is None or layout.batch_shape or not factor.family.has_covariances:
        return None
    of_rows = [density for density in log_joint.densities if density.is_row]
    before = [
        normal_terms(density.form.terms, log_joint.latents) for density in of_rows
    ]
    all_terms = list(itertools.chain(*before))
    try:
        of_keys = _parts_of_keys(factor, layout, all_terms)
        products = _named(of_keys, layout, constants)
        if sum(math.prod(product.shape) for product in products.values()) <= more_than:
            return None
        moved = [
            [_rewritten(term, layout, products) for term in terms] for terms in before
        ]
    except _Unclear:
        return None
    # Of products that terms have already only the numbers count here, as of any slot.
    new = dataclasses.replace(constants, products=tuple(products.values()))
    if not are_equal(
        structure, all_terms, list(itertools.chain(*moved)), new.with_products
    ):
        return None
    after = dataclasses.replace(
        constants, products=(*constants.products, *new.products)
    )
    forms = iter(Form((), tuple(terms), exclusive=False) for terms in moved)
    densities = tuple(
        dataclasses.replace(density, form=next(forms)) if density.is_row else density
        for density in log_joint.densities
    )
    return dataclasses.replace(log_joint, densities=densities), after


# --- what each coefficient is multiplied by -------------------------------------------


def _parts_of_keys(
    factor: PosteriorFactor, layout: GaussianLayout, terms: Sequence[Term]
) -> dict[_Key, _Parts]:
    """By key, the numbers of a row that stand with it; as its squares have them."""
    found: dict[_Key, _Parts] = {}
    for term in terms:
        atoms = [atom for atom in term.atoms if atom.latent in factor.latents]
        if len(atoms) != 2:
            continue
        first, second = (_key(atom, layout, term) for atom in atoms)
        if first != second:
            continue
        parts = _halves(term, atoms, layout)
        if found.setdefault(first, parts) != parts:
            raise _Unclear
    return found


def _key(atom: Atom, layout: GaussianLayout, term: Term) -> _Key:
    if (atom.function, atom.power) != ("x", 1.0):
        raise _Unclear
    return atom.latent, picks_of(atom, layout, term)


def _halves(term: Term, atoms: Sequence[Atom], layout: GaussianLayout) -> _Parts:
    """What each of two atoms is multiplied by in a term, if it is the same."""
    mine = [entries_of(atom, layout, term) for atom in atoms]
    parts: tuple[list[ProductFactor], list[ProductFactor]] = ([], [])
    of_both: Counter[ProductFactor] = Counter()
    for factor in term.constants:
        if is_public(factor.array):
            continue
        long = long_labels(labels_of(factor))
        owners = [set(long) <= set(labels) for labels in mine]
        if not any(owners):
            raise _Unclear
        if all(owners):
            part = _part(factor, mine[0])
            if is_selector(factor):
                parts[0].append(part)
                parts[1].append(_part(factor, mine[1]))
            else:
                of_both[part] += 1
        else:
            owner = owners.index(True)
            parts[owner].append(_part(factor, mine[owner]))
    for part, count in of_both.items():
        if count % 2 and any(axis is not None for axis in part.axes):
            raise _Unclear
        for side in parts:
            side.extend([part] * (count // 2))
    first, second = (tuple(sorted(side, key=str)) for side in parts)
    if first != second:
        raise _Unclear
    return first


def _part(factor: Dense | OneHot, mine: Labels) -> ProductFactor:
    """A constant as a part of what multiplies an atom with these entries."""
    axes = tuple(
        mine.index(label) if label.size > 1 else None for label in labels_of(factor)
    )
    if isinstance(factor, OneHot) and factor.origin is not None:
        raise _Unclear
    size = factor.target.size if isinstance(factor, OneHot) else None
    is_free = range_of(factor)[1] == np.inf and not is_selector(factor)
    token = factor.array.token
    assert isinstance(token, int)  # Only means of latents have names.
    return ProductFactor(token, size, axes, is_free)


def _named(
    of_keys: Mapping[_Key, _Parts], layout: GaussianLayout, constants: RowConstants
) -> dict[_Key, Product]:
    """The product of each key that has a feature."""
    chosen = [
        key for key, parts in of_keys.items() if any(part.is_free for part in parts)
    ]
    next_token = NO_TOKEN - 1 - len(constants.products)
    found = {}
    for number, key in enumerate(sorted(chosen)):
        latent, picks = key
        shape = layout.block_shape(latent)
        picked = (len(pick) or n for n, pick in zip(shape, picks, strict=True))
        sizes = tuple(size for size in picked if size > 1)
        found[key] = Product(next_token - number, of_keys[key], sizes)
    return found


# --- terms with them ------------------------------------------------------------------


def _rewritten(
    term: Term, layout: GaussianLayout, products: Mapping[_Key, Product]
) -> Term:
    """The term with a slot in the place of what multiplies each coefficient."""
    mine = [
        atom
        for atom in term.atoms
        if atom.latent in layout.shapes and _key(atom, layout, term) in products
    ]
    for atom in mine:
        term = _with_slot(term, atom, layout, products[_key(atom, layout, term)])
    return term


def _with_slot(
    term: Term, atom: Atom, layout: GaussianLayout, product: Product
) -> Term:
    """The term with a product's slot in the place of all that one atom is times.

    Args:
      term: A term that has the atom.
      atom: Of a latent in the block.
      layout: The latent's place in it.
      product: What the atom is multiplied by, as a number of the row.
    """
    entries = entries_of(atom, layout, term)
    rest: list[Factor] = list(term.factors)
    rest.remove(atom)
    others = {
        label
        for factor in rest
        if isinstance(factor, Atom) or is_public(factor.array)
        for label in labels_of(factor)
    }
    own = {label: Label(label.size) for label in entries if label in others}
    for part in product.parts:
        constants = (f for f in rest if not isinstance(f, Atom))
        factor = next((f for f in constants if _is(part, f, entries)), None)
        if factor is None:
            raise _Unclear
        # Where others stand on the same label, a selector says which entry they are.
        if not (is_selector(factor) and (own or not long_labels(labels_of(factor)))):
            rest.remove(factor)
    labels = tuple(own.get(label, label) for label in entries)
    moved = Term(1.0, (atom,)).renamed(own).factors
    slot = Slot(product.token, product.shape, jnp.dtype(jnp.result_type(float)))
    factors = (*rest, *moved, Dense(slot, labels, is_private=True))
    return Term(term.scale, factors, term.bound | set(own.values()))


def _is(part: ProductFactor, factor: Dense | OneHot, entries: Labels) -> bool:
    """Whether a constant is this part of what multiplies an atom."""
    long = long_labels(labels_of(factor))
    if is_public(factor.array) or not set(long) <= set(entries):
        return False
    return _part(factor, entries) == part
