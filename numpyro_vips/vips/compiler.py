"""From a model graph to a certified conjugate program, or to the reasons why not."""

from collections.abc import Iterable, Mapping
from typing import Any

import jax

from numpyro_vips import _validate
from numpyro_vips.conjugacy.densities import logistic_bounds
from numpyro_vips.conjugacy.structure.log_joint import LogJoint, symbolic_log_joint
from numpyro_vips.conjugacy.structure.structure import (
    NotConjugate,
    Structure,
    find_structure,
)
from numpyro_vips.handlers import private
from numpyro_vips.model.graph import ModelGraph, retrace
from numpyro_vips.model.sparse_rows import dense_rows
from numpyro_vips.model.synthetic_rows import with_synthetic_rows
from numpyro_vips.model.trace import abstract_taken_rows
from numpyro_vips.vips.certificate import CertificateError, certify
from numpyro_vips.vips.factor_legality import illegal_factors
from numpyro_vips.vips.program import ConjugateProgram


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
      NotConjugate: It is not, with the reasons by site.
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
    except NotConjugate as error:
        # What cannot be done by entries may be possible for whole rows.
        return compiled(dict.fromkeys(widths, str(error)))
    of_rows = _analyse(graph, overrides, augmentation, widths)
    lost = _signs_lost(by_entries.structure, of_rows)
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
    found = _analyse(graph, overrides, augmentation, dense)
    with jax.enable_x64(True):
        synthetic = with_synthetic_rows(graph.arguments, 3, seed=1)
        double = retrace(graph, model, synthetic)
        certified = ConjugateProgram(
            graph=double,
            structure=_analyse(double, overrides, augmentation, dense),
            augmentation=augmentation,
            dense=dense,
        )
        reasons = illegal_factors(certified)
        if reasons:
            raise NotConjugate(reasons)
        try:
            certify(certified)
        except CertificateError as error:
            raise NotConjugate({"certificate": str(error)}) from None
    return ConjugateProgram(
        graph=graph,
        structure=found,
        augmentation=augmentation,
        dense=dense,
        densified=_abstract_log_joint(graph, augmentation, dense).densified,
    )


def _analyse(
    graph: ModelGraph,
    overrides: Mapping[str, str],
    augmentation: logistic_bounds.Choice = logistic_bounds.DEFAULT,
    dense: Iterable[str] = (),
) -> Structure:
    """Finds the structure with abstract rows: nothing is computed."""
    return find_structure(_abstract_log_joint(graph, augmentation, dense), overrides)


def _abstract_log_joint(
    graph: ModelGraph, augmentation: logistic_bounds.Choice, dense: Iterable[str]
) -> LogJoint:
    box: list[LogJoint] = []

    def analyse(rows: Mapping[str, Any]) -> None:
        box.append(
            symbolic_log_joint(
                graph, dense_rows(rows, dense), augmentation=augmentation
            )
        )

    jax.eval_shape(analyse, abstract_taken_rows(graph.arguments, 1))
    return box[0]
