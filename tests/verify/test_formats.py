"""The documents for programs, compared with what their specifications say: GitHub's workflow commands, SARIF, JUnit."""

import json
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree

import pytest

from posenc.verify import configs, formats, rules
from posenc.verify.report import Cause, Report

NASTY = "one\r\ntwo %0A three\n::error::four\x1b[31m \x00 \ufffe \ud800 ]]> <b> & ω"
FAULT = Cause("alibi.sign", "it falls", 2.0, {"heads": 1}, "Negate it.")
STRANGE = Cause("a,b::c", NASTY, 1.0)
SARIF_LEVELS = {"none", "note", "warning", "error"}  # 3.27.10


def failed(*causes, target="mine.py", **place):
    return formats.of_report(Report("fail", "slopes_fn", causes or (FAULT,)), target, **place)


def open_(because="no case could be run", status="cannot_tell", **place):
    return formats.of_report(Report(status, "slopes_fn", because=because), "mine.py", **place)


def passed(target="good.py"):
    return formats.of_report(Report("pass", "slopes_fn", definitions=("alibi@authors",)), target, file=target)


def undone(said):
    """What GitHub's runner reads from a property of a command (actions/runner, ActionCommand.cs)."""
    for escaped, plain in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        said = said.replace(escaped, plain)
    return said


def test_an_annotation_cannot_be_broken_out_of():
    said = formats.github([failed(STRANGE, target="m:x", file="a,b:c%3A.py", line=3)])
    assert "\n" not in said
    assert "\r" not in said
    head, _, message = said.removeprefix("::error ").partition("::")
    place = dict(pair.split("=") for pair in head.split(","))
    assert {key: undone(value) for key, value in place.items()} == {
        "file": "a,b:c%3A.py",
        "line": "3",
        "title": "a,b::c",
    }
    assert undone(message) == "m:x: one\ntwo %0A three\n::error::four\\x1b[31m \\x00 \\ufffe \\ud800 ]]> <b> & ω"


def test_github_gets_a_line_a_finding_and_none_for_a_pass():
    said = formats.github([failed(FAULT, FAULT), passed(), open_(), open_(status="equivalent")]).splitlines()
    assert [line.split("::")[1].split(" ")[0] for line in said] == ["error", "error", "warning", "notice"]
    assert formats.github([passed()]) == ""


def check_sarif(log):
    """The parts of SARIF 2.1.0 (OASIS, errata 01) that bind what posenc writes; sections in comments."""
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"  # 3.13.2
    (run,) = log["runs"]
    driver = run["tool"]["driver"]  # 3.18.2
    assert set(driver) == {"name", "version", "rules"}
    ids = [rule["id"] for rule in driver["rules"]]
    assert len(set(ids)) == len(ids)  # 3.19.23: unique
    for rule in driver["rules"]:
        assert set(rule) <= {"id", "shortDescription", "fullDescription", "help"}
        assert all(rule[part]["text"] for part in set(rule) - {"id"})  # 3.12.3: a message has a text
    for result in run["results"]:  # required even if empty: 3.14.23
        assert set(result) <= {"ruleId", "ruleIndex", "kind", "level", "message", "locations"}
        assert ids[result["ruleIndex"]] == result["ruleId"]  # 3.27.6
        assert result["level"] in SARIF_LEVELS
        assert (result["level"] == "none") == (result.get("kind", "fail") != "fail")  # 3.27.10
        assert result["message"]["text"]
        (place,) = result["locations"]
        if physical := place.get("physicalLocation"):
            uri = urlsplit(physical["artifactLocation"]["uri"])
            assert uri.scheme in ("", "file")
            assert physical["artifactLocation"]["uri"].isascii()
            assert not {" ", "#", "?", "\\"} & set(uri.path)
            assert physical["region"]["startLine"] >= 1  # 3.30.5
    return run


