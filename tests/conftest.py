"""Fixtures shared by all tests."""

import contextlib
import fnmatch
import gc
import importlib
import itertools
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import _checked
import _scheduling
import jax
import pytest
import threadpoolctl

# Annotations are checked in these, while tests run and never in use. The hook must be
# there before a module of theirs is imported. Where users' own values come in, which
# the package checks itself, only arrays are: those three modules of privacy/ have some.
# They run where JAX promotes no dtypes, but for those modules that themselves call the
# user's model or NumPyro: these may rely on it. So may what reads a model's program,
# whose equations have the dtypes that the user gave them.
CHECKED = ["numpyro_vips.conjugacy.families"]
CHECKED_ARRAYS = [
    "numpyro_vips.dpvi",
    "numpyro_vips.jax_tools.materialized",
    "numpyro_vips.jax_tools.row_sums",
    "numpyro_vips.privacy.batch_selection",
    "numpyro_vips.privacy.exact_gaussian",
    "numpyro_vips.privacy.gaussian_mechanism",
    "numpyro_vips.privacy.normal_quantile",
    "numpyro_vips.vips",
]
READ_MODELS = [
    "numpyro_vips.conjugacy.algebra",
    "numpyro_vips.conjugacy.densities",
    "numpyro_vips.conjugacy.interpreter",
    "numpyro_vips.conjugacy.structure",
    "numpyro_vips.model",
]
CALL_NUMPYRO = [
    "numpyro_vips.dpvi.guides.automatic_guides",
    "numpyro_vips.dpvi.compiler",
    "numpyro_vips.dpvi.row_latents.conjugate_locals",
    "numpyro_vips.dpvi.gradients.elbo",
    "numpyro_vips.dpvi.engine",
    "numpyro_vips.dpvi.guides.posteriors",
    "numpyro_vips.dpvi.guides.unconstrained",
    "numpyro_vips.dpvi.newton_fit",
    "numpyro_vips.dpvi.row_latents.integrated_locals",
    "numpyro_vips.dpvi.program",
    "numpyro_vips.dpvi.reading",
    "numpyro_vips.dpvi.unconstrained_elbo",
    "numpyro_vips.dpvi.guides.user_guides",
    "numpyro_vips.vips.compile.certificate",
    "numpyro_vips.vips.posterior.posterior",
    "numpyro_vips.vips.posterior.row_queries",
]
# So may the sums of a model's terms, whose constants have the dtypes of its numbers.
SUM_TERMS = [
    "numpyro_vips.vips.program.expectations",
    "numpyro_vips.vips.row_sums.contributions",
    "numpyro_vips.vips.row_sums.public_statistics",
    "numpyro_vips.vips.row_sums.released_blocks",
    "numpyro_vips.vips.row_sums.row_norms",
    "numpyro_vips.vips.row_sums.scattered",
]
_checked.install(CHECKED, _checked.strict_dtypes, _checked.all_of)
_checked.install(CHECKED_ARRAYS, _checked.strict_dtypes, _checked.arrays)
_checked.install(CALL_NUMPYRO, _checked.users_dtypes, _checked.arrays)
_checked.install(SUM_TERMS, _checked.users_dtypes, _checked.arrays)
_checked.install(READ_MODELS, _checked.users_dtypes)

# Until everything is imported; see `pytest_collection_finish`.
gc.disable()

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED_DATA = REPOSITORY.parent / "shared" / "data"
# Bytes of XLA's executables, in each process's folder.
MOST_KEPT = 2**29
_MODULES = itertools.count(1)


class _KeysOfTest:
    """Keys of noise and batches that each run of a test draws again, for `secrets`.

    A test that compares a fit with a reference fails in one of some thousand runs, and
    there are hundreds of them. What fails by chance would hide what fails by a fault.
    """

    def __init__(self, test: str) -> None:
        self._random = random.Random(test)

    def randbits(self, bits: int) -> int:
        """As `secrets.randbits`, of the next bits that belong to the test."""
        return self._random.getrandbits(bits)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Other noise and other compilers than a test has by itself.

    A new test should hold under any noise. What is tested of sums over few rows should
    hold of those over many, which are compiled otherwise.
    """
    parser.addoption(
        "--fresh-noise",
        action="store_true",
        help="keys of noise come from the operating system, as they do in use",
    )
    parser.addoption(
        "--as-of-many-rows",
        action="store_true",
        help="sums over private rows are compiled as they are where rows are many",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fixes the keys of a test and of the fixtures that it is the first to need."""
    marks = (item.get_closest_marker(mark) for mark in ("fresh_noise", "audit"))
    if item.config.getoption("fresh_noise") or any(marks):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        secrets = "numpyro_vips.privacy.secure_random.secrets"
        # Not of the folder: a test that moves keeps its noise.
        name = item.path.name + item.nodeid.partition("::")[2]
        patch.setattr(secrets, _KeysOfTest(name))
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread() -> Iterator[None]:
    """Tests run parts of a fit by themselves; see `jax_tools/blas_threads.py`."""
    with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
        yield


@pytest.fixture(scope="module", autouse=True)
def bounded_caches() -> Iterator[None]:
    """Programs that JAX keeps are gigabytes by the end, and few outlive a module."""
    yield
    if next(_MODULES) % 24 == 0:
        jax.clear_caches()


