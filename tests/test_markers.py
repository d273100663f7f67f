"""Which tests `make test` runs."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Folders and files whose tests guard privacy, all of them. Audits look at the guards.
GUARDS = [
    *("accounting", "privacy"),
    *(
        "fitting/bounds/test_column_histogram.py",
        "fitting/bounds/test_norm_histogram.py",
    ),
    *("fitting/test_checkpoint.py", "fitting/reducers/test_parties.py"),
    *("fitting/test_found_norms.py", "fitting/test_step.py"),
    *("fitting/reducers/test_processes.py", "fitting/test_schedule.py"),
    *("fitting/test_sum_rounding.py", "fitting/reducers/test_tree_sum.py"),
    *("jax_tools/test_separate_rows.py", "model/references/test_captured.py"),
    *("test_hidden_rows.py", "test_leaks.py", "test_rounding.py"),
]
# Of these, what is about how good a fit is; or what `make test` has in another test.
NOT_GUARDING = {
    "test_columns_are_counted_where_they_are_few_for_the_rows",
    "test_raw_columns_with_a_prior_that_knows_nothing_of_them_hide_no_other",
    "test_raw_columns_of_a_linear_regression_hide_no_other",
    "test_a_scale_is_found_that_is_far_below_the_mean",
    "test_calibrated_noise_is_the_least_that_the_share_affords",
    # Threads change no bit, in `make test`.
    "test_chunks_of_other_lengths_release_the_same_numbers",
    # Each process's sums have the bits of one process's.
    "test_two_processes_of_jax_release_what_one_does",
}
# Marks above a test, and its name.
MARKED = re.compile(r"((?:^[@ )\]].*\n)+)def (test_\w+)", re.M)


def marked(file: Path, mark: str) -> Iterator[str]:
    """The tests of a file that have this mark as a whole."""
    for marks, name in MARKED.findall(file.read_text("utf-8")):
        if re.search(rf"^@pytest\.mark\.{mark}\b", marks, re.M):
            yield name


@pytest.mark.parametrize("place", GUARDS)
def test_what_guards_privacy_is_not_left_to_the_thorough_tests(
    repository: Path, place: str
):
    """Some of its parameters may be, see the next test but one."""
    path = repository / "tests" / place
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    assert files
    for file in files:
        assert not set(marked(file, "thorough")) - NOT_GUARDING, file


def test_neighbours_hostile_rows_and_stated_noise_are_not_either(repository: Path):
    """Wherever these tests are; their names say what they are about."""
    guarding = re.compile(
        r"neighbour|one_row_moves|stated|without_noise_is_caught|bad_row|counts_as_zero"
        r"|(?<!without_)noise_is_that|holds_no|no_encoded_row|releases_what"
        r"|refused_with_its_reason"
    )
    for file in sorted((repository / "tests").rglob("test_*.py")):
        names = set(marked(file, "thorough"))
        assert not [name for name in names if guarding.search(name)], file


@pytest.mark.thorough
def test_where_parameters_are_left_some_are_in_make_test(repository: Path):
    files = sorted((repository / "tests").rglob("test_*.py"))
    partly = {
        (file.name, name)
        for file in files
        for mark in ("quick_with", "thorough_with")
        for name in marked(file, mark)
    }
    assert len(partly) > 20
    quick = "not slow and not audit and not thorough"
    collect = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", quick]
    found = subprocess.run(
        [*collect, "tests"], cwd=repository, capture_output=True, text=True, check=True
    )
    collected = set(re.findall(r"(test_\w+\.py)::(test_\w+)", found.stdout))
    assert not partly - collected
