"""Is everything that is wrong with a scenario's file told, with its line, its place and the next step?"""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.config.problems import ConfigErrors
from headgate.config.scenarios.load import load
from headgate.config.scenarios.schema import (
    CallersSection,
    EnginesSection,
    FaultSection,
    LengthsSection,
    RandomFaultsSection,
    ScenarioFile,
    SimulatedPoolSection,
    SimulatedTenantSection,
    TrafficSection,
)
from headgate.model.engine_profile import PROFILES
from tests.config.scenario_builders import SCHEDULERS, SMALL, problems_of, scenario_of, small_with_traffic

POISSON = "{rate: 5, for: 60s, classes: batch, prompt: 100, output: 10}"


def traffic(entry: str, *lines: str) -> list[str]:
    return problems_of(small_with_traffic(entry, *lines))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("titel: x", '5: titel: unknown key; did you mean "title"?'),
        ("scheduler: headgates", '5: scheduler: scheduler "headgates" does not exist; did you mean "headgate"?'),
        ("scheduler: {cap: 3}", "5: scheduler.cap: means nothing with headgate, only with static-cap; remove it"),
        ("duration: 5", '5: duration: expected a duration with its unit, such as 250ms, 10s, 5m or 1h, found "5"'),
        (
            "classes: {batch: {}, a b: {band: 0}}",
            "5: classes.a b: a name is made of up to 64 letters, digits, and . _ -",
        ),
        (
            "classes: {batch: {variants: [{level: 1, model: small}]}}",
            '5: classes.batch.variants[0].model: model "small" does not exist; there is model',
        ),
        (
            "models: {a: mian}",
            '5: models.a.pools[0]: pool "mian" does not exist; did you mean "main"?',
        ),
        (
            "models: {a: {pools: main, fallbacks: b}}",
            '5: models.a.fallbacks[0]: model "b" does not exist; there is a',
        ),
        (
            "tenants: {a: {plan: gold}}",
            '5: tenants.a.plan: plan "gold" does not exist; there is free, standard, critical',
        ),
        (
            "tenants: {a b: {}}",
            (
                "5: tenants.a b: a tenant's name is made of up to 64 letters, digits, and . _ -, "
                "or of several such with / between them"
            ),
        ),
        (
            "ladder: {descend_below_percent: 100}",
            (
                "5: ladder.descend_below_percent: is not below climb_above_percent, so that it would climb and descend "
                "by turns; lower it"
            ),
        ),
        (
            "callers: {bach: {ttft: 1s}}",
            '5: callers.bach: class "bach" does not exist; did you mean "batch"?',
        ),
        (
            "faults: [{crash: main/7, at: 1s, back_after: 1s}]",
            '5: faults[0].crash[0]: engine "main/7" does not exist; did you mean "main/1"?',
        ),
        (
            "faults: [{crash: other, at: 1s, back_after: 1s}]",
            '5: faults[0].crash[0]: engine "other" does not exist; write POOL/NUMBER, or POOL for all of its engines',
        ),
        (
            "faults: [{at: 1s}]",
            "5: faults[0]: does not say what goes wrong; give exactly one of crash, hang, slow, random",
        ),
        (
            "faults: [{crash: main, hang: main, at: 1s}]",
            "5: faults[0]: says crash and hang; give exactly one of crash, hang, slow, random",
        ),
        (
            "faults: [{hang: main, at: 1s}]",
            "5: faults[0].for: missing; say how long, such as 20s",
        ),
        (
            "faults: [{hang: main, at: 1s, for: 1s, speed: 0.2}]",
            "5: faults[0].speed: means nothing with hang; remove it",
        ),
        (
            "faults: [{slow: main, at: 1s, for: 1s, speed: 1.5}]",
            "5: faults[0].speed: must be at most 1, not 1.5",
        ),
        (
            "faults: [{random: {crash: 1, for_max: 1s}}]",
            "5: faults[0].random.for_max: is less than for_min; make it at least as long",
        ),
        (
            "faults: [{random: {}}]",
            "5: faults[0].random: draws no fault; say how many of crash, hang or slow",
        ),
        (
            "faults: [{random: {slow: 1001}}]",
            "5: faults[0].random.slow: must be at most 1000, not 1001",
        ),
        (
            "callers: {batch: {ttft: 1s, stream: false}}",
            "5: callers.batch.ttft: means nothing where answers come whole (stream: false); set e2e instead",
        ),
        (
            "callers: {batch: {e2e: 1s, tpot: 1s, stream: false}}",
            "5: callers.batch.tpot: means nothing where answers come whole (stream: false); set e2e instead",
        ),
    ],
)
def test_a_setting_that_is_wrong_is_named(line: str, problem: str) -> None:
    assert traffic(POISSON, line)[0] == problem


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (
            "{classes: batch}",
            "4: traffic[0]: does not say where its requests come from; give exactly one of trace, servegen, rate",
        ),
        (
            "{rate: 5, trace: x, classes: batch}",
            "4: traffic[0]: says trace and rate; give exactly one of trace, servegen, rate",
        ),
        (
            "{rate: 5, for: 60s, classes: batsch, prompt: 1, output: 1}",
            '4: traffic[0].classes.batsch: class "batsch" does not exist; did you mean "batch"?',
        ),
        (
            "{rate: 5, for: 60s, prompt: 1, output: 1}",
            "4: traffic[0].classes: missing; name the class of these requests, or several with their shares",
        ),
        (
            "{rate: 5, classes: batch, prompt: 1, output: 1}",
            "4: traffic[0].for: missing; say how long requests arrive, here or for all traffic in duration",
        ),
        (
            "{rate: 5, for: 60s, classes: batch, output: 1}",
            "4: traffic[0].prompt: missing; say how many tokens, such as 200:800",
        ),
        (
            "{rate: 0, for: 60s, classes: batch, prompt: 1, output: 1}",
            "4: traffic[0].rate: must be more than 0, not 0",
        ),
        (
            "{rate: -10, for: 60s, classes: batch, prompt: 1, output: 1}",
            "4: traffic[0].rate: must be more than 0, not -10",
        ),
        (
            "{rate: 5, for: 60s, classes: batch, prompt: 800:200, output: 1}",
            (
                "4: traffic[0].prompt.between: expected a number, or two with a colon between them and the lesser "
                'first, such as 200:800, found "800:200"'
            ),
        ),
        (
            "{rate: 5, for: 60s, classes: batch, prompt: {median: 9, p95: 5, most: 3}, output: 1}",
            "4: traffic[0].prompt: median, p95 and most must grow in this order",
        ),
        (
            "{rate: 5, for: 60s, classes: batch, prompt: {median: 9}, output: 1}",
            "4: traffic[0].prompt: is not complete; write two bounds, such as 200:800, or median, p95 and most",
        ),
        (
            "{rate: 5, for: 60s, speed_up: 2, classes: batch, prompt: 1, output: 1}",
            "4: traffic[0].speed_up: means nothing with rate, only with trace or servegen; remove it",
        ),
        (
            "{rate: 5, for: 60s, classes: {batch: many}, prompt: 1, output: 1}",
            '4: traffic[0].classes.batch: expected a share such as 0.7 or 70%, found "many"',
        ),
        (
            "{rate: 5, for: 60s, classes: batch, tenants: {a: 1}, tenants_like: b.csv, prompt: 1, output: 1}",
            "4: traffic[0].tenants_like: stands beside tenants; keep one of them",
        ),
        (
            "{rate: 5, for: 60s, classes: batch, tenants: a b, prompt: 1, output: 1}",
            (
                "4: traffic[0].tenants.a b: a tenant's name is made of up to 64 letters, digits, and . _ -, "
                "or of several such with / between them"
            ),
        ),
        (
            "{trace: gone.csv, classes: batch}",
            '4: traffic[0].trace: there is no file "gone.csv"; a path is relative to the scenario\'s own file',
        ),
    ],
)
def test_traffic_that_is_wrong_is_named(entry: str, problem: str) -> None:
    assert traffic(entry)[0] == problem


