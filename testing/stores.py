"""Starts, kills, pauses and fails over real stores.

Each store is a separate process on a free loopback port, with a temporary directory and no persistence. Signals go only
to that process, by its PID. All processes are gone when the block exits for any reason (testing/processes.py).

    with redis() as store:            # or valkey(), or sentinels()
        store.url                     # for `cell: {store: URL}`
        store.pause(); store.resume()
        store.kill(); store.restart(empty=True)
"""

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError

from testing.ports import free_port
from testing.processes import ChildProcess, MissingProgram, ProcessFailedError

MASTER = "headgate"
"""Name under which the sentinels monitor the master."""
START_SECONDS_MAX = 60.0
FAILOVER_SECONDS_MAX = 110.0
"""Maximum failover duration, in seconds. A sentinel that was paused does nothing for 30 seconds (its TILT mode)."""
_STARTS_MAX = 3
_POLL_SECONDS = 0.02
_CLIENT_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Certificates:
    """A certificate authority and a certificate for loopback addresses only."""

    authority: Path
    certificate: Path
    key: Path


class Server:
    """One `redis-server` or `valkey-server`."""

    def __init__(
        self,
        program: str = "redis-server",
        *,
        password: str | None = None,
        certificates: Certificates | None = None,
        client_certificates: Certificates | None = None,
        replica_of: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._program = find_program(program)
        self.password, self.certificates = password, certificates
        self.client_certificates = client_certificates
        """Certificate that the clients in this process present. If set, the store requires one from its authority."""
        self._options = tuple(options)
        self._folder = tempfile.TemporaryDirectory(prefix=f"headgate-{program}-", ignore_cleanup_errors=True)
        self._process: ChildProcess | None = None
        self.port = 0
        try:
            self._start_on_free_port(replica_of)
        except BaseException:
            self.stop()
            raise

    @property
    def url(self) -> str:
        secret = "" if self.password is None else f":{self.password}@"
        if self.certificates is None:
            return f"redis://{secret}127.0.0.1:{self.port}"
        return f"rediss://{secret}127.0.0.1:{self.port}?ca={self.certificates.authority}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the store is not running; `restart` it first"
        return self._process.pid

    def client(self) -> Redis:
        """A separate client for inspecting the store. The caller closes it."""
        kept = self.certificates
        secure: dict[str, Any] = {} if kept is None else {"ssl": True, "ssl_ca_certs": str(kept.authority)}
        if (presented := self.client_certificates) is not None:
            secure |= {"ssl_certfile": str(presented.certificate), "ssl_keyfile": str(presented.key)}
        return Redis(
            host="127.0.0.1", port=self.port, password=self.password, socket_timeout=_CLIENT_SECONDS_MAX, **secure
        )

    def kill(self) -> None:
        """Kill the store with SIGKILL and wait until it has exited. Only data written by `save_snapshot` is kept."""
        assert self._process is not None, "the store is not running; `restart` it first"
        self._process.kill()
        self._process.wait_until_ended()
        self._process.stop()
        self._process = None

    def pause(self) -> None:
        """Pause the store with SIGSTOP: connections stay open and accept data but get no response."""
        assert self._process is not None
        self._process.freeze()

    def resume(self) -> None:
        assert self._process is not None
        self._process.thaw()

    def save_snapshot(self) -> None:
        """Write the current data to disk, for a later restart with `empty=False`."""
        with contextlib.closing(self.client()) as client:
            client.save()

    def restart(self, *, empty: bool = True, replica_of: int | None = None) -> None:
        """Start the store on the same port. If the store is running, kill it first. If not `empty`, load the data last
        written by `save_snapshot`.
        """
        if self._process is not None:
            self.kill()
        if empty:
            (Path(self._folder.name) / "dump.rdb").unlink(missing_ok=True)
        self._start(replica_of)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()
            self._process = None
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_on_free_port(self, replica_of: int | None) -> None:
        """Start the store on a free port. Try another port if a different process takes it first."""
        for attempt in range(1, _STARTS_MAX + 1):
            self.port = free_port()
            try:
                return self._start(replica_of)
            except ProcessFailedError:
                if attempt == _STARTS_MAX:
                    raise
        return None

    def _start(self, replica_of: int | None) -> None:
        self._process = ChildProcess(Path(self._program).name, [self._program, *self._arguments(replica_of)])
        try:
            self._wait_until_up(self._process)
        except ProcessFailedError:
            self._process.stop()
            self._process = None
            raise

    def _arguments(self, replica_of: int | None) -> Iterator[str]:
        yield from ("--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", self._folder.name)
        # Do not delay a full sync to wait for more replicas.
        yield from ("--repl-diskless-sync-delay", "0")
        if self.certificates is None:
            yield from ("--port", str(self.port))
        else:
            kept, presented = self.certificates, self.client_certificates
            yield from ("--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "yes" if presented else "no")
            yield from (
                "--tls-ca-cert-file",
                str((presented or kept).authority),
                "--tls-cert-file",
                str(kept.certificate),
            )
            yield from ("--tls-key-file", str(kept.key))
        if self.password is not None:
            yield from ("--requirepass", self.password, "--masterauth", self.password)
        if replica_of is not None:
            yield from ("--replicaof", f"127.0.0.1 {replica_of}")
        yield from self._options

    def _wait_until_up(self, process: ChildProcess) -> None:
        give_up_at = time.monotonic() + START_SECONDS_MAX
        with contextlib.closing(self.client()) as client:
            while not _answers(client):
                if process.exit_status is not None or time.monotonic() > give_up_at:
                    raise ProcessFailedError(f"{process.name} did not start on port {self.port}:\n{process.log()}")
                time.sleep(_POLL_SECONDS)


class Sentinels:
    """A master, a replica, and three sentinels that monitor them."""

    def __init__(self, stack: ExitStack, *, password: str | None = None, down_after_s: float = 2.0) -> None:
        self.password = password
        self._down_after_ms = round(1_000 * down_after_s)
        master = stack.enter_context(Server(password=password))
        replica = stack.enter_context(Server(password=password, replica_of=master.port))
        self.servers = (master, replica)
        self.ports: list[int] = []
        for _ in range(3):
            self.ports.append(self._sentinel(stack, master))
        self._wait_until_they_know_each_other()

    @property
    def url(self) -> str:
        secret = "" if self.password is None else f":{self.password}@"
        return f"redis+sentinel://{secret}{','.join(f'127.0.0.1:{port}' for port in self.ports)}/{MASTER}"

    @property
    def master(self) -> Server:
        """The server that most sentinels report as the master."""
        named = [self._master_port_by(port) for port in self.ports]
        return max(self.servers, key=lambda each: named.count(each.port))

    def failover(self, *, kill: bool = True) -> Server:
        """Start a failover and return the old master, which is killed or, with `kill=False`, demoted to a replica."""
        was = self.master
        if kill:
            was.kill()
        else:
            _wait_until(self._start_failover, "failover started by a sentinel")
        return was

    def _start_failover(self) -> bool:
        """Whether the sentinel starts a failover. It refuses while it considers the replica unhealthy."""
        try:
            with contextlib.closing(Redis(port=self.ports[0], socket_timeout=_CLIENT_SECONDS_MAX)) as client:
                client.execute_command("SENTINEL", "FAILOVER", MASTER)
        except RedisError:
            return False
        return True

    def wait_until_failed_over(self, was: Server) -> Server:
        """Wait until all sentinels report a new master and that server has taken the master role."""
        _wait_until(
            lambda: (
                all(self._master_port_by(port) not in (None, was.port) for port in self.ports)
                and _is_master(self.master)
            ),
            "new master",
        )
        return self.master

    def restart_as_replica(self, was: Server) -> None:
        """Restart a killed server as a replica, so that the next failover has a target."""
        was.restart(empty=True, replica_of=self.master.port)
        self._wait_until_they_know_each_other()

    def _sentinel(self, stack: ExitStack, master: Server) -> int:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headgate-sentinel-")))
        port = free_port()
        secret = "" if self.password is None else f"sentinel auth-pass {MASTER} {self.password}\n"
        file = folder / "sentinel.conf"
        file.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {MASTER} 127.0.0.1 {master.port} 2\n{secret}"
            f"sentinel down-after-milliseconds {MASTER} {self._down_after_ms}\n"
            # The next failover can start once twice this time has passed.
            f"sentinel failover-timeout {MASTER} 2000\n"
        )
        stack.enter_context(ChildProcess("redis-sentinel", [find_program("redis-sentinel"), file]))
        return port

    def _wait_until_they_know_each_other(self) -> None:
        _wait_until(lambda: all(self._sees_all(port) for port in self.ports), "complete set of connected sentinels")

    def _sees_all(self, port: int) -> bool:
        try:
            with contextlib.closing(Redis(port=port, socket_timeout=_CLIENT_SECONDS_MAX)) as client:
                told: dict[str, Any] = client.sentinel_master(MASTER)
                replicas: list[dict[str, Any]] = client.sentinel_slaves(MASTER)
        except RedisError:
            return False
        usable = [each for each in replicas if not (each["is_sdown"] or each["is_disconnected"])]
        linked = [each for each in usable if each["master-link-status"] == "ok"]
        return told["num-other-sentinels"] == 2 and bool(linked) and told["flags"] == "master"

    def _master_port_by(self, port: int) -> int | None:
        try:
            with contextlib.closing(Redis(port=port, socket_timeout=_CLIENT_SECONDS_MAX)) as client:
                address = client.sentinel_get_master_addr_by_name(MASTER)
        except RedisError:
            return None
        return None if address is None else int(address[1])


@contextmanager
def redis(**how: Any) -> Generator[Server]:
    with Server("redis-server", **how) as server:
        yield server


@contextmanager
def valkey(**how: Any) -> Generator[Server]:
    with Server("valkey-server", **how) as server:
        yield server


@contextmanager
def sentinels(*, password: str | None = None, down_after_s: float = 2.0) -> Generator[Sentinels]:
    """Start Redis with Sentinel. A master that is silent for `down_after_s` is replaced; use a high value to prevent
    this.
    """
    with ExitStack() as stack:
        yield Sentinels(stack, password=password, down_after_s=down_after_s)


def find_program(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise MissingProgram(f"{program} is not installed; run scripts/install_stores")
    return path


def make_certificates(folder: Path) -> Certificates:
    """Create a certificate authority and a certificate for 127.0.0.1 with the `openssl` command."""
    authority, request, signed = folder / "ca.crt", folder / "server.csr", folder / "server.crt"
    _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
             "-subj", "/CN=authority", "-keyout", folder / "ca.key", "-out", authority)  # fmt: skip
    _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=store",
             "-keyout", folder / "server.key", "-out", request)  # fmt: skip
    names = folder / "names"
    names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    _openssl("x509", "-req", "-in", request, "-CA", authority, "-CAkey", folder / "ca.key", "-CAcreateserial",
             "-days", "2", "-extfile", names, "-out", signed)  # fmt: skip
    return Certificates(authority, signed, folder / "server.key")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run([find_openssl(), *arguments], check=True, capture_output=True)


def find_openssl() -> str:
    path = shutil.which("openssl")
    if path is None:
        raise MissingProgram("openssl is not installed; run apt-get install openssl")
    return path


def _answers(client: Redis) -> bool:
    try:
        return bool(client.ping())
    except (RedisError, OSError):
        return False


def _is_master(server: Server) -> bool:
    try:
        with contextlib.closing(server.client()) as client:
            return client.role()[0] == b"master"
    except (RedisError, OSError):
        return False


def _wait_until(true: Any, what: str) -> None:
    give_up_at = time.monotonic() + FAILOVER_SECONDS_MAX
    while not true():
        if time.monotonic() > give_up_at:
            raise ProcessFailedError(f"no {what} within {FAILOVER_SECONDS_MAX:.0f} s")
        time.sleep(_POLL_SECONDS)
