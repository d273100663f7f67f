"""Which observations a model weights by numbers of the rows themselves.

With `numpyro.handlers.scale(scale=weights)` under the unit plate a row counts as
`weights[n]` rows. Clipping shortens heavy rows first, and so makes their weights
smaller. Where the response goes with the weight, as after a survey that asked some
people more often than others, this biases what is fitted, and few rows may do it.
"""

from numpyro_vips.model.graph import ModelGraph


def weights_of_rows(graph: ModelGraph) -> dict[str, tuple[str, ...]]:
    """By site of a row, the private arguments that its scale is made of.

    Sites with a scale that is public, or without any, are left out; so are masks,
    under which no row counts more than once.

    Args:
      graph: The model, of whose rows only shapes and types are looked at.
    """
    scaled = [
        name
        for name, site in graph.sites.items()
        if site.row_axis is not None and "scale" in graph.program_outputs[name]
    ]
    made_of = {
        name: graph.read_for(lambda *of, name=name: of == (name, "scale"))[0]
        for name in scaled
    }
    return {name: tuple(sorted(of)) for name, of in made_of.items() if of}
