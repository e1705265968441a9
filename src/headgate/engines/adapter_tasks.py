"""Tasks that load and unload LoRA adapters beside the probes, which must not wait for them."""

import asyncio
from collections.abc import Callable

from headgate.engines.watched_engine import EngineKey, WatchedEngine
from headgate.model.units import EndpointId


class AdapterTasks:
    """At most one task per engine."""

    def __init__(self, read_models: Callable[[EndpointId], None], on_end: Callable[[asyncio.Task[None]], None]) -> None:
        """`read_models` makes the next probe of an endpoint read its list of models. `on_end` receives each task."""
        self._read_models = read_models
        self._on_end = on_end
        self._tasks: dict[EngineKey, asyncio.Task[None]] = {}

    def start(self, engine: WatchedEngine) -> None:
        """Called for each probe. Starts to load and unload the engine's adapters, if necessary and not under way."""
        first = engine.endpoints[0]
        running = self._tasks.get(engine.key)
        if first.adapters is None or (running is not None and not running.done()):
            return
        loader = first.adapters.loader
        if not loader.begin_round():
            return

        def changed() -> None:
            for member in loader.members:
                self._read_models(member.endpoint_id)

        task = asyncio.create_task(loader.sync(changed), name=f"adapters of {first.endpoint_id}")
        task.add_done_callback(self._on_end)
        self._tasks[engine.key] = task

    def pop(self, key: EngineKey) -> asyncio.Task[None] | None:
        """Returns the task of an engine that is no longer probed, if any. The caller cancels it."""
        return self._tasks.pop(key, None)
