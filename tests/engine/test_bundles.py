import hashlib
import json
from dataclasses import dataclass

import pytest

from tallymill.engine.bundles import load_bundle
from tallymill.engine.ensemble import open_detector
from tallymill.errors import ModelError


@dataclass(frozen=True)
class Numbers:
    side: int
    mean: tuple[float, float, float]
    labels: tuple[str, ...]
    square: bool
    cap: int | None


NUMBERS = {"side": 64, "mean": [0, 0.5, 1], "labels": ["cat", "dog"], "square": False, "cap": None}


@pytest.fixture
def make(bundle_example):
    """Write a bundle of one part into a folder, with changes."""

    def write(folder, **changes):
        contents = {"vision.onnx": b"graph"}
        return bundle_example.write(
            folder, contents, **{"parts": {"vision": "vision.onnx"}, "numbers": NUMBERS, **changes}
        )

    return write


def test_numbers_are_read_with_their_types(make, tmp_path):
    numbers = load_bundle(make(tmp_path)).read(Numbers)
    assert numbers == Numbers(64, (0.0, 0.5, 1.0), ("cat", "dog"), False, None)
    assert isinstance(numbers.mean[0], float)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("side", 6.4),
        ("side", True),
        ("mean", [0, 1]),
        ("mean", ["a", 0, 0]),
        ("square", 1),
        ("labels", "cat"),
        ("cap", "9"),
    ],
)
def test_a_number_of_another_type_is_named_with_its_value(make, tmp_path, name, value):
    bundle = load_bundle(make(tmp_path, numbers={**NUMBERS, name: value}))
    with pytest.raises(ModelError, match=rf"numbers\.{name} = ") as caught:
        bundle.read(Numbers)
    assert str(tmp_path) in caught.value.message


@pytest.mark.parametrize("value", [0, -1, 2**31])
def test_a_number_that_cannot_be_is_named_with_its_value(make, tmp_path, value):
    bundle = load_bundle(make(tmp_path, numbers={**NUMBERS, "side": value}))
    with pytest.raises(ModelError, match=rf"numbers\.side = {value} cannot be"):
        bundle.read(Numbers)


def test_a_number_that_is_absent_is_named(make, tmp_path):
    bundle = load_bundle(make(tmp_path, numbers={"side": 64}))
    with pytest.raises(ModelError, match="lack mean, labels, square, cap"):
        bundle.read(Numbers)


def test_a_damaged_file_is_named(make, tmp_path):
    make(tmp_path)
    (tmp_path / "vision.onnx").write_bytes(b"grapf")
    with pytest.raises(ModelError, match=r"vision\.onnx: is not the file that was exported") as caught:
        load_bundle(tmp_path)
    assert caught.value.hint == "export it anew (tallymill export)"


def test_an_absent_file_is_named(make, tmp_path):
    make(tmp_path)
    (tmp_path / "vision.onnx").unlink()
    with pytest.raises(ModelError, match=r"vision\.onnx: No such file"):
        load_bundle(tmp_path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 2}', "\xff"])
def test_what_is_no_bundle_is_told(tmp_path, content):
    (tmp_path / "bundle.json").write_text(content, "latin-1")
    with pytest.raises(ModelError, match=r"bundle\.json: not a bundle of tallymill"):
        load_bundle(tmp_path)


def test_another_format_is_told(make, tmp_path):
    with pytest.raises(ModelError, match="format 1, this version reads 2") as caught:
        load_bundle(make(tmp_path, format=1))
    assert caught.value.hint == "export it anew (tallymill export)"


@pytest.mark.parametrize(
    "change",
    [
        {"numbers": {**NUMBERS, "mean": [0, 0.5, 0.9]}},
        {"precision": "bf16"},
        {"tokenizer": "vision.onnx"},
        {"sha256": "0" * 64},
        {"sha256": None},
    ],
)
def test_what_was_changed_by_hand_is_refused(make, tmp_path, change):
    file = make(tmp_path) / "bundle.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ModelError, match=r"bundle\.json: is not what was exported \(its SHA-256 differs\)"):
        load_bundle(tmp_path)


FINDING = {"part": "whole", "check": "picture", "output": "boxes", "difference": 0.5, "tolerance": 1.0, "compared": 4}


@pytest.mark.parametrize(
    ("gate", "said"),
    [
        (..., "nothing was compared"),
        (None, "nothing was compared"),
        ([], "nothing was compared"),
        ([FINDING, {**FINDING, "difference": 1.5}], "whole, picture: boxes"),
        ([FINDING, {**FINDING, "difference": None}], "whole, picture: boxes"),
        ([FINDING, {**FINDING, "compared": 0}], "whole, picture: boxes"),
    ],
)
def test_a_bundle_that_has_not_passed_the_gate_is_refused(make, tmp_path, gate, said):
    make(tmp_path, gate=gate)
    assert load_bundle(tmp_path, gated=False).ungated == said
    for _ in range(2):  # what is remembered of a folder is refused as well
        with pytest.raises(ModelError, match=rf"bundle\.json: it has not passed the gate: {said}\n") as caught:
            load_bundle(tmp_path)
        assert caught.value.hint == "export it anew (tallymill export)"


@pytest.mark.parametrize("gate", [[{}], ["passed"], True, [{**FINDING, "compared": "4"}]])
def test_a_gate_that_is_none_is_told(make, tmp_path, gate):
    with pytest.raises(ModelError, match=r"bundle\.json: not a bundle of tallymill"):
        load_bundle(make(tmp_path, gate=gate))


