"""The floors of the house: what may import what, and how the folders hang together."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "tallymill"
FOLDERS = ("kernels", "engine", "exporters", "runners", "bench")
# Each folder, and the parts of tallymill that it may import besides itself. "" is the package: its Python interface, of
# which PhysCount's is a module of its own.
MAY_IMPORT = {
    "errors": set(),
    "kernels": {"errors"},
    "engine": {"errors", "kernels"},
    "exporters": {"errors", "kernels", "engine"},
    "runners": {"", "errors", "kernels", "engine", "exporters"},
    "": {"errors", "kernels", "engine", "exporters", "runners"},
    "bench": {"", "errors", "kernels", "engine", "exporters", "runners", "cli"},
    "commands": {"", "errors", "kernels", "engine", "exporters", "runners", "bench"},
    "cli": {"", "errors", "kernels", "engine", "exporters", "runners", "bench", "commands"},
}
_DOTTED = re.compile(r"tallymill((?:\.[a-z_]\w*)+)")


def part_of(module: str) -> str:
    """``tallymill.engine.items`` -> ``engine``; the package, or a name of its interface, -> ``""``."""
    first = module.removeprefix("tallymill").lstrip(".").partition(".")[0]
    return first if first in MAY_IMPORT else ""


def imported(source: str, where: str) -> Iterator[tuple[int, str]]:
    """(line, part of tallymill) of every import in a source text, those by a dotted name in a string too."""
    for node in ast.walk(ast.parse(source, where)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where}:{node.lineno}: a relative import; name the module in full"
            # ``from tallymill import engine`` imports a folder, ``from tallymill import sweep`` the interface.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value] if _DOTTED.fullmatch(node.value) else []
        else:
            continue
        for name in names:
            if name == "tallymill" or name.startswith("tallymill."):
                yield node.lineno, part_of(name)


def files_of(part: str) -> list[Path]:
    if part in FOLDERS:
        return sorted((ROOT / part).rglob("*.py"))
    if part == "commands":
        return sorted((PACKAGE / part).glob("*.py"))
    if part == "":
        return [PACKAGE / name for name in ("__init__.py", "physcount.py", "abacus.py")]
    if part == "cli":
        return [PACKAGE / "cli.py", PACKAGE / "__main__.py"]
    return [PACKAGE / f"{part}.py"]


def upward(part: str, source: str, where: str) -> list[str]:
    """Imports of a source text in ``part`` that lead to a floor above it."""
    allowed = MAY_IMPORT[part] | {part}
    return [f"{where}:{line}: imports tallymill.{to}" for line, to in imported(source, where) if to not in allowed]


@pytest.mark.parametrize("part", MAY_IMPORT)
def test_no_floor_imports_a_higher_one(part: str) -> None:
    files = files_of(part)
    assert files, f"{part}: no source files"
    found = []
    for file in files:
        found += upward(part, file.read_text("utf-8"), str(file.relative_to(ROOT)))
    assert found == []


@pytest.mark.parametrize(
    ("part", "source"),
    [
        ("kernels", "from tallymill.engine.items import read_items"),
        ("kernels", "import tallymill"),
        ("engine", "def f():\n    from tallymill.runners import files"),
        ("engine", "import tallymill.exporters.hub as hub"),
        ("engine", "from tallymill import exporters"),
        ("engine", "from tallymill.exporters import hub"),
        ("exporters", "importlib.import_module('tallymill.runners.sweep')"),
        ("runners", "if TYPE_CHECKING:\n    from tallymill.cli import main"),
        ("runners", "import tallymill.bench"),
    ],
)
def test_an_import_of_a_higher_floor_is_seen(part: str, source: str) -> None:
    assert len(upward(part, source, "x.py")) == 1


def test_the_same_and_lower_floors_are_free() -> None:
    assert upward("engine", "from tallymill.kernels.nms import nms\nfrom tallymill.engine import items", "x.py") == []
    assert upward("runners", "import tallymill\ntallymill.sweep", "x.py") == []


def test_every_module_stands_on_a_floor() -> None:
    assert {path.stem for path in PACKAGE.glob("*.py")} == {
        "__init__",
        "__main__",
        "errors",
        "cli",
        "physcount",
        "abacus",
    }
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir()} - {"__pycache__"} == {*FOLDERS, "commands"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_is_linked_and_is_no_package_of_its_own(folder: str) -> None:
    link = PACKAGE / folder
    assert link.is_symlink()
    assert link.readlink() == Path("../..", folder)
    assert not (ROOT / folder / "__init__.py").exists(), f"{folder} would shadow a package of that name"