@pytest.fixture
def no_prepared_fits() -> Iterator[None]:
    """A test that starts without prepared fits, and leaves none."""
    from numpyro_vips.fitting.prepared_fits import forget_prepared_fits

    forget_prepared_fits()
    yield
    forget_prepared_fits()


@pytest.fixture(scope="module")
def own_prepared_fits() -> Iterator[None]:
    """Prepared fits that tests of a module share with each other and with no other."""
    from numpyro_vips.fitting.prepared_fits import forget_prepared_fits

    forget_prepared_fits()
    yield
    forget_prepared_fits()


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 for one test; the package itself never switches it on."""
    with jax.enable_x64(True):
        yield


@pytest.fixture
def coordinate_ascent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Posteriors as coordinate ascent leaves them, without what widens them then."""
    reading = "numpyro_vips.vips.corrections.reading.Reading._as_observed"
    monkeypatch.setattr(reading, lambda *_: None)
    engine = "numpyro_vips.vips.engine.VipsEngine.informed"
    monkeypatch.setattr(engine, lambda self, state, arguments: state)


@pytest.fixture
def without_remarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of many fits, of which a third or more is to look at the prior.

    That comes after the last release, and ends in warnings alone.
    """
    monkeypatch.setattr(
        "numpyro_vips.fitting.results.prior_disagreements", lambda *_: []
    )


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one for every fit that is prepared anew."""
    # Not at the top: modules are imported once the hook above is there.
    from numpyro_vips.fitting import prepare, prepared_fits

    calls: list[Any] = []
    prepare_fit = prepare.prepare_fit

    def counted(*args: Any) -> Any:
        calls.append(args)
        return prepare_fit(*args)

    monkeypatch.setattr(prepared_fits, "prepare_fit", counted)
    return calls


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


def _share_programs(folders: Sequence[Path]) -> None:
    """Links the files of each folder into all others."""
    files = {file.name: file for folder in folders for file in folder.glob("*")}
    for folder in folders:
        for name in files.keys() - {file.name for file in folder.glob("*")}:
            # Where files cannot be linked, or another run is first, each keeps its own.
            with contextlib.suppress(OSError):
                os.link(files[name], folder / name)


class _Contexts(threading.local):
    """What MLIR makes of JAX's dialects, for so many programs of a thread.

    JAX makes it anew for each program, in half of the time that lowering a small one
    takes. It holds on to constants of programs, and is not kept for ever.
    """

    made: Any = None
    num_left = 0

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __call__(self) -> Any:
        if not self.num_left:
            self.made, self.num_left = self._make(), 100
        self.num_left -= 1
        return self.made


@pytest.fixture(scope="session", autouse=True)
def _sums_over_rows(request: pytest.FixtureRequest) -> None:
    """Compiles sums over private rows as the command line says."""
    if request.config.getoption("as_of_many_rows"):
        quick: Any = importlib.import_module("numpyro_vips.jax_tools.quick_compilation")
        quick._FEW_OF_ROWS = -1


def pytest_configure(config: pytest.Config) -> None:
    """Lets tests share what they compile, which is most of what they take.

    Many fit the same small models, and most programs are those of the last run. XLA's
    executables are kept, in a folder for each process, as JAX writes the files without
    a lock. Before there are any processes, each gets what the others have compiled: a
    file of tests may go to another one than last time. Examples that a test runs in
    processes of their own use it too.
    """
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    folders = REPOSITORY / ".pytest_cache" / "xla"
    if worker is None:
        _share_programs([*folders.glob("*")])
    folder = folders / (worker or "main")
    # Programs of code that is no more are not told from others.
    if sum(file.stat().st_size for file in folder.glob("*")) > MOST_KEPT:
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
        # One, for GPUs, lies in the folder, whose name would be a part of each key.
        "jax_persistent_cache_enable_xla_caches": "",
        # Lines of Python that no test looks up in a compiled program.
        "jax_traceback_in_locations_limit": 0,
    }
    for name, value in settings.items():
        os.environ[name.upper()] = str(value)
        jax.config.update(name, value)
    # Private to JAX, and left alone where it has gone.
    with contextlib.suppress(ImportError, AttributeError):
        mlir: Any = importlib.import_module("jax._src.interpreters.mlir")
        mlir.make_ir_context = _Contexts(mlir.make_ir_context)
    config.pluginmanager.register(_scheduling.Scheduling(config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves some parameters of a test to `make test-thorough`; see the two marks."""

    def is_in(name: str, patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    for item in items:
        quick = item.get_closest_marker("quick_with")
        rest = item.get_closest_marker("thorough_with")
        if quick is None and rest is None:
            continue
        assert isinstance(item, pytest.Function)
        name = item.callspec.id
        if (quick and not is_in(name, quick.args)) or (rest and is_in(name, rest.args)):
            item.add_marker("thorough")


def pytest_collection_finish() -> None:
    """Spares the garbage collector the libraries, which stay, and most of its rounds.

    It walked through everything that JAX keeps, in one of twenty seconds of the tests;
    and while modules were imported, in a third of the time that this took.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
    gc.enable()


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
