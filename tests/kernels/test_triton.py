"""The Triton backend: the host's part here, the kernel in a process of the interpreter, or on a GPU that is there."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posenc.kernels import triton as backend
from posenc.kernels.jobs import Job

CASES = Path(__file__).parent / "triton_cases.py"
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: see benchmarks/gpu_checks.sh")


def installed() -> bool:
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


WITH_TRITON = pytest.mark.skipif(not installed(), reason="triton is not installed")


def jobs_of(*heads: int, seq: int = 3, dtype: torch.dtype = torch.float32) -> list[Job]:
    cos, sin = torch.randn(2, 1, 1, seq, 4)
    xs = [torch.randn(2, h, seq, 8).to(dtype) for h in heads]
    return [Job(x, torch.empty_like(x), cos, sin) for x in xs]


@WITH_TRITON
def test_kernel_in_the_interpreter(pytestconfig: pytest.Config) -> None:
    hooked = pytestconfig.getoption("jaxtyping_packages", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)]
    command += ["--jaxtyping-packages=posenc.kernels,beartype.beartype"] if hooked else []
    command += ["--whole"] if pytestconfig.getoption("whole") else []
    command += ["-W", "ignore:Conversion of an array:DeprecationWarning"]  # of older interpreters, with NumPy
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    child = subprocess.run(
        command, cwd=CASES.parents[2], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert child.returncode == 0, child.stdout[-8000:] + child.stderr[-2000:]
    assert re.search(r"^\d+ passed", child.stdout, re.MULTILINE), child.stdout  # and none skipped


def test_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "only on GPUs" in (backend.refuses(jobs_of(1)) or "")
    monkeypatch.setattr(backend, "interprets", lambda: True)  # as if the tensors were where they could be run
    monkeypatch.setattr(backend, "_installed", lambda: True)
    assert "int32" in (backend.refuses(jobs_of(1, dtype=torch.int32)) or "")
    monkeypatch.setattr(backend, "_installed", lambda: False)
    assert "not installed" in (backend.refuses(jobs_of(1)) or "")


def planned(q: tuple[int, ...], k: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> tuple[int, dict[str, int]]:
    """How many programs a launch has, and its numbers, without the memory that they are for."""
    xs = [torch.empty(1, dtype=dtype).expand(shape) for shape in (q, k)]
    tables = [torch.empty(1).expand(1, 1, x.shape[2], x.shape[3] // 2) for x in xs]
    jobs = [Job(x, x, t, t) for x, t in zip(xs, tables, strict=True)]
    programs, numbers, _ = backend.lay_out(jobs, "half", "first")
    return programs, dict(zip(("rows", "heads", "lanes"), numbers[28:31], strict=True)) | {"steps": numbers[25]}


def test_long_sequences_read_tables_once_for_eight_heads() -> None:
    for batch, seq in ((1, 32768), (8, 4096)):
        programs, sizes = planned((batch, 32, seq, 128), (batch, 8, seq, 128))
        assert sizes["steps"] * sizes["heads"] == 8
        assert programs == batch * (seq // sizes["rows"]) * (32 + 8) // 8
        assert sizes["rows"] * sizes["lanes"] * 2 == 128 * 16  # 16 bytes of each lane of a pair for each thread


def test_short_sequences_are_spread() -> None:
    programs, sizes = planned((1, 32, 512, 128), (1, 8, 512, 128))
    assert sizes["steps"] == 1
    assert programs >= 1024
    assert planned((64, 32, 1, 128), (64, 8, 1, 128))[0] >= 64 * 3


@pytest.mark.slow
@WITH_TRITON
@pytest.mark.compiles
@pytest.mark.parametrize("pairing", ["half", "interleaved"])
@pytest.mark.parametrize(
    ("dtype", "head_dim", "n_pairs"),
    [(torch.bfloat16, 128, 64), (torch.bfloat16, 96, 48), (torch.bfloat16, 128, 32), (torch.float32, 128, 64)],
)
def test_compiles_for_a_gpu_to_wide_loads(
    pairing: Any, dtype: torch.dtype, head_dim: int, n_pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler needs no GPU: it reads 16 bytes a thread, rounds once, spills nothing, and moves no lane about."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    cos, sin = torch.empty(2, 1, 1, 64, n_pairs)
    xs = [torch.empty(2, h, 64, head_dim, dtype=dtype) for h in (32, 8)]
    kernel = compile_for(90, [Job(x, x, cos, sin) for x in xs], pairing)
    text = kernel.asm["ptx"]
    assert ".local" not in text
    assert ("cvt.rn.bf16x2.f32" in text) == (dtype == torch.bfloat16)  # to the nearest, two at once
    moved = re.findall(r"(?:ld|st)\.global\S*", text)
    assert len(moved) >= 12
    assert all(m.endswith(("v4.b32", "v2.b64")) for m in moved)
    loops = re.findall(r"scf\.for.*?\n +} ", kernel.asm["ttgir"], re.DOTALL)
    assert len(loops) == 2  # over heads of queries, and of keys
    assert not any("convert_layout" in loop for loop in loops)


def compile_for(arch: int, jobs: list[Job], pairing: Any) -> Any:
    """Compile what a launch asks for, for a GPU that need not be there."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from posenc.kernels.triton_code import rotate

    kinds = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.float64: "*fp64"}
    _, numbers, warps = backend.lay_out(jobs, pairing, "first")
    values = (*jobs[0], *jobs[1], *numbers)
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for i, (parameter, value) in enumerate(zip(rotate.params, values, strict=True)):
        if isinstance(value, Tensor):
            signature[parameter.name] = kinds[value.dtype]
        elif parameter.is_constexpr or value is None:
            signature[parameter.name], constants[(i,)] = "constexpr", value
            continue
        else:
            signature[parameter.name] = "i32"
        if isinstance(value, Tensor) or (value % 16 == 0 and not parameter.do_not_specialize):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=rotate, signature=signature, constexprs=constants, attrs=attributes)
    options = {"num_warps": warps, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def on_gpu(*heads: int, seq: int = 64, dtype: torch.dtype = torch.bfloat16) -> list[Job]:
    cos, sin = torch.randn(2, 1, 1, seq, 64, device="cuda")
    xs = [torch.randn(2, h, seq, 128, dtype=dtype, device="cuda") for h in heads]
    return [Job(x, torch.empty_like(x), cos, sin) for x in xs]


@ON_GPU
def test_kernel_on_the_gpu() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(CASES)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TRITON_INTERPRET"))}
    child = subprocess.run(
        command, cwd=CASES.parents[2], env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert child.returncode == 0, child.stdout[-8000:] + child.stderr[-2000:]


@ON_GPU
@pytest.mark.parametrize("seq", [1, 64])
def test_a_graph_records_it(seq: int) -> None:
    jobs = on_gpu(32, 8, seq=seq)
    backend.run(jobs, "half", "first")  # compiles
    wanted = [job.out.clone() for job in jobs]
    for job in jobs:
        job.out.zero_()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        backend.run(jobs, "half", "first")
    assert all(not job.out.any() for job in jobs)  # recorded, not run
    graph.replay()
    assert all(torch.equal(job.out, w) for job, w in zip(jobs, wanted, strict=True))
    for job in jobs:
        job.x.mul_(2)
    graph.replay()
    assert all(torch.equal(job.out, 2 * w) for job, w in zip(jobs, wanted, strict=True))


@ON_GPU
def test_nothing_is_allocated_and_nobody_waits() -> None:
    jobs = on_gpu(32, 8)
    backend.run(jobs, "half", "first")
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        backend.run(jobs, "half", "first")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


@ON_GPU
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_another_device_than_the_current_one() -> None:
    jobs = [Job(*(t.to("cuda:1") for t in job[:4])) for job in on_gpu(4, 2)]
    for _ in range(2):
        backend.run(jobs, "half", "first")
        assert all(job.out.isfinite().all() for job in jobs)
    assert torch.cuda.current_device() == 0
