"""HTML for notebooks: escaped text in plain tables, no script, nothing to load.

What is private and what is not is decided where the text form is made; an HTML form
holds the same facts.
"""

from collections.abc import Iterable, Sequence
from html import escape

_LEFT = ' style="text-align: left; vertical-align: top"'


def paragraph(text: str) -> str:
    """One paragraph."""
    return f"<p>{escape(text)}</p>"


def heading(text: str) -> str:
    """A line in bold, which no table of contents lists."""
    return f"<p><strong>{escape(text)}</strong></p>"


def bullets(texts: Iterable[str]) -> str:
    """A list, empty text for an empty one."""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f"<ul>{items}</ul>" if items else ""


def preformatted(text: str) -> str:
    """Text whose spaces and line ends count."""
    return f"<pre>{escape(text)}</pre>"


def folded(title: str, html: str) -> str:
    """A part that opens on a click; `html` is taken as it is."""
    return f"<details><summary>{escape(title)}</summary>{html}</details>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a line of headings."""
    head = "".join(f"<th{_LEFT}>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{_LEFT}>{escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def facts(rows: Iterable[tuple[str, str | Sequence[str]]]) -> str:
    """A table of two columns: a name, and a text or a list of texts."""
    lines = []
    for name, value in rows:
        shown = escape(value) if isinstance(value, str) else bullets(value)
        lines.append(f"<tr><th{_LEFT}>{escape(name)}</th><td{_LEFT}>{shown}</td></tr>")
    return f"<table><tbody>{''.join(lines)}</tbody></table>"
