"""Events check themselves, and survive dictionaries."""

import math
from typing import Any

import numpy as np
import pytest
from _events import event

from numpyro_vips import accounting
from numpyro_vips.accounting.events import GaussianEvent, groups_of


def test_noise_multiplier_is_stddev_over_sensitivity():
    doubled = GaussianEvent(
        noise_stddev=6.0,
        sensitivity=2.0,
        relation="replace_one",
        sampling="full",
        sampling_rate=1.0,
    )
    assert doubled.noise_multiplier == 3.0
    assert accounting.epsilon_of_events([doubled], delta=1e-5) == accounting.epsilon(
        noise_multiplier=3.0,
        sampling_rate=1.0,
        num_steps=1,
        delta=1e-5,
        sampling="full",
    )


@pytest.mark.parametrize(
    "change",
    [
        {"relation": "replace_one"},
        {"sampling": "without_replacement"},
        {"sampling": "full"},
        {"noise_stddev": -1.0},
        {"noise_stddev": math.nan},
        {"noise_stddev": np.float32("nan")},
        {"noise_stddev": 1e300, "sensitivity": 1e-300},
        {"noise_stddev": 1e-300, "sensitivity": 1e300},
        {"noise_stddev": 1.0, "sensitivity": 5e-324},
        {"sensitivity": 0.0},
        {"sensitivity": math.nan},
        {"sensitivity": math.inf},
        {"noise_stddev": math.inf, "sensitivity": math.inf},
        {"sampling_rate": math.nan},
        {"num_steps": 0},
        {"num_steps": True},
        {"num_steps": math.inf},
        {"num_steps": math.nan},
        {"num_steps": 10**400},
    ],
)
def test_events_check_themselves(change):
    fields = {
        "noise_stddev": 1.0,
        "sensitivity": 1.0,
        "relation": "add_or_remove",
        "sampling": "poisson",
        "sampling_rate": 0.5,
    }
    GaussianEvent(**fields)
    with pytest.raises(ValueError, match="Expected"):
        GaussianEvent(**{**fields, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"noise_stddev": True},
        {"noise_stddev": np.True_},
        {"noise_stddev": "inf"},
        {"sensitivity": np.array("1.0")},
        {"sampling_rate": 0.5j},
    ],
)
def test_only_numbers_are_numbers(change):
    fields = event(rate=0.5).to_dict()
    with pytest.raises(TypeError, match="to be a number"):
        GaussianEvent(**{**fields, **change})


def test_numbers_of_narrow_types_do_not_overflow():
    """In single precision the ratio would be infinite, and so the release free."""
    fields: dict[str, Any] = {
        "noise_stddev": np.float32(1e20),
        "sensitivity": np.float32(1e-20),
        "sampling_rate": np.float32(1.0),
        "num_steps": np.int8(100),
    }
    narrow = GaussianEvent(relation="add_or_remove", sampling="full", **fields)
    assert narrow.noise_multiplier == pytest.approx(1e40)
    (group,) = groups_of([narrow, narrow])
    assert group.num_steps == 200
    assert [type(value) for value in (narrow.noise_stddev, narrow.num_steps)] == [
        float,
        int,
    ]
    # An array could be changed after the check.
    stddev = np.array(1.0)
    kept = GaussianEvent(**{**event(rate=0.5).to_dict(), "noise_stddev": stddev})
    stddev[...] = math.nan
    assert kept.noise_stddev == 1.0


def test_dictionaries_cannot_make_events_free():
    fields = event(rate=0.5).to_dict()
    for change in (
        {"noise_stddev": "nan"},
        {"sensitivity": "inf"},
        {"noise_stddev": "inf", "sensitivity": "inf"},
        {"sensitivity": "nan"},
    ):
        with pytest.raises(ValueError, match="Expected"):
            GaussianEvent.from_dict({**fields, **change})


def test_events_survive_dictionaries():
    for stddev, sensitivity in [(1.5, 2.0), (0.0, math.inf)]:
        before = GaussianEvent(
            noise_stddev=stddev,
            sensitivity=sensitivity,
            relation="replace_one",
            sampling="without_replacement",
            sampling_rate=0.25,
            num_steps=4,
            label="counts",
        )
        assert GaussianEvent.from_dict(before.to_dict()) == before
