"""`posenc evaluate`: what it leaves, what it goes on from, what it refuses, and its page."""

import csv
import json
import re
from types import SimpleNamespace

import pytest

from command_line import posenc
from extend.small import TRAINED, llama, study_cell, text
from posenc.extend.evaluate import command, report
from study.page import HOSTILE, Page


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with two models and a text."""
    folder = tmp_path_factory.mktemp("evaluate")
    llama(folder / "a")
    llama(folder / "b", seed=1)
    text(folder)
    return folder


def run(place, *options, out="out"):
    given = ("a", "--text", "text.txt", "--lengths", "64,128", "--pieces", "3", "--trials", "1", "--out", out)
    return posenc("evaluate", *given, *options, cwd=place)


@pytest.fixture(scope="module")
def finished(place):
    """A run with two models and three methods."""
    return run(place, "b", "--method", "yarn,linear:4", "--json")


def test_all_numbers_are_in_the_json_the_table_and_the_page(place, finished):
    assert finished.returncode == 0
    found = json.loads(finished.stdout)
    assert found["bits"].keys() == {"none", "yarn", "linear:4"}
    assert found["bits"]["yarn"].keys() == {"32", "64", "128"}
    assert found["needles"]["gain"].keys() == {"single", "chain"}  # the others are longer than the text
    assert sorted(found["order"]) == ["linear:4", "none", "yarn"]
    assert sorted(entry.name for entry in (place / "out").iterdir()) == [
        "cells", "report.html", "results.csv", "run.json"]  # fmt: skip
    rows = list(csv.DictReader((place / "out" / "results.csv").read_text().splitlines()))
    own = [float(r["bits"]) for r in rows
           if (r["method"], r["measure"], r["length"]) == ("yarn", "position", "128")]  # fmt: skip
    assert len(own) == 2 * 3
    assert found["bits"]["yarn"]["128"]["mean"] == pytest.approx(sum(own) / len(own))
    page = Page((place / "out" / "report.html").read_text())
    assert f"{found['bits']['yarn']['128']['mean']:.3f} [" in page.text()
    parameters = json.loads((place / "out" / "run.json").read_text())["parameters"]
    assert parameters["yarn"]["factor"] == 2.0  # the longest length over the trained one
    assert parameters["linear:4"]["factor"] == 4.0
    assert found["bits"]["none"]["128"]["low"] < found["bits"]["none"]["128"]["high"]


def test_the_page_loads_nothing_and_names_its_parts(place, finished):
    html = (place / "out" / "report.html").read_text()
    page = Page(html)
    assert not any({"src", "style"} & set(attrs) for _, attrs in page.elements)
    assert all(attrs["href"].startswith(("#", "https://arxiv.org/abs/")) for attrs in page.all("a"))
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {attrs["href"][1:] for attrs in page.all("a") if attrs["href"].startswith("#")} <= set(ids)
    assert all(attrs.get("scope") for attrs in page.all("th"))
    assert len(page.all("table")) == len([1 for attrs in page.all("div") if attrs.get("class") == "scroll"])


@pytest.mark.parametrize("bad", HOSTILE)
def test_names_are_escaped_on_the_page(place, finished, bad):
    record = json.loads((place / "out" / "run.json").read_text())
    cells = [json.loads(file.read_text()) for file in (place / "out" / "cells").iterdir()]
    problem = {"model": bad, "method": bad, "measure": bad, "length": 64, "message": bad}
    record |= {"models": [bad], "command": bad, "problems": [problem], "text": record["text"] | {"name": bad}}
    page = Page(report.render(record, cells))
    assert not page.all("img")
    assert len(page.all("script")) == 2
    assert bad in page.text("code")


def test_the_same_command_measures_nothing_again(place, finished, monkeypatch):
    monkeypatch.setattr(command, "_load", lambda *_: pytest.fail("a model was loaded"))
    before = (place / "out" / "results.csv").read_bytes()
    again = run(place, "b", "--method", "yarn,linear:4", "--json")
    assert (again.returncode, again.stdout) == (0, finished.stdout)
    assert (place / "out" / "results.csv").read_bytes() == before


def test_an_interrupted_run_goes_on_where_it_was(place, monkeypatch):
    calls = []
    rows = command._rows

    def stop_at_the_fourth(*given):
        calls.append(given)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return rows(*given)

    monkeypatch.setattr(command, "_rows", stop_at_the_fourth)
    stopped = run(place, out="stopped")
    assert stopped.returncode == 130
    assert "the same command resumes" in stopped.stdout
    assert len(list((place / "stopped" / "cells").iterdir())) == 3
    assert "This evaluation was interrupted" in (place / "stopped" / "report.html").read_text()
    done = run(place, out="stopped")
    assert done.returncode == 0
    jobs = [given[2] for given in calls]
    assert len(jobs) == len(set(jobs)) + 1  # the one that was stopped is measured twice, and no other
    assert "This evaluation was interrupted" not in (place / "stopped" / "report.html").read_text()


def test_another_run_is_not_overwritten_without_force(place, finished):
    before = (place / "out" / "report.html").read_bytes()
    other = run(place, "--method", "ntk")
    assert other.returncode == 2
    assert "holds another evaluation. Nothing in it was changed." in other.stderr
    assert (place / "out" / "report.html").read_bytes() == before
    (place / "notes").mkdir()
    (place / "notes" / "report.html").write_text("mine")
    assert "--out notes holds report.html" in run(place, out="notes").stderr
    assert run(place, "--force", out="notes").returncode == 0
    assert "posenc evaluate" in (place / "notes" / "report.html").read_text()


def test_a_cell_that_fails_is_named_and_the_others_go_on(place, monkeypatch):
    rows = command._rows

    def fail(plan, model, job):
        if job.measure == "sliding":
            raise RuntimeError("out of memory")
        return rows(plan, model, job)

    monkeypatch.setattr(command, "_rows", fail)
    done = run(place, out="failed")
    assert done.returncode == 1
    page = Page((place / "failed" / "report.html").read_text())
    assert "2 cells failed." in page.text()
    assert "out of memory" in page.text()


def test_the_time_left_is_without_that_of_loading(place, monkeypatch):
    now, load, rows = [0.0], command._load, command._rows

    def slow_load(*given):
        now[0] += 3600.0
        return load(*given)

    def quick_rows(plan, model, job):
        now[0] += plan.tokens(job) / 1000
        return rows(plan, model, job)

    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(command, "_load", slow_load)
    monkeypatch.setattr(command, "_rows", quick_rows)
    left = re.findall(r"\((.*) left\)", run(place, out="timed").stdout)
    assert len(left) > 3
    assert all(said.startswith("0:") for said in left)  # minutes; with the hour of loading it was many


def test_a_cell_of_a_study(place):
    where = study_cell(place / "study").relative_to(place)
    done = posenc("evaluate", str(where), "--text", "text.txt", "--pieces", "2", "--trials", "0", "--method", "ntk",
                  "--out", "of-study", cwd=place)  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads((place / "of-study" / "run.json").read_text())
    assert record["lengths"] == [TRAINED * n for n in (1, 2, 4, 8)]
    assert record["unit"] == "byte"


BAD = {
    "--method yran": "unknown method 'yran'. Known: none, linear, ntk,",
    "--method yarn:x": "--method must be NAME or NAME:FACTOR, such as yarn:4; got 'yarn:x'",
    "--method yarn --factor 0": "--factor must be 1 or more; got 0",
    "--device tpu9": "cannot compute on --device tpu9",
    "--factor 0.5": "--factor must be 1 or more; got 0.5",
    "--method yarn:0.5": "the factor must be from 1 to",
    "--lengths 32": "--lengths must lie from the trained length 64 to",
    "--lengths 64,99999999": "--lengths must lie from",
    "--lengths 4096": "the text has",
    "--lengths 1e3": "--lengths must be whole numbers, separated by commas; got 1e3",
    "--pieces 1": "--pieces 2 or more",
    "--text missing.txt": "cannot read --text missing.txt",
    "--trained-len 1": "trained length must be",
    "empty": "empty holds no safetensors",
    "pickled": "pickled holds no safetensors. Other formats may contain pickled code",
    "nowhere": "nowhere is not a directory",
    "broken": "transformers cannot load broken",
    "bert": "the weights of bert lack",
    "masked": "masked is not causal",
    "code": "transformers cannot load code",
    "gpt2 --lengths 128": "gpt2 cannot read 128 tokens",
}


@pytest.fixture(scope="module")
def odd(place):
    """Directories that hold no model that can be read."""
    import shutil

    import torch
    from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM, BertConfig, GPT2Config

    for name in ("empty", "pickled", "code"):
        (place / name).mkdir()
    fields = json.loads((place / "a" / "config.json").read_text())
    (place / "empty" / "config.json").write_text(json.dumps(fields))
    torch.save({}, place / "pickled" / "pytorch_model.bin")
    shutil.copytree(place / "a", place / "broken")
    weights = place / "broken" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    small = {"vocab_size": 128, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertConfig(**small, intermediate_size=8, max_position_embeddings=2 * TRAINED, initializer_range=0.5)
    AutoModel.from_config(bert).save_pretrained(place / "bert")
    AutoModelForMaskedLM.from_config(bert).save_pretrained(place / "masked")
    gpt2 = GPT2Config(vocab_size=128, n_embd=32, n_layer=1, n_head=2, n_positions=TRAINED)
    AutoModelForCausalLM.from_config(gpt2).save_pretrained(place / "gpt2")
    fields |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.C", "AutoModelForCausalLM": "mine.M"}}
    (place / "code" / "config.json").write_text(json.dumps(fields))
    (place / "code" / "mine.py").write_text("raise SystemExit('this ran')")
    shutil.copy(place / "a" / "model.safetensors", place / "code")
    return place


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(odd, line):
    words = line.split()
    models = [] if words[0].startswith("--") else [words.pop(0)]
    options = dict(zip(words[::2], words[1::2], strict=True))
    lengths = "128" if models in (["bert"], ["masked"]) else "64,128"
    given = {"--text": "text.txt", "--lengths": lengths, "--out": "bad", **options}
    done = posenc("evaluate", *(models or ["a"]), *(word for pair in given.items() for word in pair), cwd=odd)
    assert (done.returncode, done.stdout) == (2, "")
    assert BAD[line] in done.stderr
    assert re.fullmatch(r"posenc: [^\n]*\n", done.stderr)
    assert not (odd / "bad").exists()