@pytest.mark.parametrize(
    ("engines", "problem"),
    [
        ("[tinny]", '2: pools.main.engines[0].profile: profile "tinny" does not exist; did you mean "tiny"?'),
        ("[]", "2: pools.main.engines: names no engine; list at least one by its profile"),
        (
            "[{profile: tiny, kv_tokens: 2000}]",
            (
                "2: pools.main.engines[0].kv_tokens: holds 2000 tokens, less than the longest context of 4096; "
                "set context_tokens to 2000 or less beside it, or raise it"
            ),
        ),
        (
            "[{profile: tiny, chunk_tokens: 16}]",
            (
                "2: pools.main.engines[0].chunk_tokens: is 16, less than sequences_max 32, and every running sequence "
                "needs its token in each step; raise it, or lower sequences_max"
            ),
        ),
        (
            "[{profile: tiny, block_tokens: 24}]",
            (
                "2: pools.main.engines[0].block_tokens: must divide 512, which prefixes of traces are counted in, "
                "such as 16 or 32"
            ),
        ),
        ("[{profile: tiny, count: 5000}]", "2: pools.main.engines[0].count: must be at most 1000, not 5000"),
    ],
)
def test_engines_that_could_not_start_are_named(engines: str, problem: str) -> None:
    text = small_with_traffic(POISSON).replace("[tiny, tiny]", engines)

    assert problems_of(text) == [problem]


