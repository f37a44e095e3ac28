"""Shards over the processors of this machine."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import tallymill.errors
from tallymill.errors import RunError, TallymillError, UsageError
from tallymill.runners.files import remove_leftovers
from tallymill.runners.plan import Shard
from tallymill.runners.sink import ShardSummary
from tallymill.runners.worker import WorkerSpec, open_worker, shard_message, spec_message

Progress = Callable[[int, int], None]
ATTEMPTS = 2
# Ctrl-C reaches the whole group of processes, also while a child still imports; the parent decides what it means.
_CHILD = """import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
from tallymill.runners.worker import main
main()"""


def default_workers() -> int:
    """One worker for each processor that this process may use, by its affinity and the quota of its control group."""
    processors = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("utf-8").split()
    except (OSError, ValueError):  # no control groups, or the older kind
        return processors
    return processors if quota == "max" else max(1, min(processors, int(quota) // int(period)))


def default_workers_on(devices: Sequence[str]) -> int:
    """As ``default_workers``; but on a card two: while it computes for one, the other reads and decodes."""
    return default_workers() if devices[0] == "cpu" else min(default_workers(), 2 * len(devices))


def require_workers(workers: int | None) -> int:
    """The number of workers asked for, or the default; 0 means this process."""
    count = default_workers() if workers is None else workers
    if type(count) is not int or count < 0:
        raise UsageError(f"workers = {count!r}: must be at least 1 (or 0, to work in this process)")
    return count


def run_shards(
    shards: Sequence[Shard], spec: WorkerSpec, workers: int | None, progress: Progress
) -> list[ShardSummary]:
    """Score shards with ``workers`` child processes; ``progress(items, failed)`` as images are looked at.

    The devices of ``spec`` are dealt to them in turn. With 0 workers it happens in this process, for a debugger. A
    ``KeyboardInterrupt`` stops the workers and leaves a RUN that the same call continues. A worker that is killed loses
    its shard, which is given out once more; when it is lost again the others are finished first, and then a
    ``RunError`` names it.
    """
    count = default_workers_on(spec.devices) if workers is None else require_workers(workers)
    count = min(count, len(shards))
    if count > 0:
        try:
            return _Pool(shards, spec, progress).run(count)
        finally:
            remove_leftovers(Path(spec.run))  # of workers that were stopped in the middle of a shard
    if not shards:
        return []
    worker = open_worker(spec)
    try:
        return [worker.score(shard, progress) for shard in shards]
    finally:
        worker.close()


class _Pool:
    """Child processes, each driven by a thread that hands it one shard at a time."""

    def __init__(self, shards: Sequence[Shard], spec: WorkerSpec, progress: Progress) -> None:
        self._spec, self._progress = spec, progress
        self._waiting: queue.SimpleQueue[tuple[Shard, int]] = queue.SimpleQueue()
        for shard in shards:
            self._waiting.put((shard, 1))
        self._total = len(shards)
        self._events: queue.SimpleQueue[dict[str, Any] | BaseException] = queue.SimpleQueue()
        self._children: list[subprocess.Popen[str]] = []
        self._lock = threading.Lock()
        self._stopped = False

    def run(self, count: int) -> list[ShardSummary]:
        threads = [threading.Thread(target=self._drive, args=(number,), daemon=True) for number in range(count)]
        for thread in threads:
            thread.start()
        summaries: list[ShardSummary] = []
        lost: list[str] = []
        try:
            while len(summaries) + len(lost) < self._total:
                event = self._events.get()
                if isinstance(event, BaseException):
                    raise event
                if "done" in event:
                    summaries.append(ShardSummary(**event["done"]))
                elif "lost" in event:
                    lost.append(event["lost"])
                else:
                    self._progress(event["items"], event["failed"])
        finally:
            self._stop()
            for thread in threads:
                thread.join()
        if lost:
            raise RunError(
                f"workers died {ATTEMPTS} times on {len(lost)} of {self._total} shards; the others are done: "
                + "; ".join(sorted(lost, key=_first_row)[:10]),
                hint="status -9 usually means that memory ran out: use fewer --workers, then run the same command",
            )
        return summaries

    def _drive(self, number: int) -> None:
        """Serve shards with one child until none is left; a child that dies is replaced, on the same device."""
        child: subprocess.Popen[str] | None = None
        try:
            while not self._stopped:
                try:
                    shard, attempt = self._waiting.get_nowait()
                except queue.Empty:
                    break
                child = child or self._start(number)
                if child is None:
                    break
                if not self._serve(child, shard):
                    status, child = _end(child), None
                    self._again(shard, attempt, status)
        except BaseException as exc:  # the boundary of the thread: the caller raises it
            self._events.put(exc)
        finally:
            if child is not None:
                _end(child)

    def _start(self, number: int) -> subprocess.Popen[str] | None:
        with self._lock:
            if self._stopped:
                return None
            # Arrow's own pool never gives memory back, so that a worker would grow with the size of its shards.
            environment = {"ARROW_DEFAULT_MEMORY_POOL": "system", **os.environ}
            child = subprocess.Popen(
                [sys.executable, "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env=environment,
            )
            self._children.append(child)
        assert child.stdin is not None
        with suppress(BrokenPipeError):  # killed at birth; the reader will see it
            child.stdin.write(spec_message(self._spec.of_worker(number)))
        return child

    def _serve(self, child: subprocess.Popen[str], shard: Shard) -> bool:
        """Hand over one shard and pass on what the child says; False when the child died."""
        assert child.stdin is not None
        assert child.stdout is not None
        with suppress(BrokenPipeError):  # it may have said why before it went
            child.stdin.write(shard_message(shard))
            child.stdin.flush()
        items = failed = 0
        for line in child.stdout:
            if not line.endswith("\n"):  # killed in the middle of a message
                break
            event = _read(line)
            self._events.put(event)
            if "done" in event:
                return True
            items, failed = items + event["items"], failed + event["failed"]
        self._events.put({"items": -items, "failed": -failed})  # what it had done of the shard is lost
        return False

    def _again(self, shard: Shard, attempt: int, status: int) -> None:
        if self._stopped:
            return
        if attempt < ATTEMPTS:
            self._waiting.put((shard, attempt + 1))
        else:
            self._events.put({"lost": f"rows {shard.start} to {shard.stop - 1} (exit status {status})"})

    def _stop(self) -> None:
        with self._lock:
            self._stopped = True
            for child in self._children:
                if child.poll() is None:
                    child.terminate()


def _end(child: subprocess.Popen[str]) -> int:
    """Let a child finish, which it does at the end of its input; its exit status."""
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):
        child.stdin.close()
    status = child.wait()
    child.stdout.close()
    return status


def _read(line: str) -> dict[str, Any]:
    """One message of a child; an error that it met is raised here."""
    event: dict[str, Any] = json.loads(line)
    if "error" in event:
        kind: type[TallymillError] = getattr(tallymill.errors, event["error"]["kind"], TallymillError)
        raise kind(event["error"]["message"], hint=event["error"]["hint"])
    if "crash" in event:
        raise RuntimeError(f"a worker failed:\n{event['crash']}")
    return event


def _first_row(lost: str) -> int:
    """Of ``rows 12 to 23 (exit status -9)`` the 12: workers die in any order."""
    return int(lost.split()[1])
