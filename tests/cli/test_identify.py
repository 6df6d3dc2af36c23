"""`posenc identify` as a program: what it reports of files, what it cannot tell, and what a file cannot spoil."""

import json

import pytest

from command_line import posenc

ROPE = """
import torch
STYLE = "rope_fn"
BASE, GAIN, FIRST, KIND = 123456.0, 1.0, 0, torch.float64
def rope(x, positions):
    n = x.shape[-1] // 2
    freq = BASE ** (-torch.arange(n, dtype=torch.float64) / n)
    angle = (positions[:, None] + FIRST) * freq.to(KIND).to(torch.float64)
    a, b = x.chunk(2, -1)
    cos, sin = (GAIN * t for t in (angle.cos(), angle.sin()))
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(x.dtype)
def build(): return rope
"""
NEIGHBOURS = """
import torch
def rope(x, positions):
    angle = positions[:, None] / 4 * 10000.0 ** (-torch.arange(0, 16, 2) / 16)
    a, b, rest = x[..., 0:16:2], x[..., 1:16:2], x[..., 16:]
    turned = torch.stack((a * angle.cos() + b * angle.sin(), b * angle.cos() - a * angle.sin()), -1).flatten(-2)
    return torch.cat((turned, rest), -1).to(x.dtype)
def build(): return rope
"""
SLOPES = "STYLE = 'slopes_fn'\ndef build(): return lambda n: [2 ** (-8 * (h + 1) / n) for h in range(n)]\n"
OTHER_SLOPES = "STYLE = 'slopes_fn'\ndef build(): return lambda n: [1 / (h + 2) for h in range(n)]\n"


@pytest.fixture
def identify(tmp_path):
    def run(code, *arguments, name="subject.py", folder=tmp_path):
        (tmp_path / name).write_text(code)
        return posenc("identify", name, *arguments, cwd=folder)

    return run


def reported(done, code=0):
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_a_rotation_is_reported_line_by_line(identify):
    done = identify(ROPE, "--head-dim", "32")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "identified: subject.py as rope_fn"
    lines = [line.strip().split("  ", 1) for line in said[1:] if not line.startswith("   ")]  # those are continued
    found = {name: value.strip() for name, value in lines}
    assert found["pairing"] == "half"
    assert found["rotated width"] == "32 of 32 dimensions, from 0 on"
    assert found["base"] == "123,456"
    assert found["scaling"] == "none"
    assert found["gain"] == "1"
    assert found["direction"] == "counterclockwise"
    assert found["first position"] == "0"
    assert found["in posenc"] == "posenc.RoPE(head_dim=32, base=123456.0)"
    assert found["fed float32"] == "positions in float32 or finer, frequencies in float64, products in float64"
    assert "whether 123456 is the base" in done.stdout.replace("123,456 is", "123456 is")
    (announced,) = done.stderr.splitlines()
    assert announced.startswith("posenc: identify imports and runs the code of subject.py in a child process (120 s, ")


def test_json_is_all_of_it_and_nothing_else(identify):
    code = ROPE.replace("123456.0, 1.0, 0, torch.float64", "500.0, 1.25, 1, torch.bfloat16")
    found = reported(identify(code, "--in-process", "--json"))
    assert (found["target"], found["schema"], found["told"], found["convention"]) == ("subject.py", 1, True, "rope_fn")
    wanted = {"pairing": "half", "base": 500.0, "scaling": "none", "gain": 1.25, "first_position": 1.0}
    assert {key: found[key] for key in wanted} == wanted
    assert found["precision"]["float32"]["frequencies"] == "bfloat16"
    assert any("softmax scale" in why for why in found["unknown"])  # a gain of all lanes may as well be that
    assert any("head_dim" in why for why in found["unknown"])


@pytest.mark.slow
def test_partial_width_scaling_and_direction_of_a_file_without_a_style(identify):
    found = reported(identify(NEIGHBOURS, "--json", "--head-dim", "24", "--convention", "rope_fn"))
    wanted = {"pairing": "interleaved", "rotary_dim": 16, "head_dim": 24, "direction": "clockwise"}
    wanted |= {"scaling": "linear", "parameters": {"factor": 4.0}, "base": 10000.0}
    assert {key: found[key] for key in wanted} == wanted
    assert reported(identify(NEIGHBOURS, "--json", "--head-dim", "24"))["convention"] == "rope_fn"