def test_sarif_has_rules_results_and_places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = "rope.layout.mixed"
    results = [
        failed(file="a folder/ω#1.py", line=7),
        failed(Cause(code, "mixed", 1.0), STRANGE, file="/else/where.py"),
        failed(target="package.module:f"),
        passed(),
        open_(file="later.py"),
        open_("pairs differ", "equivalent"),
    ]
    run = check_sarif(json.loads(json.dumps(formats.sarif(results))))
    found = run["results"]
    assert [one["ruleId"] for one in found] == ["alibi.sign", code, "a,b::c", "alibi.sign", "cannot_tell"]
    assert [(one["level"], one.get("kind")) for one in found] == [("error", None)] * 4 + [("none", "open")]
    places = [one["locations"][0].get("physicalLocation") for one in found]
    uris = [place and unquote(place["artifactLocation"]["uri"]) for place in places]
    assert uris == ["a folder/ω#1.py", "file:///else/where.py", "file:///else/where.py", None, "later.py"]
    assert [place and place["region"]["startLine"] for place in places] == [7, 1, 1, None, 1]
    assert found[3]["locations"][0]["logicalLocations"] == [{"fullyQualifiedName": "package.module:f"}]
    assert found[0]["message"]["text"] == "it falls\nNegate it."
    described = {rule["id"]: rule for rule in run["tool"]["driver"]["rules"]}
    assert described[code]["shortDescription"]["text"] == rules.find(code).title
    assert rules.find(code).fix in described[code]["help"]["text"]
    assert all(link in described[code]["help"]["text"] for link in rules.find(code).reports)


def test_sarif_of_a_pass_has_no_results():
    assert check_sarif(formats.sarif([passed()]))["results"] == []


@pytest.mark.parametrize("code", ["alibi.sign", "out_of_range"])
def test_every_rule_can_stand_in_sarif(code):
    assert set(formats._rule(code)) == {"id", "shortDescription", "fullDescription", "help"}


def test_a_configuration_has_the_lines_of_its_keys(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fields = {"model_type": "llama", "head_dim": 64, "num_hidden_layers": 2, "max_position_embeddings": 8192}
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    scaling = yarn | {"beta_fast": 1, "beta_slow": 32}
    Path("config.json").write_text(json.dumps(fields | {"rope_theta": 0.5, "rope_scaling": scaling}, indent=1))
    judged = formats.of_judgement(configs.judge("config.json"), "text")
    lines = Path("config.json").read_text().splitlines()
    for one in check_sarif(formats.sarif([judged]))["results"]:
        line = one["locations"][0]["physicalLocation"]["region"]["startLine"]
        key = {"out_of_range": "rope_theta", "betas_swapped": "beta_fast"}[one["ruleId"]]
        assert f'"{key}"' in lines[line - 1]
        assert one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "config.json"


def test_junit_counts_and_spells_out_what_xml_forbids():
    results = [
        failed(STRANGE, target="m\x01:x", text=NASTY),
        failed(),
        passed(),
        open_(),
        open_("pairs differ", "equivalent"),
    ]
    said = formats.junit(results)
    assert said.isascii()
    root = ElementTree.fromstring(said)  # refuses what XML 1.0 forbids
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    counts = {name: int(suite.get(name)) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": 5, "failures": 2, "errors": 0, "skipped": 1}
    cases = suite.findall("testcase")
    ends = [[part.tag for part in case] for case in cases]
    assert ends == [["failure"], ["failure"], ["system-out"], ["skipped"], ["system-out"]]
    assert cases[0].get("name") == "m\\x01:x"
    assert cases[0].get("classname") == "posenc.slopes_fn"
    failure = cases[0].find("failure")
    assert failure.get("type") == "a,b::c"
    assert "\\x00 \\ufffe \\ud800 ]]> <b> & ω" in failure.get("message")
    assert "]]> <b> & ω" in failure.text
    assert cases[1].find("failure").text.startswith("fail: mine.py as slopes_fn\n")
    assert cases[3].find("skipped").get("message") == "no case could be run"


def test_json_is_one_object_or_an_array():
    assert formats.document("json", [failed()])["causes"][0]["code"] == "alibi.sign"
    assert [one["target"] for one in formats.document("json", [failed(), passed()])] == ["mine.py", "good.py"]


def test_text_has_each_report():
    said = formats.document("text", [failed(), passed()])
    assert said.startswith("fail: mine.py as slopes_fn\n")
    assert "\n\npass: good.py as slopes_fn\n" in said
