"""Records of fits in a file, so that a long table can be made in parts."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class Finished:
    """What has been measured already, by a key that says what was run.

    Every new record is written down at once. Without a file nothing outlasts the run.
    """

    def __init__(self, path: Path | None):
        self._path = path
        self._records: dict[str, Any] = {}
        if path is not None and path.exists():
            self._records = json.loads(path.read_text())

    def __contains__(self, key: str) -> bool:
        return key in self._records

    def forget(self, keys: Iterable[str]) -> None:
        """Removes records, so that `get` measures anew."""
        for key in keys:
            self._records.pop(key, None)

    def get(self, key: str, measure: Callable[[], Any]) -> Any:
        """The record of `key`, measured now if there is none."""
        if key not in self._records:
            self._records[key] = measure()
            if self._path is not None:
                self._path.write_text(json.dumps(self._records, indent=2) + "\n")
        return self._records[key]
