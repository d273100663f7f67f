"""How steps take rows: values, their checks, and the events that they make."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import numpyro_vips as nv
from numpyro_vips.accounting import GaussianEvent
from numpyro_vips.privacy.sampling import as_sampling

CASES = [
    (nv.FullBatch(), "add_or_remove", "full", 1.0),
    (nv.FullBatch(relation="replace_one"), "replace_one", "full", 1.0),
    (nv.Poisson(0.05), "add_or_remove", "poisson", 0.05),
    (nv.WithoutReplacement(0.05), "replace_one", "without_replacement", 0.05),
    # A rate of 1 takes all rows, and is priced like that.
    (nv.Poisson(1.0), "add_or_remove", "full", 1.0),
    (nv.WithoutReplacement(1), "replace_one", "full", 1.0),
]


@pytest.mark.parametrize(("sampling", "relation", "scheme", "rate"), CASES, ids=repr)
def test_the_event_has_the_sampling_and_its_relation(sampling, relation, scheme, rate):
    event = sampling.event(noise_stddev=3.0, sensitivity=1.5, label="sums")
    assert event == GaussianEvent(
        noise_stddev=3.0,
        sensitivity=1.5,
        relation=relation,
        sampling=scheme,
        sampling_rate=rate,
        label="sums",
    )


@pytest.mark.parametrize("sampling", [case[0] for case in CASES], ids=repr)
def test_a_sampling_is_a_value_that_its_code_makes(sampling):
    again = eval(repr(sampling), {**vars(nv)})
    assert again == sampling
    assert hash(again) == hash(sampling)
    with pytest.raises(dataclasses.FrozenInstanceError):
        sampling.rate = 0.5
    assert as_sampling(sampling) is sampling


def test_different_samplings_are_not_equal():
    samplings = [nv.Poisson(0.5), nv.WithoutReplacement(0.5), nv.Poisson(0.25)]
    assert len({*samplings, *(case[0] for case in CASES)}) == 9


def test_numbers_of_any_kind_are_kept_as_pythons():
    rates: Any = (np.float64(0.5), np.float32(0.5), jnp.asarray(0.5))
    for rate in rates:
        assert repr(nv.Poisson(rate)) == "Poisson(0.5)"
        assert hash(nv.WithoutReplacement(rate)) == hash(nv.WithoutReplacement(0.5))


@pytest.mark.parametrize("kind", [nv.Poisson, nv.WithoutReplacement])
def test_rates_are_checked(kind):
    for rate in (0.0, -0.1, 1.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"rate=.* in \(0, 1\]"):
            kind(rate)
    for rate in ("all", True, None):
        with pytest.raises(TypeError, match="to be a number"):
            kind(rate)
    with pytest.raises(TypeError, match="rate"):
        kind()
    with pytest.raises(TypeError, match="relation"):
        kind(0.1, relation="add_or_remove")


def test_the_relation_of_a_full_batch_is_checked():
    with pytest.raises(ValueError, match="relation='both' to be one of"):
        nv.FullBatch(relation="both")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        nv.FullBatch("replace_one")  # type: ignore[misc]
    with pytest.raises(TypeError):
        nv.FullBatch(rate=0.5)  # type: ignore[call-arg]


def test_the_short_form_is_the_default():
    assert as_sampling("full") == nv.FullBatch(relation="add_or_remove")
    for name, kind in (("poisson", "Poisson"), ("without_replacement", "WithoutRepl")):
        with pytest.raises(ValueError, match=rf"write sampling=nv\.{kind}"):
            as_sampling(name)
