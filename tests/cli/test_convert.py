"""Output and exit codes of `headgate convert`."""

import json
from pathlib import Path

import pytest

from headgate.cli import convert
from headgate.config.convert.conversion import FORMATS
from headgate.config.convert.source import SOURCE_BYTES_MAX
from tests.cli.conftest import Headgate

LITELLM = """\
model_list:
  - model_name: qwen3
    litellm_params: {model: hosted_vllm/Qwen/Qwen3-8B, api_base: "http://gpu-1:8000/v1", api_key: sk-secret}
general_settings: {database_url: "postgresql://u:pw@db/x"}
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    file = tmp_path / "config.yaml"
    file.write_text(LITELLM)
    return file


def test_result_is_printed_and_notes_are_on_stderr(headgate: Headgate, source: Path) -> None:
    said = headgate("convert", "config.yaml")

    assert said.code == 0
    assert said.out.startswith("# Headgate configuration, converted by `headgate convert` from config.yaml (litellm).")
    assert "api_key: ${QWEN3_API_KEY}" in said.out
    assert said.err.splitlines() == [
        (
            "config.yaml:3: model_list[0].litellm_params.api_key: changed: secrets are not copied; set the environment "
            "variable QWEN3_API_KEY"
        ),
        (
            "config.yaml:4: general_settings.database_url: not carried over: export teams and keys, and convert them "
            "with --accounts; Headgate's own database is optional"
        ),
        "set the environment variable QWEN3_API_KEY: API key of the engines for qwen3",
    ]
    assert "sk-secret" not in said.out + said.err


def test_check_accepts_the_result(
    headgate: Headgate, source: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWEN3_API_KEY", "sk-secret")
    said = headgate("convert", "config.yaml", "--out", "headgate.yaml")

    assert (said.code, said.out) == (0, "")
    assert said.err.splitlines()[-1] == (
        "wrote headgate.yaml; `headgate check --config headgate.yaml` shows what it configures"
    )
    checked = headgate("check")
    assert checked.code == 0
    assert "warning" not in checked.out


def test_existing_output_is_overwritten_only_with_force(headgate: Headgate, source: Path, file: Path) -> None:
    file.write_text("mine")
    said = headgate("convert", "config.yaml", "--out", "headgate.yaml")

    assert said.code == 2
    assert said.err == (
        "headgate: headgate.yaml exists; choose another file with --out, or overwrite it with --force\n"
    )
    assert file.read_text() == "mine"
    assert headgate("convert", "config.yaml", "--out", "headgate.yaml", "--force").code == 0
    assert file.read_text() != "mine"


def test_json_output_has_the_result_and_the_notes(headgate: Headgate, source: Path) -> None:
    data = json.loads(headgate("convert", "config.yaml", "--json").out)

    assert data["format"] == "litellm"
    assert data["config"] == headgate("convert", "config.yaml").out
    assert data["notes"][1]["setting"] == "general_settings.database_url"
    assert data["notes"][1]["changed"] is False
    assert data["variables"] == {"QWEN3_API_KEY": "API key of the engines for qwen3"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent.yaml",), "absent.yaml: cannot be read: No such file or directory"),
        ((".",), ".: cannot be read: Is a directory"),
        (("binary",), "binary: is not UTF-8 text"),
        (("huge",), "huge: is larger than 8 MiB; convert a part of it"),
        (("config.yaml", "--out", "no/such/file"), "cannot write no/such/file: No such file or directory"),
        (("config.yaml", "--engine", "abacus"), "--engine: abacus does not exist; the engines are llamacpp, "),
        (("config.yaml", "--accounts", "absent"), "absent: cannot be read: No such file or directory"),
    ],
)
def test_input_that_cannot_be_used_is_one_line(
    headgate: Headgate, source: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with (tmp_path / "huge").open("wb") as huge:
        huge.truncate(SOURCE_BYTES_MAX + 1)
    said = headgate("convert", *arguments)

    assert said.code == 2
    assert said.err.startswith(f"headgate: {message}")
    assert len(said.err.splitlines()) == 1


def test_every_format_can_be_named(headgate: Headgate) -> None:
    assert set(convert._FORMATS) == set(FORMATS)
