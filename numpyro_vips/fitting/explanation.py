"""What `explain` says: which engine, site by site, and why.

It describes shapes, programs and options; no data value is read for it.
"""

import dataclasses
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from numpyro_vips.accounting import json_number
from numpyro_vips.conjugacy.structure.posterior_factors import PosteriorFactor
from numpyro_vips.conjugacy.structure.statistic import Statistic
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.dpvi.engine import DpviEngine
from numpyro_vips.fitting.schedule import ScheduleOptions, Step
from numpyro_vips.jax_tools.program_constants import listed
from numpyro_vips.model.graph import ModelGraph
from numpyro_vips.vips.engine import VipsEngine

_WIDTH = 100
# What an auxiliary variable of each family is called; others by the family's name.
_AUGMENTATIONS = {
    "PolyaGamma": "Pólya-Gamma",
    "Tangent": "fixed curvature",
    "Categorical": "allocation",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """How a model would be fitted.

    Attributes:
      engine: `"vips"` or `"dpvi"`.
      sites: One entry per site: `site`, `role`, `shape`, `posterior` (family and
        statistics), and `augmentation` of an observed one.
      statistics: One entry per block of a row's statistics: `statistic`, `shape`,
        `released` ("public", "once" or "adaptive"), `clipping_norm` and `sensitivity`.
      reasons: By site, why VIPS cannot run the model (empty if it can).
      schedule: One entry per kind of step.
      notes: What else to know, such as where the clipping norms come from.
    """

    engine: str
    sites: tuple[Mapping[str, Any], ...]
    statistics: tuple[Mapping[str, Any], ...]
    reasons: Mapping[str, str]
    schedule: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-able values; an infinite number becomes `"inf"`."""
        return {
            "engine": self.engine,
            "sites": [_jsonable(site) for site in self.sites],
            "statistics": [_jsonable(statistic) for statistic in self.statistics],
            "reasons": dict(self.reasons),
            "schedule": [_jsonable(step) for step in self.schedule],
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        lines = [f"Engine: {self.engine}"]
        if self.reasons:
            lines.append("VIPS cannot run it:")
            for site, reason in self.reasons.items():
                lines += _wrapped(f"{site}: {reason}")
        lines += ["", *_table("site role shape posterior augmentation", self.sites)]
        if self.statistics:
            columns = "statistic shape released clipping_norm sensitivity"
            lines += ["", *_table(columns, self.statistics)]
        columns = "steps releases sampling rate clipping_norm"
        lines += ["", *_table(columns, self.schedule)]
        for note in self.notes:
            lines += ["", *textwrap.wrap(note, _WIDTH)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)


def _jsonable(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: json_number(value) if isinstance(value, float) else value
        for name, value in row.items()
    }


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
    )


def _table(columns: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A table of at most 100 columns; cells that are too wide end in an ellipsis."""
    names = columns.split()
    cells = [[name.replace("_", " ") for name in names]]
    cells += [[_cell(row.get(name)) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    gap = 2 * (len(names) - 1)
    while sum(widths) + gap > _WIDTH:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for line in cells:
        cut = [
            text if len(text) <= width else text[: width - 1] + "…"
            for text, width in zip(line, widths, strict=True)
        ]
        padded = [text.ljust(width) for text, width in zip(cut, widths, strict=True)]
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return lines


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        return "none" if math.isinf(value) else f"{value:.4g}"
    if isinstance(value, list):
        return "×".join(map(str, value)) or "scalar"
    return str(value)


def explain_plan(
    graph: ModelGraph,
    engine: Any,
    steps: Sequence[Step],
    reasons: Mapping[str, str],
    options: ScheduleOptions,
    unused: Sequence[str] = (),
) -> Plan:
    """Describes an analysed model and its schedule; `unused` names ignored options."""
    structure = engine.program.structure if isinstance(engine, VipsEngine) else None
    released = {b.name: step for step in reversed(steps) for b in step.blocks}
    statistics: list[dict[str, Any]] = []
    if structure is not None:
        statistics = [_statistic(s, released, options) for s in structure.statistics]
    else:
        for step in steps[:1]:
            statistics += [
                {
                    "statistic": block.name,
                    "shape": list(block.shape),
                    "released": "adaptive",
                    "clipping_norm": step.clipping_norm,
                    "sensitivity": _sensitivity(step, options),
                }
                for block in step.blocks
            ]
    return Plan(
        engine=engine.name,
        sites=tuple(_site(graph, name, structure, engine) for name in graph.sites),
        statistics=tuple(statistics),
        reasons=dict(reasons),
        schedule=tuple(_schedule(steps)),
        notes=(
            *_notes(graph, structure, options, engine),
            *_notes_on_widths(graph, engine),
            *(f"{engine.name.upper()} does not look at {name}=." for name in unused),
        ),
    )


def _site(
    graph: ModelGraph, name: str, structure: Structure | None, engine: Any
) -> dict[str, Any]:
    site = graph.sites[name]
    role = site.role
    posterior = augmentation = None
    if structure is not None:
        if site.is_latent:
            factor = structure.posterior_factors[structure.factor_of[name]]
            posterior = _posterior(factor, structure)
            prior_only = factor.role == "global" and not any(
                latent == name for s in structure.statistics for latent, *_ in s.atoms
            )
            role = "hyper" if prior_only else role
        auxiliary = [
            _AUGMENTATIONS.get(latent.family, latent.family)
            for latent in structure.latents.values()
            if latent.family is not None and latent.name.startswith(f"{name}:")
        ]
        augmentation = ", ".join(dict.fromkeys(auxiliary)) or None
    elif site.is_latent:
        posterior = engine.describe(name)
    shape = [n for axis, n in enumerate(site.shape) if axis != site.row_axis]
    return {
        "site": name,
        "role": role,
        "shape": shape,
        "posterior": posterior,
        "augmentation": augmentation,
    }


def _posterior(factor: PosteriorFactor, structure: Structure) -> str:
    used = sorted({s for latent in factor.latents for s in structure.used[latent]})
    family = factor.family.name
    if factor.layout is not None and factor.layout.size > 1:
        family = f"Normal block of {factor.layout.size}"
        if len(factor.latents) > 1:
            family += f" ({', '.join(factor.latents)})"
    return f"{family} [{', '.join(used)}]"


def _statistic(
    statistic: Statistic, released: Mapping[str, Step], options: ScheduleOptions
) -> dict[str, Any]:
    step = released.get(statistic.name)
    return {
        "statistic": statistic.name,
        "shape": list(statistic.block_shape),
        "released": statistic.release,
        "clipping_norm": None if step is None else step.clipping_norm,
        "sensitivity": None if step is None else _sensitivity(step, options),
    }


def _sensitivity(step: Step, options: ScheduleOptions) -> float:
    if not options.private:
        return math.inf
    return step.mechanism.sensitivity(options.relation)


def _schedule(steps: Sequence[Step]) -> Iterable[dict[str, Any]]:
    counted: dict[Any, int] = {}
    for step in steps:
        key = dataclasses.replace(step, step_size=1.0)
        counted[key] = counted.get(key, 0) + 1
    for step, count in counted.items():
        yield {
            "steps": count,
            "releases": ", ".join(block.name for block in step.blocks),
            "sampling": step.sampling,
            "rate": step.sampling_rate,
            "clipping_norm": step.clipping_norm,
        }


def _notes(
    graph: ModelGraph,
    structure: Structure | None,
    options: ScheduleOptions,
    engine: Any,
) -> Iterable[str]:
    if options.private and options.clipping_norm is None:
        yield (
            "Clipping norms are defaults for rows whose features have L2 norm 1 and "
            "whose real observations lie in [0, 1] (they are read off synthetic rows, "
            "never off the data). Scale both by public ranges, or pass clipping_norm= "
            "from public knowledge."
        )
    if not options.private:
        yield "NOT PRIVATE: no noise, no clipping."
    if structure is not None:
        sizes = [
            g.layout.size for g in structure.posterior_factors.values() if g.layout
        ]
        if max(sizes, default=0) > 300:
            yield (
                f"The joint covariance has {max(sizes)} coordinates, so about "
                f"{max(sizes) ** 2 // 2:,} noisy numbers: fewer features, chosen by "
                "public knowledge, cost less noise."
            )
    if graph.captured:
        names = ", ".join(listed(sorted(graph.captured)))
        yield f"Treated as public because the model holds them: {names}."
    if isinstance(engine, DpviEngine) and engine.captured:
        names = ", ".join(listed(sorted(engine.captured)))
        yield f"Treated as public because the guide holds them: {names}."


def _notes_on_widths(graph: ModelGraph, engine: Any) -> Iterable[str]:
    """What is done with arguments of which a row has few entries."""
    for name, width in graph.arguments.widths.items():
        about = (
            f"Of a row of {name!r} the {width} largest entries are looked at "
            "(max_nonzeros, a public number)"
        )
        if not isinstance(engine, VipsEngine):
            yield f"{about}. DPVI writes the row out again."
        elif name in engine.program.dense:
            reason = engine.program.dense[name]
            yield f"{about}. The row is written out again: {reason}."
        elif engine.program.densified.get(name):
            reasons = ", ".join(engine.program.densified[name])
            yield f"{about}, and all the work is done on them but for {reasons}."
        else:
            yield f"{about}, and all the work is done on them."
