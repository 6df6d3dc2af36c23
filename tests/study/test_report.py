import base64
import copy
import hashlib
import json
import math
import re
from itertools import pairwise

import pytest

from posenc.study.marks import assign_marks
from posenc.study.report import render
from posenc.study.scales import Line, shorten, spread_labels, y_range, y_ticks
from study.page import HOSTILE, Page
from study.samples import REAL, make_cell, make_run, make_study


@pytest.fixture(scope="module")
def full():
    return render(*make_study())


def test_the_page_asks_the_question_and_states_its_facts(full):
    text = Page(full).text()
    assert "How does each position encoding perform beyond its trained length, and what does it cost?" in text
    for fact in (
        "pydoc_data.topics, 465,000 bytes",
        "380 steps at 64 bytes",
        "2 seeds",
        "22 of 22 cells",
        "4 min 2 s",
    ):
        assert fact in text
    assert "interrupted" not in text


def test_the_page_loads_nothing(full):
    page = Page(full)
    assert not {tag for tag, _ in page.elements} & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "video",
    }
    for tag, attrs in page.elements:
        assert not {"src", "srcset", "style", "xlink:href"} & set(attrs)
        assert not any(name.startswith("on") for name in attrs)
        if "href" in attrs:
            assert tag == "a"
            assert attrs["href"].startswith(("#", "https://arxiv.org/abs/"))
    assert "@import" not in full
    assert not re.search(r"url\((?!#)", full)


def test_the_content_policy_admits_exactly_the_inline_style_and_script(full):
    (policy,) = [a["content"] for a in Page(full).all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", full, flags=re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_ids_are_unique_and_references_resolve(full):
    page = Page(full)
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    targets = {attrs["href"][1:] for attrs in page.all("a") if attrs["href"].startswith("#")}
    labels = {part for _, attrs in page.elements for part in attrs.get("aria-labelledby", "").split()}
    assert targets | labels | set(re.findall(r"url\(#([^)]*)\)", full)) <= set(ids)


def test_every_chart_and_table_is_named_and_headed(full):
    page = Page(full)
    charts = [attrs for attrs in page.all("svg") if "chart" in attrs.get("class", "").split()]
    assert len(charts) == 4
    assert all(attrs["role"] == "img" and attrs["aria-labelledby"] for attrs in charts)
    assert all(attrs.get("scope") in ("col", "row", "colgroup") for attrs in page.all("th"))
    regions = [attrs for attrs in page.all("div") if attrs.get("class") == "scroll"]
    assert len(regions) == len(page.all("table")) == 6
    assert all(attrs["aria-label"] and attrs["tabindex"] == "0" for attrs in regions)


@pytest.mark.parametrize("bad", HOSTILE)
def test_every_text_of_a_user_is_escaped(bad):
    run, cells = make_study({bad: REAL["rope"], "alibi": REAL["alibi"]}, status="interrupted")
    run["text"] = {**run["text"], "name": bad, "source_version": bad, "sha256": bad}
    run.update(command=bad, created=bad, versions={bad: bad}, machine={"cpu": bad, "system": bad})
    run["config"]["encodings"].append(f"missing {bad}")
    run["problems"] = [{"encoding": bad, "seed": bad, "message": bad}]
    fields = ("family", "paper", "year", "arxiv", "formula", "cost")
    run["cards"] = {bad: {**dict.fromkeys(fields, bad), "used_by": [bad], "relative": True}}
    html = render(run, cells)
    page, plain = Page(html), Page(render(*make_study({"x": REAL["rope"], "alibi": REAL["alibi"]})))
    extra = {"aside", "ul", "li", "strong", "wbr"}
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in plain.elements} | extra
    assert not page.all("img")
    assert len(page.all("script")) == 2
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert bad in page.text("code")
    assert "49" not in re.findall(r"<title>posenc study: (.*?)</title>", html)[0]


@pytest.mark.parametrize("bad", [*HOSTILE, "<!--<script>", "\u2028"])
def test_the_embedded_data_cannot_leave_its_element_and_reads_back(bad):
    run, cells = make_study({bad: REAL["rope"]})
    cells[0]["step_ms"] = math.nan
    html = render(run, cells)
    (block,) = re.findall(r'<script type="application/json" id="posenc-data">(.*?)</script>', html, flags=re.DOTALL)
    assert "<" not in block
    data = json.loads(block)
    assert data["run"]["config"]["encodings"] == [bad]
    assert data["cells"][0]["step_ms"] is None
    assert data["cells"][1] == json.loads(json.dumps(cells[1]))


def test_only_arxiv_ids_become_links():
    run, cells = make_study({"rope": REAL["rope"]})
    run["cards"] = {"rope": {"arxiv": "javascript:alert(1)", "paper": "P"}}
    hrefs = [attrs["href"] for attrs in Page(render(run, cells)).all("a")]
    assert not any("javascript" in href for href in hrefs)


def test_an_interruption_names_what_is_missing_and_failed():
    run, cells = make_study({"rope": REAL["rope"], "alibi": REAL["alibi"]}, status="interrupted")
    run["problems"] = [{"encoding": "alibi", "seed": 1, "message": "ValueError: no"}]
    text = Page(render(run, cells[:3])).text()
    assert "This study was interrupted. 3 of 4 cells are measured. Missing: alibi (seed 1)." in text
    assert "1 cell failed. alibi, seed 1: ValueError: no" in text


