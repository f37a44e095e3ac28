"""``physcount score``: metrics of predictions, and two sets of them compared."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from tallymill import __version__
from tallymill.engine.physcount import score as engine
from tallymill.engine.physcount.data import FAMILIES, MOST_WHOLE, Dataset, read_dataset
from tallymill.engine.physcount.parse import MAX_COUNT, RULES, Rule
from tallymill.engine.physcount.predictions import Predictions, read_predictions
from tallymill.engine.physcount.results import Comparison, Scores
from tallymill.engine.physcount.run_files import RECORD
from tallymill.errors import UsageError
from tallymill.runners.files import appearing_together, encoded, made_for
from tallymill.runners.outputs import require_folder
from tallymill.runners.physcount.places import require_apart

FILES = ("scores.json", "groups.csv", "answers.jsonl")
Paths = str | Path | Iterable[str | Path]


def score(
    data: str | Path,
    predictions: Paths,
    out: str | Path | None = None,
    *,
    parse: Rule = "strict",
    max_count: int = MAX_COUNT,
    resamples: int = engine.RESAMPLES,
) -> list[Scores]:
    """The metrics of one or several sets of predictions (RUN folders or JSONL files), in the order given.

    ``parse`` is how a count is read from a response, ``max_count`` the largest that is taken for one; ``resamples`` of
    images make the intervals, 0 for none. With ``out``, a folder, the scores are also kept as ``FILES``.

    Raises ``ManifestError`` for faults of the data or of a file, ``RunError`` for a RUN over other data, ``UsageError``
    for settings that make no sense.
    """
    given = _given(predictions)
    if out is not None:
        _require_out(Path(out), given, Path(data))
    dataset = read_dataset(data)
    sets = read_all(dataset, given, parse=parse, max_count=max_count)
    found = [engine.score(one, resamples=resamples, rule=parse, max_count=max_count) for one in sets]
    if out is not None:
        _write(Path(out), found, sets)
    return found


def compare(
    data: str | Path,
    a: str | Path,
    b: str | Path,
    *,
    parse: Rule = "strict",
    max_count: int = MAX_COUNT,
    resamples: int = engine.RESAMPLES,
) -> Comparison:
    """``a`` minus ``b`` in every metric, paired by image, over the groups that both were asked; else as ``score``."""
    first, second = read_all(read_dataset(data), [a, b], parse=parse, max_count=max_count)
    return engine.compare(first, second, resamples=resamples, rule=parse, max_count=max_count)


def read_all(
    dataset: Dataset, paths: Paths, *, parse: Rule = "strict", max_count: int = MAX_COUNT
) -> list[Predictions]:
    """Several sets of predictions, each with a name of its own."""
    if parse not in RULES:
        raise UsageError(f"parse {parse!r}: must be one of {', '.join(RULES)}")
    if not 1 <= max_count <= MOST_WHOLE:
        raise UsageError(f"max_count {max_count}: must be 1 or more, {MOST_WHOLE:,} at most")
    given = _given(paths)
    if not given:
        raise UsageError("no predictions to score", hint="name a RUN folder or a JSONL file")
    found = [read_predictions(path, dataset, rule=parse, max_count=max_count) for path in given]
    named = [replace(one, name=name) for one, name in zip(found, _names(found), strict=True)]
    if len({one.name for one in named}) < len(named):
        raise UsageError("the same predictions are given twice")
    return named


def _given(paths: Paths) -> list[Path]:
    return [Path(path) for path in ([paths] if isinstance(paths, str | Path) else paths)]


def _require_out(out: Path, given: Sequence[Path], data: Path) -> None:
    """A folder to write into that is in no RUN nor the dataset's, and whose files are none that are read."""
    require_folder(out, *(path for path in given if path.is_file()), names=FILES)
    if (out / RECORD).exists():
        raise UsageError(f"--out {out} is a RUN, whose answers would be replaced", hint="choose another folder")
    if out.exists() and data.exists() and out.samefile(data):
        raise UsageError(f"--out {out} is the folder of the dataset", hint="choose another folder")
    require_apart(out, [out / name for name in FILES], data)


def _names(found: Sequence[Predictions]) -> list[str]:
    """Names that tell sets apart: of one model that it was asked jointly, the long edge, else where they lie."""
    names = [one.name for one in found]
    for tell in (_jointly, _edge):
        taken = Counter(names)
        alike: dict[str, set[str | None]] = {}
        for name, one in zip(names, found, strict=True):
            alike.setdefault(name, set()).add(tell(one))
        names = [
            f"{name}, {tell(one)}" if taken[name] > 1 and len(alike[name]) > 1 and tell(one) else name
            for name, one in zip(names, found, strict=True)
        ]
    taken = Counter(names)
    return [f"{name} ({one.path})" if taken[name] > 1 else name for name, one in zip(names, found, strict=True)]


def _jointly(one: Predictions) -> str | None:
    return "joint" if one.mode == "joint" else None


def _edge(one: Predictions) -> str | None:
    """The limit of the images' long edge in a RUN."""
    edge = None if one.record is None else one.record["settings"].get("long_edge")
    return f"{edge:,} px" if isinstance(edge, int) else None


def _write(out: Path, found: Sequence[Scores], sets: Sequence[Predictions]) -> None:
    answers = "".join(_json(row, default=str) + "\n" for one in sets for row in _answers(one))
    texts = dict(zip(FILES, (_scores(found), _groups(found), answers), strict=True))
    with made_for(out), appearing_together(out, FILES) as paths:
        for name, text in texts.items():
            paths[name].write_bytes(encoded(text))


def _json(value: Any, default: Callable[[Any], Any]) -> str:
    return json.dumps(value, default=default, allow_nan=False)


def _scores(found: Sequence[Scores]) -> str:
    """A JSON document with a line a set of predictions."""
    lines = ",\n".join(_json(one, default=_fields) for one in found)
    return f'{{"tallymill": {json.dumps(__version__)}, "scores": [\n{lines}\n]}}\n'


def _fields(value: Any) -> dict[str, Any]:
    """A dataclass for JSON, without the copies that ``asdict`` makes of all that is in it."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _groups(found: Sequence[Scores]) -> str:
    text = io.StringIO()
    columns = ["name", "group_id", "image_id", *(f"{f}_accuracy" for f in FAMILIES), "score", "exact", "questions"]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*columns, "phys_gnd"])
    for one in found:
        for row in one.groups:
            accuracies = [row.accuracy.get(family) for family in FAMILIES]
            numbers = [row.score, row.exact, row.questions, row.phys_gnd]
            writer.writerow([one.name, row.group_id, row.image_id, *accuracies, *numbers])
    return text.getvalue()


def _answers(one: Predictions) -> Iterator[dict[str, Any]]:
    """Every question with its raw response and what was made of it."""
    for question in one.dataset.questions:
        answer = one.answers[question.question_id]
        yield {
            "name": one.name,
            "question_id": question.question_id,
            "group_id": question.group_id,
            "question_type": question.family,
            "answer": question.answer,
            "prediction": answer.parsed.value,
            "status": answer.parsed.status,
            "response": answer.response,
            "error": answer.error,
        }