@pytest.mark.slow
def test_the_file_s_own_width_is_fed_and_an_option_outweighs_it(identify):
    code = ROPE + "SPEC = {'encoding': 'rope', 'head_dim': 48}\n"
    assert reported(identify(code, "--json"))["head_dim"] == 48
    assert reported(identify(code, "--json", "--head-dim", "16"))["head_dim"] == 16


def test_an_object_of_a_module():
    found = reported(posenc("identify", "posenc.encodings:RoPE", "--json"), 3)  # a class rotates nothing
    assert found["convention"] == "encoding"
    assert not found["told"]
    assert found["unknown"]


def test_what_rotates_nothing_is_identified_too(identify):
    found = reported(identify(SLOPES, "--in-process", "--json"))
    assert (found["kind"], found["scaling"], found["parameters"]) == ("slopes", "geometric", {"bias_max": 8.0})
    done = identify(SLOPES, "--in-process")
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines()[1:]]
    assert lines == [
        ["scaling", "geometric"],
        ["bias", "max", "8"],
        ["in", "posenc", "posenc.ALiBi(n_heads=n_heads, slopes='geometric')"],
    ]


def test_an_old_module_is_named_by_its_tensors(identify):
    done = identify("import torch\ndef build(): return torch.nn.ModuleDict({'wpe': torch.nn.Embedding(64, 8)})\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "identified: subject.py as module"
    assert done.stdout.split()[-3:] == ["posenc", "posenc.Learned(d_model=8,", "max_len=64)"]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (OTHER_SLOPES, "the rule of the slopes"),
        ("STYLE = 'rope_fn'\ndef build(): return lambda x, positions: x", "no dimension rotates with the position"),
        ("STYLE = 'rope_fn'\ndef build(): return lambda x, positions: 1 / 0", "subject.raises"),
        (
            "STYLE = 'cached_model'\ndef build(): return lambda x, cache: (x, cache)",
            "only rotations and a few tables are identified",
        ),
        ("1 / 0", "subject.import_fails"),
        ("raise SystemExit(0)", "subject.exits"),
        ("import os; os._exit(0)", "subject.exits"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "subject.crashes"),
        ("import torch; torch.empty(10**11, dtype=torch.int8)", "subject.memory"),
        ("STYLE = 'rope_fn'\ndef build(): return 5", "subject.kind"),
    ],
)
def test_what_cannot_be_identified_says_why(identify, code, said):
    done = identify(code)
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith("cannot tell: subject.py")
    assert said in " ".join(done.stdout.split())
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--convention", "rope"], "--convention must be a convention; got 'rope'"),
        (["--head-dim", "1"], "1 is not in the range 2<=x<=4096"),
        (["--spec", "x.json"], "No such option"),
    ],
)
def test_wrong_use_runs_nothing(identify, arguments, said):
    done = identify("raise SystemError", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "imports and runs" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1", "has no build. Define build()"),
        ("STYLE = 'ropefn'\ndef build(): pass", "did you mean 'rope_fn'"),
        ("def build(): return lambda q, k: (q, k)", "2 conventions fit"),
    ],
)
def test_files_that_are_no_subject_are_wrong_use(identify, code, said):
    done = identify(code)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 2  # the announcement and the reason


@pytest.mark.slow
def test_what_the_code_prints_is_no_answer_and_no_command(identify):
    code = ROPE + "import sys\nprint('{\"told\": false}'); print('::error ::x'); sys.stderr.write('\\x1b[31mred')\n"
    done = identify(code, "--json", "--head-dim", "16")
    assert reported(done)["base"] == 123456.0
    assert "\x1b" not in done.stderr
    assert all(line.startswith(("posenc: ", "| ")) for line in done.stderr.splitlines())


@pytest.mark.slow
def test_in_process_says_the_same(identify):
    code = ROPE + "print('loud')\n"
    apart, here = (identify(code, "--json", "--head-dim", "16", *more) for more in ((), ("--in-process",)))
    assert reported(here) == reported(apart)
    assert "in this process, without limits" in here.stderr
    assert reported(identify("1 / 0", "--json", "--in-process"), 3)["unknown"]
