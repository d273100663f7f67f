"""How the blocks of one step are scaled against each other, and their joint bound."""

import dataclasses
from collections.abc import Mapping, Sequence

from numpyro_vips.accounting import Relation
from numpyro_vips.fitting.bounds.norm_parts import NormPart, squared_norm
from numpyro_vips.privacy.gaussian_mechanism import Block, optimal_scales
from numpyro_vips.privacy.releases import SQUARES, WHOLE_VECTOR


def bounded_blocks(
    blocks: Sequence[Block],
    norms: Mapping[str, float],
    *,
    relation: Relation,
    is_one_vector: bool,
    parts: Sequence[NormPart] = (),
) -> tuple[tuple[Block, ...], float]:
    """Scales the blocks of one step against each other and bounds their joint norm.

    Parts are scaled so that their relative errors are alike, unless they are parts of
    one vector. Errors are counted where they end, see `Block.directions`.

    Args:
      blocks: What the step releases, at scale 1.
      norms: The norm that each part of it is clipped to, by the part's name.
      relation: The relation that the noise protects.
      is_one_vector: Whether the blocks are parts of one vector, named `WHOLE_VECTOR`,
        or its information.
      parts: Those of several blocks; any other block is a part by itself.

    Returns:
      The blocks, and the bound on their joint norm.
    """
    if is_one_vector:
        name = blocks[0].name
        if name in SQUARES and name in norms:
            return tuple(blocks), norms[name]
        return tuple(blocks), _norm_of_vector(blocks, norms[WHOLE_VECTOR])
    part_of = {name: part for part in parts for name in part.blocks}
    members: dict[str, list[Block]] = {}
    for block in blocks:
        name = part_of[block.name].name if block.name in part_of else block.name
        members.setdefault(name, []).append(block)
    bounds = {name: norms[name] for name in members}
    if len(members) == 1:
        return tuple(blocks), next(iter(bounds.values()))
    whole = [_as_one(mine, part_of.get(mine[0].name)) for mine in members.values()]
    scales = optimal_scales(
        whole,
        bounds,
        relation=relation,
        weights={
            block.name: block.num_directions
            / block.num_coordinates
            / bounds[block.name] ** 2
            for block in whole
        },
    )
    return tuple(
        dataclasses.replace(block, scale=scales[name])
        for name, mine in members.items()
        for block in mine
    ), 1.0


def _as_one(blocks: Sequence[Block], part: NormPart | None) -> Block:
    """The blocks of a part as one, of which only sizes and signs matter."""
    if part is None or len(blocks) == 1:
        return blocks[0]
    return Block(
        name=part.name,
        shape=(sum(block.num_coordinates for block in blocks),),
        directions=part.directions,
    )


def given_blocks(
    blocks: Sequence[Block],
    given: float | Mapping[str, float],
    *,
    relation: Relation,
) -> tuple[tuple[Block, ...], float]:
    """Blocks and joint bound for the caller's `clipping_norm=`.

    A number bounds the statistics as they are. With a typical norm of each they are
    scaled as by `bounded_blocks`, and the joint bound is that of a row in which each
    has its typical norm.

    Raises:
      ValueError: A block has no norm.
    """
    if not isinstance(given, Mapping):
        return tuple(blocks), _norm_of_vector(blocks, given)
    missing = [block.name for block in blocks if block.name not in given]
    if missing:
        raise ValueError(
            f"Expected clipping_norm= to have a norm for {missing} too; it has "
            f"{sorted(given)}."
        )
    return bounded_blocks(blocks, given, relation=relation, is_one_vector=False)


def _norm_of_vector(blocks: Sequence[Block], norm: float) -> float:
    """The norm of a row's gradient, or that of its information, which is its square.

    At the truth a row's information is on average the gradient's outer product with
    itself.
    """
    if any(block.name in SQUARES for block in blocks):
        return squared_norm(norm)
    return norm