@pytest.mark.parametrize(
    ("engines", "problem"),
    [
        ("[{profile: tiny, count: -3}]", "2: pools.main.engines[0].count: must be at least 1, not -3"),
        ("{}", "2: pools.main.engines: expected a list, found a mapping"),
    ],
)
def test_engines_that_could_not_be_counted_are_not_missed_by_faults(engines: str, problem: str) -> None:
    text = small_with_traffic(POISSON, "faults: [{crash: main/1, at: 1s, back_after: 1s}]")

    assert problems_of(text.replace("[tiny, tiny]", engines)) == [problem]


@pytest.mark.parametrize("braces", ["[{profile: tiny, count: ${N}}]", "[${N}]"])
def test_a_variable_in_braces_is_to_be_quoted(braces: str) -> None:
    [problem] = problems_of(small_with_traffic(POISSON).replace("[tiny, tiny]", braces), environ={"N": "2"})

    assert problem.startswith("2: is not YAML: ")
    assert problem.endswith('; inside braces and brackets a variable stands in quotes: "${N}"')


def test_a_quoted_variable_is_not_blamed_for_another_mistake() -> None:
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
                    "5: classes.interactive.ttft: is longer than the 2s that its callers give the first token, so what "
                    "comes too late for them is computed all the same; lower it, or leave it out"
                )
            ],
        ),
        ("classes: {interactive: {ttft: 2s}}\ncallers: {interactive: {ttft: 2s}}", []),
        ("classes: {interactive: {ttft: 3s}}\ncallers: {interactive: {e2e: 2s}}", []),
        ("classes: {interactive: {ttft: 3s}}", []),
        ("callers: {interactive: {ttft: 2s}}", []),
    ],
)
def test_a_promise_later_than_what_callers_want_is_a_warning(tmp_path: Path, lines: str, warnings: list[str]) -> None:
    entry = POISSON.replace("batch", "interactive")

    told = scenario_of(small_with_traffic(entry, lines), tmp_path).warnings

    assert [each.removeprefix(f"{tmp_path / 'small.yaml'}:") for each in told] == warnings


def test_too_many_faults_are_not_called_none_besides() -> None:
    assert len(traffic(POISSON, "faults: [{random: {crash: 2000}}]")) == 1


def test_every_problem_is_told_at_once() -> None:
    assert problems_of("pools: {main: {engines: [tinny]}}\ntraffic: [{rate: 5}]\n") == [
        '1: pools.main.engines[0].profile: profile "tinny" does not exist; did you mean "tiny"?',
        "1: pools.main.in_flight_max: missing; say how many requests an engine may hold at once, such as 64",
        "2: traffic[0].for: missing; say how long requests arrive, here or for all traffic in duration",
        "2: traffic[0].prompt: missing; say how many tokens, such as 200:800",
        "2: traffic[0].output: missing; say how many tokens, such as 200:800",
        "2: traffic[0].classes: missing; name the class of these requests, or several with their shares",
    ]


def test_an_empty_file_says_what_is_needed() -> None:
    assert problems_of("") == [
        "1: pools: missing; name at least one pool of engines",
        "1: traffic: missing; list at least one source of requests",
    ]


def test_a_public_trace_without_the_data_says_what_to_set_and_where_it_comes_from() -> None:
    [problem] = traffic("{trace: azure2023_conv, classes: batch}")

    assert problem == (
        '4: traffic[0].trace: public trace "azure2023_conv" is looked for in the folder traces below $HEADGATE_DATA, '
        "which is not set; export HEADGATE_DATA=FOLDER with azure2023_conv.csv in FOLDER/traces "
        "(it comes from github.com/Azure/AzurePublicDataset, AzureLLMInferenceTrace_conv.csv)"
    )


