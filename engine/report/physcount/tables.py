"""PhysCount's results as tables for a reader."""

from __future__ import annotations

from collections.abc import Sequence

from tallymill.engine.estimates import Estimate
from tallymill.engine.physcount.check import DatasetCheck
from tallymill.engine.physcount.data import FAMILIES
from tallymill.engine.physcount.published import PublishedRow, is_full
from tallymill.engine.physcount.results import Comparison, Difference, Part, Scores
from tallymill.engine.report.tables import NOTHING, Table, number
from tallymill.engine.words import counted, listed

PUBLISHED_MARK, PART_MARK = "†", "‡"
PUBLISHED_NOTE = f"{PUBLISHED_MARK} Published by the authors of PhysCount; not measured here."
# What stands in the place of an interval where all resamples agree.
NO_SPREAD = "no spread"
FAMILY_LETTERS = dict(zip(FAMILIES, "AEIC", strict=True))
FAMILY_WORDS = dict(zip(FAMILIES, ("Appearance", "Entity", "Image formation", "Correspondence"), strict=True))
METRIC_WORDS = {
    "score": "Score",
    "group_acc": "Group-Acc",
    "phys_gnd": "Phys-Gnd",
    **{
        f"{kind}.{family}": f"{FAMILY_LETTERS[family]}-{kind.upper()}" for kind in ("nae", "mae") for family in FAMILIES
    },
}


def leaderboard(found: Sequence[Scores], published: Sequence[PublishedRow] = ()) -> Table:
    """A row a set of predictions in the paper's columns, best first; published rows bear a mark, and so do sets of
    which not every question of the data was asked.
    """
    rows = [(one.headline.score.value, _own_row(one)) for one in found]
    rows += [(row.score, _published_row(row)) for row in published]
    rows.sort(key=lambda row: -1.0 if row[0] is None else -row[0])
    letters = [f"{letter}-{kind}" for letter in FAMILY_LETTERS.values() for kind in ("MAE", "NAE")]
    columns = ["model", "mode", *letters, "Score", "Group-Acc", "Phys-Gnd"]
    notes = [*((PUBLISHED_NOTE, apart(found)) if published else ()), part_note(found)]
    return Table("PhysCount", columns, [row for _, row in rows], text=2, note="\n".join(filter(None, notes)) or None)


def apart(found: Sequence[Scores]) -> str | None:
    """Why the published rows do not compare with what was found; None where they do."""
    other = next((one.whole for one in found if not is_full(one.whole)), None)
    if other is not None:
        return f"This is another set, of {counted(other.groups, 'group')}: they do not compare."
    return "They are over the whole set, and do not compare with a part of it." if part_note(found) else None


def in_part(one: Scores) -> bool:
    """Whether some questions of the data were not asked: such a Score has no rank among others."""
    return one.part or bool(one.unasked)


def part_note(found: Sequence[Scores]) -> str | None:
    """What the mark of sets means of which not every question of the data was asked; None where there is none."""
    said = [
        f"{one.name} {one.headline.groups:,} of {counted(one.whole.groups, 'group')}"
        if one.part
        else f"{one.name} without {len(one.unasked):,} of {counted(one.headline.questions, 'question')}"
        for one in found
        if in_part(one)
    ]
    return (
        f"{PART_MARK} Not every question was asked, so that it does not rank among the rest: {listed(said, 5)}."
        if said
        else None
    )


def _own_row(one: Scores) -> list[str]:
    values = [text for row in one.families for text in (number(row.mae.value), percent(row.nae.value))]
    headline = one.headline
    return [
        f"{one.name} {PART_MARK}" if in_part(one) else one.name,
        one.mode,
        *values,
        *(percent(value.value) for value in (headline.score, headline.group_acc, headline.phys_gnd)),
    ]


