"""Draws what privacy costs, from the tables of docs/choosing_a_budget.md.

    python benchmarks/plot_frontier.py

Writes docs/frontier.svg: linear regressions beside AdaSSP, and the test AUC that
logistic regressions lose, by engine.
"""

import re
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")

import matplotlib.pyplot as plt

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGE, FIGURE = DOCS / "choosing_a_budget.md", DOCS / "frontier.svg"
# By ε.
COLOURS = {0.1: "C0", 1.0: "C1"}

Table = list[tuple[str, float, dict[str, float]]]


def table(heading: str) -> Table:
    """The rows of the table under a heading of the page: name, ε, numbers by column.

    Of `0.8913 ± 0.0011` the first number is taken. Rows that summarise others, which
    leave columns empty, are left out.
    """
    text = PAGE.read_text("utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)
    header, _, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [
        (
            name,
            float(epsilon),
            {
                column: float(cell.split()[0])
                for column, cell in zip(header[2:], cells, strict=True)
            },
        )
        for name, epsilon, *cells in rows
        if all(cells)
    ]


def described(linear: Table, logistic: Table) -> str:
    """What the figure shows, as text that a test can compare."""
    return repr((linear, logistic)).replace("'", "")


def main() -> None:
    linear, logistic = table("Linear regression"), table("Logistic regression")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "frontier"})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for epsilon, colour in COLOURS.items():
        pairs = [(n["AdaSSP"], n["default"]) for _, e, n in linear if e == epsilon]
        left.loglog(*zip(*pairs, strict=True), "o", c=colour, label=f"ε = {epsilon:g}")
    ends = 1e-3, 0.6
    left.plot(ends, ends, c="0.6", lw=1)
    left.annotate("as AdaSSP", (4e-3, 6e-3), c="0.4", ha="right")
    left.minorticks_off()
    left.set(
        title="linear: excess squared error",
        xlabel="AdaSSP, told the bounds",
        ylabel="numpyro_vips, told nothing",
    )
    left.legend(frameon=False)
    names = list(dict.fromkeys(name for name, *_ in logistic))
    for method, marker in {"VIPS": "o", "DPVI": "s"}.items():
        for epsilon, colour in COLOURS.items():
            lost = {
                name: numbers["no noise"] - numbers[method]
                for name, e, numbers in logistic
                if e == epsilon
            }
            right.plot(
                [lost[name] for name in names],
                range(len(names)),
                marker,
                c=colour,
                fillstyle="full" if method == "VIPS" else "none",
                label=f"{method}, ε = {epsilon:g}",
            )
    right.set(title="logistic: test AUC lost to privacy", yticks=range(len(names)))
    right.set_yticklabels(names)
    right.axvline(0.0, c="0.6", lw=1)
    right.invert_yaxis()
    right.grid(axis="y", c="0.9")
    right.legend(frameon=False, fontsize=8)
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    about = {"Date": None, "Description": described(linear, logistic)}
    figure.savefig(FIGURE, metadata=about)


if __name__ == "__main__":
    main()
