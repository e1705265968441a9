# Which verbs does a developer need? `scripts/setup` makes .venv; then `.venv/bin/just VERB`.

set shell := ["bash", "-euo", "pipefail", "-c"]

bin := ".venv/bin"
real := "llamacpp or vllm or triton or ray or endurance or cell or sight or nightly"
# Where the environment forbids to keep bytecode, every process that a test starts would compile all of us anew.
export PYTHONDONTWRITEBYTECODE := ""
compile := bin + "/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --custom-compile-command 'just lock'"

# List the verbs.
default:
    @{{ bin }}/just --list

# Make or refresh .venv from the locks.
setup:
    scripts/setup

# Everything that reads the code without running it.
check:
    {{ bin }}/ruff check
    {{ bin }}/ruff format --check
    {{ bin }}/basedpyright
    {{ bin }}/lint-imports
    {{ bin }}/lint-imports --config testing/importlinter.toml
    {{ bin }}/python scripts/check_shape.py

# Put the code into its format and mend what can be mended by itself.
fmt:
    {{ bin }}/ruff check --fix
    {{ bin }}/ruff format

# Everything without child processes, real parts or wall-clock waits.
test *args:
    {{ bin }}/pytest -n auto --dist worksteal -m "not process and not timing and not ({{ real }})" {{ args }}

# The tests that failed last, one at a time.
test-again:
    {{ bin }}/pytest --last-failed --last-failed-no-failures none -rA

# The tests that start processes of our own, PostgreSQL or a Redis.
test-processes *args:
    {{ bin }}/pytest -n auto --dist worksteal -m "process and not timing and not ({{ real }})" {{ args }}

# The tests that depend on the wall clock, one at a time, of one real part or of `ours`; a failed one gets a second try.
test-timing part="ours" *args:
    scripts/timing_tests "{{ part }}" {{ args }}

# Write the generated parts of docs and deploy/grafana, and build the site into build/site; a broken link fails.
docs:
    {{ bin }}/python scripts/write_error_pages.py
    {{ bin }}/python scripts/write_metrics_page.py
    {{ bin }}/headgate dashboards --out deploy/grafana
    NO_MKDOCS_2_WARNING=1 {{ bin }}/mkdocs build --strict --quiet

# Generate the messages of KEDA's interface from src/headgate/fleets/keda/externalscaler.proto.
proto:
    cd src && ../{{ bin }}/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. \
        headgate/fleets/keda/externalscaler.proto

# Those of properties, which measuring makes much slower, are run by `just test`.
# The core and the model, every branch, by their own tests.
cover:
    {{ bin }}/pytest -n auto --dist worksteal -m "not process and not nightly" tests/core tests/replay tests/model \
        --cov=headgate.core --cov=headgate.model --cov-branch --cov-fail-under=100

# The tests against real llama.cpp; one at a time, since engine and tests share the cores.
test-llamacpp *args:
    {{ bin }}/pytest -m llamacpp {{ args }}

# The tests against real vLLM on CPU; one at a time likewise.
test-vllm *args:
    {{ bin }}/pytest -m vllm {{ args }}

# The tests against the real Triton server; one at a time likewise.
test-triton *args:
    {{ bin }}/pytest -m triton {{ args }}

# The tests against a real Ray node; one at a time likewise.
test-ray *args:
    {{ bin }}/pytest -m ray {{ args }}

# The tests of whole cells with real stores; one at a time, since all processes of a cell share the cores.
test-cell *args:
    {{ bin }}/pytest -m cell {{ args }}

# The tests that look at a live gateway with a real browser, a real Prometheus and a real collector; one at a time.
test-sight *args:
    {{ bin }}/pytest -m sight {{ args }}

# The console's page: types, tests, and that what is committed is what its source makes.
console-check:
    scripts/console check

# Build the console's page into src/headgate/console/assets, from where it is served.
console:
    scripts/console build

# The tests that take minutes: many streams at once, a long soak, the demo in a terminal.
test-endurance *args:
    {{ bin }}/pytest -m endurance {{ args }}

# Ten minutes of churn, of which nothing may be left behind.
test-soak *args:
    {{ bin }}/pytest -m endurance tests/acceptance/test_soak.py {{ args }}

# The gateway's CPU, requests/s and added time to first token beside nginx and beside the bare upstream (docs/project/performance.md).
[positional-arguments]
bench-relay *args:
    {{ bin }}/python -m bench.relay "$@"

# The CPU cost of watching responses of 100 tokens token by token for callers that do not stream (docs/project/performance.md).
[positional-arguments]
bench-whole-answers *args:
    {{ bin }}/python -m bench.whole_answers "$@"

# Tokens/s of real vLLM through the gateway against the same vLLM driven directly.
[positional-arguments]
bench-engine *args:
    {{ bin }}/python -m bench.engine "$@"

# Embeddings of a real engine asked one by one and together: requests/s and p99 by delay and concurrency (docs/guides/batching.md).
[positional-arguments]
bench-batching *args:
    {{ bin }}/python -m bench.batching "$@"

# How many requests a second the scheduler decides about on one core, with limits and prefixes; `--curve` for other sizes.
[positional-arguments]
bench-core *args:
    {{ bin }}/python -m bench.core "$@"

# One workload in the simulator and on a live gateway with four live simulated engines, side by side (docs/project/simulation-accuracy.md).
[positional-arguments]
sim-live *args:
    {{ bin }}/python -m bench.sim_live "$@"

# The same at one and a half times what the engines can do: attainment in life beside the simulator's.
[positional-arguments]
sim-live-overload *args:
    {{ bin }}/python -m bench.sim_live_overload "$@"

