"""Warnings end no fit that was paid for, whatever the caller's filters are."""

import threading
import warnings
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import fit_to

import numpyro_vips as nv
from numpyro_vips.fitting.paid_warnings import shown_not_raised


def model(y: Any) -> None:
    m: Any = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.StudentT(4.0, m, 1.0), obs=y)


Y = np.linspace(-1.0, 1.0, 30, dtype=np.float32)


def test_a_paid_fit_gives_its_result_where_warnings_are_raised():
    budget = nv.PrivacyBudget(0.1, 1e-5)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        result = fit_to(model, Y, engine="dpvi", budget=budget, num_steps=3)
        # Afterwards they are raised again.
        with pytest.raises(UserWarning, match="mine"):
            warnings.warn("mine", stacklevel=1)
    assert len(budget.charges) == 1
    assert result.diagnostics["warnings"]
    assert [str(each.message) for each in shown] == result.diagnostics["warnings"]
    assert all(each.filename.endswith("_fits.py") for each in shown)


def test_what_is_warned_of_before_a_fit_is_paid_for_is_raised():
    budget = nv.PrivacyBudget(1.0, 0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="promises nothing"):
            fit_to(model, Y, engine="dpvi", budget=budget, num_steps=3)
    assert not budget.charges


def test_other_filters_stay_as_they_are():
    with warnings.catch_warnings():
        warnings.resetwarnings()
        warnings.simplefilter("ignore")
        before = warnings.filters
        with shown_not_raised():
            assert warnings.filters is before


def test_fits_in_two_threads_put_the_filters_back_when_the_last_has_ended():
    first_is_in, second_is_in = threading.Event(), threading.Event()

    def first() -> None:
        with shown_not_raised():
            first_is_in.set()
            second_is_in.wait(10)

    with warnings.catch_warnings(record=False):
        warnings.simplefilter("error")
        before = list(warnings.filters)
        thread = threading.Thread(target=first)
        thread.start()
        first_is_in.wait(10)
        with shown_not_raised():
            second_is_in.set()
            thread.join(10)
            assert "error" not in {action for action, *_ in warnings.filters}
        assert list(warnings.filters) == before
