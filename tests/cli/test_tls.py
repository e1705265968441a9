"""Commands with certificates: what `check` and `serve` refuse, and how commands reach an admin listener with TLS."""

import asyncio
import ssl
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from testing.certificates import Authority, CertificateFiles
from testing.fake_engine import FakeEngine
from testing.gateway import a_config, gateway_in_loop
from tests.cli.conftest import Headgate, Said
from tests.cli.workers import running_workers, workers_config


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "pki")


def write(file: Path, certificate: str, key: str) -> None:
    file.write_text(yaml.safe_dump(a_config("http://127.0.0.1:1", listen_tls={"certificate": certificate, "key": key})))


def refusal(headgate: Headgate) -> str:
    """The line that both `check` and `serve` print."""
    checked, served = headgate("check"), headgate("serve")
    assert (checked.code, served.code) == (1, 1)
    [line] = checked.err.splitlines()
    assert served.err.splitlines() == [line, "headgate: not started; correct the files and try again"]
    return line


def test_check_names_listeners_with_tls(headgate: Headgate, file: Path, authority: Authority) -> None:
    write(file, *authority.issue())

    said = headgate("check")

    assert said.code == 0
    assert " with TLS; admin listener on " in said.out
    assert "warning" not in said.out


def test_paths_are_relative_to_the_configuration_file(tmp_path: Path, headgate: Headgate, authority: Authority) -> None:
    authority.issue()
    write(tmp_path / "pki" / "headgate.yaml", "tls.crt", "tls.key")

    assert headgate("check", "--config", "pki/headgate.yaml").code == 0


def test_missing_file_is_refused(headgate: Headgate, file: Path, authority: Authority) -> None:
    files = authority.issue()
    write(file, files.certificate, f"{files.key}.missing")

    assert refusal(headgate) == (
        f"headgate.yaml: listen_tls: {files.key}.missing cannot be read: no such file or directory"
    )


def test_key_of_another_certificate_is_refused(headgate: Headgate, file: Path, authority: Authority) -> None:
    files, other = authority.issue(), authority.issue("other")
    write(file, files.certificate, other.key)

    assert refusal(headgate) == (
        f"headgate.yaml: listen_tls: the key in {other.key} does not belong to the certificate in {files.certificate}"
    )


@pytest.mark.parametrize(("days", "reason"), [((-2, -1), "expired on"), ((1, 2), "is not valid until")])
def test_certificate_that_is_not_valid_now_is_refused(
    days: tuple[int, int], reason: str, headgate: Headgate, file: Path, authority: Authority
) -> None:
    files = authority.issue(starts_in=timedelta(days=days[0]), expires_in=timedelta(days=days[1]))
    write(file, *files)

    assert refusal(headgate).startswith(f"headgate.yaml: listen_tls: the certificate in {files.certificate} {reason} 2")


def test_file_without_pem_is_refused(headgate: Headgate, file: Path, authority: Authority) -> None:
    files = authority.issue()
    write(file, files.key, files.key)

    assert refusal(headgate) == f"headgate.yaml: listen_tls: {files.key} contains no PEM certificate"


def test_check_warns_two_weeks_before_expiry(headgate: Headgate, file: Path, authority: Authority) -> None:
    write(file, *authority.issue(expires_in=timedelta(days=13, hours=12)))

    said = headgate("check")

    assert said.code == 0
    assert "warning: headgate.yaml: listen_tls: the certificate in " in said.out
    assert " expires in 13.5 days, on " in said.out


def test_missing_settings_are_reported_with_the_next_step(headgate: Headgate, file: Path) -> None:
    config = a_config("http://127.0.0.1:1", listen_tls={"certificate": "tls.crt"})
    file.write_text(yaml.safe_dump(config))

    assert "listen_tls.key: missing; set the PEM file with the certificate's private key" in headgate("check").err


# A running gateway


async def run_against_gateway(
    folder: Path, authority: Authority, headgate: Headgate, commands: list[list[str]], **tls: str
) -> list[Said]:
    """Runs commands in a thread while a gateway with this `admin_listen_tls` runs."""
    async with FakeEngine() as engine:
        config = a_config(engine.url, admin_listen_tls=tls)
        own = CertificateFiles(tls["certificate"], tls["key"])
        async with gateway_in_loop(config, folder, tls=_context(authority, own)) as gateway:
            return [
                await asyncio.to_thread(headgate, *(gateway.admin_url if part == "URL" else part for part in command))
                for command in commands
            ]


def _context(authority: Authority, own: CertificateFiles):
    context = authority.client_context(own)
    context.check_hostname = False
    return context


