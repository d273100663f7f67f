"""What a conjugate model without a model releases, and the steps that are planned."""

from types import SimpleNamespace
from typing import Any

import numpyro_vips as nv
from numpyro_vips.fitting.bounds.norm_parts import NormPart
from numpyro_vips.fitting.schedule import plan_steps
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.fitting.step import Step
from numpyro_vips.privacy.gaussian_mechanism import Block
from numpyro_vips.vips.engine import VipsEngine

MEAN = Block(name="mean", shape=(3,))
MATRIX = Block(name="matrix", shape=(3, 3), symmetric=True)
NORMS = {"mean": 0.5, "matrix": 0.125}
SETTINGS = ScheduleOptions(sampling=nv.FullBatch())


class Releases(VipsEngine):
    """A conjugate model without a model: only what it releases."""

    def __init__(
        self,
        once: tuple[Block, ...],
        adaptive: tuple[Block, ...],
        recentred: frozenset[str] = frozenset(),
        pilots: int = 1,
        *,
        starts_far: bool = False,
    ):
        self._blocks = {"once": once, "adaptive": adaptive}
        self._moves = recentred
        self._pilots = pilots
        self._step_size = None
        self.program: Any = SimpleNamespace(waiting=frozenset(), starts_far=starts_far)
        nothing = frozenset[str]()
        self._roles: Any = SimpleNamespace(
            residuals=nothing, balanced=nothing, growing=nothing, together=()
        )

    def blocks(self, release: Any) -> tuple[Block, ...]:
        return self._blocks.get(release, ())

    @property
    def recentred(self) -> frozenset[str]:
        return self._moves

    @property
    def pilots(self) -> int:
        return self._pilots


def planned(
    once: tuple[Block, ...],
    adaptive: tuple[Block, ...],
    norms: dict[str, float],
    options: ScheduleOptions,
    *,
    is_fixed: bool = True,
    recentred: frozenset[str] = frozenset(),
    pilots: int = 1,
    starts_far: bool = False,
) -> tuple[Step, ...]:
    """The steps where the structure says norms, or where it does not."""
    parts = [
        NormPart(name=name, blocks=(name,), reference=norm, is_fixed=is_fixed)
        for name, norm in norms.items()
        if name in {block.name for block in (*once, *adaptive)}
    ]
    engine = Releases(once, adaptive, recentred, pilots, starts_far=starts_far)
    return plan_steps(engine, parts, options)
