"""What notebooks show: well-formed, escaped, and nothing that the text does not say."""

import dataclasses
import html.parser
import re

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import numpyro_vips as nv
from numpyro_vips import _html
from numpyro_vips.privacy.statement import PrivacyStatement

ALLOWED = {
    *("p", "strong", "ul", "li", "pre", "details", "summary"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}


class Page(html.parser.HTMLParser):
    """Texts between tags; elements have to be closed in order."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        assert tag in ALLOWED
        assert {name for name, _ in attrs} <= {"style"}
        self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


def joined(text: str) -> str:
    """Without spaces and line ends: tables and paragraphs break in other places."""
    return re.sub(r"\s", "", text)


@nv.private(unit="<people> & co")
def model(y):
    mean = numpyro.sample("<b>mean</b>", dist.Normal(0.0, 1.0))
    with numpyro.plate("<people> & co", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@pytest.fixture(scope="module")
def fit():
    budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-5)
    vi = nv.PrivateVI(model, budget=budget, clipping_norm=2.0, progress_bar=False)
    y = np.zeros(1000, np.float32)
    return vi.explain(y), vi.run(jax.random.key(0), y)


@pytest.mark.thorough
def test_a_plan_says_what_its_text_says(fit):
    plan, _ = fit
    page = Page(plan._repr_html_())
    text = joined(str(plan))
    assert "<b>mean</b>" in page.texts
    assert "…" not in text  # Nothing is cut in this one.
    assert all(joined(part) in text for part in page.texts)
    rest = text
    for part in sorted(map(joined, page.texts), key=len, reverse=True):
        rest = rest.replace(part, "", 1)
    assert not re.search(r"\w", rest), rest


def test_reasons_are_among_them():
    @nv.private(unit="people")
    def bent(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        with numpyro.plate("people", len(y)):
            numpyro.sample("y", dist.Normal(mean**3, 1.0), obs=y)

    vi = nv.PrivateVI(bent, budget=nv.PrivacyBudget(epsilon=1.0, delta=1e-5))
    plan = vi.explain(np.zeros(100, np.float32))
    texts = Page(plan._repr_html_()).texts
    ((site, reason),) = plan.reasons.items()
    assert f"{site}: {reason}" in texts


@pytest.mark.thorough
def test_a_statement_says_what_its_text_says(fit):
    _, result = fit
    page = Page(result.privacy._repr_html_())
    text = joined(str(result.privacy))
    assert all(joined(part) in text for part in page.texts)
    assert len("".join(map(joined, page.texts))) > 0.95 * len(text)
    assert any("one of the <people> & co" in part for part in page.texts)


def test_a_statement_without_noise_says_so(fit):
    _, result = fit
    fields = result.privacy.to_dict() | {"epsilon": "inf", "events": ()}
    page = Page(PrivacyStatement.from_dict(fields)._repr_html_())
    assert any(part.startswith("NOT PRIVATE") for part in page.texts)


def test_a_result_shows_its_warnings_statement_and_plan(fit):
    _, result = fit
    diagnostics = {**result.diagnostics, "warnings": ["<i>a</i> warning"]}
    warned = dataclasses.replace(result, diagnostics=diagnostics)
    texts = Page(warned._repr_html_()).texts
    head, warning = repr(warned).split("\n")
    assert texts == [
        *(head, warning.strip()),
        *("Privacy statement", str(warned.privacy), "Plan", warned.plan),
    ]


@pytest.mark.parametrize("charges", [0, 2])
def test_a_budget_says_what_its_text_says(charges):
    budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-5)
    for number in range(charges):
        budget.charge(
            epsilon=0.25,
            delta=1e-6,
            unit="<people> & co",
            relation="add_or_remove",
            events=(),
            label=f"<b>{number}</b>",
        )
    page = Page(budget._repr_html_())
    text = joined(str(budget))
    assert "".join(map(joined, page.texts)) == text
    assert ("<b>1</b>" in page.texts) is (charges == 2)


def test_settings_of_a_fit_are_shown_with_the_ledger():
    budget = nv.PrivacyBudget(epsilon=1.0, delta=1e-5)
    vi = nv.PrivateVI(
        model, budget=budget, engine="vips", num_steps=5, insecure_seed=8_675_309
    )
    page = Page(vi._repr_html_())
    text = joined(repr(vi))
    title, *settings = page.texts[: page.texts.index("Privacy budget")]
    assert title == "PrivateVI(model)"
    assert {"engine=VIPS()", "num_steps=5", "insecure_seed=..."} <= set(settings)
    assert all(joined(setting) in text for setting in settings)
    assert "8675309" not in text + joined("".join(page.texts))
    assert joined("".join(page.texts)).endswith(joined(str(budget)))


@pytest.mark.parametrize(
    "made",
    [
        _html.paragraph("<script>"),
        _html.heading("<script>"),
        _html.bullets(["<script>"]),
        _html.preformatted("<script>"),
        _html.folded("<script>", ""),
        _html.table(["<script>"], []),
        _html.table(["a"], [["<script>"]]),
        _html.facts([("<script>", "")]),
        _html.facts([("a", "<script>")]),
        _html.facts([("a", ["<script>"])]),
    ],
)
def test_nothing_is_taken_for_a_tag(made):
    assert "<script>" in Page(made).texts
