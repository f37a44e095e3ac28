from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tallymill import abacus
from tallymill.engine.abacus import pipeline
from tallymill.engine.abacus.models import BoxSegmenter
from tallymill.errors import ManifestError, ModelError, UsageError
from tallymill.runners.abacus.plan import default_shard_edits

ADDED = ("add 2 cats", (0, 1), (0, 1, 2, 3))
SEVERAL = (
    ADDED,
    ("add 1 cat", (0, 1), (1, 2)),
    ("remove 1 cat", (0, 1, 2), (0, 1)),
    ("remove 2 cats", (0, 1, 2), (0, 3)),
    ("add 2 cats", (0, 3), (0, 3)),
    ("add 3 cats", (), (0,)),
)


def scores_of(run):
    return pq.read_table(run / "scores.parquet").to_pylist()


def run(manifest, out, suite, **options):
    return abacus.score(manifest, out, suite=suite, workers=0, resamples=20, **options)


def test_every_instance_has_its_verdict(tmp_path, suite, edits_file):
    found = run(edits_file(tmp_path, *SEVERAL), tmp_path / "RUN", suite)
    assert (found.edits, found.done, found.error, found.complete) == (6, 6, 0, True)
    rows = scores_of(tmp_path / "RUN")
    assert [(row["delivered"], row["lost"], row["originals"]) for row in rows] == [
        (2, 0, 2),
        (1, 1, 2),
        (1, 0, 3),
        (2, 1, 3),
        (0, 0, 2),
        (1, 0, 0),
    ]
    assert sorted(rows[0]["verdicts"]) == ["added", "added", "kept", "kept", "kept", "kept"]
    assert rows[1]["failures"] == ["overwritten"]
    assert rows[3]["failures"] == ["elsewhere"]
    assert rows[4]["score"] == 0  # nothing was done, and nothing is earned
    assert rows[4]["sc"] == 1
    assert rows[5]["oc"] == 1
    assert {row["annotated"] for row in rows} == {False}


def test_evidence_can_be_audited(tmp_path, suite, edits_file):
    run(edits_file(tmp_path, ADDED), tmp_path / "RUN", suite)
    [row] = pq.read_table(tmp_path / "RUN/evidence/part-00000.parquet").to_pylist()
    assert [one["image"] for one in row["instances"]] == ["source"] * 2 + ["edited"] * 4
    for place, one in enumerate(row["instances"]):
        assert one["category"] == "cat"
        if one["partner"] >= 0:
            assert row["instances"][one["partner"]]["partner"] == place
            assert one["similarity"] > 0.9
            assert one["votes"] is None
        else:
            assert one["votes"] == [True, True]
    assert row["instances"][0]["origin"] == "repaired"  # nobody annotated it
    record = json.loads((tmp_path / "RUN/run.json").read_text())
    assert record["instances"] == "boxes of s in the place of masks, also of annotated ones"


def test_results_do_not_depend_on_workers_or_shards(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, *SEVERAL)
    run(manifest, tmp_path / "ONE", suite)
    abacus.score(manifest, tmp_path / "TWO", suite=suite, workers=2, shard_items=1, resamples=20)
    assert scores_of(tmp_path / "ONE") == scores_of(tmp_path / "TWO")


def test_every_image_is_decoded_and_segmented_once(tmp_path, suite, edits_file, monkeypatch):
    # Three sources, each edited by seven editors, sorted by editor.
    file = edits_file(tmp_path, *((ADDED,) * 21))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for place, row in enumerate(rows):
        row |= {"source": f"images/{place % 3}-a.png", "editor": f"editor {place // 3}"}
        image = np.array(Image.open(tmp_path / row["edited"]))
        image[0, 0] = place  # no two are the same
        Image.fromarray(image).save(tmp_path / row["edited"])
    for number in range(3):
        Image.new("RGB", (120, 90), (60 + number,) * 3).save(tmp_path / f"images/{number}-a.png")
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    decoded, seen = [], []
    decode, segment = pipeline.decode, BoxSegmenter.segment
    monkeypatch.setattr(pipeline, "decode", lambda data, **more: (decoded.append(data), decode(data, **more))[1])
    monkeypatch.setattr(
        BoxSegmenter, "segment", lambda self, looks, clock: (seen.extend(looks), segment(self, looks, clock))[1]
    )
    run(file, tmp_path / "RUN", suite)
    assert len(decoded) == len(seen) == 3 + 21
    assert [row["edit_id"] for row in scores_of(tmp_path / "RUN")] == [row["edit_id"] for row in rows]
    run(file, tmp_path / "PARTS", suite, shard_items=2, part=(2, 2))
    some = [row["edit_id"] for row in scores_of(tmp_path / "PARTS")]
    assert some == [row["edit_id"] for row in rows if row["edit_id"] in some]
    run(file, tmp_path / "PARTS", suite, part=(1, 2))
    assert scores_of(tmp_path / "PARTS") == scores_of(tmp_path / "RUN")


@pytest.mark.parametrize(
    ("rows", "sources", "edits"),
    [(1, 1, 4), (24, 24, 4), (21, 3, 7), (10**6, 10**6, 512), (700_000, 100_000, 511), (2000, 1000, 8), (5000, 2, 20)],
)
def test_shards_end_where_sources_do(rows, sources, edits):
    assert default_shard_edits(rows, sources) == edits


