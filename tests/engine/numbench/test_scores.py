import math

import numpy as np
import pyarrow as pa
import pytest

from tallymill.engine.batch import batch_of
from tallymill.engine.items import read_items
from tallymill.engine.numbench.scores import ScorePlan, score_batch, tabulate_schedule
from tallymill.engine.proposals import Proposals
from tallymill.errors import UsageError


def items(*targets, **columns):
    values = [
        {
            "item_id": f"i{k}",
            "image": f"{k}.jpg",
            "targets": [{"category": c, "count": n} for c, n in pairs],
            **{name: column[k] for name, column in columns.items()},
        }
        for k, pairs in enumerate(targets)
    ]
    return batch_of(next(read_items(pa.Table.from_pylist(values))))


def proposals(batch, boxes, covered=None, errors=None, hashes=None):
    """Proposals of one detector: ``boxes`` has an (item, target, confidence) each, in stored order."""
    of_item = [[box for box in boxes if box[0] == i] for i in range(len(batch))]
    flat = [box for item in of_item for box in item]
    total = len(batch.targets.count)
    return Proposals(
        item_id=batch.rows.column("item_id"),
        image_hash=pa.array(hashes or [None] * len(batch), pa.string()),
        sizes=np.full((len(batch), 2), 10, np.int32),
        errors=errors or [None] * len(batch),
        saturated=np.zeros(len(batch), np.bool_),
        target_offsets=batch.targets.offsets,
        requested=batch.targets.requested,
        covered=np.array([True] * total if covered is None else covered, np.bool_),
        offsets=np.cumsum([0, *map(len, of_item)]),
        target=np.array([box[1] for box in flat], np.uint8),
        confidence=np.array([box[2] for box in flat], np.float32),
        boxes=np.tile(np.array([0, 0, 1, 1], np.float32), (len(flat), 1)),
    )


def plan(*taus, **more):
    return ScorePlan(tuple(f"d{k}" for k in range(len(taus))), taus, **more)


def scored(batch, found, the_plan):
    return score_batch(batch, found, the_plan).to_pylist()


def test_the_worked_check():
    """Three cats and two dogs asked, five cats seen and no dog."""
    batch = items([("cat", 3), ("dog", 2)])
    found = [proposals(batch, [(0, 0, 1.0)] * 5)]
    [row] = scored(batch, found, plan(1.0))
    assert row["cw_nps"] == row["b_nps"] == 0.16666666666666674
    assert row["targets"] == [
        {"category": "cat", "requested": 3, "soft": 5.0, "hard": 5.0, "covering": 1},
        {"category": "dog", "requested": 2, "soft": 0.0, "hard": 0.0, "covering": 1},
    ]


def test_counts_are_divided_by_the_detectors_that_cover_the_category():
    batch = items([("cat", 2), ("raccoon", 10)])
    both = proposals(batch, [(0, 0, 0.9), (0, 0, 0.8), (0, 1, 0.6)])
    cats = proposals(batch, [(0, 0, 0.9), (0, 0, 0.2)], covered=[True, False])
    [row] = scored(batch, [both, cats], plan(1.0, 1.0))
    p9, p8, p6 = (float(np.float32(v)) for v in (0.9, 0.8, 0.6))
    assert [t["covering"] for t in row["targets"]] == [2, 1]
    assert row["targets"][0]["soft"] == pytest.approx((p9 + p8 + p9) / 2, abs=1e-7)
    assert row["targets"][0]["hard"] == 1.5
    assert row["targets"][1]["soft"] == pytest.approx(p6, abs=1e-7)
    [row] = scored(batch, [both, cats], plan(1.0, 1.0, coverage="all"))
    assert [t["covering"] for t in row["targets"]] == [2, 2]
    assert row["targets"][1]["soft"] == pytest.approx(p6 / 2, abs=1e-7)
    assert row["targets"][1]["hard"] == 0.5


@pytest.mark.parametrize("coverage", ["covered", "all"])
def test_a_target_that_nothing_covers_leaves_the_image_without_a_score(coverage):
    batch = items([("cat", 2), ("raccoon", 10)], [("cat", 2)])
    found = [proposals(batch, [(0, 0, 0.9), (1, 0, 0.9)], covered=[True, False, True])]
    first, second = scored(batch, found, plan(1.0, coverage=coverage))
    assert (first["status"], first["cw_nps"], first["b_nps"], first["error"]) == ("uncovered", None, None, None)
    assert first["targets"][0]["hard"] == 1.0  # what can be counted is told
    assert first["targets"][1] == {"category": "raccoon", "requested": 10, "soft": None, "hard": None, "covering": 0}
    assert second["status"] == "scored"


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        ([("cat", 0)], "requested count 0 outside 1..100"),
        ([("cat", 101)], "requested count 101 outside 1..100"),
        ([("dog", 5), ("cat", 70_000)], "requested count 70000 outside 1..100"),
        ([("cat", 2), ("cat", 3)], "category 'cat' is requested more than once"),
    ],
)
def test_targets_that_cannot_be_scored_make_an_error_row(targets, reason):
    batch = items(targets, [("cat", 1)])
    found = proposals(batch, [(1, 0, 0.9)], errors=list(batch.errors))
    row, good = scored(batch, [found], plan(1.0))
    assert (row["status"], row["error"], row["cw_nps"], row["b_nps"]) == ("error", f"targets: {reason}", None, None)
    assert all(t["soft"] is None and t["hard"] is None for t in row["targets"])
    assert row["targets"][-1]["requested"] == (None if targets[-1][1] > 65535 else targets[-1][1])
    assert good["status"] == "scored"


