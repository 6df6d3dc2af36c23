# Every target sets up what it needs in .venv; PYTHON, TORCH, TRANSFORMERS and WORKERS may be given on the command line.
PYTHON ?= python3
TORCH ?= torch==2.13.0
# whose modules the tests read one by one; `make versions` runs others
TRANSFORMERS ?= transformers==5.23.*
WORKERS ?= 2
BIN := .venv/bin
# Freed memory is kept: new pages cost more than most tests do, and short-lived processes ask for them again and again.
KEEP := MALLOC_MMAP_THRESHOLD_=4294967296 MALLOC_TRIM_THRESHOLD_=17179869184
# A file stays with one worker, so that what its tests share is made once; the files that take longest come first.
PYTEST := $(KEEP) $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Shapes in annotations are checked while `make check` runs, in a process of their own: checks break compilation.
SHAPED := posenc.attention,posenc.character,posenc.compose,posenc.config,posenc.configured,posenc.encoding,posenc.encodings,posenc.families
SHAPED := $(SHAPED),posenc.frequencies,posenc.interop,posenc.laws,posenc.mapped,posenc.nn,posenc.positions
# of the kernels only what numba and Triton do not compile
SHAPED := $(SHAPED),posenc.kernels.blocked,posenc.kernels.eager,posenc.kernels.jobs,posenc.kernels.rotation
SHAPED := $(SHAPED),posenc.measure,posenc.golden,posenc.piecewise,posenc.precision,posenc.probe,posenc.rephasing,posenc.verify

.PHONY: study test check lint types docs translations bench versions wheel clean

study: .venv/ready
	$(BIN)/posenc study --out study

test: lint
	$(PYTEST) --durations 20 tests

check: lint types
	$(PYTEST) --whole -m "not compiles" --jaxtyping-packages=$(SHAPED),beartype.beartype \
		--ignore tests/cli --ignore tests/study tests
	$(PYTEST) --whole -m "not compiles" tests/cli tests/study
	$(PYTEST) --whole -m "compiles" tests

lint: .venv/test-ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports

types: .venv/test-ready
	$(BIN)/mypy

docs: .venv/docs-ready
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -q -b html -D language=zh_CN docs docs/_build/html/zh
	@echo "docs/_build/html/index.html"

translations: .venv/docs-ready
	$(BIN)/python -m sphinx -W --keep-going -q -c docs/locale -b gettext docs docs/_build/gettext
	$(BIN)/sphinx-intl update -p docs/_build/gettext -d docs/locale -l zh_CN -w 0 --no-obsolete

bench: .venv/test-ready
	$(BIN)/python benchmarks/run.py

versions: .venv/test-ready
	$(BIN)/python benchmarks/versions.py

wheel: .venv/test-ready
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(PYTEST) --whole tests/test_wheel.py

clean:
	rm -rf .venv .versions dist docs/_made docs/_build

.venv/torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "posenc needs Python 3.11 or later; $(PYTHON) is older, or not there. Say: make PYTHON=python3.11 ..."; exit 1; }
	@echo "installing into .venv; torch is large, so this takes a while"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	@touch $@

.venv/ready: .venv/torch pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[study]'
	@touch $@

.venv/docs-ready: .venv/torch pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch .venv/ready $@

# uv installs the many small packages several times as fast as pip, which takes over where uv cannot be had or reaches
# no index. Warnings of a compiler are errors in tests, so nothing may be left to compile. timm is a peer of which tests
# read single files: the torchvision that it asks for does not load next to a CPU build of torch.
.venv/test-ready: .venv/torch pyproject.toml
	@$(BIN)/python -m pip install --quiet uv && \
		$(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[test]' "$(TRANSFORMERS)" || \
		$(BIN)/python -m pip install --quiet --editable '.[test]' "$(TRANSFORMERS)"
	$(BIN)/python -m pip install --quiet --no-deps 'timm>=1.0'
	@touch .venv/ready $@
