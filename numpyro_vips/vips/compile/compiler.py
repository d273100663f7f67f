"""From a model graph to a certified conjugate program, or to the reasons why not."""

from collections.abc import Mapping

from numpyro_vips import _validate
from numpyro_vips.conjugacy.densities import logistic_bounds
from numpyro_vips.conjugacy.structure.level_means import LevelMeans, level_means
from numpyro_vips.conjugacy.structure.linear_priors import with_linear_priors_mixed
from numpyro_vips.conjugacy.structure.log_joint import LogJoint, symbolic_log_joint
from numpyro_vips.conjugacy.structure.row_constants import RowConstants
from numpyro_vips.conjugacy.structure.structure import Structure
from numpyro_vips.errors import NotConjugateError
from numpyro_vips.handlers import private
from numpyro_vips.jax_tools.precision import double_precision
from numpyro_vips.model.graph import ModelGraph, retrace
from numpyro_vips.model.synthetic.synthetic_rows import with_synthetic_rows
from numpyro_vips.model.trace import abstract_taken_row
from numpyro_vips.vips.compile.certificate import CertificateError, certify
from numpyro_vips.vips.compile.factor_legality import illegal_factors
from numpyro_vips.vips.program.program import ConjugateProgram, program_of


def compile_model(
    model: private,
    graph: ModelGraph,
    *,
    structure: Mapping[str, str] | None = None,
    augmentation: logistic_bounds.Choice = logistic_bounds.DEFAULT,
) -> ConjugateProgram:
    """Compiles a model whose structure is conjugate-exponential.

    Args:
      model: The model, which is traced once more in double precision to be certified.
      graph: What `build_graph` found in it.
      structure: Overrides by latent, such as {"w": "diag"}.
      augmentation: The bound for logistic likelihoods, for all sites or by site.

    Raises:
      NotConjugateError: It is not, with the reasons by site.
      ValueError: `structure` or `augmentation` names what is no site of the model.
    """
    overrides = dict(structure or {})
    by_site = {} if isinstance(augmentation, str) else augmentation
    for option, given in {"structure": overrides, "augmentation": by_site}.items():
        _validate.names(option, given, graph.sites, of="sites")

    def compiled(dense: Mapping[str, str]) -> ConjugateProgram:
        return _compiled(model, graph, overrides, augmentation, dense)

    widths = graph.arguments.widths
    if not widths:
        return compiled({})
    try:
        by_entries = compiled({})
    except NotConjugateError as error:
        # What cannot be done by entries may be possible for whole rows.
        return compiled(dict.fromkeys(widths, str(error)))
    of_rows = interpreted(graph, overrides, augmentation, dict.fromkeys(widths, ""))
    lost = _signs_lost(by_entries.structure, of_rows.structure)
    if not lost:
        return by_entries
    reason = f"by entries {', '.join(lost)} would not be known to have one sign"
    return compiled(dict.fromkeys(widths, reason))


def _signs_lost(by_entries: Structure, of_rows: Structure) -> list[str]:
    """The statistics whose sensitivity would be larger with sparse arguments.

    Noise costs more than time.
    """
    signed = {s.name for s in by_entries.statistics if s.geometry == "signed"}
    return [
        statistic.name
        for statistic in of_rows.statistics
        if statistic.name in signed and statistic.geometry != "signed"
    ]


def _compiled(
    model: private,
    graph: ModelGraph,
    overrides: Mapping[str, str],
    augmentation: logistic_bounds.Choice,
    dense: Mapping[str, str],
) -> ConjugateProgram:
    """Compiles and certifies a model whose arguments in `dense` are dense."""
    program = interpreted(graph, overrides, augmentation, dense)
    with double_precision():
        synthetic = with_synthetic_rows(graph.arguments, 3, seed=1)
        double = retrace(graph, model, synthetic)
        # The model is not run here, see `program_of`; the certificate does not ask.
        certified = interpreted(
            double, overrides, augmentation, dense, starts_apart=False
        )
        reasons = illegal_factors(certified)
        if reasons:
            raise NotConjugateError(reasons)
        try:
            certify(certified)
        except CertificateError as error:
            raise NotConjugateError(error.reasons) from None
    return program


def interpreted(
    graph: ModelGraph,
    overrides: Mapping[str, str] | None = None,
    augmentation: logistic_bounds.Choice = logistic_bounds.DEFAULT,
    dense: Mapping[str, str] | None = None,
    *,
    starts_apart: bool | None = None,
) -> ConjugateProgram:
    """Compiles a model without certifying it, on abstract rows.

    The arguments are those of `compile_model` and `program_of`.
    """
    rows = abstract_taken_row(graph.arguments)

    def written(means: LevelMeans) -> tuple[LogJoint, RowConstants]:
        return symbolic_log_joint(
            graph,
            rows,
            dense=dense or (),
            augmentation=augmentation,
            level_means=means,
        )

    found = written({})
    means = level_means(found[0], lambda means: written(means)[0])
    if means:
        found = written(means)
    log_joint, row_constants = found
    return program_of(
        graph,
        with_linear_priors_mixed(log_joint),
        row_constants,
        overrides=overrides,
        dense=dense,
        level_means=means,
        starts_apart=starts_apart,
    )
