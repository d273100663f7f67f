"""The most memory that this process has held."""

import resource
import sys


def peak_bytes() -> int:
    """Peak resident memory; the system counts kilobytes, on macOS bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
