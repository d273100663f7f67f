"""Who calls a public class otherwise than it is called is told how.

Settings of `PrivateVI` in wrong places: test_inference_refusals.py.
"""

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import numpyro_vips as nv

untyped: Any = nv


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: untyped.PrivacyBudget(eps=1.0), r"no eps=: write epsilon=1\.0"),
        (
            lambda: untyped.PrivacyBudget(delta=1e-6),
            r"missing .*'epsilon'.*PrivacyBudget\(epsilon, delta=0\.0, \*, comp",
        ),
        (
            lambda: untyped.PrivacyBudget(1.0, 1e-6, "pld"),
            r"too many positional.*called as PrivacyBudget\(epsilon, ",
        ),
        (lambda: untyped.DPVI(learning_rate=0.1), r"write optimizer=optax\.adam"),
        (lambda: untyped.DPVI("full_rank"), r"called as DPVI\(\*, guide=None"),
        (lambda: untyped.DPVI(num_steps=9), r"write PrivateVI\(\.\.\., num_steps"),
        (lambda: untyped.VIPS(stepsize=0.1), "no stepsize=. Did you mean 'step_size'"),
        (lambda: untyped.Poisson(batch_size=9), r"write rate=0\.1 for a tenth"),
        (lambda: untyped.Poisson(), r"missing .*'rate'.*called as Poisson\(rate\)"),
        (
            lambda: untyped.FullBatch("replace_one"),
            r"called as FullBatch\(\*, relation=",
        ),
        (lambda: untyped.private(plate="people"), "no plate=: write unit='patients'"),
    ],
)
def test_who_calls_a_class_otherwise_is_told_how(
    make: Callable[[], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    "made", [nv.Poisson(0.5), nv.Bounded(0, 1), nv.VIPS(local_steps=3)], ids=str
)
def test_what_checks_its_arguments_is_a_class_like_others(made: Any) -> None:
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made


def test_signatures_are_those_that_were_written() -> None:
    signature = inspect.signature(nv.PrivacyBudget)
    assert signature.parameters["epsilon"].annotation is float
    assert list(inspect.signature(nv.Bounded).parameters)[:2] == ["low", "high"]