def test_a_detector_that_failed_is_an_error_never_a_smaller_ensemble():
    batch = items([("cat", 1)], [("cat", 1)])
    fine = proposals(batch, [(0, 0, 0.9), (1, 0, 0.9)])
    broken = proposals(batch, [(1, 0, 0.9)], errors=["b: non-finite scores", None])
    first, second = scored(batch, [fine, broken], plan(1.0, 1.0))
    assert (first["status"], first["error"], first["cw_nps"]) == ("error", "b: non-finite scores", None)
    assert (second["status"], second["b_nps"]) == ("scored", 1.0)


def test_the_first_of_several_reasons_is_told():
    batch = items([("cat", 1)])
    found = [proposals(batch, [], errors=[reason]) for reason in ("a: first", "b: second")]
    assert scored(batch, found, plan(1.0, 1.0))[0]["error"] == "a: first"


def test_hard_counts_do_not_depend_on_temperatures():
    rng = np.random.default_rng(0)
    batch = items(*[[("cat", int(n)), ("dog", 4)] for n in rng.integers(1, 101, 50)])
    drawn = zip(rng.integers(0, 50, 3000), rng.integers(0, 2, 3000), rng.uniform(0.05, 1, 3000), strict=True)
    boxes = [(int(i), int(t), float(p)) for i, t, p in drawn] + [(0, 0, 0.5), (0, 1, math.nextafter(0.5, 0))]
    runs = [scored(batch, [proposals(batch, boxes)], plan(tau)) for tau in (0.3, 1.0, 1.42, 20.0)]
    hard = [[(row["b_nps"], *(t["hard"] for t in row["targets"])) for row in rows] for rows in runs]
    soft = [[row["targets"][0]["soft"] for row in rows] for rows in runs]
    assert hard[0] == hard[1] == hard[2] == hard[3]
    assert soft[0] != soft[1] != soft[2]


def test_a_confidence_at_the_threshold_counts():
    batch = items([("cat", 3)], [("cat", 10)])
    at, below = np.float32(0.7), np.nextafter(np.float32(0.7), np.float32(0))
    rows = scored(batch, [proposals(batch, [(0, 0, at), (0, 0, below), (1, 0, 0.31), (1, 0, 0.29)])], plan(1.0))
    # float32(.7) is .699999988: below .7 in float64, so that neither counts.
    assert [row["targets"][0]["soft"] for row in rows] == [0.0, float(np.float32(0.31))]
    rows = scored(batch, [proposals(batch, [(0, 0, at), (0, 0, below)])], plan(1.0, schedule=(float(at),) * 100))
    assert rows[0]["targets"][0]["soft"] == float(at)


def test_columns_of_the_manifest_are_repeated():
    batch = items([("cat", 1)], [("cat", 2)], layout=["grid", "random"], system=["x", None], sample=[1, None])
    rows = score_batch(batch, [proposals(batch, [])], plan(1.0))
    assert rows.schema.names[:4] == ["item_id", "prompt_id", "system", "sample"]
    assert rows.column("layout").to_pylist() == ["grid", "random"]
    assert rows.column("sample").to_pylist() == [1, None]
    assert not {"image", "error_"} & set(rows.schema.names)


def test_a_hash_is_that_of_the_first_detector_that_looked_at_a_file():
    batch = items(*[[("cat", 1)]] * 4)
    seen = (None, ["a", None, None, "d"], ["x", "b", None, None])
    found = [proposals(batch, [], hashes=hashes) for hashes in seen]
    batch.hashes = ["of another file"] * 4  # scoring reads nothing, and says what was looked at
    rows = score_batch(batch, found, plan(1.0, 1.0, 1.0))
    assert rows.column("image_hash").to_pylist() == ["a", "b", None, "d"]


