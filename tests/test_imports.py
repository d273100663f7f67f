"""The package's folders import one way, in the order in docs/architecture.md."""

import ast
import collections
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "numpyro_vips"
ROOT = Path(__file__).resolve().parents[1] / PACKAGE
# From the top down: each place imports only from those below it.
ORDER = (
    "__init__.py",
    "inference.py",
    "fitting/",
    "fitting/bounds/",
    "fitting/advantages/",
    "fitting/schedule_options.py",
    "fitting/engine.py",
    "fitting/reducers/",
    "dpvi/",
    "dpvi/posterior/",
    "dpvi/gradients/",
    "dpvi/guides/",
    "dpvi/row_latents/",
    "vips/",
    "vips/corrections/",
    "vips/m_step/",
    "vips/row_sums/",
    "vips/steps/",
    "vips/units/",
    "vips/posterior/",
    "vips/compile/",
    "vips/e_step/",
    "vips/program/",
    "result.py",
    "result_file.py",
    "named_draws.py",
    "uncertainty.py",
    "posterior.py",
    "abilities.py",
    "conjugacy/structure/",
    "conjugacy/densities/",
    "conjugacy/interpreter/",
    "conjugacy/families/",
    "conjugacy/algebra/",
    "model/facts/",
    "model/synthetic/",
    "model/",
    "model/references/",
    "model/handler_stack.py",
    "rows/",
    "schema/",
    "privacy/",
    "accounting/",
    "polya_gamma.py",
    "jax_tools/",
    "jax_tools/operations/",
    "_settings.py",
    "handlers.py",
    "_keywords.py",
    "points.py",
    "errors.py",
    "_html.py",
    "_validate.py",
)
# Only a docstring is in it: what it would import, every folder in it would import.
NO_IMPORTS = "conjugacy/__init__.py"