def test_what_cannot_be_scored_is_a_row_with_a_reason(tmp_path, suite, edits_file):
    asks = ["add 1 cat"] * 5 + ["remove 3 cats", "add 1 unicorn", "add 1 cat", "change 1 cat to dogs"]
    asks[1] = "add 0 cats"
    words = [text.split() for text in asks]
    columns = {"operation": [each[0] for each in words], "category": [each[2].rstrip("s") for each in words]}
    columns |= {"K": [1, 0, 1, 1, 1, 3, 1, 1, 1], "target": [None] * 8 + ["dog"]}
    manifest = edits_file(tmp_path, *((text, (0,), (0, 1)) for text in asks), **columns)
    images = tmp_path / "images"
    (images / "2-a.png").unlink()
    (images / "3-b.png").write_bytes((images / "3-b.png").read_bytes()[:200])
    (images / "4-b.png").write_bytes(b"")
    found = run(manifest, tmp_path / "RUN", suite)
    rows = scores_of(tmp_path / "RUN")
    assert [row["error"] for row in rows] == [
        None,
        "count: K is 0; it must be at least 1",
        "source: not found",
        "edited: the file is cut short (a PNG without its end)",
        "edited: the file is empty",
        "count: remove 3 of 1 cat in the source",
        "category 'unicorn' is not known to s and a and b",
        None,
        None,
    ]
    assert found.error == 6
    assert [row["delivered"] for row in rows if row["error"] is None] == [1, 1, 0]
    assert found.table[0]["edits"] == 3
    assert len(found.reasons) == 6


def test_an_edited_image_of_another_size_is_brought_to_the_source(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, ADDED, ADDED)
    larger = tmp_path / "images/1-b.png"
    Image.open(larger).resize((121, 91), Image.Resampling.BILINEAR).save(larger)
    found = run(manifest, tmp_path / "RUN", suite)
    first, second = scores_of(tmp_path / "RUN")
    assert (first["resized"], second["resized"]) == (False, True)
    assert second["delivered"] == 2
    assert found.counts["resized"] == 1
    [_, row] = pq.read_table(tmp_path / "RUN/evidence/part-00000.parquet").to_pylist()
    assert [row[name] for name in ("width", "height", "edited_width", "edited_height")] == [120, 90, 121, 91]


def test_instances_that_cover_the_image_leave_no_background(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, ("add 1 cat", tuple(range(5)), tuple(range(6))))
    settings = abacus.EditSettings(margin=61)
    found = run(manifest, tmp_path / "RUN", suite, settings=settings)
    [row] = scores_of(tmp_path / "RUN")
    assert (row["sc"], row["score"], row["delivered"]) == (None, None, 1)
    assert (found.table[0]["edits"], found.table[0]["undefined"]) == (0, 1)
    assert found.table[0]["score"]["value"] is None


def test_groups_of_the_table(tmp_path, suite, edits_file):
    manifest = edits_file(
        tmp_path,
        *SEVERAL[:4],
        editor=["B", "B", "A", "A"],
        tier=["hard", "easy", "easy", None],
        human_count=[2, 0, 1, None],
    )
    found = run(manifest, tmp_path / "RUN", suite)
    assert [(row["of"], row["by"], row["value"], row["edits"]) for row in found.table] == [
        ("all", "all", "all", 4),
        ("all", "operation", "add", 2),
        ("all", "operation", "remove", 2),
        ("all", "tier", "easy", 2),
        ("all", "tier", "hard", 1),
        ("A", "editor", "A", 2),
        ("B", "editor", "B", 2),
        ("A", "operation", "remove", 2),
        ("A", "tier", "easy", 1),
        ("B", "operation", "add", 2),
        ("B", "tier", "easy", 1),
        ("B", "tier", "hard", 1),
    ]
    assert (found.agreement.edits, found.agreement.exact) == (3, 2 / 3)


def test_arguments_that_make_no_sense(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, ADDED)
    for options, message in (
        ({"panoptic_images": tmp_path}, "goes with --panoptic"),
        ({"endpoint": "http://localhost:1"}, "go together"),
        ({"model": "m"}, "go together"),
        ({"part": (3, 2)}, "part 3/2"),
        ({"shard_items": 0}, "shard_items"),
        ({"device": "tpu"}, "tpu"),
    ):
        with pytest.raises(UsageError, match=message):
            run(manifest, tmp_path / "RUN", suite, **options)
    with pytest.raises(ManifestError, match="no such folder"):
        run(manifest, tmp_path / "RUN", suite, panoptic=tmp_path / "gone.json")
    (tmp_path / "s.toml").write_text(suite.read_text().replace("s.onnx", "gone.onnx"))
    with pytest.raises(ModelError, match="gone"):
        run(manifest, tmp_path / "RUN", tmp_path / "s.toml")
    assert not (tmp_path / "RUN").exists()


def test_the_command_tells_what_it_found(tmp_path, suite, edits_file, command):
    columns = {"operation": ["add"] * 2, "category": ["cat"] * 2, "K": [2, 0]}
    manifest = edits_file(tmp_path, ADDED, ("add 0 cats", (0,), (0,)), **columns)
    done = command("abacus", "score", manifest, "--out", tmp_path / "RUN", "--suite", suite, "--workers", 1)
    assert done.returncode == 3, done.stderr
    assert "instances are boxes of s in the place of masks" in done.stdout
    assert "K is 0" in done.stdout
    told = command("abacus", "score", manifest, "--out", tmp_path / "RUN", "--suite", suite, "--json")
    assert json.loads(told.stdout)["counts"]["error"] == 1
