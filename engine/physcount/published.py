"""The results that the paper published, for comparison. They are its authors' figures, not ours."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from importlib import resources

from tallymill.engine.physcount.data import FAMILIES, Size

# What the full set holds (paper, Dataset Statistics).
TOTALS = {
    "images": 546,
    "groups": 651,
    "questions": 4_595,
    "appearances": 7_086,
    "groups with all four families": 599,
    "appearance questions": 651,
    "entity questions": 1_150,
    "image_formation questions": 711,
    "correspondence questions": 2_083,
    "direct appearances": 2_416,
    "reflection appearances": 3_996,
    "through_glass appearances": 674,
}


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One row of the paper's tables. ``mae`` and ``nae`` are by family; ``mae`` is empty where it was not published.

    ``setting`` is empty in the table of models, else what one model was run with.
    """

    model: str
    setting: str
    mae: dict[str, float]
    nae: dict[str, float]
    score: float
    group_acc: float
    phys_gnd: float


def is_full(size: Size) -> bool:
    """Whether a dataset is as large as the full set, so that its scores compare with the published ones."""
    return all(TOTALS[name] == number for name, number in asdict(size).items())


def published_rows() -> list[PublishedRow]:
    """The 40 models, best first, and then the settings of one of them."""
    text = resources.files("tallymill.engine.physcount").joinpath("published.csv").read_text("utf-8")
    return [_row(row) for row in csv.DictReader(text.splitlines())]


def _row(row: dict[str, str]) -> PublishedRow:
    def by_family(kind: str) -> dict[str, float]:
        return {family: float(row[f"{family}_{kind}"]) for family in FAMILIES if row[f"{family}_{kind}"]}

    headline = (float(row[name]) for name in ("score", "group_acc", "phys_gnd"))
    return PublishedRow(row["model"], row["setting"], by_family("mae"), by_family("nae"), *headline)
