# The commands to learn. `make demo` and `make test` work in a fresh clone: .ci/setup installs what
# they need, and then they run.

PYTHON ?= python3
VENV   ?= .venv
EXTRAS ?= test,dev,host,capture,cluster,triton,notebook
OUT    ?= demo-out
ARGS   ?=
# One process of tests for each of two cores, each file of tests in one of them; 0: all in one.
JOBS   ?= 2

BIN := $(VENV)/bin
C_FILES = $(shell git ls-files '*.c' '*.h')
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
SETUP := PYTHON="$(PYTHON)" VENV="$(VENV)" TORCH_INDEX="$(TORCH_INDEX)" .ci/setup

SYSTEM := $(shell uname -s)
ifneq ($(SYSTEM),Linux)
$(error offstage: needs Linux; on $(or $(SYSTEM),this system) use a virtual machine, WSL 2 or a container)
endif

# What `make wheels` brought is all that pip takes, for the demo's model too. pip splits at blanks.
ifneq ($(WHEELS),)
ifneq ($(MAKECMDGOALS),wheels)
export PIP_NO_INDEX := 1
export PIP_FIND_LINKS := file://$(shell realpath "$(WHEELS)" | sed 's/ /%20/g')
endif
endif

# What stands behind a block's language is for the tests, or a file's name; the site takes titles alone.
SITE_FENCES = -e 's/^( *```sh) run$$/\1/' -e 's/^( *```[a-z]+) ([^=]+)$$/\1 title="\2"/'

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile
	@echo "  variables: PYTHON VENV EXTRAS WHEELS OUT JOBS ARGS, e.g. make test ARGS='-k pool' EXTRAS=test"
	@echo "  system packages: asks before it installs; OFFSTAGE_YES=1 is a yes beforehand, OFFSTAGE_YES=0 a no"

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
	@$(SETUP) extras mutants
	$(BIN)/python tests/mutants/modules.py $(ARGS)

site: $(VENV)/.stamp-base ## the documentation as a site, its links checked: build/site/index.html
	@$(SETUP) extras site
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
	@$(SETUP) extensions

system:
	@$(SETUP) system

$(VENV)/.stamp-base: pyproject.toml constraints.txt setup.py | system
	@$(SETUP) environment
	@touch $@

# Without torch the demo decodes drawn sessions.
$(VENV)/.stamp-model: $(VENV)/.stamp-base
	@$(SETUP) extras capture && touch $@ || \
		echo "offstage: torch or transformers cannot be had: the demo decodes drawn sessions" >&2

$(VENV)/.stamp-extras: $(VENV)/.stamp-base
	@$(SETUP) extras "$(EXTRAS)"
	@touch $@

wheels: $(VENV)/.stamp-base ## a folder of what pip brings, for `make demo WHEELS=wheels` without a network
	@$(SETUP) wheels "$(EXTRAS)" "$(or $(WHEELS),wheels)"

clean: ## remove builds and caches (not $(VENV))
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -f bindings/_firmware*.so bindings/_analysis*.so bindings/_chip*.so
	rm -f bindings/_spdk*.so bindings/_verbs*.so
	$(MAKE) -C dpu/firmware clean
	$(MAKE) -C testbeds/lab/analysis clean
	$(MAKE) -C asic_model/engine clean

.PHONY: help demo test dev check format c-test mutants mutants-python site bench synth build system wheels clean
