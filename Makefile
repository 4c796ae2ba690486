# Two Knobs: `make book` builds the book, `make test` checks it, `make help` lists the rest.
# Both do their own set-up in .venv and are cheap to run again. PYTHON chooses the interpreter.

PYTHON ?= python3
OLDEST_PYTHON ?= python3.11
PYTHONS ?= python3.11 python3.12 python3.13
PORT ?= 8000
NAME ?=
UPGRADE ?=

VENV := .venv
CONSTRAINTS := constraints.txt
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet --no-user
ALONE := tools/alone.py _build/set-up
HTML := _build/html
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu

# Stamps: empty files that are newer than what they depend on once a step is done.
VENV_READY := $(VENV)/.venv-ready
BOOK_READY := $(VENV)/.book-ready
TEST_READY := $(VENV)/.test-ready
# As old as the start of the last build that went through; the extension removes it when a build starts.
BOOK_BUILT := _build/.doctrees/finished

# Everything the built book depends on, and the folders, for what is removed (as book/., for book is a command). Which
# pages are built anew is found by book/_ext/course/depends.py. Where the repository's address is stated or the first
# page is gone, the build looks for itself.
SOURCES := _config.yml _toc.yml constraints.txt $(wildcard .git/config) $(shell find book/. notebooks/. src/. tools/. \
	-not -path '*/__pycache__*' -not -path '*/.ipynb_checkpoints*' -not -path '*.egg-info*' 2>/dev/null)
LOOK := $(if $(BOOK_REPOSITORY_URL)$(BOOK_COLAB_URL)$(GITHUB_REPOSITORY),always) $(if $(wildcard $(HTML)/index.html),,always)

# On all cores; whatever is left out fails the run.
WHOLE_RUN := $(PY) -m pytest -rs --durations=10 -n auto --whole

COMPILE := uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-emit-package normlab \
	--custom-compile-command "make pins"

.PHONY: help book serve quick test test-all test-matrix test-oldest test-newest test-copies test-gpu lab notebooks record bench drill-score colab sheet deck \
	offline wheel linkcheck audit pins clean
.DEFAULT_GOAL := help

help:  ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- the two commands -------------------------------------------------------------------------

book: $(BOOK_BUILT)  ## build the book (installs what it needs, without torch)
	@echo
	@echo "The book stands in $(HTML). Open it in a browser:"
	@$(PY) -c 'import pathlib; print("   ", pathlib.Path("$(HTML)/index.html").absolute().as_uri())'
	@echo "or serve it with: make serve"

test: $(TEST_READY) book  ## run the tests and every notebook; of what is alike, some (installs torch and the rest)
	$(WHOLE_RUN)

test-all: $(TEST_READY) book  ## the same, and all of what is alike: every copy, every chapter in the browser; what CI runs
	$(WHOLE_RUN) --all

quick: $(TEST_READY) book  ## run what a small edit can break, and the changed notebooks and modules' tests (a minute)
	$(PY) -m pytest -q -n auto $$($(PY) tools/quick.py)

# --- more ---------------------------------------------------------------------------------------

serve: book  ## build the book and serve it on this machine (PORT=8000)
	@echo "Serving http://127.0.0.1:$(PORT)/ until Ctrl+C"
	@$(PY) -m http.server --bind 127.0.0.1 --directory $(HTML) $(PORT)

lab: $(TEST_READY)  ## open the notebooks in JupyterLab
	$(PY) tools/lab.py

notebooks: $(TEST_READY)  ## run all notebooks and store their outputs (NAME=01_drunkards_walk for one)
	$(PY) tools/execute.py $(if $(NAME),notebooks/$(NAME).ipynb)

record: $(TEST_READY)  ## list the recorded results; NAME=trained_streams makes one, NAME="--missing --jobs 2" all
	$(PY) -m normlab record $(NAME)

bench: $(TEST_READY)  ## what norms cost, counted and timed, and a small Llama against transformers (minutes); tables in bench.json too
	$(PY) -m normlab bench --json bench.json

test-matrix: $(TEST_READY)  ## notebooks with 1 and 2 threads on three instruction sets, and other versions (NAME=04_rmsnorm for one)
	@$(PY) tools/matrix.py $(NAME)

test-oldest:  ## run tests and notebooks with the oldest versions that are allowed, in .venv-oldest (Python 3.11)
	@command -v "$(OLDEST_PYTHON)" >/dev/null || \
		{ echo "Python 3.11 is missing: there is no '$(OLDEST_PYTHON)' here; name one with: make test-oldest OLDEST_PYTHON=…" >&2; exit 1; }
	@$(MAKE) --no-print-directory oldest VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt PYTHON="$(OLDEST_PYTHON)"

test-newest:  ## the same with the newest versions of everything, in .venv-newest
	@mkdir -p _build && : > _build/newest.txt  # no pins
	@PIP_UPGRADE=1 PIP_UPGRADE_STRATEGY=eager \
		$(MAKE) --no-print-directory oldest VENV=.venv-newest CONSTRAINTS=_build/newest.txt

