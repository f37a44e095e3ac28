"""Engines are built for real, for a card that is not here, by TensorRT for RTX (the extra ``tensorrt``)."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import transformers

from tallymill.bench.small_models import deformable_detr
from tallymill.cli import main
from tallymill.engine.bundles import load_bundle
from tallymill.engine.sessions.ort import OnnxRuntimeSession
from tallymill.errors import MissingExtraError, ModelError, UsageError
from tallymill.exporters import to_tensorrt
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.recipes.parts import Loaded, Part
from tallymill.exporters.to_tensorrt import Target, build, keep_timings, read_timings, runtime
from tallymill.runners.devices import choose_devices

AIM = Target("fp32", "89", (2,))


@pytest.fixture(scope="module")
def owl(small_folder, tmp_path_factory):
    """What ``tallymill export`` makes of OWL-ViT, and the bundle."""
    out = tmp_path_factory.mktemp("out") / "owl"
    options = ["--to", "tensorrt", "--compute-capability", "89", "--batch", "1,2", "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        main(["export", "owlvit-base-patch32", "--weights", str(small_folder("owlvit")), *options])
    assert not ended.value.code
    return out


def test_a_bundle_of_engines_says_what_it_is(owl):
    bundle = load_bundle(owl)
    told = json.loads((owl / "bundle.json").read_text())
    assert (bundle.runtime, bundle.precision) == ("tensorrt_rtx", "fp16")
    assert bundle.engines["vision"] == {1: "vision-b1.engine", 2: "vision-b2.engine"}
    assert {file.name for file in owl.iterdir()} == {
        *(f"{part}-b{batch}.engine" for part in ("vision", "text") for batch in (1, 2)),
        *("bundle.json", "tokenizer.json"),
    }
    assert told["tensorrt"]["compute_capability"] == "89"
    assert told["tensorrt"]["version"] == runtime().__version__
    dtypes = told["tensorrt"]["built"]["vision"]["dtypes"]
    assert set(dtypes["MatMul"]) == {"float16"}
    assert set(dtypes["LayerNormalization"]) == set(dtypes["Softmax"]) == {"float32"}
    assert set(told["tensorrt"]["built"]["text"]["dtypes"]["MatMul"]) == {"float32"}
    assert "fp16, batch of 5 against torch" in {each["check"] for each in told["gate"]}
    assert told["tensorrt"]["built"]["vision"]["batch 2"]["bytes"] == (owl / "vision-b2.engine").stat().st_size


def test_where_there_is_no_card_a_bundle_of_engines_is_refused(owl):
    with pytest.raises(ModelError, match="run on an NVIDIA card, not on the device 'cpu'") as caught:
        load_bundle(owl).session("vision")
    assert "--to onnx" in (caught.value.hint or "")
    with pytest.raises(ModelError, match="runs on an NVIDIA card, and there is none here"):
        load_bundle(owl).on("cuda:0").session("vision")
    with pytest.raises(ModelError, match=r"owl: made for a card alone, and none can be used: torch .* finds no card"):
        choose_devices("auto", {"owl": owl})


def test_rf_detr_becomes_an_engine_without_grid_sample(small_folder, tmp_path):
    target = Target("fp16", "86", (2,))
    bundle = export(recipe_of("rf-detr-nano"), small_folder("rf_detr"), out=tmp_path / "rf", engines=target)
    built = json.loads((bundle.folder / "bundle.json").read_text())["tensorrt"]["built"]["image"]
    assert "GridSample" not in built["dtypes"]
    assert set(built["dtypes"]["Floor"]) == {"float32"}
    assert set(built["dtypes"]["LayerNormalization"]) == {"float32"}
    assert (bundle.folder / "image-b2.engine").stat().st_size == built["batch 2"]["bytes"] > 100_000


@pytest.fixture(scope="module")
def short_ow_detr(tmp_path_factory):
    """OW-DETR of few layers: sampling that is written out takes long to trace."""
    folder = tmp_path_factory.mktemp("ow_detr")
    deformable_detr(encoder_layers=1, decoder_layers=2).save_pretrained(folder)
    size = {"shortest_edge": 64, "longest_edge": 107}
    transformers.DeformableDetrImageProcessor(size=size).save_pretrained(folder)
    return folder


@pytest.fixture
def sent(monkeypatch):
    """What sessions are given meanwhile: (file, name of the input, shape)."""
    shapes, run = set(), OnnxRuntimeSession.run

    def recorded(self, inputs):
        shapes.update((self.model.name, name, tuple(value.shape)) for name, value in inputs.items())
        return run(self, inputs)

    monkeypatch.setattr(OnnxRuntimeSession, "run", recorded)
    return shapes


@pytest.fixture
def admitted(monkeypatch):
    """What engines that are built meanwhile take: part -> name of the input -> least, usual and greatest shape."""
    taken, made = {}, to_tensorrt._profile

    def recorded(builder, network, *sizes):
        profile = made(builder, network, *sizes)
        names = [network.get_input(place).name for place in range(network.num_inputs)]
        part = "text" if "tokens" in names else "image-96x96"
        taken[part] = {name: [tuple(shape) for shape in profile.get_shape(name)] for name in names}
        return profile

    monkeypatch.setattr(to_tensorrt, "_profile", recorded)
    return taken


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_grounding_dino_becomes_engines(precision, small_folder, sent, admitted, tmp_path):
    weights, out = str(small_folder("grounding_dino")), tmp_path / "grounding"
    options = ["--buckets", "96x96", "--precision", precision, "--compute-capability", "89", "--batch", "2"]
    with pytest.raises(SystemExit) as ended:
        main(["export", "grounding-dino-tiny", "--weights", weights, "--to", "tensorrt", *options, "--out", str(out)])
    assert not ended.value.code
    told = json.loads((out / "bundle.json").read_text())
    assert {file.name for file in out.iterdir()} == {
        *("text-b2.engine", "image-96x96-b2.engine"),
        *("bundle.json", "tokenizer.json"),
    }
    dtypes = told["tensorrt"]["built"]["image-96x96"]["dtypes"]
    assert "GridSample" not in dtypes
    # The backbone bears halves; what follows it, up to where images have met texts, does not.
    for kind in ("Conv", "MatMul"):
        assert set(dtypes[kind]) == ({"float16", "float32"} if precision == "fp16" else {"float32"})
    assert set(dtypes["Softmax"]) == set(dtypes["LayerNormalization"]) == set(dtypes["TopK"]) == {"float32"}
    assert fp16_checks(told) == ({"whole", "image-96x96", "text"} if precision == "fp16" else set())
    # The detector, which the gate runs, sends nothing that the engines do not take.
    assert {file.split(".")[0] for file, _, _ in sent} == set(admitted) == {"text", "image-96x96"}
    for file, name, shape in sent:
        least, _, most = admitted[file.split(".")[0]][name]
        assert all(a <= b <= c for a, b, c in zip(least[1:], shape[1:], most[1:], strict=True)), (file, name, shape)
    assert {shape[1] for file, name, shape in sent if (file, name) == ("text.onnx", "tokens")} > {1}


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_ow_detr_becomes_engines(precision, short_ow_detr, tmp_path):
    bundle = export(
        recipe_of("ow-detr"),
        short_ow_detr,
        out=tmp_path / "ow",
        options={"buckets": [(64, 107)]},
        engines=Target(precision, "89", (2,)),
    )
    told = json.loads((bundle.folder / "bundle.json").read_text())
    dtypes = told["tensorrt"]["built"]["image-64x107"]["dtypes"]
    assert "GridSample" not in dtypes
    assert set(dtypes["Conv"]) == ({"float16"} if precision == "fp16" else {"float32"})
    assert set(dtypes["Softmax"]) == set(dtypes["LayerNormalization"]) == {"float32"}
    assert bundle.engines == {"image-64x107": {2: "image-64x107-b2.engine"}}
    assert fp16_checks(told) == ({"whole", "image-64x107"} if precision == "fp16" else set())


def fp16_checks(told):
    """Parts of which something is told in half precision; each was tried slot by slot, or from pixels to boxes."""
    checks = [(each["part"], each["check"]) for each in told["gate"] if each["check"].startswith("fp16, ")]
    parts = {part for part, _ in checks}
    for part in parts:
        wanted = "against the original" if part == "whole" else "slot 4 of 5 against alone"
        assert any(check.endswith(wanted) for each, check in checks if each == part)
    return parts


def test_a_detector_that_loses_too_much_in_halves_is_refused(short_ow_detr, tmp_path, monkeypatch):
    # Every part passes; what is made of them does not.
    monkeypatch.setattr(to_tensorrt, "HALF", to_tensorrt.Bounds(box=1e-7, score=1e-7, half=True))
    with pytest.raises(ModelError, match="nothing was installed") as caught:
        export(
            recipe_of("ow-detr"),
            short_ow_detr,
            out=tmp_path / "ow",
            options={"buckets": [(64, 107)]},
            engines=Target("fp16", "89", (2,)),
        )
    assert "whole, fp16, picture of" in caught.value.message
    assert not list(tmp_path.iterdir())


def test_images_of_all_sizes_are_no_input_of_an_engine():
    class Image:
        ndim = 4

    part = Part(None, {"image": Image()}, {"image": (0, 2, 3)}, lambda _batch, _seed: {})
    with pytest.raises(UsageError, match="'flow' takes images of all sizes") as caught:
        to_tensorrt.check_parts(Loaded("raft", {"flow": part}, {}, lambda _image, _categories: []))
    assert "--buckets" in (caught.value.hint or "")
    to_tensorrt.check_parts(
        Loaded("raft", {"flow": replace(part, dynamic={"image": (0,)})}, {}, lambda _image, _categories: [])
    )


def graph_of(tmp_path, body, operator_set='"" : 20'):
    model = onnx.parser.parse_model(
        f"<ir_version: 10, opset_import: [{operator_set}]> g (float[B, 4] x) => (float[B, 4] y) {{ {body} }}"
    )
    onnx.save(model, tmp_path / "part.onnx")
    return tmp_path / "part.onnx"


def test_a_node_that_it_cannot_take_is_named(tmp_path):
    graph = graph_of(tmp_path, "[plain] a = Relu (x) [odd_one] y = own.Nonsense (a)", '"" : 20, "own" : 1')
    with pytest.raises(ModelError, match=r"odd_one \(Nonsense\): ") as caught:
        build(runtime(), graph, tmp_path / "x.engine", 2, AIM)
    assert str(caught.value).startswith("part.onnx: tensorrt_rtx 1.")
    assert not (tmp_path / "x.engine").exists()


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_float32_has_all_its_bits(precision, tmp_path, monkeypatch):
    configs, aim = [], to_tensorrt._aim

    def seen(trt, config, target):
        configs.append(config)
        aim(trt, config, target)

    monkeypatch.setattr(to_tensorrt, "_aim", seen)
    graph = graph_of(tmp_path, "y = Relu (x)")
    engine = build(runtime(), graph, tmp_path / "x.engine", 2, replace(AIM, precision=precision))
    assert engine.bytes > 0
    assert not configs[0].get_flag(runtime().BuilderFlag.TF32)


def test_a_text_may_be_one_token_and_an_image_has_its_size(tmp_path, monkeypatch):
    shapes, made = [], to_tensorrt._profile

    def seen(builder, network, *sizes):
        profile = made(builder, network, *sizes)
        shapes.extend([tuple(shape) for shape in profile.get_shape(network.get_input(place).name)] for place in (0, 1))
        return profile

    monkeypatch.setattr(to_tensorrt, "_profile", seen)
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 20]> g (float[B, L, 4] text, float[B, 1, 4] image) => (float[B, L, 4] y)'
        "{ y = Add (text, image) }"
    )
    onnx.save(model, tmp_path / "part.onnx")
    build(runtime(), tmp_path / "part.onnx", tmp_path / "x.engine", 8, AIM, 256)
    assert shapes == [[(8, 1, 4), (8, 32, 4), (8, 256, 4)], [(8, 1, 4)] * 3]


@pytest.mark.parametrize("capability", ["90", None])
def test_an_architecture_that_it_does_not_build_for(capability):
    with pytest.raises(UsageError, match=r"compute.capability") as caught:
        to_tensorrt.check(Target("fp16", capability))
    assert "75, 80, 86, 89" in (caught.value.hint or "")


class Timings:
    """A builder's config of which the timings can be told apart: those of RTX do nothing."""

    def __init__(self, takes=lambda _cache: True):
        self.cache, self.takes = b"", takes

    def create_timing_cache(self, content):
        return None if content == b"not timings" else SimpleNamespace(serialize=lambda: content + b"+1")

    def set_timing_cache(self, cache, ignore_mismatch):
        assert not ignore_mismatch
        if self.takes(cache):
            self.cache = cache.serialize()
        return self.takes(cache)

    def get_timing_cache(self):
        return SimpleNamespace(serialize=lambda: self.cache)


