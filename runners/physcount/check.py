"""``physcount check``: whether a dataset is whole."""

from __future__ import annotations

from pathlib import Path

from tallymill.engine.physcount.check import DatasetCheck, check_dataset


def check(data: str | Path) -> DatasetCheck:
    """Read all of a dataset and say what is wrong with it, and whether its totals are the published ones.

    ``ManifestError`` where the questions or annotations are not there at all.
    """
    return check_dataset(Path(data))
