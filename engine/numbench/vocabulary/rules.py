"""From a raw label to a plain name, as far as that needs no judgement: case, separators, suffixes, plurals."""

from __future__ import annotations

import re

# The numbers and views that a dataset hangs on its labels: "bonsai-101", "cougar_face", "faces-easy-101".
_SUFFIXES = {
    "caltech101": re.compile(r"_(?:body|easy|face|head|side)$"),
    "caltech256": re.compile(r"(?:-(?:easy|side))?-101$"),
}
# Only these lists write labels in the plural, and only some of them.
_PLURAL_SOURCES = frozenset({"objects365", "caltech101", "caltech256", "food101"})
# What ends in s in the singular, or is named in the plural.
# fmt: off
_KEPT = frozenset({
    "asparagus", "bass", "billiards", "binoculars", "eyeglasses", "glasses", "gras", "ibis", "iris", "mantis", "mars",
    "pliers", "rancheros", "scissors", "tennis", "triceratops",
})
# fmt: on


def plain_name(source: str, label: str) -> str:
    """The name that a raw label stands for: lower case, singular, words parted by single spaces.

    A slash is kept: which half is meant, or both, is for a person to decide.
    """
    name = label.strip().lower()
    if source in _SUFFIXES:
        name = _SUFFIXES[source].sub("", name)
    name = " ".join(re.sub(r"[-_]", " ", name).split())
    return _one(name) if source in _PLURAL_SOURCES else name


def _one(name: str) -> str:
    """The singular of a name whose last word may be a plural; "fish and chips" is left as it is."""
    if " and " in name:
        return name
    before, space, word = name.rpartition(" ")
    return before + space + _one_word(word)


def _one_word(word: str) -> str:
    if word in _KEPT or not word.endswith("s") or word.endswith(("ss", "us")):
        return word
    if word in ("cookies", "fries"):
        return {"cookies": "cookie", "fries": "fry"}[word]
    return word[:-2] if re.search(r"(?:sh|ch|ss|x)es$", word) else word[:-1]
