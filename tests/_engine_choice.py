"""Which engine "auto" would take, without a fit prepared for each setting."""

import copy

import numpyro_vips as nv
from numpyro_vips.fitting.engine_choice import _advantage
from numpyro_vips.fitting.prepare import PreparedFit
from numpyro_vips.fitting.pricing import noise_of_one_release
from numpyro_vips.vips.engine import VipsEngine


def advantage_of(prepared: PreparedFit, vi: nv.PrivateVI, num_rows: int) -> str | None:
    """What DPVI is predicted to be better at in a fit of so many rows.

    Args:
      prepared: By VIPS, of the fit's model.
      vi: The fit's settings.
      num_rows: The rows.
    """
    engine = copy.copy(prepared.engine)
    assert isinstance(engine, VipsEngine)
    engine.num_rows = num_rows
    noise = noise_of_one_release(vi.budget, vi.share)
    return _advantage(
        engine, vi.schedule_options, noise, prepared.choice.rows_for_groups
    )
