# Thin: the targets call scripts/.
.DEFAULT_GOAL := help
.PHONY: help serve test bench abuse chaos soak lint loom miri interop conformance docs build tools dist clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1@\2/p' $(MAKEFILE_LIST) | column -t -s@

serve: ## Build Dunlin and start it; flags as in ARGS="--workers 4"
	@scripts/serve $(ARGS)

test: ## Install what tests need, then run all of them
	@scripts/test

bench: ## Measure and write docs/BENCHMARKS.md; parts as in ARGS="idle fanout"
	@scripts/bench/run $(ARGS)

abuse: ## Attack a server, and say what its ordinary clients notice; writes docs/BENCHMARKS.md
	@scripts/bench/run abuse

chaos: ## Let nodes, servers and links fail while clients move between nodes; as in ARGS="--layout nats --duration 10m"
	@scripts/chaos $(ARGS)

soak: ## What must run for long: kills by the thousand, fuzzing, chaos in each layout; parts as in ARGS="kills fuzz"
	@scripts/soak $(ARGS)

lint: ## Format, clippy and rustdoc without a warning
	@scripts/test format lint docs

loom: ## Model-check the bus
	@scripts/test loom

miri: ## Run the bus's tests under Miri, if a nightly toolchain has it
	@scripts/test miri

interop: ## Other people's clients against the server
	@scripts/test interop

conformance: ## Other people's test suites against the codecs
	@scripts/test conformance

docs: ## Write the pages that are generated from the code
	@scripts/docs

build: ## Build the optimised program, target/release/dunlin
	@cargo build --locked --release -p dunlin-cli

tools: ## Build target/release/dunlin-bench beside it: benchmarks, attacks, chaos, simulators
	@cargo build --locked --release -p dunlin-bench

dist: ## Build what is installed elsewhere: static programs, packages for Debian, man pages, completions
	@scripts/dist

clean: ## Remove what was built and what was installed for tests
	@cargo clean
	@rm -rf .cache
