"""When a fit releases what: the kinds of releases that a schedule is made of."""

from typing import Literal

# A single time, as it does not depend on the globals; rarely, as its noise only slows
# the fit; in every step; or once near the end, for the posterior's intervals.
Release = Literal["once", "refreshed", "adaptive", "information"]

# What the block of the last kind is called.
INFORMATION = "information"
