"""The state of a fit by VIPS before any row is read."""

import numpy as np
from jaxtyping import PRNGKeyArray

from numpyro_vips.privacy.releases import ValidRows
from numpyro_vips.vips.m_step.global_programs import GlobalPrograms
from numpyro_vips.vips.m_step.starts import symmetric_factors
from numpyro_vips.vips.row_sums.row_programs import RowPrograms
from numpyro_vips.vips.steps.state import VipsState, numpy_doubles
from numpyro_vips.vips.steps.statistic_roles import StatisticRoles
from numpyro_vips.vips.units.column_units import units_of_priors
from numpyro_vips.vips.units.entry_units import first_entry_units
from numpyro_vips.vips.units.whitening import features_in_units


def initial_state(
    roles: StatisticRoles,
    on_rows: RowPrograms,
    on_globals: GlobalPrograms,
    rng_key: PRNGKeyArray,
    *,
    to_wait: int,
) -> VipsState:
    """The globals near their priors, and no statistic released but public ones.

    Args:
      roles: Which statistics are recentred, and of which features are standardised.
      on_rows, on_globals: The programs of the model.
      rng_key: Breaks symmetries between globals.
      to_wait: How many steps some globals stay where they start.
    """
    program = on_globals.program
    structure = program.structure
    moments, start, stddev, marginal_stddev = on_globals.start(rng_key)
    expected_natural = on_rows.expected_natural_of(moments)
    moments = numpy_doubles(moments)
    statistics = {s.name: np.zeros(s.block_shape) for s in structure.statistics}
    for name, value in start.items():
        statistics[name] = np.asarray(value, dtype=np.float64)
    valid = ValidRows(float(on_rows.num_rows), 0.0)
    public = on_rows.public_sums(expected_natural, valid.number)
    statistics.update(public)
    origins = {
        name: np.zeros_like(moments[name]["x"]) for name in roles.recentred_factors
    }
    standards = {
        name: features.in_units_of(
            np.asarray(marginal_stddev[name], np.float64)
        ).as_rows_know()
        for name, features in program.features.items()
        if name in origins
    }
    units = units_of_priors(program, roles.squares, stddev)
    units |= first_entry_units(program, roles.entries)
    if roles.whitened_factors:
        of_features, units = features_in_units(
            program, roles.whitened_factors, roles.squares, units
        )
        standards |= of_features
    return VipsState(
        statistics=statistics,
        noise_stddev={
            s.name: np.zeros(s.block_shape) if s.name in units else 0.0
            for s in structure.statistics
        },
        moments=moments,
        natural={},
        visited=moments,
        expected_natural=expected_natural,
        released=frozenset(public),
        centre={name: np.zeros_like(moments[name]["x"]) for name in structure.centred},
        origins=origins,
        next_origins=origins,
        standards=standards,
        first_standards=standards,
        next_standards=standards,
        valid_rows=valid,
        start=moments if symmetric_factors(program) else {},
        to_wait=to_wait,
        units=units,
    )
