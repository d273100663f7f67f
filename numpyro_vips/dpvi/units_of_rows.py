"""How far a global moves until a row's density tells the difference.

A prior such as Normal(0, 50) does not say in which unit a global is. A coefficient of a
logit is hardly ever 50, and the mean of a score may well be. So a fit starts in units
that are short, and looks at rows' density on its way: of the mean of a Normal, the unit
is the Normal's standard deviation. Where a response is far from the prior's centre,
this grows within some steps to how far it is. From then on, steps and rows' gradients
are in such units. Short ones would not get there, nor would effects of groups stand out
beside the mean.

Nothing but the iterate enters, which released sums have made, and synthetic rows. Each
row's gradient is clipped in whatever coordinates there are.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Shaped

from numpyro_vips.dpvi.guides.unconstrained import UnconstrainedSpace
from numpyro_vips.dpvi.logarithmic_globals import logarithmic_globals
from numpyro_vips.jax_tools.quick_compilation import jit_unoptimized

# A row's log density, of the unconstrained globals that it depends on and of the row.
RowDensity = Callable[[Mapping[str, Any], Mapping[str, Any]], Float[Array, ""]]

# By how much a prior has to be wider than a unit for the unit to be in question.
_WIDER = 2.0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class UnitsOfRows:
    """What rows say of units, at any place of the globals.

    Attributes:
      read: The globals that rows depend on, in the layout's order.
      names: Those of them whose units may be in question.
      widest: By name, the prior's standard deviations in units.
      curvatures: By name the curvature of each row's log density in the global's value,
        from the unconstrained globals in `read` and rows.
      rows: Synthetic rows.
    """

    read: UnconstrainedSpace
    names: tuple[str, ...]
    widest: Mapping[str, Float64[np.ndarray, "..."]]
    curvatures: Callable[[Any, Any], Mapping[str, Float[Array, " rows"]]]
    rows: Mapping[str, Any]

    @classmethod
    def of_model(
        cls,
        density: RowDensity,
        program: jex_core.ClosedJaxpr,
        centres: Mapping[str, Any],
        *,
        read: UnconstrainedSpace,
        widest: Mapping[str, Float64[np.ndarray, "..."]],
        coefficients: Collection[str],
        rows: Callable[[], Mapping[str, Shaped[np.ndarray, "rows ..."]]],
    ) -> "UnitsOfRows":
        """What synthetic rows of a model say of units; no private value is read.

        A unit is in question where the global may be any number and its prior is wider,
        as it may be once the sizes of features have made the unit of a coefficient
        shorter. Those whose exponential is taken are no such: as an exponent, one is
        much.

        Args:
          density: A row's log density.
          program: The same, traced, of inputs that begin with the leaves of `centres`.
          centres: Places of all globals.
          read, widest: See above; `widest` for all globals.
          coefficients: Globals whose units may become shorter.
          rows: Makes synthetic rows.
        """
        names = [
            s.name
            for s in read.sites
            if s.is_real and (s.name in coefficients or np.any(widest[s.name] > _WIDER))
        ]
        if names:
            exponents = logarithmic_globals(program, centres)
            names = [name for name in names if name not in exponents]
        in_question = {s.name: s.units for s in read.sites if s.name in names}
        return cls(
            read=read,
            names=tuple(names),
            widest={name: widest[name] for name in names},
            curvatures=jit_unoptimized(
                jax.vmap(_curvatures(density, in_question), in_axes=(None, 0))
            ),
            rows=_of_unit_size(rows()) if names else {},
        )

    def at(
        self, loc: Float[Array, " size"], units: Float64[np.ndarray, " read"] | None
    ) -> Float64[np.ndarray, " read"]:
        """The units at a place, in multiples of those of the layout.

        Args:
          loc: The place: all unconstrained globals, those that rows depend on first.
          units: By how much the sizes of features have made them larger; None by one.

        Returns:
          For each number that rows depend on 1 / √h with the middle row's curvature h,
          at features of one, times its entry in `units`. It is at least that entry, and
          at most as the prior is wide.
        """
        place = self.read.split(jnp.asarray(loc)[: self.read.size])
        of_rows = self.curvatures(place, self.rows) if self.names else {}
        before = np.ones(self.read.size) if units is None else units
        shares = self.read.split(jnp.asarray(before))
        grown = [np.zeros(0)]
        for site in self.read.sites:
            factors = np.asarray(shares[site.name], np.float64)
            middle = _middle(of_rows.get(site.name, np.zeros(0)))
            if middle > 0:
                most = self.widest[site.name] / factors
                # A narrow prior's unit is in `units` where it is in question.
                unit = 1.0 / math.sqrt(middle) / np.maximum(site.units, 1.0)
                by = np.clip(unit, 1.0, np.maximum(1.0, most))
                factors = np.where(most > _WIDER, by, 1.0) * factors
            grown.append(np.ravel(factors))
        return np.concatenate(grown)


def _middle(numbers: Any) -> float:
    """The median of those that are finite; 0 if none is."""
    finite = np.asarray(numbers, np.float64)
    finite = finite[np.isfinite(finite)]
    return float(np.median(finite)) if finite.size else 0.0


def _curvatures(
    density: RowDensity, units: Mapping[str, Float64[np.ndarray, "..."]]
) -> Callable[[Any, Any], Any]:
    """Returns the function that gives the curvatures of a row's log density.

    By global it is the mean over the entries on which that row depends.

    Args:
      density: The row's log density.
      units: By global, what its unconstrained numbers are multiples of.
    """

    def of_global(
        place: Mapping[str, Float[Array, "..."]], row: Mapping[str, Any], name: str
    ) -> Float[Array, ""]:
        def slope(value: Float[Array, "..."]) -> Float[Array, "..."]:
            return jax.grad(density)({**place, name: value}, row)[name]

        def along(
            direction: Float[Array, "..."],
        ) -> tuple[Float[Array, ""], Bool[Array, ""]]:
            bent = jax.jvp(slope, (place[name],), (direction,))[1]
            return -jnp.sum(direction * bent), jnp.any(bent != 0)

        shape, dtype = jnp.shape(place[name]), place[name].dtype
        size = math.prod(shape)
        entries = jnp.eye(size, dtype=dtype).reshape(size, *shape)
        found, depends = jax.vmap(along)(entries)
        found = found / jnp.asarray(np.ravel(units[name]) ** 2, dtype)
        return jnp.sum(found) / jnp.sum(depends.astype(dtype))

    def of_row(place: Any, row: Any) -> dict[str, Float[Array, ""]]:
        return {name: of_global(place, row, name) for name in units}

    return of_row


def _of_unit_size(
    rows: Mapping[str, Shaped[np.ndarray, "rows ..."]],
) -> dict[str, Shaped[np.ndarray, "rows ..."]]:
    """Rows of norm 1 as rows whose entries are about 1."""
    return {
        name: (math.sqrt(values[0].size) * values).astype(values.dtype)
        if values.dtype.kind == "f"
        else values
        for name, values in rows.items()
    }
