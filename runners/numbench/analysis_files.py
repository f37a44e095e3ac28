"""The files of an analysis: ``analysis.json``, which can be read back, ``analysis.md``, and one CSV a table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path

from tallymill import __version__
from tallymill.engine.numbench.analysis.results import Analysis
from tallymill.engine.report.markdown import markdown
from tallymill.engine.report.serialize import as_json, csv_tables, from_json
from tallymill.errors import RunError, UsageError
from tallymill.runners.files import appearing_together, encoded, json_text, made_for, of_version, versions
from tallymill.runners.outputs import require_folder
from tallymill.runners.run import Run

NAME, TEXT = "analysis.json", "analysis.md"
# All that an analysis may write: not every one has every table.
NAMES = (NAME, TEXT, *(f"{field.name}.csv" for field in fields(Analysis)))


def require_analysis_folder(out: Path, *inputs: str | Path | None, outside: Iterable[Run]) -> Path:
    """The folder to write into, outside the RUNs: new, empty, or with an analysis. Anything else is a ``UsageError``.

    So is one where a table would replace one of the ``inputs``. One that cannot be written is an ``OutputError``.
    """
    require_folder(out, *inputs, names=NAMES, outside=outside)
    if out.is_dir() and not (out / NAME).exists():
        other = next((entry.name for entry in out.iterdir() if not entry.name.startswith(".")), None)
        if other is not None:
            raise UsageError(f"--out {out} is not empty ({other}) and has no {NAME}", hint="choose another folder")
    return out


def write_analysis(analysis: Analysis, folder: Path) -> None:
    """Write every file; none appears before all are whole, and the agreement of an earlier analysis goes.

    They get their names one by one, ``analysis.json`` first: a process that is killed just then leaves tables of an
    earlier analysis beside new ones, and the same command, which takes the folder for its own, writes all anew.
    """
    texts = {NAME: json_text({"tallymill": __version__, **as_json(analysis)})}
    texts |= {f"{name}.csv": text for name, text in csv_tables(analysis).items()} | {TEXT: markdown(analysis)}
    stale = None if "agreement.csv" in texts else "agreement.csv"
    with made_for(folder), appearing_together(folder, list(texts), without=stale) as paths:
        for name, text in texts.items():
            paths[name].write_bytes(encoded(text))


def load_analysis(path: str | Path) -> Analysis:
    """Read ``analysis.json`` (or the folder that has it). A ``RunError`` where it is none."""
    file = Path(path)
    file = file / NAME if file.is_dir() else file
    version = None
    try:
        version, values = of_version(json.loads(file.read_text("utf-8")))
        return from_json(values)
    except FileNotFoundError:
        raise RunError(f"{file}: no such file", hint="`tallymill analyse RUN --out FOLDER` writes it") from None
    except (OSError, ValueError, RecursionError) as exc:
        raise RunError(f"{file} is not an analysis: {exc}{versions(version)}") from None
