"""Values of parameters without a prior: leaf by leaf, and back as the model has them.

A file holds arrays and the way to each of them, such as `net$params`, `layers`, `0`,
`weight`. It holds no classes, so that nothing is executed when it is read. Read again,
a network is nested dicts, which is what most libraries of networks take; where it is
something else, such as an object of Equinox, the model that makes it says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import DictKey, keystr
from jaxtyping import Array, Float

# The separator of netCDF's groups would be a poor choice for names within a file.
_SEPARATOR = "::"


def named_points(points: Mapping[str, Any]) -> dict[str, Float[Array, "..."]]:
    """Point estimates leaf by leaf: a network's are `net$params::Dense_0::kernel`."""
    return {
        _SEPARATOR.join(map(str, path)): leaf for path, leaf in _by_path(points).items()
    }


def paths_of_points(points: Mapping[str, Any]) -> dict[str, list[str | int]]:
    """The keys that lead to each leaf of nested points, by its `named_points` name."""
    return {_SEPARATOR.join(map(str, path)): [*path] for path in _by_path(points)}


def points_at(
    paths: Mapping[str, Sequence[str | int]],
    named: Mapping[str, Float[Array, "..."]],
) -> dict[str, Any]:
    """Points as nested dicts, which have the keys that lead to each leaf.

    Args:
      paths: From `paths_of_points`.
      named: From `named_points`; it may hold other arrays, too.
    """
    points: dict[Any, Any] = {}
    for name, path in paths.items():
        *within, last = path
        place = points
        for key in within:
            place = place.setdefault(key, {})
        place[last] = named[name]
    return points


def in_structure_of(own: Any, value: Any) -> Any:
    """A parameter's value in the structure that its model gives it.

    Args:
      own: The parameter's initial value, any pytree.
      value: What takes its place.

    Returns:
      If `value` is nested dicts in which the same keys lead to leaves as in `own`, its
      leaves in the structure of `own`; anything else as it is.
    """
    if not isinstance(value, dict):
        return value
    structure = jax.tree.structure(own)
    if structure == jax.tree.structure(value):
        return value
    leaves = {tuple(map(str, path)): leaf for path, leaf in _by_path(value).items()}
    paths = [tuple(map(str, path)) for path in _by_path(own)]
    if {*paths} != leaves.keys():
        return value
    return jax.tree.unflatten(structure, [leaves[path] for path in paths])


def _by_path(tree: Any) -> dict[tuple[str | int, ...], Any]:
    """The leaves of a tree by the keys that lead to them, in the tree's order."""
    return {
        tuple(_plain(key) for key in path): leaf
        for path, leaf in jax.tree.leaves_with_path(tree)
    }


def _plain(key: Any) -> str | int:
    """A key of a dict that JSON keeps as it is; of any other container a name of it."""
    # A truth value is an integer, too, and none when it has been read from JSON.
    if isinstance(key, DictKey) and type(key.key) in (str, int):
        return key.key
    return keystr((key,), simple=True)
