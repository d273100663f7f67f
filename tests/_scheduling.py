"""Which process runs which files, and in which order, where several share the tests.

A file's tests share fits and compiled programs, so one process runs all of them. So it
does for files that share compiled models. What took longest in the last run comes
first, so that no process is left with a long file when the others are done.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

# The models of `_setups.py`, each of which takes a second to be compiled.
_SETUPS = {
    "tests/conjugacy/structure/test_geometry.py",
    "tests/test_rounding.py",
    "tests/vips/row_sums/test_row_norms.py",
    "tests/vips/row_sums/test_scattered.py",
}
_RECORD = "numpyro_vips/durations"
# Seconds. What takes less makes no difference, and is most of the tests.
_LEAST = 0.1


def share_of(test: str) -> str:
    """What one process runs along with the test: its file, or several."""
    file = test.partition("::")[0]
    return "tests/_setups.py" if file in _SETUPS else file


class Scheduling:
    """The hooks of pytest and of pytest-xdist that decide it."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        # There is none under `-p no:cacheprovider`.
        self.cache: pytest.Cache | None = getattr(config, "cache", None)
        self.took: dict[str, float] = defaultdict(float)
        # Every process has to have the tests in one order: that of the first.
        of_first: Any = getattr(config, "workerinput", None)
        self.record: dict[str, float] = (
            self._last_run() if of_first is None else of_first[_RECORD]
        )

    def _last_run(self) -> dict[str, float]:
        return (self.cache and self.cache.get(_RECORD, None)) or {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tells a process what the tests took."""
        node.workerinput[_RECORD] = self.record

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: Any, log: Any) -> Any:
        """Files of one share go to one process, in the order of the tests."""
        if config.getoption("dist") != "loadfile":
            return None
        from xdist.scheduler import LoadFileScheduling

        class Shares(LoadFileScheduling):
            def _split_scope(self, nodeid: str) -> str:
                return share_of(nodeid)

        # By the number of their tests, unless it is known what they take.
        config.option.loadscopereorder = not self.record
        return Shares(config, log)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        """Sorts what is left of the tests, those of a share as they were."""
        yield
        seconds: dict[str, float] = defaultdict(float)
        for item in items:
            seconds[share_of(item.nodeid)] += self.record.get(item.nodeid, 0.0)
        items.sort(key=lambda item: -seconds[share_of(item.nodeid)])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds up what a test took, with its fixtures."""
        self.took[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Keeps it for the next run."""
        if hasattr(self.config, "workerinput") or self.cache is None:
            return
        kept = {
            test: seconds
            for test, seconds in {**self._last_run(), **self.took}.items()
            if seconds >= _LEAST
        }
        self.cache.set(_RECORD, kept)
