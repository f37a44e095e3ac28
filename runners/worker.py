"""One worker: opens the models once, then scores the shards that it is handed.

Run as a module it is a child process that speaks JSON lines: a ``WorkerSpec`` and then shards on standard input;
progress, summaries and errors on standard output. (A child started by its own command needs no ``__main__`` guard in
the program that called ``tallymill.sweep``, and works from a notebook.)
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol, TextIO

from tallymill.engine.pipeline import Report
from tallymill.engine.sessions.base import AFTER_A_FAILURE, is_of_the_device, told_of
from tallymill.engine.settings import Settings
from tallymill.errors import DeviceError, TallymillError
from tallymill.runners.build import build_pipeline, require_recorded
from tallymill.runners.plan import ItemFile, Shard
from tallymill.runners.run_folder import RunFolder, ensemble_of, plan_of, stamps_of
from tallymill.runners.shard import score_shard
from tallymill.runners.sink import ShardSummary, Sink
from tallymill.runners.writing import told


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """All that a worker needs: the RUN folder, its record, the model file of each detector, and the devices.

    A worker uses the first device; the k-th of several is given those :meth:`of_worker` k.
    """

    run: str
    record: dict[str, Any]
    models: dict[str, str | None]
    devices: Sequence[str] = ("cpu",)

    def of_worker(self, number: int) -> WorkerSpec:
        """What the worker of this number, from 0, is told: devices are dealt in turn."""
        return replace(self, devices=(self.devices[number % len(self.devices)],))


class Worker:
    """The pipeline and sink of one RUN, in this process."""

    def __init__(self, spec: WorkerSpec) -> None:
        record, run = spec.record, RunFolder(Path(spec.run))
        self._device = spec.devices[0]
        require_recorded(record, spec.models)
        self._pipe = build_pipeline(
            ensemble_of(record),
            {name: None if path is None else Path(path) for name, path in spec.models.items()},
            Settings.from_dict(record["settings"]),
            plan_of(record),
            image_root=record["manifest"]["image_root"],
            keep_suppressed=record["keep_suppressed"],
            device=self._device,
        )
        self._sink = Sink(run.path, stamps_of(record), keep_suppressed=record["keep_suppressed"])
        self._items = ItemFile(run.items_path)

    def score(self, shard: Shard, report: Report) -> ShardSummary:
        """Score one shard (see ``score_shard``)."""
        with naming_the_device(self._device):
            return score_shard(shard, self._items, self._pipe, self._sink, report)

    def close(self) -> None:
        """Close the files that are held open."""
        self._items.close()
        self._pipe.reader.close()


class ShardWorker(Protocol):
    """What scores the shards of a RUN, of whichever kind it is."""

    def score(self, shard: Shard, report: Report) -> ShardSummary:
        """Do one shard and commit it; ``report(items, failed)`` as it goes."""
        ...

    def close(self) -> None:
        """Close the files that are held open."""
        ...


def open_worker(spec: WorkerSpec) -> ShardWorker:
    """The worker for a RUN: ``kind`` of its record says of what; a sweep's says nothing."""
    if spec.record.get("kind") == "abacus":
        from tallymill.runners.abacus.work import EditWorker

        return EditWorker(spec)
    return Worker(spec)


def main() -> None:
    """Serve shards until standard input ends."""
    send = _sender()
    try:
        _limit_threads()
        spec = WorkerSpec(**json.loads(sys.stdin.readline()))
        _use(spec.devices[0])
        worker = open_worker(spec)
        for line in sys.stdin:
            shard = Shard(**json.loads(line))
            summary = worker.score(shard, lambda items, failed: send({"items": items, "failed": failed}))
            send({"done": summary.as_dict()})
        worker.close()
    except BrokenPipeError:  # the parent is gone
        sys.exit(1)
    except OSError as exc:  # a file that may not be read, a network that is gone
        send({"error": {"kind": "TallymillError", "message": told(exc), "hint": None}})
    except TallymillError as exc:
        send({"error": {"kind": type(exc).__name__, "message": exc.message, "hint": exc.hint}})
    except Exception:  # the boundary of the process: whatever it was, the parent shows it
        send({"crash": traceback.format_exc()})


def _sender() -> Callable[[dict[str, Any]], None]:
    """Keep standard output for messages alone: what a library prints goes to standard error instead."""
    channel: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        channel.write(json.dumps(message) + "\n")
        channel.flush()

    return send


def _limit_threads() -> None:
    """One thread a worker: images run in parallel, and results do not depend on how."""
    import cv2
    import pyarrow as pa

    cv2.setNumThreads(1)
    pa.set_cpu_count(1)


@contextmanager
def naming_the_device(device: str) -> Iterator[None]:
    """What torch raises of a card, and anybody of memory, between one model and the next, as the error that a session
    would raise.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as exc:
        if not is_of_the_device(device, exc):
            raise
        raise DeviceError(told_of(device, exc), hint=AFTER_A_FAILURE) from exc


def _use(device: str) -> None:
    """Make a card the current one of this process, so that no library opens another by default."""
    if device != "cpu" and find_spec("torch") is not None:
        torch: Any = importlib.import_module("torch")
        if torch.cuda.is_available():
            torch.cuda.set_device(device)


def shard_message(shard: Shard) -> str:
    """The line that hands a shard to a child process."""
    return json.dumps(asdict(shard)) + "\n"


def spec_message(spec: WorkerSpec) -> str:
    """The line that starts a child process off."""
    return json.dumps(asdict(spec)) + "\n"


if __name__ == "__main__":
    main()
