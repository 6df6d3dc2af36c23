import json
import os
import subprocess
import sys

import pytest

import posenc
from posenc.cli import run

ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS"}}
COMMANDS = ("list", "list --table n*", "list --json", "show rope", "show sinusoidal", "show alibi", "doctor")


def posenc_run(*arguments, cwd=None, code="", **environment):
    """Run the command line in a process of its own; `code` runs before it."""
    start = f"import sys; sys.argv[0] = 'posenc'\n{code}\nfrom posenc.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", start, *arguments],
        capture_output=True,
        cwd=cwd,
        env=ENVIRONMENT | environment,
        timeout=120,
    )


def posenc_run_all(*commands, **environment):
    """Run several commands in one process, since starting torch is what takes time."""
    code = f"from posenc.cli import output, run; output.prepare_streams(); commands = {commands!r}"
    code += "\nsys.exit(max(run(command.split()) for command in commands))"
    return posenc_run(code=code, **environment)


def test_help_imports_nothing_heavy():
    code = "import atexit; atexit.register(lambda: print(*sorted(sys.modules), file=sys.stderr))"
    done = posenc_run("--help", code=code)
    loaded = done.stderr.decode().split()
    assert done.returncode == 0
    assert b"posenc" in done.stdout
    assert "posenc.cli.show" in loaded
    assert not {"torch", "numpy", "jaxtyping", "rich", "pydantic", "posenc.registry"}.intersection(loaded)


@pytest.mark.parametrize("command", ["list", "show", "doctor", "study"])
def test_a_command_has_help_without_torch(command):
    done = posenc_run(command, "--help", code="sys.modules['torch'] = None; sys.modules['numpy'] = None")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: posenc {command}".encode())
    assert max(map(len, done.stdout.decode().splitlines())) <= 80


def test_alone_it_prints_help_and_is_fine():
    alone, asked = posenc_run(), posenc_run("--help")
    assert (alone.returncode, alone.stderr) == (0, b"")
    assert alone.stdout.strip() == asked.stdout.strip()


def test_as_a_module_it_tells_its_version():
    done = subprocess.run([sys.executable, "-m", "posenc", "--version"], capture_output=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode() == f"posenc {posenc.__version__}\n"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "rop"], "unknown encoding 'rop': did you mean 'rope'?"),
        (["show", "no_such_module:X"], "No module named 'no_such_module'"),
        (["show", "json:JSONDecoder"], "is not a class derived from posenc.Encoding"),
        (["show"], "Missing argument 'NAME'. See `posenc show --help`"),
        (["lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["list", "--jsn"], "No such option '--jsn'"),
        (["list", "--json", "--table"], "exclude each other"),
        (["study", "--budget", "soon"], "--budget: must be a time above zero"),
    ],
)
def test_wrong_use_is_one_line_on_stderr(arguments, said):
    done = posenc_run(*arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"posenc: ")
    assert done.stderr.count(b"\n") == 1
    assert said in done.stderr.decode()


@pytest.mark.slow
def test_nothing_found_is_a_finding():
    done = posenc_run("list", "rop?x", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == []
    assert done.stderr.decode() == "posenc: no encoding's name matches 'rop?x'. The nearest: rope, prope, mrope.\n"


def test_a_missing_package_is_named_without_a_traceback(tmp_path):
    done = posenc_run("golden", "--out", "new", code="sys.modules['safetensors.numpy'] = None", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().count("\n") == 1
    assert "'safetensors.numpy'" in done.stderr.decode()
    assert "posenc doctor" in done.stderr.decode()


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("posenc.registry.names", None)  # calling it is a TypeError, raised by no check
    with pytest.raises(TypeError, match="not callable"):
        run(["list"])


def test_an_error_raised_outside_posenc_keeps_its_traceback(monkeypatch):
    def fail(pattern="*"):
        raise ValueError("from elsewhere")

    monkeypatch.setattr("posenc.registry.names", fail)
    with pytest.raises(ValueError, match="from elsewhere"):
        run(["list"])


def test_an_interrupt_ends_quietly(monkeypatch, capsys):
    def interrupt(pattern="*"):
        raise KeyboardInterrupt

    monkeypatch.setattr("posenc.registry.names", interrupt)
    assert run(["list"]) == 130
    assert capsys.readouterr().err.strip() == ""


@pytest.mark.slow
def test_a_pipe_gets_no_escape_codes_and_80_columns():
    done = posenc_run_all("list --table n*", "show rope", "show sinusoidal", "show t5", "doctor", COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\x1b" not in done.stdout
    assert max(map(len, done.stdout.decode("utf-8").splitlines())) <= 80


@pytest.mark.slow
def test_no_color_switches_off_every_escape_code():
    commands = ("list --table n*", "show sinusoidal", "doctor")
    wanted = posenc_run_all(*commands, FORCE_COLOR="1", TERM="xterm-256color")
    unwanted = posenc_run_all(*commands, FORCE_COLOR="1", TERM="xterm-256color", NO_COLOR="1")
    assert b"\x1b[" in wanted.stdout
    assert b"\x1b" not in unwanted.stdout


@pytest.mark.slow
def test_ascii_is_enough():
    done = posenc_run_all(*COMMANDS, PYTHONIOENCODING="ascii", LC_ALL="C", LANG="C")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


@pytest.mark.slow
def test_signs_that_the_terminal_lacks_are_spelt():
    done = posenc_run("show", "rope", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"omega_k = base^(-2k/d)" in done.stdout


@pytest.mark.slow
def test_under_the_c_locale_an_error_is_still_one_line():
    done = posenc_run("show", "ωrope", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["list", "show rope --json"])
def test_a_reader_that_leaves_gets_no_traceback(command):
    read, write = os.pipe()
    os.close(read)
    start = "from posenc.cli import main; main()"
    arguments = [sys.executable, "-c", start, *command.split()]
    done = subprocess.run(arguments, stdout=write, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=120)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_one_line():
    with open("/dev/full", "wb") as full:
        start = "from posenc.cli import main; main()"
        arguments = [sys.executable, "-c", start, "list"]
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, env=ENVIRONMENT, timeout=120)
    assert done.returncode == 2
    assert done.stderr.decode() == "posenc: cannot write to stdout: No space left on device.\n"


@pytest.mark.slow
def test_a_class_in_the_current_folder_can_be_shown(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import posenc\n"
        "class Wall(posenc.Bias):\n"
        '    """Stop at a wall."""\n'
        "    def __init__(self, *, n_heads, reach=3): super().__init__(n_heads=n_heads); self.reach = reach\n"
        "    def at(self, h, q, k): return -((q - k) > self.reach).float()\n"
    )
    script = os.path.join(os.path.dirname(sys.executable), "posenc")
    arguments = [sys.executable, script, "show", "mine:Wall", "--json"]
    done = subprocess.run(arguments, capture_output=True, cwd=tmp_path, env=ENVIRONMENT, timeout=120)
    shown = json.loads(done.stdout)
    assert (shown["docstring"], shown["options"]) == ("Stop at a wall.", ["n_heads", "reach=3"])
    assert shown["picture"]["series"][0]["values"][:6] == [0, 0, 0, 0, -1, -1]
    assert (done.returncode, done.stderr) == (0, b"")
