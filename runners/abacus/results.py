"""From the evidence of a RUN, and answers where there are any, to a row an edit and to the table: without a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tallymill.engine.abacus.data import EDIT, Edit
from tallymill.engine.abacus.instructions import OPERATIONS
from tallymill.engine.abacus.score import RESAMPLES, Edits, Row, row_of, spearman
from tallymill.engine.abacus.settings import EditSettings
from tallymill.engine.abacus.tiers import TIERS
from tallymill.engine.abacus.verdicts import outcome
from tallymill.engine.numbench.scores import SCORED
from tallymill.runners.abacus.plan import places
from tallymill.runners.abacus.questions import answers_of, question_id
from tallymill.runners.abacus.work import evidence_path
from tallymill.runners.parts import naming_damage
from tallymill.runners.plan import Shard
from tallymill.runners.run_folder import RunFolder

ALL = "all"
_SEEN = ("resized", "annotated", "crowd", "structure", "appearance", "background", "source_hash", "edited_hash")
_FIELDS = ("image", "category", "origin", "box", "partner", "votes")
# ``delivered`` d, ``lost`` N_rem, ``originals`` N_GT; ``score`` is the product of the three; ``asked`` of the
# ``candidates`` were not confirmed by both detectors, and ``resolved`` of these got a yes or a no. ``verdicts`` and
# ``answers`` are one an instance, in the order of the evidence.
SCORES = pa.schema(
    [
        *EDIT,
        pa.field("status", pa.string()),
        pa.field("delivered", pa.int32()),
        pa.field("lost", pa.int32()),
        pa.field("originals", pa.int32()),
        pa.field("cf", pa.float64()),
        pa.field("sc", pa.float64()),
        pa.field("oc", pa.float64()),
        pa.field("score", pa.float64()),
        pa.field("candidates", pa.int32()),
        pa.field("asked", pa.int32()),
        pa.field("resolved", pa.int32()),
        pa.field("repaired", pa.int32()),
        pa.field("failures", pa.list_(pa.string())),
        pa.field("verdicts", pa.list_(pa.string())),
        pa.field("answers", pa.list_(pa.string())),
        pa.field("resized", pa.bool_()),
        pa.field("annotated", pa.bool_()),
        pa.field("crowd", pa.int32()),
        pa.field("structure", pa.float64()),
        pa.field("appearance", pa.float64()),
        pa.field("background", pa.float64()),
        pa.field("source_hash", pa.string()),
        pa.field("edited_hash", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class Group:
    """A row of the table with the edits that it is of: ``by`` names the column, or is "all"; ``of`` the editor."""

    by: str
    value: str
    of: str
    row: Row


@dataclass(frozen=True, slots=True)
class HumanAgreement:
    """``exact``: share of the ``edits`` with a human count whose d is equal to it. ``spearman``: rank correlation of
    Score with ratings, over ``rated`` edits; None where either does not vary.
    """

    edits: int
    exact: float | None
    rated: int
    spearman: float | None


@dataclass(frozen=True, slots=True)
class Results:
    """What a RUN came to; ``scores`` has a row an edit."""

    scores: pa.Table
    groups: list[Group]
    agreement: HumanAgreement
    counts: dict[str, int] = field(default_factory=dict)


def score_evidence(run: Path, shards: Sequence[Shard], settings: EditSettings) -> pa.Table:
    """A row of ``SCORES`` for every edit of the shards, all of which are done, in the order of the manifest."""
    answers = answers_of(run)
    batches = [
        pa.RecordBatch.from_pylist(list(_rows(run, shard, settings, answers)), schema=SCORES) for shard in shards
    ]
    order = np.argsort(places(RunFolder(run).items_path, shards))
    return pa.Table.from_batches(batches, schema=SCORES).take(pa.array(order))


def _rows(
    run: Path, shard: Shard, settings: EditSettings, answers: Mapping[str, tuple[bool | None, str | None]]
) -> Iterator[dict[str, Any]]:
    path = evidence_path(run, shard)
    fields = (*_FIELDS, "crop") if answers else _FIELDS
    columns = [*EDIT.names, "status", "scene", *_SEEN, *(f"instances.list.element.{name}" for name in fields)]
    with naming_damage(path):
        rows = pq.ParquetFile(path).read(columns).to_pylist()
    for row in rows:
        yield (
            _scored(row, settings, answers)
            if row["status"] == SCORED
            else {**dict.fromkeys(SCORES.names), **_known(row)}
        )


def _known(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in (*EDIT.names, "status", *_SEEN)}


def _scored(
    row: dict[str, Any], settings: EditSettings, answers: Mapping[str, tuple[bool | None, str | None]]
) -> dict[str, Any]:
    instances = row["instances"]
    said = [_said(answers, row["edit_id"], place, one.get("crop")) for place, one in enumerate(instances)]
    found = outcome(Edit.of(row), instances, [understood for understood, _ in said], settings.pair_iou)
    scene = row["scene"]
    return _known(row) | {
        "delivered": found.delivered,
        "lost": found.lost,
        "originals": found.originals,
        "cf": found.cf,
        "sc": scene,
        "oc": found.oc,
        "score": None if scene is None else found.cf * scene * found.oc,
        "candidates": found.candidates,
        "asked": found.asked,
        "resolved": found.resolved,
        "repaired": sum(one["origin"] == "repaired" for one in instances),
        "failures": list(found.failures),
        "verdicts": list(found.verdicts),
        "answers": [text for _, text in said],
    }


def _said(
    answers: Mapping[str, tuple[bool | None, str | None]], edit_id: str, place: int, crop: bytes | None
) -> tuple[bool | None, str | None]:
    return (None, None) if crop is None else answers.get(question_id(edit_id, place, crop), (None, None))


def results_of(scores: pa.Table, resamples: int = RESAMPLES) -> Results:
    """The table of a RUN: over all edits, by operation, tier and editor, and of each of several editors the same."""
    table = scores.filter(pc.equal(scores["status"], SCORED))
    edits = _edits(table)
    columns = {name: table[name].to_pylist() for name in ("operation", "tier", "editor")}
    everything = np.ones(len(table), np.bool_)
    groups = [Group(ALL, ALL, ALL, row_of(edits, resamples))]
    groups += _split(edits, columns, everything, ALL, resamples)
    editors = _values(columns["editor"], ())
    groups += [
        Group("editor", name, name, row_of(edits.only(_is(columns["editor"], name)), resamples)) for name in editors
    ]
    if len(editors) > 1:
        for name in editors:
            groups += _split(edits, columns, _is(columns["editor"], name), name, resamples)
    return Results(scores, groups, _agreement(table), _counts(scores, table))


def _split(
    edits: Edits, columns: dict[str, list[Any]], chosen: NDArray[np.bool_], of: str, resamples: int
) -> list[Group]:
    """By operation, and by tier, of the chosen edits."""
    found = []
    for by, order in (("operation", OPERATIONS), ("tier", TIERS)):
        own = [value for value, kept in zip(columns[by], chosen.tolist(), strict=True) if kept]
        for value in _values(own, order):
            found.append(Group(by, value, of, row_of(edits.only(chosen & _is(columns[by], value)), resamples)))
    return found


def _edits(table: pa.Table) -> Edits:
    sources: dict[str, int] = {}
    image = [sources.setdefault(name, len(sources)) for name in table["source"].to_pylist()]
    factors = np.stack([_floats(table[name]) for name in ("cf", "sc", "oc")], axis=1)
    whole = [np.asarray(table[name].to_pylist(), np.int64) for name in ("delivered", "count")]
    return Edits(np.asarray(image, np.int64), whole[0], whole[1], factors)


def _floats(column: Any) -> NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in column.to_pylist()], np.float64)


def _values(column: Sequence[str | None], order: Sequence[str]) -> list[str]:
    """The values of a column, those of ``order`` first."""
    there = {value for value in column if value is not None}
    return [*(value for value in order if value in there), *sorted(there - {*order})]


def _is(column: Sequence[str | None], value: str) -> NDArray[np.bool_]:
    return np.array([each == value for each in column], np.bool_)


def _agreement(table: pa.Table) -> HumanAgreement:
    people = [
        (d, n)
        for d, n in zip(table["delivered"].to_pylist(), table["human_count"].to_pylist(), strict=True)
        if n is not None
    ]
    rated = [
        (score, rating)
        for score, rating in zip(table["score"].to_pylist(), table["human_rating"].to_pylist(), strict=True)
        if score is not None and rating is not None
    ]
    exact = sum(d == n for d, n in people) / len(people) if people else None
    return HumanAgreement(len(people), exact, len(rated), spearman(*zip(*rated, strict=True)) if rated else None)


def _counts(scores: pa.Table, table: pa.Table) -> dict[str, int]:
    """What is counted apart from the table."""
    failures = Counter(name for names in table["failures"].to_pylist() for name in names)
    verdicts = Counter(name for names in table["verdicts"].to_pylist() for name in names)
    return {
        "edits": len(scores),
        "scored": len(table),
        "error": len(scores) - len(table),
        "undefined": int(table["score"].null_count),
        "candidates": sum(table["candidates"].to_pylist()),
        "asked": sum(table["asked"].to_pylist()),
        "resolved": sum(table["resolved"].to_pylist()),
        "ambiguous": verdicts["ambiguous"],
        "repaired": sum(table["repaired"].to_pylist()),
        "resized": sum(map(bool, scores["resized"].to_pylist())),
        "without_annotation": sum(value is False for value in table["annotated"].to_pylist()),
        "crowd": sum(value or 0 for value in table["crowd"].to_pylist()),
        **{f"failure_{name}": number for name, number in sorted(failures.items())},
    }


def groups_as_rows(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """JSON-ready rows of the table."""
    return [{"by": g.by, "value": g.value, "of": g.of, **asdict(g.row)} for g in groups]
