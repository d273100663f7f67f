"""Which process runs which tests, and what processes have compiled for each other."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _scheduling
import jax
from jax.experimental.compilation_cache import compilation_cache

SHARED = sorted(_scheduling._SETUPS)


def test_files_that_share_models_are_there_and_go_to_one_process(
    repository: Path,
) -> None:
    assert all((repository / file).is_file() for file in SHARED)
    assert len({_scheduling.share_of(f"{file}::test") for file in SHARED}) == 1
    assert _scheduling.share_of("tests/test_a.py::test[b]") == "tests/test_a.py"


def test_what_took_long_comes_first_and_files_stay_together() -> None:
    record = {"a.py::one": 1.0, "b.py::one": 0.6, "b.py::two": 0.7}
    config: Any = SimpleNamespace(workerinput={_scheduling._RECORD: record})
    tests = ["a.py::one", "c.py::one", "b.py::one", "a.py::two", "b.py::two"]
    items: list[Any] = [SimpleNamespace(nodeid=test) for test in tests]
    hook = _scheduling.Scheduling(config).pytest_collection_modifyitems(items)
    next(hook)
    assert [item.nodeid for item in items] == tests  # Others may leave some out.
    next(hook, None)
    found = [item.nodeid for item in items]
    assert found == ["b.py::one", "b.py::two", "a.py::one", "a.py::two", "c.py::one"]


def test_a_process_finds_what_another_has_compiled(tmp_path: Path) -> None:
    """A program's key does not depend on the folder that it is looked up in."""

    config: Any = jax.config

    def compiled_into(name: str) -> set[str]:
        folder = tmp_path / name
        config.update("jax_compilation_cache_dir", str(folder))
        compilation_cache.reset_cache()
        jax.jit(lambda x: x + 41.5)(1.0)
        return {file.name for file in folder.glob("*-cache")}

    before = config.jax_compilation_cache_dir
    try:
        first, second = compiled_into("one"), compiled_into("other")
    finally:
        config.update("jax_compilation_cache_dir", before)
        compilation_cache.reset_cache()
    assert first and first == second
