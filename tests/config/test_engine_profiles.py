"""Profile files: what they contain, where they are accepted, and what is reported about invalid ones."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from headgate.compose.simulation import SCHEDULERS
from headgate.config.engine_profiles import ProfileFile, is_profile_file, named_profile, profile_text, read_profile
from headgate.config.load import load
from headgate.config.problems import ConfigErrors
from headgate.config.scenarios.load import load as load_scenario
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES, TINY, EngineProfile
from tests.docs.test_configuration_reference import default_of, fields_of, rows_under

MINE = replace(TINY, name="mine", block_tokens=32, kv_blocks=512, async_scheduling=True)
CONFIG = """\
pools:
  small:
    engine: vllm
    in_flight_max: 4
    endpoints: http://127.0.0.1:8081
    speed: {profile: PATH}
models:
  m: small
"""
SCENARIO = """\
pools:
  small:
    engines: [{profile: PATH, count: 2}]
    in_flight_max: 4
traffic:
  - {rate: 1, duration: 10s, prompt: 8, output: 8, classes: interactive}
"""


@pytest.mark.parametrize("profile", [*PROFILES.values(), MINE], ids=lambda each: each.name)
def test_written_profile_is_read_back(profile: EngineProfile, tmp_path: Path) -> None:
    file = tmp_path / "profile.yaml"
    file.write_text(profile_text(profile, ["Measured: yes # and no", ""]))

    assert read_profile(file) == profile


@pytest.mark.parametrize(
    ("name", "is_file"), [("tiny", False), ("mine.yaml", True), ("mine.yml", True), ("./mine", True), ("a/b", True)]
)
def test_path_is_distinguished_from_a_name(name: str, is_file: bool) -> None:
    assert is_profile_file(name) is is_file


def test_profile_of_a_pool_can_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(profile_text(MINE))
    config = tmp_path / "headgate.yaml"
    config.write_text(CONFIG.replace("PATH", "mine.yaml"))

    settings = load(config, {}, engines=DIALECTS.keys(), profiles=PROFILES)

    [pool] = settings.policy.pools
    assert (pool.speed.step_ps, pool.speed.attention_ps) == (MINE.step_ps, MINE.attention_ps)
    # A changed profile reloads the configuration.
    assert file in settings.files


def test_profile_of_a_scenario_can_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/mine.yaml").write_text(profile_text(MINE))
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO.replace("PATH", "profiles/mine.yaml"))

    settings = load_scenario(scenario, {}, profiles=PROFILES, schedulers=SCHEDULERS)

    assert [each.profile for each in settings.engines] == [MINE, MINE]
    assert settings.policy.pools[0].speed.step_ps == MINE.step_ps


TEXT = profile_text(MINE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            TEXT.replace("step: 1ms", "step: 1"),
            ':2: step: expected a short duration with its unit, such as 13.2ms, 36us or 0.28ns, found "1"',
        ),
        (TEXT.replace("step: 1ms", "step: 0ms"), ":2: step: must be at least 1us, not 0ms"),
        (TEXT.replace("kv_tokens", "kv_token_count"), ':9: kv_token_count: unknown key; did you mean "kv_tokens"?'),
        (
            TEXT.replace("attention: 0.02ns\n", ""),
            ":1: attention: missing; set a short duration, such as 36.1us; `headgate calibrate` measures it",
        ),
        (
            TEXT.replace("chunk_tokens: 512", "chunk_tokens: 16"),
            (
                ":7: chunk_tokens: is 16, less than sequences_max 32, but every running sequence needs a token in each "
                "step; raise it, or lower sequences_max"
            ),
        ),
        (
            TEXT.replace("kv_tokens: 16384", "kv_tokens: 4095"),
            (
                ":9: kv_tokens: is 4064 tokens in blocks of 32, less than context_tokens 4096; raise it, or lower "
                "context_tokens"
            ),
        ),
        ("x" * 70_000, ": is larger than 64 KiB; use a profile file"),
        ("[", ":2: is not YAML: while parsing a flow node, did not find expected node content"),
    ],
)
def test_invalid_profile_file_is_reported_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(text)

    with pytest.raises(ConfigErrors) as rejected:
        read_profile(file)

    assert str(rejected.value).partition("\n")[0] == f"{file}{said}"


def test_problem_in_a_profile_file_is_reported_at_the_setting(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TEXT.replace("step: 1ms", "step: soon"))
    config = tmp_path / "headgate.yaml"
    config.write_text(CONFIG.replace("PATH", "mine.yaml"))

    with pytest.raises(ConfigErrors) as rejected:
        load(config, {}, engines=DIALECTS.keys(), profiles=PROFILES)

    assert f"{config}:6: pools.small.speed.profile: {tmp_path}/mine.yaml:2: step: expected" in str(rejected.value)
    assert tmp_path / "mine.yaml" in rejected.value.files


def test_missing_file_and_unknown_name_give_the_next_step(tmp_path: Path) -> None:
    for name, said in (
        (f"{tmp_path}/none.yaml", "does not exist; create it with `headgate calibrate`, or correct the path"),
        ("tinny", 'profile "tinny" does not exist; did you mean "tiny"?'),
    ):
        with pytest.raises(ConfigErrors) as rejected:
            named_profile(name, PROFILES)
        assert said in str(rejected.value)


def test_named_pipe_is_not_a_profile(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe.yaml")
    with pytest.raises(ConfigErrors, match="is not a regular file; use the path of a profile file"):
        read_profile(pipe)


def test_directory_is_not_a_profile(tmp_path: Path) -> None:
    with pytest.raises(ConfigErrors, match="cannot be read: Is a directory"):
        read_profile(tmp_path)


def test_reference_lists_exactly_the_settings_of_a_profile_file() -> None:
    described = {setting: cells[0] for setting, cells in rows_under("Profile files").items()}

    assert described == {name: default_of(field, ProfileFile) for name, field in fields_of(ProfileFile).items()}
