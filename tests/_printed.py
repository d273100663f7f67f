"""What was printed, but for what XLA says of the programs that tests share."""

from typing import Any


def read_printed(capfd: Any) -> tuple[str, str]:
    """What has been printed since the last call: output and errors.

    With JAX 0.9 XLA says of every program that is read from the folder of compiled ones
    that it may have been made for another processor.
    """
    printed = capfd.readouterr()
    kept = [
        line
        for line in printed.err.splitlines(keepends=True)
        if "cpu_aot_loader" not in line
    ]
    return printed.out, "".join(kept)
