"""When a fit releases what: the kinds of releases that a schedule is made of."""

from typing import Literal, NamedTuple

# A single time, as it does not depend on the globals; rarely, as its noise only slows
# the fit; in every step; or once near the end, for the posterior's intervals.
Release = Literal["once", "refreshed", "adaptive", "information"]

# What blocks of the last kind are called: rows' information about the globals, and the
# second moments of their covariates.
INFORMATION = "information"
COVARIATES = "covariates' second moments"


class Together(NamedTuple):
    """Blocks of one step that share a norm, as their numbers are of one size.

    Attributes:
      name: What they are called together.
      blocks: Their names.
      directions: Of all of them; see `Block`.
    """

    name: str
    blocks: tuple[str, ...]
    directions: int | None