def _published_row(row: PublishedRow) -> list[str]:
    values = [t for f in FAMILIES for t in (number(row.mae.get(f)), percent(row.nae.get(f)))]
    name = f"{row.model}, {row.setting}" if row.setting else row.model
    mode = "joint" if "joint" in row.setting else "independent"
    return [f"{name} {PUBLISHED_MARK}", mode, *values, *map(percent, (row.score, row.group_acc, row.phys_gnd))]


def headline_table(found: Sequence[Scores]) -> Table:
    """The three aggregate metrics with their intervals, and what they are over."""
    drawn = any(one.settings["resamples"] for one in found)
    rows = [
        [
            one.name,
            *(f"{n:,}" for n in (one.headline.groups, one.headline.questions, one.statuses.valid)),
            *(rate(value, drawn=drawn) for value in _three(one)),
            f"{one.headline.grounded:,}",
        ]
        for one in found
    ]
    columns = ["model", "groups", "questions", "valid", "Score", "Group-Acc", "Phys-Gnd", "groups of Phys-Gnd"]
    title = "Score, with 95 % intervals over images" if drawn else "Score"
    return Table(title, columns, rows, note=spread_note(rows))


def _three(one: Scores | Part) -> tuple[Estimate, Estimate, Estimate]:
    return one.headline.score, one.headline.group_acc, one.headline.phys_gnd


def spread_note(rows: Sequence[Sequence[str]]) -> str | None:
    """What it means that an estimate has no interval; None where each has one."""
    if not any(f"({NO_SPREAD})" in text for row in rows for text in row):
        return None
    return f"{NO_SPREAD[0].upper()}{NO_SPREAD[1:]}: all resamples of images agree, so that there is no interval."


def families_table(found: Sequence[Scores]) -> Table:
    """Each question family with intervals."""
    drawn = any(one.settings["resamples"] for one in found)
    rows = [
        [
            one.name,
            FAMILY_WORDS[row.family],
            *(f"{n:,}" for n in (row.groups, row.questions, row.valid, row.exact)),
            rate(row.mae, digits=3, drawn=drawn),
            *(rate(value, drawn=drawn) for value in (row.nae, row.accuracy)),
        ]
        for one in found
        for row in one.families
        if row.questions
    ]
    columns = ["model", "family", "groups", "questions", "valid", "exact", "MAE", "NAE", "accuracy"]
    return Table("By question family", columns, rows, text=2, note=spread_note(rows))


def parts_table(found: Sequence[Scores]) -> Table:
    """Groups by the image-formation modes among their appearances."""
    rows = [
        [
            one.name,
            part.name,
            f"{part.headline.groups:,}",
            *(percent(row.nae.value) for row in part.families),
            *(rate(value, drawn=bool(one.settings["resamples"])) for value in _three(part)),
        ]
        for one in found
        for part in one.parts
    ]
    letters = [f"{letter}-NAE" for letter in FAMILY_LETTERS.values()]
    columns = ["model", "appearances are", "groups", *letters, "Score", "Group-Acc", "Phys-Gnd"]
    return Table("By image formation", columns, rows, text=2, note=spread_note(rows))


def counts_table(found: Sequence[Scores]) -> Table:
    """Questions by their true answer, of all families together."""
    rows = [
        [
            one.name,
            row.answers,
            *(f"{n:,}" for n in (row.questions, row.valid, row.exact)),
            percent(row.nae),
            number(row.bias, signed=True),
        ]
        for one in found
        for row in one.counts
        if row.family == "all" and row.questions
    ]
    columns = ["model", "true answer", "questions", "valid", "exact", "NAE", "bias"]
    return Table("By true answer", columns, rows, text=2, note="Bias: predicted minus true, over valid answers.")


def statuses_table(found: Sequence[Scores]) -> Table:
    """What became of the answers."""
    rows = [
        [
            one.name,
            *(
                f"{n:,}"
                for n in (
                    one.statuses.questions,
                    one.statuses.valid,
                    one.statuses.missing,
                    one.statuses.malformed,
                    one.statuses.negative,
                    one.statuses.extreme,
                    len(one.refused),
                    len(one.failed),
                    len(one.unasked),
                )
            ),
        ]
        for one in found
    ]
    columns = ["model", "questions", "valid", "missing", "malformed", "negative", "extreme"]
    columns += ["refused", "failed", "not asked"]
    note = "What is not valid counts as NAE 1 and not exact, and is in no MAE. The last three are among the missing."
    return Table("Answers", columns, rows, note=note)


