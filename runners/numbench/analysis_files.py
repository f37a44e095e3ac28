"""The files of an analysis: ``analysis.json``, which can be read back, ``analysis.md``, and one CSV a table."""

from __future__ import annotations

import json
from pathlib import Path

from tallymill import __version__
from tallymill.engine.numbench.analysis.results import Analysis
from tallymill.engine.report.markdown import markdown
from tallymill.engine.report.serialize import as_json, csv_tables, from_json
from tallymill.errors import RunError, UsageError
from tallymill.runners.files import appearing, encoded, of_version, versions, write_json

NAME = "analysis.json"


def require_folder(out: Path) -> Path:
    """The folder to write into: new, empty, or with an analysis. Anything else is a ``UsageError``."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is a file; it names a folder")
    if out.is_dir() and not (out / NAME).exists():
        other = next((entry.name for entry in out.iterdir() if not entry.name.startswith(".")), None)
        if other is not None:
            raise UsageError(f"--out {out} is not empty ({other}) and has no {NAME}", hint="choose another folder")
    return out


def write_analysis(analysis: Analysis, folder: Path) -> None:
    """Write every file, ``analysis.json`` last."""
    texts = {f"{name}.csv": text for name, text in csv_tables(analysis).items()} | {"analysis.md": markdown(analysis)}
    for name, text in texts.items():
        with appearing(folder / name) as path:
            path.write_bytes(encoded(text))
    if analysis.agreement is None:
        (folder / "agreement.csv").unlink(missing_ok=True)  # of an earlier analysis
    write_json(folder / NAME, {"tallymill": __version__, **as_json(analysis)})


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
    except (OSError, ValueError) as exc:
        raise RunError(f"{file} is not an analysis: {exc}{versions(version)}") from None
