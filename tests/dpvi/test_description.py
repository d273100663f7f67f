"""What is said of a model that DPVI runs follows from how it is run."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpyro.distributions import constraints

from numpyro_vips.dpvi.description import (
    describe_site,
    describe_statistics,
    late_names,
    notes,
    on_compared,
    on_hidden,
    on_unclear,
)
from numpyro_vips.dpvi.guides.unconstrained import GuideSite, UnconstrainedSpace
from numpyro_vips.privacy.gaussian_mechanism import Block


def program(**changes: Any) -> Any:
    """A program of two globals, `w` of three numbers and `s`, and a row's `z`."""
    sites = {
        "w": SimpleNamespace(is_latent=True, row_axis=None),
        "s": SimpleNamespace(is_latent=True, row_axis=None),
        "z": SimpleNamespace(is_latent=True, row_axis=0),
        "y": SimpleNamespace(is_latent=False, row_axis=0),
    }
    globals_ = (
        GuideSite(name="w", support=constraints.real_vector, shape=(3,), dims=()),
        GuideSite(name="s", support=constraints.positive, shape=(), dims=()),
    )
    found: dict[str, Any] = {
        "graph": SimpleNamespace(sites=sites),
        "guide": SimpleNamespace(family="low_rank"),
        "user_guide": None,
        "locals_of_rows": None,
        "is_late": np.zeros(4, bool),
        "space": UnconstrainedSpace(sites=globals_),
        "options": SimpleNamespace(num_waiting=0, takes_newton_steps=False),
    }
    return SimpleNamespace(**(found | changes))


def solved(method: str) -> SimpleNamespace:
    return SimpleNamespace(solved=("z",), method=method, sums_by_messages=False)


def test_globals_have_the_guides_family_and_observations_no_posterior() -> None:
    assert (
        describe_site(program(), "w")["posterior"] == "Normal (unconstrained, low-rank)"
    )
    assert describe_site(program(), "z")["posterior"] == "summed out"
    assert describe_site(program(), "y") == {}


@pytest.mark.parametrize(
    ("method", "words", "number"),
    [
        ("exact", "conjugate, solved per row", 0),
        ("quadrature", "quadrature, per row", 0),
        ("integral", "quadrature, per row", 1),
        ("bound", "a bound, solved per row", 1),
    ],
)
def test_latents_of_rows_say_how_they_are_solved_for(
    method: str, words: str, number: int
) -> None:
    this = program(locals_of_rows=solved(method))
    assert describe_site(this, "z")["posterior"] == words
    found = list(notes(this, ()))
    assert len(found) == number and all("'z', which every row" in n for n in found)


def test_a_users_guide_draws_what_it_draws() -> None:
    guide = SimpleNamespace(globals=["w"], locals=[])
    this = program(guide=None, user_guide=guide)
    found = {name: describe_site(this, name)["posterior"] for name in ("w", "z")}
    assert found == {"w": "the given guide", "z": "summed out"}


@pytest.mark.parametrize(
    ("late", "names"),
    [
        ([False] * 4, []),
        ([False, True, False, False], ["w"]),
        ([False, False, False, True], ["s"]),
        ([True] * 4, ["w", "s"]),
    ],
)
def test_a_global_is_late_if_any_of_its_numbers_is(
    late: list[bool], names: list[str]
) -> None:
    options = SimpleNamespace(num_waiting=7, takes_newton_steps=False)
    this = program(is_late=np.array(late), options=options)
    assert late_names(this) == names
    found = list(notes(this, ()))
    assert len(found) == bool(names)
    assert all("in the first 7 steps" in note for note in found)


def test_arrays_that_a_guide_holds_are_named() -> None:
    (note,) = notes(program(), {"net.weights", "A"})
    assert note.endswith(
        "because the guide holds them: the array 'A', the array 'net.weights'."
    )


def test_blocks_are_listed_by_when_they_are_released() -> None:
    found = describe_statistics(
        {"adaptive": [Block(name="loc", shape=(4,))], "once": []}
    )
    assert found == [{"statistic": "loc", "shape": [4], "released": "adaptive"}]


def test_globals_that_noise_hides_are_named_with_the_largest_ratio() -> None:
    assert list(on_hidden({"w": 14.0, "s": 1.0})) == []
    (text,) = on_hidden({"w": 22.4, "s": 1.0})
    assert text.startswith("Noise makes the intervals of 'w' up to 22 times as wide")
    assert list(on_hidden({})) == []


def test_shapes_that_noise_hides_are_named_with_the_least_clear() -> None:
    assert list(on_unclear({"nu": 3.1, "s": 20.0})) == []
    (text,) = on_unclear({"nu": 0.52, "s": 20.0, "place": 1.9})
    assert "the rows say of 'nu', 'place'" in text
    assert "is 0.52 standard deviations of its noise, and clear from 2 on" in text
    (text,) = on_unclear({"nu": -1.0})
    assert "is 0 standard deviations" in text


def test_globals_without_a_gradient_are_named() -> None:
    assert list(on_compared(())) == []
    (text,) = on_compared(("switch",))
    assert "has none in 'switch'" in text
