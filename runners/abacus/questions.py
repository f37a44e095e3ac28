"""Yes or no: the crops of instances that not both detectors confirmed, sent to a model, and its answers kept.

What asks is what asks the questions of PhysCount: the same pace, attempts, doubts, and log that survives a kill.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tallymill.engine.abacus.resolve import PROMPT, parse_answer, question
from tallymill.engine.abacus.verdicts import is_question
from tallymill.engine.physcount.parse import text_of
from tallymill.engine.physcount.run_files import ANSWERED, ANSWERS, read_answers
from tallymill.engine.sources.reader import image_hash
from tallymill.errors import RunError
from tallymill.runners.abacus.work import evidence_path
from tallymill.runners.files import write_json
from tallymill.runners.parts import naming_damage
from tallymill.runners.physcount.answers import AnswerLog
from tallymill.runners.physcount.ask import CONCURRENCY, in_thread
from tallymill.runners.physcount.asking import Asking, Job
from tallymill.runners.physcount.client import Endpoint
from tallymill.runners.physcount.effort import Effort
from tallymill.runners.physcount.pace import Patience
from tallymill.runners.physcount.plan import AUTO, AskSettings, ImageRequests, Request
from tallymill.runners.plan import Shard
from tallymill.runners.run_folder import RunFolder
from tallymill.runners.sweep import SweepProgress

_COLUMNS = ("edit_id", "status")
_FIELDS = ("category", "votes", "crop")


@dataclass(frozen=True, slots=True)
class Asked:
    """Who is asked, and how."""

    endpoint: Endpoint
    model: str
    patience: Patience = field(default_factory=Patience)
    concurrency: int = CONCURRENCY
    settings: AskSettings = field(default_factory=AskSettings)


def ask_questions(
    run: RunFolder, record: dict[str, Any], shards: Iterable[Shard], asked: Asked, progress: SweepProgress
) -> None:
    """Ask about every crop of the shards that was not asked about before; whatever comes is in ``answers.jsonl``.

    Raises ``RunError`` where another model has answered before, and where no request can succeed.
    """
    with AnswerLog(run.path / ANSWERS) as log, tempfile.TemporaryDirectory(prefix="tallymill-") as scratch:
        answered = {name for row in read_answers(run.path) if row["status"] == ANSWERED for name in row["question_ids"]}
        record = _recorded(run, record, asked, answered=bool(answered))
        total, work = 0, []
        for total, (name, edit_id, one) in enumerate(_questions(run.path, shards), 1):
            if name not in answered:
                work.append(_written(Path(scratch) / f"{total}.png", name, edit_id, one))
        if not work:
            return
        effort = record["question"]["reasoning_effort"]
        job = Job(work, asked.model, asked.settings, asked.patience, asked.concurrency, total, not answered)
        asking = Asking(job, Effort(effort), log, progress, settle=partial(_with_effort, run, record))
        in_thread(asking, asked.endpoint, _nothing)


def answers_of(run: Path) -> dict[str, tuple[bool | None, str | None]]:
    """By question what was understood (None: neither yes nor no) and what was said; the last answer counts."""
    found: dict[str, tuple[bool | None, str | None]] = {}
    for row in read_answers(run):
        if row["status"] == ANSWERED:
            said = text_of(row.get("response"))
            understood = None if row.get("finish_reason") == "length" else parse_answer(said)
            found.update(dict.fromkeys(row["question_ids"], (understood, said)))
    return found


def question_id(edit_id: str, place: int, crop: bytes) -> str:
    """What a question is called: the edit, the place of the instance among its instances, and what was shown of it.

    Evidence that is made anew from other images shows something else, and an answer is to what was shown.
    """
    return f"{edit_id}#{place}:{image_hash(crop)}"


def _questions(run: Path, shards: Iterable[Shard]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(name of the question, edit, instance) of every crop."""
    columns = [*_COLUMNS, *(f"instances.list.element.{name}" for name in _FIELDS)]
    for shard in shards:
        path = evidence_path(run, shard)
        with naming_damage(path):
            rows = pq.ParquetFile(path).read(columns).to_pylist()
        for row in rows:
            for place, one in enumerate(row["instances"] or ()):
                if is_question(one):
                    yield question_id(row["edit_id"], place, one["crop"]), row["edit_id"], one


def _written(file: Path, name: str, edit_id: str, one: dict[str, Any]) -> ImageRequests:
    """A crop as a file, with what is asked of it."""
    file.write_bytes(one["crop"])
    return ImageRequests(file, (Request((name,), edit_id, question(one["category"])),))


def _recorded(run: RunFolder, record: dict[str, Any], asked: Asked, *, answered: bool) -> dict[str, Any]:
    """The record with who is asked; answers of two models are not mixed."""
    before = record.get("question")
    if answered and before is not None and (before["model"], before["prompt"]) != (asked.model, PROMPT):
        raise RunError(
            f"{run.path}: its questions were answered by {before['model']!r}",
            hint=f"name that --model, or remove {run.path / ANSWERS} to ask all of them anew",
        )
    effort = before["reasoning_effort"] if before is not None and answered else AUTO
    now = {"model": asked.model, "endpoint": asked.endpoint.shown, "prompt": PROMPT, "reasoning_effort": effort}
    changed = {**record, "question": now}
    if changed != record:
        write_json(run.record_path, changed)
    return changed


def _with_effort(run: RunFolder, record: dict[str, Any], effort: str | None) -> None:
    write_json(run.record_path, {**record, "question": {**record["question"], "reasoning_effort": effort}})


def _nothing() -> None:
    """A server of somebody else's is not ours to look after."""
