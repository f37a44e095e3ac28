"""Programs of torch, made of small models of every family, against the models and against ONNX Runtime."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage.data
import torch
from PIL import Image

from tallymill.bench.small_models import SMALL
from tallymill.cli import main
from tallymill.engine.bundles import Bundle
from tallymill.engine.sessions.pytorch import TorchSession
from tallymill.errors import MissingExtraError, ModelError
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.recipes.parts import Loaded
from tallymill.exporters.to_torch import Programs
from tallymill.runners.run import load


@pytest.fixture(scope="module")
def loaded(small_folder) -> Callable[[str], Loaded]:
    def load(family: str) -> Any:
        return recipe_of(SMALL[family].recipe).load(small_folder(family), **SMALL[family].options)

    return cache(load)


@pytest.fixture(scope="module")
def bundle(small_folder, tmp_path_factory) -> Callable[..., Bundle]:
    """Of a family and a precision, what ``export`` makes; it has passed the gate on the CPU."""

    def make(family: str, precision: str = "fp32") -> Bundle:
        small, out = SMALL[family], tmp_path_factory.mktemp("out") / family
        programs = Programs(precision)
        return export(recipe_of(small.recipe), small_folder(family), out=out, options=small.options, programs=programs)

    return cache(make)


@pytest.mark.parametrize("family", ["owlvit", "sam3", "rf_detr"])
def test_a_family_becomes_programs_that_pass_the_gate(bundle, family):
    made = bundle(family)
    told = json.loads((made.folder / "bundle.json").read_text())
    assert (made.runtime, made.precision, told["opset"]) == ("torch", "fp32", None)
    assert set(made.parts.values()) == {f"{part}.pt2" for part in made.parts}
    assert {each["check"] for each in told["gate"]} >= {"batch of 1 against torch", "slot 1 of 2 against alone"} or (
        {each["check"] for each in told["gate"]} >= {"batch of 5 against torch", "slot 4 of 5 against alone"}
    )
    assert {"boxes (pixels)", "confidences"} <= {each["output"] for each in told["gate"]}
    for part in made.parts:
        assert made.session(part).eager is None, "no node of it keeps it from a CUDA graph"


@pytest.fixture
def vision(bundle) -> Path:
    return bundle("owlvit").folder / "vision.pt2"


def test_a_program_says_nothing_of_the_machine_that_made_it(vision):
    with zipfile.ZipFile(vision) as archive:
        content = b"".join(map(archive.read, archive.namelist()))
    for trace in (b"site-packages", b"modeling_", b".py", str(Path.home()).encode(), b"/tmp"):
        assert trace not in content


def test_only_weights_that_are_read_are_kept(bundle):
    program = torch.export.load(str(bundle("owlvit").folder / "text.pt2"))
    assert not [name for name in program.state_dict if "vision" in name]


def test_a_session_gives_what_it_is_given(vision):
    session = TorchSession(vision)
    image = np.random.default_rng(0).standard_normal((2, 3, 64, 64), np.float32)
    arrays = session.run({"image": image})
    tensors = session.run({"image": torch.from_numpy(image)})
    assert {spec.name: spec.dtype for spec in session.outputs} == {n: v.dtype.name for n, v in arrays.items()}
    for name, value in arrays.items():
        assert type(value) is np.ndarray
        assert isinstance(tensors[name], torch.Tensor)
        assert np.array_equal(tensors[name].numpy(), value)
        tensors[name] += 1  # a caller's own, and no tensor of inference
    again = session.run({"image": image})
    assert all(np.array_equal(again[name], value) for name, value in arrays.items())


def test_strange_inputs_are_refused_with_their_names(vision):
    session = TorchSession(vision)
    image = np.zeros((1, 3, 64, 64), np.float32)
    for inputs, said in [
        ({}, "its input 'image' is not given"),
        ({"image": image, "mask": image}, "it has no input 'mask', only image"),
        ({"image": image[:, :, :32]}, r"takes image float32 \[\?, 3, 64, 64\], not image float32 \[1, 3, 32, 64\]"),
        ({"image": image.astype(np.float64)}, "not image float64"),
        ({"image": torch.zeros(1, 3, 64, 64, device="meta")}, "its input 'image' is on meta; it runs on cpu"),
    ]:
        with pytest.raises(ModelError, match=said):
            session.run(inputs)


def test_batches_of_one_are_not_stretched(bundle):
    session = bundle("owlvit").session("text")
    tokens, mask = np.ones((2, 5, 16), np.int64)
    with pytest.raises(ModelError, match="different numbers of rows: tokens 5, mask 1"):
        session.run({"tokens": tokens, "mask": mask[:1]})


def test_arrays_that_are_read_only_or_upside_down_are_taken(vision):
    session = TorchSession(vision)
    image = np.random.default_rng(0).standard_normal((1, 3, 64, 64), np.float32)
    wanted = session.run({"image": image[:, :, ::-1].copy()})["boxes"]
    image.flags.writeable = False
    assert np.array_equal(session.run({"image": image[:, :, ::-1]})["boxes"], wanted)


def test_switches_of_the_process_are_as_before(vision):
    session = TorchSession(vision, threads=1)
    before = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_num_threads(3)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    try:
        session.run({"image": np.zeros((1, 3, 64, 64), np.float32)})
        assert torch.get_num_threads() == 3
        assert torch.get_float32_matmul_precision() == "high"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.cudnn.benchmark
    finally:
        torch.set_num_threads(before[0])
        torch.set_float32_matmul_precision(before[1])
        torch.backends.cudnn.benchmark = before[2]


def test_a_card_that_is_not_there_is_an_error(vision):
    with pytest.raises(ModelError, match=r"the device 'cuda:9' was asked for, and torch finds \d+ cards") as caught:
        TorchSession(vision, device="cuda:9")
    assert "--device cpu" in (caught.value.hint or "")


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_program_is_told(vision, tmp_path, damage):
    content = vision.read_bytes()
    bad = tmp_path / "vision.pt2"
    bad.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "other": b"PK" + content}[damage])
    if damage == "other":
        with zipfile.ZipFile(bad, "w") as archive:
            archive.writestr("vision/models/model.json", "{}")
    with pytest.raises(ModelError, match=r"vision\.pt2: torch cannot load this program") as caught:
        TorchSession(bad)
    assert "export it anew" in (caught.value.hint or "")


def test_without_torch_its_extra_is_named(vision, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError) as caught:
        TorchSession(vision)
    assert caught.value.hint == "pip install 'tallymill[gpu]'"


def test_a_program_runs_without_transformers(vision):
    code = f"""