@pytest.mark.parametrize(
    "run",
    [
        make_run(list(REAL), status="interrupted"),
        make_run([]),
        {},
        {"config": {}, "text": None, "cards": None},
    ],
    ids=["interrupted", "no encodings", "empty", "nothing"],
)
def test_a_study_without_cells_still_gives_a_page(run):
    page = Page(render(run, []))
    assert "No cell has been measured yet" in page.text()
    assert "Nothing to draw" in page.text()
    assert not [attrs for attrs in page.all("svg") if "chart" in attrs.get("class", "")]


def test_cells_with_few_fields_still_give_a_page():
    page = Page(render({"config": {"train_len": 64}}, [{"encoding": "mine", "bits_by_length": {"64": 2.5}}]))
    assert "mine" in page.text()
    Page(render({}, [{"encoding": "mine", "seed": 0}]))


def test_rendering_changes_nothing_and_is_repeatable():
    run, cells = make_study()
    before = copy.deepcopy((run, cells))
    assert render(run, cells) == render(run, cells)
    assert (run, cells) == before


def test_undertrained_is_marked_wherever_the_name_stands():
    run, cells = make_study({"t5": REAL["t5"], "alibi": REAL["alibi"]})
    for cell in cells:
        cell["undertrained"] = cell["encoding"] == "t5"
    html = render(run, cells)
    assert "t5†" in html
    assert "alibi†" not in html
    assert "0.81 of this): t5." in Page(html).text()


def test_the_note_on_learned_stands_only_where_learned_ran(full):
    assert "A note on learned positions" in full
    assert "A note on learned positions" not in render(*make_study({"rope": REAL["rope"]}))


def test_an_exploding_line_is_clipped_and_the_page_says_so():
    exploding = make_study(REAL | {"rope": (2.11, 2.28, 5.0, 7.0, 9.3)})
    assert re.search(r"The axis ends at \d\.\d bits", render(*exploding))
    assert re.search(r'rope <tspan class="value">9\.\d\d ↑', render(*exploding))
    assert "The axis ends" not in render(*make_study({"alibi": REAL["alibi"], "kerple": REAL["kerple"]}))


def test_the_raw_table_holds_every_cell_and_length():
    run, cells = make_study()
    text = Page(render(run, cells)).text()
    for cell in cells:
        for bits in cell["bits_by_length"].values():
            assert f"{bits:.3f}" in text


def test_long_names_are_shortened_but_stand_whole_in_the_methods():
    names = [f"project.encodings.experimental:AnEncodingWithAVeryLongName{k}" for k in range(3)]
    html = render(*make_study(dict.fromkeys(names, REAL["rope"])))
    whole = Page(html.replace("<wbr>", "")).text("span")
    assert all(name in whole for name in names)
    assert shorten(names[0], 24) in html


def line(name, *ys):
    return Line(name, assign_marks([name])[name], tuple(map(float, range(len(ys)))), ys)


def test_the_axis_follows_the_many_not_the_exploding_few():
    calm = [line(f"e{k}", 2.3, 2.4 + 0.1 * k) for k in range(8)]
    _, high, clipped = y_range([*calm, line("bad", 2.3, 40.0)])
    assert clipped
    assert 3.0 < high < 4.0
    assert y_range(calm)[2] is False


def test_the_axis_never_reaches_far_beyond_a_uniform_guess():
    _, high, clipped = y_range([line("a", 2.3, 60.0), line("b", 2.4, 70.0)])
    assert clipped
    assert high < 8.5
    low, high, _ = y_range([line("a", 9.0, 11.0)])
    assert low < 9.0 < 11.0 < high + 0.01


@pytest.mark.parametrize("span", [(2.0, 4.7), (2.30, 2.40), (0.0, 8.2), (2.0, 2.0001)])
def test_ticks_are_few_and_inside(span):
    ticks = y_ticks(*span)
    assert 2 <= len(ticks) <= 9
    assert all(span[0] - 1e-6 <= tick <= span[1] + 1e-6 for tick in ticks)


@pytest.mark.parametrize("wanted", [[0, 1, 2, 3], [50, 50, 50], [98, 99, 100], [0, 50, 51, 100], [7]])
def test_labels_keep_apart_in_order_and_in_range(wanted):
    spots = spread_labels(wanted, 10, 0, 100)
    assert all(b - a >= 10 - 1e-9 for a, b in pairwise(spots))
    assert min(spots) >= 0
    assert max(spots) <= 100 + 1e-9


def test_labels_with_room_stay_and_pooled_ones_are_centred():
    assert spread_labels([10, 40, 80], 10, 0, 100) == [10, 40, 80]
    assert spread_labels([50, 50], 10, 0, 100) == [45, 55]
    assert spread_labels([1, 2, 3], 60, 0, 100) == [0, 50, 100]


def test_marks_are_stable_by_name_and_distinct():
    alone = assign_marks(["rope"])["rope"]
    marks = assign_marks([*REAL, *(f"mine{k}" for k in range(12))])
    assert marks["rope"] == alone
    looks = [(mark.colour, mark.dash, mark.marker) for mark in marks.values()]
    assert len(set(looks)) == len(looks)
    assert all(f".{mark.colour} {{ --c:" in render({}, []) for mark in list(marks.values())[:17])


def test_positions_are_averaged_over_seeds_within_their_bins():
    run = make_run(["alibi"])
    cells = [make_cell("alibi", seed, REAL["alibi"]) for seed in (0, 1)]
    for cell, bits in zip(cells, (2.0, 3.0), strict=True):
        cell["bits_by_position"] = {"edges": [0, 64, 1024], "bits": [4.0, bits]}
    assert 'alibi <tspan class="value">2.50' in render(run, cells)
