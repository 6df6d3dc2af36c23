"""What `make docs` needs of the repository and tests can check without Sphinx: formulas, links and lists of pages."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import posenc

DOCS = Path(__file__).parents[1] / "docs"
sys.path.append(str(DOCS / "_ext"))
from formulas import to_mathml  # noqa: E402  (the site's own modules have no package)

PAGES = [page for page in DOCS.rglob("*.md") if not re.match(r"_|locale", str(page.relative_to(DOCS)))]


def spelt(element):
    """Write MathML as one line: a_(b) for a subscript, a^(b) for a superscript."""
    inner = [spelt(child) for child in element]
    if element.tag in ("msub", "msup", "msubsup"):
        marks = {"msub": "_", "msup": "^", "msubsup": "_^"}[element.tag]
        return inner[0] + "".join(f"{mark}({script})" for mark, script in zip(marks, inner[1:], strict=True))
    return " " if element.tag == "mspace" else "".join(inner) or element.text or ""


@pytest.mark.parametrize(
    ("formula", "typeset"),
    [
        ("ω_k = base^(-2k/d)", "ω_(k) = base^(−2k/d)"),
        ("2^-3 + x^2", "2^(−3) + x^(2)"),
        ("s_ij·x_{p+o}[i]", "s_(ij)·x_(p+o)[i]"),
        ("Σ_{t=j..i} q_iᵀk", "Σ_(t=j…i) q_(i)^(T)k"),
        ("D⁻¹k, ζ_k^(-(p-c)/512)", "D^(−1)k, ζ_(k)^(−(p−c)/512)"),
        ("leaky_relu(a_{h,c}) < 1,000", "leaky_relu(a_(h,c)) < 1,000"),
    ],
)
def test_a_formula_has_its_scripts(formula, typeset):
    assert spelt(ElementTree.fromstring(to_mathml(formula))) == typeset


@pytest.mark.parametrize("name", posenc.names())
def test_every_cards_formula_is_typeset_whole(name):
    math = ElementTree.fromstring(to_mathml(posenc.card(name).formula))
    marks = [sign.text for sign in math.iter("mo") if sign.text in ("_", "^", "{", "}")]
    assert marks == []
    assert all(
        len(element) == {"msub": 2, "msup": 2, "msubsup": 3}.get(element.tag, len(element)) for element in math.iter()
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_between_pages_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if "_made/encodings/" in link:
            assert Path(link).stem in posenc.names()
        elif "_made/gallery/" in link:
            assert Path(link).stem == "index" or (DOCS.parent / "examples" / f"{Path(link).stem}.py").exists(), link
        elif not link.startswith("https:"):
            assert (page.parent / link).exists(), link


def test_every_page_is_in_a_list_of_pages():
    listed = set()
    for page in PAGES:
        for block in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            names = re.findall(r"^(?:\w+ <)?([\w/.]+)>?$", block, re.MULTILINE)
            listed |= {(page.parent / f"{name}.md").resolve() for name in names}
    assert {page.resolve() for page in PAGES} - listed == {DOCS / "index.md", DOCS / "stacks_head.md"}


def test_the_reference_leads_to_the_examples_that_use_an_object():
    pytest.importorskip("sphinx")
    from uses import uses

    assert uses("posenc.figures.finite_size", posenc.figures.finite_size) == ["gallery_distance"]
    assert "swap_encoding" in uses("posenc.ALiBi", posenc.ALiBi)  # which has it by name, "alibi"
    assert uses("posenc.Graphormer", posenc.Graphormer) == []


@pytest.mark.parametrize(
    ("link", "there"),
    [
        ("[a](../benchmarks/PEERS.md)", "[a](_made/benchmarks/PEERS.md)"),
        ("[a](../../benchmarks/EXTEND.md)", "[a](../_made/benchmarks/EXTEND.md)"),
        ("[a](../examples/README.md)", "[a](_made/gallery/index.rst)"),
        ("[a](study.md)", "[a](study.md)"),
    ],
)
def test_links_that_leave_the_pages_lead_to_copies_on_the_site(link, there):
    pytest.importorskip("sphinx")
    source = [link]
    import links

    links._lead(None, "page", source)
    assert source == [there]