async def test_commands_trust_the_authority_in_the_file(
    tmp_path: Path, headgate: Headgate, authority: Authority
) -> None:
    files = authority.issue("tls", "gateway.internal")._asdict()
    commands = [["status"], ["doctor", "--live"], ["report"], ["explain", "req_0123abcd"]]
    status, live, report, explain = await run_against_gateway(
        tmp_path, authority, headgate, commands, **files, ca=authority.file, server_name="gateway.internal"
    )

    assert (status.code, live.code, report.code) == (0, 0, 0)
    assert " at https://127.0.0.1:" in status.out
    assert "admin_listen: TLS, certificate expires on 2" in status.out
    assert "is not known" in explain.err or "req_0123abcd" in explain.err


async def test_commands_present_the_listeners_certificate_if_it_requires_one(
    tmp_path: Path, headgate: Headgate, authority: Authority
) -> None:
    files = authority.issue()._asdict()
    tls = {**files, "ca": authority.file, "client_ca": authority.file}
    [status] = await run_against_gateway(tmp_path, authority, headgate, [["status"]], **tls)

    assert status.code == 0


async def test_environment_has_precedence_over_the_file(
    tmp_path: Path, headgate: Headgate, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_ADMIN_CA", str(tmp_path / "missing.pem"))
    tls = {**authority.issue()._asdict(), "ca": authority.file}
    [status] = await run_against_gateway(tmp_path, authority, headgate, [["status"]], **tls)

    assert status.code == 1
    assert status.err == (
        f"headgate: {tmp_path / 'missing.pem'} cannot be read: no such file or directory; HEADGATE_ADMIN_CA and "
        "HEADGATE_ADMIN_CERTIFICATE override the files of admin_listen_tls\n"
    )


async def test_untrusted_certificate_is_reported_with_the_next_step(
    tmp_path: Path, headgate: Headgate, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_ADMIN_KEY", "secret")
    commands = [["status", "--url", "URL"], ["cost", "--url", "URL"]]
    said = await run_against_gateway(tmp_path, authority, headgate, commands, **authority.issue()._asdict())

    for each in said:
        assert each.code == 1
        assert "the server's certificate is not trusted: " in each.err
        assert each.err.endswith("; set HEADGATE_ADMIN_CA to the PEM file of the authority that issued it\n")


async def test_doctor_recognizes_a_gateway_with_tls(tmp_path: Path, headgate: Headgate, authority: Authority) -> None:
    files = authority.issue(expires_in=timedelta(days=5))._asdict()
    async with FakeEngine() as engine:
        config = a_config(engine.url, listen_tls=files, admin_listen_tls={**files, "ca": authority.file})
        async with gateway_in_loop(config, tmp_path, tls=authority.client_context()):
            said = await asyncio.to_thread(headgate, "doctor")

    assert "is running with this configuration" in said.out
    assert f"listen: {config['listen']} is served by a gateway" in said.out
    assert "listen_tls: the certificate in " in said.out


async def test_doctor_reports_a_certificate_that_cannot_be_used(
    tmp_path: Path, headgate: Headgate, file: Path, authority: Authority
) -> None:
    write(file, str(tmp_path / "missing.crt"), authority.issue().key)

    said = await asyncio.to_thread(headgate, "doctor")

    assert f"problem listen_tls: {tmp_path / 'missing.crt'} cannot be read: no such file or directory" in said.out


# Workers


@pytest.mark.process
async def test_workers_with_tls_become_ready_and_rotate_their_certificate(tmp_path: Path, authority: Authority) -> None:
    tls = {**authority.issue()._asdict(), "client_ca": authority.file}
    own = authority.issue("client", "client")
    async with FakeEngine() as engine:
        config = workers_config(engine.url, listen_tls=tls, admin_listen_tls=tls)
        # The supervisor waits until each worker is ready. It has no client certificate.
        async with running_workers(config, tmp_path) as workers:
            before = await _serial_number(config["listen"], authority.client_context(own))
            authority.issue()
            async with asyncio.timeout(60):
                # The kernel assigns each connection to one of the workers.
                while before in [await _serial_number(config["listen"], authority.client_context(own)) for _ in "123"]:
                    await asyncio.sleep(0.05)
            log = workers.parent.log()

    assert "serving on https://" in log
    assert "certificate replaced" in log


async def _serial_number(listen: str, tls: ssl.SSLContext) -> str:
    host, _, port = listen.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    found = writer.get_extra_info("peercert")["serialNumber"]
    writer.transport.abort()
    return found
