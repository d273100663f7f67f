"""Settings that DPVI cannot follow are refused, whatever the model."""

from typing import Any

import optax
import pytest
from numpyro.infer import RenyiELBO, Trace_ELBO, TraceMeanField_ELBO

from numpyro_vips.dpvi.options import DpviOptions


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"guide": "low_rank", "averaging": 0.0, "perturb": "location"},
        {"guide": lambda: None, "optimizer": optax.adam(0.1)},
        {"loss": Trace_ELBO(), "perturb": "location"},
        {"loss": TraceMeanField_ELBO(num_particles=3), "perturb": "all"},
        {"loss": Trace_ELBO(num_particles=5)},
    ],
)
def test_options_that_it_can_follow_pass(options: dict[str, Any]) -> None:
    DpviOptions(**options)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"guide": 3}, TypeError, "got int"),
        ({"guide": "lowrank"}, ValueError, "guide='lowrank'"),
        ({"optimizer": 0.1}, TypeError, "one of optax"),
        ({"loss": RenyiELBO()}, TypeError, "do not split into rows"),
        ({"perturb": "loc"}, ValueError, "perturb='loc'"),
        (
            {"perturb": "location", "loss": Trace_ELBO(num_particles=2)},
            ValueError,
            "to be 1 with",
        ),
        (
            {"perturb": "location", "loss": Trace_ELBO(num_particles=4)},
            ValueError,
            "num_particles=4",
        ),
        ({"averaging": -1.0}, ValueError, "averaging"),
    ],
)
def test_others_are_named(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        DpviOptions(**options)
