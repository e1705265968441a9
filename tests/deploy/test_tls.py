"""The TLS overlay produces valid manifests, in which all secrets are files."""

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.deploy.manifests import gateway_config, the
from tests.deploy.overlays import TLS, layer, patched
from tests.deploy.schemas import A_LAYER, SERVICE_MONITOR

VERSIONS = ("1.29", "1.33", kubernetes_validate.latest_version())
FILES = {"certificate": "/etc/headgate-tls/tls.crt", "key": "/etc/headgate-tls/tls.key"}


def test_overlay_lists_every_file() -> None:
    named = [each["path"] for each in layer(TLS)["patches"]]
    named += [file for each in layer(TLS)["configMapGenerator"] for file in each["files"]]

    assert list(jsonschema.Draft202012Validator(A_LAYER).iter_errors(layer(TLS))) == []
    assert {path.name for path in TLS.iterdir()} == {*named, "kustomization.yaml"}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("file", ["gateway.yaml", "service.yaml"])
def test_patched_manifest_matches_its_schema(file: str, version: str) -> None:
    assert kubernetes_validate.validate(patched(TLS, file).tree, version, strict=True).startswith(version[:4])


def test_callers_use_port_443_only() -> None:
    assert patched(TLS, "service.yaml").spec["ports"] == [{"name": "http", "port": 443, "targetPort": "http"}]


def test_prometheus_verifies_the_certificate_of_the_admin_listener() -> None:
    monitor = patched(TLS, "servicemonitor.yaml")
    [endpoint], [before] = monitor.spec["endpoints"], the("ServiceMonitor", "headgate").spec["endpoints"]

    assert list(jsonschema.Draft202012Validator(SERVICE_MONITOR).iter_errors(monitor.tree)) == []
    assert {key: endpoint[key] for key in before} == before
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == "headgate-tls"


def test_secrets_are_mounted_directories_and_not_in_the_environment() -> None:
    gateway = patched(TLS, "gateway.yaml")
    paths = {each["name"]: each["mountPath"] for each in gateway.container["volumeMounts"]}
    volumes = {each["name"]: each.get("secret", {}).get("secretName") for each in gateway.pod["volumes"]}

    assert "envFrom" not in gateway.container
    assert paths == {
        "config": "/etc/headgate",
        "tmp": "/tmp",
        "tls": "/etc/headgate-tls",
        "secrets": "/etc/headgate-secrets",
    }
    assert volumes == {"config": None, "tmp": None, "tls": "headgate-tls", "secrets": the("Secret", "headgate").name}


def test_configuration_adds_tls_and_reads_the_secrets_from_files() -> None:
    text = (TLS / "headgate.yaml").read_text()
    for variable in the("Secret", "headgate").tree["stringData"]:
        assert text.count(f"${{file:/etc/headgate-secrets/{variable}}}") == 1
        text = text.replace(f"file:/etc/headgate-secrets/{variable}", variable)
    config = yaml.safe_load(text)

    assert config.pop("listen_tls") == config.pop("admin_listen_tls") == FILES
    assert config == gateway_config()
