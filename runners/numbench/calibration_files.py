"""A calibration on disk: ``calibration.json``, the ensemble with its temperatures, and the reliability plot."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tallymill import __version__
from tallymill.engine.ensemble import EnsembleConfig
from tallymill.engine.numbench.calibration import CalibrationResult
from tallymill.engine.report.canvas import save_figure
from tallymill.engine.report.reliability import reliability_figure
from tallymill.errors import RunError, UsageError
from tallymill.runners.files import appearing_together, encoded, json_text, made_for, of_version, versions, without_nan
from tallymill.runners.outputs import require_folder
from tallymill.runners.run import Run
from tallymill.runners.typed import typed

JSON_NAME, ENSEMBLE_NAME = "calibration.json", "ensemble.toml"
_FIGURES = {"reliability.svg": "svg", "reliability.png": "png"}
NAMES = (*_FIGURES, ENSEMBLE_NAME, JSON_NAME)


def require_calibration_folder(out: Path, *inputs: str | Path, outside: Iterable[Run]) -> Path:
    """The folder to write into, outside the RUNs. One whose files would be replaced is a ``UsageError``.

    Those of an earlier calibration may be. One that cannot be written is an ``OutputError``.
    """
    require_folder(out, *inputs, names=NAMES, outside=outside)
    own = [name for name in NAMES if (out / name).exists()]
    if own and not _is_of_a_calibration(out / JSON_NAME):
        raise UsageError(
            f"--out {out} has files that no calibration wrote and that would be replaced: {', '.join(own)}",
            hint="choose another folder",
        )
    return out


def _is_of_a_calibration(file: Path) -> bool:
    """Of any version, and whether or not this one can read it."""
    with suppress(OSError, ValueError, RecursionError):
        version, values = of_version(json.loads(file.read_text("utf-8")))
        return version is not None and "truth_sha256" in values
    return False


def write_calibration(result: CalibrationResult, ensemble: EnsembleConfig, out: Path) -> None:
    """Write ``calibration.json``, ``ensemble.toml``, ``reliability.png`` and ``reliability.svg`` into a folder.

    None appears before all are whole, so that the temperatures of one fit never stand beside the numbers of another.
    """
    with made_for(out), appearing_together(out, NAMES) as paths:
        figure = reliability_figure(result)
        for name, form in _FIGURES.items():
            save_figure(figure, paths[name], form)
        paths[ENSEMBLE_NAME].write_bytes(encoded(ensemble_text(result, ensemble)))
        paths[JSON_NAME].write_bytes(encoded(json_text(as_dict(result))))


def as_dict(result: CalibrationResult) -> dict[str, Any]:
    """The result as JSON has it, NaN as null, with the version that makes it."""
    document: dict[str, Any] = {"tallymill": __version__, **without_nan(dataclasses.asdict(result))}
    return document


def calibration_file(path: str | Path) -> Path:
    """``calibration.json``, given by itself or by its folder."""
    return Path(path) / JSON_NAME if Path(path).is_dir() else Path(path)


def load_calibration(path: str | Path) -> CalibrationResult:
    """Read ``calibration.json``, given by itself or by its folder. Raises ``RunError`` for anything else."""
    file = calibration_file(path)
    hint = "give what `tallymill calibrate --out FOLDER` wrote: the folder, or its calibration.json"
    version = None
    try:
        version, values = of_version(json.loads(file.read_text("utf-8")))
        result: CalibrationResult = typed(CalibrationResult, values)
        return result
    except FileNotFoundError:
        raise RunError(f"{file}: no such file", hint=hint) from None
    except OSError as exc:
        raise RunError(f"{file}: cannot be read: {exc.strerror}", hint=hint) from None
    except (ValueError, RecursionError) as exc:
        raise RunError(
            f"{file} is not a calibration that tallymill wrote: {exc}{versions(version)}", hint=hint
        ) from None


def ensemble_text(result: CalibrationResult, ensemble: EnsembleConfig) -> str:
    """The ensemble with the temperatures to use, as a TOML file that ``--ensemble`` takes."""
    fits = {fit.detector: fit for fit in result.detectors}
    name = ensemble.name if ensemble.name.endswith("-calibrated") else f"{ensemble.name}-calibrated"
    lines = [
        "# Temperatures fitted by `tallymill calibrate`; calibration.json beside this file has the details.",
        f"name = {_quoted(name)}",
        f"slices = {list(ensemble.slices)}",
    ]
    for detector in ensemble.detectors:
        fit = fits[detector.name]
        lines += ["", "[[detectors]]", f"name = {_quoted(detector.name)}", f"family = {_quoted(detector.family)}"]
        if detector.model is not None:
            lines.append(f"model = {_quoted(detector.model)}")
        if fit.refused is not None:
            lines.append(f"# The fit of {fit.tau!r} is not used. {fit.refused}")
        lines.append(f"tau = {float(fit.tau_used)!r}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    # A JSON string is a TOML one but for the one control character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
