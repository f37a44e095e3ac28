"""The documents are true: their commands run, their output is what comes out, their tables are complete."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

import pytest
from rich.console import Console

from tallymill import cli
from tallymill.bench import decode as bench_decode
from tallymill.bench import rescore as bench_rescore
from tallymill.bench import sweep as bench_sweep
from tallymill.engine.proposals import SCHEMA_WITH_SUPPRESSED
from tallymill.engine.settings import Settings
from tallymill.runners import console
from tallymill.runners.demo.collages import make_collages
from tallymill.runners.dump import SCHEMA as DUMP_SCHEMA
from tallymill.runners.run import load
from tallymill.runners.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "docs/files.md",
    "docs/scores.md",
    "docs/kernels.md",
    "docs/performance.md",
    "docs/analysis.md",
    "docs/numbench.md",
    "docs/physcount.md",
    "docs/abacus.md",
    "CONTRIBUTING.md",
)
# Other ends of a console line that stand in documents and are not for this test to run.
NOT_RUN = ("git clone ", ". .venv/bin/activate")
_BLOCK = re.compile(r"^```(console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DECIMAL = re.compile(r"\d+\.\d+")


@dataclass
class Step:
    """One command of a document with the output that stands under it, or a whole Python block."""

    kind: str
    text: str
    line: int
    output: list[str] = field(default_factory=list)


def steps_of(document: str) -> list[Step]:
    text = (ROOT / document).read_text("utf-8")
    steps: list[Step] = []
    for block in _BLOCK.finditer(text):
        line = text.count("\n", 0, block.start()) + 2
        if block[1] == "python":
            steps.append(Step("python", block[2], line))
            continue
        for at, row in enumerate(block[2].splitlines()):
            if row.startswith("$ "):
                steps.append(Step("console", row[2:], line + at))
            else:
                steps[-1].output.append(row)
    return steps


def same(expected: str, actual: str) -> bool:
    """Equal but for spacing, for what ``...`` stands for, and for two hundredths in decimal numbers."""
    expected, actual = " ".join(expected.split()), " ".join(actual.split())
    pattern = _DECIMAL.sub("0.0", expected)
    pieces = map(re.escape, pattern.split("..."))
    if not re.fullmatch(".*".join(pieces), _DECIMAL.sub("0.0", actual)):
        return False
    pairs = zip(_DECIMAL.findall(expected), _DECIMAL.findall(actual), strict=False)
    return "..." in expected or all(math.isclose(float(a), float(b), abs_tol=0.02) for a, b in pairs)


def differs(expected: list[str], actual: list[str]) -> str | None:
    """The first line expected that does not come in its place; a line ``...`` stands for any lines."""
    rest = [line for line in actual if line.strip() and not set(line) <= set(" ─")]
    gap = False
    for line in (line for line in expected if line.strip()):
        if line.strip() == "...":
            gap = True
            continue
        while rest and gap and not same(line, rest[0]):
            rest.pop(0)
        if not rest or not same(line, rest.pop(0)):
            return line
        gap = False
    return None if gap or not rest else f"(nothing more) but there was: {rest[0]}"


class Folder:
    """The working folder of somebody who follows the documents one after the other."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {}

    def follow(self, document: str) -> int:
        steps = steps_of(document)
        for step in steps:
            where = f"{document}:{step.line}"
            if step.kind == "python":
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(step.text, where, "exec"), self.names)
            else:
                self._console(step, where)
        return len(steps)

    def _console(self, step: Step, where: str) -> None:
        program, *arguments = shlex.split(step.text)
        if program == "cat":
            Path(arguments[0]).write_text("\n".join(step.output) + "\n", "utf-8")
        elif program == "make":
            assert set(arguments) <= targets_of_make(), f"{where}: no such target in the Makefile"
        elif program == "tallymill":
            code, lines = run(arguments)
            assert code == 0, f"{where}: {step.text} exits with {code}:\n" + "\n".join(lines)
            if step.output:
                missed = differs(step.output, lines)
                assert missed is None, f"{where}: expected {missed!r} in:\n" + "\n".join(lines)
        else:
            assert step.text.startswith(NOT_RUN), f"{where}: nobody runs {step.text!r}"


