"""Calls a function in several processes, which never outlive the command that started them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, Final, TypeVar

_Result = TypeVar("_Result")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


def map_in_workers(processes: int, function: Callable[..., _Result], *arguments: Iterable[Any]) -> list[_Result]:
    """Like `map`. If the command is interrupted, the processes are ended at once, in the middle of their work."""
    others = multiprocessing.active_children()
    pool = ProcessPoolExecutor(processes, initializer=_begin_worker)
    try:
        # An interrupt while the pool starts its processes and threads would leave it in an undefined state.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            results = pool.map(function, *arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return list(results)
    except BaseException:
        for each in multiprocessing.active_children():
            if each not in others:
                each.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    """Makes this worker exit if the command is killed, and do so silently on Ctrl-C."""
    for each in _SIGNALS:
        signal.signal(each, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "workers are started by a command"
    parent.join()
    os._exit(1)
