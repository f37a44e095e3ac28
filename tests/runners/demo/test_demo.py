import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from PIL import Image
from rich.console import Console

from tallymill.engine.numbench.calibration import DetectorCalibration, Measures
from tallymill.engine.numbench.draw import PALETTE
from tallymill.engine.numbench.truth import Truth, read_truth
from tallymill.engine.proposals import SCHEMA, SCHEMA_WITH_SUPPRESSED
from tallymill.errors import RunError, UsageError
from tallymill.runners.demo import demo
from tallymill.runners.demo.demo import CountRow, DemoResult
from tallymill.runners.demo.tables import demo_tables
from tallymill.runners.summary import Summary


def scored(item: str, count_range: str, layout: str, targets: list[tuple[str, int, float]], cw: float, b: float) -> Any:
    rows = [{"category": c, "requested": n, "soft": s, "hard": s, "covering": 3} for c, n, s in targets]
    base = {"item_id": item, "count_range": count_range, "layout": layout, "image_hash": f"h-{item}", "targets": rows}
    return {**base, "cw_nps": cw, "b_nps": b, "status": "scored", "error": None}


def failed(item: str, count_range: str, layout: str) -> Any:
    row = scored(item, count_range, layout, [("cat", 3, 0.0)], 0.0, 0.0)
    target = {**row["targets"][0], "soft": None, "hard": None}
    nothing = {"targets": [target], "cw_nps": None, "b_nps": None, "image_hash": None}
    return {**row, **nothing, "status": "error", "error": "image: cut short"}


def proposal_row(item: str, target: list[int], confidence: list[float], box: list[list[float]], **more: Any) -> Any:
    base = {"item_id": item, "width": 100, "height": 100, "status": "ok", "error": None, "saturated": False}
    lists = {"requested": [2], "covered": [True], "target": target, "confidence": confidence, "box": box}
    return {**base, **lists, **more}


def proposals(*rows: Any) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCHEMA)


A, B, FAR = [0.0, 0.0, 10.0, 10.0], [20.0, 0.0, 30.0, 10.0], [70.0, 70.0, 90.0, 90.0]


@pytest.fixture
def truth(tmp_path: Path) -> Truth:
    path = tmp_path / "truth.jsonl"
    rows = [("a", 0, A), ("b", 0, A), ("a", 1, B)]
    path.write_text(
        "".join(json.dumps({"item_id": i, "target": t, "box": b, "visible": 1.0}) + "\n" for i, t, b in rows)
    )
    return read_truth(path)


def test_count_rows_are_means_by_range_and_layout(truth: Truth) -> None:
    table = pa.Table.from_pylist(
        [
            scored("c", "51-75", "grid", [("cup", 60, 30.0)], 0.5, 0.4),
            scored("a", "1-25", "random", [("cat", 4, 3.0), ("cup", 2, 2.0)], 0.875, 0.9),
            scored("b", "1-25", "random", [("cat", 1, 1.0)], 1.0, 0.8),
            failed("d", "1-25", "random"),
            scored("e", "1-25", "grid", [("cat", 2, 2.0)], 1.0, 1.0),
        ]
    )
    rows = demo.count_rows(table, truth)
    assert [(r.count_range, r.layout, r.images, r.not_scored) for r in rows] == [
        ("1-25", "grid", 1, 0),
        ("1-25", "random", 3, 1),
        ("51-75", "grid", 1, 0),
    ]
    random = rows[1]
    assert random.requested == pytest.approx(7 / 3)
    assert random.soft == pytest.approx(2.0)
    assert random.visible == 1.0
    assert random.cw_nps == pytest.approx(0.9375)
    assert random.b_nps == pytest.approx(0.85)
    assert rows[2].visible == 0.0


def test_a_cell_without_a_score_has_no_means(truth: Truth) -> None:
    [row] = demo.count_rows(pa.Table.from_pylist([failed("d", "1-25", "grid")]), truth)
    assert (row.images, row.not_scored) == (1, 1)
    assert math.isnan(row.cw_nps)
    assert math.isnan(row.soft)


def test_only_boxes_that_count_are_drawn() -> None:
    # T(2) = .7 and T(20) = .3, each for the boxes of its own target.
    score = scored("a", "1-25", "grid", [("cat", 2, 1.0), ("cup", 20, 1.0)], 0.5, 0.5)
    table = proposals(
        proposal_row("b", [0], [0.9], [A]),
        proposal_row("a", [0, 0, 1, 1], [0.75, 0.6, 0.6, 0.2], [A, B, FAR, A]),
    )
    layer = demo.counted("nanodet", table, score, 1.0)
    assert layer.boxes.tolist() == [A, FAR]
    # With tau = 3 sigmoid(logit(.75)/3) = .59 < .7, and sigmoid(logit(.2)/3) = .386 >= .3.
    assert demo.counted("nanodet", table, score, 3.0).boxes.tolist() == [FAR, A]


def test_suppressed_boxes_are_not_drawn() -> None:
    score = scored("a", "1-25", "grid", [("cat", 2, 1.0)], 0.5, 0.5)
    row = proposal_row("a", [0, 0, 0], [0.9, 0.8, 0.6], [A, B, FAR], kept=[True, False, True])
    table = pa.Table.from_pylist([row], schema=SCHEMA_WITH_SUPPRESSED)
    assert demo.counted("nanodet", table, score, 1.0).boxes.tolist() == [A]


class FakeRun:
    """What ``draw_pictures`` reads of a Run."""

    detectors = ("nanodet",)
    taus: ClassVar = {"nanodet": 1.0}

    def __init__(self, scores: pa.Table, found: pa.Table) -> None:
        self.scores, self._found = scores, found

    def proposals(self, detector: str) -> pa.Table:
        assert detector == "nanodet"
        return self._found


