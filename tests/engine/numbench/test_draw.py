import numpy as np
import pytest

from tallymill.engine.numbench.draw import PALETTE, BoxLayer, draw_boxes


def layer(boxes: list[list[float]], confidence: list[float], name: str = "nanodet") -> BoxLayer:
    return BoxLayer(name, np.array(boxes, np.float32).reshape(-1, 4), np.array(confidence, np.float32))


def drawn(rgb: np.ndarray, layers: list[BoxLayer]) -> np.ndarray:
    """The part of the page that holds the image."""
    page = np.asarray(draw_boxes(rgb, layers, "3 cats"))
    assert page.shape[1:] == rgb.shape[1:]
    return page[page.shape[0] - rgb.shape[0] :]


GREY = np.full((200, 300, 3), 90, np.uint8)


def test_the_edge_of_a_box_changes_colour_and_the_inside_does_not() -> None:
    out = drawn(GREY, [layer([[50, 40, 120, 150]], [0.9])])
    for y, x in ((40, 80), (150, 80), (90, 50), (90, 120)):
        assert tuple(out[y, x]) == PALETTE[0]
    assert tuple(out[90, 80]) == (90, 90, 90)
    assert tuple(out[30, 80]) == (90, 90, 90)


def test_each_layer_has_its_colour() -> None:
    out = drawn(GREY, [layer([[10, 10, 60, 60]], [0.9]), layer([[100, 10, 160, 60]], [0.5], "coco-ssd")])
    assert tuple(out[10, 30]) == PALETTE[0]
    assert tuple(out[10, 130]) == PALETTE[1]


def test_boxes_below_the_threshold_are_left_out() -> None:
    assert np.array_equal(drawn(GREY, [layer([[50, 40, 120, 150]], [0.49])]), GREY)
    low = draw_boxes(GREY, [layer([[50, 40, 120, 150]], [0.3])], "", threshold=0.3)
    assert tuple(np.asarray(low)[-200 + 40, 80]) == PALETTE[0]


def test_empty_layers_and_no_layers_leave_the_image() -> None:
    assert np.array_equal(drawn(GREY, [layer([], [])]), GREY)
    assert np.array_equal(drawn(GREY, []), GREY)


def test_the_strip_bears_title_and_legend() -> None:
    with_words = np.asarray(draw_boxes(GREY, [layer([], [])], "3 cats"))
    strip = with_words.shape[0] - 200
    assert (with_words[:strip] < 100).any()
    assert (with_words[:strip] == PALETTE[0]).all(axis=2).any()


def test_a_box_past_the_border_shows_all_its_edges() -> None:
    out = drawn(GREY, [layer([[-5, -5, 400, 400]], [0.9])])
    for y, x in ((0, 150), (199, 150), (100, 0), (100, 299)):
        assert tuple(out[y, x]) == PALETTE[0]


@pytest.mark.parametrize("side", [100, 1024])
def test_lines_are_at_least_two_pixels_wide(side: int) -> None:
    out = drawn(np.zeros((side, side, 3), np.uint8), [layer([[20, 20, 80, 80]], [0.9])])
    assert int((out[50] == PALETTE[0]).all(axis=1).sum()) >= 4


def test_the_image_given_is_not_written_to() -> None:
    before = GREY.copy()
    draw_boxes(GREY, [layer([[50, 40, 120, 150]], [0.9])], "3 cats")
    assert np.array_equal(GREY, before)
