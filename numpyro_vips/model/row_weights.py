"""Which observations a model weights by numbers of the rows themselves.

With `numpyro.handlers.scale(scale=weights)` under the unit plate a row counts as
`weights[n]` rows. Clipping shortens heavy rows first, and so makes their weights
smaller. Where the response goes with the weight, as after a survey that asked some
people more often than others, this biases what is fitted, and few rows may do it.
"""

import jax

from numpyro_vips.jax_tools.jaxprs import with_used_inputs
from numpyro_vips.model.graph import ModelGraph


def weights_of_rows(graph: ModelGraph) -> dict[str, tuple[str, ...]]:
    """By site of a row, the private arguments that its scale is made of.

    Sites with a scale that is public, or without any, are left out; so are masks,
    under which no row counts more than once.

    Args:
      graph: The model, of whose rows only shapes and types are looked at.
    """
    leaves, _ = jax.tree_util.tree_flatten_with_path(graph.program_outputs)
    paths = [tuple(getattr(key, "key", None) for key in path[:2]) for path, _ in leaves]
    # Rows are the first inputs, by name.
    names = sorted(graph.program_inputs[0])
    found = {}
    for site in graph.sites.values():
        wanted = [path == (site.name, "scale") for path in paths]
        if site.row_axis is None or not any(wanted):
            continue
        _, used = with_used_inputs(graph.program, wanted)
        made_of = tuple(name for number, name in enumerate(names) if used[number])
        if made_of:
            found[site.name] = made_of
    return found
