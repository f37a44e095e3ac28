import json
from dataclasses import FrozenInstanceError

import pytest

from tallymill.engine.settings import Settings, with_overrides
from tallymill.errors import UsageError


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"floor": 0.0}, "floor=0.0"),
        ({"floor": 0.51}, "floor=0.51"),
        ({"floor": float("nan")}, "floor=nan"),
        ({"floor": "0.1"}, "floor='0.1'"),
        ({"floor": None}, "floor=None"),
        ({"floor": True}, "floor=True"),
        ({"nms_iou": -0.1}, "nms_iou=-0.1"),
        ({"nms_iou": 1.5}, "nms_iou=1.5"),
        ({"nms_iou": float("nan")}, "nms_iou=nan"),
        ({"nms_iou": [0.5]}, "nms_iou=[0.5]"),
        ({"window_edge": -1}, "window_edge=-1"),
        ({"window_edge": float("inf")}, "window_edge=inf"),
        ({"window_edge": float("nan")}, "window_edge=nan"),
        ({"window_edge": None}, "window_edge=None"),
        ({"slices": (1,)}, "slices=[1]"),
        ({"slices": (2, 17)}, "slices=[2, 17]"),
        ({"slices": 2}, "slices=2"),
        ({"slices": "23"}, "slices='23'"),
        ({"slices": (2.0,)}, "slices=(2.0,)"),
        ({"slices": (True,)}, "slices=(True,)"),
        ({"coverage": "some"}, "coverage='some'"),
        ({"coverage": None}, "coverage=None"),
        ({"max_pixels": 0}, "max_pixels=0"),
        ({"decoder": "gpu"}, "decoder='gpu'"),
        ({"max_pixels": 1.5}, "max_pixels=1.5"),
        ({"max_pixels": "1"}, "max_pixels='1'"),
    ],
)
def test_every_fault_names_the_setting_and_the_value(values, named):
    with pytest.raises(UsageError) as caught:
        Settings(**values)
    assert named in caught.value.message


@pytest.mark.parametrize(
    "values", [{"floor": 0.5}, {"nms_iou": 0}, {"nms_iou": 1}, {"slices": ()}, {"slices": (2, 16)}, {"window_edge": 0}]
)
def test_the_ends_of_each_range_are_allowed(values):
    assert Settings(**values)


def test_one_value_has_one_form():
    """Stamps in part files are digests of the JSON form, so 1 and 1.0 must not differ."""
    loose = Settings(nms_iou=1, slices=[2, 3], window_edge=2)
    strict = Settings(nms_iou=1.0, slices=(2, 3), window_edge=2.0)
    assert loose == strict
    assert hash(loose) == hash(strict)
    assert json.dumps(loose.as_dict()) == json.dumps(strict.as_dict())


def test_settings_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Settings().floor = 0.1


@pytest.mark.parametrize(
    ("override", "name", "value"),
    [
        ("floor=0.1", "floor", 0.1),
        ("nms_iou=1", "nms_iou", 1.0),
        ("slices=[2, 3]", "slices", (2, 3)),
        ("slices=[]", "slices", ()),
        ("slices=null", "slices", None),
        ("coverage=all", "coverage", "all"),
        ("decoder=nvimgcodec", "decoder", "nvimgcodec"),
        ("max_pixels=1000", "max_pixels", 1000),
        ("max_pixels=1e6", "max_pixels", 1_000_000),
    ],
)
def test_an_override_is_read_as_json(override, name, value):
    found = getattr(with_overrides(Settings(slices=(4,)), [override]), name)
    assert found == value
    assert type(found) is type(value)


def test_the_last_of_two_overrides_counts_and_the_rest_stays():
    found = with_overrides(Settings(nms_iou=0.4), ["floor=0.1", "floor=0.2"])
    assert (found.floor, found.nms_iou) == (0.2, 0.4)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("flor=0.1", "flor=0.1: not a setting"),
        ("floor", "floor: not a setting"),
        ("=1", "=1: not a setting"),
        ("floor=", "floor=: not a number"),
        ("floor=low", "floor=low: not a number"),
        ("floor='0.1'", "floor='0.1': not a number"),
        ('floor="0.1"', "floor='0.1'"),
        ("floor=true", "floor=True"),
        ("floor=NaN", "floor=nan"),
        ("floor=[0.1]", "floor=[0.1]"),
        ("nms_iou=1e999", "nms_iou=inf"),
        ("slices=2", "slices=2"),
        ("slices=[2,", "slices=[2,: not"),
        ('slices=["2"]', "slices=['2']"),
        ("slices=[1]", "slices=[1]"),
        ("coverage=most", "coverage='most'"),
        ("max_pixels=1.5", "max_pixels=1.5"),
        ("max_pixels=Infinity", "max_pixels=inf"),
        ("max_pixels=NaN", "max_pixels=nan"),
        ("max_pixels=" + "1" * 5000, "max_pixels=111"),
    ],
)
def test_an_override_that_makes_no_sense_is_named(override, named):
    with pytest.raises(UsageError) as caught:
        with_overrides(Settings(), [override])
    assert named in caught.value.message


def test_an_unknown_setting_is_answered_with_those_there_are():
    with pytest.raises(UsageError) as caught:
        with_overrides(Settings(), ["flor=0.1"])
    for name in ("floor", "nms_iou", "slices", "window_edge", "coverage", "max_pixels"):
        assert name in caught.value.hint


@pytest.mark.parametrize(
    "settings",
    [Settings(), Settings(0.1, 0.4, (2, 3), 2.5, "all", 1000), Settings(slices=()), Settings(decoder="nvimgcodec")],
)
def test_settings_survive_json(settings):
    assert Settings.from_dict(json.loads(json.dumps(settings.as_dict()))) == settings
