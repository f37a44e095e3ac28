"""``answers.jsonl`` of a RUN: a record counts once it is on the disk, and whoever comes after finds it whole.

Records are ASCII, so that no separator of lines can hide in an answer, and end with a line feed. Of what a killed
process was writing, only the last line can be torn: it has no line feed, was never counted, and is cut off.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from tallymill.errors import OutputError, RunError
from tallymill.runners.files import sync
from tallymill.runners.writing import naming_output

_TAIL = 1 << 16


class AnswerLog:
    """The answers of a RUN, open for one process alone; ``with`` closes it.

    ``append`` may be called by any number of tasks of one event loop: whatever came while the disk was busy goes
    with the next write, one sync for all.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._broken: OSError | OutputError | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        new = not path.exists()
        with naming_output(path):
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            self._lock()
            _cut_torn_line(self._file)
            if new:
                sync(path.parent)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> AnswerLog:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._thread.shutdown()
        os.close(self._file)  # and with it goes the lock

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{self._path.parent}: another process is asking for this RUN",
                hint="wait until it is done, or stop it; then the same command goes on",
            ) from None

    def empty(self) -> None:
        """Take out all records; for before anything is appended."""
        with naming_output(self._path):
            os.ftruncate(self._file, 0)
            os.fsync(self._file)

    async def append(self, record: Mapping[str, Any]) -> None:
        """Return once the record is on the disk. It gets there also when the task that waits is cancelled.

        After an error of writing nothing more is written: the end of the file may be torn.
        """
        if self._broken is not None:
            raise self._broken
        line = json.dumps(record, ensure_ascii=True, separators=(", ", ": ")).encode("ascii") + b"\n"
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((line, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await done

    async def flush(self) -> None:
        """Return once everything that was handed over is on the disk."""
        while self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                data = b"".join(line for line, _ in batch)
                try:
                    await loop.run_in_executor(self._thread, self._write_and_sync, data)
                except (OSError, OutputError) as exc:
                    self._broken = exc
                    for _, done in (*batch, *self._waiting):
                        if not done.done():
                            done.set_exception(exc)
                    self._waiting = []
                    return
                for _, done in batch:
                    if not done.done():
                        done.set_result(None)
        finally:
            self._writing = None

    def _write_and_sync(self, data: bytes) -> None:
        with naming_output(self._path):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            os.fsync(self._file)


def _cut_torn_line(file: int) -> None:
    """Cut off whatever follows the last line feed."""
    size = end = os.fstat(file).st_size
    while end:
        start = max(0, end - _TAIL)
        at = os.pread(file, end - start, start).rfind(b"\n")
        if at >= 0:
            end = start + at + 1
            break
        end = start
    if end != size:
        os.ftruncate(file, end)
        os.fsync(file)
