"""What files beside published weights may say, with stand-ins for what transformers makes of them."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from tallymill.errors import ModelError
from tallymill.exporters.published import (
    edges,
    normalisation,
    resampling,
    side,
    sides,
    special_tokens,
    tokenizer_json,
    whole,
)


def processor(**changes):
    values = {
        "do_resize": True,
        "size": {"height": 8, "width": 8},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 0.00392156862745098,
        "do_normalize": True,
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": (1, 0.5, 0.25),
    }
    return SimpleNamespace(**{**values, **changes})


class Size:
    """As transformers has it: pairs of what is there, and attributes."""

    def __init__(self, **values):
        self.values = values

    def __iter__(self):
        return iter(self.values.items())


def test_what_is_right_becomes_numbers():
    assert sides(processor(size=Size(height=8, width=9)), "w") == (8, 9)
    assert side(processor(), "w") == side(processor(), "w", 8) == 8
    assert edges(processor(size=Size(shortest_edge=8, longest_edge=9)), "w") == (8, 9)
    assert normalisation(processor(), "w") == {"mean": [0.1, 0.2, 0.3], "std": [1, 0.5, 0.25]}
    assert normalisation(processor(do_normalize=False, image_std=None), "w") == {"mean": [0] * 3, "std": [1] * 3}
    assert [resampling(processor(resample=number), "w") for number in (2, 3)] == ["bilinear", "bicubic"]
    assert whole(SimpleNamespace(text_config=SimpleNamespace(n=3)), "w", "text_config.n") == 3


@pytest.mark.parametrize(
    "size", [None, 8, "8", {}, [8, 8], {"height": 8}, {"longest_edge": 8}, {"height": 8, "width": 0}]
)
def test_a_size_without_both_sides_is_told_with_its_file_and_key(size):
    with pytest.raises(
        ModelError, match=r"w: preprocessor_config\.json: size = .*; wanted height and width, in"
    ) as exc:
        sides(processor(size=size), "w")
    assert exc.value.hint == "take preprocessor_config.json as it is published with these weights"


@pytest.mark.parametrize("value", [-1, 8.0, True, "8", math.nan, 10**9])
def test_sides_are_whole_numbers_of_pixels(value):
    with pytest.raises(ModelError, match=r"size = .*wanted shortest_edge and longest_edge, in pixels"):
        edges(processor(size={"shortest_edge": 8, "longest_edge": value}), "w")


@pytest.mark.parametrize(
    ("read", "changes", "said"),
    [
        (side, {"size": {"height": 8, "width": 9}}, "size = .*'width': 9}; wanted a square"),
        (lambda p, w: side(p, w, 16), {}, r"wanted the 16 pixels of config\.json"),
        (edges, {"size": {"shortest_edge": 9, "longest_edge": 8}}, "wanted no shortest_edge above the longest_edge"),
        (sides, {"do_resize": False}, "do_resize = False; wanted true"),
        (normalisation, {"do_rescale": None}, "do_rescale = None; wanted true"),
        (normalisation, {"rescale_factor": 1}, "rescale_factor = 1; wanted 1/255"),
        (normalisation, {"rescale_factor": "x"}, "rescale_factor = 'x'; wanted 1/255"),
        (normalisation, {"image_mean": 0.5}, "image_mean = 0.5; wanted three numbers"),
        (normalisation, {"image_mean": [0, 0, math.nan]}, "image_mean = .*; wanted three numbers"),
        (normalisation, {"image_mean": [0, 0]}, "image_mean = .*; wanted three numbers"),
        (normalisation, {"image_std": [1, 1, 0]}, "image_std = .*; wanted three numbers above 0"),
        (resampling, {"resample": 0}, r"resample = 0; wanted 2 \(bilinear\) or 3 \(bicubic\)"),
        (resampling, {"resample": None}, r"resample = None; wanted 2 \(bilinear\) or 3 \(bicubic\)"),
        (lambda p, w: resampling(p, w, ["bilinear"]), {"resample": 3}, r"resample = 3; wanted 2 \(bilinear\)\n"),
    ],
)
def test_what_a_family_cannot_have_is_told_with_its_file_and_key(read, changes, said):
    with pytest.raises(ModelError, match=rf"folder: preprocessor_config\.json: {said}" if "= " in said else said):
        read(processor(**changes), "folder")


@pytest.mark.parametrize("value", [None, "300", 0, 2.5, True])
def test_numbers_of_a_config_are_whole(value):
    with pytest.raises(ModelError, match=r"w: config\.json: text\.n = .*; wanted a whole number from 1"):
        whole(SimpleNamespace(text=SimpleNamespace(n=value)), "w", "text.n")
    with pytest.raises(ModelError, match=r"config\.json: text\.n = None"):
        whole(SimpleNamespace(), "w", "text.n")


def test_tokens_that_a_tokenizer_lacks_are_told():
    tokenizer = SimpleNamespace(eos_token="<end>", eos_token_id=7, pad_token=None, pad_token_id=None)
    assert special_tokens(tokenizer, "w", "eos_token") == [7]
    with pytest.raises(ModelError, match=r"w: tokenizer_config\.json: pad_token = None; wanted a token of the voc"):
        special_tokens(tokenizer, "w", "eos_token", "pad_token")
    with pytest.raises(ModelError, match="a SimpleNamespace, is none of the package tokenizers"):
        tokenizer_json(tokenizer, "w")
