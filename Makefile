# Each target sets up .venv first if needed; a second run installs nothing.

PYTHON ?= python3
INSTALL = .venv/bin/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

.PHONY: demo test test-all lint docs wheel clean

demo: .venv/installed
	.venv/bin/python examples/demo.py

test: .venv/installed-dev
	@.venv/bin/python -m streamseg.serve.page || true # without it, one test is skipped
	.venv/bin/python -m pytest -m "not slow"

test-all: .venv/installed-dev
	@.venv/bin/python -m streamseg.serve.page || true
	.venv/bin/python -m pytest

lint: .venv/installed-dev
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy

docs: .venv/installed-docs
	.venv/bin/python docs/options.py
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build

wheel: .venv/installed
	.venv/bin/python -m streamseg.serve.page
	.venv/bin/pip wheel --quiet --no-deps -w dist .

clean:
	rm -rf .venv out site build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/pip:
	@echo "Creating .venv"
	@$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing streamseg into .venv (a minute or so; about 1 GB with torch)"
	@$(INSTALL) -e '.[video]'
	@touch $@

.venv/installed-dev: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing streamseg and its development tools into .venv (a minute or so; about 1.5 GB with torch)"
	@$(INSTALL) -e '.[dev]'
	@touch $@ .venv/installed .venv/installed-docs

.venv/installed-docs: pyproject.toml constraints.txt | .venv/bin/pip
	@echo "Installing streamseg and MkDocs into .venv (a minute or so; about 1 GB with torch)"
	@$(INSTALL) -e '.[docs]'
	@touch $@
