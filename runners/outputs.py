"""Where a command may write: a plain file or a folder, never over what it reads and never into a RUN."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tallymill.errors import UsageError
from tallymill.runners.files import require_writable
from tallymill.runners.run import Run
from tallymill.runners.writing import naming_output


def require_file(out: Path, *inputs: str | Path | None, outside: Iterable[Run] = ()) -> Path:
    """A file to write, new or to be replaced, in none of the RUNs ``outside``.

    A folder, a device, or one of the ``inputs`` is a ``UsageError``. A place that cannot be written is an
    ``OutputError``: now, and not after the work.
    """
    with naming_output(out):
        if out.is_dir():
            raise UsageError(f"--out {out} is a folder; it names the file to write")
        if out.exists() and not out.is_file():
            raise UsageError(
                f"--out {out} is no regular file, and would be replaced by one", hint="choose another name"
            )
    _require_unread(out, [out], inputs)
    _require_outside(out, outside)
    require_writable(out)
    return out


def require_folder(
    out: Path, *inputs: str | Path | None, names: Iterable[str] = (), outside: Iterable[Run] = ()
) -> Path:
    """A folder to write into, perhaps not there yet; of the ``inputs`` none is its file of one of the ``names``.

    A file in the folder's place is a ``UsageError``, the rest as ``require_file``.
    """
    with naming_output(out):
        if out.exists() and not out.is_dir():
            raise UsageError(f"--out {out} is a file; it names a folder")
    _require_unread(out, [out / name for name in names], inputs)
    _require_outside(out, outside)
    require_writable(out)
    return out


def _require_unread(out: Path, written: Iterable[Path], inputs: Iterable[str | Path | None]) -> None:
    """Refuse to replace a file that is read, whatever it is called in the other place."""
    read = [Path(path) for path in inputs if path is not None and Path(path).exists()]
    for file in written:
        if any(file.exists() and file.samefile(path) for path in read):
            what = "is the file" if file == out else f"would replace {file.name}"
            raise UsageError(f"--out {out} {what} that is read", hint="choose another name")


def _require_outside(out: Path, runs: Iterable[Run]) -> None:
    """Refuse to write into a RUN, or into the one whose proposals it has."""
    place = out.resolve()
    for run in runs:
        for folder in (run.path, run.proposals_folder.parent):
            if folder.resolve() in (place, *place.parents):
                raise UsageError(f"--out {out} lies in the RUN {folder.resolve()}", hint="choose a place outside it")
