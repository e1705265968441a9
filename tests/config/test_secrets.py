"""Secrets never appear in output."""

from pathlib import Path

import pytest

from headgate.config.problems import ConfigErrors
from tests.config.builders import SMALL, settings_of

CANARY = "canary-5f1d"

RIGHT = SMALL.replace("engine: llamacpp", "engine: llamacpp, api_key: '${S}'") + "key_secret: ${S}\n"


def test_repr_of_settings_contains_no_secrets() -> None:
    settings = settings_of(RIGHT, {"S": CANARY})

    assert settings.key_secret == CANARY.encode()
    assert settings.pools[0].api_key == CANARY
    assert CANARY not in repr(settings)
    assert CANARY not in "\n".join(settings.warnings)


WRONG = [
    SMALL.replace("demo: {}", f"demo: {{keys: [{CANARY}]}}"),
    SMALL.replace("demo: {}", "demo: {keys: ['${S}']}"),
    SMALL.replace("demo: {}", f"demo: {{keys: [[{CANARY}]]}}"),
    SMALL.replace("http://127.0.0.1:8081", "http://u:${S}@gpu"),
    SMALL.replace("http://127.0.0.1:8081", f"http://u:{CANARY}@gpu/v1"),
    SMALL.replace("http://127.0.0.1:8081", "${S}"),
    SMALL.replace("in_flight_max: 4", "in_flight_max: '${S}'"),
    SMALL + "drain_grace: ${S}\n",
    SMALL + f"key_secret: [[{CANARY}]]\n",
    SMALL + f"key_secret: [{CANARY}, {CANARY}]\n",
    SMALL + "key_secret: [" + ", ".join(f"{CANARY}-{number}" for number in range(5)) + "]\n",
    SMALL + f"key_secret: {{a: {CANARY}}}\n",
    SMALL + "key_secret: ${NOT_SET}\n",
]


@pytest.mark.parametrize("wrong", WRONG)
def test_messages_do_not_quote_secrets(wrong: str) -> None:
    with pytest.raises(ConfigErrors) as raised:
        settings_of(wrong, {"S": CANARY})

    assert CANARY not in str(raised.value)


@pytest.mark.parametrize("wrong", [each for each in WRONG if "${S}" in each])
def test_messages_do_not_quote_secrets_from_files(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "secret").write_text(CANARY)

    with pytest.raises(ConfigErrors) as raised:
        settings_of(wrong.replace("${S}", f"${{file:{tmp_path}/secret}}"))

    assert CANARY not in str(raised.value)
