"""Prints the lowest versions that pyproject.toml promises, as constraints for pip."""

import pathlib
import re
import tomllib


def lowest(requirements: list[str]) -> list[str]:
    """`name>=version` as `name==version`; raises ValueError where no bound is given."""
    constraints = []
    for requirement in requirements:
        match = re.fullmatch(r"([\w.-]+)>=([\d.]+)", requirement)
        if match is None:
            raise ValueError(
                f"Expected a requirement of the form name>=version in pyproject.toml, "
                f"got {requirement!r}. Give it the lowest version that works."
            )
        constraints.append(f"{match[1]}=={match[2]}")
    return constraints


if __name__ == "__main__":
    path = pathlib.Path(__file__).parents[1] / "pyproject.toml"
    settings = tomllib.loads(path.read_text())
    project = settings["project"]
    requirements = [
        *project["dependencies"],
        *project["optional-dependencies"]["examples"],
        *project["optional-dependencies"]["tables"],
        *settings["dependency-groups"]["test"],
    ]
    print("\n".join(lowest(requirements)))
