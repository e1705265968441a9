# Developer commands. Run `scripts/setup` once to create .venv, then `.venv/bin/just COMMAND`.

set shell := ["bash", "-euo", "pipefail", "-c"]

bin := ".venv/bin"
real := "llamacpp or vllm or triton or ray or litellm or endurance or cell or observability or nightly"
# Tests start many processes. With this variable set in the environment, each of them would recompile every module.
export PYTHONDONTWRITEBYTECODE := ""
# Two per core, because tests wait for timeouts and other processes for about half of the time.
workers := "-n $((2 * " + num_cpus() + ")) --dist worksteal"
compile := bin + "/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command 'just lock'"

# List the commands.
default:
    @{{ bin }}/just --list

# Create or update .venv from the lock files.
setup:
    scripts/setup

# Run all static checks: lint, format, types, imports and structure.
check:
    {{ bin }}/ruff check
    {{ bin }}/ruff format --check
    {{ bin }}/basedpyright
    {{ bin }}/lint-imports
    {{ bin }}/lint-imports --config testing/importlinter.toml
    {{ bin }}/python scripts/check_structure.py

# Format the code and apply safe lint fixes.
fmt:
    {{ bin }}/ruff check --fix
    {{ bin }}/ruff format

# Run the tests without child processes, real engines or stores, or wall-clock waits.
test *args:
    {{ bin }}/pytest {{ workers }} -m "not process and not timing and not ({{ real }})" {{ args }}

# Repeat the tests that failed in the last run, one at a time.
test-again:
    {{ bin }}/pytest --last-failed --last-failed-no-failures none -rA

# Run the tests that start Headgate processes, PostgreSQL or Redis.
test-processes *args:
    {{ bin }}/pytest {{ workers }} -m "process and not timing and not ({{ real }})" {{ args }}

# Run the wall-clock tests one at a time: `all`, those with the mark `part` or those with no engine (`ours`).
test-timing part="ours" *args:
    scripts/run_timing_tests "{{ part }}" {{ args }}

# Generate the docs, dashboards, rules and served HTML pages, and build the site into build/site. Fails on broken links.
docs:
    {{ bin }}/python scripts/write_error_pages.py
    {{ bin }}/python scripts/write_metrics_page.py
    {{ bin }}/python scripts/write_html_pages.py
    {{ bin }}/headgate generate dashboards --out deploy/grafana
    HEADGATE_MEMBER=gateway-1 POSTGRES_PASSWORD=unused HEADGATE_KEY_SECRET=$({{ bin }}/headgate keys secret) \
        {{ bin }}/headgate generate rules --config deploy/compose/headgate/headgate.yaml \
        --runbook-url http://127.0.0.1:9090/docs/operations/runbooks --out deploy/compose/prometheus/rules.yaml
    NO_MKDOCS_2_WARNING=1 {{ bin }}/mkdocs build --strict --quiet

# Generate the KEDA messages from src/headgate/fleets/keda/externalscaler.proto.
proto:
    cd src && ../{{ bin }}/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. \
        headgate/fleets/keda/externalscaler.proto

# Property tests are left out: coverage slows them down a lot, and `just test` runs them.

# Run the tests of core and model, and require 100 % branch coverage.
cover:
    {{ bin }}/pytest -n auto --dist worksteal -m "not process and not nightly" tests/core tests/replay tests/model \
        --cov=headgate.core --cov=headgate.model --cov-branch --cov-fail-under=100

# Compile the packages listed in hatch_build.py, which takes minutes, and print the directory of the compiled build.
compile:
    scripts/compiled_tree

# Run tests on the compiled build, with some of the process tests. `just nightly compiled-tests` runs all of those.
test-compiled *args: (test-compiled-scheduler args) (test-compiled-gateway args) (test-compiled-processes args)

[private]
test-compiled-scheduler *args:
    tree="$(scripts/compiled_tree)" && PYTHONPATH="$tree" {{ bin }}/python -m pytest -p no:cacheprovider -n auto --dist worksteal \
        -m "not timing and not ({{ real }})" tests/core tests/model tests/replay tests/properties {{ args }}

[private]
test-compiled-gateway *args:
    tree="$(scripts/compiled_tree)" && PYTHONPATH="$tree" {{ bin }}/python -m pytest -p no:cacheprovider {{ workers }} \
        -m "not process and not timing and not ({{ real }})" tests/contracts tests/control tests/edge tests/engines \
        tests/fleets tests/hosts tests/lessons tests/security tests/telemetry tests/wire {{ args }}

