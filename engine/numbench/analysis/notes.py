"""Sentences that a reader must have seen before the numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tallymill.engine.numbench.analysis.gather import Gathered, Tables
from tallymill.engine.numbench.analysis.images import MAX_LEVELS, MULTIPLE, UNKNOWN
from tallymill.engine.numbench.analysis.results import Coverage, SystemRow
from tallymill.engine.numbench.factors import RangeBy
from tallymill.engine.words import counted, listed

_RANGE_BY = {
    "mean": "The count range of an image with several counts is that of their mean, rounded up.",
    "per-target": "Each target has its own count range and its own score, clipped alone: in the tables of scores "
    "every target counts as an image. Failure families go by the larger count.",
}
_SHOWN = 3
# OW-DETR, Grounding DINO and OWL-ViT (paper, Evaluation).
PAPER_ENSEMBLE = "numbench"


def notes_of(
    gathered: Gathered,
    tables: Tables,
    rows: Sequence[SystemRow],
    runs: Sequence[Mapping[str, Any]],
    range_by: RangeBy,
) -> list[str]:
    """What there is to tell, the weightiest first."""
    return [
        *_of_runs(runs),
        *_of_images(rows),
        *_of_prompts(rows),
        *_of_factors(gathered, tables),
        *_of_coverage(tables.rows["coverage"]),
        *([_RANGE_BY[range_by]] if range_by in _RANGE_BY else []),
    ]


def _of_images(rows: Sequence[SystemRow]) -> Iterator[str]:
    for row in rows:
        if row.error or row.uncovered:
            parts = [f"{row.error:,} failed"] * (row.error > 0) + [f"{row.uncovered:,} uncovered"] * (row.uncovered > 0)
            lost = row.error + row.uncovered
            verbs = ("have", "are") if lost > 1 else ("has", "is")
            yield (
                f"{row.system}: {lost:,} of {counted(row.items, 'image')} {verbs[0]} no score "
                f"({', '.join(parts)}) and {verbs[1]} in no mean."
            )
        if not row.scored:
            yield f"{row.system}: no image has a score."
        if row.not_1024:
            yield f"{row.system}: {_are(row.not_1024, 'image')} not 1024 x 1024."
    several = [row for row in rows if row.samples_most > 1]
    for row in several:
        few = row.samples_least if row.samples_least == row.samples_most else f"{row.samples_least:,} to"
        much = "" if row.samples_least == row.samples_most else f" {row.samples_most:,}"
        yield (
            f"{row.system}: {few}{much} images a prompt; every image weighs the same, and the intervals draw all "
            "images of a core together."
        )


def _of_prompts(rows: Sequence[SystemRow]) -> Iterator[str]:
    for row in rows:
        if row.prompts and row.prompts_missing:
            lack = _have(row.prompts_missing, "prompt")
            yield (
                f"{row.system}: {lack} no image, of those that another system or the prompts file has; systems may "
                "differ for what they lack."
            )
        if row.items_without_prompt:
            yield (
                f"{row.system}: {counted(row.items_without_prompt, 'image')} without a prompt_id; without a core_id "
                "too, each stands for itself in resamples and contrasts."
            )


def _of_runs(runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What their detectors are, and how RUNs differ in what makes scores comparable."""
    others = sorted({run["ensemble"] for run in runs} - {PAPER_ENSEMBLE})
    if others:
        yield (
            f"Counted by {listed(others, _SHOWN)}, which is not the paper's ensemble: these scores do not compare with "
            "published ones, and what its detectors overlook or count twice is in them."
        )
    plain = [run["run"] for run in runs if all(detector["tau"] == 1.0 for detector in run["detectors"])]
    if plain:
        whose = "" if len(plain) == len(runs) else f"{listed(plain, _SHOWN)}: "
        yield (
            f"{whose}All temperatures are 1, so that confidences are as the detectors gave them and not calibrated; "
            "`tallymill calibrate` fits them to labelled images."
        )
    if len(runs) < 2:
        return
    first = runs[0]
    for name, words in (
        ("detectors", "detectors, models or temperatures"),
        ("schedule", "threshold schedules"),
        ("settings", "settings"),
    ):
        others = [run["run"] for run in runs[1:] if run[name] != first[name]]
        if others:
            yield f"{listed(others, _SHOWN)} was scored with other {words} than {first['run']}: scores do not compare."
    digests = {run["run"]: (run["manifest"].get("prompts") or {}).get("sha256") for run in runs}
    told = [name for name, digest in digests.items() if digest]
    others = [name for name in told if digests[name] != digests[told[0]]]
    if others:
        yield (
            f"{listed(others, _SHOWN)} was swept with another prompts file than {told[0]}: systems may differ for what "
            "they were asked."
        )


def _of_factors(gathered: Gathered, tables: Tables) -> Iterator[str]:
    axes, factors = tables.axes, gathered.factors
    for name, words, codes in (
        ("composition", axes.compositions, factors.compositions),
        ("layout", axes.layouts, factors.layouts),
        ("appearance", axes.appearances, factors.looks),
    ):
        if codes.full:
            yield f"The column {name} has more than {MAX_LEVELS} different values: it is not taken as a factor."
        elif set(words) <= {UNKNOWN} and name != "composition":
            yield f"No image tells its {name}: there are no tables of it. Sweep with --prompts to bring it in."
        elif UNKNOWN in words:
            yield f"Some images do not tell their {name}: they stand under “{UNKNOWN}”."
    if MULTIPLE in axes.compositions:
        yield f"Images that ask for three categories or more are of the composition “{MULTIPLE}”."
    if gathered.ranges_differ:
        yield (
            f"{_have(gathered.ranges_differ, 'image')} a count_range that is not that of the larger count; the tables "
            "go by the counts."
        )
    if tables.split_cores:
        spread = _have(tables.split_cores, "core")
        yield f"{spread} images of more than one composition or range, which are resampled apart."


def _of_coverage(rows: Sequence[Coverage]) -> Iterator[str]:
    by_system: dict[str, Counter[int]] = {}
    for row in rows:
        by_system.setdefault(row.system, Counter())[row.detectors] += row.scored
    for system, found in by_system.items():
        if len(found) > 1:
            parts = ", ".join(f"{images:,} by {number}" for number, images in sorted(found.items()))
            yield (
                f"{system}: not all scored images have counts of equally many detectors ({parts}); means take them "
                "together."
            )


def _have(number: int, what: str) -> str:
    return f"{counted(number, what)} {'has' if number == 1 else 'have'}"


def _are(number: int, what: str) -> str:
    return f"{counted(number, what)} {'is' if number == 1 else 'are'}"
