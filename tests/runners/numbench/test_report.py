"""The report of RUNs that a sweep left: what is in it, that it repeats itself, and what it says of faults."""

from __future__ import annotations

import json

import pytest
from PIL import Image

import tallymill
from tallymill.errors import MissingExtraError, RunError, UsageError
from tallymill.runners.numbench import report
from tallymill.runners.sweep import sweep

LAYOUTS = ("free", "grid", "scene", "random")


@pytest.fixture(scope="module")
def swept(tmp_path_factory, image_ensemble_file):
    """24 small images of two systems in shards of 5; one file is no image, one category is unknown."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "images").mkdir()
    rows = []
    for k in range(24):
        name = f"images/{k}.png"
        Image.new("RGB", (40, 30 + k), (10 * k, 90, 200 - 5 * k)).save(folder / name)
        row = {"item_id": f"item-{k}", "image": name, "system": ("alpha", "beta")[k % 2], "layout": LAYOUTS[k // 2 % 4]}
        targets = [{"category": "cat", "count": 4 * k % 100 + 1}, {"category": "dog", "count": 3}][: 1 + k % 3 // 2]
        rows.append(
            {**row, "targets": targets, "appearance": ("clean", "modified")[k // 8 % 2], "core_id": f"c{k % 3}"}
        )
    (folder / "images" / "4.png").write_bytes(b"not an image")
    rows[7]["targets"] = [{"category": "gryphon <b>", "count": 2}]
    (folder / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ensemble = image_ensemble_file(folder / "e.toml", "one", "two")
    sweep(folder / "m.jsonl", folder / "run", ensemble=ensemble, shard_items=5, workers=1)
    return folder


@pytest.fixture(scope="module")
def written(swept):
    result = tallymill.report(swept / "run", swept / "report.html", resamples=40, workers=1)
    return result, (swept / "report.html").read_text("utf-8")


def test_the_report_tells_what_it_holds(swept, written):
    result, html = written
    assert (result.items, result.scored, result.error, result.uncovered) == (24, 22, 1, 1)
    assert result.systems == ["alpha", "beta"]
    assert result.bytes == (swept / "report.html").stat().st_size == len(html.encode())
    assert (result.images, result.images_gone) == (22, 0)
    assert html.count("data:image/webp;base64,") == 22
    assert "<title>alpha, beta: NumBench report</title>" in html


def test_scores_figures_failures_and_settings_are_in_it(written):
    _, html = written
    for name in ("Score against requested count", "Guided layouts against free-form", "Failure families"):
        assert f">{name}</title>" in html
    assert "not an image of a format that is read" in html
    assert "gryphon &lt;b&gt;" in html
    assert "SHA-256 of the model" in html
    assert "setting nms_iou" in html
    assert "version of numpy" in html


def test_the_same_run_gives_the_same_bytes_whatever_the_threads(swept, written):
    tallymill.report([swept / "run"], swept / "again.html", resamples=40, workers=3)
    assert (swept / "again.html").read_text("utf-8") == written[1]


def test_several_runs_are_several_systems(swept, tmp_path):
    rescored = tallymill.rescore(swept / "run", tmp_path / "warm", taus={"one": 2.0}, workers=1)
    result = tallymill.report([swept / "run", tmp_path / "warm"], tmp_path / "r.html", resamples=0, workers=1)
    assert rescored.items == 24
    assert result.systems == ["alpha (run)", "beta (run)", "alpha (warm)", "beta (warm)"]
    html = (tmp_path / "r.html").read_text("utf-8")
    assert all(f"<bdi>{name}</bdi>" in html for name in result.systems)
    assert result.images == 44


@pytest.mark.parametrize("fewest", [1, 3])
def test_images_of_three_categories_are_in_every_figure(tmp_path, image_ensemble_file, fewest):
    """A RUN of nothing else, and one of all compositions."""
    rows = []
    for k in range(6):
        Image.new("RGB", (40, 30 + k), (40 * k, 90, 200)).save(tmp_path / f"{k}.png")
        targets = dict.fromkeys(("cat", "dog", "bird")[: max(fewest, 1 + k % 3)], k + 1)
        rows.append({"item_id": f"item-{k}", "image": f"{k}.png", "targets": targets})
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ensemble = image_ensemble_file(tmp_path / "e.toml", "one")
    sweep(tmp_path / "m.jsonl", tmp_path / "run", ensemble=ensemble, workers=1)
    assert tallymill.report(tmp_path / "run", tmp_path / "r.html", resamples=10, workers=1).scored == 6
    html = (tmp_path / "r.html").read_text("utf-8")
    for title in ("Score against requested count", "Failure families"):
        figure = html[html.index(f">{title}</title>") :]
        assert ">multiple</text>" in figure[: figure.index("</svg>")]
    assert "Three categories or more" in html
    assert ("One category" in html) == (fewest == 1)


def test_images_are_as_many_as_asked_for(swept, tmp_path):
    assert tallymill.report(swept / "run", tmp_path / "r.html", images=1, resamples=0, workers=1).images == 6
    assert tallymill.report(swept / "run", tmp_path / "r.html", images=0, resamples=0, workers=1).images == 0
    assert "No images were asked for." in (tmp_path / "r.html").read_text("utf-8")
    with pytest.raises(UsageError, match="images -1: must be 0 or more"):
        tallymill.report(swept / "run", tmp_path / "r.html", images=-1)


def test_images_that_are_gone_are_counted(swept, tmp_path):
    kept = {path: path.read_bytes() for path in sorted((swept / "images").iterdir())}
    try:
        for path in kept:
            path.unlink()
        result = tallymill.report(swept / "run", tmp_path / "r.html", resamples=0, workers=1)
    finally:
        for path, data in kept.items():
            path.write_bytes(data)
    assert result.images_gone == result.images == 22
    assert (tmp_path / "r.html").read_text("utf-8").count("The image cannot be shown: images/") == 22


def test_a_run_without_a_single_score_has_a_report(tmp_path, ensemble_file):
    rows = [{"image": f"{k}.png", "targets": {"cat": 101 + k}} for k in range(3)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sweep(tmp_path / "m.jsonl", tmp_path / "run", ensemble=ensemble_file(tmp_path / "e.toml", "one"), workers=1)
    result = tallymill.report(tmp_path / "run", tmp_path / "r.html", resamples=20, workers=1)
    assert (result.scored, result.error, result.images) == (0, 3, 0)
    assert "No image has a score" in (tmp_path / "r.html").read_text("utf-8")


def test_an_incomplete_run_is_refused_and_nothing_is_written(swept, tmp_path):
    part = swept / "run" / "scores" / "part-00001.parquet"
    data = part.read_bytes()
    try:
        part.unlink()
        with pytest.raises(RunError):
            tallymill.report(swept / "run", tmp_path / "r.html", resamples=0, workers=1)
    finally:
        part.write_bytes(data)
    assert list(tmp_path.iterdir()) == []


def test_a_calibration_on_scored_images_is_refused(swept, tmp_path):
    box = {"item_id": "item-0", "category": "cat", "box": [1, 1, 20, 20]}
    (tmp_path / "truth.jsonl").write_text(json.dumps(box) + "\n")
    tallymill.calibrate(swept / "run", tmp_path / "truth.jsonl", tmp_path / "fit")
    with pytest.raises(RunError, match="among the calibration images"):
        tallymill.report(swept / "run", tmp_path / "r.html", calibration=tmp_path / "fit", resamples=0, workers=1)


def test_a_calibration_on_other_images_is_shown(swept, tmp_path):
    Image.new("RGB", (50, 50), (3, 200, 90)).save(tmp_path / "a.png")
    (tmp_path / "m.jsonl").write_text(json.dumps({"item_id": "a", "image": "a.png", "targets": {"cat": 2}}) + "\n")
    sweep(tmp_path / "m.jsonl", tmp_path / "other", ensemble=swept / "e.toml", workers=1)
    box = {"item_id": "a", "category": "cat", "box": [1, 1, 20, 20]}
    (tmp_path / "truth.jsonl").write_text(json.dumps(box) + "\n")
    tallymill.calibrate(tmp_path / "other", tmp_path / "truth.jsonl", tmp_path / "fit")
    tallymill.report(swept / "run", tmp_path / "r.html", calibration=tmp_path / "fit", resamples=0, workers=1)
    html = (tmp_path / "r.html").read_text("utf-8")
    assert ">Reliability of confidences</title>" in html
    assert "Temperatures as they are and as fitted" in html


def test_images_that_a_calibration_could_not_be_compared_with_are_told(swept, tmp_path, ensemble_file):
    rows = [{"image": f"{k}.png", "targets": {"cat": 1 + k}} for k in range(3)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sweep(tmp_path / "m.jsonl", tmp_path / "run", ensemble=ensemble_file(tmp_path / "e.toml", "one"), workers=1)
    box = {"item_id": "item-0", "category": "cat", "box": [1, 1, 20, 20]}
    (tmp_path / "truth.jsonl").write_text(json.dumps(box) + "\n")
    tallymill.calibrate(swept / "run", tmp_path / "truth.jsonl", tmp_path / "fit")
    result = tallymill.report(
        tmp_path / "run", tmp_path / "r.html", calibration=tmp_path / "fit", resamples=0, workers=1
    )
    note = f"3 images of {tmp_path / 'run'} have no hash"
    assert any(note in told for told in result.notes)
    assert note in (tmp_path / "r.html").read_text("utf-8")


def test_annotations_are_compared(swept, tmp_path):
    lines = ["item_id,system,category,annotator,count"]
    lines += [f"item-{k},{('alpha', 'beta')[k % 2]},cat,{who},{4 * k + 1}" for k in (0, 6) for who in "xyz"]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    tallymill.report(swept / "run", tmp_path / "r.html", annotations=tmp_path / "a.csv", resamples=0, workers=1)
    assert "3 people counted each category" in (tmp_path / "r.html").read_text("utf-8")


def test_prompts_bring_their_texts(tmp_path, image_ensemble_file):
    Image.new("RGB", (50, 50), (3, 200, 90)).save(tmp_path / "a.png")
    row = {"item_id": "a", "image": "a.png", "prompt_id": "p-1", "targets": {"cat": 2}}
    (tmp_path / "m.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt_id": "p-1", "text": "generate 2 cats"}) + "\n")
    sweep(tmp_path / "m.jsonl", tmp_path / "run", ensemble=image_ensemble_file(tmp_path / "e.toml", "one"), workers=1)
    tallymill.report(tmp_path / "run", tmp_path / "r.html", prompts=tmp_path / "p.jsonl", resamples=0, workers=1)
    assert '<p class="prompt"><bdi>generate 2 cats</bdi></p>' in (tmp_path / "r.html").read_text("utf-8")


def test_a_folder_is_no_file_to_write(swept, tmp_path):
    with pytest.raises(UsageError, match="is a folder"):
        tallymill.report(swept / "run", tmp_path)


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_package_that_is_missing_is_told_before_any_work(swept, tmp_path, monkeypatch, package):
    import builtins

    plain = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    monkeypatch.setattr("tallymill.runners.numbench.report.analyse", None)
    with pytest.raises(MissingExtraError, match=package):
        tallymill.report(swept / "run", tmp_path / "r.html")


def test_the_command_prints_what_it_wrote(swept, tmp_path, command):
    options = ("--resamples", 0, "--images", 1, "--workers", 1)
    plain = command("report", swept / "run", "--out", tmp_path / "r.html", *options)
    assert plain.returncode == 3, plain.stderr
    assert "22 of 24 images scored; 6 shown" in plain.stdout
    told = command("report", swept / "run", "--out", tmp_path / "r.html", *options, "--json")
    assert json.loads(told.stdout)["images"] == 6
    wrong = command("report", "--out", tmp_path / "r.html")
    assert wrong.returncode == 2
    assert "no RUN given" in wrong.stderr


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({}, None),
        ({"device": "cpu"}, "cpu"),
        ({"device": "cpu", "device_choice": {"asked": "auto", "devices": ["cpu"]}}, "cpu"),
        (
            {"device": "cuda", "device_choice": {"cards": ["NVIDIA B", "NVIDIA A", "NVIDIA B"]}},
            "cuda: NVIDIA B, NVIDIA A",
        ),
    ],
)
def test_the_device_is_told_with_the_kinds_of_cards(record, told):
    assert report._device(record) == told
