import re

import pytest

from posenc.study.report import render
from study.page import HOSTILE, Page
from study.samples import EXACT, REAL, make_run, make_task_cell, make_task_study

FEW = {name: REAL[name] for name in ("nope", "rope", "alibi")}
SIZES = ("64x2x4", "128x2x4")
TASK_STUDIES = {
    "tasks only": make_task_study(),
    "text and tasks": make_task_study(EXACT, FEW),
    "two sizes": make_task_study(EXACT, FEW, SIZES),
    "no cells": (make_task_study(EXACT, FEW, SIZES)[0], []),
    "holes": (make_task_study(EXACT, FEW, SIZES)[0] | {"status": "interrupted"}, make_task_study(EXACT, FEW)[1][::3]),
    "foreign": (
        {"config": {"tasks": ["mine@x"], "sizes": None}, "plan": {}, "tasks": None},
        [{"encoding": "a", "task": "mine@x", "size": "s", "exact_by_length": {"x": 1, "8": None, "9": 0.5}}, {}],
    ),
}


@pytest.mark.parametrize("name", TASK_STUDIES)
def test_a_page_of_tasks_is_whole(name):
    html = render(*TASK_STUDIES[name])
    page = Page(html)
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for attrs in page.all("a") if attrs["href"].startswith("#")} <= set(ids)
    labels = [attrs["aria-label"] for attrs in page.all("div") if attrs.get("class") == "scroll"]
    assert len(labels) == len(set(labels)) == len(page.all("table"))
    assert ("Loss by test length" in page.text("h2")) is (name not in ("tasks only"))


def cells_of(html, label):
    """Return the texts of a table's cells, row by row."""
    (table,) = re.findall(rf'aria-label="{re.escape(label)}".*?<tbody>(.*?)</tbody>', html, flags=re.DOTALL)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("</tr>")[:-1]]


def test_loss_and_tasks_stand_side_by_side():
    html = render(*make_task_study({"copy": EXACT["copy"], "parity": EXACT["parity"]}, {"rope": (2.0, 2.5, 3, 4, 5)}))
    rows = cells_of(html, "Text and tasks side by side")
    names = ["rope", "nope", "sinusoidal", "alibi", "t5"]
    table = dict(zip(names, rows, strict=True))
    assert table["rope"][2:] == ["1.00 · 3/3", "0.00 · 0/3", "0.99 · 3/3", "0.50 · 0/3"]
    assert table["alibi"] == ["–", "–", "1.00 · 3/3", "0.31 · 1/3", "0.53 · 0/3", "0.50 · 0/3"]
    assert table["t5"][4:] == ["–", "–"]


def test_a_task_has_its_curve_its_seeds_and_its_probes():
    html = render(*make_task_study({"flip_flop": EXACT["flip_flop"], "copy": {"alibi": EXACT["copy"]["alibi"]}}))
    assert cells_of(html, "Exact match by length on flip_flop")[:2] == [
        ["0.97 · 3/3", "0.80 · 0/3", "0.70 · 0/3", "0.30 · 0/3"],
        ["0.58 · 0/3", "0.48 · 0/3", "0.42 · 0/3", "0.18 · 0/3"],
    ]
    assert "tested on flip_flop:sparse" in html
    section = html[html.index('id="task-2"') :]
    (wide,) = re.findall(r'<svg class="chart wide".*?</svg>', section, flags=re.DOTALL)
    assert wide.count('<circle class="seed"') == 12
    assert "whisker" not in wide
    assert [f">{tick}<" in wide for tick in ("0.0", "0.2", "1.0", "1.2")] == [True, True, True, False]
    assert "past the trained length" in wide
    assert 'href="https://arxiv.org/abs/2305.19466"' in section


def test_an_undertrained_encoding_is_marked_on_its_task_alone():
    sections = render(*make_task_study()).split('<section id="task-')[1:]
    assert ["alibi†" in part.split("</section>")[0] for part in sections] == [False, False, True, False]


def test_missing_cells_are_named_by_task_and_size():
    run, cells = make_task_study({"copy": EXACT["copy"]}, {"rope": REAL["rope"]}, SIZES)
    gone = [("rope", "copy", SIZES[1], 2), ("rope", "copy", SIZES[1], 1), ("rope", "text", SIZES[0], 0)]
    left = [c for c in cells if (c["encoding"], c["task"], c["size"], c["seed"]) not in gone]
    text = Page(render(run, left)).text()
    assert "Missing" not in text
    assert "Some cells are missing. rope (copy 128x2x4 seeds 1, 2; text 64x2x4 seed 0)." in text
    assert "3 cells are missing" in text
    run["problems"] = [{"encoding": "rope", "task": "copy", "size": SIZES[1], "seed": 1, "message": "no"}]
    assert "rope, copy, 128x2x4, seed 1: no" in Page(render(run, left)).text()


@pytest.mark.parametrize("bad", HOSTILE)
def test_labels_of_tasks_and_sizes_are_escaped(bad):
    cells = [make_task_cell("rope", bad, seed, (1.0, 0.9, 0.5, 0.0), bad) for seed in (0, 1)]
    cells[0]["probes"] = {bad: {"exact_by_length": {"20": 0.5}}}
    run = make_run(["rope"], tasks={bad: dict.fromkeys(("format", "paper", "arxiv", "length"), bad)})
    run["config"] |= {"tasks": [bad], "sizes": [bad, "2"]}
    page = Page(render(run, cells))
    assert not page.all("img")
    assert len(page.all("script")) == 2
    assert bad in page.text("h2")