# Streams under churn, large bodies, a reload, a rolling restart, engines that fail during a stream, killed gateways.
[private]
test-compiled-processes *args:
    tree="$(scripts/compiled_tree)" && PYTHONPATH="$tree" {{ bin }}/python -m pytest -p no:cacheprovider {{ workers }} \
        -m "process and not timing and not ({{ real }})" tests/edge/test_churn.py tests/edge/test_reload.py \
        tests/edge/test_kserve.py tests/lessons/test_10_truncated_streams.py \
        tests/lessons/test_25_a_rolling_restart.py tests/hosts/cell/test_gateway.py {{ args }}

# Run the tests with a real llama.cpp, one at a time, because engine and tests share the cores.
test-llamacpp *args:
    {{ bin }}/pytest -m llamacpp {{ args }}

# Run the tests with a real vLLM on CPU, one at a time.
test-vllm *args:
    {{ bin }}/pytest -m vllm {{ args }}

# Run the tests with a real Triton server, one at a time.
test-triton *args:
    {{ bin }}/pytest -m triton {{ args }}

# Run the tests with a real Ray node, one at a time.
test-ray *args:
    {{ bin }}/pytest -m ray {{ args }}

# Run the tests with a real LiteLLM proxy, one at a time.
test-litellm *args:
    {{ bin }}/pytest -m litellm {{ args }}

# Run the cell tests with real stores, one at a time, because all processes of a cell share the cores.
test-cell *args:
    {{ bin }}/pytest -m cell {{ args }}

# Run the tests that observe a live gateway with a browser, Prometheus and a trace collector, one at a time.
test-observability *args:
    {{ bin }}/pytest -m observability {{ args }}

alias test-sight := test-observability

# Check the console: types, tests, and that the committed page matches its source.
console-check:
    scripts/build_console check

# Build the console page into src/headgate/console/assets, where the gateway serves it from.
console:
    scripts/build_console build

# Run the tests that take minutes: many concurrent streams, a soak test, the demo in a terminal.
test-endurance *args:
    {{ bin }}/pytest -m endurance {{ args }}

# Run ten minutes of churn and check that no resource leaks.
test-soak *args:
    {{ bin }}/pytest -m endurance tests/acceptance/test_soak.py {{ args }}

# Compare CPU time, requests/s and time to first token with nginx, Envoy and no proxy (docs/project/performance.md).
[positional-arguments]
bench-relay *args:
    {{ bin }}/python -m bench.relay_overhead "$@"

# Count the gateway's instructions per request and per chunk, by package, file or function (docs/project/performance.md).
[positional-arguments]
profile-request *args:
    {{ bin }}/python -m bench.instructions "$@"

# Compare the CPU cost of the compiled and the pure build with commit REV in one run (docs/project/performance.md).
[positional-arguments]
compare-speed rev *args:
    tree="$(scripts/compiled_tree)" && PYTHONPATH="$tree" {{ bin }}/python -m bench.compare_speed \
        --pure-command "env PYTHONPATH=$PWD/src $PWD/{{ bin }}/headgate" "$@"

# Measure the CPU cost of streaming from the engine for non-streaming callers (docs/project/performance.md).
[positional-arguments]
bench-whole-answers *args:
    {{ bin }}/python -m bench.non_streaming_overhead "$@"

# Measure the effect of a mirror at 10 % on the latency of the requests that it copies (docs/guides/mirroring.md).
[positional-arguments]
mirror *args:
    {{ bin }}/python -m bench.mirror "$@"

# Compare the tokens/s of a real vLLM through the gateway and without it.
[positional-arguments]
bench-engine *args:
    {{ bin }}/python -m bench.engine_throughput "$@"

# Compare batched and single embedding requests to a real engine by delay and concurrency (docs/guides/batching.md).
[positional-arguments]
bench-batching *args:
    {{ bin }}/python -m bench.batching "$@"

# Measure scheduler decisions per second on one core, with limits and prefix routing. `--curve` tries other sizes.
[positional-arguments]
bench-core *args:
    {{ bin }}/python -m bench.scheduler_speed "$@"

# Compare the simulator with a live gateway on the same workload (docs/project/simulation-accuracy.md).
[positional-arguments]
sim-live *args:
    {{ bin }}/python -m bench.sim_vs_live "$@"

