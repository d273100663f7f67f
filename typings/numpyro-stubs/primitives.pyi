"""The primitives of models, as NumPyro has them but for their results.

NumPyro says `ArrayLike`, which numbers are too. What its handlers put at a site is an
array, and models index and multiply it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple

from jax import Array
from jax.typing import ArrayLike
from numpyro.distributions.distribution import Distribution

_PYRO_STACK: list[Messenger]

class CondIndepStackFrame(NamedTuple):
    name: str
    dim: int
    size: int

class Messenger:
    fn: Callable[..., Any] | None
    def __init__(self, fn: Callable[..., Any] | None = None) -> None: ...
    def __enter__(self) -> Any: ...
    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def process_message(self, msg: dict[str, Any]) -> None: ...
    def postprocess_message(self, msg: dict[str, Any]) -> None: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

class plate(Messenger):
    name: str
    size: int
    dim: int
    subsample_size: int
    def __init__(
        self,
        name: str,
        size: int,
        subsample_size: int | None = None,
        dim: int | None = None,
    ) -> None: ...
    def __enter__(self) -> Array: ...

@contextmanager
def plate_stack(
    prefix: str, sizes: list[int], rightmost_dim: int = -1
) -> Iterator[None]: ...
def apply_stack(msg: dict[str, Any]) -> dict[str, Any]: ...
def sample(
    name: str,
    fn: Distribution,
    obs: ArrayLike | None = None,
    rng_key: Array | None = None,
    sample_shape: tuple[int, ...] = (),
    infer: dict[str, Any] | None = None,
    obs_mask: ArrayLike | None = None,
) -> Array: ...
def param(
    name: str,
    init_value: ArrayLike | Callable[[Array], ArrayLike] | None = None,
    **kwargs: Any,
) -> Array: ...
def deterministic(name: str, value: ArrayLike) -> Array: ...
def mutable(name: str, init_value: ArrayLike | None = None) -> Any: ...
def factor(name: str, log_factor: ArrayLike) -> None: ...
def get_mask() -> ArrayLike | None: ...
def module(
    name: str, nn: tuple[Any, ...], input_shape: tuple[int, ...] | None = None
) -> Callable[..., Any]: ...
def prng_key() -> Array | None: ...
def subsample(data: ArrayLike, event_dim: int) -> Array: ...
