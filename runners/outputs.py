"""Where a command may write: a plain file or a folder, never over what it reads and never into a RUN."""

from __future__ import annotations

from pathlib import Path

from tallymill.errors import UsageError
from tallymill.runners.run import Run


def require_file(out: Path, *inputs: str | Path | None) -> Path:
    """A file to write, new or to be replaced. A folder, a device, or one of the ``inputs`` is a ``UsageError``."""
    if out.is_dir():
        raise UsageError(f"--out {out} is a folder; it names the file to write")
    if out.exists() and not out.is_file():
        raise UsageError(f"--out {out} is no regular file, and would be replaced by one", hint="choose another name")
    for path in inputs:
        if path is not None and out.exists() and Path(path).exists() and out.samefile(path):
            raise UsageError(f"--out {out} is the file that is read", hint="choose another name")
    return out


def require_outside(out: Path, run: Run) -> None:
    """Refuse to write into a RUN, or into the one whose proposals it has."""
    place = out.resolve()
    for folder in (run.path, run.proposals_folder.parent):
        if folder.resolve() in (place, *place.parents):
            raise UsageError(f"--out {out} lies in the RUN {folder.resolve()}", hint="choose a place outside it")
