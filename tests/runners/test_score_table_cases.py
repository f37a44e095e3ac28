"""The streamed table of RUNs in unusual states is that of the rows that are written."""

import json
import shutil

import tallymill

SAME = (
    "items", "done", "scored", "error", "uncovered", "cw_nps", "b_nps", "reasons", "unknown", "detectors", "groups",
)  # fmt: skip


def agreed(run, out):
    """The table, which does not depend on threads or on whether rows are written."""
    written, summary = tallymill.rescore(run, out), tallymill.load(out).summary()
    for workers in (0, 1, 3):
        table = tallymill.rescore(run, workers=workers)
        assert [getattr(table, name) for name in SAME] == [getattr(written, name) for name in SAME]
    assert [getattr(table, name) for name in SAME[:-1]] == [getattr(summary, name) for name in SAME[:-1]]
    return table


def test_shards_that_were_done_anew(tmp_path, image_folder, image_ensemble_file):
    images, run = image_folder(tmp_path / "images", 20), tmp_path / "RUN"
    (images / "2.png").rename(tmp_path / "2.png")
    options = {"ensemble": image_ensemble_file(tmp_path / "e.toml", "x"), "workers": 0}
    tallymill.sweep(images, run, **options)
    assert agreed(run, tmp_path / "BEFORE").error == 1
    (tmp_path / "2.png").rename(images / "2.png")
    tallymill.sweep(images, run, retry_errors=True, **options)
    table = agreed(run, tmp_path / "AFTER")
    assert (table.error, table.cw_nps) == (0, tallymill.load(run).summary().cw_nps)


def test_images_that_all_failed_have_no_mean(tmp_path, manifest_file):
    manifest = manifest_file(tmp_path / "m.jsonl", 3)
    rows = [json.loads(line) for line in manifest.read_text().splitlines()]
    for row, count in zip(rows, (0, 101, 70_000), strict=True):
        row["targets"][0]["count"] = count
    manifest.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tallymill.sweep(manifest, tmp_path / "RUN", ensemble="synthetic", workers=0)
    table = agreed(tmp_path / "RUN", tmp_path / "AGAIN")
    assert (table.cw_nps, table.b_nps, table.error) == (None, None, 3)


def test_scores_of_the_run_are_not_needed(tmp_path, manifest_file):
    manifest, run = manifest_file(tmp_path / "m.jsonl", 60), tmp_path / "RUN"
    summary = tallymill.sweep(manifest, run, ensemble="synthetic", workers=0)
    shutil.rmtree(run / "scores")
    assert agreed(run, tmp_path / "AGAIN").cw_nps == summary.cw_nps
