"""Objects are looked into without what their classes would run."""

import contextvars
import functools
import sys
import types
from typing import Any
from unittest import mock

import numpy as np
import pytest

from numpyro_vips.model.references import python_objects as objects


class Disguised(list):
    """Says that it is empty."""

    def __iter__(self) -> Any:
        return iter(())

    def __len__(self) -> int:
        return 0


class Base:
    __slots__ = ("first", "unset")

    def __init__(self) -> None:
        self.first = 1


class Slotted(Base):
    __slots__ = ("second",)

    def __init__(self) -> None:
        super().__init__()
        self.second = 2


def test_libraries_hold_no_data_and_the_callers_modules_may() -> None:
    for name in ("jax", "jax.numpy", "numpyro_vips.model.run", "functools"):
        assert objects.is_library(name)
    for name in ("__main__", "my_study.data", "jaxx", None, 3):
        assert not objects.is_library(name)


def test_a_script_that_is_called_like_a_standard_module_is_the_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects._is_library_root.cache_clear()
    mine = types.ModuleType("profile")
    mine.__file__ = "/home/me/study/profile.py"
    monkeypatch.setitem(sys.modules, "profile", mine)
    assert not objects.is_library("profile")
    assert objects.is_library("queue")
    objects._is_library_root.cache_clear()


@pytest.mark.parametrize("kind", objects.SEQUENCES)
def test_what_is_in_a_sequence_is_what_python_keeps(kind: Any) -> None:
    assert sorted(objects.items_of(kind([7, 8]))) == [7, 8]
    assert objects.items_of(Disguised([7, 8])) == [7, 8]


def test_slots_of_all_classes_are_attributes_if_they_are_assigned() -> None:
    assert objects.attributes_of(Slotted()) == {"first": 1, "second": 2}


def test_attributes_that_are_made_on_demand_are_none() -> None:
    assert objects.attribute(mock.Mock(), "shape") is None
    assert objects.attribute(np.zeros(3), "shape") == (3,)

    class Broken:
        @property
        def shape(self) -> Any:
            raise RuntimeError

    assert objects.attribute(Broken(), "shape") is None


def test_what_is_held_by_no_name_is_found() -> None:
    first = object()
    assert objects.held_inside(iter([first, 2])) == [[first, 2]]
    variable = contextvars.ContextVar("variable")
    context = contextvars.Context()
    context.run(variable.set, first)
    assert first in objects.held_inside(context)
    # Attributes have names.
    assert first not in objects.held_inside(types.SimpleNamespace(a=first))


def test_a_memory_of_the_callers_function_may_be_opened_and_a_librarys_not() -> None:
    @functools.cache
    def mine(x: int) -> int:
        return x

    assert objects.may_be_opened(mine)
    assert not objects.may_be_opened(objects._is_library_root)
    assert not objects.may_be_opened(np.zeros(3))


def test_names_are_those_that_the_caller_gave() -> None:
    attributes = {"__module__": "m", "__wrapped__": print, "weights": 1, "__x__": 2}
    found = list(objects.named(attributes))
    assert found == [("", print), ("weights", 1), ("__x__", 2)]


def test_mappings_of_other_libraries_are_told_from_pythons() -> None:
    xarray = pytest.importorskip("xarray")
    assert objects.is_foreign_mapping(xarray.Dataset({"a": ("x", [1.0])}))
    assert not objects.is_foreign_mapping({"a": 1})
    assert not objects.is_foreign_mapping(types.MappingProxyType({"a": 1}))
