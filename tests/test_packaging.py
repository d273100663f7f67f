"""What is imported is declared, so that a fresh installation runs."""

import ast
import json
import pathlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata

import pytest

import numpyro_vips

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES = PROJECT["project"]["dependencies"]
EXTRAS = PROJECT["project"]["optional-dependencies"]
GROUPS = PROJECT["dependency-groups"]
# What each folder may use: what whoever runs it has installed.
ALLOWED = {
    "numpyro_vips": DEPENDENCIES + EXTRAS["tables"] + EXTRAS["formulas"],
    "examples": DEPENDENCIES + EXTRAS["examples"],
    "benchmarks": DEPENDENCIES + EXTRAS["examples"],
    "tests": DEPENDENCIES + EXTRAS["examples"] + GROUPS["test"],
    "docs": DEPENDENCIES + GROUPS["docs"],
}
# ArviZ 0 brings a netCDF reader along, ArviZ 1 does not: nobody may count on it.
NOT_COUNTED_ON = {"arviz"}


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def named(requirements: Iterable[str | dict]) -> set[str]:
    """The distributions that requirements name; included groups are left out."""
    texts = [text for text in requirements if isinstance(text, str)]
    matches = [re.match(r"[A-Za-z0-9._-]+", text) for text in texts]
    return {normalized(match.group()) for match in matches if match}


def imported_names(path: pathlib.Path) -> set[str]:
    """Top-level packages that a file imports anywhere."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


def brought_along(names: Iterable[str]) -> set[str]:
    """The distributions, with all that those of them that are counted on require."""
    found: set[str] = set()
    rest = list(names)
    while rest:
        name = rest.pop()
        if name in found:
            continue
        found.add(name)
        if name in NOT_COUNTED_ON:
            continue
        try:
            requirements = metadata.requires(name) or []
        except metadata.PackageNotFoundError:  # For another platform or version.
            continue
        rest += named(text for text in requirements if "extra ==" not in text)
    return found


@pytest.mark.quick_with("numpyro_vips")
@pytest.mark.parametrize("folder", ALLOWED)
def test_every_import_is_declared(folder):
    files = list((ROOT / folder).rglob("*.py"))
    assert files
    own = {"numpyro_vips"}
    if folder != "numpyro_vips":  # Scripts import their neighbours by bare names.
        for other in set(ALLOWED) - {"numpyro_vips"}:
            own |= {path.stem for path in (ROOT / other).rglob("*.py")}
            own |= {path.parent.name for path in (ROOT / other).rglob("__init__.py")}
    distributions = metadata.packages_distributions()
    declared = named(ALLOWED[folder])
    for path in files:
        for name in imported_names(path) - own - set(sys.stdlib_module_names):
            owners = {normalized(owner) for owner in distributions.get(name, [name])}
            assert owners & declared, (
                f"{path.relative_to(ROOT)} imports {name}, and pyproject.toml does not "
                f"declare it for {folder}."
            )


def test_citation_and_classifiers_say_what_is_so():
    citation = (ROOT / "CITATION.cff").read_text()
    (version,) = re.findall(r"^version: (\S+)$", citation, re.MULTILINE)
    assert version == numpyro_vips.__version__
    prefix = "Programming Language :: Python :: 3."
    pythons = {
        int(text.removeprefix(prefix))
        for text in PROJECT["project"]["classifiers"]
        if text.startswith(prefix)
    }
    assert PROJECT["project"]["requires-python"] == f">=3.{min(pythons)}"


PROGRAM = """
import json, sys

hidden = set(json.loads(sys.argv[2]))

class Hider:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hider())

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro_vips as nv

@nv.private(unit="people")
def model(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("people", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)

budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-5, path=sys.argv[1] + ".ledger")
vi = nv.PrivateVI(
    model, budget=budget, num_steps=1, progress_bar=False
)
result = vi.run(jax.random.key(0), np.zeros(50, np.float32))
result.save(sys.argv[1])
assert str(nv.load(sys.argv[1]).privacy) == str(result.privacy)
"""


@pytest.mark.thorough
def test_a_fit_is_made_and_saved_with_what_is_declared(tmp_path):
    """Everything else that happens to be installed is hidden from the program."""
    counted_on = brought_along(named(DEPENDENCIES)) | {"numpyro-vips"}
    hidden = [
        name
        for name, owners in metadata.packages_distributions().items()
        if not {normalized(owner) for owner in owners} & counted_on
    ]
    assert "pytest" in hidden
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "fit.nc"), json.dumps(hidden)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr


OFFLINE = """
import sys

opened = []

def hook(event, arguments):
    # Making one, connecting it, and looking up names of other machines.
    if event.startswith("socket."):
        opened.append(event)

sys.addaudithook(hook)
"""


@pytest.mark.thorough
def test_neither_an_import_nor_a_fit_opens_a_socket(tmp_path):
    program = f"{OFFLINE}{PROGRAM}\nprint(opened)"
    run = [sys.executable, "-c", program, str(tmp_path / "fit.nc"), "[]"]
    found = subprocess.run(run, cwd=ROOT, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip().splitlines()[-1] == "[]"


def test_a_socket_would_have_been_noticed():
    program = f"{OFFLINE}\nimport socket\nsocket.socket().close()\nprint(opened)"
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "['socket.__new__']"


@pytest.mark.thorough
def test_optimizers_are_loaded_by_what_needs_them_before_a_fit_is_paid_for():
    """SciPy's take a quarter of the time of the import."""
    program = """
import sys
import numpy as np
import numpyro
import numpyro.distributions as dist
import numpyro_vips as nv

@nv.private(unit="rows")
def plain(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)

@nv.private(unit="rows")
def misreported(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("rows", len(y)):
        z = numpyro.sample("z", dist.Bernoulli(p), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Bernoulli(0.2 + 0.7 * z), obs=y)

def loaded_after(model):
    budget = nv.PrivacyBudget(1.0, 1e-6)
    vi = nv.PrivateVI(model, budget=budget, engine="vips", clipping_norm=1.0)
    vi.explain(np.zeros(50))
    return "scipy.optimize" in sys.modules

print([loaded_after(plain), loaded_after(misreported)])
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[False, True]"
