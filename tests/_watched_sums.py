"""What the mechanism is given, before the noise."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from numpyro_vips.privacy.gaussian_mechanism import GaussianMechanism


@contextlib.contextmanager
def watched_sums() -> Iterator[list[tuple[float, Mapping[str, np.ndarray]]]]:
    """The sensitivity and the sums that the mechanism is given."""
    found = []
    add_noise = GaussianMechanism.add_noise

    def watched(self: Any, sums: Mapping[str, Any], rng: Any) -> Any:
        found.append((self.sensitivity(), {k: np.array(v) for k, v in sums.items()}))
        return add_noise(self, sums, rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianMechanism, "add_noise", watched)
        yield found
