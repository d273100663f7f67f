"""An engine that adds clipped vectors up, for tests of what runs engines."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import numpyro_vips as nv
from numpyro_vips.abilities import FitsWithoutNoise, PublicSums
from numpyro_vips.fitting.step import Step
from numpyro_vips.model.arguments import ModelArguments, bind_arguments
from numpyro_vips.privacy.gaussian_mechanism import Block

SUM = Block(name="sum", shape=(2,))


def step_of(sampling: Any, noise: float = 0.0, **options: Any) -> Step:
    """A step that releases the sum of the rows, clipped to norm 1."""
    options = {"blocks": (SUM,), "clipping_norm": 1.0} | options
    return Step(noise_multiplier=noise, sampling=sampling, **options)


def arguments_of(x: np.ndarray) -> ModelArguments:
    def model(x: Any) -> None:
        raise AssertionError("the model is not run")

    return bind_arguments(nv.private(model, unit="rows"), (x,), {})


def clipped(x: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.maximum(norms, 1.0)


class PlainEngine(FitsWithoutNoise, PublicSums):
    """Its state is the list of what it was updated with.

    Args:
      on_sum: Called with the rows and the mask of every chunk.
    """

    is_one_vector = False

    def __init__(self, on_sum: Callable[[Any, Any], None] | None = None) -> None:
        self.on_sum = on_sum
        self.keys: list[np.ndarray | None] = []
        self.chunks: list[tuple[np.ndarray, np.ndarray]] = []
        self.asked: list[str] = []

    def bounded_sum(
        self,
        state: Any,
        rows: Mapping[str, Any],
        mask: Any,
        *,
        scales: Mapping[str, float],
        clipping_norm: float,
        row_keys: np.ndarray | None = None,
    ) -> dict[str, np.ndarray]:
        self.keys.append(row_keys)
        assert clipping_norm == 1.0
        x, mask = np.asarray(rows["x"]), np.asarray(mask)
        self.chunks.append((x, mask))
        if self.on_sum is not None:
            self.on_sum(x, mask)
        return {"sum": (clipped(x) * mask[:, None]).sum(0)}

    def norm_counts(
        self, state: Any, rows: Mapping[str, Any], mask: Any, **_: Any
    ) -> dict[str, np.ndarray]:
        self.asked.append("norm_counts")
        return {"sum": np.array([np.asarray(mask).sum(), 0.0, 0.0])}

    def with_bound(self, state: Any, *bound: Any) -> Any:
        return [*state, ("bound", *bound)]

    def update(
        self,
        state: Any,
        released: Any,
        noise_stddev: Any,
        step_size: float,
        *,
        is_pilot: bool = False,
        redraws: bool = False,
    ) -> Any:
        return [*state, ({k: v.tolist() for k, v in released.items()}, noise_stddev)]

    def compile_update(self, state: Any) -> None:
        self.asked.append("compile_update")

    def posterior(self, state: Any) -> None:
        self.asked.append("posterior")

    def recentre(self, state: Any) -> Any:
        return [*state, "recentred"]

    def recentre_again(self, state: Any) -> Any:
        return [*state, "followed"]

    def before_norms(self, state: Any, names: Any) -> Any:
        return state

    def stretched(self, state: Any) -> dict[str, float]:
        return {"sum": 3.0}

    def has_converged(self, state: Any) -> bool:
        return len(state) >= 4
