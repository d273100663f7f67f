"""The one generator that is used; any other name is of any type."""

from typing import Any

import numpy as np

class ChaCha(np.random.BitGenerator):
    def __init__(self, *, key: int, rounds: int, counter: int = ...) -> None: ...
    def random_raw(self, size: int) -> np.ndarray: ...

def __getattr__(name: str) -> Any: ...
