"""Detectors that are added to a RUN run alone, over the images that the others saw."""

import numpy as np
import pytest
from PIL import Image

import tallymill
from tallymill.errors import RunError


def test_a_detector_that_was_added_runs_alone(go_on, plain, contents, times, ensemble_file, tmp_path):
    two = ensemble_file(tmp_path / "two.toml", "synthetic-a", "synthetic-b")
    three = ensemble_file(tmp_path / "three.toml", "synthetic-a", "synthetic-b", "synthetic-c")
    run = tmp_path / "RUN"
    go_on(plain[0], run, ensemble=two)
    before = times(run)
    small = contents(run)
    summary = go_on(plain[0], run, ensemble=three, workers=2)
    assert summary.complete
    after = times(run)
    assert all(after[name] == when for name, when in before.items() if name.startswith("proposals/"))
    assert {name.split("/")[1] for name in set(after) - set(before)} == {"synthetic-c"}
    assert contents(run) == contents(plain[1])
    assert any(contents(run)[name] != rows for name, rows in small.items() if name.startswith("scores/"))
    with pytest.raises(RunError, match="synthetic-c is in the RUN but not asked for now"):
        go_on(plain[0], run, ensemble=two)


def test_a_detector_added_to_a_stopped_run(go_on, plain, contents, ensemble_file, tmp_path):
    two = ensemble_file(tmp_path / "two.toml", "synthetic-a", "synthetic-b")
    run = tmp_path / "RUN"
    assert not go_on(plain[0], run, ensemble=two, part=(2, 3)).complete
    assert go_on(plain[0], run).complete
    assert contents(run) == contents(plain[1])


def test_an_image_that_changed_before_a_detector_was_added_is_an_error_row(tmp_path, image_folder, image_ensemble_file):
    images, run = image_folder(tmp_path / "images", 20), tmp_path / "RUN"
    one, two = (image_ensemble_file(tmp_path / f"{n}.toml", *names) for n, names in ((1, ["x"]), (2, ["x", "y"])))
    tallymill.sweep(images, run, ensemble=one, workers=0)
    Image.fromarray(np.full((30, 40, 3), 77, np.uint8)).save(images / "5.png")
    (images / "6.png").unlink()
    summary = tallymill.sweep(images, run, ensemble=two, workers=0)
    assert (summary.scored, summary.error) == (18, 2)
    rows = {row["item_id"]: row for row in tallymill.load(run).scores.to_pylist()}
    assert rows["5.png"]["error"] == "image: the file changed since the other detectors of this RUN looked at it"
    assert rows["6.png"]["error"] == "image: not found"
    assert rows["5.png"]["cw_nps"] is None
    image_folder(tmp_path / "fresh", 20)
    tallymill.sweep(tmp_path / "fresh", tmp_path / "FRESH", ensemble=two, workers=0)
    fresh = {row["item_id"]: row for row in tallymill.load(tmp_path / "FRESH").scores.to_pylist()}
    assert [name for name in rows if rows[name] != fresh[name]] == ["5.png", "6.png"]