def test_a_public_trace_is_named_with_its_own_ending() -> None:
    [mooncake] = traffic("{trace: mooncake_synthetic, classes: batch}")
    [servegen] = traffic("{servegen: m-mid, classes: batch}")

    assert "FOLDER with mooncake_synthetic.jsonl in FOLDER/traces (it" in mooncake
    assert "with both servegen_m-mid_rates.csv and servegen_m-mid_lengths.jsonl in FOLDER/traces (it" in servegen


def test_one_of_servegens_two_files_is_not_enough(tmp_path: Path) -> None:
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
def test_the_folder_of_traces_itself_is_one_too_deep(tmp_path: Path, entry: str, files: list[str]) -> None:
    (tmp_path / "traces").mkdir()
    for each in files:
        (tmp_path / "traces" / each).touch()

    [problem] = problems_of(small_with_traffic(entry), environ={"HEADGATE_DATA": f"{tmp_path}/traces"})

    assert problem.endswith(
        f"is in $HEADGATE_DATA itself, not in {tmp_path}/traces/traces; export HEADGATE_DATA={tmp_path}"
    )


@pytest.mark.parametrize("environ", [{}, {"HEADGATE_DATA": "nowhere"}])
def test_a_bare_name_beside_a_file_of_that_name_is_a_slip(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "mine.csv").touch()
    (tmp_path / "plain").touch()
    text = small_with_traffic("{trace: mine, classes: batch}", "{trace: plain, classes: batch}")

    assert problems_of(text, tmp_path, environ) == [
        '4: traffic[0].trace: there is no public trace "mine"; did you mean mine.csv?',
        '5: traffic[1].trace: there is no public trace "plain"; did you mean ./plain?',
    ]


@pytest.mark.parametrize("name", ["pile", "./pile"])
def test_a_trace_that_is_a_folder_is_called_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "pile").mkdir()

    [problem] = problems_of(small_with_traffic(f"{{trace: {name}, classes: batch}}"), tmp_path)

    assert problem == f'4: traffic[0].trace: "{tmp_path}/pile" is a folder; name a file in it'


def test_a_misspelled_trace_says_which_there_is(tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "azure2023_conv.csv").touch()
    text = small_with_traffic("{trace: azure2032_conv, classes: batch}", "{servegen: m-small, classes: batch}")

    assert problems_of(text, environ={"HEADGATE_DATA": str(tmp_path)}) == [
        f'4: traffic[0].trace: there is no trace "azure2032_conv" in {tmp_path}/traces; did you mean "azure2023_conv"?',
        (
            f'5: traffic[1].servegen: there is no trace "servegen_m-small" in {tmp_path}/traces; '
            "put both servegen_m-small_rates.csv and servegen_m-small_lengths.jsonl there "
            "(it comes from github.com/alibaba/ServeGen, repacked as docs/reference/scenarios.md says)"
        ),
    ]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors) as caught:
        load(tmp_path / "gone.yaml", {}, profiles=PROFILES, schedulers=SCHEDULERS)

    assert str(caught.value).endswith(
        "gone.yaml: does not exist; scenarios to begin with are in the folder scenarios/ of Headgate's source "
        "checkout; docs/reference/scenarios.md there says what stands in one"
    )


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (0, "is a folder; name a scenario's file"),
        (2, "is a folder; name a file in it: s00.yaml, s01.yaml"),
        (12, f"is a folder; name a file in it: {', '.join(f's{number:02}.yaml' for number in range(10))} and 2 more"),
    ],
)
def test_a_folder_says_which_scenarios_are_in_it(tmp_path: Path, files: int, said: str) -> None:
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
        TrafficSection,
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
def test_any_tree_is_judged(tree: dict) -> None:
    problems = problems_of(json.dumps(tree), environ={"E": "value"})

    assert [problem for problem in problems if not problem[0].isdigit()] == []


@pytest.mark.parametrize("money", ["budgets: {day: 1}", "max_cost_per_request: 1", "max_cost_per_unit: 1"])
def test_money_means_nothing_where_nothing_costs_anything(money: str) -> None:
    problems = problems_of(f"{SMALL}classes: {{batch: {{{money}}}}}\n")

    assert [each for each in problems if "nothing costs anything here; remove it" in each] != []
