"""The progress bar of a long pass over the rows, within a step."""

import contextlib
from collections.abc import Callable, Iterator

from tqdm.auto import tqdm

# Passes that take fewer seconds have no bar.
_DELAY = 2.0

# Gets how many rows are done, of how many; both are public.
OnRows = Callable[[int, int], None]


@contextlib.contextmanager
def pass_bar(*, is_shown: bool) -> Iterator[OnRows | None]:
    """A bar that appears under that of the steps once a pass has taken a while."""
    if not is_shown:
        yield None
        return
    with tqdm(
        desc="this step", unit=" rows", unit_scale=True, leave=False, delay=_DELAY
    ) as bar:

        def on_rows(done: int, number: int) -> None:
            bar.total = number
            bar.update(done - bar.n)

        yield on_rows
