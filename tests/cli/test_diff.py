"""Output of `headgate diff`."""

import json
from pathlib import Path

from tests.cli.conftest import Headgate
from tests.config.builders import SMALL

CHANGED = SMALL.replace("demo: {}", "demo: {limits: {concurrency: 3}}") + "listen: 127.0.0.1:8088\n"


def test_diff_lists_changed_settings_and_what_needs_a_restart(headgate: Headgate, file: Path, tmp_path: Path) -> None:
    file.write_text(SMALL)
    (tmp_path / "new.yaml").write_text(CHANGED)
    said = headgate("diff", "new.yaml")

    assert said.code == 1
    first, *changes = said.out.splitlines()
    assert first.startswith("configuration ")
    assert changes == [
        "  listen: 127.0.0.1:8080 -> 127.0.0.1:8088",
        "  tenants.demo.limits.concurrency: not set -> 3",
        "restart needed for: listen; a reload applies the other changes",
    ]


def test_equivalent_files_have_no_difference(headgate: Headgate, file: Path, tmp_path: Path) -> None:
    file.write_text(SMALL)
    (tmp_path / "new.yaml").write_text(f"# the same\n{SMALL}drain_grace: 30s\n")
    said = headgate("diff", "new.yaml")

    assert said.code == 0
    assert said.out.startswith("no difference: both files have the configuration ")


def test_added_and_removed_objects_and_new_warnings_are_shown(headgate: Headgate, file: Path, tmp_path: Path) -> None:
    file.write_text(SMALL)
    (tmp_path / "new.yaml").write_text(SMALL.replace("demo: {}", "demo: {}\n  acme: {}"))
    added, removed = headgate("diff", "new.yaml"), headgate("diff", "headgate.yaml", "--config", "new.yaml")

    assert "  tenants.acme: added" in added.out.splitlines()
    assert "new warning: new.yaml:" in added.out
    assert added.out.splitlines()[-1] == "a reload applies these changes"
    assert "  tenants.acme: removed" in removed.out.splitlines()
    assert "new warning" not in removed.out


def test_changed_secret_is_not_shown(headgate: Headgate, file: Path, tmp_path: Path) -> None:
    pool = SMALL.replace("engine: llamacpp", "engine: llamacpp, api_key: KEY")
    file.write_text(pool.replace("KEY", "first-secret-key"))
    (tmp_path / "new.yaml").write_text(pool.replace("KEY", "second-secret-key"))
    said = headgate("diff", "new.yaml")

    assert "  pools.small.api_key: set (changed)" in said.out.splitlines()
    assert "secret-key" not in said.out


def test_json_output_is_one_object(headgate: Headgate, file: Path, tmp_path: Path) -> None:
    file.write_text(SMALL)
    (tmp_path / "new.yaml").write_text(CHANGED)
    data = json.loads(headgate("diff", "new.yaml", "--json").out)

    assert data["changes"][0] == {"setting": "listen", "before": "127.0.0.1:8080", "after": "127.0.0.1:8088"}
    assert data["restart_needed"] == ["listen"]
    assert data["before"] != data["after"]


def test_invalid_file_is_reported(headgate: Headgate, file: Path, tmp_path: Path) -> None:
    file.write_text(SMALL)
    (tmp_path / "new.yaml").write_text(SMALL + "nonsense: 1\n")
    said = headgate("diff", "new.yaml")

    assert said.code == 2
    assert "nonsense: unknown key" in said.err
    assert headgate("diff", "absent.yaml").code == 2
