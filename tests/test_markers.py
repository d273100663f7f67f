"""Which tests `make test` runs."""

import re
from pathlib import Path

import pytest

# Folders and files whose tests guard privacy, all of them.
GUARDS = [
    *("accounting", "audit", "privacy"),
    *("fitting/test_column_histogram.py", "fitting/test_norm_histogram.py"),
    *("fitting/test_checkpoint.py", "fitting/test_parties.py"),
    *("fitting/test_processes.py", "fitting/test_schedule.py"),
    *("fitting/test_sum_rounding.py", "fitting/test_tree_sum.py"),
    *("jax_tools/test_row_programs.py", "model/test_captured.py"),
    *("test_fuzz.py", "test_hidden_rows.py", "test_leaks.py", "test_rounding.py"),
]


@pytest.mark.parametrize("place", GUARDS)
def test_what_guards_privacy_is_not_left_to_the_thorough_tests(
    repository: Path, place: str
):
    path = repository / "tests" / place
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    assert files
    for file in files:
        assert not re.search(r"mark\.thorough", file.read_text("utf-8")), file


def test_neighbours_and_stated_noise_are_not_either(repository: Path):
    """Wherever these tests are; their names say what they are about."""
    guarding = re.compile(r"neighbour|one_row_moves|stated|without_noise_is_caught")
    for file in sorted((repository / "tests").rglob("test_*.py")):
        marked = re.findall(
            r"^@pytest\.mark\.thorough\n(?:[@ )\]].*\n)*def (\w+)",
            file.read_text("utf-8"),
            re.M,
        )
        assert not [name for name in marked if guarding.search(name)], file
