"""Functions are noted where this package defines them, and nowhere else."""

import functools
from typing import Any

import numpy as np
import pytest

from numpyro_vips import polya_gamma
from numpyro_vips.jax_tools.host_calls import runs_on_host
from numpyro_vips.jax_tools.own_functions import OwnFunctions
from numpyro_vips.jax_tools.separate_rows import treats_rows_alone

MARKS = [runs_on_host, treats_rows_alone, OwnFunctions().note]
OURS: Any = polya_gamma._log_density


def foreign(x: np.ndarray, **_: Any) -> np.ndarray:
    return x


def renamed(x: np.ndarray, **_: Any) -> np.ndarray:
    return x


renamed.__module__ = polya_gamma.__name__


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize(
    "function", [foreign, renamed, functools.wraps(OURS)(lambda x: x), OURS]
)
def test_a_model_notes_no_function(mark: Any, function: Any) -> None:
    with pytest.raises(TypeError, match="the modules of numpyro_vips"):
        mark(function)


@pytest.mark.parametrize("mark", MARKS)
def test_a_module_that_takes_a_name_of_ours_notes_no_function(mark: Any) -> None:
    scope = {"__name__": polya_gamma.__name__, "mark": mark, "foreign": foreign}
    scope["__file__"] = polya_gamma.__file__
    with pytest.raises(TypeError, match="the modules of numpyro_vips"):
        exec(compile("mark(foreign)", polya_gamma.__file__, "exec"), scope)


@pytest.mark.parametrize("mark", MARKS)
def test_later_code_in_a_module_of_ours_notes_no_function(
    mark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polya_gamma, "mark", mark, raising=False)
    with pytest.raises(TypeError, match="the modules of numpyro_vips"):
        exec("mark(_log_density)", polya_gamma.__dict__)


def test_what_equals_a_function_of_ours_is_none() -> None:
    class Equal:
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return hash(OURS)

    noted = OwnFunctions()
    noted._known.append(OURS)
    assert OURS in noted
    assert Equal() not in noted
    assert foreign not in noted
