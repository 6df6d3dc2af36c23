"""The generated pages are what the generator writes today; test_character_declared.py tests what is measured in them.

The Python of hand-written pages is executed: it asserts what the page says.
"""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import posenc
from pages import DOCS, differences, generate
from posenc.character import Character
from posenc.cli import table
from posenc.verify import spec
from posenc.verify.families import rotation_asked
from posenc.versions import EXPORTS

PEER_TESTS = Path(__file__).parent / "peers"
PEERS = json.loads((DOCS / "peers.json").read_text())
NO_ONNX = pytest.mark.skipif(not EXPORTS or not find_spec("onnxscript"), reason="needs torch 2.9 and onnxscript")
FUNCTIONS = {name: getattr(np, name) for name in ("clip", "floor", "ceil", "log", "sqrt", "pi")}
EXPORTER = [NO_ONNX, pytest.mark.slow, pytest.mark.compiles, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def _unmeasured(monkeypatch):
    nothing = Character(**dict.fromkeys(Character.__dataclass_fields__) | {"learned": 0})
    monkeypatch.setattr(table, "_measure", lambda cards: [nothing] * len(cards))


def without_numbers(page):
    """Leave out the rows that are measured."""
    head, _, rest = page.partition("## Character")
    return head + rest[rest.find("\n- `") :] if rest else page


@pytest.mark.parametrize("name", sorted(generate.PAGES))
def test_generated_pages_are_in_step(name):
    page, fresh = (DOCS / name).read_text(), generate.PAGES[name]()
    assert differences(without_numbers(page), without_numbers(fresh)) == [], "run: python docs/generate.py"


@pytest.mark.parametrize("name", generate.SCALINGS)
def test_the_formula_of_a_scaling_is_that_of_the_check(name):
    words = generate.scaling_spec(name)
    asked = rotation_asked.read(spec.read(words, "rope_fn")[0])
    d, length = asked.rotary_dim, words.get("original_max_position_embeddings", 1)
    for n in (1, 4 * length):
        k = np.arange(d // 2)
        known = {
            "k": k,
            "d": d,
            "n": n,
            "L": length,
            "w": 1e4 ** (-2 * k / d),
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "gain": 1,
        }
        lists = {word: np.array(value) for word, value in words.items() if isinstance(value, list)}
        exec(generate.SCALINGS[name].replace("; ", "\n"), FUNCTIONS, known := {**words, **known, **lists})
        np.testing.assert_allclose(asked.inv_freq(n), known["f"], rtol=1e-12)
        assert asked.gain(n) == pytest.approx(known["gain"], rel=1e-12)


def test_a_rounding_is_no_difference_and_anything_else_is():
    page = "# Page 10\n## Character\n| rope | 1,000 | yes 0.15 |\n## rope\n2021"
    for old, new, line in (
        ("1,000", "1,010", None),
        ("0.15", "0.16", None),
        ("1,000", "1,100", "| rope | 1,100 | yes 0.15 |"),
        ("yes", "no", "| rope | 1,000 | no 0.15 |"),
        ("2021", "2022", "2022"),
        ("Page 10", "Page 11", "# Page 11"),
        ("\n2021", "", "another number of lines"),
    ):
        assert differences(page, page.replace(old, new)) == ([line] if line else [])


@pytest.mark.parametrize(
    ("name", "n_blocks"), [("outside.md", 2), ("training.md", 3), pytest.param("export.md", 4, marks=EXPORTER)]
)
def test_the_python_of_a_page_runs(name, n_blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks, known = re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL), {}
    assert len(blocks) == n_blocks
    for block in blocks:
        exec(compile(block, name, "exec"), known)


def named_by(name):
    """Return the texts of the tests against peers that name an encoding."""
    card = posenc.card(name)
    ours = "|".join([rf"\b{card.cls.__name__}\b", *(f'"{known}"' for known in (name, *card.aliases))])
    return [text for path in PEER_TESTS.glob("test_*.py") if re.search(ours, text := path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_of_the_table_is_one_that_a_test_compares_with(name):
    tests = named_by(name)
    for library, models in PEERS[name].items():
        for peer in [rf'models\.{model}\b|"{model}"' for model in models] or [library.replace("-", "_")]:
            assert any(re.search(peer, text) for text in tests), f"no test of {name} imports {library} {peer}"


def test_an_encoding_that_no_library_has_is_compared_with_formulas_or_code_of_its_paper():
    without = {name for name in posenc.names() if name not in PEERS and named_by(name)}
    assert without == {"grape_m", "liere", "mhrope", "nope", "retnet", "rope_pp"}


def test_the_numbers_that_choosing_cites_are_those_measured():
    rows = {
        path: re.findall(r"^\| `?(\w+)`? \| (\d.*)", (DOCS / path).read_text(encoding="utf-8"), re.MULTILINE)
        for path in ("guide/choosing.md", "../benchmarks/EVIDENCE.md")
    }
    cited, measured = (
        {name: [cell.partition(" ±")[0] for cell in row.split(" | ")] for name, row in found} for found in rows.values()
    )
    assert len(cited) == 8
    for name, numbers in cited.items():
        at_64, at_128, *_, at_1024 = measured[name][:5]
        assert numbers[:3] == [at_64, at_128, at_1024]
