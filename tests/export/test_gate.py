"""What the gate refuses: each fault is a real one of exports, put into a real one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from tallymill.errors import ModelError
from tallymill.exporters import export as exporting
from tallymill.exporters import gate
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.recipes.parts import Loaded, Part
from tallymill.exporters.to_onnx import export_part

RECIPE = recipe_of("owlvit-base-patch32")


class Sampling(torch.nn.Module):
    """Bilinear sampling at places that the input names, as in deformable attention."""

    def forward(self, image, places):
        return {"found": torch.nn.functional.grid_sample(image, places, align_corners=False).flatten(1)}


def part(module=None):
    def vary(batch, seed):
        rng = np.random.default_rng(seed)
        places = rng.uniform(-1.2, 1.2, (batch, 4, 4, 2)).astype(np.float32)
        return {"image": rng.standard_normal((batch, 3, 8, 8), np.float32), "places": places}

    examples = {name: torch.from_numpy(value) for name, value in vary(2, 0).items()}
    return Part(module or Sampling(), examples, {"image": (0,), "places": (0,)}, vary)


class Wrong:
    """A session that does to the answer of torch what a broken engine does."""

    def __init__(self, fault):
        self.part, self.fault = part(), fault

    def run(self, inputs):
        return self.fault(gate.reference(self.part, inputs))


def refused(session):
    return {finding.check for finding in gate.examine("sampling", part(), session) if not finding.passed}


def test_a_right_session_passes():
    assert not refused(Wrong(lambda found: found))


def test_a_batch_that_leaks_into_its_neighbour_is_refused():
    def leak(found):
        return {"found": found["found"] + 0.01 * np.roll(found["found"], 1, axis=0) * (len(found["found"]) > 1)}

    assert {"batch of 2 against torch", "slot 0 of 5 against alone", "slot 4 of 5 against alone"} <= refused(
        Wrong(leak)
    )


def test_a_slot_that_is_lost_in_larger_batches_is_refused():
    def lose(found):
        found["found"][4:] = 0
        return found

    assert refused(Wrong(lose)) == {"batch of 5 against torch", "slot 4 of 5 against alone"}


def test_an_answer_that_is_not_finite_is_refused():
    assert "batch of 1 against torch" in refused(Wrong(lambda found: {"found": found["found"] * np.nan}))


def test_an_answer_of_another_shape_is_refused():
    assert "batch of 1 against torch" in refused(Wrong(lambda found: {"found": found["found"][:, :3]}))


def test_an_export_that_is_another_model_is_refused(tmp_path):
    class Nearest(Sampling):
        def forward(self, image, places):
            found = torch.nn.functional.grid_sample(image, places, mode="nearest", align_corners=False)
            return {"found": found.flatten(1)}

    from tallymill.engine.sessions.ort import OnnxRuntimeSession

    export_part(part(Nearest()), tmp_path / "sampling.onnx")
    assert "batch of 2 against torch" in refused(OnnxRuntimeSession(tmp_path / "sampling.onnx"))


def leak(file, rows):
    """Make each GridSample of a graph read the values of the image before its own in the batch, as an engine does that
    mixes them: ``rows`` of its first axis are one image. A batch of one is as before.
    """
    model = onnx.load(file)
    nodes = []
    for node in model.graph.node:
        if node.op_type == "GridSample":
            own = f"{node.name}/leak"
            ends = {"begin": -(2**62), "back": -rows, "end": 2**62, "axis": 0}
            for name, value in ends.items():
                model.graph.initializer.append(numpy_helper.from_array(np.array([value], np.int64), f"{own}/{name}"))
            for part, start, end in (("last", "back", "end"), ("others", "begin", "back")):
                inputs = [node.input[0], f"{own}/{start}", f"{own}/{end}", f"{own}/axis"]
                nodes.append(helper.make_node("Slice", inputs, [f"{own}/{part}"]))
            nodes.append(helper.make_node("Concat", [f"{own}/last", f"{own}/others"], [own], axis=0))
            node.input[0] = own
        nodes.append(node)
    assert len(nodes) > len(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, file)


def leaking(monkeypatch, rows):
    """Meanwhile every graph that is exported leaks."""

    def export_leaking(part, file, *args, **options):
        files = export_part(part, file, *args, **options)
        leak(file, rows)
        return files

    monkeypatch.setattr("tallymill.exporters.export.export_part", export_leaking)


def test_a_graph_whose_sampling_leaks_between_slots_is_refused(tmp_path, monkeypatch):
    def load(_weights):
        return Loaded("owlvit", {"sampling": part()}, {}, lambda _image, _categories: [])

    leaking(monkeypatch, rows=1)
    with pytest.raises(ModelError, match="nothing was installed") as caught:
        export(replace(RECIPE, load=load), tmp_path, out=tmp_path / "out" / "bundle")
    for slot in range(5):
        assert f"sampling, slot {slot} of 5 against alone: found differs by" in caught.value.message
    assert "batch of 1 " not in caught.value.message
    assert not list((tmp_path / "out").iterdir())


def test_a_detector_whose_attention_leaks_between_slots_is_refused(small_folder, tmp_path, monkeypatch):
    leaking(monkeypatch, rows=4)  # heads of its deformable attention
    log = []
    with pytest.raises(ModelError, match="nothing was installed") as caught:
        export(recipe_of("rf-detr-nano"), small_folder("rf_detr"), out=tmp_path / "bundle", log=log.append)
    refused = [line for line in caught.value.message.splitlines() if line.endswith("<-- refused")]
    assert any("slot 0 of 5 against alone: boxes differs by" in line for line in refused)
    assert not any("batch of 1 " in line for line in refused)
    # The whole detector sees one image at a time, and would have let it pass: it was not asked.
    assert log[-1] == "comparing image with the model in torch"
    assert not list(tmp_path.iterdir())


MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]  # of OWL-ViT's image processor


@pytest.mark.parametrize(
    "numbers", [{"mean": [0.0, 0.0, 0.0]}, {"mean": STD, "std": MEAN}, {"resample": "bilinear"}, {"template": "{}"}]
)
def test_a_detector_that_prepares_its_input_otherwise_is_refused(numbers, small_folder, tmp_path):
    def load(weights):
        loaded = RECIPE.load(weights)
        return replace(loaded, numbers={**loaded.numbers, **numbers})

    with pytest.raises(ModelError, match="nothing was installed") as caught:
        export(replace(RECIPE, load=load), small_folder("owlvit"), out=tmp_path / "bundle")
    assert "whole, picture of 320x240, 'cat' against the original: confidences differs by" in caught.value.message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("lost", ["mean", "std"])
def test_a_detector_that_does_not_know_how_to_prepare_its_input_is_not_installed(lost, small_folder, tmp_path):
    def load(weights):
        loaded = RECIPE.load(weights)
        return replace(loaded, numbers={key: value for key, value in loaded.numbers.items() if key != lost})

    with pytest.raises(ModelError, match=f"its numbers lack {lost}"):
        export(replace(RECIPE, load=load), small_folder("owlvit"), out=tmp_path / "bundle")
    assert not list(tmp_path.iterdir())


def test_what_was_installed_before_stays_when_its_successor_is_refused(small_folder, tmp_path):
    before = export(RECIPE, small_folder("owlvit"), out=tmp_path / "bundle")

    def load(weights):
        loaded = RECIPE.load(weights)
        return replace(loaded, numbers={**loaded.numbers, "std": [1.0, 1.0, 1.0]})

    with pytest.raises(ModelError, match="nothing was installed"):
        export(replace(RECIPE, load=load), small_folder("owlvit"), out=tmp_path / "bundle")
    assert export(RECIPE, small_folder("owlvit"), out=tmp_path / "bundle").sha256 == before.sha256


class Best(torch.nn.Module):
    """The two greatest values of a row, by place, and what is made of them, in a text that may be padded."""

    def forward(self, values, mask, picked=None):
        values = values.masked_fill(~mask, -torch.inf)
        best, own = torch.topk(values, 2, dim=1)
        chosen = values.gather(1, own if picked is None else picked)
        if picked is None:
            best, picked = chosen, own
        return {"picked": picked, "best": torch.stack([best, chosen], -1), "made": picked.float() ** 2}


def choosing():
    def vary(batch, seed):
        rng = np.random.default_rng(seed)
        length = int(rng.integers(4, 9))
        values = rng.integers(0, 4, (batch, length)).astype(np.float32)  # ties
        return {"values": values, "mask": np.ones((batch, length), np.bool_)}

    return Part(Best(), {}, {"values": (0, 1), "mask": (0, 1)}, vary, choices=("picked",))


@pytest.mark.parametrize(
    ("pick", "passes"),
    [
        (lambda values: np.argsort(-values, axis=1, kind="stable")[:, :2], True),
        (lambda values: np.argsort(-values[:, ::-1], axis=1, kind="stable")[:, :2] * -1 + values.shape[1] - 1, True),
        (lambda values: np.argsort(-values, axis=1, kind="stable")[:, 1:3], False),
        (lambda values: np.argsort(-values, axis=1, kind="stable")[:, [0, 0]], False),
    ],
    ids=["the first of equals", "the last of equals", "not the best", "one twice"],
)
def test_any_of_equals_may_be_picked_and_what_is_made_of_it_is_compared(pick, passes):
    class Engine:
        def run(self, inputs):
            values = np.where(inputs["mask"], inputs["values"], -np.inf).astype(np.float32)
            picked = pick(values)
            chosen = np.take_along_axis(values, picked, 1)
            return {
                "picked": picked,
                "best": np.stack([chosen, chosen], -1),
                "made": picked.astype(np.float32) ** 2,
            }

    findings = gate.examine("best", choosing(), Engine())
    assert all(finding.passed for finding in findings) == passes


def test_parts_keep_what_they_share_in_one_file(tmp_path):
    from tallymill.engine.sessions.ort import OnnxRuntimeSession
    from tallymill.exporters.common_weights import CommonWeights

    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 64)

    class Layer(torch.nn.Module):
        def __init__(self, times):
            super().__init__()
            self.linear, self.times = linear, times

        def forward(self, x):
            return {"y": self.linear(x) * self.times}

    def vary(batch, seed):
        return {"x": np.random.default_rng(seed).standard_normal((batch, 64), np.float32)}

    weights = CommonWeights(tmp_path / "all.weights")
    for times in (1.0, 2.0):
        one = Part(Layer(times), {"x": torch.zeros(2, 64)}, {"x": (0,)}, vary)
        file = tmp_path / f"{times}.onnx"
        assert export_part(one, file, weights) == [file, weights.file]
        assert all(finding.passed for finding in gate.examine("layer", one, OnnxRuntimeSession(file)))
        assert file.stat().st_size < 64 * 64 * 4
    assert weights.file.stat().st_size == 64 * 64 * 4


def test_what_was_there_comes_back_where_its_successor_cannot_be_put(tmp_path, monkeypatch):
    built, target = tmp_path / "built", tmp_path / "target"
    for folder, content in ((built, "new"), (target, "old")):
        folder.mkdir()
        (folder / "bundle.json").write_text(content)
    rename = Path.rename

    def fail(self, other):
        if self == built:
            raise OSError("no")
        return rename(self, other)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no"):
        exporting._replace(built, target, tmp_path / "before")
    assert (target / "bundle.json").read_text() == "old"
    monkeypatch.undo()
    exporting._replace(built, target, tmp_path / "before")
    assert [path.name for path in tmp_path.iterdir()] == ["target"]
    assert (target / "bundle.json").read_text() == "new"


def test_tests_do_not_take_one_graph_for_another(tmp_path):
    """Parts are traced once in a session of tests (``traced_once``): what differs in a number alone is another part."""

    class Times(torch.nn.Module):
        def __init__(self, times):
            super().__init__()
            self.times = times

        def forward(self, image, places):
            return {"found": (image.flatten(1) * self.times)[:, :4] + places.flatten(1)[:, :4]}

    export_part(part(Times(2)), tmp_path / "two.onnx")
    export_part(part(Times(3)), tmp_path / "three.onnx")
    assert (tmp_path / "two.onnx").read_bytes() != (tmp_path / "three.onnx").read_bytes()
    export_part(part(Times(2)), tmp_path / "again.onnx")
    assert (tmp_path / "two.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()