def test_timings_are_kept_from_build_to_build(tmp_path):
    file = tmp_path / "kept" / "sm89.cache"
    for wanted in (b"+1", b"+1+1"):
        config = Timings()
        read_timings(config, file)
        keep_timings(config, file)
        assert file.read_bytes() == config.cache == wanted
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("content", [b"not timings", b"of another version"])
def test_timings_that_are_not_taken_are_begun_anew(tmp_path, content):
    (tmp_path / "sm89.cache").write_bytes(content)
    config = Timings(takes=lambda cache: b"another" not in cache.serialize())
    read_timings(config, tmp_path / "sm89.cache")
    assert config.cache == b"+1"


def test_without_the_package_its_extra_is_named(monkeypatch):
    monkeypatch.setattr(to_tensorrt, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError) as caught:
        export(recipe_of("owlvit-base-patch32"), "nowhere", engines=AIM)
    assert caught.value.hint == "pip install 'tallymill[tensorrt]'"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to", "tensorrt", "--compute-capability", "8.9"], "digits such as 89"),
        (["--to", "tensorrt", "--batch", "8,8"], "different whole numbers"),
        (["--to", "tensorrt", "--batch", "0"], "different whole numbers"),
        (["--to", "tensorrt", "--batch", "many"], "whole numbers such as 1,8"),
        (["--batch", "8"], "--to tensorrt builds them"),
        (["--precision", "fp16"], "--to tensorrt builds them"),
    ],
)
def test_options_that_make_no_sense(options, said, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["export", "owlvit-base-patch32", *options])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


