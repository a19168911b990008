# The two commands of the README: `make demo` and `make test`. Both make .venv if it is not there.
PYTHON ?= python3
VENV ?= .venv
# Test processes, of one thread each.
WORKERS ?= 2
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test gallery clean

demo: $(VENV)/.installed
	$(BIN)/python -m mechheads.show --task ioi

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

# Every figure of the five seeds, and then every number of them again. SmolLM2's where it was fetched.
gallery: $(VENV)/.installed
	$(BIN)/python -m mechheads.sweep --config notebooks/gallery.toml --out runs/gallery
	for run in runs/gallery/cells/*/*/; do $(BIN)/python -m mechheads.verify "$$run" || exit 1; done
	if $(BIN)/python -c 'import sys; from mechheads.fetching import is_complete; sys.exit(not is_complete("smollm2"))'; then \
		$(BIN)/python -m mechheads.sweep --config notebooks/gallery_smollm2.toml --out runs/gallery_smollm2 || exit 1; \
		for run in runs/gallery_smollm2/cells/*/*/; do $(BIN)/python -m mechheads.verify "$$run" || exit 1; done; \
	fi

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache

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
