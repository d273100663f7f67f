"""Fits that begin in several threads at once do not meet in NumPyro's handlers."""

import concurrent.futures
import os
import sys
import threading
import time
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of
from numpyro.primitives import _PYRO_STACK

from numpyro_vips.model.handler_stack import (
    alone_with_handlers,
    entered_handlers,
    unvalidated,
)

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
COUNTS = np.arange(60) % 5


def regression(number: int) -> Any:
    def model(X: Any, y: Any) -> None:
        w: Any = numpyro.sample(f"w{number}", dist.Normal(0.0, 1.0 + number))
        with numpyro.plate("rows", X.shape[0]):
            numpyro.sample(f"y{number}", dist.StudentT(4.0, X[:, 0] * w, 1.0), obs=y)

    return vi_of(model, engine="dpvi"), (X, X[:, 1])


def rate(number: int) -> Any:
    def model(c: Any) -> None:
        r: Any = numpyro.sample(f"r{number}", dist.Gamma(2.0, 1.0 + number))
        with numpyro.plate("rows", len(c)):
            numpyro.sample(f"c{number}", dist.Poisson(r), obs=c)

    return vi_of(model, engine="vips"), (COUNTS,)


def explained(number: int) -> str:
    vi, rows = (regression if number % 2 else rate)(number)
    return str(vi.explain(*rows))


@pytest.fixture
def hasty_threads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Threads that take turns every few operations."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty_threads")
def test_fits_that_begin_in_several_threads_are_planned_as_alone():
    # In pairs, where the second plan would be that of a fit that was prepared before.
    together, alone = (0, 1, 2, 3), (4, 5, 6, 7)
    validates = dist.Distribution._validate_args
    with concurrent.futures.ThreadPoolExecutor(len(together)) as pool:
        found = list(pool.map(explained, together))
    assert not _PYRO_STACK and dist.Distribution._validate_args == validates
    for number, other, plan in zip(together, alone, found, strict=True):
        assert "UnitPlate" not in plan  # The other threads' handlers are none of it.
        assert len(plan) == len(explained(other))
        assert f"{'wr'[number % 2 == 0]}{number}" in plan


def test_handlers_are_waited_for_and_may_be_entered_again():
    order = []

    def wait() -> None:
        with unvalidated():
            order.append("other")

    with alone_with_handlers():
        thread = threading.Thread(target=wait)
        thread.start()
        with alone_with_handlers(), unvalidated():
            time.sleep(0.05)
            order.append("own")
    thread.join(10)
    assert order == ["own", "other"]


def test_handlers_around_the_call_are_seen():
    handler: Any = numpyro.handlers.block()
    with handler:
        assert entered_handlers() == (handler,)
    assert entered_handlers() == ()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="There is no fork.")
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_process_that_is_forked_while_a_model_runs_can_run_models():
    """The lock is not left to a thread that the new process does not have."""
    entered = threading.Event()

    def hold() -> None:
        with alone_with_handlers(), numpyro.handlers.block():
            entered.set()
            time.sleep(0.3)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(10)
    child = os.fork()
    if child == 0:
        free: list[bool] = []

        def ask() -> None:
            with alone_with_handlers():
                free.append(not entered_handlers())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(10)
        os._exit(0 if free == [True] else 1)
    thread.join()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    with alone_with_handlers():
        pass
