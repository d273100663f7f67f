"""Tutorials: notebooks that go through the public API. `make docs` runs them."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import numpyro_vips as nv

DOCS = Path(__file__).parents[1] / "docs"
PAGES = [*DOCS.glob("*.md"), *DOCS.glob("*/*.md")]
NOTEBOOKS = sorted(p for p in PAGES if "```{code-cell}" in p.read_text())
TUTORIALS = [path for path in NOTEBOOKS if path.parent.name == "tutorials"]
# These show how it works, with parts that are not public.
INSIDE = [
    path
    for path in NOTEBOOKS
    if path.parent.name == "how_it_works" or path.stem == "paper_corrections"
]


def code(path: Path) -> str:
    cells = re.findall(
        r"^```\{code-cell\} ipython3\n(.*?)^```", path.read_text(), re.M | re.S
    )
    lines = "\n".join(cells).splitlines()
    return "\n".join(line for line in lines if not line.startswith((":", "%")))


def test_every_notebook_is_in_the_list_and_in_the_table_of_contents():
    page = (DOCS / "tutorials" / "index.md").read_text()
    listed = page.partition("```{toctree}")[2].split()[1:-1]
    assert sorted(listed) == [path.stem for path in TUTORIALS]
    assert all(f"]({path.name})" in page for path in TUTORIALS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook(path):
    text = path.read_text()
    # What tells Jupytext and MyST-NB that it is one.
    assert text.startswith("---\njupytext:") and "\n  name: python3\n---\n\n# " in text
    tree = ast.parse(code(path))
    used, modules, plots = set(), set(), 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {(alias.name, alias.asname) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add((node.module, None))
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "nv":
                used.add(node.attr)
            plots += (node.value.id, node.attr) == ("plt", "show")
    ours = {name for name, _ in modules if name.startswith("numpyro_vips")}
    assert ours == {"numpyro_vips"} or path in INSIDE
    assert used <= set(nv.__all__)
    assert plots or path not in TUTORIALS
    assert all(importlib.util.find_spec(name.split(".")[0]) for name, _ in modules)
