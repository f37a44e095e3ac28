"""The answers to score: those of a RUN that asked, or of anybody's file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tallymill.engine.manifests.base import Faults, brief
from tallymill.engine.physcount.data import Dataset, Size
from tallymill.engine.physcount.lines import bytes_of, lines
from tallymill.engine.physcount.parse import (
    MAX_COUNT,
    MISSING,
    LongNumber,
    Parsed,
    Rule,
    parse_answer,
    parse_joint,
    parse_prediction,
)
from tallymill.engine.physcount.run_files import ANSWERED, ANSWERS, RECORD, REFUSED, read_answers, read_record
from tallymill.engine.words import counted, listed
from tallymill.errors import ManifestError, RunError

_A_LINE = '{"question_id": "…", "response": "13"}'
# Files that somebody may take for predictions; of anything else the lines tell whether they are JSON.
_OTHER_FORMS = frozenset({".csv", ".tsv", ".parquet", ".xlsx"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What one question got. ``response`` is as it came, a number that Python does not hold as its text (a
    ``LongNumber`` inside a list or an object); ``error`` says why there is none, which the server ``refused`` for good
    or which failed for now.
    """

    parsed: Parsed
    response: Any = None
    error: str | None = None
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Predictions:
    """An answer for every question of ``dataset``, which is cut to what was asked where only a part was.

    ``mode`` is "independent", "joint" or "file". ``missing`` are questions without an answer, by id. Among them are, of
    a RUN, those that the server ``refused`` and those that ``failed``, which tell why, and those ``unasked`` yet.
    ``unknown`` ids are of no question, ``duplicates`` are answered more than once, in the same words. ``whole`` is the
    size of the set that ``dataset`` was cut from, ``sha256`` that of a file.
    """

    name: str
    path: str
    mode: str
    dataset: Dataset
    answers: dict[str, Answer]
    missing: list[str]
    failed: dict[str, str]
    unknown: list[str]
    duplicates: list[str]
    notes: list[str] = field(default_factory=list)
    record: dict[str, Any] | None = None
    refused: dict[str, str] = field(default_factory=dict)
    unasked: list[str] = field(default_factory=list)
    whole: Size | None = None
    sha256: str | None = None


def read_predictions(
    path: str | Path, dataset: Dataset, *, rule: Rule = "strict", max_count: int = MAX_COUNT, name: str | None = None
) -> Predictions:
    """Read a RUN folder, or a JSONL file with ``question_id`` and ``response`` (a text) or ``prediction`` (a count).

    Raises ``ManifestError`` for lines that cannot be read and for questions that have two different answers in a file,
    ``RunError`` for a RUN that asked about other data.
    """
    place = Path(path)
    if place.is_dir():
        return _of_run(place, dataset, rule, max_count, name)
    if place.name == ANSWERS and (place.parent / RECORD).is_file():
        raise ManifestError(f"{place}: belongs to a RUN", hint=f"give the folder: {place.parent}")
    if place.suffix.lower() in _OTHER_FORMS:
        raise ManifestError(f"{place}: a JSONL file is wanted", hint=f"a line a question: {_A_LINE}")
    return _of_file(place, dataset, rule, max_count, name)


def predictions_of(
    name: str, dataset: Dataset, answers: Mapping[str, Answer], group_ids: Collection[str]
) -> Predictions:
    """Answers that are at hand, by question, over some groups: their other questions are missing."""
    return replace(_told(name, Path(), "file", cut(dataset, group_ids), answers, []), whole=dataset.size)


def _of_file(path: Path, dataset: Dataset, rule: Rule, max_count: int, name: str | None) -> Predictions:
    given: dict[str, Mapping[str, Any]] = {}
    answers: dict[str, Answer] = {}
    first: dict[str, int] = {}
    duplicates: list[str] = []
    data, faults = bytes_of(path), Faults(str(path))
    for at, number, row in lines(path.name, data, faults):
        key = _key(row, at, faults)
        if key is None:
            continue
        if key not in given:
            given[key], first[key] = row, number
            answers[key] = Answer(_parsed(row, at, faults, rule, max_count), _kept(row))
        elif _said(row) == _said(given[key]):
            duplicates.append(key)
        else:
            faults.add(at, f"another answer than in line {first[key]}", column="question_id", value=key)
    faults.raise_if_any("mend or remove these lines; nothing was scored")
    told = _told(name or path.stem, path, "file", dataset, answers, list(dict.fromkeys(duplicates)))
    return replace(told, notes=[*_strange(told, len(answers))], sha256=hashlib.sha256(data).hexdigest())


def _strange(told: Predictions, ids: int) -> Iterator[str]:
    """What to say of a file with many ids of other data; an error where it has nothing else."""
    unknown = len(told.unknown)
    if not ids:
        raise ManifestError(f"{told.path}: no predictions in it", hint=f"a line a question: {_A_LINE}")
    if unknown == ids:
        some = listed([brief(key) for key in told.unknown], 3)
        raise ManifestError(
            f"{told.path}: none of its {counted(unknown, 'question id')} is in {told.dataset.root}: {some}",
            hint="is this the right --data? Its ids are such as " + brief(told.dataset.questions[0].question_id),
        )
    if unknown > ids / 2:
        yield (
            f"Most ids of the file ({unknown:,} of {ids:,}) are of no question of {told.dataset.root}: "
            "is this the right data?"
        )


