"""A package with one small model, in the forms that it comes in, and an empty cache."""

from __future__ import annotations

import hashlib
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tallymill.exporters import hub
from tallymill.exporters.recipes.base import GraphInput, GraphOutput, PackageFile, Recipe


def sha256(file: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def hidden(cache: Path) -> list[str]:
    """The names of the entries of a cache that are not whole."""
    return [path.name for path in (cache / "models").iterdir() if path.name.startswith(".")]


@pytest.fixture(scope="session")
def digest() -> Callable[[Path], str]:
    return sha256


@pytest.fixture(scope="session")
def leftovers() -> Callable[[Path], list[str]]:
    return hidden


@pytest.fixture
def package(graph, tmp_path) -> Path:
    """An unpacked package with one small model."""
    graph.op("out", "Add", ["x", graph.constant("w", [1.0, 2.0])])
    root = tmp_path / "made" / "package"
    graph.write(root / "models" / "tiny", shards=2)
    (root / "package.json").write_text("{}")
    return root


@pytest.fixture
def recipe(package) -> Recipe:
    paths = [f"models/tiny/{name}" for name in ("model.json", "shard0.bin", "shard1.bin")]
    return Recipe(
        name="tiny",
        package="@made/up-models",
        version="1.2.3",
        licence="MIT",
        files=tuple(PackageFile(path, sha256(package / path)) for path in paths),
        model_json=paths[0],
        inputs=(GraphInput("x", "x", "float32", (2,)),),
        outputs=(GraphOutput("out", "out"),),
    )


@pytest.fixture
def recipes(recipe):
    return {"tiny": recipe}


@pytest.fixture
def tarball(package, recipe) -> Path:
    file = package.parents[1] / "tarballs" / recipe.tarball
    file.parent.mkdir()
    with tarfile.open(file, "w:gz") as archive:
        archive.add(package, "package")
    return file


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, and a process that has verified nothing yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TALLYMILL_CACHE", str(folder))
    monkeypatch.setattr(hub, "_verified", set())
    return folder


@pytest.fixture
def npm(tarball, tmp_path, monkeypatch) -> Path:
    """A stand-in for npm that copies the tarball to where npm would write it; returns its log of arguments."""
    log = tmp_path / "npm.log"
    script = tmp_path / "bin" / "npm"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\ncp "{tarball}" .\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return log
