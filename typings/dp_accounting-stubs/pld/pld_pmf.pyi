from typing import Any

import numpy as np

class DensePLDPmf:
    def __init__(
        self,
        discretization: float,
        lower_loss: int,
        probs: np.ndarray,
        infinity_mass: float,
        pessimistic_estimate: bool,
    ) -> None: ...

def __getattr__(name: str) -> Any: ...
