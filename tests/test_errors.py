"""What messages quote; the errors themselves have examples that run."""

import pickle

import pytest

from numpyro_vips.errors import (
    NotConjugateError,
    UnusablePosteriorError,
    did_you_mean,
    quoted,
)


def test_names_are_quoted_with_commas() -> None:
    assert quoted(["a", "b's"]) == "'a', \"b's\""
    assert quoted([]) == "none" and quoted([], if_none="nothing") == "nothing"


@pytest.mark.parametrize(
    ("name", "found"),
    [("wieght", "Did you mean 'weight'?"), ("bais", "Did you mean 'bias'?"), ("q", "")],
)
def test_the_nearest_name_is_offered_if_one_is_near(name: str, found: str) -> None:
    assert did_you_mean(name, {"weight": 1, "bias": 2}) == found


def test_what_was_released_is_kept_beside_a_posterior_that_is_none() -> None:
    released = {"sum": 1.0}
    error = UnusablePosteriorError("no posterior", result="result", released=released)
    released.clear()
    assert error.released == {"sum": 1.0} and error.result == "result"


@pytest.mark.parametrize(("message", "text"), [(None, "y: a; w: b"), ("No.", "No.")])
def test_reasons_are_kept_by_site(message: str | None, text: str) -> None:
    error = NotConjugateError({"y": "a", "w": "b"}, message)
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert str(one) == text and one.reasons == {"y": "a", "w": "b"}
