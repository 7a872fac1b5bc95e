# make book | test | lab | reproduce | clean. Each makes .venv first if it isn't there.
.DEFAULT_GOAL := book
.PHONY: book test lab reproduce clean
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Python compiles what is imported, once, instead of pip everything, or each process anew.
unexport PYTHONDONTWRITEBYTECODE

book: $(READY)
	@$(BIN)/swa book

test: $(READY)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder -m "not slow and not gpu"
	@echo "the tests passed"

lab: $(READY)
	@echo "opening JupyterLab on notebooks/; stop it with Ctrl-C"
	@$(BIN)/jupyter lab notebooks

reproduce: $(READY)
	@$(BIN)/swa reproduce

clean:
	@rm -rf _build .pytest_cache .ruff_cache
	@echo "removed _build and caches; results/ and .venv stay"

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "swalib needs Python 3.11 or newer: make PYTHON=python3.11")'
	@echo "setting up .venv: a minute or two with a warm package cache"
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[book,eval,test]'
	@touch $(READY)
