"""The line that is named is the user's, whoever's code runs below it."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from numpyro_vips.jax_tools.user_lines import line_of_equation, line_of_error


def centred(x):
    twice = 2 * x
    return twice - twice.mean()  # The mean of all.


def test_an_equation_comes_from_the_line_that_called_jax() -> None:
    program = jax.make_jaxpr(centred)(np.ones(3))
    lines = [line_of_equation(equation) for equation in program.jaxpr.eqns]
    assert all(" of test_user_lines.py, `" in line for line in lines)
    assert lines[0].endswith("`twice = 2 * x`")
    assert {line.split("`")[1] for line in lines[1:]} == {
        "return twice - twice.mean()  # The mean of all."
    }


def test_an_error_comes_from_the_last_line_of_the_users() -> None:
    with pytest.raises(ValueError, match="reshape") as caught:
        jnp.reshape(np.ones(3), (2, 2))  # This does not fit.
    assert line_of_error(caught.value).endswith("# This does not fit.`")


def test_an_error_without_a_line_of_the_users_has_none() -> None:
    assert line_of_error(ValueError("raised nowhere")) == ""


def test_a_line_of_a_library_is_told_only_where_there_is_no_other() -> None:
    with pytest.raises(KeyError) as caught:
        pd.Series([1, 2])[7]  # From here.
    error = caught.value
    assert line_of_error(error).endswith("# From here.`")
    assert error.__traceback__ is not None
    inside = error.with_traceback(error.__traceback__.tb_next)
    assert ", in line " in line_of_error(inside)
    assert "From here" not in line_of_error(inside)
