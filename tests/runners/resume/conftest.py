"""Finished RUNs to be stopped, damaged and gone on with."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tallymill

SHARD, ITEMS, MANY = 12, 120, 960


def sweep_again(manifest: Path, run: Path, **options: Any) -> Any:
    """The sweep that the RUNs of this folder were made with, or one with other options."""
    return tallymill.sweep(manifest, run, **{"ensemble": "synthetic", "workers": 0, "shard_items": SHARD, **options})


def find_leftovers(run: Path) -> list[Path]:
    """The files of a RUN that are not whole."""
    return [path for path in run.rglob("*") if path.name.startswith(".")]


def made(folder: Path, manifest_file: Callable[..., Path], items: int) -> tuple[Path, Path]:
    manifest = manifest_file(folder / "m.jsonl", items)
    sweep_again(manifest, folder / "RUN")
    return manifest, folder / "RUN"


@pytest.fixture(scope="session")
def plain(tmp_path_factory, manifest_file) -> tuple[Path, Path]:
    """A manifest of 120 items and its uninterrupted RUN of 10 shards."""
    return made(tmp_path_factory.mktemp("plain"), manifest_file, ITEMS)


@pytest.fixture(scope="session")
def long(tmp_path_factory, manifest_file) -> tuple[Path, Path]:
    """The same with 80 shards, so that there is time to stop it."""
    return made(tmp_path_factory.mktemp("long"), manifest_file, MANY)


@pytest.fixture
def copy(plain, tmp_path) -> Path:
    """A copy of the finished RUN to be damaged."""
    shutil.copytree(plain[1], tmp_path / "RUN")
    return tmp_path / "RUN"


@pytest.fixture(scope="session")
def go_on() -> Callable[..., Any]:
    return sweep_again


@pytest.fixture(scope="session")
def leftovers() -> Callable[[Path], list[Path]]:
    return find_leftovers