def _key(row: Mapping[str, Any], at: str, faults: Faults) -> str | None:
    """The id of the question that a line is about, as text; None where the line is at fault."""
    key = row.get("question_id")
    key = str(key) if isinstance(key, int | LongNumber) and not isinstance(key, bool) else key
    if "question_id" not in row:
        faults.add(at, f"no question_id (it has {listed(sorted(map(str, row)), 5) or 'nothing'})")
    elif not isinstance(key, str):
        faults.add(at, "must be a text", column="question_id", value=key)
    elif "response" not in row and "prediction" not in row:
        faults.add(at, "has neither response nor prediction", value=sorted(row))
    else:
        return key
    return None


def _parsed(row: Mapping[str, Any], at: str, faults: Faults, rule: Rule, max_count: int) -> Parsed:
    """What a response or a prediction comes to. A line may have both where they agree, as our own files do."""
    found = []
    if "response" in row:
        finish = row.get("finish_reason")
        found.append(parse_answer(row["response"], finish_reason=finish, rule=rule, max_count=max_count))
    if "prediction" in row:
        found.append(parse_prediction(row["prediction"], rule=rule, max_count=max_count))
    if found[0].value != found[-1].value:
        response, prediction = (one.status if one.value is None else one.value for one in found)
        faults.add(at, f"its response is read as {response}, its prediction as {prediction}: keep one of the two")
    return found[0]


def _kept(row: Mapping[str, Any]) -> Any:
    value = row.get("response", row.get("prediction"))
    return str(value) if isinstance(value, LongNumber) else value


def _said(row: Mapping[str, Any]) -> str:
    """What must be alike in two answers that are the same: 3 is not 3.0, nor 1 true, nor nothing null."""
    said = {name: row[name] for name in ("response", "prediction") if name in row}
    return json.dumps([said, row.get("finish_reason")], sort_keys=True, default=lambda number: f"the number {number}")


def _of_run(run: Path, dataset: Dataset, rule: Rule, max_count: int, name: str | None) -> Predictions:
    record = read_record(run)
    own = record["data"]["sha256"]
    differ = [name for name in sorted({*own, *dataset.sha256}) if own.get(name) != dataset.sha256.get(name)]
    if differ:
        raise RunError(
            f"{run}: its questions were of other data: {listed(differ, 3)} differs from {dataset.root}",
            hint="score it with the data that it was asked about",
        )
    mode = record["mode"]
    selected = record["selection"]["group_ids"]
    strange = [brief(key) for key in selected or () if key not in dataset.groups]
    if strange:
        raise RunError(
            f"{run / RECORD}: selection.group_ids names no group of {dataset.root}: {listed(strange, 3)}",
            hint="restore run.json",
        )
    asked = dataset if selected is None else cut(dataset, selected)
    answers: dict[str, Answer] = {}
    for row in read_answers(run):
        if mode == "independent" and len(row["question_ids"]) != 1:
            raise RunError(
                f"{run / ANSWERS}: one answer to {brief(row['question_ids'])}, where mode in {RECORD} is independent",
                hint="restore run.json",
            )
        answers.update(_answers_of(row, mode, rule, max_count))
    notes = []
    if selected is not None:
        notes.append(f"Only {len(asked.groups):,} of {len(dataset.groups):,} groups were asked about.")
    told = _told(name or record["model"], run, mode, asked, answers, [])
    return replace(
        told,
        record=record,
        notes=notes,
        unasked=[key for key in told.answers if key not in answers],
        whole=dataset.size,
    )


def _answers_of(row: Mapping[str, Any], mode: str, rule: Rule, max_count: int) -> dict[str, Answer]:
    ids, response, error = row["question_ids"], row.get("response"), row.get("error")
    if row.get("status") != ANSWERED:
        refused = row.get("status") == REFUSED
        return {key: Answer(MISSING, None, str(error or row.get("status")), refused) for key in ids}
    finish = row.get("finish_reason")
    if mode == "joint":
        found = parse_joint(response, len(ids), finish_reason=finish, rule=rule, max_count=max_count)
    else:
        found = [parse_answer(response, finish_reason=finish, rule=rule, max_count=max_count)]
    return {key: Answer(parsed, response) for key, parsed in zip(ids, found, strict=True)}


def cut(dataset: Dataset, group_ids: Collection[str]) -> Dataset:
    """The dataset with some of its groups only."""
    wanted = set(group_ids)
    groups = {key: group for key, group in dataset.groups.items() if key in wanted}
    questions = tuple(question for question in dataset.questions if question.group_id in wanted)
    return replace(dataset, groups=groups, questions=questions)


def _told(
    name: str, path: Path, mode: str, dataset: Dataset, answers: Mapping[str, Answer], duplicates: list[str]
) -> Predictions:
    ids = {question.question_id for question in dataset.questions}
    found = {key: answers.get(key, Answer(MISSING)) for key in (q.question_id for q in dataset.questions)}
    return Predictions(
        name=name,
        path=str(path),
        mode=mode,
        dataset=dataset,
        answers=found,
        missing=[key for key, answer in found.items() if answer.parsed.status == "missing"],
        failed=_why(found, refused=False),
        unknown=[key for key in answers if key not in ids],
        duplicates=duplicates,
        refused=_why(found, refused=True),
        whole=dataset.size,
    )


def _why(answers: Mapping[str, Answer], *, refused: bool) -> dict[str, str]:
    """The errors of what was refused, or of what failed."""
    errors = ((key, one.error) for key, one in answers.items() if one.refused is refused)
    return {key: error for key, error in errors if error is not None}
