"""Whether a dataset is whole: its faults, what it holds, and the published totals where it is the full set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tallymill.engine.images import decode
from tallymill.engine.physcount.data import ANNOTATIONS, APPEARANCE, FAMILIES, MODES, Dataset, Group, examine
from tallymill.engine.physcount.published import TOTALS
from tallymill.errors import ImageError

MOST_FAULTS = 1_000


@dataclass(frozen=True, slots=True)
class Total:
    """How many of something there are. ``published`` is None where the set is not the full one."""

    name: str
    found: int
    published: int | None

    @property
    def holds(self) -> bool:
        """Whether the number is as published, if one is."""
        return self.published in (None, self.found)


@dataclass(frozen=True, slots=True)
class DatasetCheck:
    """What was found. ``faults`` keeps the first ``MOST_FAULTS`` of ``fault_total``; ``full``: it is, or should be, the
    full set. ``notes`` are oddities that do not keep anybody from scoring.
    """

    root: str
    full: bool
    totals: list[Total]
    fault_total: int
    faults: list[str]
    notes: list[str]

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong."""
        return not self.fault_total and all(total.holds for total in self.totals)


def check_dataset(root: Path) -> DatasetCheck:
    """Read everything, and decode every image once."""
    dataset, faults = examine(root, most=MOST_FAULTS)
    sizes: dict[str, tuple[int, int] | str | None] = {}
    for group in dataset.groups.values():
        if group.image not in sizes:
            sizes[group.image] = _size_of(dataset.image_path(group))
        if reason := _why_not_annotated(sizes[group.image], group):
            faults.add(f"{ANNOTATIONS}, line {group.line}", reason, column="image", value=group.image)
    found = _counted(dataset)
    full = any(found[name] == TOTALS[name] for name in ("images", "groups", "questions"))
    totals = [Total(name, number, TOTALS[name] if full else None) for name, number in found.items()]
    return DatasetCheck(str(root), full, totals, faults.total, faults.shown, [*_notes(dataset)])


def _size_of(path: Path) -> tuple[int, int] | str | None:
    """Width and height of an image, or why it cannot be read; None where it is missing, which is a fault already."""
    try:
        if not path.is_file():
            return None
        height, width = decode(path.read_bytes()).shape[:2]
    except ImageError as exc:
        return exc.message
    except OSError:
        return None
    return width, height


def _why_not_annotated(size: tuple[int, int] | str | None, group: Group) -> str | None:
    """Why an image is not the one that was annotated."""
    if size is None or isinstance(size, str):
        return size
    # An image that is stored on its side may be annotated either way.
    if sorted(size) != sorted((group.width, group.height)):
        return f"is {size[0]} x {size[1]} pixels, annotated as {group.width} x {group.height}"
    return None


def _counted(dataset: Dataset) -> dict[str, int]:
    families = Counter(question.family for question in dataset.questions)
    modes = Counter(one.mode for group in dataset.groups.values() for one in group.appearances)
    whole = [group for group in dataset.groups.values() if {q.family for q in group.questions} >= {*FAMILIES}]
    return {
        "images": len(dataset.image_ids),
        "groups": len(dataset.groups),
        "questions": len(dataset.questions),
        "appearances": modes.total(),
        "groups with all four families": len(whole),
        **{f"{family} questions": families[family] for family in FAMILIES},
        **{f"{mode} appearances": modes[mode] for mode in MODES},
    }


def _notes(dataset: Dataset) -> Iterator[str]:
    for group in dataset.groups.values():
        own = [question for question in group.questions if question.family == APPEARANCE]
        if len(own) != 1:
            yield f"group {group.group_id}: {len(own)} appearance questions, where the release has one a group"
        for question in own:
            if question.answer != len(group.appearances):
                yield (
                    f"question {question.question_id}: the answer is {question.answer}, "
                    f"and {len(group.appearances)} appearances are annotated"
                )