import sys
sys.modules["transformers"] = None
import numpy as np
from pathlib import Path
from tallymill.engine.sessions.pytorch import TorchSession
out = TorchSession(Path({str(vision)!r})).run({{"image": np.zeros((3, 3, 64, 64), np.float32)}})
assert out["boxes"].shape == (3, 16, 4)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_ensemble_asks_for_programs_by_their_name(small_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TALLYMILL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    name = "owlvit-base-patch32-torch-bf16"
    detector = f'name = "owl"\nfamily = "owlvit"\nmodel = "{name}"\ntau = 0.9\n'
    Path("one.toml").write_text(f'name = "one"\n[[detectors]]\n{detector}')
    Image.fromarray(skimage.data.chelsea()).save("0.png")
    item = {"item_id": "i0", "image": "0.png", "targets": [{"category": "cat", "count": 2}]}
    Path("items.jsonl").write_text(json.dumps(item) + "\n")

    def tallymill(*arguments: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return int(ended.value.code or 0)

    sweep = ("sweep", "items.jsonl", "--out", "run", "--ensemble", "one.toml", "--workers", "1")
    assert tallymill(*sweep) == 1
    assert "tallymill export owlvit-base-patch32 --to torch --precision bf16" in capsys.readouterr().err
    weights = ("--weights", str(small_folder("owlvit")))
    assert tallymill("export", "owlvit-base-patch32", *weights, "--to", "torch", "--precision", "bf16") == 0
    told = json.loads((tmp_path / "cache" / "bundles" / name / "bundle.json").read_text())
    assert (told["runtime"], told["precision"]) == ("torch", "bf16")
    assert any(each["difference"] > 0 for each in told["gate"] if each["part"] == "vision")
    assert tallymill(*sweep) == 0
    assert [row["status"] for row in load("run").scores.to_pylist()] == ["scored"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to", "torch", "--precision", "fp16"], "of torch, one of fp32, bf16"),
        (["--to", "torch", "--batch", "8"], "--to tensorrt builds them"),
        (["--precision", "bf16"], "or --to torch"),
    ],
)
def test_options_that_make_no_sense(options, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", "owlvit-base-patch32", *options])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
