"""The questions and annotations of PhysCount, read from the files of its release and checked against each other.

``data/questions.jsonl`` has a counting question a line, ``data/annotations.jsonl`` a group a line: one image, one
counting target, every appearance of it. Questions of a group share its ``group_id``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallymill.engine.manifests.base import Faults, brief
from tallymill.engine.manifests.text_files import jsonl_objects
from tallymill.errors import ManifestError

APPEARANCE, ENTITY, IMAGE_FORMATION, CORRESPONDENCE = "appearance", "entity", "image_formation", "correspondence"
FAMILIES = (APPEARANCE, ENTITY, IMAGE_FORMATION, CORRESPONDENCE)
MODES = ("direct", "reflection", "through_glass")
# Up to here float64 holds every whole number; beyond, no count and no size can be meant.
MOST_WHOLE = 2**53 - 1
QUESTIONS, ANNOTATIONS, IMAGES = "data/questions.jsonl", "data/annotations.jsonl", "images"


@dataclass(frozen=True, slots=True)
class Question:
    """A counting question with its true answer; ``family`` is one of ``FAMILIES``, ``image`` relative to the data."""

    question_id: str
    group_id: str
    image_id: str
    image: str
    family: str
    question: str
    answer: int
    line: int


@dataclass(frozen=True, slots=True)
class Appearance:
    """One visible occurrence of the target. ``x`` and ``y`` in [0, 1] are shares of the image's width and height.

    Appearances with one ``entity_id`` show the same physical object; ``mode`` is one of ``MODES``.
    """

    appearance_id: str
    entity_id: str
    mode: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class Group:
    """One counting target in one image: its appearances and its questions, in the order of their files.

    ``width`` and ``height`` are those of the original image, in pixels.
    """

    group_id: str
    image_id: str
    image: str
    width: int
    height: int
    appearances: tuple[Appearance, ...]
    questions: tuple[Question, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Size:
    """How many images, groups and questions there are."""

    images: int
    groups: int
    questions: int


@dataclass(frozen=True, slots=True)
class Dataset:
    """All groups, in the order of the annotations, and all questions, in their own. ``sha256`` is by file."""

    root: Path
    groups: dict[str, Group]
    questions: tuple[Question, ...]
    sha256: dict[str, str]

    @property
    def size(self) -> Size:
        """How much it holds."""
        return Size(len(self.image_ids), len(self.groups), len(self.questions))

    @property
    def image_ids(self) -> list[str]:
        """Every image that a group is about, sorted."""
        return sorted({group.image_id for group in self.groups.values()})

    def image_path(self, of: Group | Question) -> Path:
        """Where an image lies."""
        return self.root / of.image


def read_dataset(root: str | Path) -> Dataset:
    """Read and check a dataset. Every fault stands in one ``ManifestError``, by file and line."""
    dataset, faults = examine(Path(root))
    faults.raise_if_any("mend or remove these lines; `tallymill physcount check` lists all of them")
    assert dataset is not None
    return dataset


def examine(root: Path, *, most: int | None = None) -> tuple[Dataset, Faults]:
    """What could be read, and what is wrong with it; ``most`` faults are kept to be shown."""
    faults = Faults(str(root)) if most is None else Faults(str(root), most)
    digests = {name: _digest(root, name) for name in (QUESTIONS, ANNOTATIONS)}
    questions = {question.question_id: question for question in _questions(root, faults)}
    asked: dict[str, list[Question]] = {}
    for question in questions.values():
        asked.setdefault(question.group_id, []).append(question)
    groups: dict[str, Group] = {}
    for group in _groups(root, asked, faults):
        if group.group_id in groups:
            faults.add(_at(ANNOTATIONS, group.line), "a group that stands twice", value=group.group_id)
        else:
            groups[group.group_id] = group
    _agree(root, groups, asked, faults)
    if not faults.total and not questions:
        faults.add(QUESTIONS, "no questions in it")
    known = tuple(question for question in questions.values() if question.group_id in groups)
    return Dataset(root, groups, known, digests), faults


def _digest(root: Path, name: str) -> str:
    try:
        return hashlib.sha256((root / name).read_bytes()).hexdigest()
    except OSError as exc:
        raise ManifestError(
            f"{root / name}: {exc.strerror or exc}",
            hint=f"--data names the folder of PhysCount's release, which holds {QUESTIONS}, {ANNOTATIONS} and {IMAGES}",
        ) from None


def _questions(root: Path, faults: Faults) -> Iterator[Question]:
    seen: set[str] = set()
    for number, row in jsonl_objects(root / QUESTIONS, QUESTIONS, faults):
        fields = _Fields(row, _at(QUESTIONS, number), faults)
        found = Question(
            question_id=fields.text("question_id"),
            group_id=fields.text("group_id"),
            image_id=fields.text("image_id"),
            image=fields.text("image"),
            family=fields.one_of("question_type", FAMILIES),
            question=fields.text("question"),
            answer=fields.whole("answer", least=0),
            line=int(number),
        )
        if fields.good and found.question_id in seen:
            faults.add(fields.at, "a question that stands twice", column="question_id", value=found.question_id)
        elif fields.good:
            seen.add(found.question_id)
            yield found


def _groups(root: Path, asked: Mapping[str, list[Question]], faults: Faults) -> Iterator[Group]:
    for number, row in jsonl_objects(root / ANNOTATIONS, ANNOTATIONS, faults):
        fields = _Fields(row, _at(ANNOTATIONS, number), faults)
        group_id = fields.text("group_id")
        found = Group(
            group_id=group_id,
            image_id=fields.text("image_id"),
            image=fields.text("image"),
            width=fields.whole("width", least=1),
            height=fields.whole("height", least=1),
            appearances=tuple(_appearances(fields)),
            questions=tuple(asked.get(group_id, ())),
            line=int(number),
        )
        if fields.good:
            yield found


def _appearances(fields: _Fields) -> Iterator[Appearance]:
    seen: set[str] = set()
    for place, row in enumerate(fields.objects("appearances")):
        own = _Fields(row, f"{fields.at}, appearances[{place}]", fields.faults)
        found = Appearance(
            appearance_id=own.text("appearance_id"),
            entity_id=own.text("entity_id"),
            mode=own.one_of("mode", MODES),
            x=own.share("x"),
            y=own.share("y"),
        )
        if own.good and found.appearance_id in seen:
            own.fault("appearance_id", "an appearance that stands twice", found.appearance_id)
        seen.add(found.appearance_id)
        fields.good &= own.good
        yield found


def _agree(root: Path, groups: Mapping[str, Group], asked: Mapping[str, list[Question]], faults: Faults) -> None:
    """What the two files and the folder of images must say alike."""
    for group_id, questions in asked.items():
        group = groups.get(group_id)
        if group is None:
            faults.add(_at(QUESTIONS, questions[0].line), f"its group is not in {ANNOTATIONS}", value=group_id)
            continue
        for question in questions:
            for name in ("image_id", "image"):
                own, theirs = getattr(question, name), getattr(group, name)
                if own != theirs:
                    reason = f"{_at(ANNOTATIONS, group.line)} has {brief(theirs)}"
                    faults.add(_at(QUESTIONS, question.line), reason, column=name, value=own)
    paths: dict[str, str] = {}
    for group in groups.values():
        at = _at(ANNOTATIONS, group.line)
        if not group.questions:
            faults.add(at, f"a group without a question in {QUESTIONS}", value=group.group_id)
        if group.image not in paths and (absent := _why_not_there(root, group.image)):
            faults.add(at, absent, column="image", value=group.image)
        if paths.setdefault(group.image, group.image_id) != group.image_id:
            faults.add(at, f"the image of {brief(paths[group.image])} too", column="image", value=group.image)


def _why_not_there(root: Path, image: str) -> str | None:
    path = root / image
    if Path(image).is_absolute() or ".." in Path(image).parts:
        return "a path outside the data"
    try:
        return None if path.is_file() else "no such file"
    except OSError as exc:  # a name that is too long, a folder that may not be read
        return exc.strerror or str(exc)


def _at(name: str, line: int | str) -> str:
    return f"{name}, line {line}"


class _Fields:
    """The fields of one object; each that is not as it must be is a fault, and the object is not ``good`` then."""

    def __init__(self, row: Any, at: str, faults: Faults) -> None:
        self.at, self.faults, self.good = at, faults, True
        self._row: Mapping[str, Any] = row if isinstance(row, dict) else {}
        if not isinstance(row, dict):
            self.good = False
            faults.add(at, f"not an object: {brief(row)}")

    def fault(self, name: str, reason: str, value: object) -> None:
        """Record one."""
        self.good = False
        self.faults.add(self.at, reason, column=name, value=value)

    def text(self, name: str) -> str:
        """A string that is not empty. Numbers are taken for the ids that they write."""
        value = self._get(name)
        if isinstance(value, int) and not isinstance(value, bool) and name.endswith("_id"):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value
        return str(self._wrong(name, "must be a text", value, ""))

    def one_of(self, name: str, words: tuple[str, ...]) -> str:
        """One of some words."""
        value = self._get(name)
        if isinstance(value, str) and value in words:
            return value
        return str(self._wrong(name, f"must be one of {', '.join(words)}", value, ""))

    def whole(self, name: str, *, least: int) -> int:
        """A whole number."""
        value = self._get(name)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_WHOLE:
            return value
        most = f", {MOST_WHOLE:,} at most" if isinstance(value, int) and value > MOST_WHOLE else ""
        return int(self._wrong(name, f"must be a whole number, {least} or more{most}", value, least))

    def share(self, name: str) -> float:
        """A finite number in [0, 1]."""
        value = self._get(name)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and 0 <= value <= 1:
            return float(value)
        return float(self._wrong(name, "must be a number in [0, 1]", value, 0.0))

    def objects(self, name: str) -> list[Any]:
        """A list."""
        value = self._get(name)
        return value if isinstance(value, list) else list(self._wrong(name, "must be a list", value, []))

    def _get(self, name: str) -> Any:
        return self._row.get(name)

    def _wrong(self, name: str, reason: str, value: Any, instead: Any) -> Any:
        if self._row:
            missing = name not in self._row
            self.fault(name, "missing" if missing else reason, None if missing else value)
        self.good = False
        return instead
