from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tallymill import abacus
from tallymill.engine.abacus import pipeline
from tallymill.engine.abacus.models import BoxSegmenter
from tallymill.errors import ManifestError, ModelError, RunError, UsageError
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


def test_parts_make_a_whole(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, *SEVERAL)
    run(manifest, tmp_path / "WHOLE", suite, shard_items=2)
    first = run(manifest, tmp_path / "RUN", suite, shard_items=2, part=(1, 2))
    assert (first.complete, first.done) == (False, 4)
    assert run(manifest, tmp_path / "RUN", suite, part=(2, 2)).complete
    assert scores_of(tmp_path / "RUN") == scores_of(tmp_path / "WHOLE")


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


def test_a_finished_run_is_left_alone(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, *SEVERAL)
    run(manifest, tmp_path / "RUN", suite)
    part = tmp_path / "RUN/evidence/part-00000.parquet"
    before = part.stat().st_mtime_ns
    shutil.rmtree(tmp_path / "images")
    assert run(manifest, tmp_path / "RUN", suite).done == 6
    assert part.stat().st_mtime_ns == before


def test_a_part_that_was_cut_short_is_made_anew(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, *SEVERAL)
    run(manifest, tmp_path / "RUN", suite, shard_items=3)
    before = scores_of(tmp_path / "RUN")
    part = tmp_path / "RUN/evidence/part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-20])
    run(manifest, tmp_path / "RUN", suite)
    assert scores_of(tmp_path / "RUN") == before


def test_a_run_that_was_killed_goes_on(tmp_path, suite, edits_file, command_line):
    manifest = edits_file(tmp_path, *(SEVERAL * 2))
    run(manifest, tmp_path / "WHOLE", suite, shard_items=1)
    out = tmp_path / "RUN"
    options = ["--out", out, "--suite", suite, "--workers", "1", "--shard-items", "1", "--json"]
    arguments = [*command_line, "abacus", "score", *map(str, [manifest, *options])]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        while child.poll() is None and len(list((out / "evidence").glob("part-*"))) < 3:
            time.sleep(0.005)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    done = {path.name: path.stat().st_mtime_ns for path in (out / "evidence").glob("part-*")}
    assert 3 <= len(done) < 12
    run(manifest, out, suite, shard_items=1)
    assert scores_of(out) == scores_of(tmp_path / "WHOLE")
    assert all((out / "evidence" / name).stat().st_mtime_ns == when for name, when in done.items())


def test_what_would_mix_two_runs_is_refused(tmp_path, suite, half_blind, edits_file):
    manifest = edits_file(tmp_path, ADDED)
    run(manifest, tmp_path / "RUN", suite)
    with pytest.raises(RunError, match=r"models\.confirmer 2: b \(coco_ssd, SHA-256 .*\) in the RUN, b \("):
        run(manifest, tmp_path / "RUN", half_blind)
    with pytest.raises(RunError, match=r"settings\.match_iou: 0\.3 in the RUN, 0\.4 now"):
        run(manifest, tmp_path / "RUN", suite, settings=abacus.EditSettings(match_iou=0.4))
    with pytest.raises(RunError, match=r"manifest\.rows: 1 in the RUN, 6 now"):
        run(edits_file(tmp_path, *SEVERAL), tmp_path / "RUN", suite)


def test_models_in_other_parts_are_another_suite(tmp_path, half_blind, edits_file):
    manifest = edits_file(tmp_path, ADDED)
    run(manifest, tmp_path / "RUN", half_blind)
    text = half_blind.read_text()
    for old, new in (("s", "?"), ("b", "s"), ("?", "b")):
        text = text.replace(f'"{old}"', f'"{new}"').replace(f'"{old}.onnx"', f'"{new}.onnx"')
    other = half_blind.with_name("exchanged.toml")
    other.write_text(text)  # segmenter b, confirmers a and s: the same three models
    with pytest.raises(RunError, match=r"(?s)models\.segmenter: s .* in the RUN, b .*models\.confirmer 2: b "):
        run(manifest, tmp_path / "RUN", other)
    file = tmp_path / "RUN/run.json"
    record = json.loads(file.read_text())
    record["suite"]["upscaler"] = {"family": "conv2x", "model": "u"}
    record["models"]["upscaler"] = {"name": "upscaler", "family": "conv2x", "sha256": "0"}
    file.write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"models\.upscaler: upscaler \(conv2x, SHA-256 0\) in the RUN, none now"):
        run(manifest, tmp_path / "RUN", half_blind)
    record["models"] = dict.fromkeys("sab", "0")  # as it was written before parts were told
    file.write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"run\.json: models is not as it must be"):
        run(manifest, tmp_path / "RUN", half_blind)


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


def test_errors_can_be_tried_again(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, ADDED, ADDED)
    image = tmp_path / "images/1-b.png"
    hidden = image.rename(tmp_path / "hidden.png")
    assert run(manifest, tmp_path / "RUN", suite).error == 1
    hidden.rename(image)
    assert run(manifest, tmp_path / "RUN", suite).error == 1
    assert run(manifest, tmp_path / "RUN", suite, retry_errors=True).error == 0


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
    manifest = edits_file(tmp_path, *SEVERAL[:2])
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
