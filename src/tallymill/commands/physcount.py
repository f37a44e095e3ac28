"""``tallymill physcount``: do multimodal models count appearances or physical entities?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from tallymill.commands.base import DONE, FAILED, SOME_FAILED, Json, app, print_json
from tallymill.engine.physcount.parse import MAX_COUNT, Rule
from tallymill.engine.physcount.score import RESAMPLES
from tallymill.engine.words import counted
from tallymill.errors import UsageError
from tallymill.runners import console
from tallymill.runners.physcount.example import SCENES
from tallymill.runners.physcount.report import GROUPS

physcount = App(name="physcount", help="Ask multimodal models to count physical entities, and score their answers.")
app.command(physcount)

Data = Annotated[Path, Parameter(help="The folder of PhysCount's release: data/questions.jsonl, images and the rest.")]
Several = Annotated[
    tuple[Path, ...],
    Parameter(
        name="--predictions",
        negative=(),
        show_default=False,
        consume_multiple=True,
        help="RUN folders of `ask`, or JSONL files of question_id and response or prediction, one or several.",
    ),
]


@physcount.command
def check(*, data: Data, as_json: Json = False) -> int:
    """Check a dataset: its files against each other, and against the published totals where it is the full set."""
    from tallymill import physcount as interface
    from tallymill.engine.report.physcount.tables import totals_table

    found = interface.check(data)
    if as_json:
        print_json(asdict(found) | {"holds": found.holds})
        return DONE if found.holds else FAILED
    console.show_table(totals_table(found))
    console.tell_notes(found.notes)
    for fault in found.faults:
        console.tell(fault)
    if found.fault_total > len(found.faults):
        console.tell(f"and {found.fault_total - len(found.faults):,} more")
    console.tell("the dataset is whole" if found.holds else f"{found.fault_total:,} faults, or totals that differ")
    return DONE if found.holds else FAILED


@physcount.command
def example(*, out: Path, scenes: int = SCENES, seed: int = 0, as_json: Json = False) -> int:
    """Draw a small dataset with mirrors and glass whose answers are known by construction.

    Parameters
    ----------
    out
        A folder that does not exist yet.
    scenes
        How many pictures.
    seed
        Other seeds draw other pictures.
    """
    from tallymill import physcount as interface

    made = interface.example(out, scenes_wanted=scenes, seed=seed)
    told = {
        "out": str(out),
        "images": len(made.image_ids),
        "groups": len(made.groups),
        "questions": len(made.questions),
    }
    if as_json:
        print_json(told)
    else:
        console.tell("{questions} questions in {groups} groups about {images} images in {out}".format(**told))
    return DONE


@physcount.command
def score(
    *,
    data: Data,
    predictions: Several = (),
    compare: Annotated[tuple[Path, Path] | None, Parameter(negative=())] = None,
    parse: Rule = "strict",
    max_count: int = MAX_COUNT,
    resamples: int = RESAMPLES,
    published: bool = False,
    out: Path | None = None,
    as_json: Json = False,
) -> int:
    """Score predictions: all metrics of the paper, by family and in total, with intervals.

    Parameters
    ----------
    compare
        Two sets of predictions: the first minus the second in every metric, paired by image; without --out and
        --published.
    parse
        strict takes a bare integer; last-integer the last one of a text, and the tables say so.
    max_count
        A larger answer is extreme, and counts as wrong.
    resamples
        Bootstrap resamples of images for the intervals; 0 for none.
    published
        List the published models too.
    out
        Folder for scores.json, groups.csv and answers.jsonl.
    """
    from tallymill import physcount as interface
    from tallymill.engine.physcount.published import published_rows
    from tallymill.engine.report.physcount import tables

    if (compare is None) == (not predictions):
        raise UsageError("give --predictions, or two sets with --compare A B")
    if compare is not None and (out is not None or published):
        given = "--published" if out is None else "--out"
        raise UsageError(f"{given} does not go with --compare", hint="use it with --predictions A B")
    if compare is not None:
        result = interface.compare(data, *compare, parse=parse, max_count=max_count, resamples=resamples)
        if as_json:
            print_json(asdict(result))
        else:
            console.show_table(tables.comparison_table(result))
            console.tell_notes([*result.notes, *result.left_out])
        return SOME_FAILED if result.failed or result.refused else DONE
    found = interface.score(data, predictions, out, parse=parse, max_count=max_count, resamples=resamples)
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        rows = [row for row in published_rows() if not row.setting] if published else []
        for table in (
            tables.leaderboard(found, rows),
            tables.headline_table(found),
            tables.families_table(found),
            tables.statuses_table(found),
        ):
            console.show_table(table)
        console.tell_notes(f"{one.name}: {note}" for one in found for note in one.notes)
        if out is not None:
            console.tell(f"written to {out}: scores.json, groups.csv, answers.jsonl")
    return SOME_FAILED if any(one.failed or one.refused for one in found) else DONE


@physcount.command
def report(
    *,
    data: Data,
    runs: Annotated[
        tuple[Path, ...],
        Parameter(
            negative=(),
            consume_multiple=True,
            help="RUN folders of `physcount ask`, or JSONL files of predictions; one or several.",
        ),
    ],
    out: Path,
    parse: Rule = "strict",
    max_count: int = MAX_COUNT,
    resamples: int = RESAMPLES,
    groups: int = GROUPS,
    title: str | None = None,
    as_json: Json = False,
) -> int:
    """Write one HTML file with the scores, figures and groups of several models; it needs no network when it is opened.

    Parameters
    ----------
    out
        The file to write, such as report.html.
    parse
        strict takes a bare integer; last-integer the last one of a text, and the report says so.
    max_count
        A larger answer is extreme, and counts as wrong.
    resamples
        Bootstrap resamples of images for the intervals; 0 for none.
    groups
        Groups of each kind (worst, typical, random) in the gallery; 0 for none.
    title
        The page's title; by default the names of the models.
    """
    from tallymill import physcount as interface

    written = interface.report(
        data, runs, out, parse=parse, max_count=max_count, resamples=resamples, groups=groups, title=title
    )
    if as_json:
        print_json(written.as_dict())
    else:
        for note in written.notes:
            console.show_line(f"note: {note}")
        sets = "" if written.distinct == len(written.models) else f" in {len(written.models):,} sets of answers"
        gone = f", {written.images_gone} of their images gone" if written.images_gone else ""
        console.show_line(
            f"{counted(written.distinct, 'model')} scored{sets}; {counted(written.groups, 'group')} shown{gone}; "
            f"{written.bytes / 1e6:.1f} MB written to {written.out}"
        )
    return SOME_FAILED if written.failed else DONE