@functools.cache
def files() -> tuple[str, ...]:
    return tuple(sorted(p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py")))


def place_of(file: str) -> str | None:
    """The entry of `ORDER` that a file belongs to, if it belongs to one."""
    folder, slash, _ = file.rpartition("/")
    place = file if file in ORDER or not slash else folder + slash
    return place if place in ORDER else None


def file_of(module: str) -> str | None:
    """The file of a dotted module of the package, None for any other name."""
    path = module.replace(".", "/").removeprefix(PACKAGE).removeprefix("/")
    candidates = (f"{path}.py", f"{path}/__init__.py" if path else "__init__.py")
    return next((file for file in candidates if file in files()), None)


def imported_modules(file: str) -> Iterator[str]:
    """Modules of the package in all import statements of a file.

    Those inside of functions and under `TYPE_CHECKING` count too: who reads the file
    has to know what they name.
    """
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import, line {node.lineno}"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if file_of(name) is not None else str(node.module)


@functools.cache
def imports_of(file: str) -> tuple[str, ...]:
    found = set()
    for module in imported_modules(file):
        if module.split(".")[0] == PACKAGE:
            imported = file_of(module)
            assert imported is not None, f"{file} imports {module}, which is no file"
            found.add(imported)
    return tuple(sorted(found))


def longest_chain() -> list[str]:
    """The files of the longest chain of imports; fails where there is a cycle."""
    chains: dict[str, list[str]] = {}

    def visit(file: str, above: list[str]) -> list[str]:
        assert file not in above, f"a cycle of imports: {' -> '.join((*above, file))}"
        if file not in chains:
            below = [visit(other, [*above, file]) for other in imports_of(file)]
            chains[file] = [file, *max(below, key=len, default=[])]
        return chains[file]

    return max((visit(file, []) for file in files()), key=len)


def test_every_module_has_a_place():
    assert len(files()) > 100
    homeless = [file for file in files() if place_of(file) is None]
    assert homeless == [NO_IMPORTS]
    assert imports_of(NO_IMPORTS) == ()
    assert set(ORDER) == {place_of(file) for file in files()} - {None}


def test_no_folder_has_too_many_modules_to_look_through():
    folders = collections.Counter(file.rpartition("/")[0] for file in files())
    assert folders.most_common(1)[0][1] <= 25, folders.most_common(3)


@pytest.mark.parametrize("place", ORDER)
def test_a_place_imports_only_from_those_below_it(place):
    height = {name: -i for i, name in enumerate(ORDER)}
    wrong = []
    for file in files():
        if place_of(file) != place:
            continue
        for other in imports_of(file):
            target = place_of(other)
            assert target is not None, f"{file} imports {other}, which has no place"
            if target != place and height[target] > height[place]:
                wrong.append(f"{file} imports {other}")
    assert not wrong


def test_no_modules_import_each_other():
    chain = longest_chain()
    print(f"{len(chain)} levels of imports: {' -> '.join(chain)}")
    assert chain[0] == "__init__.py"


def test_the_picture_in_the_docs_is_this_order(repository):
    page = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = re.search(
        r"^## Where things are\n.*?^```text\n(.*?)^```", page, re.M | re.S
    )
    assert picture is not None, "docs/architecture.md has no picture of the folders"
    # A line that is indented goes on with the one before.
    names = re.findall(r"^(\S+)", picture[1], re.MULTILINE)
    assert tuple(names) == ORDER


def listed_modules(page: str) -> Iterator[str]:
    """The files that the page's tables are about, as paths from the package's root.

    A name in a table's first column is one of the folder that the table is about, or
    has its own folder in front.
    """
    folder = ""
    for line in page.splitlines():
        if heading := re.match(r"### (?:`([\w/]+/)`|The package itself)", line):
            folder = heading[1] or ""
        elif line.startswith("| `"):
            for name in re.findall(r"`([\w/]+\.py)`", line.split("|")[1]):
                yield name if "/" in name else folder + name


def test_the_docs_list_every_module_once(repository):
    page = (repository / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = collections.Counter(listed_modules(page))
    # What only hands on names is listed where it does more.
    modules = {file for file in files() if not file.endswith("__init__.py")}
    assert modules - set(listed) == set()
    assert set(listed) - set(files()) == set()
    assert [file for file, times in listed.items() if times != 1] == []


# Families are called by their distributions; these are also a kind of column, and a
# distribution for NumPyro.
NAMES_OF_FAMILIES = {"Categorical", "PolyaGamma"}


def test_a_class_name_has_one_meaning():
    names = collections.Counter(
        node.name
        for file in files()
        for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, times in names.items() if times > 1} == NAMES_OF_FAMILIES


@pytest.mark.parametrize(
    "file", [f for f in files() if f.startswith(("accounting/", "privacy/"))]
)
def test_the_privacy_core_needs_no_jax(file):
    imported = {module.split(".")[0] for module in imported_modules(file)}
    assert imported.isdisjoint({"jax", "jaxlib", "numpyro", "optax"})


# Modules without a test file of their own name, and where they are tested.
TESTED_ELSEWHERE = {
    "abilities.py": "what engines have without them, vips/ and dpvi/test_engine.py",
    "conjugacy/densities/log_densities.py": "by a model each, test_conjugate_models.py",
    "conjugacy/families/gig_draws.py": "families/test_generalized_*.py",
    "conjugacy/families/gig_moments.py": "families/test_generalized_*.py",
    "conjugacy/families/standard_deviations.py": "families/test_contract.py",
    "conjugacy/interpreter/values.py": "by each rule, interpreter/test_*_rules.py",
    "conjugacy/structure/log_joint.py": "on whole models, test_conjugate_models.py",
    "conjugacy/structure/row_validity.py": "by rows that are none, test_hidden_rows.py",
    "conjugacy/structure/site_densities.py": "by a model each, test_conjugate_*.py",
    "dpvi/compiler.py": "by its steps, test_engine.py and guides/test_guides.py",
    "dpvi/gradients/released_leaves.py": "by their sums, gradients/test_clipped_*.py",
    "dpvi/gradients/row_fingerprints.py": "by draws of rows, guides/test_guides.py",
    "dpvi/guides/monte_carlo_bound.py": "by what results answer, test_row_queries.py",
    "dpvi/guides/posteriors.py": "by guides, guides/test_guides.py",
    "dpvi/guides/unconstrained.py": "by what lives there, guides/test_guides.py",
    "dpvi/newton_fit.py": "posterior/test_without_noise.py",
    "dpvi/posterior/full_batch.py": "posterior/test_without_noise.py",
    "dpvi/reading.py": "by its posteriors, posterior/test_noise_aware.py",
    "dpvi/unconstrained_elbo.py": "by what is found in it, test_centred_effects.py",
    "dpvi/row_programs.py": "by their sums, gradients/test_clipped_gradients.py",
    "dpvi/posterior/row_matrices.py": "by sums, posterior/test_row_information.py",
    "fitting/engine.py": "a protocol without code",
    "fitting/plan.py": "by what explain says, fitting/test_explanation.py",
    "fitting/prepare.py": "fitting/test_engine_choice.py, test_prepared_fits.py",
    "fitting/schedule_options.py": "by what they plan, fitting/test_schedule.py",
    "model/references/code_references.py": "model/references/test_references.py",
    "model/max_nonzeros.py": "by arguments with widths, model/test_arguments.py",
    "model/refused_arguments.py": "by what is refused, model/test_arguments.py",
    "model/refused_sites.py": "by models that are refused, model/test_graph.py",
    "posterior.py": "a protocol; its registry, test_result_file.py",
    "privacy/budget_table.py": "by ledgers that are printed, privacy/test_budget.py",
    "privacy/charge_checks.py": "by what ledgers refuse, privacy/test_budget.py",
    "privacy/releases.py": "names and records without code",
    "vips/compile/compiler.py": "by each compiled model, compile/test_certificate.py",
    "vips/diagnostics.py": "of fits, steps/test_convergence.py, steps/test_drift.py",
    "vips/e_step/integrated_latents.py": "e_step/test_local_quadrature.py",
    "vips/e_step/small_matrices.py": "by integrals, e_step/test_local_quadrature.py",
    "vips/initial_state.py": "by its fits, test_engine.py",
    "vips/m_step/global_programs.py": "by their steps, m_step/test_global_step.py",
    "vips/m_step/sums_of_features.py": "of regressions, program/test_features.py",
    "vips/m_step/newton_targets.py": "by their steps, steps/test_newton_steps.py",
    "vips/m_step/shares.py": "by the posteriors they make, m_step/test_m_step.py",
    "vips/posterior/row_queries.py": "test_row_queries.py",
    "vips/program/program.py": "a record; by its readers, compile/test_certificate.py",
    "vips/program/random_trials.py": "by what is found, program/test_feature_*.py",
    "vips/row_sums/public_statistics.py": "by their posteriors, test_engine.py",
    "vips/row_sums/released_blocks.py": "symmetric ones, row_sums/test_row_norms.py",
    "vips/row_sums/row_programs.py": "by their sums, test_engine.py",
    "vips/row_sums/sizes_of_rows.py": "norms that clip, row_sums/test_row_norms.py",
    "vips/steps/best_start.py": "m_step/test_starts.py, with several starts",
    "vips/steps/state.py": "a record; test_engine.py",
    "vips/steps/step_sizes.py": "by schedules, test_engine.py",
}


def mirror_of(file: str) -> str:
    """The test file that a module would have."""
    folder, slash, name = file.rpartition("/")
    return f"{folder}{slash}test_{name.removeprefix('_')}"


def test_every_module_has_a_test_file_or_a_reason_why_not():
    modules = [file for file in files() if not file.endswith("__init__.py")]
    tests = ROOT.parent / "tests"
    without = {file for file in modules if not (tests / mirror_of(file)).exists()}
    assert without - set(TESTED_ELSEWHERE) == set(), "modules without tests"
    assert set(TESTED_ELSEWHERE) - without == set(), "these have tests, or are gone"


def test_reasons_name_files_that_there_are():
    tests = ROOT.parent / "tests"
    for file, reason in TESTED_ELSEWHERE.items():
        folder = file.split("/", maxsplit=1)[0]
        for name in re.findall(r"[\w/*]+\.py", reason):
            found = [*tests.glob(name), *tests.glob(f"{folder}/{name}")]
            assert found, f"{file}: there is no {name}"
