"""Storage of request records."""

import asyncio
import os
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path

from headgate.config.settings import Settings
from headgate.model.units import ClassName, Duration, Instant
from headgate.ports.records import RequestRecord
from headgate.telemetry.decision_history import DecisionHistory
from headgate.telemetry.records.archive import RecordArchive
from headgate.telemetry.records.record_keeper import RecordKeeper
from headgate.telemetry.records.segment_writer import SegmentWriter
from headgate.telemetry.records.stats import RecordsStats
from headgate.telemetry.stages.stage_budget import ClassStageBudget
from headgate.telemetry.stages.stage_meters import StageMeters

_INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9.-]")


class RecordStore:
    """Keeps request records. Its directory does not change while the process is running."""

    def __init__(self, settings: Settings, decisions: DecisionHistory) -> None:
        self.stages = StageMeters()
        kept = settings.records
        folder = None if kept is None else Path(kept.directory)
        retention_ns = Duration(0) if kept is None else kept.retention_ns
        writer = None
        if kept is not None and folder is not None:
            writer = SegmentWriter(folder, process_name(), retention_ns=retention_ns, bytes_max=kept.bytes_max)
        self._keeper = RecordKeeper(decisions, self.stages, _now, writer)
        self.add: Callable[[RequestRecord], None] = self._keeper.add
        """Receives the record of a finished request."""
        self.archive = RecordArchive(decisions, self._keeper, folder=folder, retention_ns=retention_ns)
        self.change_to(settings)

    def start(self) -> None:
        self._keeper.start()

    async def stop(self) -> None:
        # Stopping writes the queued records, so it must not block the event loop.
        await asyncio.to_thread(self._keeper.stop)

    def change_to(self, settings: Settings) -> None:
        budgets = class_budgets(settings)
        self.stages.set_classes([each.name for each in settings.policy.classes], budgets)
        self.archive.budgets = budgets

    def recent_records(self) -> list[RequestRecord]:
        """Records in memory, oldest first."""
        return self._keeper.recent_records()[::-1]

    def figures(self) -> RecordsStats:
        return self._keeper.stats()

    @property
    def waiting(self) -> int:
        return self._keeper.waiting


def class_budgets(settings: Settings) -> dict[str, ClassStageBudget]:
    """Returns each class's stage time budgets."""
    objectives = settings.objectives
    return {
        each.name: ClassStageBudget(
            stages=settings.stage_budgets.get(each.name, {}),
            ttft_ns=each.ttft_ns,
            duration_ns=objectives[ClassName(each.name)].duration_ns if each.name in objectives else None,
        )
        for each in settings.policy.classes
    }


def process_name() -> str:
    """Returns a globally unique process name."""
    return f"{_INVALID_NAME_CHARS.sub('-', socket.gethostname())[:60]}.{os.getpid()}.{time.time_ns():x}"


def _now() -> Instant:
    return Instant(time.time_ns())