test-copies: $(TEST_READY)  ## run every standalone copy twice with each of PYTHONS, in .venvs (COPIES="--versions newest --once")
	$(PY) tools/run_copies.py $(PYTHONS) --torch-index $(TORCH_CPU_INDEX) $(COPIES)

test-gpu: $(TEST_READY)  ## run the CUDA tests, all notebooks and the timings on the GPU, if there is one
	$(PY) tools/try_gpu.py

.PHONY: oldest
# A cell must not raise; its outputs may differ from the committed ones. Types, pages and copies are those of the pins.
oldest: $(TEST_READY)
	$(PY) -m pytest -rs --durations=10 -n auto --nbval-lax \
		--ignore=tests/site --ignore=tests/test_types.py --ignore=tests/test_standalone.py

drill-score: $(TEST_READY)  ## print what the drills' checker sees, names and tells apart, and store it for the book
	$(PY) tools/drill_score.py
	$(PY) -m normlab drill --score

colab: $(BOOK_READY)  ## write the standalone copies of the notebooks to _build/colab
	$(PY) tools/standalone.py _build/colab
	@echo "To offer them in Colab, commit these files to the top of a branch 'colab' at the origin."

sheet: $(BOOK_READY)  ## write the one-page sheet to _build/two-knobs-sheet.pdf (make book does it as well)
	@$(PY) tools/sheet.py _build/two-knobs-sheet.pdf

deck: $(BOOK_READY)  ## write the questions as an Anki deck to _build/two-knobs.apkg (make book does it as well)
	@$(PY) tools/deck.py _build/two-knobs.apkg

offline: book  ## write the built book to _build/two-knobs-offline.zip, which opens from the disk
	@$(PY) tools/offline.py _build/two-knobs-offline.zip

wheel: $(TEST_READY)  ## write the package as a wheel to _build/wheel
	@$(PY) tools/build_wheel.py _build/wheel

linkcheck: $(BOOK_READY)  ## ask for every address on the web that the book names (needs a network; some minutes)
	@$(VENV)/bin/jupyter-book build . --builder linkcheck --path-output _build/links -n --keep-going

audit: $(TEST_READY)  ## ask a public list for known faults of the pinned libraries (installs pip-audit; needs a network)
	@$(PY) tools/audit.py $(CONSTRAINTS)

pins:  ## resolve requirements.txt into constraints.txt and …-oldest.txt (needs uv; UPGRADE=--upgrade moves all)
	$(COMPILE) $(UPGRADE) requirements.txt -o constraints.txt
	@mkdir -p _build
	$(COMPILE) --no-deps --all-extras --resolution lowest-direct pyproject.toml -o _build/lowest.txt
	cp constraints.txt constraints-oldest.txt  # whatever fits stays as it is there
	$(COMPILE) requirements.txt -c _build/lowest.txt -o constraints-oldest.txt

clean:  ## remove what was built (.venv stays)
	rm -rf _build .pytest_cache

# --- set-up -------------------------------------------------------------------------------------

$(VENV_READY):
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "Python is missing: there is no '$(PYTHON)' here; install Python 3.11 or newer, or name one with: make book PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python is too old: '$(PYTHON)' is $$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])') and the book needs 3.11 or newer; name another with: make book PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "Python's venv module is missing; on Debian or Ubuntu install it with: apt install python3-venv" >&2; exit 1; }
	@echo "Creating $(VENV) with $$("$(PYTHON)" --version)"
	@"$(PYTHON)" $(ALONE) "$(PYTHON)" -m venv $(VENV)
	@touch $@

$(BOOK_READY): requirements-book.txt $(CONSTRAINTS) | $(VENV_READY)
	@echo "Installing what the book needs"
	@$(PY) $(ALONE) $(PIP) -r requirements-book.txt -c $(CONSTRAINTS)
	@touch $@

# The CPU build of torch is a tenth of the default one on Linux. It comes from an index of its own, which may
# be out of reach: asked once, for at most five seconds, and never named in a requirements file. --no-deps: that
# index lags behind with everything else, so torch's dependencies come with the requirements below.
$(TEST_READY): requirements.txt requirements-book.txt pyproject.toml $(CONSTRAINTS) | $(BOOK_READY)
	@echo "Installing torch, Jupyter and the tests (once; some minutes)"
	@$(PY) -c 'import torch' 2>/dev/null || nvidia-smi -L >/dev/null 2>&1 || \
		! $(PY) -c 'import signal, urllib.request as web; signal.alarm(5); web.urlopen("$(TORCH_CPU_INDEX)/torch/")' 2>/dev/null || \
		$(PY) $(ALONE) $(PIP) torch -c $(CONSTRAINTS) --no-deps --index-url $(TORCH_CPU_INDEX) || \
		echo "torch's CPU index failed; taking the default one"
	@$(PY) $(ALONE) $(PIP) -r requirements.txt -c $(CONSTRAINTS)
	@touch $@

$(BOOK_BUILT): $(BOOK_READY) $(SOURCES) $(LOOK)
	@mkdir -p $(HTML) $(dir $(BOOK_BUILT))
	@$(PY) tools/build_book.py . -W -n --keep-going

.PHONY: always
