# Two commands are enough on a fresh Debian 12 or 13: `make demo` and `make test`.
BUILD := build/release
LOCKSTEP := $(BUILD)/lockstep
TEST_DATA ?=
JOBS ?= $(shell nproc)
SECONDS_EACH ?= 600
SOURCES := '*.h' '*.cpp' '*.cu' '*.cuh'

.DEFAULT_GOAL := help
.PHONY: help setup build demo test test-parallel test-asan test-tsan gpu-sanitizer gpu-storm fuzz bench interop format lint clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

setup:  ## Install what the build needs (apt, with sudo when not root)
	@tools/setup.sh

build: setup  ## Build build/release/lockstep, with its GPU code where nvcc is found
	@cmake --preset release -DLOCKSTEP_CUDA=AUTO
	@cmake --build --preset release -j $(JOBS) --target lockstep

demo: setup  ## Build lockstep (GPU code only if there is a GPU), then teach the embedded model arithmetic by GRPO-LoRA
	@cmake --preset release -DLOCKSTEP_CUDA=$(if $(wildcard /dev/nvidiactl),AUTO,OFF)
	@cmake --build --preset release -j $(JOBS) --target lockstep
	@tools/demo.sh $(LOCKSTEP)

test: setup  ## Build everything, then run the fast test suite and jobs of several processes
	@cmake --preset release -DLOCKSTEP_CUDA=AUTO -DLOCKSTEP_TEST_DATA="$(TEST_DATA)"
	@cmake --build --preset release -j $(JOBS)
	@tools/run_tests.sh $(BUILD) "fast|quick"

test-parallel: setup  ## Jobs of several processes: their bits, their failures, under mpirun, over a link that is cut
	@cmake --preset release -DLOCKSTEP_CUDA=AUTO && cmake --build --preset release -j $(JOBS)
	@tools/run_tests.sh $(BUILD) parallel

test-asan: setup  ## The fast suite under AddressSanitizer and UBSan
	@cmake --preset asan -DLOCKSTEP_TEST_DATA="$(TEST_DATA)" && cmake --build --preset asan -j $(JOBS)
	@tools/run_tests.sh build/asan

test-tsan: setup  ## The fast suite under ThreadSanitizer
	@cmake --preset tsan -DLOCKSTEP_TEST_DATA="$(TEST_DATA)" && cmake --build --preset tsan -j $(JOBS)
	@tools/run_tests.sh build/tsan

gpu-sanitizer: setup  ## The kernels' GPU tests under compute-sanitizer (TOOL=memcheck), on a GPU
	@cmake --preset release -DLOCKSTEP_CUDA=ON && cmake --build --preset release -j $(JOBS) --target kernels_test
	@tools/gpu_sanitizer.sh $(BUILD)/kernels_test $(or $(TOOL),memcheck)

gpu-storm: setup  ## Adapters that come and go under load on a GPU, every answer checked, STORM_SECONDS=600 each
	@cmake --preset release -DLOCKSTEP_CUDA=ON && cmake --build --preset release -j $(JOBS) --target lockstep recipes_test
	@tools/gpu_storm.sh $(BUILD) $(or $(STORM_SECONDS),600)

fuzz: setup  ## Every parser (or FUZZ="http openai") under libFuzzer with ASan and UBSan, SECONDS_EACH=600; writes a record
	@tools/setup.sh clang
	@cmake --preset fuzz && cmake --build build/fuzz -j $(JOBS) --target $(if $(FUZZ),$(addprefix fuzz_,$(FUZZ)),fuzz)
	@tools/fuzz.sh build/fuzz $(SECONDS_EACH) $(FUZZ)

bench: build  ## GEMM beside oneDNN, then `lockstep bench` (MODEL=DIR, default the embedded model)
	@tools/bench.sh $(LOCKSTEP) $(MODEL)

interop: setup  ## Tests against the real transformers, PEFT, openai and vLLM (installs the first three into .venv)
	@cmake --preset release -DLOCKSTEP_CUDA=AUTO -DLOCKSTEP_TEST_DATA="$(TEST_DATA)"
	@cmake --build --preset release -j $(JOBS)
	@tools/interop/run.sh $(LOCKSTEP) .venv $(TEST_DATA)

format:  ## Format the sources
	@tools/setup.sh clang-format
	@git ls-files $(SOURCES) | xargs clang-format -i

lint: setup  ## clang-format check and clang-tidy
	@tools/setup.sh clang-format clang-tidy
	@cmake --preset release -B build/lint -DLOCKSTEP_CUDA=OFF -DLOCKSTEP_UNITY=OFF && cmake --build build/lint --target lockstep_commit
	@git ls-files $(SOURCES) | xargs clang-format --dry-run -Werror
	@git ls-files 'src/*.cpp' 'app/*.cpp' 'examples/*.cpp' | xargs -P $(JOBS) -n 4 clang-tidy --quiet -p build/lint

clean:  ## Remove build products
	@rm -rf build
