"""Keys and secrets created by `headgate keys`."""

import io
import re
from pathlib import Path

import pytest

from headgate.config.load import load
from headgate.engines.dialects import DIALECTS
from headgate.model.engine_profile import PROFILES
from headgate.wire.keys import digest, format_digest
from tests.cli.conftest import Headgate, Said
from tests.config.builders import SMALL, small_with

SECRET = "a-secret-of-some-length"
NO_SECRET = """\
headgate: no secret is set. The gateway and this command need the same one to hash keys:
  export HEADGATE_KEY_SECRET=$(headgate keys secret)
Keep it: existing keys do not work with a different secret.
"""


@pytest.fixture
def secret(headgate: Headgate, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADGATE_KEY_SECRET", SECRET)
    return SECRET


def known(key: str, secret: str = SECRET) -> str:
    return format_digest(digest(secret.encode(), key))


def test_secret_is_printed_alone_and_is_unique(headgate: Headgate) -> None:
    first, second = headgate("keys", "secret"), headgate("keys", "secret")

    assert re.fullmatch(r"[A-Za-z0-9_-]{43}\n", first.out)
    assert first.err == ""
    assert first.out != second.out


def test_new_key_is_printed_on_stdout_and_its_hash_on_stderr(headgate: Headgate, secret: str) -> None:
    said = headgate("keys", "new", "--tenant", "demo")

    assert said.code == 0
    assert re.fullmatch(r"hg-[A-Za-z0-9_-]{43}\n", said.out)
    assert (
        said.err
        == f"""\
add this to headgate.yaml (or use --write), then use the key:
key_secret: "${{HEADGATE_KEY_SECRET}}"
tenants:
  demo:
    keys:
      - "{known(said.out.strip())}"
"""
    )


def test_missing_secret_is_reported_with_next_step(headgate: Headgate) -> None:
    assert headgate("keys", "new", "--tenant", "demo") == Said(1, "", NO_SECRET)


def test_unset_secret_variable_is_named(headgate: Headgate, file: Path) -> None:
    file.write_text("key_secret: ${HEADGATE_KEY_SECRET}\n")

    assert headgate("keys", "new", "--tenant", "demo") == Said(
        1,
        "",
        "headgate.yaml:1: key_secret: the environment variable HEADGATE_KEY_SECRET is not set; "
        "export it before starting Headgate\n" + NO_SECRET,
    )


def test_secret_in_the_file_takes_precedence(headgate: Headgate, file: Path, secret: str) -> None:
    file.write_text("key_secret: that-of-the-file\n")

    said = headgate("keys", "new", "--tenant", "demo")

    assert known(said.out.strip(), "that-of-the-file") in said.err
    assert "key_secret" not in said.err


@pytest.mark.parametrize("before", [SMALL, SMALL.replace("demo: {}", "demo:"), SMALL + f"key_secret: {SECRET}\n"])
def test_gateway_accepts_a_key_written_to_the_file(headgate: Headgate, file: Path, secret: str, before: str) -> None:
    file.write_text("# kept\n" + before)
    file.chmod(0o640)

    first = headgate("keys", "new", "--tenant", "demo", "--write")
    second = headgate("keys", "new", "--tenant", "neu", "--write", "--config", str(file))

    settings = load(file, {"HEADGATE_KEY_SECRET": SECRET}, engines=DIALECTS, profiles=PROFILES)
    named = 'wrote the hash of a new key for tenant "{}" to headgate.yaml; '
    restart = "key_secret was added too, so restart the gateway with HEADGATE_KEY_SECRET in its environment\n"
    reload = "send SIGHUP to a running gateway to load it\n"
    assert first.err == named.format("demo") + (reload if "key_secret" in before else restart)
    assert second.err.endswith(reload), "the file names the secret by now"
    assert settings.key_secret == SECRET.encode()
    assert settings.keys == {
        digest(settings.key_secret, first.out.strip()): "demo",
        digest(settings.key_secret, second.out.strip()): "neu",
    }
    assert file.read_text().startswith("# kept\n")
    assert file.stat().st_mode & 0o777 == 0o640
    assert [each.name for each in file.parent.iterdir()] == ["headgate.yaml"]


@pytest.mark.parametrize("before", [SMALL, SMALL + f"key_secret: {SECRET}\n"])
def test_gateway_accepts_an_operator_key_written_to_the_file(
    headgate: Headgate, file: Path, secret: str, before: str
) -> None:
    file.write_text("# kept\n" + before)

    first = headgate("keys", "operator", "--write")
    second = headgate("keys", "operator", "--name", "eve", "--permissions", "read", "--write", "--config", str(file))

    settings = load(file, {"HEADGATE_KEY_SECRET": SECRET}, engines=DIALECTS, profiles=PROFILES)
    assert [(each.name, each.digest, each.permissions) for each in settings.admin_keys] == [
        ("operator", digest(SECRET.encode(), first.out.strip()), ("read", "operate")),
        ("eve", digest(SECRET.encode(), second.out.strip()), ("read",)),
    ]
    assert not any("admin_keys" in warning for warning in settings.warnings)
    assert "HEADGATE_ADMIN_KEY" in first.err


def test_duplicate_operator_key_name_is_rejected_and_the_file_is_unchanged(
    headgate: Headgate, file: Path, secret: str
) -> None:
    file.write_text(SMALL)
    headgate("keys", "operator", "--write")
    before = file.read_text()

    said = headgate("keys", "operator", "--write")

    assert (said.code, said.out) == (1, "")
    assert 'already has an operator "operator"; choose another --name' in said.err
    assert file.read_text() == before


def test_unwritten_operator_key_is_shown_with_its_configuration_lines(headgate: Headgate, secret: str) -> None:
    said = headgate("keys", "operator")

    lines = ["admin_keys:", "  operator:", f'    key: "{known(said.out.strip())}"', "    permissions: [read, operate]"]
    assert said.err.endswith("\n".join(lines) + "\n")


def test_operator_key_may_have_a_role_instead_of_permissions(headgate: Headgate, file: Path, secret: str) -> None:
    file.write_text(SMALL)

    shown = headgate("keys", "operator", "--name", "ann", "--role", "accountant")
    written = headgate("keys", "operator", "--name", "ann", "--role", "accountant", "--write")

    [key] = load(file, {"HEADGATE_KEY_SECRET": SECRET}, engines=DIALECTS, profiles=PROFILES).admin_keys
    assert shown.err.endswith("    role: accountant\n")
    assert (key.name, key.role, key.permissions) == ("ann", "accountant", ("budgets", "cost"))
    assert key.digest == digest(SECRET.encode(), written.out.strip())
    assert headgate("keys", "operator", "--role", "admin", "--permissions", "read").code == 2


def test_symbolic_link_is_preserved(headgate: Headgate, file: Path, tmp_path: Path, secret: str) -> None:
    (tmp_path / "real.yaml").write_text(SMALL)
    file.symlink_to("real.yaml")

    assert headgate("keys", "new", "--tenant", "demo", "--write").code == 0

    assert file.is_symlink()
    assert "hmac-sha256:" in (tmp_path / "real.yaml").read_text()


def test_file_with_unsupported_layout_is_left_unchanged_and_no_key_is_printed(
    headgate: Headgate, file: Path, secret: str
) -> None:
    text = small_with().replace("demo: {}", "demo: ~")
    file.write_text(text)

    assert headgate("keys", "new", "--tenant", "demo", "--write") == Said(
        1,
        "",
        "headgate: the layout of headgate.yaml cannot be edited automatically; "
        "run without --write and edit it by hand\n",
    )
    assert file.read_text() == text


def test_write_requires_an_existing_file(headgate: Headgate, secret: str) -> None:
    said = headgate("keys", "new", "--tenant", "demo", "--write")

    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("headgate.yaml: does not exist; ")


def test_named_file_must_exist(headgate: Headgate, secret: str) -> None:
    said = headgate("keys", "new", "--tenant", "demo", "--config", "other.yaml")

    assert (said.code, said.out) == (1, "")
    assert said.err.startswith("other.yaml: does not exist; ")


def test_invalid_tenant_name_is_rejected(headgate: Headgate, secret: str) -> None:
    assert headgate("keys", "new", "--tenant", "a b") == Said(
        1,
        "",
        'headgate: "a b" is not a valid tenant name; use up to 64 letters, digits, and . _ -, '
        "or several such names separated by /\n",
    )


def test_existing_key_is_hashed_from_stdin(headgate: Headgate, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hg-mine\n"))

    assert headgate("keys", "hash") == Said(0, known("hg-mine") + "\n", "")


def test_empty_key_is_not_hashed(headgate: Headgate, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))

    assert headgate("keys", "hash") == Said(1, "", "headgate: no key on stdin; write one key to stdin\n")