def test_a_bundle_that_passed_is_loaded(make, tmp_path):
    bundle = load_bundle(make(tmp_path, gate=[FINDING]))
    assert bundle.ungated is None
    assert bundle.sha256 == json.loads((tmp_path / "bundle.json").read_text())["sha256"]


def test_a_file_outside_the_folder_is_refused(make, tmp_path):
    with pytest.raises(ModelError, match="not the name of a file beside it"):
        load_bundle(make(tmp_path, files={"../vision.onnx": "0"}))


def test_the_hash_follows_files_and_numbers_and_nothing_else(make, tmp_path):
    folders = [tmp_path / str(k) for k in range(3)]
    for folder in folders:
        folder.mkdir()
    first = load_bundle(make(folders[0])).sha256
    assert load_bundle(make(folders[1], name="other", tokenizer=None)).sha256 == first
    assert load_bundle(make(folders[2], numbers={**NUMBERS, "side": 65})).sha256 != first


def test_a_part_or_runtime_that_is_not_there_is_told(make, tmp_path):
    with pytest.raises(ModelError, match="has no part 'text', only vision"):
        load_bundle(make(tmp_path)).session("text")
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(ModelError, match="runtime 'abacus'"):
        load_bundle(make(other, runtime="abacus")).session("vision")


def test_a_bundle_is_on_the_cpu_until_it_is_put_elsewhere(make, tmp_path):
    bundle = load_bundle(make(tmp_path))
    assert bundle.device == "cpu"
    elsewhere = bundle.on("cuda:1")
    assert elsewhere.device == "cuda:1"
    assert elsewhere.sha256 == bundle.sha256
    assert load_bundle(tmp_path).device == "cpu"  # what is remembered of a folder is not changed


@pytest.mark.parametrize("runtime", ["tensorrt", "tensorrt_rtx"])
def test_engines_do_not_run_on_the_cpu(make, runtime, tmp_path):
    with pytest.raises(ModelError, match="run on an NVIDIA card, not on the device 'cpu'") as caught:
        load_bundle(make(tmp_path, runtime=runtime, engines={"vision": {"1": "vision.onnx"}})).session("vision")
    assert "--device cuda" in caught.value.hint


def test_a_session_of_engines_is_told_the_usual_batch_and_a_detector_fills_theirs(make, tmp_path, monkeypatch):
    opened = {}

    class Engines:
        def __init__(self, files, **options):
            opened.update(files=files, **options)

    monkeypatch.setattr("tallymill.engine.sessions.trt.TensorRtSession", Engines)
    engines = {"vision": {"1": "vision.onnx", "8": "vision.onnx"}}
    bundle = load_bundle(make(tmp_path, runtime="tensorrt", engines=engines)).on("cuda:0")
    bundle.session("vision", batch=1)
    files = {1: tmp_path / "vision.onnx", 8: tmp_path / "vision.onnx"}
    assert opened == {"files": files, "module": "tensorrt", "device": "cuda:0", "batch": 1}

    made = {}
    monkeypatch.setattr("tallymill.engine.detectors.owl.Owl", lambda _bundle, _name, **options: made.update(options))
    open_detector(bundle, "mine")
    assert made == {"batch": 8}
    other = tmp_path / "other"
    other.mkdir()
    made.clear()
    open_detector(load_bundle(make(other)), "mine")
    assert made == {}


def test_a_part_is_opened_on_the_device_of_its_bundle(make, tmp_path, monkeypatch):
    opened = {}

    def session(file, *, threads, device):
        opened.update(file=file, threads=threads, device=device)

    monkeypatch.setattr("tallymill.engine.sessions.ort.OnnxRuntimeSession", session)
    load_bundle(make(tmp_path)).on("cuda:1").session("vision", threads=2)
    assert opened == {"file": tmp_path / "vision.onnx", "threads": 2, "device": "cuda:1"}


def test_what_is_opened_is_among_the_files_that_are_checked(make, tmp_path):
    for changes in (
        {"parts": {"vision": "other.onnx"}},
        {"parts": {"vision": "/elsewhere/vision.onnx"}},
        {"tokenizer": "../tokenizer.json"},
        {"engines": {"vision": {"8": "vision-b8.engine"}}},
    ):
        with pytest.raises(ModelError, match="is not among its files"):
            load_bundle(make(tmp_path, **changes))


def test_the_hash_follows_which_file_is_which(make, tmp_path):
    files = {name: hashlib.sha256(b"graph").hexdigest() for name in ("vision.onnx", "other.onnx")}
    (tmp_path / "other.onnx").write_bytes(b"graph")
    first = load_bundle(make(tmp_path, files=files)).sha256
    assert load_bundle(make(tmp_path, files=files, parts={"vision": "other.onnx"})).sha256 != first


def test_a_file_that_is_replaced_after_it_was_checked_is_not_opened(make, tmp_path):
    bundle = load_bundle(make(tmp_path))
    (tmp_path / "new").write_bytes(b"other")
    (tmp_path / "new").replace(tmp_path / "vision.onnx")
    with pytest.raises(ModelError, match=r"vision\.onnx: has been changed since it was checked"):
        bundle.session("vision")
    with pytest.raises(ModelError, match="is not the file that was exported"):
        load_bundle(tmp_path)
    assert load_bundle(make(tmp_path)).changed is None
