from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tallymill import abacus
from tallymill.errors import RunError

ADDED = ("add 2 cats", (0, 1), (0, 1, 2, 3))


def scores_of(run):
    return pq.read_table(run / "scores.parquet").to_pylist()


def run(manifest, out, suite, **options):
    return abacus.score(manifest, out, suite=suite, workers=0, resamples=20, **options)


def panoptic(folder, spots_by_source, pixels_of, size, crowd=()):
    """Annotations of sources e0, e1, …: a segment for each spot."""
    (folder / "panoptic").mkdir()
    annotations = []
    for number, spots in enumerate(spots_by_source):
        ids = np.zeros((*size, 3), np.uint8)
        for spot in spots:
            ids[(*pixels_of(spot), 0)] = spot + 1
        Image.fromarray(ids).save(folder / f"panoptic/{number}.png")
        infos = [{"id": spot + 1, "category_id": 17, "iscrowd": int(spot in crowd)} for spot in spots]
        annotations.append({"image_id": number, "file_name": f"{number}.png", "segments_info": infos})
    images = [{"id": number, "file_name": f"{number}-a.png"} for number in range(len(annotations))]
    document = {"images": images, "annotations": annotations, "categories": [{"id": 17, "name": "cat", "isthing": 1}]}
    (folder / "panoptic.json").write_text(json.dumps(document))
    return folder / "panoptic.json"


def test_annotated_instances_are_the_originals(tmp_path, suite, edits_file, spots):
    # Spot 5 is annotated and cannot be seen; spot 1 is seen and was not annotated; spot 2 is a crowd.
    edits = (("add 1 cat", (0, 1), (0, 1, 3)), ("add 1 cat", (0,), (0, 3)), ("add 1 cat", (0,), (0, 3)))
    file = panoptic(tmp_path, [(0, 5), (0, 2)], *spots, crowd=(2,))
    found = run(edits_file(tmp_path, *edits), tmp_path / "RUN", suite, panoptic=file)
    first, second, third = scores_of(tmp_path / "RUN")
    assert (first["originals"], first["lost"], first["repaired"], first["annotated"]) == (3, 1, 1, True)
    assert (second["originals"], second["crowd"]) == (1, 1)
    assert third["annotated"] is False
    assert (found.counts["without_annotation"], found.counts["crowd"]) == (1, 1)


def test_annotations_may_lie_elsewhere_when_a_run_goes_on(tmp_path, suite, edits_file, spots):
    manifest = edits_file(tmp_path, ADDED, ("add 1 cat", (0, 1), (1, 2)))
    file = panoptic(tmp_path, [(0, 5), (0, 1)], *spots)
    run(manifest, tmp_path / "WHOLE", suite, panoptic=file)
    run(manifest, tmp_path / "RUN", suite, panoptic=file, shard_items=1, part=(1, 2))
    (tmp_path / "moved").mkdir()
    moved = file.rename(tmp_path / "moved/truth.json")
    images = (tmp_path / "panoptic").rename(tmp_path / "moved/images")
    assert run(manifest, tmp_path / "RUN", suite, panoptic=moved, panoptic_images=images).complete
    assert scores_of(tmp_path / "RUN") == scores_of(tmp_path / "WHOLE")
    assert [row["annotated"] for row in scores_of(tmp_path / "RUN")] == [True, True]


def test_other_annotations_are_not_mixed_in(tmp_path, suite, edits_file, spots):
    manifest = edits_file(tmp_path, ADDED, ADDED)
    file = panoptic(tmp_path, [(0, 1), (0, 1)], *spots)
    run(manifest, tmp_path / "RUN", suite, panoptic=file, shard_items=1, part=(1, 2))
    other = shutil.copytree(tmp_path / "panoptic", tmp_path / "other")
    ids = np.array(Image.open(other / "1.png"))
    ids[:, :60] = 0
    Image.fromarray(ids).save(other / "1.png")
    (other / "2.png").write_bytes(b"")  # of no source
    with pytest.raises(RunError, match=r"with other annotations; .*\n  1\.png\n  name the folder"):
        run(manifest, tmp_path / "RUN", suite, panoptic=file, panoptic_images=other)
    document = json.loads(file.read_text())
    document["annotations"][0]["segments_info"][0]["iscrowd"] = 1
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(document))
    with pytest.raises(RunError, match=r"panoptic\.sha256 \(the annotations\)"):
        run(manifest, tmp_path / "RUN", suite, panoptic=changed, panoptic_images=tmp_path / "panoptic")
    assert run(manifest, tmp_path / "RUN", suite, panoptic=file).complete


def test_an_annotation_that_was_missing_may_come_later(tmp_path, suite, edits_file, spots):
    manifest = edits_file(tmp_path, ADDED, ADDED)
    file = panoptic(tmp_path, [(0, 1), (0, 1)], *spots)
    late = (tmp_path / "panoptic/1.png").rename(tmp_path / "late.png")
    assert run(manifest, tmp_path / "RUN", suite, panoptic=file).error == 1
    shutil.copy(late, tmp_path / "panoptic/1.png")
    assert run(manifest, tmp_path / "RUN", suite, panoptic=file, retry_errors=True).error == 0
    Image.new("RGB", (120, 90)).save(tmp_path / "panoptic/1.png")  # from then on it is known
    with pytest.raises(RunError, match=r"1\.png"):
        run(manifest, tmp_path / "RUN", suite, panoptic=file)
    (tmp_path / "RUN/annotations.json").unlink()
    with pytest.raises(RunError, match=r"annotations\.json is missing"):
        run(manifest, tmp_path / "RUN", suite, panoptic=file)


def test_annotations_that_do_not_fit_are_an_error_of_their_edit(tmp_path, suite, edits_file, spots):
    file = panoptic(tmp_path, [(0,), (0,)], *spots)
    Image.open(tmp_path / "panoptic/1.png").resize((60, 45), Image.Resampling.NEAREST).save(tmp_path / "panoptic/1.png")
    run(edits_file(tmp_path, ADDED, ADDED), tmp_path / "RUN", suite, panoptic=file)
    first, second = scores_of(tmp_path / "RUN")
    assert first["error"] is None
    assert second["error"] == "ground truth: 1.png: is 60x45, its image 120x90"
