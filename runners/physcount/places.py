"""Where scores and reports may not go: into a RUN, whichever it is, and over the dataset."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from tallymill.engine.physcount.data import ANNOTATIONS, IMAGES, QUESTIONS, Dataset
from tallymill.engine.physcount.run_files import RECORD
from tallymill.errors import UsageError

_ELSEWHERE = "choose a place outside it"


def require_apart(out: Path, files: Iterable[Path], data: Path) -> None:
    """Refuse ``--out`` where one of the ``files`` that come of it lies in a RUN, or in a folder of the dataset's files.

    Links are followed, as whoever writes follows them.
    """
    own = {_real(data / name) for name in (Path(QUESTIONS).parent, Path(ANNOTATIONS).parent, IMAGES)}
    for file in files:
        for folder in _real(file).parents:
            if os.path.exists(folder / RECORD):  # noqa: PTH110 - it raises nothing where a folder may not be read
                raise UsageError(f"--out {out} lies in the RUN {folder}", hint=_ELSEWHERE)
            if folder in own:
                raise UsageError(f"--out {out} lies in {folder}, which is the dataset's", hint=_ELSEWHERE)


def require_no_image(out: Path, dataset: Dataset) -> None:
    """Refuse to replace an image of the dataset, wherever it lies."""
    if not out.exists():
        return
    for image in sorted({group.image for group in dataset.groups.values()}):
        path = dataset.root / image
        if path.exists() and path.samefile(out):
            raise UsageError(f"--out {out} is an image of the dataset", hint="choose another name")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))
