"""Fits that were prepared before: one like it plans, traces and compiles nothing.

What a fit is prepared from, and what the prepared one is found by, is public: the
model, the settings, the shapes of the rows, and the values of everything that model and
settings refer to. These are looked at again in every run, so that a global that has
changed prepares anew, and the search for captured rows runs every time. What is kept
holds no rows; `tests/fitting/test_prepared_fits.py` looks for them.
"""

import collections
import dataclasses
import threading
from collections.abc import Hashable
from typing import Any, NamedTuple

import jax

from numpyro_vips.fitting.advantages.curvature_noise import (
    curvature_share,
    hides_curvature,
)
from numpyro_vips.fitting.advantages.group_effects import hides_groups
from numpyro_vips.fitting.advantages.marginal_latents import affords_scores
from numpyro_vips.fitting.engine_choice import EngineChoice
from numpyro_vips.fitting.explanation import explain_plan, notes_on_redrawn_rows
from numpyro_vips.fitting.plan import Plan
from numpyro_vips.fitting.prepare import PreparedFit, prepare_fit
from numpyro_vips.fitting.redrawing_steps import with_redrawn_rows
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.rounding import settings_of_jax
from numpyro_vips.model.arguments import ModelArguments
from numpyro_vips.model.references.captured import captured_arrays
from numpyro_vips.model.references.fingerprint import Fingerprint, fingerprint

# Compiled programs take tens of megabytes each.
_MOST_KEPT = 8


class _Kept(NamedTuple):
    """A prepared fit without rows, its description, and what its key rests on."""

    prepared: PreparedFit
    plan: Plan
    referents: tuple[Any, ...]


_kept: "collections.OrderedDict[Hashable, _Kept]" = collections.OrderedDict()
_lock = threading.Lock()


def prepared_fit(
    model: private,
    arguments: ModelArguments,
    engine_choice: EngineChoice,
    options: ScheduleOptions,
    noise_multiplier: float | None,
) -> tuple[PreparedFit, Plan]:
    """A prepared fit and its plan, from what is kept or else by `prepare_fit`.

    Fits that differ by nothing but their budgets are alike, unless noise hides the
    curvature or the groups of one of them alone, or leaves the scores of one alone.
    Which of their steps redraw rows is said each time.

    Returns:
      The fit with these arguments, and what `explain` says about it.

    Raises:
      What `prepare_fit` raises; then nothing is kept.
    """
    found = fingerprint(
        (model.fn, model.unit, model.public, engine_choice, options),
        (arguments.positional, arguments.keywords, dict(arguments.widths)),
    )
    key = _key(found, arguments)
    with _lock:
        kept = _found(key, noise_multiplier)
    if kept is not None:
        assert model.fn is not None
        captured_arrays(model.fn, arguments.num_rows)  # Raises what it always does.
    else:
        prepared = prepare_fit(
            model, arguments, engine_choice, options, noise_multiplier
        )
        plan = explain_plan(prepared, options)
        kept = _Kept(prepared, plan, found.referents)
        with _lock:
            _kept[key, _of_noise(prepared, noise_multiplier)] = kept
            while len(_kept) > _MOST_KEPT:
                _kept.popitem(last=False)
    # Steps are planned up to a common factor, unless the caller fixed their noise.
    factor = noise_multiplier if options.noise_multiplier is None else 1.0
    steps = with_redrawn_rows(
        kept.prepared.steps,
        kept.prepared.engine,
        num_rows=arguments.public_num_rows,
        noise_multiplier=factor,
    )
    notes = (*kept.plan.notes, *notes_on_redrawn_rows(steps, kept.prepared.exposed))
    plan = dataclasses.replace(kept.plan, notes=notes)
    return dataclasses.replace(kept.prepared, arguments=arguments, steps=steps), plan


def _found(key: Hashable, noise_multiplier: float | None) -> _Kept | None:
    """What is kept of a fit with this noise, which then is the one used last."""
    for where, kept in _kept.items():
        if where == (key, _of_noise(kept.prepared, noise_multiplier)):
            _kept.move_to_end(where)
            return kept
    return None


def _of_noise(prepared: PreparedFit, noise_multiplier: float | None) -> Hashable:
    """What of a fit depends on this noise.

    Whether it hides the curvature, whether it hides effects of groups, which share of
    the budget shows the curvature, and whether scores are affordable.
    """
    num_rows = prepared.graph.arguments.public_num_rows
    choice = prepared.choice
    per_noise = choice.curvature_noise
    return (
        choice.may_be_left_to_dpvi and hides_curvature(per_noise, noise_multiplier),
        hides_groups(choice.rows_for_groups, num_rows, noise_multiplier),
        curvature_share(per_noise, noise_multiplier),
        affords_scores(num_rows, noise_multiplier),
    )


def forget_prepared_fits() -> None:
    """Drops all prepared fits, and with them their compiled programs.

    For who changes how fits are prepared, as tests and benchmarks do: a fit is found by
    what it is prepared from, and this package's own code is no part of that.
    """
    with _lock:
        _kept.clear()


def _key(found: Fingerprint, arguments: ModelArguments) -> tuple[Hashable, ...]:
    rows = tuple(
        (name, row.shape, str(row.dtype))
        for name, row in arguments.row_shapes().items()
    )
    counts = (
        arguments.num_rows,
        arguments.public_num_rows,
        arguments.num_rows_declared,
    )
    encodings = tuple(sorted(arguments.encodings.items()))
    settings = settings_of_jax()
    return found.digest, rows, encodings, counts, settings, jax.default_backend()
