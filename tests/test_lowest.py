"""The constraints of `make matrix` are the lower bounds of pyproject.toml."""

import subprocess
import sys

import pytest
from _lowest import lowest


def test_a_lower_bound_becomes_the_version():
    given = ["jax>=0.9", "dp-accounting>=0.5.1"]
    assert lowest(given) == ["jax==0.9", "dp-accounting==0.5.1"]


@pytest.mark.parametrize("requirement", ["jax", "jax<1", "jax>=0.9,<1"])
def test_what_has_no_single_lower_bound_is_refused(requirement):
    with pytest.raises(ValueError, match="name>=version"):
        lowest([requirement])


def test_all_that_the_tests_need_has_a_constraint(repository):
    run = subprocess.run(
        [sys.executable, repository / "tests" / "_lowest.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.split("==")[0] for line in run.stdout.splitlines()}
    assert {"jax", "scikit-learn", "hypothesis"} <= names
