"""`VIPS`: a value that checks itself and says how to make it again."""

import dataclasses
from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from _fits import vi_of

import numpyro_vips as nv


def halves(t: int) -> float:
    return 0.5 if t else 1.0


def test_the_code_makes_the_same_settings():
    every = nv.VIPS(
        local_steps=np.int64(7),  # type: ignore[arg-type]
        step_size=halves,
        release_once=False,
        structure={"w": "diag", "b": "diag"},
        augmentation={"y": "fixed-curvature"},
    )
    assert repr(every) == (
        "VIPS(local_steps=7, step_size=halves, release_once=False, "
        "structure={'b': 'diag', 'w': 'diag'}, augmentation={'y': 'fixed-curvature'})"
    )
    for settings in (every, nv.VIPS(), nv.VIPS(augmentation="fixed-curvature")):
        again = eval(repr(settings), {**vars(nv), "halves": halves})
        assert again == settings
        assert hash(again) == hash(settings)
    assert len({every, nv.VIPS(), dataclasses.replace(every, local_steps=8)}) == 3


def test_settings_do_not_change_with_what_they_were_made_from():
    structure = {"w": "diag"}
    settings = nv.VIPS(structure=structure)
    structure["b"] = "diag"
    assert settings == nv.VIPS(structure={"w": "diag"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.local_steps = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.structure["b"] = "diag"  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"local_steps": 0}, ValueError, "local_steps=0 to be a positive integer"),
        ({"local_steps": "3"}, TypeError, "local_steps='3' to be a number"),
        ({"step_size": 0.5}, TypeError, "step_size=0.5 to be a function"),
        ({"release_once": 1}, TypeError, "release_once=1 to be True or False"),
        ({"structure": {"w": "full"}}, ValueError, "one of 'diag'"),
        ({"structure": "diag"}, TypeError, "mapping from latents"),
        ({"augmentation": "tight"}, ValueError, "augmentation='tight'"),
        ({"augmentation": {"y": 3}}, ValueError, r"augmentation\['y'\]=3"),
        ({"guide": "mean_field"}, TypeError, "guide"),
    ],
)
def test_settings_check_themselves(options, error, message):
    with pytest.raises(error, match=message):
        nv.VIPS(**options)
    with pytest.raises(TypeError):
        nv.VIPS(3)  # type: ignore[misc]


def of_nothing(y: Any) -> None:
    numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def of_latents_alone(y: Any) -> None:
    m: Any = numpyro.sample("m", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", y.shape[0]):
        numpyro.sample("z", dist.Normal(m, 1.0))
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


@pytest.mark.parametrize("model", [of_nothing, of_latents_alone])
def test_a_model_whose_rows_say_nothing_is_refused(model: Any) -> None:
    with pytest.raises(nv.UnsafeModelError, match="No observation under the plate"):
        vi_of(model, engine="vips").explain(np.ones(9, np.float32))