# Measure live attainment with and without overflow to LiteLLM, and check its bill (docs/guides/hosted-overflow.md).
[positional-arguments]
hosted-overflow-live *args:
    {{ bin }}/python -m bench.hosted_overflow_live "$@"

# Compare simulated and live target attainment at 1.5 times the engines' capacity.
[positional-arguments]
sim-live-overload *args:
    {{ bin }}/python -m bench.sim_vs_live_overload "$@"

# Check that the planned number of live engines holds the objective, and one fewer does not (docs/guides/plan.md).
[positional-arguments]
plan-live *args:
    {{ bin }}/python -m bench.plan_live "$@"

# Plan ServeGen's mix for 1M to 1B requests a day (docs/project/scale-plans.md). Last line: JSON.
[positional-arguments]
plan-scale *args:
    {{ bin }}/python -m bench.scale_plans "$@"

# Try a better and a harmful setting on a live gateway under traffic (docs/guides/tune-live.md).
[positional-arguments]
tune-live *args:
    {{ bin }}/python -m bench.tune_live "$@"

# Check that `headgate tune` finds settings that were changed for the worse at random (docs/guides/tune.md).
[positional-arguments]
tune-faults *args:
    {{ bin }}/python -m bench.tune_faults "$@"

# Measure scale-up, recovery and interrupted streams when a gateway starts its own engines (docs/guides/fleets.md).
[positional-arguments]
scale-live *args:
    {{ bin }}/python -m bench.scale_live "$@"

# Cause incidents on a live gateway with simulated engines and record its verdicts (docs/concepts/diagnosis.md).
[positional-arguments]
incidents-live *args:
    {{ bin }}/python -m bench.incidents_live "$@"

# Compare a live gateway with default settings and a tuned one under overload (docs/concepts/protections.md).
[positional-arguments]
defaults-live *args:
    {{ bin }}/python -m bench.defaults_live "$@"

# Run short versions of the scheduler experiments. Fails if a target is missed (docs/concepts/scheduling.md).
[positional-arguments]
sim *args:
    {{ bin }}/python -m bench.policy --quick "$@"

# Run only the overload experiment: scheduler, best static cap and round robin on two engine kinds. Last line: JSON.
[positional-arguments]
sim-e1 *args:
    {{ bin }}/python -m bench.policy overload --quick "$@"

# Run only the shared-prefix experiment, with and without prefix-cache routing. Last line: JSON.
[positional-arguments]
sim-e4 *args:
    {{ bin }}/python -m bench.policy prefix-routing --quick "$@"

# Compare the autoscaler with simpler ones and a clairvoyant one on 14 days of recorded traffic. Last line: JSON.
[positional-arguments]
sim-e6 *args:
    {{ bin }}/python -m bench.scaling "$@"

# Measure how often and how fast simulated incidents are diagnosed correctly (docs/concepts/diagnosis.md).
[positional-arguments]
diagnosis *args:
    {{ bin }}/python -m bench.diagnosis "$@"

# Simulate cells under random faults, one per seed. `--seed N --trace` shows one (docs/project/cell-verification.md).
[positional-arguments]
sim-cell *args:
    {{ bin }}/python -m bench.cell_faults "$@"

# Kill processes of a live cell under load; report losses and time to recovery (docs/project/cell-verification.md).
[positional-arguments]
kill-cell *args:
    {{ bin }}/python -m bench.kill_cell "$@"

# Measure the added latency, throughput and fairness of a cell (docs/project/cell-verification.md).
[positional-arguments]
bench-cell *args:
    {{ bin }}/python -m bench.cell_overhead "$@"

# Measure a cell's scheduler with thousands of open streams, through kills of it (docs/project/cell-verification.md).
[positional-arguments]
cell-streams *args:
    {{ bin }}/python -m bench.cell_streams "$@"

# Measure limits and budgets across several cells, and the loss of a cell (docs/guides/several-cells.md).
[positional-arguments]
cells *args:
    {{ bin }}/python -m bench.several_cells "$@"

# Run every known attack against a live gateway. Report the results, the longest event-loop turn and /health latency.
[positional-arguments]
attack *args:
    {{ bin }}/python -m bench.attack "$@"

# Rotate certificates under 200 open streams, and compare the CPU cost of a request over TLS with nginx.
[positional-arguments]
tls *args:
    {{ bin }}/python -m bench.tls "$@"