# A burst on a live gateway that starts its engines itself: how soon it grows and recovers, and what shrinking severs (docs/guides/fleets.md).
[positional-arguments]
scale-live *args:
    {{ bin }}/python -m bench.scale_live "$@"

# Cause incidents on a live gateway with simulated engine processes and record its verdict each second (docs/concepts/diagnosis.md).
[positional-arguments]
incidents-live *args:
    {{ bin }}/python -m bench.incidents_live "$@"

# A live gateway without any configured number beside a configured one, under overload (docs/concepts/protections.md).
[positional-arguments]
defaults-live *args:
    {{ bin }}/python -m bench.defaults_live "$@"

# The experiments that judge the scheduler, in quick versions; fails where a bar is missed (docs/concepts/scheduling.md).
[positional-arguments]
sim *args:
    {{ bin }}/python -m bench.policy --quick "$@"

# The overload alone: the scheduler, the best static cap and round-robin, on two kinds of engines; the last line is JSON.
[positional-arguments]
sim-e1 *args:
    {{ bin }}/python -m bench.policy overload --quick "$@"

# Prompts that begin as others did: with and without looking at what engines hold already; the last line is JSON.
[positional-arguments]
sim-e4 *args:
    {{ bin }}/python -m bench.policy prefix-routing --quick "$@"

# Fourteen real days of scaling: the autoscaler, simpler ones, and one that knows the future; the last line is JSON.
[positional-arguments]
sim-e6 *args:
    {{ bin }}/python -m bench.scaling "$@"

# Simulated incidents and healthy runs: how often the right cause is told, and how soon (docs/concepts/diagnosis.md).
[positional-arguments]
diagnosis *args:
    {{ bin }}/python -m bench.diagnosis "$@"

# Whole cells under faults of all kinds, as many seeds as one wants; `--seed N --trace` shows one (docs/project/cell-verification.md).
[positional-arguments]
sim-cell *args:
    {{ bin }}/python -m bench.cell "$@"

# Real processes of a cell killed one after another under load: what is lost, and how soon it admits again (docs/project/cell-verification.md).
[positional-arguments]
kill-cell *args:
    {{ bin }}/python -m bench.kill_cell "$@"

# What a cell adds to the first byte, what its scheduler can take, and what a burst elsewhere costs (docs/project/cell-verification.md).
[positional-arguments]
bench-cell *args:
    {{ bin }}/python -m bench.cell_live "$@"

# Run every known attack against a live gateway; report the attacks withstood, the longest event-loop turn and /health latency.
[positional-arguments]
attack *args:
    {{ bin }}/python -m bench.attack "$@"

# All that is long or timed, or one part: `just nightly relay`; the last line is JSON with every bar (CONTRIBUTING.md).
[positional-arguments]
nightly *args:
    {{ bin }}/python -m bench.nightly "$@"

# Every benchmark for a few seconds, to see that it still runs; nothing is judged by its figures.
bench-smoke:
    {{ bin }}/python -m bench.nightly --smoke

# What simple gateways make of an overload of four simulated engines, and what ours does (docs/project/simulation-accuracy.md).
[positional-arguments]
sim-overload *args:
    {{ bin }}/python -m bench.sim_overload "$@"

# The simulated engine against four recorded vLLM runs: fitted on the first 100 requests, tested on the last 200.
[positional-arguments]
sim-validate *args:
    {{ bin }}/python -m bench.sim_validate "$@"

# How long a simulated day of a million requests takes, and where the time goes.
[positional-arguments]
sim-day *args:
    {{ bin }}/python -m bench.sim_day "$@"

# The database and gateways killed under load, the database away: rows lost, doubled, and tokens against the engines' own word.
[positional-arguments]
ledger-faults *args:
    {{ bin }}/python -m bench.ledger_faults "$@"

# Whether bills, waste and idle time in the ledger explain what endpoints cost by the clock: what is left over, in a minute of trouble.
[positional-arguments]
ledger-adds-up *args:
    {{ bin }}/python -m bench.ledger_adds_up "$@"

# What the ledger costs a gateway, in CPU per request with it and without, and how fast a day of rows is written (docs/concepts/ledger.md).
[positional-arguments]
bench-ledger *args:
    {{ bin }}/python -m bench.ledger_speed "$@"

# What traces cost a gateway: its CPU on streams of 250 chunks and on short answers, with traces and without (docs/guides/tracing.md).
[positional-arguments]
bench-tracing *args:
    {{ bin }}/python -m bench.tracing "$@"

# How fast records of requests are written and found again, in a folder of a million (docs/guides/explain.md).
[positional-arguments]
bench-records *args:
    {{ bin }}/python -m bench.records_speed "$@"

# How long each report takes on a day of a million rows and a month of such days (docs/concepts/ledger.md).
[positional-arguments]
bench-reports *args:
    {{ bin }}/python -m bench.ledger_reports "$@"

# Bytes that nobody would send on purpose: `just fuzz [SECONDS] [TARGET ...]`, each target for so long.
fuzz *args:
    {{ bin }}/python -m fuzz.run {{ args }}

# Install the real engines, each in an environment of its own outside the checkout.
engines:
    scripts/engines llamacpp
    scripts/engines vllm
    scripts/engines triton

# Recompile the hash-pinned requirement files; `just lock --upgrade` takes newer versions.
lock *args:
    {{ compile }} {{ args }} pyproject.toml --output-file requirements/base.txt
    {{ compile }} {{ args }} requirements/dev.in --output-file requirements/dev.txt
    {{ compile }} {{ args }} requirements/kubernetes.in --output-file requirements/kubernetes.txt
    {{ compile }} {{ args }} requirements/build.in --output-file requirements/build.txt
    scripts/engines lock {{ args }}
    scripts/ray lock {{ args }}

# All that CI runs.
ci:
    bash .ci/run
