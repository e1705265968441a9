"""TLS options for connections to a pool's engines and to token issuers.

A relative path is relative to the directory of the configuration file. The files are read separately
(config/tls_files.py), because a configuration can also be inspected on a machine that does not have them.
"""

from pathlib import Path

from headgate.config.pool_schema import EngineTlsSection, PoolSection
from headgate.config.problems import ConfigReport, SettingPath
from headgate.ports.tls import ClientTlsOptions


def engine_tls(pool: str, section: PoolSection, report: ConfigReport) -> ClientTlsOptions | None:
    tls, place = section.tls, ("pools", pool, "tls")
    if tls is None:
        return None
    schemes = {section.fleet.scheme, *(each.url.partition("://")[0] for each in section.endpoints)}
    if "https" not in schemes:
        setting = "the endpoints' URLs" if section.endpoints else "fleet.scheme"
        report.add_warning(
            place, f"has no effect, because no endpoint uses https; use https in {setting}, or remove it"
        )
    return client_tls(tls, place, Path(report.file).parent, report)


def client_tls(
    tls: EngineTlsSection | None, place: SettingPath, directory: Path, report: ConfigReport
) -> ClientTlsOptions | None:
    """Options for connections to a server. Relative paths are relative to `directory`."""
    if tls is None:
        return None
    if tls.key is not None and tls.certificate is None:
        report.add_problem(
            (*place, "certificate"), "missing; set the PEM file with the certificate that belongs to key"
        )

    def path(text: str | None) -> str | None:
        return None if text is None else str(directory / text)

    return ClientTlsOptions(path(tls.ca), path(tls.certificate), path(tls.key), tls.server_name)
