# The two commands of the README: `make demo` and `make test`. Both create .venv if it is missing.
PYTHON ?= python3
VENV ?= .venv
# Number of test processes, one thread each.
WORKERS ?= 2
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test test-lens4 fuzz torture gallery clean

demo: $(VENV)/.installed
	$(BIN)/python -m mechheads.discover --task ioi

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo --no-cache
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

# What concerns models, engines, scoring and commands, with TransformerLens 4 in its own environment.
LENS4 = $(patsubst %,tests/models/test_%.py,backends edge_gates finite large load wrap) tests/engine \
	tests/scoring tests/observe tests/circuits tests/gating tests/masking tests/filler tests/commands
test-lens4: $(VENV)-lens4/.installed
	OMP_NUM_THREADS=1 $(VENV)-lens4/bin/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(LENS4)

# Thousands of made-up inputs of every kind: half an hour.
fuzz: $(VENV)/.installed-dev
	MECHHEADS_FUZZ=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/fuzz

# Every command that writes, killed before each of its file operations: ten minutes.
torture: $(VENV)/.installed-dev
	MECHHEADS_TORTURE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/torture -s

# Reproduce the figures of the five papers and verify every number; also on SmolLM2 if it is fetched.
gallery: $(VENV)/.installed
	$(BIN)/python -m mechheads.sweep --config notebooks/gallery.toml --out runs/gallery
	$(BIN)/python -m mechheads.verify runs/gallery
	if $(BIN)/python -c 'import sys; from mechheads.models.fetchable import is_complete; sys.exit(not is_complete("smollm2"))'; then \
		$(BIN)/python -m mechheads.sweep --config notebooks/gallery_smollm2.toml --out runs/gallery_smollm2 && \
		$(BIN)/python -m mechheads.verify runs/gallery_smollm2; \
	fi

clean:
	rm -rf $(VENV) $(VENV)-lens4 build dist *.egg-info .pytest_cache .ruff_cache .import_linter_cache

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "mechheads needs Python 3.11 or newer, $(PYTHON) is older. Run: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV): two minutes or so, the first time ..."
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing the test tools into $(VENV) ..."
	@$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)-lens4/.installed: pyproject.toml constraints-lens4.txt
	@test -x $(VENV)-lens4/bin/python || $(PYTHON) -m venv $(VENV)-lens4
	@echo "Installing TransformerLens 4 and the test tools into $(VENV)-lens4 ..."
	@$(VENV)-lens4/bin/python -m pip --disable-pip-version-check install --quiet \
		--constraint constraints-lens4.txt --editable '.[dev]'
	@touch $@
