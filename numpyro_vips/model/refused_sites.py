"""What is said of sites that do not keep to their rows, and the remedies.

All of it is read off the model's traces on two and on three abstract rows.
"""

from collections.abc import Sequence

from numpyro_vips.errors import UnsafeModelError, did_you_mean, quoted
from numpyro_vips.jax_tools.jaxprs import without_dead_code
from numpyro_vips.model.meeting_rows import first_meeting, in_rows
from numpyro_vips.model.trace import Trace, TracedSite

_ONE_DENSITY = (
    "It is one density of all rows together, like a Gaussian process's, in "
    "which no row has a part of its own that could be bounded. Write a model "
    "in which rows are independent given latents that they share, for example "
    "a regression on a fixed number of basis functions, with one observation "
    "for each row under the plate."
)
_TAKEN_INTO_EVENT = (
    "Its .to_event() has made one density of all rows. Leave it out if a row has one "
    "number here, else let it take the axes of a row alone, and put the site under the "
    "plate."
)


def missing_plate(unit: str, two: Trace, three: Trace) -> UnsafeModelError:
    """The error for a model without the unit plate.

    Args:
      unit: The unit plate.
      two, three: The model's traces on so many rows.
    """
    names = two.plate_names
    message = f"The model has no plate named {unit!r}, the unit given to private()."
    nearest = did_you_mean(unit, names)
    if nearest:
        message += f" {nearest}"
    if names:
        message += (
            f" Its plates are {quoted(dict.fromkeys(names))}. If the rows of one are "
            f"the protected individuals, name it, as in private(unit={names[-1]!r})."
        )
    else:
        message += (
            " It has no plate at all: put the sample statements of one row under "
            f"`with numpyro.plate({unit!r}, X.shape[0]):`."
        )
    for name in two.samples.keys() & three.samples.keys():
        shapes = two.shape(name), three.shape(name)
        event = two.samples[name].event_dim
        if event and shapes[0][-event:] != shapes[1][-event:]:
            return UnsafeModelError(
                f"{message} As it stands, {name!r} cannot be. "
                f"{_of_all_rows(two.samples[name], *shapes)}"
            )
    return UnsafeModelError(message + beside(two, three, "order", "pairs"))


def nothing_said(unit: str) -> UnsafeModelError:
    """The error for a model whose observations depend on nothing that is fitted."""
    return UnsafeModelError(
        f"No observation under the plate {unit!r} depends on a latent, so the data say "
        "nothing about the posterior."
    )


def beside(two: Trace, three: Trace, *kinds: str) -> str:
    """What else has to change where rows meet that are not under their plate yet.

    Args:
      two, three: The model's traces on so many rows.
      kinds: The kinds of meetings that are reported. A total may be that of a density,
        and a row is also picked by an index.
    """
    meeting = first_meeting(*(without_dead_code(t.closed) for t in (two, three)))
    if meeting is None or meeting.kind not in kinds:
        return ""
    return f" And the rows may not act on each other. {meeting.advice}"


def misfit(
    name: str, unit: str, row_axis: int, batch: int, two: Trace, three: Trace
) -> str:
    """Which axes a site under the unit plate has in place of one of rows, and why.

    Args:
      name: The site.
      unit: The unit plate.
      row_axis: Where the plate has its axis among those of the site's value.
      batch: The number of the site's batch axes.
      two, three: The model's traces on so many rows.
    """
    whole = two.shape(name), three.shape(name)
    shapes = [shape[:batch] for shape in whole]
    written = [trace.samples[name].parameters_shape for trace in (two, three)]
    what = "factor" if two.samples[name].is_factor else "value"
    problem = (
        f"{name!r} stands under the plate {unit!r} and must have one entry per row "
        f"along axis {row_axis - batch}, but with N rows its {what} has shape "
        f"{in_rows(*shapes)}"
    )
    if what == "value":
        problem += f", and the parameters of its distribution have {in_rows(*written)}"
    differs = [axis for axis, (a, b) in enumerate(zip(*shapes, strict=True)) if a != b]
    is_column = [axis for axis, n in enumerate(shapes[0]) if axis not in differs]
    if len(differs) > 1:
        remedy = (
            "It pairs every row with every other, as happens where shapes such as "
            "(N, 1) and (N,) are combined: make both (N,), with X[:, 0] or .ravel()."
        )
    elif not differs and _is_taken_into_event(two.samples[name], *whole):
        remedy = _TAKEN_INTO_EVENT
    elif not differs:
        remedy = (
            "It has no axis of rows: give it one entry per row, or put it outside the "
            "plate if all rows share it."
        )
    elif differs == [0] and is_column and shapes[0][-1] == 1:
        remedy = (
            "Under the plate (N, 1) becomes (N, N), every row paired with every other. "
            "Of a column, of shape (N, 1), pass y.ravel(), with parameters of shape "
            "(N,), too; or give the plate dim=-2."
        )
    elif len(shapes[0]) > 1:
        remedy = (
            "If a row has several numbers, take their axis into the event with "
            ".to_event(1), or give it a plate of its own and the plate of the rows "
            "dim=-2."
        )
        support = two.samples[name].support
        if support is not None and support.is_discrete:
            remedy += " Of a class that is written in indicators pass y.argmax(-1)."
    else:
        remedy = (
            "Let the plate be without dim=, or give the values and parameters the axes "
            "that it leaves to other plates, as in y[:, None]."
        )
    return f"{problem}. {remedy}"


