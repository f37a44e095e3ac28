"""Bundles made by hand, as ``export`` would write them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tallymill.engine.bundles import FORMAT, digest_of

PASSED = {"part": "whole", "check": "c", "output": "boxes", "difference": 0.0, "tolerance": 1e-3, "compared": 4}


def manifest(**values: Any) -> dict[str, Any]:
    """What ``bundle.json`` says: these values, its own SHA-256, and little else. Those that are ... are absent."""
    plain = {"name": "m", "family": "owlvit", "runtime": "onnx", "precision": "fp32", "parts": {}, "numbers": {}}
    told = {"format": FORMAT, **plain, "tokenizer": None, "files": {}, "gate": [PASSED], **values}
    told = {name: value for name, value in told.items() if value is not ...}
    return {"sha256": digest_of(told), **told}


def write(folder: Path, contents: dict[str, bytes] | None = None, **values: Any) -> Path:
    """Write a bundle with files of these contents into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, content in (contents or {}).items():
        (folder / name).write_bytes(content)
        files[name] = hashlib.sha256(content).hexdigest()
    (folder / "bundle.json").write_text(json.dumps(manifest(**{"files": files, **values})))
    return folder
