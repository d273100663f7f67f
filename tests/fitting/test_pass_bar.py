"""Progress within a step: public numbers alone, and only where a step takes long."""

import warnings
from typing import Any

import jax
import numpy as np
import pytest
from _models import means

import numpyro_vips as nv
from numpyro_vips.fitting import fit_loop, pass_bar


def fit(rows: int, **options: Any) -> None:
    vi = nv.PrivateVI(
        nv.private(means, unit="rows"),
        budget=nv.PrivacyBudget(1.0, 1e-6),
        num_steps=2,
        clipping_norm=2.0,
        max_batch_size=64,
        **options,
    )
    with warnings.catch_warnings(action="ignore"):
        vi.run(jax.random.key(0), np.zeros(rows, np.float32))


@pytest.mark.quick_with("options3-expected3")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {300}),
        # What serves the intervals alone is released from all rows.
        ({"sampling": nv.Poisson(0.5)}, {150, 300}),
        # Neither more nor fewer rows than were declared show.
        ({"num_rows": 200}, {200}),
        ({"num_rows": 1000}, {1000}),
    ],
)
def test_what_is_told_is_public(options, expected, monkeypatch):
    told: list[list[tuple[int, int]]] = []

    class Watched:
        def __init__(self, *, is_shown: bool) -> None:
            assert is_shown

        def __enter__(self) -> Any:
            told.append([])
            return lambda *numbers: told[-1].append(numbers)

        def __exit__(self, *_: Any) -> None:
            pass

    monkeypatch.setattr(fit_loop, "pass_bar", Watched)
    fit(300, engine="dpvi", **options)
    assert len(told) >= 2
    for numbers in told:
        done = [number for number, _ in numbers]
        assert done == sorted(done)
        assert {of for _, of in numbers} == {done[-1]}
    assert {numbers[-1][0] for numbers in told} == expected


@pytest.mark.thorough
@pytest.mark.parametrize("delay", [0.0, 100.0])
def test_the_bar_shows_where_a_step_takes_long(delay, monkeypatch, capsys):
    monkeypatch.setattr(pass_bar, "_DELAY", delay)
    fit(300)
    shown = capsys.readouterr().err
    assert "PrivateVI" in shown
    assert ("this step" in shown) == (delay == 0.0)


@pytest.mark.thorough
def test_there_is_none_where_none_is_wanted(monkeypatch, capsys):
    monkeypatch.setattr(pass_bar, "_DELAY", 0.0)
    fit(300, progress_bar=False)
    assert capsys.readouterr().err == ""
