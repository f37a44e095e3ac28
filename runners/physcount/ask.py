"""``physcount ask``: every question of a dataset sent to a model, every answer kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tallymill.engine.physcount.data import Dataset, read_dataset
from tallymill.engine.physcount.predictions import cut
from tallymill.engine.physcount.run_files import ANSWERED, ANSWERS, read_answers, read_record
from tallymill.engine.words import counted
from tallymill.errors import OutputError, UsageError
from tallymill.runners.files import made_for, remove_leftovers, write_json
from tallymill.runners.physcount.answers import AnswerLog
from tallymill.runners.physcount.asking import Asking, Job, Speed
from tallymill.runners.physcount.client import KEY_VARIABLE, Endpoint, endpoint_of, read_key
from tallymill.runners.physcount.effort import Effort
from tallymill.runners.physcount.pace import Patience, Window
from tallymill.runners.physcount.plan import AskSettings, chosen, lay_out
from tallymill.runners.physcount.record import asked_of, begin, continue_with, make_record, with_effort
from tallymill.runners.physcount.serve import LOG, Serve, Server
from tallymill.runners.physcount.summary import SUMMARY, AskSummary, is_over, last_of_each, last_speed, summarise
from tallymill.runners.run_folder import RunFolder
from tallymill.runners.sweep import Quiet, SweepProgress

CONCURRENCY = 64


def ask(
    data: str | Path,
    out: str | Path,
    *,
    endpoint: str | None = None,
    model: str | None = None,
    serve: Serve | None = None,
    key_from: str = KEY_VARIABLE,
    settings: AskSettings | None = None,
    limit: int | None = None,
    groups: Sequence[str] = (),
    retry_refused: bool = False,
    concurrency: int = CONCURRENCY,
    patience: Patience | None = None,
    progress: SweepProgress | None = None,
) -> AskSummary:
    """Ask a model the questions of the dataset ``data``, or continue what was stopped in the RUN folder ``out``.

    Either ``endpoint`` is the base URL of an OpenAI-compatible server and ``model`` a name that it knows, or ``serve``
    says which model to start vLLM with. The key is read from the environment variable ``key_from`` and is written
    nowhere. ``groups`` and ``limit`` choose some groups, and the first of them. At most ``concurrency`` requests are in
    flight, fewer where the server asks for that.

    A request that failed for good (the server refused it) or for now is a record with its error, and no answer; the
    same call asks the latter again, and with ``retry_refused`` the former, too. Raises ``RunError`` when the folder was
    made with other settings, when another process works on it, and when no request can succeed: a wrong key, model or
    URL, a server that is gone, or one that refuses everything.
    """
    settings, patience = settings or AskSettings(), patience or Patience()
    Window(concurrency)
    target = _target(endpoint, model, serve, key_from)
    dataset = read_dataset(data)
    selected = chosen(dataset, limit, groups)
    record = make_record(
        dataset,
        settings,
        model=target.name,
        endpoint=None if target.endpoint is None else target.endpoint.shown,
        served=None if serve is None else serve.as_dict(),
        selection={"limit": limit, "groups": list(groups), "group_ids": selected},
    )
    with made_for(Path(out)):
        run = begin(out, record)
    asked = dataset if selected is None else cut(dataset, selected)
    with AnswerLog(run.path / ANSWERS) as log:
        remove_leftovers(run.path)
        rows = last_of_each(read_answers(run.path))
        moved = asked_of(read_record(run.path)) != record["endpoint"]
        answered = any(map(is_over, rows.values()))
        if rows and not answered:
            log.empty()  # failures of a call that may have had other settings: all of it is asked again
        record = continue_with(run, record, answered=answered)
        over = {question for question, row in rows.items() if is_over(row, retry_refused=retry_refused)}
        work = lay_out(asked, settings.mode, over)
        if not work:
            return _summarised(run, asked, last_speed(run.path))
        fresh = moved or not any(row["status"] == ANSWERED for row in rows.values())
        job = Job(work, target.name, settings, patience, concurrency, len(asked.questions), fresh)
        effort = Effort(record["settings"]["reasoning_effort"])
        asking = Asking(job, effort, log, progress or Quiet(), settle=partial(with_effort, run, record))
        return _send(asking, target, run, asked)


@dataclass(frozen=True, slots=True)
class _Target:
    """Who is asked: a model at an endpoint, or one that is to be served."""

    name: str
    endpoint: Endpoint | None
    serve: Serve | None
    key_from: str

    @contextmanager
    def there(self, log: Path) -> Iterator[tuple[Endpoint, Callable[[], None]]]:
        """The endpoint while it is needed, and what raises where it is known to be gone."""
        if self.serve is None:
            assert self.endpoint is not None
            yield self.endpoint, _nothing
            return
        with Server(self.serve, self.name, log, hidden=(self.key_from,)) as server:
            yield endpoint_of(server.url, proxies=False), server.check


def _target(endpoint: str | None, model: str | None, serve: Serve | None, key_from: str) -> _Target:
    if (endpoint is None) == (serve is None):
        raise UsageError(
            "name either an endpoint or a model to serve", hint="--endpoint URL --model NAME, or --serve MODEL"
        )
    if serve is not None:
        return _Target(model or serve.model, None, serve, key_from)
    assert endpoint is not None
    if not model:
        raise UsageError("--model is missing", hint="the name by which the server at --endpoint knows the model")
    return _Target(model, endpoint_of(endpoint, read_key(key_from)), None, key_from)


def _nothing() -> None:
    """A server of somebody else's is not ours to look after."""


def _send(asking: Asking, target: _Target, run: RunFolder, asked: Dataset) -> AskSummary:
    """Send everything; however that ends, ``summary.json`` says what the RUN has come to."""
    try:
        with target.there(run.path / LOG) as (endpoint, check):
            in_thread(asking, endpoint, check)
    except KeyboardInterrupt:
        kept = _summary(run, asked, asking.speed or last_speed(run.path))
        with suppress(OSError, OutputError):
            write_json(run.path / SUMMARY, kept.as_dict())
        raise KeyboardInterrupt(
            f"{kept.answered:,} of {counted(kept.questions, 'question')} are answered and kept; "
            "the same command goes on from there"
        ) from None
    except BaseException:
        with suppress(OSError, OutputError):  # the disk is full, say: that is what is raised already
            _summarised(run, asked, asking.speed or last_speed(run.path))
        raise
    return _summarised(run, asked, asking.speed)


def in_thread(asking: Asking, endpoint: Endpoint, check: Callable[[], None]) -> None:
    """Run the event loop beside this thread, which stays free for Ctrl-C and may have a loop of its own (Jupyter)."""
    with ThreadPoolExecutor(1, thread_name_prefix="ask") as pool:
        try:
            pool.submit(asyncio.run, asking.run(endpoint, check)).result()
        except KeyboardInterrupt:
            asking.stop()
            raise


def _summarised(run: RunFolder, asked: Dataset, speed: Speed | None) -> AskSummary:
    summary = _summary(run, asked, speed)
    write_json(run.path / SUMMARY, summary.as_dict())
    return summary


def _summary(run: RunFolder, asked: Dataset, speed: Speed | None) -> AskSummary:
    ids = [question.question_id for question in asked.questions]
    return summarise(run.path, read_record(run.path), ids, last_of_each(read_answers(run.path)), speed)
