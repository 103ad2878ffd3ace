# The commands to learn. `make demo` and `make test` work in a fresh clone: they install what they
# need from the system (with root or sudo), make the virtual environment, build, and then run.

PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= test,dev,host,capture,cluster,triton,notebook
OUT    ?= demo-out
ARGS   ?=
# One process of tests for each of two cores, each file of tests in one of them; 0: all in one.
JOBS   ?= 2

BIN := $(VENV)/bin
C_FILES = $(shell git ls-files '*.c' '*.h')
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

# What stands behind a block's language is for the tests, or a file's name; the site takes titles alone.
SITE_FENCES = -e 's/^( *```sh) run$$/\1/' -e 's/^( *```[a-z]+) ([^=]+)$$/\1 title="\2"/'

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo "  variables: PYTHON VENV EXTRAS OUT JOBS ARGS, e.g. make test ARGS='-k pool' EXTRAS=test"

demo: $(VENV)/.stamp-model build ## the whole path in a few minutes; writes $(OUT)/report.html
	$(BIN)/offstage demo --out $(OUT) $(ARGS)

test: $(VENV)/.stamp-extras build ## the tests that this machine can run, but for the long ones (-m slow)
	$(BIN)/pytest -n $(JOBS) --dist loadfile $(ARGS)

dev: $(VENV)/.stamp-extras build ## the environment and the extension, for working on Offstage

check: $(VENV)/.stamp-extras build ## linters, types and the sanitized C tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(C_FILES)
	$(MAKE) -C dpu/firmware check check-tsan
	$(MAKE) -C testbeds/lab/analysis check
	$(MAKE) -C asic_model/engine check

format: $(VENV)/.stamp-extras ## Python by ruff, C by clang-format
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(C_FILES)

c-test: system ## the C tests alone, under sanitizers
	$(MAKE) -C dpu/firmware check check-tsan
	$(MAKE) -C testbeds/lab/analysis check
	$(MAKE) -C asic_model/engine check

mutants: $(VENV)/.stamp-extras build ## small mistakes in C that a named test must notice
	$(BIN)/python tests/mutants/run.py $(ARGS)

mutants-python: $(VENV)/.stamp-extras build ## samples of small mistakes in Python, by cosmic-ray
	$(PIP) --no-build-isolation -e '.[mutants]'
	$(BIN)/python tests/mutants/modules.py $(ARGS)

site: $(VENV)/.stamp-base ## the documentation as a site, its links checked: build/site/index.html
	$(PIP) --no-build-isolation -e '.[site]'
	rm -rf build/docs && mkdir -p build && cp -R docs build/docs
	find build/docs -name '*.md' -exec sed -E -i $(SITE_FENCES) {} +
	$(BIN)/zensical build --strict
	@! grep -rl '</a>## ' build/site --include='*.html' || { echo "headings within code"; exit 1; }

bench: build ## storage, fabric, decision core and chip engine, each beside its reference
	$(BIN)/offstage bench storage $(ARGS)
	$(BIN)/offstage bench fabric $(ARGS)
	$(BIN)/offstage bench core $(ARGS)
	$(BIN)/offstage bench asic $(ARGS)

synth: build ## area and clock of the Verilog: make synth LIB="cells.lib ..." (needs yosys, berkeley-abc)
	$(BIN)/offstage asic synth $(LIB) $(ARGS)

build: system $(VENV)/.stamp-base
	@$(BIN)/python setup.py -q build_ext --inplace

# liburing is worth a try and no more: without it the posix storage back end serves.
system:
	@missing=""; \
	command -v gcc >/dev/null || missing="$$missing gcc"; \
	command -v pkg-config >/dev/null || missing="$$missing pkg-config"; \
	pkg-config --exists libxxhash 2>/dev/null || missing="$$missing libxxhash-dev"; \
	pkg-config --exists liburing 2>/dev/null || missing="$$missing liburing-dev"; \
	$(PYTHON) -c 'import ensurepip' 2>/dev/null || missing="$$missing python3-venv"; \
	$(PYTHON) -c $(PYTHON_H) 2>/dev/null || missing="$$missing python3-dev"; \
	[ -z "$$missing" ] && exit 0; \
	as_root=""; [ "$$(id -u)" = 0 ] || as_root="sudo -n"; \
	if command -v apt-get >/dev/null && $$as_root true 2>/dev/null; then \
		$$as_root apt-get install -y -q $$missing >/dev/null 2>&1 || { \
			$$as_root apt-get update -q >/dev/null 2>&1; \
			$$as_root apt-get install -y -q $$missing >/dev/null 2>&1; } && exit 0; \
	fi; \
	echo "offstage: please install as root:$$missing  (Debian: apt-get install$$missing)" >&2; \
	[ "$$missing" = " liburing-dev" ]
PYTHON_H := 'import pathlib, sysconfig as s; pathlib.Path(s.get_path("include"), "Python.h").stat()'

$(VENV)/.stamp-base: pyproject.toml constraints.txt setup.py | system
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "offstage: needs Python 3.11 or newer; make PYTHON=python3.11 ..." >&2; exit 1; }
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	$(PIP) 'setuptools>=77' wheel cffi
	$(PIP) --no-build-isolation -e .
	@touch $@

# Torch without CUDA is a tenth of the size of the package index's own, which comes where that cannot
# be had. Without torch the demo decodes drawn sessions.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH := $(shell sed -n '/^torch==/p' constraints.txt)
$(VENV)/.stamp-torch: $(VENV)/.stamp-base
	@$(BIN)/python -c 'import torch' 2>/dev/null || \
		$(PIP) --no-deps --retries 0 --timeout 15 --index-url $(TORCH_INDEX) $(TORCH) 2>/dev/null || \
		$(PIP) $(TORCH)
	@touch $@

$(VENV)/.stamp-model: $(VENV)/.stamp-base
	@{ $(MAKE) --no-print-directory $(VENV)/.stamp-torch && \
		$(PIP) --no-build-isolation -e '.[capture]' && touch $@; } || \
		echo "offstage: torch or transformers cannot be had: the demo decodes drawn sessions" >&2

$(VENV)/.stamp-extras: $(VENV)/.stamp-base
	@case ",$(EXTRAS)," in *,host,*|*,capture,*|*,triton,*) \
		$(MAKE) --no-print-directory $(VENV)/.stamp-torch;; esac
	$(PIP) --no-build-isolation -e '.[$(EXTRAS)]'
	@touch $@

clean: ## remove builds and caches (not $(VENV))
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f bindings/_firmware*.so bindings/_analysis*.so bindings/_chip*.so
	rm -f bindings/_spdk*.so bindings/_verbs*.so
	$(MAKE) -C dpu/firmware clean
	$(MAKE) -C testbeds/lab/analysis clean
	$(MAKE) -C asic_model/engine clean

.PHONY: help demo test dev check format c-test mutants mutants-python site bench synth build system clean
