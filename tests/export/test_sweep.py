"""From weights in a folder to a scored RUN, through the command line."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import skimage.data
from PIL import Image

from tallymill.cli import main
from tallymill.runners.run import load

ENSEMBLE = """
name = "one"
[[detectors]]
name = "owl-vit"
family = "owlvit"
model = "owlvit-base-patch32"
tau = 0.93
"""


def tallymill(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TALLYMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("one.toml").write_text(ENSEMBLE)
    pictures = [skimage.data.chelsea(), skimage.data.coffee(), np.zeros((20, 30, 3), np.uint8)]
    rows = []
    for k, (picture, names) in enumerate(zip(pictures, (["cat"], ["dog", "wet cat"], ["abcdefghijkl"]), strict=True)):
        Image.fromarray(picture).save(f"{k}.png")
        rows.append({"item_id": f"i{k}", "image": f"{k}.png", "targets": [{"category": n, "count": 2} for n in names]})
    Path("items.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_a_model_is_exported_installed_and_swept(workplace, small_folder, capsys):
    assert tallymill("sweep", "items.jsonl", "--out", "run", "--ensemble", "one.toml") == 1
    assert "tallymill export owlvit-base-patch32 --to onnx" in capsys.readouterr().err
    assert tallymill("export", "owlvit-base-patch32", "--weights", small_folder("owlvit"), "--json") == 0
    folder = Path(json.loads(capsys.readouterr().out)["bundle"])
    assert folder.is_relative_to(workplace / "cache")
    gate = json.loads((folder / "bundle.json").read_text())["gate"]
    assert {each["check"] for each in gate} >= {"batch of 5 against torch", "slot 4 of 5 against alone"}
    assert tallymill("sweep", "items.jsonl", "--out", "run", "--ensemble", "one.toml", "--workers", 1) == 3
    scores = load("run").scores.to_pylist()
    assert [row["status"] for row in scores] == ["scored", "scored", "error"]
    assert "'abcdefghijkl' is" in scores[2]["error"]
    assert sum(len(p["confidence"]) for p in load("run").proposals("owl-vit").to_pylist()) > 0
    assert tallymill("sweep", "items.jsonl", "--out", "again", "--ensemble", "one.toml", "--workers", 2) == 3
    assert load("again").scores.equals(load("run").scores)


@pytest.mark.usefixtures("workplace")
def test_a_category_is_encoded_once_a_worker(small_folder):
    assert tallymill("export", "owlvit-base-patch32", "--weights", small_folder("owlvit")) == 0
    names = ["".join(letters) for letters in itertools.islice(itertools.product("abcdefghijklm", repeat=3), 1600)]
    Image.new("RGB", (32, 32), (90, 120, 30)).save("one.png")
    rows = [
        {"item_id": f"i{k}", "image": "one.png", "targets": [{"category": n, "count": 1} for n in pair]}
        for k, pair in enumerate(zip(names, names[1:] + names[:1], strict=True))
    ]
    Path("many.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sweep = ("sweep", "many.jsonl", "--ensemble", "one.toml", "--shard-items", 200)
    assert tallymill(*sweep, "--out", "alone", "--workers", 1) == 0
    assert load("alone").summary().encoded == {"owl-vit": 1600}
    assert tallymill(*sweep, "--out", "two", "--workers", 2) == 0
    assert load("two").scores.equals(load("alone").scores)
    assert 1600 <= load("two").summary().encoded["owl-vit"] <= 2 * 1600


def test_weights_that_are_not_there_say_how_to_bring_them(workplace, capsys):
    assert tallymill("export", "owlvit-base-patch32") == 1
    told = capsys.readouterr().err
    assert "google/owlvit-base-patch32" in told
    assert "--weights FOLDER" in told
    assert tallymill("export", "owlvit-base-patch32", "--weights", "./nowhere") == 1
    assert "nowhere': no such folder" in capsys.readouterr().err
    assert tallymill("export", "owlvit-base-patch99") == 2
    assert not (workplace / "cache").exists()


def test_sizes_of_graphs_that_cannot_be_read_or_taken_are_refused(capsys):
    assert tallymill("export", "grounding-dino-tiny", "--buckets", "800x800,800") == 2
    assert "--buckets 800x800,800: '800' is not a height and a width in pixels" in capsys.readouterr().err
    assert tallymill("export", "owlvit-base-patch32", "--buckets", "800x800") == 2
    assert "owlvit-base-patch32 is exported without buckets" in capsys.readouterr().err
