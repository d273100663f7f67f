"""Models that are not conjugate, and models that no engine may run.

They are in `_refused_*.py` and `_unsafe_models.py`. Every one was judged by hand, by
what it means. One that is not conjugate must be left to DPVI with a reason that names
what is in the way: compiling it would be the worst outcome. Those that mix rows are
refused whichever the engine. What must be compiled is in `test_conjugate_models.py`.
"""

import _refused_densities
import _refused_factors
import _refused_functions
import _unsafe_models
import pytest
from _cases import together

import numpyro_vips as nv
from numpyro_vips.vips.compile.certificate import check_rows_are_separate

# The reason is the site that is in the way, in quotes, or what is said about it.
NOT_CONJUGATE = together(
    _refused_functions.CASES, _refused_densities.CASES, _refused_factors.CASES
)
UNSAFE = _unsafe_models.CASES


def test_there_are_enough_models() -> None:
    assert len(NOT_CONJUGATE) >= 140
    assert len(UNSAFE) >= 12


@pytest.mark.quick_with("network")
@pytest.mark.parametrize("name", NOT_CONJUGATE)
def test_other_model_is_refused_with_its_reason(name: str) -> None:
    case = NOT_CONJUGATE[name]
    reasons = case.reasons_against_vips()
    assert reasons, "a model that is not conjugate was compiled"
    text = " ".join(f"'{site}' {reason}" for site, reason in reasons.items())
    assert case.reason in text


@pytest.mark.parametrize("name", UNSAFE)
def test_unsafe_model_is_refused(name: str) -> None:
    case = UNSAFE[name]
    with pytest.raises(nv.UnsafeModelError):
        check_rows_are_separate(case.graph)
