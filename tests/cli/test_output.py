import io
import json
import sys

import pytest

from posenc.cli import output


def test_json_has_no_word_for_infinity(capsys):
    output.write_json({"a": [float("inf"), float("nan"), 1.5], "b": (True, None), 3: "ω"})
    assert json.loads(capsys.readouterr().out) == {"a": [None, None, 1.5], "b": [True, None], "3": "ω"}


def test_an_error_is_one_line(capsys):
    output.complain("first\nsecond   third")
    assert capsys.readouterr().err == "posenc: first second third\n"


@pytest.mark.parametrize(
    ("written", "spelt"),
    [
        ("ω_k·√d", "omega_k*sqrt d"),
        ("q_iᵀ R((j − i)·ω)", "q_i^T R((j - i)*omega)"),
        ("é ﬁ Ω", "e fi ?"),
        ("日", "?"),
    ],
)
def test_a_stream_without_letters_gets_them_spelt(monkeypatch, written, spelt):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    output.prepare_streams()
    output.write(written)
    assert raw.getvalue().decode("ascii") == spelt + "\n"


def test_a_stream_with_letters_keeps_them(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    output.prepare_streams()
    output.write("é·ω")
    assert raw.getvalue() == "é·omega\n".encode("latin-1")


def test_json_loses_nothing_on_an_ascii_stream(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    output.prepare_streams()
    output.write_json(["ω·日"])
    assert json.loads(raw.getvalue()) == ["ω·日"]


def test_closed_streams_are_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    output.prepare_streams()
    output.write("nobody reads this")
    output.complain("nor this")


def test_wrapped_text_keeps_formulas_whole():
    assert output.wrap("a base^(-2k/d)-long b", 12, "  ", "x ") == "x a\n  base^(-2k/d)-long\n  b"