# Run all long or timed jobs, or one part (`just nightly relay`). Last line: JSON with all targets (CONTRIBUTING.md).
[positional-arguments]
nightly *args:
    {{ bin }}/python -m bench.nightly "$@"

# Run every benchmark for a few seconds to check that it works. The figures are not evaluated.
bench-smoke:
    {{ bin }}/python -m bench.nightly --smoke

# Compare Headgate with simple gateways on four overloaded simulated engines (docs/project/simulation-accuracy.md).
[positional-arguments]
sim-overload *args:
    {{ bin }}/python -m bench.sim_overload "$@"

# Validate the simulated engine with four recorded vLLM runs: fit on the first 100 requests, test on the last 200.
[positional-arguments]
sim-validate *args:
    {{ bin }}/python -m bench.sim_validate "$@"

# Calibrate vLLM on CPU, llama.cpp and a simulated engine, and report the worst errors (docs/guides/calibrate.md).
[positional-arguments]
calibrate-live *args:
    {{ bin }}/python -m bench.calibrate_live "$@"

# Profile the simulation of one day with a million requests.
[positional-arguments]
sim-day *args:
    {{ bin }}/python -m bench.sim_day "$@"

# Kill the database and gateways under load; report lost and duplicate rows, and compare token counts with the engines.
[positional-arguments]
ledger-faults *args:
    {{ bin }}/python -m bench.ledger_faults "$@"

# Run gateways of an earlier commit and of this one on one database, and in one cell, under load. Last line: JSON.
[positional-arguments]
skew *args:
    {{ bin }}/python -m bench.version_skew "$@"

# Check that bills, waste and idle time in the ledger add up to the endpoint cost, in one minute with faults.
[positional-arguments]
ledger-adds-up *args:
    {{ bin }}/python -m bench.ledger_reconciliation "$@"

# Measure the CPU per request with and without the ledger, and the row write speed (docs/concepts/ledger.md).
[positional-arguments]
bench-ledger *args:
    {{ bin }}/python -m bench.ledger_speed "$@"

# Measure the CPU of 250-chunk streams and short responses with and without traces (docs/guides/tracing.md).
[positional-arguments]
bench-tracing *args:
    {{ bin }}/python -m bench.tracing_overhead "$@"

# Measure how fast request records are written and searched, with a million records (docs/guides/explain.md).
[positional-arguments]
bench-records *args:
    {{ bin }}/python -m bench.records_speed "$@"

# Measure the report times for a day with a million rows and for a month of such days (docs/concepts/ledger.md).
[positional-arguments]
bench-reports *args:
    {{ bin }}/python -m bench.ledger_reports "$@"

# Measure the longest event-loop turn while few of 100,000 tenants change (docs/guides/tenants-and-keys.md).
[positional-arguments]
bench-tenants *args:
    {{ bin }}/python -m bench.directory_changes "$@"

# Fuzz the parsers: `just fuzz [SECONDS] [TARGET ...]`, with SECONDS for each target.
fuzz *args:
    {{ bin }}/python -m fuzz.run {{ args }}

# Install the real engines, each in its own environment outside the checkout.
engines:
    scripts/engine_env llamacpp
    scripts/engine_env vllm
    scripts/engine_env triton

# Build the release files of this commit into dist/. `--check` compares two builds and runs the quickstart from each file.
[positional-arguments]
release *args:
    {{ bin }}/python -m scripts.release "$@"

# Build the container image with Podman. `--base-from-debian` needs no registry; `--check` runs the image and checks it.
[positional-arguments]
image *args:
    {{ bin }}/python -m scripts.image "$@"

# Collect the licences of third-party packages into THIRD-PARTY-LICENSES.txt.
licenses:
    {{ bin }}/python scripts/write_licenses.py

# Recompile the hash-pinned requirement files. `just lock --upgrade` selects newer versions.
lock *args:
    {{ compile }} {{ args }} pyproject.toml --output-file requirements/base.txt
    {{ compile }} {{ args }} requirements/dev.in --output-file requirements/dev.txt
    {{ compile }} {{ args }} requirements/image.in --output-file requirements/image.txt
    {{ compile }} {{ args }} requirements/build.in --output-file requirements/build.txt
    {{ compile }} {{ args }} requirements/release.in --output-file requirements/release.txt
    scripts/engine_env lock {{ args }}
    scripts/tool_env lock {{ args }}

# Run everything that CI runs.
ci:
    bash .ci/run
