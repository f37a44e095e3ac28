"""The annotations of a RUN: wherever their files lie now, they have to be those that it was begun with."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tallymill.engine.abacus.panoptic import Panoptic
from tallymill.errors import ManifestError, RunError, UsageError
from tallymill.exporters import hub
from tallymill.runners.files import write_json
from tallymill.runners.run_folder import RunFolder

# Of each PNG file that sources of the manifest have: its path within the folder, and its SHA-256, null where it could
# not be read. Edits of such a source are error rows, and the file may come later.
ANNOTATIONS = "annotations.json"
_MOST_TOLD = 5


def find_annotations(file: str | Path | None, folder: str | Path | None) -> Panoptic | None:
    """The panoptic file of a call, and the folder of its PNG files, by default the one beside it of its name."""
    if file is None:
        if folder is not None:
            raise UsageError("--panoptic-images goes with --panoptic FILE.json")
        return None
    path = Path(file).absolute()
    images = path.with_suffix("") if folder is None else Path(folder).absolute()
    if not images.is_dir():
        raise ManifestError(f"{images}: no such folder", hint="--panoptic-images names the folder of the PNG files")
    return Panoptic(path, images)


def entry_of(panoptic: Panoptic | None) -> dict[str, str] | None:
    """What ``run.json`` says of annotations, and workers are told: where they lie, and the digest of the JSON file."""
    if panoptic is None:
        return None
    return {"file": str(panoptic.path), "folder": str(panoptic.folder), "sha256": hub.sha256(panoptic.path)}


def digests_of(panoptic: Panoptic, files: Iterable[Path]) -> dict[str, str | None]:
    """The SHA-256 of each PNG file by its path within the folder, None of one that cannot be read."""
    return {Path(os.path.relpath(file, panoptic.folder)).as_posix(): _sha256(file) for file in sorted(files)}


def remember(run: RunFolder, now: Mapping[str, str | None]) -> None:
    """Write down the annotations of a RUN that has no record yet."""
    write_json(run.path / ANNOTATIONS, dict(now))


def require_same(run: RunFolder, now: Mapping[str, str | None]) -> None:
    """Raise ``RunError`` where a PNG file is another one than the RUN knows; what was missing then is added."""
    file = run.path / ANNOTATIONS
    before = _read(file)
    other = [name for name, digest in now.items() if digest and before.get(name) not in (digest, None)]
    if other:
        shown = "\n  ".join(other[:_MOST_TOLD])
        more = f"\n  and {len(other) - _MOST_TOLD:,} more" if len(other) > _MOST_TOLD else ""
        raise RunError(
            f"{run.path} was made with other annotations; these PNG files are not what they were:\n  {shown}{more}",
            hint="name the folder of those files with --panoptic-images, or choose another --out",
        )
    known = {**now, **{name: digest for name, digest in before.items() if digest}}
    if known != before:
        write_json(file, known)


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise RunError(f"{file} is missing: it says which annotations the RUN has", hint="put it back") from None
    except OSError as exc:
        raise RunError(f"{file}: cannot be read: {exc.strerror}") from None
    except ValueError as exc:
        raise RunError(f"{file}: cannot be read: {exc}", hint="put back the file that `abacus score` wrote") from None
    if not isinstance(found, dict):
        raise RunError(f"{file}: is not as it must be", hint="put back the file that `abacus score` wrote")
    return found


def _sha256(file: Path) -> str | None:
    try:
        return hub.sha256(file)
    except OSError:
        return None
