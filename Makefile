PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# A worker more than processors: tests that wait, for a browser, a cluster or a limit, leave theirs to others.
WORKERS := $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PARALLEL := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
DECIDE := data model calibration builder driver evaluator analyzer runs recipe

.PHONY: demo test browser suite quick full coverage lint site audit assets package clean

demo: $(STAMP)  ## the main job on networks that INT8 hurts
	$(BIN)/trt-bisect run samples/ocr/network.onnx --calibration samples/ocr/calibration.npz \
	    --input samples/ocr/inputs.npz --samples 1 --threshold 0.95 --output demo-run; code=$$?; [ $$code -eq 1 ]
	$(BIN)/trt-bisect run samples/lenet/lenet_planted.onnx --calibration samples/lenet/calibration.npz \
	    --output demo-run/lenet; code=$$?; [ $$code -eq 1 ]
	$(BIN)/trt-bisect run samples/detector/detector.onnx --calibration samples/detector/calibration.npz \
	    --task detect --calibrator entropy --output demo-run/detector; code=$$?; [ $$code -eq 1 ]

test: $(STAMP)
	$(MAKE) --jobs=2 lint suite

browser:
	tools/get_browser.sh

suite: $(STAMP) browser
	$(BIN)/python -m pytest $(PARALLEL)

quick: $(STAMP)  ## the rooms that decide, without what takes long: under a minute
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not subprocess" $(DECIDE:%=tests/%)

full: $(STAMP) browser  ## all tests, with all cases of those that `make test` tries a part of
	TRT_BISECT_TESTS=full $(BIN)/python -m pytest $(PARALLEL)

coverage: $(STAMP) browser  ## all tests, and which lines of the package they reach in the process of the test
	$(BIN)/python -m pytest $(PARALLEL) --cov=trt_bisect --cov-report=term:skip-covered

site: $(STAMP)  ## the documentation as a website, in build/site; a test builds it too
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

package: $(STAMP)  ## sdist and wheel, checked, and tried in an empty environment
	rm -rf dist
	$(BIN)/python tools/package.py dist

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache > $(VENV)/imports.txt || { cat $(VENV)/imports.txt; exit 1; }
	$(BIN)/python tools/layout.py

audit: $(STAMP)  ## the licences of what is brought along; and, with internet, the weaknesses known of it
	$(BIN)/python tools/audit.py licences docs/licences.md
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/python tools/audit.py weaknesses

assets:  ## bundles the page's scripts and styles; needs Node.js 20 or later
	cd tools/web && npm ci --silent && npm run --silent build

$(STAMP): pyproject.toml requirements-dev.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint requirements-dev.lock --editable '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) demo-run trt-bisect-history.jsonl build dist *.egg-info
