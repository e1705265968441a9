"""Which parts keep what became of requests, and how are they put together?"""

import asyncio
import os
import re
import socket
import time
from pathlib import Path

from headgate.config.settings import Settings
from headgate.model.units import ClassName, Duration, Instant
from headgate.ports.records import RequestRecord
from headgate.telemetry.decisions import Decisions
from headgate.telemetry.records.archive import Archive
from headgate.telemetry.records.figures import RecordsFigures
from headgate.telemetry.records.folder import Writer
from headgate.telemetry.records.keeper import Keeper
from headgate.telemetry.stages.budget import ClassBudget
from headgate.telemetry.stages.meters import StageMeters

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9.-]")


class KeptRecords:
    """A keeper of records. Where they lie does not change while the process lives."""

    def __init__(self, settings: Settings, decisions: Decisions) -> None:
        self.stages = StageMeters()
        kept = settings.records
        folder = None if kept is None else Path(kept.folder)
        retention_ns = Duration(0) if kept is None else kept.retention_ns
        writer = None
        if kept is not None and folder is not None:
            writer = Writer(folder, _own_name(), retention_ns=retention_ns, bytes_max=kept.bytes_max)
        self._keeper = Keeper(decisions, self.stages, _now, writer)
        self.archive = Archive(decisions, self._keeper, folder=folder, retention_ns=retention_ns)
        self.change_to(settings)

    def take(self, record: RequestRecord) -> None:
        self._keeper.take(record)

    def begin(self) -> None:
        self._keeper.start()

    async def stop(self) -> None:
        # What waits is written; the loop goes on meanwhile.
        await asyncio.to_thread(self._keeper.stop)

    def change_to(self, settings: Settings) -> None:
        budgets = class_budgets(settings)
        self.stages.change([each.name for each in settings.policy.classes], budgets)
        self.archive.budgets = budgets

    def figures(self) -> RecordsFigures:
        return self._keeper.figures()

    @property
    def waiting(self) -> int:
        return self._keeper.waiting


def class_budgets(settings: Settings) -> dict[str, ClassBudget]:
    """What each class allows its requests."""
    objectives = settings.objectives
    return {
        each.name: ClassBudget(
            stages=settings.stage_budgets.get(each.name, {}),
            ttft_ns=each.ttft_ns,
            duration_ns=objectives[ClassName(each.name)].duration_ns if each.name in objectives else None,
        )
        for each in settings.policy.classes
    }


def _own_name() -> str:
    """Of no other process, on this machine or another, and none that comes after it."""
    return f"{_NOT_IN_A_NAME.sub('-', socket.gethostname())[:60]}.{os.getpid()}.{time.time_ns():x}"


def _now() -> Instant:
    return Instant(time.time_ns())
