# Everything a person or a pipeline runs. `make help` prints the targets.
SHELL := /bin/bash
# Images of Python set it, and hundreds of processes would each compile all that they import.
unexport PYTHONDONTWRITEBYTECODE
# A distribution's Python is built with profiles and needs a fifth less of the processor than one that pyenv builds by
# default. It serves where it can make an environment (python3.11-venv) and has its headers, which vLLM's compilers need.
PYTHON ?= $(shell for python in /usr/bin/python3.11 python3.11; do $$python -c "import ensurepip, os, sysconfig; \
  os.stat(os.path.join(sysconfig.get_path('include'), 'Python.h'))" 2>/dev/null && echo $$python && exit; done; echo python3.11)
VENV ?= .venv
BIN := $(VENV)/bin
# cpu, or cuda: the same environment with vLLM for NVIDIA GPUs, best in a folder of its own (VENV=.venv-cuda).
DEVICE ?= cpu
LOCK := workers/constraints/$(DEVICE).txt
STAMP := $(VENV)/.installed-$(shell cat $(LOCK) pyproject.toml 2>/dev/null | sha256sum | cut -c1-16)
# Packages that vLLM's wheel for CUDA needs in other versions than its wheel for CPUs.
CUDA_OWN := apache-tvm-ffi|cuda-bindings
# What `make release` is told: docs/releasing.md.
RELEASE ?= build/release
HELM ?= helm
RELEASE_OPTIONS = --helm "$(HELM)" --download-url "$(DOWNLOAD_URL)" $(if $(REGISTRY),--registry "$(REGISTRY)") \
  $(if $(BASE_IMAGE),--base-image "$(BASE_IMAGE)") $(if $(filter 1,$(UNSIGNED)),--unsigned)
# Versions of Kubernetes that `make kubernetes-versions` runs.
KUBERNETES ?= 1.34 1.35 1.36
RUN_DIR ?= runs/addition
SEED ?= 0
ROWS ?= all
SIZE ?= smoke
OUT ?= build/bench
# Jobs on two real nodes, where a machine can hold them (docs/test_cluster.md): in CI and where asked for by 1, since they
# take minutes; all: those that take a quarter of an hour too.
export RLJOB_NODES ?= $(if $(filter true,$(CI)),1,0)
CLUSTER_NODES := $(if $(filter 1 all,$(RLJOB_NODES)),--nodes)
# Whole runs take minutes and wait a third of the time: five run at once (3 GB each), and what takes longest, or waits
# most, begins first.
# The table at scale and the nodes wait half of their time: they run beside unit tests and checks, which give way (nice).
LONG_FIRST := $(addprefix tests/cluster/operator/,test_outages.py test_rights.py) \
  $(addprefix tests/integration/,test_interrupted_run.py test_whole_run.py trainer/test_processes.py) \
  tests/cluster/operator/test_leaders.py tests/cluster/test_gpu_manifests.py

.PHONY: help demo test check fmt gen gpu bench lock release clean setup cluster-tools cluster-up cluster-test \
  cluster-down kubernetes-versions

help:  ## print every target
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## create .venv from the pinned lock

# uv comes by pip; the lock has hashes and no index addresses, so any configured index serves.
$(STAMP): $(LOCK) pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check "uv==0.13.8"
	@echo "installing the pinned environment into $(VENV) (about $(if $(filter cuda,$(DEVICE)),9,6) GB; minutes with a cold cache)"
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/uv pip sync -q --compile-bytecode --require-hashes --python $(BIN)/python $(LOCK)
	@$(BIN)/uv pip install -q --python $(BIN)/python --no-deps --no-build-isolation -e .
	@rm -f $(VENV)/.installed-*; touch $@

demo: setup  ## train few-shot addition on this machine, live
	@$(BIN)/rljob run crds/examples/addition-cpu.yaml --run-dir $(RUN_DIR) --seed $(SEED)

test: setup  ## everything that this machine can run; says what it cannot
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && command -v go >/dev/null; then \
	  $(MAKE) --no-print-directory cluster-tools || [ "$$CI" != true ]; fi
	@$(BIN)/python -c "from release import krew; krew.fetch()" || echo "a release is not tested: no packages for other platforms"
	@status=0; said=$$(mktemp -d); \
	$(BIN)/python -m pytest -s tests/cluster/scale >$$said/scale 2>&1 & scale=$$!; \
	$(BIN)/python -m pytest tests/cluster/nodes >$$said/nodes 2>&1 & nodes=$$!; \
	nice $(MAKE) --no-print-directory check >$$said/check 2>&1 & check=$$!; \
	nice $(BIN)/python -m pytest tests/unit -n auto --maxprocesses 4 --dist worksteal || status=1; \
	wait $$check || status=1; cat $$said/check; \
	wait $$nodes || status=1; cat $$said/nodes; \
	wait $$scale || status=1; cat $$said/scale; rm -r $$said; \
	$(BIN)/python -m pytest $(LONG_FIRST) tests/integration tests/cluster tests/gpu tests/contract \
	  --ignore=tests/cluster/nodes --ignore=tests/cluster/scale -n 5 --dist loadfile --no-loadscope-reorder || status=1; \
	exit $$status

check: setup  ## format, lint, types, import contracts
	@$(BIN)/ruff format --check -q .
	@$(BIN)/ruff check -q .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

fmt: setup  ## format and fix
	@$(BIN)/ruff format -q .
	@$(BIN)/ruff check -q --fix .

