"""Starts the processes of the stream benchmark's cell and reads their reports."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import msgspec

from bench.cell_process import CellProcess, CellProcessFailed
from bench.cell_streams.member_streams import Load, Plan, ProcessReport, endpoint_count
from bench.cpu_cores import Cores
from testing.stores import Server

LEADER_S_MAX = 60.0


class StreamProcess(CellProcess):
    def __init__(self, plan: Plan, core: int) -> None:
        self.plan = plan
        super().__init__("bench.cell_streams.member_streams", plan, core)

    def ask(self, load: Load) -> None:
        self.send(load)

    def answer(self) -> ProcessReport:
        return msgspec.json.decode(self.line(), type=ProcessReport)

    def report(self, *, reset: bool = False) -> ProcessReport:
        self.ask(Load(reset=reset))
        return self.answer()


class StreamCell:
    """Member processes and two candidates for scheduler, on one store.

    The scheduler has a core of its own. All other processes share the other core.
    """

    def __init__(
        self, store: Server, cores: Cores, *, rate: float, stream_s: float, members: int, processes: int
    ) -> None:
        self._store, self._cores = store, cores
        self._stream_s, self._members, self._processes = stream_s, members, processes
        self.endpoints = endpoint_count(rate, stream_s)
        self._stack = ExitStack()
        self._started = 0
        self.members: list[StreamProcess] = []
        self.candidates: list[StreamProcess] = []

    def __enter__(self) -> Self:
        with self._stack:
            for _ in range(2):
                self.add_candidate()
            each = self._members // self._processes
            self.members = [
                self._start([f"member-{first + nth}" for nth in range(each)], first, self._cores.instruments)
                for first in range(0, each * self._processes, each)
            ]
            for process in self.members:
                process.wait_until_ready()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add_candidate(self) -> None:
        """Start another candidate and wait until it is part of the cell."""
        self._started += 1
        process = self._start([f"scheduler-{self._started}"], 0, self._cores.target, schedules=True)
        process.wait_until_ready()
        self.candidates.append(process)

    def _start(self, names: Sequence[str], first: int, core: int, *, schedules: bool = False) -> StreamProcess:
        plan = Plan(
            store=self._store.url,
            members=tuple(names),
            first_rank=first,
            of=self._members,
            schedules=schedules,
            endpoints=self.endpoints,
            stream_s=self._stream_s,
        )
        process = StreamProcess(plan, core)
        self._stack.callback(process.kill)
        return process

    def reports(self, *, rate: float | None = None) -> list[ProcessReport]:
        """Return the reports of all member processes, after setting the total request rate unless it is None."""
        for process in self.members:
            process.ask(Load(rate=None if rate is None else rate / len(self.members)))
        return [process.answer() for process in self.members]

    def leader(self) -> StreamProcess:
        give_up_s = time.monotonic() + LEADER_S_MAX
        while time.monotonic() < give_up_s:
            for process in self.candidates:
                if process.report().leads:
                    return process
            time.sleep(0.05)
        raise CellProcessFailed(f"no candidate became the scheduler within {LEADER_S_MAX:g} s")

    def kill_leader(self) -> float:
        """Kill the scheduler with SIGKILL. Return the time of the kill on the monotonic clock."""
        leader = self.leader()
        self.candidates.remove(leader)
        killed_s = time.monotonic()
        leader.kill()
        return killed_s

    @property
    def member_pids(self) -> list[int]:
        return [process.pid for process in self.members]
