"""Fixtures shared by all tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED_DATA = REPOSITORY.parent / "shared" / "data"


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 for one test; the package itself never switches it on."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """Finds a folder of public data beside the checkout; skips where it is absent."""

    def find(name: str) -> Path:
        folder = SHARED_DATA / name
        if not folder.exists():
            pytest.skip(f"needs the public data set {name!r} beside the repository")
        return folder

    return find


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Prints what the audits found, also where several processes ran them."""
    findings = {
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "audit"
    }
    if findings:
        terminalreporter.section("audit")
        for finding in sorted(findings):
            terminalreporter.write_line(finding)
