from pathlib import Path

import pytest

from tallymill.engine.ensemble import (
    BUNDLED,
    FAMILIES,
    SHIPPED,
    DetectorConfig,
    EnsembleConfig,
    build_proposer,
    load_ensemble,
)
from tallymill.engine.proposer import WindowProposer
from tallymill.errors import ModelError, UsageError

GOOD = '[[detectors]]\nname = "a"\nfamily = "synthetic"\n'


def write(folder, text):
    path = folder / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_the_shipped_ensembles():
    found = {file.stem: load_ensemble(file.stem) for file in SHIPPED.glob("*.toml")}
    assert set(found) == {"coco-cpu", "numbench", "synthetic"}
    assert all(config.name == name for name, config in found.items())
    assert [d.name for d in found["coco-cpu"].detectors] == ["coco-ssd", "nanodet", "centernet"]
    assert found["coco-cpu"].slices == (2, 3)
    assert found["synthetic"].slices == ()
    assert all(d.tau == 1.0 for name in ("coco-cpu", "synthetic") for d in found[name].detectors)
    # The temperatures of the paper.
    assert [(d.name, d.tau) for d in found["numbench"].detectors] == [
        ("ow-detr", 1.15),
        ("grounding-dino", 1.42),
        ("owl-vit", 0.93),
    ]


def test_a_file_of_ones_own(tmp_path):
    text = 'slices = [2]\n[[detectors]]\nname = "x"\nfamily = "nanodet"\nmodel = "sub/m.onnx"\ntau = 2\n' + GOOD
    config = load_ensemble(write(tmp_path, text))
    assert (config.name, config.slices) == ("mine", (2,))
    assert config.detectors[0] == DetectorConfig("x", "nanodet", str((tmp_path / "sub/m.onnx").resolve()), 2)
    assert [d.name for d in config.detectors] == ["x", "a"]


def test_a_catalogue_name_stays_a_name(tmp_path):
    text = '[[detectors]]\nname = "x"\nfamily = "nanodet"\nmodel = "nanodet"\n'
    assert load_ensemble(write(tmp_path, text)).detectors[0].model == "nanodet"


DETECTOR = '[[detectors]]\nname = "a"\nfamily = "{}"\n{}\n'


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "no detectors"),
        ("detectors = []", "no detectors"),
        ("detectors = 3", "[[detectors]] tables"),
        ("detectors = ['a']", "[[detectors]] tables"),
        ("slizes = [2]\n" + GOOD, "unknown key 'slizes'"),
        ("slices = 2\n" + GOOD, "slices = 2"),
        ("slices = [1]\n" + GOOD, "slices = [1]"),
        ("slices = [2.0]\n" + GOOD, "slices = [2.0]"),
        ("slices = [true]\n" + GOOD, "slices = [True]"),
        (GOOD + "weight = 2\n", "unknown detector key 'weight'"),
        (GOOD + GOOD, "detector names repeat: a, a"),
        ('[[detectors]]\nfamily = "synthetic"\n', "without name"),
        ('[[detectors]]\nname = "a"\n', "without family"),
        ('[[detectors]]\nname = 3\nfamily = "synthetic"\n', "name 3 must be text"),
        ('[[detectors]]\nname = "a"\nfamily = []\n', "family [] must be text"),
        ('[[detectors]]\nname = "../a"\nfamily = "synthetic"\n', "'../a'"),
        ('[[detectors]]\nname = ""\nfamily = "synthetic"\n', "''"),
        (DETECTOR.format("yolo", ""), "family 'yolo' is not one of"),
        (DETECTOR.format("nanodet", ""), "needs a model"),
        (DETECTOR.format("nanodet", "model = 3"), "model 3 must be text"),
        (DETECTOR.format("synthetic", 'model = "nanodet"'), "needs no model"),
        (GOOD + "tau = 0\n", "tau = 0"),
        (GOOD + "tau = -1.5\n", "tau = -1.5"),
        (GOOD + "tau = inf\n", "tau = inf"),
        (GOOD + "tau = nan\n", "tau = nan"),
        (GOOD + "tau = true\n", "tau = True"),
        (GOOD + 'tau = "1"\n', "tau = '1'"),
        ("detectors = [", "not a TOML file"),
        ("a = 1\na = 2", "not a TOML file"),
        (b"\xff\xfe", "not a TOML file"),
    ],
)
def test_every_fault_is_one_line_that_names_the_file(text, named, tmp_path):
    path = write(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_ensemble(path)
    assert caught.value.message.startswith(f"{path}: ")
    assert named in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", ["coco", "missing.toml", "", "."])
def test_a_name_that_is_neither_shipped_nor_a_file(name):
    with pytest.raises(UsageError) as caught:
        load_ensemble(name)
    assert repr(str(name)) in caught.value.message
    assert "coco-cpu" in caught.value.hint


def test_an_ensemble_made_in_python_is_checked_too():
    with pytest.raises(UsageError, match="no detectors"):
        EnsembleConfig("none", ())
    with pytest.raises(UsageError, match="repeat"):
        EnsembleConfig("two", (DetectorConfig("a", "synthetic"), DetectorConfig("a", "synthetic")))
    with pytest.raises(UsageError, match="tau"):
        DetectorConfig("a", "synthetic", None, float("nan"))


def test_a_detector_is_built_from_its_family():
    assert build_proposer(DetectorConfig("mine", "synthetic"), None).spec.name == "mine"


@pytest.mark.parametrize("content", [b"", b"not a model"])
def test_a_model_file_that_is_none(content, tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"m\.onnx"):
        build_proposer(DetectorConfig("x", "coco_ssd", str(path)), path)


@pytest.mark.models
def test_every_family_builds():
    from tallymill.exporters import hub

    hub.get("coco-cpu")
    config = load_ensemble("coco-cpu")
    built = [build_proposer(detector, Path(hub.path(detector.model))) for detector in config.detectors]
    assert all(isinstance(proposer, WindowProposer) for proposer in built)
    assert [(p.spec.name, p.spec.family) for p in built] == [(d.name, d.family) for d in config.detectors]
    assert {p.spec.family for p in built} | {"synthetic"} == set(FAMILIES) - BUNDLED


def test_more_detectors_than_a_count_can_hold_are_refused():
    detectors = tuple(DetectorConfig(f"d{k}", "synthetic") for k in range(256))
    assert EnsembleConfig("many", detectors[:255])
    with pytest.raises(UsageError, match="256 detectors; at most 255"):
        EnsembleConfig("many", detectors)
