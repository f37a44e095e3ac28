"""Images that failed, and images that calibration and scoring must not have in common."""

import json
import shutil
from pathlib import Path

import pytest

import tallymill
from tallymill.errors import RunError
from tallymill.runners.numbench.calibrate import calibrate, require_disjoint
from tallymill.runners.run import Run, load

ITEMS = 60  # of the RUN ``run``


def test_failed_images_are_counted_and_give_no_labels(images: Path) -> None:
    result = calibrate(images / "one", images / "truth.jsonl", scored=[images / "two"])
    [fit] = result.detectors
    assert (result.items, result.failed) == (5, 1)
    assert (fit.items, fit.failed, fit.objects) == (4, 1, 4)
    # Four pictures that could be read, and the file that was none.
    assert sorted(result.images.values()) == [f"{k}.png" for k in range(5)]
    assert fit.proposals == sum(len(r["confidence"]) for r in load(images / "one").proposals("m").to_pylist())


def test_images_in_common_are_refused_by_name(images: Path, tmp_path: Path) -> None:
    shutil.copytree(images / "two-images", tmp_path / "mixed")
    shutil.copy(images / "one-images" / "2.png", tmp_path / "mixed" / "copy.png")
    with (tmp_path / "mixed" / "metadata.jsonl").open("a") as file:
        file.write(json.dumps({"file_name": "copy.png", "targets": {"cat": 1}}) + "\n")
    tallymill.sweep(tmp_path / "mixed", tmp_path / "run", ensemble=images / "ensemble.toml", workers=0)
    with pytest.raises(RunError, match=r"1 image of .*run among the calibration images of .*one") as caught:
        calibrate(images / "one", images / "truth.jsonl", scored=[images / "two", tmp_path / "run"])
    assert "'copy.png' is calibration item '2.png' (image_hash " in caught.value.message
    with pytest.raises(RunError, match="5 images of"):
        calibrate(images / "one", images / "truth.jsonl", scored=[images / "one"])


def test_images_without_a_hash_cannot_be_compared_and_are_told(
    objects, write, run: Run, images: Path, tmp_path: Path
) -> None:
    assert require_disjoint({"h": "x"}, run) == ITEMS
    result = calibrate(images / "one", images / "truth.jsonl", scored=[run])
    assert sum(f"{ITEMS} images of {run.path} have no hash" in note for note in result.notes) == 1
    own = calibrate(run, write(tmp_path / "truth.jsonl", objects(run)))
    assert sum(f"{ITEMS} images of this RUN have no hash" in note for note in own.notes) == 1


def test_a_scored_run_that_lacks_parts_cannot_be_compared(images: Path, tmp_path: Path) -> None:
    shutil.copytree(images / "two", tmp_path / "two")
    next((tmp_path / "two" / "scores").rglob("*.parquet")).unlink()
    with pytest.raises(RunError, match=r"two is not complete: .* has no whole scores") as caught:
        calibrate(images / "one", images / "truth.jsonl", scored=[tmp_path / "two"])
    assert "run its sweep again" in (caught.value.hint or "")