def test_pictures_are_drawn_of_scored_images_only(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    Image.new("RGB", (200, 200), (90, 90, 90)).save(tmp_path / "images" / "a.jpg")
    table = pa.Table.from_pylist(
        [failed("x", "1-25", "random"), scored("a", "1-25", "random", [("cat", 3, 1.0)], 0.5, 0.5)]
    )
    found = proposals(proposal_row("a", [0], [0.9], [[50.0, 50.0, 150.0, 150.0]]))
    [path] = demo.draw_pictures(tmp_path, FakeRun(table, found))
    assert path == tmp_path / "pictures" / "1-25-random.png"
    with Image.open(path) as opened:
        assert opened.getpixel((100, opened.height - 150)) == PALETTE[0]


def test_the_caption_says_what_was_asked_and_counted() -> None:
    score = scored("a", "1-25", "grid", [("cat", 11, 10.33), ("cup", 9, 9.0)], 0.97, 0.9)
    assert (
        demo.caption(score)
        == "11 x cat (counted 10.3), 9 x cup (counted 9.0), grid: cw-NPS 0.97; drawn: boxes that count"
    )


def fit(
    detector: str, tau: float, used: float, refused: str | None = None, proposals: int = 100
) -> DetectorCalibration:
    before, after = Measures(1.0, 0.5, 0.2, 0.3, ()), Measures(tau, 0.4, 0.1, 0.2, ())
    if not proposals:
        before = after = Measures(1.0, math.nan, math.nan, math.nan, ())
    known = proposals > 0
    return DetectorCalibration(
        detector, tau, 1.0, used, refused, known, 4, 0, 70, proposals, 60 * known, before, None, after
    )


def result(out: Path) -> DemoResult:
    row = CountRow("51-75", "grid", 4, 0, 56.2, 56.0, 44.9, 0.712, 0.655)
    return DemoResult(
        out=out,
        summary=Summary("run", True, 4, 4, 4, 0, 0, 0.712, 0.655),
        rows=(row,),
        rescored=(CountRow("51-75", "grid", 4, 0, 56.2, 56.0, 50.1, 0.812, 0.655),),
        fits=(
            fit("nanodet", 1.42, 1.42),
            fit("centernet", 4.0, 1.0, "needs a lower floor: ..."),
            fit("coco-ssd", 1.0, 1.0, "not identifiable: no proposal is true", proposals=0),
        ),
        pictures=(out / "pictures" / "a.png",),
        report=out / "report.html",
    )


def test_json_holds_everything_and_no_nan(tmp_path: Path) -> None:
    demo.write_json(result(tmp_path), tmp_path / "demo.json")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    document = json.loads((tmp_path / "demo.json").read_text(), parse_constant=refuse)
    assert document["run"]["items"] == 4
    assert document["counts"][0]["cw_nps"] == 0.712
    assert document["counts_rescored"][0]["soft"] == 50.1
    assert document["calibration"][0]["tau"] == 1.42
    assert document["calibration"][2]["before"]["nll"] is None
    assert document["pictures"] == ["pictures/a.png"]


def test_tables_show_the_numbers(tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=200)
    for table in demo_tables(result(tmp_path)):
        console.print(table)
    text = console.file.getvalue()
    for words in ("51-75*", "4/4", "56.2", "44.9→50.1", "0.712→0.812", "0.655", "1.4200", "0.500→0.400"):
        assert words in text
    assert "4.0000 (not used: needs a lower floor)" in text
    assert "1.0000 (not used: not identifiable)" in text


def test_tables_fit_a_terminal_of_80_columns(tmp_path: Path) -> None:
    console = Console(file=StringIO(), width=80)
    fitted = result(tmp_path).fits[:1]
    for table in demo_tables(replace(result(tmp_path), fits=fitted)):
        console.print(table)
    assert "…" not in console.file.getvalue()
    assert "0.712→0.812" in console.file.getvalue()


@pytest.mark.parametrize("images", [3, 71])
def test_too_few_or_too_many_images_are_refused(tmp_path: Path, images: int) -> None:
    with pytest.raises(UsageError, match=r"must lie in 4\.\.70"):
        demo.run_demo(tmp_path, images=images)
    assert not list(tmp_path.iterdir())


def test_the_whole_demo_runs_and_continues(tmp_path: Path) -> None:
    said: list[str] = []
    first = demo.run_demo(tmp_path, ensemble="synthetic", images=8, workers=0, tell=said.append)
    assert (first.summary.items, first.summary.scored) == (6, 6)
    assert sum(row.images for row in first.rows) == 6
    assert [(r.count_range, r.layout) for r in first.rows] == [(r.count_range, r.layout) for r in first.rescored]
    # These detectors answer at random: sums over hundreds of proposals, of which hardly one is true.
    assert [fit.detector for fit in first.fits] == ["synthetic-a", "synthetic-b", "synthetic-c"]
    assert all(fit.positives < fit.proposals for fit in first.fits)
    assert [path.name for path in first.pictures] == ["1-25-random.png", "26-50-random.png"]
    assert all(path.is_file() for path in first.pictures)
    assert json.loads((tmp_path / "demo.json").read_text())["run"]["scored"] == 6
    assert len(said) == 5
    assert "cw-NPS" in first.report.read_text("utf-8")
    assert demo.run_demo(tmp_path, ensemble="synthetic", images=8, workers=0) == first


def test_another_seed_does_not_continue_a_demo(tmp_path: Path) -> None:
    demo.run_demo(tmp_path, ensemble="synthetic", images=4, workers=0)
    with pytest.raises(RunError, match="made otherwise"):
        demo.run_demo(tmp_path, ensemble="synthetic", images=4, workers=0, seed=1)
