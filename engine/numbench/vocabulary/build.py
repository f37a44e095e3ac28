"""Makes ``categories.csv`` and ``removed.csv`` from raw labels, plain rules and a person's decisions.

``python -m tallymill.engine.numbench.vocabulary.build`` writes both anew and prints how they came about.

``decisions.csv`` has one row a judgement: its subject is a plain name (``rules.plain_name``), or ``source:label`` where
one name stands for two things; what is done with it; the name or names ("pen; pencil") that result; and why.

- ``rename``: a better name for the same thing.
- ``merge``: the category that another label gives is meant as well.
- ``remove``: nothing that one can ask a number of, or a name that must not be asked for.
- ``restore``: what a strict reading removes or merges is a category after all, because 1,600 are wanted. A subject may
  have a strict row and a ``restore`` row; the second counts. The reason begins with its ground: ``slash label``,
  ``near-synonym`` or ``serving``, which is also the order in which they are brought back.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tallymill.engine.numbench.vocabulary.rules import plain_name

if TYPE_CHECKING:
    import inflect

HERE = Path(__file__).resolve().parent
SIZE = 1600
GROUNDS = ("slash label", "near-synonym", "serving")
ACTIONS = ("rename", "merge", "remove", "restore")


@dataclass(frozen=True, slots=True)
class Label:
    """A raw name of one dataset, as it is written there."""

    source: str
    label: str

    def __str__(self) -> str:
        return f"{self.source}:{self.label}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided about a name, and why."""

    subject: str
    action: str
    results: tuple[str, ...]
    reason: str


@dataclass(slots=True)
class Product:
    """What the labels became: each category with its labels and notes, and the rows of ``removed.csv``."""

    labels: dict[str, list[Label]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)
    removed: list[tuple[Label, str, str]] = field(default_factory=list)

    def add(self, name: str, label: Label, note: str = "") -> None:
        """Let a label stand for a category."""
        self.labels.setdefault(name, []).append(label)
        notes = self.notes.setdefault(name, [])
        if note and note not in notes:
            notes.append(note)


def rows(name: str) -> list[dict[str, str]]:
    """The rows of one of the folder's tables."""
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def raw_labels() -> list[Label]:
    """All labels of the seven lists, in their order."""
    return [Label(row["source"], row["label"]) for row in rows("labels.csv")]


def decisions() -> list[Decision]:
    """All rows of ``decisions.csv``, each of a known kind and with its reason."""
    found = []
    for line, row in enumerate(rows("decisions.csv"), 2):
        results = tuple(part.strip() for part in row["result"].split(";") if part.strip())
        decision = Decision(row["subject"], row["action"], results, row["reason"])
        if decision.action not in ACTIONS or not decision.reason or bool(results) == (decision.action == "remove"):
            raise ValueError(f"decisions.csv:{line}: {row}")
        if decision.action == "restore" and not decision.reason.startswith(GROUNDS):
            raise ValueError(f"decisions.csv:{line}: a restored name needs one of the grounds {GROUNDS}")
        found.append(decision)
    return found


def resolve(labels: Sequence[Label], made: Iterable[Decision], grounds: Iterable[str] = GROUNDS) -> Product:
    """Apply rules, strict decisions and those ``restore`` rows whose ground is named.

    A decision about a label counts before one about its plain name. Raises ValueError for a decision that nothing
    uses, a subject decided twice, and a name merged into what is no category.
    """
    strict, restored = _by_subject(made)
    wanted = {subject: one for subject, one in restored.items() if one.reason.startswith(tuple(grounds))}
    product, used = Product(), set()
    for label in labels:
        plain = plain_name(label.source, label.label)
        subject = str(label) if str(label) in strict or str(label) in restored else plain
        used.add(subject)
        _place(product, label, plain, wanted.get(subject) or strict.get(subject))
    if unused := sorted((strict.keys() | restored.keys()) - used):
        raise ValueError(f"decisions.csv: no label has the name {unused}")
    merged = Counter(fate.removeprefix("merged into ") for _, fate, _ in product.removed if fate != "removed")
    if orphans := sorted(name for name, times in merged.items() if times == len(product.labels[name])):
        raise ValueError(f"decisions.csv: merged into what no other label gives: {orphans}")
    return product


def _by_subject(made: Iterable[Decision]) -> tuple[dict[str, Decision], dict[str, Decision]]:
    strict: dict[str, Decision] = {}
    restored: dict[str, Decision] = {}
    for one in made:
        into = restored if one.action == "restore" else strict
        if one.subject in into:
            raise ValueError(f"decisions.csv: {one.subject!r} is decided twice")
        into[one.subject] = one
    return strict, restored


def _place(product: Product, label: Label, plain: str, decision: Decision | None) -> None:
    """Put one label where it belongs."""
    if decision is None:
        product.add(plain.partition("/")[0].strip(), label)
    elif decision.action == "remove":
        product.removed.append((label, "removed", decision.reason))
    else:
        for name in decision.results:
            merged = decision.action == "merge"
            product.add(name, label, "" if merged else f"{label}: {decision.reason}")
            if merged:
                product.removed.append((label, f"merged into {name}", decision.reason))


@cache
def _engine() -> inflect.engine:
    import inflect

    return inflect.engine()


def plural_of(name: str, exceptions: Mapping[str, str]) -> str:
    """The plural of a name: of its last word, or of the word before "of"; an exception may be a name or a word."""
    if name in exceptions:
        return exceptions[name]
    head, of, rest = name.partition(" of ")
    before, space, word = head.rpartition(" ")
    return before + space + (exceptions.get(word) or _engine().plural_noun(word)) + of + rest


def tables(product: Product) -> dict[str, str]:
    """The text of the two products, by file name."""
    exceptions = {row["singular"]: row["plural"] for row in rows("plurals.csv")}
    categories = [
        (name, plural_of(name, exceptions), "|".join(map(str, labels)), "; ".join(product.notes[name]))
        for name, labels in sorted(product.labels.items())
    ]
    gone = [(label.source, label.label, fate, reason) for label, fate, reason in product.removed]
    return {
        "categories.csv": _text([("category", "plural", "sources", "note"), *categories]),
        "removed.csv": _text([("source", "label", "fate", "reason"), *gone]),
    }


def _text(lines: Iterable[Sequence[str]]) -> str:
    import io

    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def main() -> None:
    """Write the products anew, and say how many names each step leaves."""
    labels, made = raw_labels(), decisions()
    plain = {plain_name(label.source, label.label) for label in labels}
    sizes = [len(resolve(labels, made, GROUNDS[:n]).labels) for n in range(len(GROUNDS) + 1)]
    product = resolve(labels, made)
    fates = Counter(fate.partition(" ")[0] for _, fate, _ in product.removed)
    restored = ", ".join(
        f"{ground} +{after - before}" for ground, before, after in zip(GROUNDS, sizes, sizes[1:], strict=False)
    )
    sys.stdout.write(
        f"{len(labels)} labels, {len(plain)} plain names, {sizes[0]} after the decisions; {restored}: {sizes[-1]}\n"
        f"labels removed: {fates['removed']}, merged: {fates['merged']}\n"
    )
    for name, text in tables(product).items():
        (HERE / name).write_text(text, encoding="utf-8", newline="")
    if sizes[-1] != SIZE:
        sys.exit(f"{sizes[-1]} categories, but {SIZE} are wanted")


if __name__ == "__main__":
    main()
