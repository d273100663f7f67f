"""Links between the pages of the repository lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if "_build" not in path.parts
)


def without_code(text: str) -> str:
    text = re.sub(r"^(`{3,}).*?^\1`*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`]*`", "code", text)


def links(path: Path) -> list[str]:
    """Targets of a page's links and pictures, but for those outside the repository."""
    found = re.findall(r"\]\(<?([^)\s>]+)", without_code(path.read_text("utf-8")))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(path: Path) -> set[str]:
    """What `#...` may name on a page: its headings.

    Targets of Sphinx, `(name)=`, are none: GitHub does not know them.
    """
    text = path.read_text("utf-8")
    text = re.sub(r"^(`{3,}).*?^\1`*$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs: list[str] = []
    for heading in headings:
        # As GitHub and myst do: links are their text, and punctuation goes.
        heading = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-")
        slugs.append(f"{slug}-{slugs.count(slug)}" if slug in slugs else slug)
    return set(slugs)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings(page):
    for link in links(page):
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.is_relative_to(ROOT) and file.exists(), link
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), link


def test_links_are_found_and_missing_ones_are_noticed(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Who, and *why*?\n[a](other.md#x) `[b](code.md)` ![c](c.png)\n"
        "```python\n# no heading\nx[0](y)\n```\n(named)=\n## Who, and *why*?\n"
        "[d](https://example.org)\n"
    )
    assert links(page) == ["other.md#x", "c.png"]
    assert anchors(page) == {"who-and-why", "who-and-why-1"}
