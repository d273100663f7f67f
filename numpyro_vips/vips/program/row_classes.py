"""Rows that are each of one unknown class, as in a mixture.

The first sums of a fit are of rows that are shared out between classes as these start:
little by what the rows are. An average of ten steps has much of them, and what is known
of the way from there is known up to noise that the average no longer shows: posteriors
are then off and sure. So such a fit has more steps, and the first ones leave nothing in
the average and get less of the budget, as where components of mixtures have to part
(`waiting_globals`). It is a matter of the model alone.

A row with several discrete latents, such as a chain of hidden states or the topics of a
document's words, is not of one class: what its first steps find is not as far off, and
forgetting them costs more than it gains.
"""

import math

from numpyro_vips.conjugacy.structure.structure import Structure


def row_class(structure: Structure, *, starts_apart: bool) -> str | None:
    """The latent that says of which class a row is.

    Args:
      structure: What was found in the model.
      starts_apart: What `waiting_globals.components_start_apart` says.

    Returns:
      The only discrete latent of a row. None where there is no such latent, or where
      the prior has the classes at places of their own: steps that forget would have
      them change places under strong noise.
    """
    discrete = [
        latent
        for latent in structure.latents.values()
        if latent.role == "local" and latent.states is not None
    ]
    if starts_apart or len(discrete) != 1 or math.prod(discrete[0].shape) > 1:
        return None
    return discrete[0].name
