"""Draws from a posterior as a dataset whose axes have names, for ArviZ."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numpyro_vips.errors import did_you_mean, quoted
from numpyro_vips.model.facts.axis_labels import AxisLabels

if TYPE_CHECKING:
    import xarray

_SAMPLE_DIMS = ("chain", "draw")


def named_dataset(
    draws: Mapping[str, np.ndarray],
    site_dims: Mapping[str, tuple[str, ...]],
    coords: Mapping[str, Sequence[Any]],
    dims: Mapping[str, Sequence[str]],
    axis_labels: AxisLabels,
) -> "xarray.Dataset":
    """Puts draws, with axes (chain, draw, ...), into a dataset with named axes."""
    import xarray

    draws = {_safe(name): draw for name, draw in draws.items()}
    site_dims = {_safe(name): names for name, names in site_dims.items()}
    dims = {_safe(name): names for name, names in dims.items()}
    _check_known("dims", dims, draws, "sites")
    axes = {
        name: _axes(name, draw.ndim - 2, site_dims.get(name, ()), dims.get(name), draws)
        for name, draw in draws.items()
    }
    lengths: dict[str, int] = {}
    first: dict[str, str] = {}
    for name, draw in draws.items():
        for axis, length in zip(axes[name], draw.shape[2:], strict=True):
            first.setdefault(axis, name)
            if lengths.setdefault(axis, length) != length:
                raise ValueError(
                    f"The axis {axis!r} has length {lengths[axis]} in {first[axis]!r} "
                    f"and {length} in {name!r}. Give one of them another name with "
                    f"dims={{{name!r}: [...]}}."
                )
    coords = {_safe(name): labels for name, labels in coords.items()}
    _check_known("coords", coords, lengths, "axes")
    for axis, labels in coords.items():
        if len(labels) != lengths[axis]:
            raise ValueError(
                f"Expected {lengths[axis]} labels in coords for the axis {axis!r} of "
                f"{first[axis]!r}, got {len(labels)}."
            )
    chains, samples = next(iter(draws.values())).shape[:2] if draws else (0, 0)
    labels = {axis: np.arange(length) for axis, length in lengths.items()}
    labels |= _known_labels(axes, axis_labels)
    labels |= {axis: np.asarray(given) for axis, given in coords.items()}
    labels |= {"chain": np.arange(chains), "draw": np.arange(samples)}
    variables = {
        name: ((*_SAMPLE_DIMS, *axes[name]), draw) for name, draw in draws.items()
    }
    return xarray.Dataset(variables, coords=labels)


def _known_labels(
    axes: Mapping[str, Sequence[str]], axis_labels: AxisLabels
) -> dict[str, np.ndarray]:
    """By the name of an axis what numbers its entries, where all sites agree."""
    found: dict[str, set[tuple[str, ...] | None]] = {}
    by_site = {_safe(site): labels for site, labels in axis_labels.items()}
    for site, names in axes.items():
        known = by_site.get(site) or [None] * len(names)
        for name, labels in zip(names, known, strict=True):
            mine = None if labels is None else tuple(labels)
            found.setdefault(name, set()).add(mine)
    return {
        name: np.asarray(labels)
        for name, (labels, *others) in found.items()
        if labels is not None and not others
    }


def _axes(
    site: str,
    count: int,
    plates: Sequence[str],
    given: Sequence[str] | None,
    sites: Iterable[str],
) -> list[str]:
    """Names for a site's axes: the caller's, else its plates', else numbered ones."""
    taken = {*_SAMPLE_DIMS, *sites}
    numbered = [f"{site}_dim_{axis}" for axis in range(count)]
    if given is None:
        names = [_safe(plate) for plate in plates[:count]]
        # A plate may bear a name that ArviZ needs for something else.
        names = [
            default if name in taken or name in names[:axis] else name
            for axis, (name, default) in enumerate(zip(names, numbered, strict=False))
        ]
        return names + numbered[len(names) :]
    if isinstance(given, str) or len(given) > count:
        raise ValueError(
            f"Expected dims[{site!r}] to be a list of at most {count} names, one for "
            f"each axis of {site!r}, got {given!r}."
        )
    names = [_safe(name) for name in given]
    if taken.intersection(names) or len(set(names)) < len(names):
        raise ValueError(
            f"Expected dims[{site!r}] to be names that differ from each other, from "
            f"'chain' and 'draw' and from the sites' names, got {given!r}."
        )
    return names + numbered[len(names) :]


def _check_known(
    argument: str, given: Iterable[str], known: Mapping[str, Any], what: str
) -> None:
    for name in given:
        if name not in known:
            hint = f"{did_you_mean(name, known)} Its {what} are {quoted(known)}."
            raise ValueError(
                f"{argument} names {name!r}, which the posterior does not have. "
                f"{hint.lstrip()}"
            )


def _safe(name: str) -> str:
    return name.replace("/", ".")