def comparison_table(found: Comparison) -> Table:
    """Differences of two sets, metric by metric."""
    drawn = bool(found.settings["resamples"])
    rows = [[METRIC_WORDS[row.metric], *_compared(row, drawn=drawn)] for row in found.rows]
    nulls = any(row.difference.null_resamples for row in found.rows)
    if nulls:
        for row, cells in zip(found.rows, rows, strict=True):
            cells.append(f"{row.difference.null_resamples:,}")
    intervals = "; an interval that holds 0 does not tell them apart" if found.settings["resamples"] else ""
    note = (
        f"Over {counted(found.groups, 'group')} of {counted(found.images, 'image')}{intervals}. "
        "Of Score, Group-Acc and Phys-Gnd more is better, of NAE and MAE less. "
        f"Answers were read by the rule {found.settings['parse']}."
    )
    notes = [note, unlike(found), null_note(found), spread_note(rows)]
    columns = ["metric", found.a, found.b, "difference", "groups", *(["without value"] if nulls else [])]
    return Table(f"{found.a} minus {found.b}", columns, rows, note="\n".join(text for text in notes if text))


def unlike(found: Comparison) -> str | None:
    """Which metrics rest on other groups or answers on the two sides; None where none does."""
    names = [METRIC_WORDS[row.metric] for row in found.rows if not row.like]
    if not names:
        return None
    return (
        f"Not of like with like: {listed(names, len(names))}. Phys-Gnd is over the groups whose appearances that side "
        "counted exactly, MAE over the valid answers of that side, and these differ between the two."
    )


def null_note(found: Comparison) -> str | None:
    """What it means that resamples have no value; None where all have one."""
    if not any(row.difference.null_resamples for row in found.rows):
        return None
    return f"Without value: of {found.settings['resamples']:,} resamples, those left out of the interval."


def _compared(row: Difference, *, drawn: bool) -> list[str]:
    digits = 3 if row.metric.startswith("mae.") else 2
    groups = f"{row.a_groups:,}" if row.a_groups == row.b_groups else f"{row.a_groups:,}; {row.b_groups:,}"
    difference = rate(row.difference, digits=digits, signed=True, drawn=drawn)
    return [*(percent(value, digits=digits) for value in (row.a, row.b)), difference, groups]


def totals_table(found: DatasetCheck) -> Table:
    """What a dataset holds, beside the published totals where it is the full set."""
    rows = [
        [
            total.name.replace("_", " "),
            f"{total.found:,}",
            NOTHING if total.published is None else f"{total.published:,}",
            NOTHING if total.published is None else "holds" if total.holds else "DIFFERS",
        ]
        for total in found.totals
    ]
    note = None if found.full else "Not the full set: its totals are compared with nothing."
    return Table("What the dataset holds", ["", "found", "published", ""], rows, note=note)


def percent(value: float | None, *, digits: int = 2, signed: bool = False) -> str:
    """Two digits after the point, as the paper prints what lies between 0 and 100."""
    return NOTHING if value is None else f"{value:{'+' if signed else ''}.{digits}f}"


def rate(value: Estimate, *, digits: int = 2, signed: bool = False, drawn: bool = False) -> str:
    """The same with its interval, or with the word that there is no spread where resamples were ``drawn``."""
    text = percent(value.value, digits=digits, signed=signed)
    if value.low is None:
        return f"{text} ({NO_SPREAD})" if drawn and value.value is not None else text
    low, high = (percent(end, digits=digits, signed=signed) for end in (value.low, value.high))
    return f"{text} [{low}, {high}]"
