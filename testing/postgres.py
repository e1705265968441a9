"""How is a real PostgreSQL started, killed, paused and brought back?

A cluster of its own in a temporary folder, on a free loopback port; never the system's. PostgreSQL refuses to run as
root, so there it runs as the user `postgres`, who owns the folder. What is killed or paused is always that process and
its children, and all of it is gone when the block is left, whatever ends it (testing/processes.py).

    with postgres() as database:
        database.url                  # for `database: {url: URL}`
        database.pause(); database.resume()
        database.kill(); database.restart()
"""

import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from testing.ports import free_port
from testing.processes import ChildProcess, MissingPart, ProcessFailedError

USER = "postgres"
START_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.02
_STARTS_MAX = 3
_FOLDERS = ("/usr/lib/postgresql", "/usr/local/lib/postgresql")


class Postgres:
    """One cluster. With a `password` it asks for it; with certificates it takes TLS alone."""

    def __init__(
        self,
        *,
        password: str | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self.password = password
        self._options = tuple(options)
        self._folder = Path(tempfile.mkdtemp(prefix="headgate-postgres-"))
        self._tls = certificate is not None
        self._process: ChildProcess | None = None
        self.port = 0
        try:
            self._create(certificate, key)
            self._start_anywhere()
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        secret = "" if self.password is None else f":{self.password}"
        return f"postgresql://{USER}{secret}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the database was killed and not restarted"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        """Kill -9 of it and of every connection's process; returns when all are gone. What was committed stays."""
        assert self._process is not None, "the database was killed already; `restart` it first"
        self._process.kill()
        self._process.wait_until_ended()
        self._process.stop()
        self._process = None

    def halt(self) -> None:
        """Stopped as an administrator would, with connections cut."""
        assert self._process is not None
        os.kill(self.pid, 2)  # SIGINT is PostgreSQL's "fast" shutdown.
        self._process.wait_until_ended()
        self._process.stop()
        self._process = None

    def pause(self) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        assert self._process is not None
        self._process.freeze()
        # Each connection has a process that leads a group of its own.
        for child in self._children():
            os.kill(child, 19)

    def resume(self) -> None:
        assert self._process is not None
        for child in self._children():
            os.kill(child, 18)
        self._process.thaw()

    def restart(self) -> None:
        """On the same port with what was committed, killed first where it runs."""
        if self._process is not None:
            self.kill()
        self._start()

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait_until_ended()
            self._process.stop()
            self._process = None
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _children(self) -> list[int]:
        text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(each) for each in text.split()]

    def _create(self, certificate: Path | None, key: Path | None) -> None:
        data, asked = self._folder / "data", "trust" if self.password is None else "scram-sha-256"
        self._folder.chmod(0o755)
        for each in ("data", "sockets"):
            (self._folder / each).mkdir(mode=0o700)
        secret = self._folder / "password"
        secret.write_text(f"{self.password or ''}\n")
        self._own(data, self._folder / "sockets", secret)
        with_secret = () if self.password is None else (f"--pwfile={secret}",)
        command = (found("initdb"), "-D", str(data), "-A", asked, "-U", USER, "--no-sync", "-E", "UTF8", *with_secret)
        made = subprocess.run([*_as_owner(), *command, "--locale=C"], capture_output=True, text=True, check=False)
        secret.unlink()
        if made.returncode:
            raise ProcessFailedError(f"initdb failed:\n{made.stdout}{made.stderr}")
        if certificate is not None and key is not None:
            for source, name in ((certificate, "server.crt"), (key, "server.key")):
                shutil.copyfile(source, data / name)
                (data / name).chmod(0o600)
                self._own(data / name)
            # Nobody comes in without TLS.
            (data / "pg_hba.conf").write_text(f"hostssl all all 127.0.0.1/32 {asked}\n")

    def _own(self, *paths: Path) -> None:
        if os.getuid() == 0:
            for path in paths:
                shutil.chown(path, USER, USER)

    def _start_anywhere(self) -> None:
        """On a port that was free a moment ago; should another process take it meanwhile, on another."""
        for attempt in range(1, _STARTS_MAX + 1):
            self.port = free_port()
            try:
                return self._start()
            except ProcessFailedError:
                if attempt == _STARTS_MAX:
                    raise
        return None

    def _start(self) -> None:
        # A killed one leaves its lock behind, and another process may have its number by now.
        (self._folder / "data" / "postmaster.pid").unlink(missing_ok=True)
        self._process = ChildProcess("postgres", [*_as_owner(), found("postgres"), *self._arguments()])
        try:
            self._wait_until_up(self._process)
        except ProcessFailedError:
            self._process.stop()
            self._process = None
            raise

    def _arguments(self) -> Iterator[str]:
        yield from ("-D", str(self._folder / "data"), "-p", str(self.port), "-k", str(self._folder / "sockets"))
        yield from ("-c", "listen_addresses=127.0.0.1")
        if self._tls:
            yield from ("-c", "ssl=on")
        for option in self._options:
            yield from ("-c", option)

    def _wait_until_up(self, process: ChildProcess) -> None:
        give_up_at = time.monotonic() + START_SECONDS_MAX
        while not _takes_logins(self.port):
            if process.exit_status is not None or time.monotonic() > give_up_at:
                raise ProcessFailedError(f"PostgreSQL did not come up on port {self.port}:\n{process.log()}")
            time.sleep(_POLL_SECONDS)


@contextmanager
def postgres(
    *,
    password: str | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    options: Sequence[str] = (),
) -> Generator[Postgres]:
    with Postgres(password=password, certificate=certificate, key=key, options=options) as server:
        yield server


def found(program: str) -> str:
    """The newest of what Debian keeps beside the path, by version, else what is on the path."""
    for folder in _FOLDERS:
        if Path(folder).is_dir():
            for version in sorted(Path(folder).iterdir(), key=lambda each: float(each.name), reverse=True):
                if (version / "bin" / program).exists():
                    return str(version / "bin" / program)
    if (path := shutil.which(program)) is None:
        raise MissingPart(f"{program} is not installed; run scripts/postgres")
    return path


def _as_owner() -> tuple[str, ...]:
    if os.getuid() != 0:
        return ()
    return ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")


def _takes_logins(port: int) -> bool:
    """Whether it answers a login with a question or a welcome, and not with "the database system is starting up"."""
    login = b"".join((struct.pack("!I", 196_608), b"user\0postgres\0database\0postgres\0\0"))
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
            connection.settimeout(5.0)
            connection.sendall(struct.pack("!I", len(login) + 4) + login)
            answer = connection.recv(256)
    except OSError:
        return False
    # An error with another code, such as "no encryption", comes from one that is up.
    return answer[:1] == b"R" or (answer[:1] == b"E" and b"C57P03" not in answer)
