"""Messages about invalid scenario files."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.problems import ConfigErrors
from headgate.config.scenarios.load import load
from headgate.config.scenarios.schema import (
    CallersSection,
    DaySection,
    EnginesSection,
    FaultSection,
    LengthsSection,
    RampSection,
    RandomFaultsSection,
    ScenarioFile,
    SimulatedPoolSection,
    SimulatedTenantSection,
    SimulatedTrafficSection,
    SpikeSection,
)
from headgate.model.engine_profile import PROFILES
from tests.config.scenario_builders import SCHEDULERS, SMALL, problems_of, scenario_of, small_with_traffic

POISSON = "{rate: 5, duration: 60s, classes: batch, prompt: 100, output: 10}"


def traffic(entry: str, *lines: str) -> list[str]:
    return problems_of(small_with_traffic(entry, *lines))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("titel: x", '5: titel: unknown key; did you mean "title"?'),
        ("scheduler: headgates", '5: scheduler: scheduler "headgates" does not exist; did you mean "headgate"?'),
        ("scheduler: {cap: 3}", "5: scheduler.cap: has no effect with headgate, only with static-cap; remove it"),
        ("duration: 5", '5: duration: expected a duration with its unit, such as 250ms, 10s, 5m or 1h, found "5"'),
        (
            "classes: {batch: {}, a b: {priority_band: 0}}",
            "5: classes.a b: a name must have 1 to 64 characters: letters, digits, and . _ -",
        ),
        (
            "classes: {batch: {degradation_steps: [{level: 1, model: small}]}}",
            '5: classes.batch.degradation_steps[0].model: model "small" does not exist; available: model',
        ),
        (
            "models: {a: mian}",
            '5: models.a.pools[0]: pool "mian" does not exist; did you mean "main"?',
        ),
        (
            "models: {a: {pools: main, fallbacks: b}}",
            '5: models.a.fallbacks[0]: model "b" does not exist; available: a',
        ),
        (
            "tenants: {a: {plan: gold}}",
            '5: tenants.a.plan: "gold" is not a valid value; available: free, standard, critical',
        ),
        (
            "tenants: {a b: {}}",
            (
                "5: tenants.a b: a tenant name must have 1 to 64 characters: letters, digits, and . _ -; a "
                "path joins several names with /"
            ),
        ),
        (
            "degradation: {recover_below_percent: 100}",
            (
                "5: degradation.recover_below_percent: must be below escalate_above_percent, or the level "
                "would oscillate; lower it"
            ),
        ),
        (
            "callers: {bach: {ttft: 1s}}",
            '5: callers.bach: class "bach" does not exist; did you mean "batch"?',
        ),
        (
            "faults: [{crash: main/7, at: 1s, recover_after: 1s}]",
            '5: faults[0].crash[0]: engine "main/7" does not exist; did you mean "main/1"?',
        ),
        (
            "faults: [{crash: other, at: 1s, recover_after: 1s}]",
            '5: faults[0].crash[0]: engine "other" does not exist; use POOL/NUMBER, or POOL for all of its engines',
        ),
        (
            "faults: [{at: 1s}]",
            "5: faults[0]: does not specify a fault; set exactly one of crash, hang, slow, random",
        ),
        (
            "faults: [{crash: main, hang: main, at: 1s}]",
            "5: faults[0]: has crash and hang; set exactly one of crash, hang, slow, random",
        ),
        (
            "faults: [{hang: main, at: 1s}]",
            "5: faults[0].duration: missing; set the duration, such as 20s",
        ),
        (
            "faults: [{hang: main, at: 1s, duration: 1s, speed: 0.2}]",
            "5: faults[0].speed: has no effect with hang; remove it",
        ),
        (
            "faults: [{slow: main, at: 1s, duration: 1s, speed: 1.5}]",
            "5: faults[0].speed: must be at most 1, not 1.5",
        ),
        (
            "faults: [{random: {crash: 1, duration_max: 1s}}]",
            "5: faults[0].random.duration_max: is less than duration_min; raise it",
        ),
        (
            "faults: [{random: {}}]",
            "5: faults[0].random: has no faults; set the number of crash, hang or slow faults",
        ),
        (
            "faults: [{random: {slow: 1001}}]",
            "5: faults[0].random.slow: must be at most 1000, not 1001",
        ),
        (
            "callers: {batch: {ttft: 1s, stream: false}}",
            "5: callers.batch.ttft: has no effect without streaming (stream: false); set e2e instead",
        ),
        (
            "callers: {batch: {e2e: 1s, tpot: 1s, stream: false}}",
            "5: callers.batch.tpot: has no effect without streaming (stream: false); set e2e instead",
        ),
    ],
)
def test_invalid_setting_is_reported(line: str, problem: str) -> None:
    assert traffic(POISSON, line)[0] == problem


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            "{classes: batch}",
            "4: traffic[0]: has no source of requests; set exactly one of trace, servegen, rate",
        ),
        (
            "{rate: 5, trace: x, classes: batch}",
            "4: traffic[0]: has trace and rate; set exactly one of trace, servegen, rate",
        ),
        (
            "{rate: 5, duration: 60s, classes: batsch, prompt: 1, output: 1}",
            '4: traffic[0].classes.batsch: class "batsch" does not exist; did you mean "batch"?',
        ),
        (
            "{rate: 5, duration: 60s, prompt: 1, output: 1}",
            "4: traffic[0].classes: missing; set the class of these requests, or several with their shares",
        ),
        (
            "{rate: 5, classes: batch, prompt: 1, output: 1}",
            "4: traffic[0].duration: missing; set it here, or for all traffic with the top-level duration",
        ),
        (
            "{rate: 5, duration: 60s, classes: batch, output: 1}",
            "4: traffic[0].prompt: missing; set the number of tokens, such as 200:800",
        ),
        (
            "{rate: 0, duration: 60s, classes: batch, prompt: 1, output: 1}",
            "4: traffic[0].rate: must be above 0, not 0",
        ),
        (
            "{rate: -10, duration: 60s, classes: batch, prompt: 1, output: 1}",
            "4: traffic[0].rate: must be above 0, not -10",
        ),
        (
            "{rate: 5, duration: 60s, classes: batch, prompt: 800:200, output: 1}",
            (
                "4: traffic[0].prompt.uniform: expected a number, or a range with the smaller number first, "
                'such as 200:800, found "800:200"'
            ),
        ),
        (
            "{rate: 5, duration: 60s, classes: batch, prompt: {median: 9, p95: 5, max: 3}, output: 1}",
            "4: traffic[0].prompt: median, p95 and max must be in increasing order",
        ),
        (
            "{rate: 5, duration: 60s, classes: batch, prompt: {median: 9}, output: 1}",
            "4: traffic[0].prompt: is incomplete; set a range such as 200:800, or median, p95 and max",
        ),
        (
            "{rate: 5, duration: 60s, speed_up: 2, classes: batch, prompt: 1, output: 1}",
            "4: traffic[0].speed_up: has no effect with rate, only with trace or servegen; remove it",
        ),
        (
            "{rate: 5, duration: 60s, classes: batch, prompt: 1, output: 1, day: {share: 40%, at: 21h, duration: 4h}}",
            (
                "4: traffic[0].day: must be shorter than the day and end before it ends; "
                "lower at or duration, or raise length"
            ),
        ),
        (
            "{rate: 5, duration: 60s, classes: {batch: many}, prompt: 1, output: 1}",
            '4: traffic[0].classes.batch: expected a share such as 0.7 or 70%, found "many"',
        ),
        (
            "{rate: 5, duration: 60s, classes: batch, tenants: {a: 1}, tenants_from: b.csv, prompt: 1, output: 1}",
            "4: traffic[0].tenants_from: cannot be combined with tenants; remove one of the two",
        ),
        (
            "{rate: 5, duration: 60s, classes: batch, tenants: a b, prompt: 1, output: 1}",
            (
                "4: traffic[0].tenants.a b: a tenant name must have 1 to 64 characters: letters, digits, and "
                ". _ -; a path joins several names with /"
            ),
        ),
        (
            "{trace: gone.csv, classes: batch}",
            '4: traffic[0].trace: file "gone.csv" does not exist; paths are relative to the scenario file',
        ),
    ],
)
def test_invalid_traffic_is_reported(entry: str, problem: str) -> None:
    assert traffic(entry)[0] == problem


@pytest.mark.parametrize(
    ("engines", "problem"),
    [
        ("[tinny]", '2: pools.main.engines[0].profile: profile "tinny" does not exist; did you mean "tiny"?'),
        ("[]", "2: pools.main.engines: has no engines; list at least one by its profile"),
        (
            "[{profile: tiny, kv_tokens: 2000}]",
            (
                "2: pools.main.engines[0].kv_tokens: is 2000 tokens, less than context_tokens 4096; raise "
                "it, or lower context_tokens to 2000"
            ),
        ),
        (
            "[{profile: tiny, chunk_tokens: 16}]",
            (
                "2: pools.main.engines[0].chunk_tokens: is 16, less than sequences_max 32, but every running "
                "sequence needs a token in each step; raise it, or lower sequences_max"
            ),
        ),
        (
            "[{profile: tiny, block_tokens: 24}]",
            (
                "2: pools.main.engines[0].block_tokens: must divide 512, the size of prefix blocks in "
                "traces; use 16 or 32, for example"
            ),
        ),
        ("[{profile: tiny, count: 5000}]", "2: pools.main.engines[0].count: must be at most 1000, not 5000"),
    ],
)
def test_impossible_engine_size_is_reported(engines: str, problem: str) -> None:
    text = small_with_traffic(POISSON).replace("[tiny, tiny]", engines)

    assert problems_of(text) == [problem]


@pytest.mark.parametrize(
    ("engines", "problem"),
    [
        ("[{profile: tiny, count: -3}]", "2: pools.main.engines[0].count: must be at least 1, not -3"),
        ("{}", "2: pools.main.engines: expected a list, found a mapping"),
    ],
)
def test_faults_on_unreadable_engines_are_not_reported(engines: str, problem: str) -> None:
    text = small_with_traffic(POISSON, "faults: [{crash: main/1, at: 1s, recover_after: 1s}]")

    assert problems_of(text.replace("[tiny, tiny]", engines)) == [problem]


@pytest.mark.parametrize("braces", ["[{profile: tiny, count: ${N}}]", "[${N}]"])
def test_unquoted_variable_in_flow_mapping_is_reported(braces: str) -> None:
    [problem] = problems_of(small_with_traffic(POISSON).replace("[tiny, tiny]", braces), environ={"N": "2"})

    assert problem.startswith("2: is not YAML: ")
    assert problem.endswith('; inside braces and brackets, quote the reference: "${N}"')


def test_quoted_variable_is_not_reported_for_other_yaml_errors() -> None:
    [problem] = problems_of(
        small_with_traffic(POISSON).replace("[tiny, tiny]", '[{count: "${N}" tiny}]'), environ={"N": "2"}
    )

    assert problem.startswith("2: is not YAML: while parsing a flow mapping")
    assert "quotes" not in problem


@pytest.mark.parametrize(
    ("lines", "warnings"),
    [
        (
            "classes: {interactive: {ttft: 3s}}\ncallers: {interactive: {ttft: 2s}}",
            [
                (
                    "5: classes.interactive.ttft: is longer than the callers' ttft of 2s, so responses that "
                    "are too late for the callers are still computed; lower it, or remove it"
                )
            ],
        ),
        ("classes: {interactive: {ttft: 2s}}\ncallers: {interactive: {ttft: 2s}}", []),
        ("classes: {interactive: {ttft: 3s}}\ncallers: {interactive: {e2e: 2s}}", []),
        ("classes: {interactive: {ttft: 3s}}", []),
        ("callers: {interactive: {ttft: 2s}}", []),
    ],
)
def test_target_above_callers_target_causes_a_warning(tmp_path: Path, lines: str, warnings: list[str]) -> None:
    entry = POISSON.replace("batch", "interactive")

    told = scenario_of(small_with_traffic(entry, lines), tmp_path).warnings

    assert [each.removeprefix(f"{tmp_path / 'small.yaml'}:") for each in told] == warnings


def test_fault_count_above_maximum_is_reported_once() -> None:
    assert len(traffic(POISSON, "faults: [{random: {crash: 2000}}]")) == 1


def test_all_problems_are_reported_together() -> None:
    assert problems_of("pools: {main: {engines: [tinny]}}\ntraffic: [{rate: 5}]\n") == [
        '1: pools.main.engines[0].profile: profile "tinny" does not exist; did you mean "tiny"?',
        "1: pools.main.in_flight_max: missing; set the number of concurrent requests per engine, such as 64",
        "2: traffic[0].duration: missing; set it here, or for all traffic with the top-level duration",
        "2: traffic[0].prompt: missing; set the number of tokens, such as 200:800",
        "2: traffic[0].output: missing; set the number of tokens, such as 200:800",
        "2: traffic[0].classes: missing; set the class of these requests, or several with their shares",
    ]


def test_empty_file_is_reported_with_required_settings() -> None:
    assert problems_of("") == [
        "1: pools: missing; define at least one pool of engines",
        "1: traffic: missing; list at least one source of requests",
    ]


def test_missing_data_variable_is_reported_with_trace_source() -> None:
    [problem] = traffic("{trace: azure2023_conv, classes: batch}")

    assert problem == (
        '4: traffic[0].trace: public trace "azure2023_conv" is in $HEADGATE_DATA/traces, but HEADGATE_DATA '
        "is not set; put azure2023_conv.csv into DIRECTORY/traces and export HEADGATE_DATA=DIRECTORY "
        "(source: github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv)"
    )


def test_missing_public_trace_is_reported_with_its_suffix() -> None:
    [mooncake] = traffic("{trace: mooncake_synthetic, classes: batch}")
    [servegen] = traffic("{servegen: m-mid, classes: batch}")

    assert "put mooncake_synthetic.jsonl into DIRECTORY/traces" in mooncake
    assert "put both servegen_m-mid_rates.csv and servegen_m-mid_lengths.jsonl into DIRECTORY/traces" in servegen


def test_missing_servegen_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "servegen_m_rates.csv").touch()

    [problem] = problems_of(
        small_with_traffic("{servegen: m, classes: batch}"), environ={"HEADGATE_DATA": str(tmp_path)}
    )

    assert "put both servegen_m_rates.csv and servegen_m_lengths.jsonl there" in problem


@pytest.mark.parametrize(
    ("entry", "files"),
    [
        ("{trace: azure2023_conv, classes: batch}", ["azure2023_conv.csv"]),
        ("{servegen: m, classes: batch}", ["servegen_m_rates.csv", "servegen_m_lengths.jsonl"]),
    ],
)
def test_data_variable_set_to_the_traces_directory_is_reported(tmp_path: Path, entry: str, files: list[str]) -> None:
    (tmp_path / "traces").mkdir()
    for each in files:
        (tmp_path / "traces" / each).touch()

    [problem] = problems_of(small_with_traffic(entry), environ={"HEADGATE_DATA": f"{tmp_path}/traces"})

    assert problem.endswith(
        f"is in $HEADGATE_DATA itself, not in {tmp_path}/traces/traces; export HEADGATE_DATA={tmp_path}"
    )


@pytest.mark.parametrize("environ", [{}, {"HEADGATE_DATA": "nowhere"}])
def test_bare_local_file_name_gets_a_hint(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "mine.csv").touch()
    (tmp_path / "plain").touch()
    text = small_with_traffic("{trace: mine, classes: batch}", "{trace: plain, classes: batch}")

    assert problems_of(text, tmp_path, environ) == [
        '4: traffic[0].trace: public trace "mine" does not exist; did you mean mine.csv?',
        '5: traffic[1].trace: public trace "plain" does not exist; did you mean ./plain?',
    ]


@pytest.mark.parametrize("name", ["pile", "./pile"])
def test_directory_given_as_trace_is_reported(tmp_path: Path, name: str) -> None:
    (tmp_path / "pile").mkdir()

    [problem] = problems_of(small_with_traffic(f"{{trace: {name}, classes: batch}}"), tmp_path)

    assert problem == f'4: traffic[0].trace: "{tmp_path}/pile" is a directory; specify a file in it'


def test_misspelled_trace_gets_a_suggestion(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "azure2023_conv.csv").touch()
    text = small_with_traffic("{trace: azure2032_conv, classes: batch}", "{servegen: m-small, classes: batch}")

    assert problems_of(text, environ={"HEADGATE_DATA": str(tmp_path)}) == [
        (
            f'4: traffic[0].trace: trace "azure2032_conv" does not exist in {tmp_path}/traces; '
            'did you mean "azure2023_conv"?'
        ),
        (
            f'5: traffic[1].servegen: trace "servegen_m-small" does not exist in {tmp_path}/traces; '
            "put both servegen_m-small_rates.csv and servegen_m-small_lengths.jsonl there "
            "(source: github.com/alibaba/ServeGen, repacked as described in docs/reference/scenarios.md)"
        ),
    ]


def test_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(tmp_path / "gone.yaml", {}, profiles=PROFILES, schedulers=SCHEDULERS)

    assert str(caught.value).endswith(
        "gone.yaml: does not exist; the scenarios/ directory in Headgate's source has examples; "
        "docs/reference/scenarios.md describes the format"
    )


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (0, "is a directory; specify a scenario file"),
        (2, "is a directory; specify a file in it: s00.yaml, s01.yaml"),
        (
            12,
            (
                "is a directory; specify a file in it: "
                f"{', '.join(f's{number:02}.yaml' for number in range(10))} and 2 more"
            ),
        ),
    ],
)
def test_directory_is_reported_with_the_scenarios_it_contains(tmp_path: Path, files: int, said: str) -> None:
    for number in range(files):
        (tmp_path / f"s{number:02}.yaml").touch()

    with pytest.raises(ConfigErrors) as caught:
        load(tmp_path, {}, profiles=PROFILES, schedulers=SCHEDULERS)

    assert str(caught.value) == f"{tmp_path}: {said}"


WORDS = ("main", "main/0", "tiny", "batch", "x", "", "10s", "4", "-1", "0.5", "70%", "200:800", "true", "${E}", "${")
NAMES = tuple(
    name
    for section in (
        ScenarioFile,
        EnginesSection,
        SimulatedPoolSection,
        SimulatedTenantSection,
        CallersSection,
        LengthsSection,
        RampSection,
        SpikeSection,
        DaySection,
        SimulatedTrafficSection,
        RandomFaultsSection,
        FaultSection,
    )
    for name in section.__struct_encode_fields__
)
words = st.sampled_from(WORDS) | st.none() | st.text(max_size=5)
trees = st.recursive(
    words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(NAMES + WORDS) | st.text(max_size=3), inner, max_size=5)
    ),
    max_leaves=30,
)


@given(st.dictionaries(st.sampled_from(ScenarioFile.__struct_encode_fields__), trees, max_size=12))
@settings(max_examples=2 * settings.default.max_examples)
def test_any_scenario_tree_results_in_settings_or_problems(tree: dict) -> None:
    problems = problems_of(json.dumps(tree), environ={"E": "value"})

    assert [problem for problem in problems if not problem[0].isdigit()] == []


def test_objective_of_an_unknown_class_is_reported() -> None:
    traffic = "{rate: 5, duration: 9s, classes: batch, prompt: 1, output: 1}"
    [problem] = problems_of(small_with_traffic(traffic, "objectives: {bach: 99%}"))

    assert problem.endswith('objectives.bach: class "bach" does not exist; did you mean "batch"?')


@pytest.mark.parametrize("money", ["budgets: {day: 1}", "cost_per_request_max: 1", "cost_per_unit_max: 1"])
def test_cost_limits_are_rejected_in_a_scenario(money: str) -> None:
    problems = problems_of(f"{SMALL}classes: {{batch: {{{money}}}}}\n")

    assert [each for each in problems if "a scenario does not simulate; remove it" in each] != []


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            "prices: {from: 2026-01-01, per_hour: 2}",
            "pools.main.prices[0].from: has no effect in a scenario, which has no calendar; remove it",
        ),
        (
            "scaling: {endpoints_max: 1}",
            (
                "pools.main.engines: is not between scaling.endpoints_min 1 and endpoints_max 1: 2 engines; list those "
                "that run at the start"
            ),
        ),
        ("scaling: {endpoints_max: 1001}", "pools.main.scaling.endpoints_max: is more than 1000; lower it"),
        (
            (
                "scaling: {endpoints_max: 2, calendar: [{name: a, endpoints_min: 1, starts_at: 2026-01-01T00:00:00Z, "
                "ends_at: 2026-01-02T00:00:00Z}]}"
            ),
            "pools.main.scaling.calendar: has no effect in a scenario, which has no calendar; remove it",
        ),
        ("engine: providr", 'pools.main.engine: engine "providr" does not exist; did you mean "provider"?'),
        ("engine: vllm", 'pools.main.engine: engine "vllm" does not exist; use simulated or provider'),
    ],
)
def test_pool_settings_without_effect_are_reported(settings: str, problem: str) -> None:
    text = small_with_traffic("{rate: 5, duration: 9s, classes: batch, prompt: 1, output: 1}")
    problems = problems_of(text.replace("in_flight_max: 8", f"in_flight_max: 8, {settings}"))

    assert [each.split(" ", 1)[1] for each in problems] == [problem]


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            "{rate: 5, duration: 60s, classes: batch, prompt: 100, api: embedding}",
            '4: traffic[0].api: API "embedding" cannot be simulated; did you mean "embeddings"?',
        ),
        (
            "{rate: 5, duration: 60s, classes: batch, prompt: 100, output: 10, api: embeddings}",
            "4: traffic[0].output: has no effect with embeddings; remove it",
        ),
        (
            "{trace: ./small.csv, classes: batch, api: chat}",
            "4: traffic[0].api: has no effect with trace, only with rate; remove it",
        ),
    ],
)
def test_api_that_cannot_be_simulated(entry: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "small.csv").write_text("at_s,prompt_tokens,output_tokens\n0,1,1\n")

    assert problems_of(small_with_traffic(entry), tmp_path) == [problem]


def test_batching_of_a_simulated_pool_is_checked_as_in_the_configuration() -> None:
    text = small_with_traffic("{rate: 5, duration: 60s, classes: batch, prompt: 100, api: embeddings}")
    batching = "{in_flight_max: 8, batching: {preferred_batch_sizes: [99]}"

    assert problems_of(text.replace("{in_flight_max: 8", batching)) == [
        "2: pools.main.batching.preferred_batch_sizes[0]: must be from 2 to 31, below batch_size_max, not 99"
    ]
