#!/usr/bin/env bash
# Run what needs a GPU: the tests that are skipped without one, then the measurements of
# ROTARY_GPU.md and those of attention, which are printed.
# PYTHON names the interpreter, which has torch for CUDA and the extra [test]; the default is that of `make`.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "There is no GPU here: nothing was checked or measured." >&2
    exit 2
fi
"$python" -m pytest --whole -q -rs tests/kernels/triton_cases.py tests/kernels/test_triton.py
"$python" -m pytest --whole -q -rs tests/attention/test_flex.py tests/attention/test_elsewhere.py
"$python" benchmarks/rotary_gpu.py
"$python" -m posenc bench attend --only '*.gpu_*'
