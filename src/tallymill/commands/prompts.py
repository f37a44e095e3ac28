"""``tallymill prompts``: the prompts of NumBench, built, checked, and the balanced subset of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pyarrow as pa
from cyclopts import App, Parameter
from rich.text import Text

import tallymill
from tallymill.commands.base import DONE, FAILED, Json, app, print_json
from tallymill.engine.numbench.prompts.build import FULL, SUBSET, facts_of, rows_sha256
from tallymill.engine.numbench.prompts.conditions import Condition, PromptsCheck
from tallymill.runners import console

SETS = {FULL: "full set of 640,000", SUBSET: "balanced subset of 3,200"}

prompts = App(name="prompts", help="The 640,000 prompts of NumBench: build them, check them, take the balanced 3,200.")
app.command(prompts)


@prompts.command
def build(*, out: Path, seed: int = 0, as_json: Json = False) -> int:
    """Write the 640,000 prompts; the same seed gives the same rows.

    Parameters
    ----------
    out
        The Parquet file to write.
    seed
        A whole number that decides what is left to chance.
    """
    table = tallymill.build_prompts(out, seed=seed)
    return _written(out, table, as_json)


@prompts.command
def subset(
    *,
    out: Path,
    source: Annotated[Path | None, Parameter(name="--from")] = None,
    seed: int = 0,
    as_json: Json = False,
) -> int:
    """Write the balanced subset of 3,200 prompts, which keep their ids.

    Parameters
    ----------
    out
        The Parquet file to write.
    source
        A file of all prompts; without it they are built from the seed.
    seed
        A whole number that decides what is left to chance.
    """
    table = tallymill.subset_prompts(source, out, seed=seed)
    return _written(out, table, as_json)


@prompts.command
def check(
    file: Path,
    *,
    subset: Annotated[bool | None, Parameter(negative="--full", show_default=False)] = None,
    as_json: Json = False,
) -> int:
    """Check every condition that NumBench sets on its prompts; exit code 1 when one fails.

    Parameters
    ----------
    file
        A prompt file: Parquet, JSONL or CSV.
    subset
        Whether to check it as the subset of 3,200 prompts or as the full set; by default as the file says of itself,
        or by its size.
    """
    result = tallymill.check_prompts(file, subset=subset)
    if as_json:
        print_json(result.as_dict())
    else:
        _show(result)
    return DONE if result.passed else FAILED


def _written(out: Path, table: pa.Table, as_json: bool) -> int:
    if as_json:
        print_json(
            {"out": str(out), "prompts": table.num_rows, "rows_sha256": rows_sha256(table)} | facts_of(table.schema)
        )
    else:
        console.tell(f"{table.num_rows:,} prompts written to {out}")
    return DONE


def _show(result: PromptsCheck) -> None:
    table = console.columns(["dimension", "condition", "required", "found", ""])
    last = None
    for line in result.conditions:
        dimension = "" if line.dimension == last else line.dimension
        table.add_row(*map(Text, (dimension, line.name, line.required, line.found, _verdict(line))))
        last = line.dimension
    console.out.print(table)
    failed = [line for line in result.conditions if line.passed is False]
    for line in failed:
        _show_failures(line)
    what = f"{result.file}: {result.rows:,} prompts, checked as the {SETS[result.kind]}"
    told = f"{len(failed)} of {len(result.conditions)} conditions fail" if failed else "every condition holds"
    console.tell(f"{what}: {told}")


def _verdict(line: Condition) -> str:
    return {True: "pass", False: "FAIL", None: "told"}[line.passed]


def _show_failures(line: Condition) -> None:
    console.tell(f"{line.dimension}, {line.name}: required {line.required}, found {line.found}")
    for failure in line.failures:
        where = "" if failure.row is None else f"row {failure.row}, {failure.prompt_id}: "
        console.tell(f"  {where}{failure.value}")
    if (more := line.failing - len(line.failures)) > 0:
        console.tell(f"  and {more:,} more")
