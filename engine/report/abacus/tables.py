"""What a RUN of edits came to, as tables for a reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tallymill.engine.report.tables import NOTHING, Table
from tallymill.engine.report.text import score, share

_COLUMNS = ("CF", "SC", "OC", "Score", "mean of products", "exact count")
_NAMES = ("cf", "sc", "oc", "score", "mean_product", "exact")
NOTE = (
    "Score is the product of the three averages, with 95 % bootstrap intervals over source images; "
    "edits without a background have no SC, and are in no average."
)


def scores_table(groups: Sequence[Mapping[str, Any]]) -> Table:
    """CF, SC, OC and Score of every group of edits; ``groups`` as ``summary.json`` has them."""
    rows = []
    for group in groups:
        row = [group["of"], group["by"], group["value"], f"{group['edits']:,}", f"{group['undefined']:,}"]
        rows.append([*row, *(_estimate(group[name]) for name in _NAMES)])
    columns = ["editor", "by", "value", "edits", "without SC", *_COLUMNS]
    return Table("Edits", columns, rows, text=3, note=NOTE)


def counts_table(counts: Mapping[str, int]) -> Table:
    """What was counted apart: failures by kind, instances that were asked about, rows that are told."""
    names = {
        "failure_undershoot": "too few delivered",
        "failure_overshoot": "too many delivered",
        "failure_overwritten": "originals overwritten",
        "failure_elsewhere": "painted elsewhere",
        "undefined": "without a background to compare",
        "resized": "edited image of another size",
        "without_annotation": "without ground truth",
        "error": "not scored",
    }
    whole = counts["edits"]
    rows = [[words, f"{counts.get(name, 0):,}", _part(counts.get(name, 0), whole)] for name, words in names.items()]
    return Table("Edits that", ["what", "edits", "share"], rows)


def instances_table(counts: Mapping[str, int]) -> Table:
    """How instances came to be confirmed."""
    names = {
        "candidates": "to be confirmed",
        "asked": "not confirmed by both detectors",
        "resolved": "of these, resolved by the question",
        "ambiguous": "left ambiguous, and not counted",
        "repaired": "segmented, and not annotated",
        "crowd": "crowd segments left out",
    }
    whole = counts["candidates"]
    rows = [
        [
            words,
            f"{counts.get(name, 0):,}",
            _part(counts.get(name, 0), whole) if name in ("asked", "resolved", "ambiguous") else "",
        ]
        for name, words in names.items()
    ]
    return Table("Instances", ["what", "instances", "share of candidates"], rows)


def agreement_table(agreement: Mapping[str, Any]) -> Table:
    """d beside the counts of people, and Score beside their ratings; no rows where there are none."""
    rows = []
    if agreement["edits"]:
        rows.append(["edits with d equal to the human count", f"{agreement['edits']:,}", share(agreement["exact"])])
    if agreement["rated"]:
        rows.append(["rank correlation of Score and rating", f"{agreement['rated']:,}", score(agreement["spearman"])])
    return Table("Agreement with people", ["what", "edits", "value"], rows)


def tables_of(summary: Mapping[str, Any]) -> list[Table]:
    """All of them, in the order of reading; those without rows are left out."""
    reasons = [[text, f"{number:,}", first] for text, number, first in summary["reasons"]]
    found = [
        scores_table(summary["table"]),
        counts_table(summary["counts"]),
        instances_table(summary["counts"]),
        agreement_table(summary["agreement"]),
        Table("Why edits have no score", ["reason", "edits", "first"], reasons),
    ]
    return [table for table in found if table.rows]


def _estimate(value: Mapping[str, Any]) -> str:
    text = score(value["value"])
    return text if value["low"] is None else f"{text} [{score(value['low'])}, {score(value['high'])}]"


def _part(number: int, whole: int) -> str:
    return share(number / whole) if whole else NOTHING
