"""Queries are answered chunk by chunk, by programs that are kept."""

from typing import Any

import numpy as np
import pytest

import numpyro_vips as nv
from numpyro_vips.model.arguments import bind_arguments
from numpyro_vips.model.row_queries import RowQuery, map_rows


def model(x: Any, offset: Any = None, scale: float = 1.0) -> None:
    raise AssertionError("the model is not run")


MARKED = nv.private(model, unit="rows", public=("offset",))


def query(x: Any, programs: dict[str, Any] | None = None, **public: Any) -> RowQuery:
    return RowQuery(
        model=MARKED,
        arguments=bind_arguments(MARKED, (x,), public),
        settings={},
        programs={} if programs is None else programs,
    )


@pytest.mark.parametrize("count", [1, 512, 513, 1100])
def test_every_row_is_answered_once_and_in_its_place(count: int) -> None:
    x, sizes = np.arange(float(count)), []

    def of_rows(rows: Any) -> Any:
        sizes.append(len(rows["x"]))
        return {"twice": 2.0 * np.asarray(rows["x"])}

    parts = list(map_rows(query(x).arguments, of_rows))
    found = np.concatenate([part["twice"] for part in parts])
    np.testing.assert_array_equal(found, 2.0 * x)
    # All chunks have one shape, for which one program is compiled.
    assert len(set(sizes)) == 1 and max(sizes) <= 512


def test_a_program_is_kept_for_other_rows_and_not_for_other_public_numbers() -> None:
    programs, made = {}, []

    def ask(x: Any, **public: Any) -> Any:
        def compiled() -> int:
            made.append(public)
            return len(made)

        return query(x, programs, **public).program("any", compiled)

    offset, x = np.array([1.0, 2.0]), np.zeros(3)
    first = ask(x, offset=offset)
    assert ask(x + 1.0, offset=offset) == first
    others = [
        ask(x, offset=offset + 1.0),
        ask(np.zeros((3, 2)), offset=offset),
        ask(x.astype(np.int32), offset=offset),
        ask(x, offset=offset, scale=2.0),
        ask(x, offset=offset, scale=3.0),
    ]
    assert len({first, *others}) == 6
    assert ask(np.ones(3), offset=np.array([1.0, 2.0])) == first


def test_public_arrays_of_other_types_are_others() -> None:
    programs: dict[str, Any] = {}
    x = np.zeros(3)
    first = query(x, programs, offset=np.zeros(2, np.float32)).program("any", object)
    second = query(x, programs, offset=np.zeros(2, np.int32)).program("any", object)
    assert first is not second