def test_a_graph_that_loses_too_much_in_halves_is_found_out(tmp_path):
    import torch

    class Large(torch.nn.Module):
        def forward(self, x):
            return {"y": x}

    graph = graph_of(tmp_path, "y = Identity (x)")
    part = Part(Large(), {}, {}, lambda batch, seed: {"x": np.full((batch, 4), 1.0 + seed, np.float32)})
    assert all(finding.passed for finding in to_tensorrt.examine_half("image", part, graph))
    off = graph_of(tmp_path, "z = Relu (x) y = Sqrt (z)")
    findings = to_tensorrt.examine_half("image", part, off)
    assert not all(finding.passed for finding in findings)
    assert "fp16" in str(findings[0])


@pytest.mark.parametrize("size", [0.04, 1.0, 30.0])
def test_how_far_halves_may_be_is_relative_to_what_an_output_is_like(size, tmp_path):
    import torch

    class Same(torch.nn.Module):
        def forward(self, x):
            return {"y": x}

    def vary(batch, _seed):
        x = np.full((batch, 4), size, np.float32)
        x[:, 1] *= -1
        x[:, 3] = -np.inf  # masked
        return {"x": x}

    part = Part(Same(), {}, {}, vary)
    body = "f = Constant <value: tensor = float {%s}> () y = Mul (x, f)"
    near, far = (to_tensorrt.examine_half("image", part, graph_of(tmp_path, body % f)) for f in (1.015, 1.03))
    assert all(finding.passed for finding in near)
    assert not all(finding.passed for finding in far)
    assert near[0].tolerance == pytest.approx(0.02 * size)
