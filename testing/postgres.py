"""Starts, kills, pauses and restarts a real PostgreSQL server.

Each server has its own cluster in a temporary directory and a free loopback port. The system's server is never used.
PostgreSQL does not run as root, so if the user is root, it runs as the user `postgres`, who owns the directory. Signals
go only to that process and its children. All of them are gone when the block exits for any reason
(testing/processes.py).

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
from testing.processes import ChildProcess, MissingProgram, ProcessFailedError

USER = "postgres"
START_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.02
_STARTS_MAX = 3
_FOLDERS = ("/usr/lib/postgresql", "/usr/local/lib/postgresql")


class Postgres:
    """One PostgreSQL cluster. With a `password` it requires that password; with certificates it accepts only TLS."""

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
            self._start_on_free_port()
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
        assert self._process is not None, "the database is not running; `restart` it first"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def kill(self) -> None:
        """Kill the server and its connection processes with SIGKILL, and wait until they are gone. Committed data
        stays.
        """
        assert self._process is not None, "the database is not running; `restart` it first"
        self._process.kill()
        self._process.wait_until_ended()
        self._process.stop()
        self._process = None

    def shut_down(self) -> None:
        """Shut down the server in "fast" mode, which closes all connections."""
        assert self._process is not None
        os.kill(self.pid, 2)  # SIGINT requests a "fast" shutdown.
        self._process.wait_until_ended()
        self._process.stop()
        self._process = None

    def pause(self) -> None:
        """Pause the server with SIGSTOP: connections stay open but get no response."""
        assert self._process is not None
        self._process.freeze()
        # Each connection has a process with its own process group.
        for child in self._children():
            os.kill(child, 19)

    def resume(self) -> None:
        assert self._process is not None
        for child in self._children():
            os.kill(child, 18)
        self._process.thaw()

    def restart(self) -> None:
        """Start the server again on the same port with the committed data. If the server is running, kill it first."""
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
        self._chown(data, self._folder / "sockets", secret)
        with_secret = () if self.password is None else (f"--pwfile={secret}",)
        command = (
            find_program("initdb"),
            "-D",
            str(data),
            "-A",
            asked,
            "-U",
            USER,
            "--no-sync",
            "-E",
            "UTF8",
            *with_secret,
        )
        made = subprocess.run([*_as_owner(), *command, "--locale=C"], capture_output=True, text=True, check=False)
        secret.unlink()
        if made.returncode:
            raise ProcessFailedError(f"initdb failed:\n{made.stdout}{made.stderr}")
        if certificate is not None and key is not None:
            for source, name in ((certificate, "server.crt"), (key, "server.key")):
                shutil.copyfile(source, data / name)
                (data / name).chmod(0o600)
                self._chown(data / name)
            # Reject connections without TLS.
            (data / "pg_hba.conf").write_text(f"hostssl all all 127.0.0.1/32 {asked}\n")

    def _chown(self, *paths: Path) -> None:
        if os.getuid() == 0:
            for path in paths:
                shutil.chown(path, USER, USER)

    def _start_on_free_port(self) -> None:
        """Start the server on a free port. Try another port if a different process takes it first."""
        for attempt in range(1, _STARTS_MAX + 1):
            self.port = free_port()
            try:
                return self._start()
            except ProcessFailedError:
                if attempt == _STARTS_MAX:
                    raise
        return None

    def _start(self) -> None:
        # A killed server leaves its lock file behind, and another process may now have its PID.
        (self._folder / "data" / "postmaster.pid").unlink(missing_ok=True)
        self._process = ChildProcess("postgres", [*_as_owner(), find_program("postgres"), *self._arguments()])
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
        while not _accepts_logins(self.port):
            if process.exit_status is not None or time.monotonic() > give_up_at:
                raise ProcessFailedError(f"PostgreSQL did not start on port {self.port}:\n{process.log()}")
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


def find_program(program: str) -> str:
    """The newest version of a program in Debian's PostgreSQL directories, otherwise the one on the PATH."""
    for folder in _FOLDERS:
        if Path(folder).is_dir():
            for version in sorted(Path(folder).iterdir(), key=lambda each: float(each.name), reverse=True):
                if (version / "bin" / program).exists():
                    return str(version / "bin" / program)
    if (path := shutil.which(program)) is None:
        raise MissingProgram(f"{program} is not installed; run scripts/install_postgres")
    return path


def _as_owner() -> tuple[str, ...]:
    if os.getuid() != 0:
        return ()
    return ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")


def _accepts_logins(port: int) -> bool:
    """Whether the server responds to a login with anything other than "the database system is starting up"."""
    login = b"".join((struct.pack("!I", 196_608), b"user\0postgres\0database\0postgres\0\0"))
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5.0) as connection:
            connection.settimeout(5.0)
            connection.sendall(struct.pack("!I", len(login) + 4) + login)
            answer = connection.recv(256)
    except OSError:
        return False
    # An error with another code, such as "no encryption", means that the server is up.
    return answer[:1] == b"R" or (answer[:1] == b"E" and b"C57P03" not in answer)
