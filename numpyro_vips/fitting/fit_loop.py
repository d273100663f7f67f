"""The loop over the steps of a fit: release, step, and what is kept of it."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from numpyro_vips.fitting.checkpoint import Checkpoint
from numpyro_vips.fitting.pass_bar import pass_bar
from numpyro_vips.fitting.prepare import PreparedFit
from numpyro_vips.fitting.private_step import release
from numpyro_vips.fitting.progress import Progress, advanced
from numpyro_vips.fitting.reducers.reducer import Reducer
from numpyro_vips.fitting.results import kept_if_lost
from numpyro_vips.fitting.schedule_options import ScheduleOptions
from numpyro_vips.privacy.secure_random import SecureRandom

# Steps of every start of a fit without noise, before the best of them goes on.
_EXPLORING_STEPS = 40


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class FitLoop:
    """A fit that has been paid for, with what its steps need.

    Attributes:
      prepared: The model's arguments, the engine and the schedule.
      options: How rows are drawn, and whether there is noise at all.
      rng_key: For what is not private.
      random: Draws rows and noise.
      reducer: Where batches are summed.
      resumed: What the steps that ran before have released, if the fit goes on.
      keeps_steps: Whether what each step releases is kept in a checkpoint.
      checkpoint: The file of it, in the process that holds it.
      shows_passes: Whether long passes over the rows have a progress bar.
    """

    prepared: PreparedFit
    options: ScheduleOptions
    rng_key: jax.Array
    random: SecureRandom
    reducer: Reducer
    resumed: Sequence[Mapping[str, np.ndarray]]
    keeps_steps: bool
    checkpoint: Checkpoint | None
    shows_passes: bool

    def states(self, state: Any, progress: Progress) -> Iterator[tuple[Any, Progress]]:
        """State and progress after each step that moves the globals.

        Args:
          state, progress: Those after the steps that have been resumed.
        """
        arguments, engine = self.prepared.arguments, self.prepared.engine
        others: Sequence[Any] = ()
        # Only without noise may an engine look at rows by itself.
        if self.options.until_converged:
            states = engine.until_converged(state, arguments)
            if states is not None:
                yield from ((state, progress) for state in states)
                return
            others = engine.other_starts(self.rng_key)
        first = len(self.resumed)
        if others:
            ended, first = [], _EXPLORING_STEPS
            for start in (state, *others):
                for now in self._steps(start, progress, last=first):
                    yield now
                    state, _ = now
                ended.append(state)
            state = engine.best(ended, arguments)
            yield state, progress
        yield from self._steps(state, progress, first=first)

    def _steps(
        self, state: Any, progress: Progress, *, first: int = 0, last: int | None = None
    ) -> Iterator[tuple[Any, Progress]]:
        """The schedule's steps from `first` on, up to `last`."""
        arguments, engine = self.prepared.arguments, self.prepared.engine
        # What rows contribute must not depend on the process that they are in.
        state = self.reducer.same_state(state)
        for number in range(len(progress.steps))[first:last]:
            if self.options.until_converged and engine.has_converged(state):
                return
            step = progress.steps[number]
            with pass_bar(is_shown=self.shows_passes) as on_rows:
                released = release(
                    arguments,
                    engine,
                    step,
                    state,
                    self.random,
                    self.options.max_batch_size,
                    on_rows,
                    self.reducer,
                )
            if self.keeps_steps:
                self._keep(released)
            with kept_if_lost(engine, self.options, state, released):
                state, progress = self.advanced(number, state, progress, released)
            state = self.reducer.same_state(state)
            if not step.is_aside:
                yield state, progress

    def _keep(self, released: Mapping[str, np.ndarray]) -> None:
        def keep() -> None:
            assert self.checkpoint is not None
            self.checkpoint.keep(released)

        self.reducer.on_first(keep)

    def after_resumed(self, state: Any, progress: Progress) -> tuple[Any, Progress]:
        """State and progress after the steps that ran before."""
        for number, released in enumerate(self.resumed):
            state, progress = self.advanced(number, state, progress, released)
        return state, progress

    def advanced(
        self,
        number: int,
        state: Any,
        progress: Progress,
        released: Mapping[str, np.ndarray],
    ) -> tuple[Any, Progress]:
        """State and progress after a step, from what it has released alone."""
        return advanced(
            self.prepared.engine,
            progress,
            number,
            state,
            released,
            parts=self.prepared.parts,
            graph=self.prepared.graph,
        )
