"""PhysCount's results as tables for a reader."""

from __future__ import annotations

from collections.abc import Sequence

from tallymill.engine.numbench.analysis.results import Estimate
from tallymill.engine.physcount.check import DatasetCheck
from tallymill.engine.physcount.data import FAMILIES
from tallymill.engine.physcount.published import PublishedRow
from tallymill.engine.physcount.results import Comparison, Difference, Scores
from tallymill.engine.report.tables import NOTHING, Table, estimate, number
from tallymill.engine.words import counted

PUBLISHED_MARK = "†"
PUBLISHED_NOTE = f"{PUBLISHED_MARK} Published by the authors of PhysCount; not measured here."
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
    """A row a set of predictions in the paper's columns, best first; published rows bear a mark."""
    rows = [(one.headline.score.value, _own_row(one)) for one in found]
    rows += [(row.score, _published_row(row)) for row in published]
    rows.sort(key=lambda row: -1.0 if row[0] is None else -row[0])
    letters = [f"{letter}-{kind}" for letter in FAMILY_LETTERS.values() for kind in ("MAE", "NAE")]
    columns = ["model", "mode", *letters, "Score", "Group-Acc", "Phys-Gnd"]
    note = PUBLISHED_NOTE if published else None
    return Table("PhysCount", columns, [row for _, row in rows], text=2, note=note)


def _own_row(one: Scores) -> list[str]:
    values = [text for row in one.families for text in (number(row.mae.value), percent(row.nae.value))]
    headline = one.headline
    return [
        one.name,
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
    rows = [
        [
            one.name,
            *(f"{n:,}" for n in (one.headline.groups, one.headline.questions, one.statuses.valid)),
            *(rate(value) for value in (one.headline.score, one.headline.group_acc, one.headline.phys_gnd)),
            f"{one.headline.grounded:,}",
        ]
        for one in found
    ]
    columns = ["model", "groups", "questions", "valid", "Score", "Group-Acc", "Phys-Gnd", "groups of Phys-Gnd"]
    headlines = [one.headline for one in found]
    drawn = any(value.low is not None for one in headlines for value in (one.score, one.group_acc, one.phys_gnd))
    return Table("Score, with 95 % intervals over images" if drawn else "Score", columns, rows)


def families_table(found: Sequence[Scores]) -> Table:
    """Each question family with intervals."""
    rows = [
        [
            one.name,
            FAMILY_WORDS[row.family],
            *(f"{n:,}" for n in (row.groups, row.questions, row.valid, row.exact)),
            estimate(row.mae),
            rate(row.nae),
            rate(row.accuracy),
        ]
        for one in found
        for row in one.families
        if row.questions
    ]
    columns = ["model", "family", "groups", "questions", "valid", "exact", "MAE", "NAE", "accuracy"]
    return Table("By question family", columns, rows, text=2)


def parts_table(found: Sequence[Scores]) -> Table:
    """Groups by the image-formation modes among their appearances."""
    rows = [
        [
            one.name,
            part.name,
            f"{part.headline.groups:,}",
            *(percent(row.nae.value) for row in part.families),
            *(rate(v) for v in (part.headline.score, part.headline.group_acc, part.headline.phys_gnd)),
        ]
        for one in found
        for part in one.parts
    ]
    letters = [f"{letter}-NAE" for letter in FAMILY_LETTERS.values()]
    columns = ["model", "appearances are", "groups", *letters, "Score", "Group-Acc", "Phys-Gnd"]
    return Table("By image formation", columns, rows, text=2)


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
                    len(one.failed),
                )
            ),
        ]
        for one in found
    ]
    columns = ["model", "questions", "valid", "missing", "malformed", "negative", "extreme", "failed requests"]
    note = "What is not valid counts as NAE 1 and not exact, and is in no MAE. Failed requests are among the missing."
    return Table("Answers", columns, rows, note=note)


def comparison_table(found: Comparison) -> Table:
    """Differences of two sets, metric by metric."""
    rows = [[METRIC_WORDS[row.metric], *_compared(row)] for row in found.rows]
    intervals = "; an interval that holds 0 does not tell them apart" if found.settings["resamples"] else ""
    note = (
        f"Over {counted(found.groups, 'group')} of {counted(found.images, 'image')}{intervals}. "
        "Of Score, Group-Acc and Phys-Gnd more is better, of NAE and MAE less. "
        f"Answers were read by the rule {found.settings['parse']}."
    )
    return Table(f"{found.a} minus {found.b}", ["metric", found.a, found.b, "difference"], rows, note=note)


def _compared(row: Difference) -> list[str]:
    if row.metric.startswith("mae."):
        return [number(row.a), number(row.b), estimate(row.difference, signed=True)]
    return [percent(row.a), percent(row.b), rate(row.difference, signed=True)]


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


def percent(value: float | None, *, signed: bool = False) -> str:
    """Two digits after the point, as the paper prints what lies between 0 and 100."""
    return NOTHING if value is None else f"{value:{'+' if signed else ''}.2f}"


def rate(value: Estimate, *, signed: bool = False) -> str:
    """The same with its interval, where it has one."""
    text = percent(value.value, signed=signed)
    if value.low is None:
        return text
    return f"{text} [{percent(value.low, signed=signed)}, {percent(value.high, signed=signed)}]"
