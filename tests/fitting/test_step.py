"""What steps release, within which bounds, and the events that are priced."""

import dataclasses
import math

import pytest
from _planned_steps import MATRIX, MEAN, NORMS, SETTINGS, planned

import numpyro_vips as nv
from numpyro_vips.fitting.step import DIAGNOSTICS_SHARE, events_of
from numpyro_vips.jax_tools.row_sums import DIAGNOSTICS
from numpyro_vips.vips.steps.step_sizes import DEFAULT_STEPS


@pytest.mark.parametrize("relation", ["add_or_remove", "replace_one"])
def test_a_row_moves_a_histogram_by_its_stated_sensitivity(relation):
    sampling = nv.FullBatch(relation=relation)
    settings = dataclasses.replace(SETTINGS, sampling=sampling)
    (histogram, *_) = planned((MEAN, MATRIX), (), NORMS, settings, is_fixed=False)
    # One count for each of two parts; another two where the row was before.
    expected = {"add_or_remove": math.sqrt(2), "replace_one": 2.0}[relation]
    assert histogram.mechanism.sensitivity() == pytest.approx(expected)


def test_the_last_steps_report_clipped_rows_within_their_bound():
    steps = planned((MEAN,), (MATRIX,), NORMS, SETTINGS)
    assert [step.reports for step in steps] == [False] * 9 + [True, True]
    step = steps[-1]
    clipped, zero = step.released[-2:]
    assert (clipped.name, zero.name) == DIAGNOSTICS
    # A row that is clipped has the norm of the bound, and one more entry.
    assert step.clipping_norm is not None
    joint = math.hypot(step.clipping_norm, clipped.scale)
    assert step.mechanism.sensitivity("add_or_remove") == pytest.approx(joint)
    share = (clipped.scale / step.clipping_norm) ** 2
    assert share == pytest.approx(DIAGNOSTICS_SHARE)
    silent = dataclasses.replace(SETTINGS, diagnostics=False)
    assert not any(s.reports for s in planned((MEAN,), (MATRIX,), NORMS, silent))


def test_events_merge_equal_neighbours_only():
    steps = planned((MEAN,), (MATRIX,), NORMS, SETTINGS)
    first, second, reporting = events_of(steps)
    assert (first.num_steps, second.num_steps) == (1, DEFAULT_STEPS - 2)
    # The last steps also release diagnostics.
    assert reporting.num_steps == 2
    assert reporting.noise_multiplier == pytest.approx(second.noise_multiplier)
    reordered = (steps[1], steps[0], steps[2])
    assert [event.num_steps for event in events_of(reordered)] == [1, 1, 1]
    (once,) = events_of([steps[1].scaled(3.0)])
    assert once.noise_stddev == pytest.approx(3 * second.noise_stddev)