def test_detectors_are_taken_in_the_order_of_the_plan():
    batch = items([("cat", 10)])
    found = [proposals(batch, [(0, 0, 0.4)]), proposals(batch, [(0, 0, 0.6)])]
    one = scored(batch, found, plan(1.0, 5.0))[0]["targets"][0]["soft"]
    other = scored(batch, found, plan(5.0, 1.0))[0]["targets"][0]["soft"]
    assert one != other


# SPEC: a run is refused when sigmoid(logit(floor) / tau) > min T.
@pytest.mark.parametrize(
    ("tau", "floor", "refused"),
    [
        (1.0, 0.05, False),
        (1.42, 0.05, False),
        (4.0, 0.05, True),
        (4.0, 0.01, False),
        (1.0, 0.3, False),
        (1.0, 0.31, True),
        (1e-5, 0.05, False),
        (5e-324, 0.5, True),
        (1e300, 0.05, True),
    ],
)
def test_a_floor_that_throws_away_what_counts_is_refused(tau, floor, refused):
    if not refused:
        plan(tau).require_floor(floor)
        return
    with pytest.raises(UsageError) as caught:
        plan(tau).require_floor(floor)
    assert "d0" in caught.value.message
    assert f"tau = {tau}" in caught.value.message


def test_the_floor_is_compared_with_the_lowest_threshold_of_the_schedule():
    ScorePlan(("d",), (4.0,), "covered", (0.5,) * 100).require_floor(0.05)
    with pytest.raises(UsageError):
        ScorePlan(("d",), (4.0,), "covered", (0.5,) * 99 + (0.3,)).require_floor(0.05)


@pytest.mark.parametrize(
    ("tau", "lowest", "hint"),
    [
        (1.0, 0.01, "raise T to at least 0.0500, or sweep again with a lower floor"),
        (4.0, 0.3, "raise T to at least 0.3239, use a temperature nearer to 1, or sweep again with a lower floor"),
    ],
)
def test_the_floor_of_what_is_recorded_cannot_be_lowered(tau, lowest, hint):
    with pytest.raises(UsageError) as caught:
        ScorePlan(("d",), (tau,), "covered", (lowest,) * 100).require_floor(0.05, recorded=True)
    assert caught.value.hint == hint
    least = float(hint.split(",")[0].rpartition(" ")[2])
    ScorePlan(("d",), (tau,), "covered", (least,) * 100).require_floor(0.05, recorded=True)


def test_the_schedule_is_equation_7():
    by_hand = [0.7 if n <= 3 else 0.3 if n >= 10 else 0.7 - 0.4 * (n - 3) / 7 for n in range(1, 101)]
    assert list(plan(1.0).schedule) == by_hand
    assert all(type(value) is float for value in plan(1.0).schedule)


def test_a_schedule_written_in_python_is_tabulated():
    assert tabulate_schedule(lambda n: n / 100) == tuple(n / 100 for n in range(1, 101))
    assert tabulate_schedule(lambda _: 1) == (1.0,) * 100


@pytest.mark.parametrize(
    ("schedule", "named"),
    [
        (lambda n: 1.01 if n == 7 else 0.5, "T(7) = 1.01"),
        (lambda _: -0.1, "T(1) = -0.1"),
        (lambda _: float("nan"), "T(1) = nan"),
        (lambda _: "half", "T(1) = 'half'; a threshold must be a number"),
        (lambda _: None, "T(1) = None; a threshold must be a number"),
        (lambda _: [0.5] * 999, "T(1) = [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, ...]"),
        (lambda: 0.5, "<lambda>() must take one argument"),
        (lambda _a, _b: 0.5, "<lambda>(_a, _b) must take one argument"),
        (lambda n: 1 / (n - 3), "T(1) = -0.5"),
        (lambda n: 1 / (3 - n) if n < 2 or n > 2 else 1, "T(3): ZeroDivisionError"),
    ],
)
def test_a_schedule_that_gives_no_threshold_is_named(schedule, named):
    with pytest.raises(UsageError) as caught:
        tabulate_schedule(schedule)
    assert named in caught.value.message
    assert f"({__file__}, line {schedule.__code__.co_firstlineno})" in caught.value.message


@pytest.mark.parametrize("schedule", [dict.fromkeys(range(1, 101), 0.5).get, lambda _, other=0.5: other, max])
def test_a_schedule_may_be_any_callable_of_one_argument(schedule):
    if schedule is max:  # takes one argument, and fails for a number: no line of the user's to name
        with pytest.raises(UsageError, match=r"fails for T\(1\): TypeError: 'int' object is not iterable$"):
            tabulate_schedule(schedule)
    else:
        assert tabulate_schedule(schedule) == (0.5,) * 100


def test_an_empty_batch():
    batch = batch_of(items([("cat", 1)]).rows.slice(0, 0))
    assert score_batch(batch, [proposals(batch, [])], plan(1.0)).num_rows == 0
