from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tallymill import abacus
from tallymill.errors import UsageError
from tallymill.runners.abacus.example import SHIFT, edits_of


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return abacus.example(tmp_path_factory.mktemp("example") / "DATA")


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_truth_follows_from_the_copies():
    for made in edits_of(0) + edits_of(1):
        before, after = set(made.source), set(made.edited)
        came = sum(copy.category == (made.target or made.category) for copy in after - before)
        gone = len(before - after)
        if made.operation == "add":
            assert (made.delivered, made.lost) == (came, gone)
        elif made.operation == "remove":
            assert (made.delivered, made.lost) == (gone, came)
        else:
            cells = {copy.cell for copy in before - after} & {copy.cell for copy in after - before}
            assert (made.delivered, made.lost) == (len(cells), gone - len(cells))
        assert made.originals == len(made.source) >= (made.count if made.operation != "add" else 0)
        assert len({copy.cell for copy in made.source}) == len(made.source)
        assert len({copy.cell for copy in made.edited}) == len(made.edited)


def test_the_annotations_are_where_the_copies_are(made):
    document = json.loads(made.panoptic.read_text())
    for annotation, truth in zip(document["annotations"], read(made.truth), strict=True):
        ids = np.array(Image.open(made.panoptic.with_suffix("") / annotation["file_name"]))[..., 0]
        assert len(annotation["segments_info"]) == truth["originals"]
        for segment in annotation["segments_info"]:
            assert (ids == segment["id"]).sum() == segment["area"]
            left, top, width, height = segment["bbox"]
            assert (ids[top : top + height, left : left + width] == segment["id"]).all()


def test_an_untouched_image_is_its_source_and_a_shifted_one_is_not(made):
    images = made.manifest.parent / "images"
    for name in ("00-11-untouched", "01-11-untouched"):
        assert (images / f"{name}-source.jpg").read_bytes() == (images / f"{name}-edited.jpg").read_bytes()
    source, edited = (
        np.array(Image.open(images / f"00-09-add-shifted-{image}.jpg")).astype(int) for image in ("source", "edited")
    )
    across, down = SHIFT
    moved = np.abs(source[:-down, :-across] - edited[down:, across:]).mean()
    assert moved < np.abs(source - edited).mean() / 2


def test_the_same_seed_gives_the_same_pixels(made, tmp_path):
    again = abacus.example(tmp_path / "DATA", laps=1)
    for file in sorted((tmp_path / "DATA/images").iterdir()):
        assert file.read_bytes() == (made.manifest.parent / "images" / file.name).read_bytes()
    assert again.edits == 12
    with pytest.raises(UsageError, match="not an empty folder"):
        abacus.example(tmp_path / "DATA")
    with pytest.raises(UsageError, match="laps 0"):
        abacus.example(tmp_path / "OTHER", laps=0)


@pytest.mark.models
def test_every_edit_gets_the_verdict_that_it_was_built_for(made, tmp_path, abacus_models):
    del abacus_models
    found = abacus.score(made.manifest, tmp_path / "RUN", panoptic=made.panoptic, resamples=50)
    rows = {row["edit_id"]: row for row in pq.read_table(tmp_path / "RUN/scores.parquet").to_pylist()}
    truth = {row["edit_id"]: row for row in read(made.truth)}
    names = ("delivered", "lost", "originals")
    got = {name: [row[key] for key in names] for name, row in rows.items()}
    assert got == {name: [row[key] for key in names] for name, row in truth.items()}
    assert found.error == 0
    assert found.counts["ambiguous"] == found.counts["repaired"] == 0
    assert found.agreement.exact == 1
    for name, row in rows.items():
        _, _, kind = name.split("-", 2)
        asked = truth[name]
        kept = row["verdicts"].count("kept") // 2
        if asked["operation"] == "add":
            assert kept == asked["originals"] - asked["lost"]  # also where everything moved by a few pixels
        exact = asked["delivered"] == asked["count"]
        assert ("undershoot" in row["failures"]) == (asked["delivered"] < asked["count"])
        assert ("overshoot" in row["failures"]) == (asked["delivered"] > asked["count"])
        assert ("elsewhere" in row["failures"]) == kind.endswith("elsewhere")
        assert ("overwritten" in row["failures"]) == (kind == "add-overwriting")
        assert row["cf"] == 1 if exact else row["cf"] < 1
        if kind == "untouched":
            assert (row["score"], row["sc"], row["oc"]) == (0, 1, 1)
    shifted, still = rows["00-09-add-shifted"], rows["00-10-add-recoloured"]
    assert shifted["sc"] < 0.8 < still["sc"]