def _of_all_rows(site: TracedSite, two: tuple[int, ...], three: tuple[int, ...]) -> str:
    """What to do about a site whose event has an axis of rows.

    Args:
      site: The site.
      two, three: The shapes of its value with so many rows.
    """
    return _TAKEN_INTO_EVENT if _is_taken_into_event(site, two, three) else _ONE_DENSITY


def _is_taken_into_event(
    site: TracedSite, two: tuple[int, ...], three: tuple[int, ...]
) -> bool:
    """Whether `to_event` made the axis of rows one of the event; see `_of_all_rows`."""
    taken = site.structure.reinterpreted if site.structure else 0
    first = len(two) - site.event_dim
    return two[first : first + taken] != three[first : first + taken]


def where_to_put(
    name: str, differs: Sequence[int], unit: str, two: Trace, three: Trace
) -> str:
    """What to do about a site with an axis of rows outside the unit plate.

    Args:
      name: The site.
      differs: Its axes of rows.
      unit: The unit plate.
      two, three: The model's traces on so many rows.
    """
    site = two.samples[name]
    batch = len(two.shape(name)) - site.event_dim
    if any(axis >= batch for axis in differs):
        return _of_all_rows(site, two.shape(name), three.shape(name))
    plates = {batch + dim: plate for plate, dim in site.plates}
    others = [repr(plates[axis]) for axis in differs if axis in plates]
    if others:
        return (
            f"It is under the plate {', '.join(others)}, whose length is that of the "
            f"rows. Rows have one plate: put it under {unit!r} in its place, or give "
            "private() the name of the other plate if that is the one of individuals."
        )
    return "Put it under the plate."


def depends_on_rows(
    name: str, argument: str, unit: str, also: str, *, is_latent: bool
) -> UnsafeModelError:
    """The error for a site outside the plate that depends on rows.

    Args:
      name: The site.
      argument: What of the rows it depends on.
      unit: The unit plate.
      also: What else has to change, see `beside`.
      is_latent: Whether it is a latent, and not a factor.
    """
    if not is_latent:
        return UnsafeModelError(
            f"The factor {name!r} stands outside the plate {unit!r} and depends "
            f"on the private argument {argument!r}, so no bound on one row's influence "
            "covers it. Put what belongs to a row under the plate, one number for each "
            f"row and not their sum.{also}"
        )
    return UnsafeModelError(
        f"The distribution of {name!r}, which all rows share, depends on the "
        f"private argument {argument!r}. Its prior would reveal the data. Use public "
        f"constants in the prior, or put the site under the plate {unit!r}."
    )


def depends_on_number(name: str, unit: str, *, is_latent: bool) -> UnsafeModelError:
    """The error for a site outside the plate that depends on how many rows there are.

    Args:
      name, unit, is_latent: See `depends_on_rows`.
    """
    if not is_latent:
        return UnsafeModelError(
            f"The factor {name!r} stands outside the plate {unit!r} and depends "
            "on the number of rows that the model is given, or on latents of theirs. "
            "Put what belongs to a row under the plate, and pass the number of rows as "
            "a public number of its own."
        )
    return UnsafeModelError(
        f"The distribution of {name!r}, which all rows share, depends on the "
        "number of rows that the model is given, and minibatches change it. Pass the "
        "number of rows as a public number of its own."
    )
