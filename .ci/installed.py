"""Run by an interpreter that tallymill is installed in, outside the checkout: is the installation whole?

Usage: python installed.py FOLDER      (the folder that tallymill has to be imported from)
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

import tallymill
import tallymill.kernels.nms
from tallymill.engine import ensemble
from tallymill.kernels import _native


def main() -> None:
    """Import, look for the data files, run a kernel and a sweep."""
    home = Path(sys.argv[1]).resolve()
    for module in (tallymill, _native):
        assert home in Path(module.__file__).resolve().parents, f"{module.__file__} is not below {home}"
    assert (Path(tallymill.__file__).parent / "py.typed").is_file()
    for name in ("coco-cpu", "synthetic"):
        assert ensemble.load_ensemble(name).name == name
    boxes = np.array([[0, 0, 10, 10], [1, 1, 11, 11], [20, 20, 30, 30]], np.float32)
    kept = tallymill.kernels.nms.nms(boxes, np.array([0.5, 0.9, 0.7], np.float32), np.array([0, 3]))
    assert kept.indices.tolist() == [1, 2], kept
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder, "manifest.jsonl")
        manifest.write_text(json.dumps({"image": "a.jpg", "targets": {"cat": 3}}) + "\n")
        assert tallymill.sweep(manifest, Path(folder, "RUN"), ensemble="synthetic").scored == 1


if __name__ == "__main__":
    main()