gen: setup  ## regenerate stubs, the CRDs, the chart's rights, values table and dashboards, docs/metrics.md, manifest.md and coverage
	@$(BIN)/python -m rljob_api.wire.generate
	@$(BIN)/python -m rljob_api.validation.definitions
	@$(BIN)/python -m rljob_operator.kube.permissions
	@$(BIN)/python -m generators.chart_readme
	@$(BIN)/python -m generators.dashboards
	@$(BIN)/python -m generators.metrics_page
	@$(BIN)/python -m generators.manifest_page
	@$(BIN)/python -m generators.coverage_pages

gpu:  ## on a machine with an NVIDIA GPU: prove and measure everything that needs one (tests/gpu/README.md)
	@$(MAKE) --no-print-directory setup DEVICE=cuda VENV=.venv-cuda
	@.venv-cuda/bin/python -m pytest -s tests/gpu --figures build/gpu

bench: setup  ## benchmarks: make bench ROWS=C14 SIZE=full OUT=build/bench
	@$(BIN)/python -m tests.bench --rows "$(ROWS)" --size $(SIZE) --out $(OUT)

lock: setup  ## compile the locks again from pyproject.toml
	@mkdir -p build
	@$(BIN)/uv pip compile -q pyproject.toml --extra operator --extra coordinator --extra verifier --extra cpu --extra trainer \
	  --extra local --extra sdk --extra models --extra trackers --extra dev --override workers/constraints/overrides.txt --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --no-annotate -o workers/constraints/cpu.txt
	@sed -n 's/^\([A-Za-z0-9_.-]*==[^ ;]*\).*/\1/p' workers/constraints/cpu.txt > build/versions.txt
	@$(BIN)/uv pip compile -q pyproject.toml --extra operator --extra coordinator --extra verifier --constraint build/versions.txt \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate -o workers/constraints/slim.txt
	@$(BIN)/uv pip compile -q pyproject.toml --extra operator --extra coordinator --extra verifier --extra trackers \
	  --constraint build/versions.txt \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate -o workers/constraints/slim-trackers.txt
	@$(BIN)/uv pip compile -q pyproject.toml --extra cli --constraint build/versions.txt \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate -o workers/constraints/cli.txt
	@$(BIN)/uv pip compile -q pyproject.toml --extra cpu --extra trainer --extra models --constraint build/versions.txt \
	  --override workers/constraints/overrides.txt --override workers/constraints/worker-cpu-overrides.txt \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate -o workers/constraints/worker-cpu.txt
	@grep -vE '^($(CUDA_OWN))==' build/versions.txt > build/cuda-versions.txt
	@$(BIN)/uv pip compile -q pyproject.toml --extra operator --extra coordinator --extra verifier --extra rollout \
	  --extra trainer --extra local --extra sdk --extra models --extra trackers --extra dev --constraint build/cuda-versions.txt \
	  --override workers/constraints/worker-cuda-overrides.txt --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --no-annotate -o workers/constraints/cuda.txt
	@sed -n 's/^\([A-Za-z0-9_.-]*==[^ ;]*\).*/\1/p' workers/constraints/cuda.txt > build/cuda-versions.txt
	@$(BIN)/uv pip compile -q pyproject.toml --extra rollout --extra trainer --extra models --constraint build/cuda-versions.txt \
	  --override workers/constraints/worker-cuda-overrides.txt \
	  --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate -o workers/constraints/worker-cuda.txt

cluster-tools: setup  ## packages, programs and, with RLJOB_NODES=1, images of the test cluster (root, apt, Go)
	@tests/cluster/packages.sh
	@PYTHONPATH=tests $(BIN)/python -m rljob_testing.cluster build $(CLUSTER_NODES)

cluster-up: cluster-tools  ## a control plane in runs/cluster; with RLJOB_NODES=1 two nodes too
	@PYTHONPATH=tests $(BIN)/python -m rljob_testing.cluster up $(CLUSTER_NODES)

cluster-test:  ## jobs on two real nodes, broken on purpose: programs, images, cluster and tests in one go
	@$(MAKE) --no-print-directory cluster-tools RLJOB_NODES=all
	@RLJOB_NODES=all $(BIN)/python -m pytest tests/cluster/nodes

cluster-down:  ## stop it
	@PYTHONPATH=tests $(BIN)/python -m rljob_testing.cluster down

kubernetes-versions: setup  ## the operator, chart and definitions on every supported Kubernetes: KUBERNETES="1.34 1.35"
	@mkdir -p build/kubernetes; status=0; \
	for version in $(KUBERNETES); do \
	  export RLJOB_KUBERNETES=$$version; \
	  $(MAKE) --no-print-directory cluster-tools RLJOB_NODES=0 || exit 1; \
	  rm -f build/kubernetes/$$version*.xml; \
	  $(BIN)/python -m pytest tests/cluster --ignore=tests/cluster/nodes --ignore=tests/cluster/scale \
	    --junitxml=build/kubernetes/$$version.xml || status=1; \
	done; \
	$(BIN)/python -m generators.kubernetes_page build/kubernetes; exit $$status

release: setup  ## files of a release, signed: make release DOWNLOAD_URL=https://... (docs/releasing.md)
	@$(BIN)/python -m release $(RELEASE) $(RELEASE_OPTIONS)

clean:  ## remove the environment, caches and runs
	rm -rf $(VENV) .venv-cuda build runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
