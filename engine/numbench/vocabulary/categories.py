"""The vocabulary of NumBench: 1,600 things that one can ask a number of, with their plurals and origins."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from tallymill.errors import UsageError

_FILE = Path(__file__).with_name("categories.csv")


@dataclass(frozen=True, slots=True)
class Category:
    """A name in the singular, its plural as prompts write it, and the raw labels that it stands for.

    ``sources`` are (source, original label) as the datasets write them; what is counted by the pair has a plural such
    as "pairs of scissors".
    """

    name: str
    plural: str
    sources: tuple[tuple[str, str], ...]


class Vocabulary:
    """Categories sorted by name, found by name or by plural."""

    def __init__(self, categories: tuple[Category, ...]) -> None:
        self.categories = categories
        self._by_name = {category.name: category for category in categories}
        self._by_plural = {category.plural: category for category in categories}

    def __len__(self) -> int:
        return len(self.categories)

    def __iter__(self) -> Iterator[Category]:
        return iter(self.categories)

    def __contains__(self, name: object) -> bool:
        """Whether a category has this very name (singular, lower case)."""
        return name in self._by_name

    def __getitem__(self, name: str) -> Category:
        """The category of this name; UsageError with the nearest names when there is none."""
        found = self._by_name.get(name)
        if found is None:
            raise UsageError(f"{name!r} is not a category of the vocabulary", hint=self._nearest(name))
        return found

    def plural(self, name: str) -> str:
        """The plural of a category; UsageError with the nearest names when there is none."""
        return self[name].plural

    def singular(self, plural: str) -> str | None:
        """The category that has this plural, or None."""
        found = self._by_plural.get(plural)
        return None if found is None else found.name

    def _nearest(self, name: str) -> str:
        plain = " ".join(name.lower().replace("_", " ").split())
        if plain in self._by_plural:
            return f"categories are named in the singular: {self._by_plural[plain].name!r}"
        last = plain.rpartition(" ")[2]
        near = [
            *get_close_matches(plain, self._by_name, n=3),
            *(other for other in self._by_name if last and last in other.split(" ")),
        ]
        if not near:
            return f"{_FILE} lists all of them"
        return f"did you mean {' or '.join(repr(other) for other in dict.fromkeys(near[:5]))}?"


@cache
def load_vocabulary() -> Vocabulary:
    """The 1,600 categories, read once a process from ``categories.csv``; needs no library."""
    with _FILE.open(encoding="utf-8", newline="") as file:
        return Vocabulary(
            tuple(
                Category(row["category"], row["plural"], tuple(_source(text) for text in row["sources"].split("|")))
                for row in csv.DictReader(file)
            )
        )


def _source(text: str) -> tuple[str, str]:
    source, _, label = text.partition(":")
    return source, label