def run(arguments: list[str]) -> tuple[int, list[str]]:
    """Exit code and lines of a command, run in this process."""
    text = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(text):
        for name in ("out", "err"):
            patch.setattr(console, name, Console(file=text, highlight=False, width=160))
        code = cli.run(arguments)
    lines = text.getvalue().splitlines()
    return code, [line for line in lines if not line.startswith("scoring ")]  # the progress bar


def targets_of_make() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    """A folder in which the README has been followed, as after ``make demo`` (the images that it names, at least)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("reader"))
        # Benchmarks of the size that is documented take minutes.
        small = functools.partial(bench_sweep.run, images=2, small=32, large=64, repeats=1)
        patch.setattr(bench_sweep, "run", small)
        patch.setattr(bench_rescore, "run", functools.partial(bench_rescore.run, rows=64, repeats=1))
        patch.setattr(bench_decode, "run", functools.partial(bench_decode.run, images=2, repeats=1))
        make_collages(Path("demo"), scored=12, calibration=4)
        folder = Folder()
        assert folder.follow("README.md") > 10
        yield folder


@pytest.mark.models
@pytest.mark.parametrize("document", DOCUMENTS[1:])
def test_the_commands_of_a_document_run(folder: Folder, document: str) -> None:
    assert folder.follow(document) > 0


@pytest.mark.models
def test_every_column_of_a_run_is_described(folder: Folder) -> None:
    assert folder.names
    own = {"prompt"}  # a column of the README's manifest
    at_times = {"user_score"}  # only of a RUN that was re-scored with a score of one's own
    assert column_table("proposals") == SCHEMA_WITH_SUPPRESSED.names
    assert [name for name in load("RUN").scores.schema.names if name not in own] == [
        name for name in column_table("scores") if name not in at_times
    ]
    assert column_table("tallymill dump") == DUMP_SCHEMA.names


@pytest.mark.models
def test_every_key_of_the_record_is_described(folder: Folder) -> None:
    assert folder.names
    record = {**RunFolder(Path("RUN")).read(), **RunFolder(Path("RUN-tau")).read()}
    described = column_table("run.json")
    assert set(record) | {"continued", "user_score"} == {name.partition(".")[0] for name in described}
    nested = [name for name in described if name.startswith("manifest.")]
    assert {name.partition(".")[2] for name in nested} == set(record["manifest"])


def test_every_setting_is_described() -> None:
    assert column_table("Settings", "docs/scores.md") == [each.name for each in fields(Settings)]


def column_table(heading: str, document: str = "docs/files.md") -> list[str]:
    """Names in the first column of the first table under a heading."""
    section = (ROOT / document).read_text("utf-8").split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize(
    ("expected", "actual", "result"),
    [
        (["a 1", "b"], ["a   1", "", "b"], None),
        (["a 0.50"], ["a 0.51"], None),
        (["a 0.50"], ["a 0.60"], "a 0.50"),
        (["a 5"], ["a 6"], "a 5"),
        (["a ... c"], ["a b c"], None),
        (["...", "c"], ["a", "b", "c"], None),
        (["...", "d"], ["a", "b", "c"], "d"),
        (["a"], ["a", "b"], "(nothing more) but there was: b"),
        (["a", "..."], ["a", "b"], None),
        (["a", "b"], ["a"], "b"),
    ],
)
def test_output_that_differs_is_told(expected: list[str], actual: list[str], result: str | None) -> None:
    assert differs(expected, actual) == result


def test_the_documents_link_to_what_is_there() -> None:
    for document in (*DOCUMENTS, "THIRD_PARTY.md", "CHANGELOG.md"):
        for target in re.findall(r"\]\(([^)#]*)(?:#[^)]*)?\)", (ROOT / document).read_text("utf-8")):
            if "://" not in target and target:
                assert (ROOT / document).parent.joinpath(target).exists(), f"{document}: {target}"
