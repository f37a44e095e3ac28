"""The metrics, worked out by hand (docs/physcount.md), by definition, and with their intervals."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest

from tallymill.engine.physcount.data import FAMILIES
from tallymill.engine.physcount.predictions import read_predictions
from tallymill.engine.physcount.score import METRICS, compare, score
from tallymill.errors import UsageError


@pytest.fixture
def dataset(tmp_path, physcount_example):
    return physcount_example.worked_dataset(tmp_path / "set")


@pytest.fixture
def worked(dataset, tmp_path, physcount_example):
    return read_predictions(physcount_example.worked_predictions(tmp_path / "p.jsonl"), dataset)


def test_the_worked_example(worked):
    found = score(worked, resamples=0)
    assert found.headline.score.value == pytest.approx(50.46875, abs=1e-12)
    assert found.headline.group_acc.value == 25.0
    assert found.headline.phys_gnd.value == pytest.approx(100 * 7 / 12, abs=1e-12)
    assert (found.headline.groups, found.headline.questions, found.headline.grounded) == (4, 11, 1)
    rows = {row.family: row for row in found.families}
    values = {name: (row.mae.value, row.nae.value, row.mae_groups) for name, row in rows.items()}
    assert values == {
        "appearance": (pytest.approx(0.5), pytest.approx(5.0), 4),
        "entity": (pytest.approx(0.25), pytest.approx(37.5), 2),
        "image_formation": (pytest.approx(1.0), pytest.approx(50.0), 1),
        "correspondence": (pytest.approx(0.5), pytest.approx(50.0), 1),
    }
    assert rows["entity"].accuracy.value == pytest.approx(62.5)
    assert (rows["entity"].questions, rows["entity"].valid, rows["entity"].exact) == (4, 3, 2)
    assert found.statuses.malformed == 1
    assert [(row.group_id, round(row.score, 3), row.exact, row.questions) for row in found.groups] == [
        ("g1", 21.875, 3, 6),
        ("g2", 80.0, 1, 2),
        ("g3", 0.0, 1, 2),
        ("g4", 100.0, 1, 1),
    ]
    assert found.groups[0].accuracy == {
        "appearance": 100.0,
        "entity": 87.5,
        "image_formation": 50.0,
        "correspondence": 50.0,
    }


def by_definition(dataset, predictions):
    """The metrics in fractions, straight from the paper."""
    scores, perfect, grounded = [], [], []
    naes = {family: [] for family in FAMILIES}
    maes = {family: [] for family in FAMILIES}
    for group in dataset.groups.values():
        means, exact = {}, {}
        for family in FAMILIES:
            own = [(q.answer, predictions.answers[q.question_id].parsed.value) for q in group.questions]
            own = [pair for pair, q in zip(own, group.questions, strict=True) if q.family == family]
            if not own:
                continue
            nae = [Fraction(1) if p is None else min(Fraction(1), Fraction(abs(p - y), max(y, 1))) for y, p in own]
            means[family] = sum(nae) / len(nae)
            naes[family].append(means[family])
            errors = [abs(p - y) for y, p in own if p is not None]
            if errors:
                maes[family].append(Fraction(sum(errors), len(errors)))
            exact[family] = all(p == y for y, p in own)
        scores.append(math.prod(1 - mean for mean in means.values()))
        perfect.append(all(exact.values()))
        if len(means) == 4 and exact["appearance"]:
            others = [1 - means[family] for family in FAMILIES[1:]]
            grounded.append(3 / sum(1 / a for a in others) if all(others) else Fraction(0))

    def mean(values, unit=100):
        return float(unit * sum(values) / Fraction(len(values))) if values else None

    return dict(
        zip(
            METRICS,
            [
                mean(scores),
                mean(perfect),
                mean(grounded),
                *(mean(naes[family]) for family in FAMILIES),
                *(mean(maes[family], 1) for family in FAMILIES),
            ],
            strict=True,
        )
    )


def of(found):
    values = [found.headline.score, found.headline.group_acc, found.headline.phys_gnd]
    values += [row.nae for row in found.families] + [row.mae for row in found.families]
    return dict(zip(METRICS, values, strict=True))


@pytest.fixture
def random_set(tmp_path, physcount_example):
    """Twenty groups of thirteen images, with answers that are often right and sometimes nothing."""
    rng = np.random.default_rng(7)
    questions, groups, answers = [], [], {}
    for number in range(20):
        group, image = f"g{number:02d}", f"i{int(rng.integers(13)):02d}"
        groups.append(physcount_example.group_row(group, image, ["direct"] + ["reflection"] * (number % 2)))
        for family in FAMILIES[: 4 if number % 3 else 2]:
            for _ in range(1 if family == "appearance" else int(rng.integers(1, 4))):
                key, answer = f"q{len(questions)}", int(rng.integers(0, 9))
                questions.append(physcount_example.question_row(key, group, image, question_type=family, answer=answer))
                said = ["", str(answer), str(answer), str(answer + 1), "0"][int(rng.integers(5))]
                answers[key] = said if family != "appearance" else str(answer + (number % 5 == 0))
    root = physcount_example.write_dataset(tmp_path / "random", questions, groups)
    from tallymill.engine.physcount.data import read_dataset

    return read_dataset(root), answers


def test_all_metrics_by_definition(random_set, tmp_path, physcount_example):
    dataset, answers = random_set
    predictions = read_predictions(physcount_example.write_predictions(tmp_path / "p.jsonl", answers), dataset)
    found = score(predictions, resamples=0)
    expected = by_definition(dataset, predictions)
    assert {name: value.value for name, value in of(found).items()} == pytest.approx(expected, rel=1e-12)
    assert found.headline.grounded > 3


def test_intervals_are_percentiles_of_resampled_images(random_set, tmp_path, physcount_example):
    dataset, answers = random_set
    predictions = read_predictions(physcount_example.write_predictions(tmp_path / "p.jsonl", answers), dataset)
    resamples = 60
    found = score(predictions, resamples=resamples)
    images = dataset.image_ids
    drawn = {name: [] for name in METRICS}
    for b in range(resamples):
        places = np.random.default_rng([0, b]).integers(0, len(images), len(images))
        groups = [g for place in places for g in dataset.groups.values() if g.image_id == images[place]]
        copies = type(dataset)(dataset.root, dict(enumerate(groups)), (), {})
        for name, value in by_definition(copies, predictions).items():
            drawn[name].append(np.nan if value is None else value)
    for name, estimate in of(found).items():
        low, high = np.nanpercentile(drawn[name], [2.5, 97.5])
        assert (estimate.low, estimate.high) == pytest.approx((low, high), rel=1e-9), name
        assert estimate.null_resamples == np.isnan(drawn[name]).sum()


def test_no_order_of_lines_shows(random_set, tmp_path, physcount_example):
    dataset, answers = random_set
    one = read_predictions(physcount_example.write_predictions(tmp_path / "p.jsonl", answers), dataset, name="p")
    turned = dict(reversed(answers.items()))
    other = read_predictions(physcount_example.write_predictions(tmp_path / "p.jsonl", turned), dataset, name="p")
    assert score(one) == score(other)


def test_an_all_wrong_set_and_an_all_right_one(dataset, tmp_path, physcount_example):
    right = {key: str(row[3]) for key, row in physcount_example.WORKED.items()}
    found = score(read_predictions(physcount_example.write_predictions(tmp_path / "p.jsonl", right), dataset))
    assert {name: value.value for name, value in of(found).items()} == {
        name: 0.0 if "ae." in name else 100.0 for name in METRICS
    }
    none = score(read_predictions(physcount_example.write_predictions(tmp_path / "p.jsonl", {"a1": None}), dataset))
    values = {name: value.value for name, value in of(none).items()}
    assert values["score"] == values["group_acc"] == 0.0
    assert values["phys_gnd"] is None
    assert all(values[f"nae.{family}"] == 100.0 and values[f"mae.{family}"] is None for family in FAMILIES)
    assert none.statuses.missing == 11
    assert "11 question ids have no answer, and count as wrong: a1, e1, e2, f1, c1 and 6 more." in none.notes


def test_breakdowns_hold_everything_once(worked):
    found = score(worked, resamples=0)
    assert {part.name: part.headline.groups for part in found.parts} == {
        "direct": 2,
        "direct + reflection": 1,
        "direct + through glass": 1,
    }
    assert sum(part.headline.questions for part in found.parts) == 11
    every = [row for row in found.counts if row.family == "all"]
    assert {row.answers: (row.questions, row.exact) for row in every} == {
        "0": (1, 0),
        "1": (1, 1),
        "2-3": (5, 3),
        "4-5": (3, 2),
        "6-10": (1, 0),
        "11-20": (0, 0),
        "21+": (0, 0),
    }
    assert next(row.bias for row in every if row.answers == "4-5") == pytest.approx(1 / 3)


def test_the_difference_of_two_is_paired_by_image(random_set, tmp_path, physcount_example):
    dataset, answers = random_set
    better = {key: str(q.answer) for key, q in ((q.question_id, q) for q in dataset.questions)}
    mixed = answers | {key: value for key, value in better.items() if int(key[1:]) % 2}
    a, b = (
        read_predictions(physcount_example.write_predictions(tmp_path / f"{name}.jsonl", said), dataset)
        for name, said in (("a", mixed), ("b", answers))
    )
    found = {row.metric: row for row in compare(a, b, resamples=60).rows}
    first, second = of(score(a, resamples=0)), of(score(b, resamples=0))
    for name, row in found.items():
        assert (row.a, row.b) == (first[name].value, second[name].value)
        assert row.difference.value == pytest.approx(row.a - row.b)
    images = dataset.image_ids
    drawn = {name: [] for name in METRICS}
    for k in range(60):
        places = np.random.default_rng([0, k]).integers(0, len(images), len(images))
        groups = [g for place in places for g in dataset.groups.values() if g.image_id == images[place]]
        copies = type(dataset)(dataset.root, dict(enumerate(groups)), (), {})
        of_a, of_b = by_definition(copies, a), by_definition(copies, b)
        for name, values in drawn.items():
            there = of_a[name] is not None and of_b[name] is not None
            values.append(of_a[name] - of_b[name] if there else np.nan)
    spread = 0
    for name, row in found.items():
        assert row.difference.null_resamples == np.isnan(drawn[name]).sum()
        if row.difference.low is not None:
            expected = np.nanpercentile(drawn[name], [2.5, 97.5])
            assert (row.difference.low, row.difference.high) == pytest.approx(expected, rel=1e-9, abs=1e-9), name
            spread += 1
        else:
            assert np.nanmax(drawn[name]) == pytest.approx(np.nanmin(drawn[name]), abs=1e-9), name
    assert spread >= 8
    for row in compare(a, a, resamples=50).rows:
        assert (row.difference.value, row.difference.low, row.difference.high) == (0.0, None, None), row.metric


def test_differences_of_metrics_that_rest_on_other_groups_are_told(worked, dataset, tmp_path, physcount_example):
    said = {key: row[4] for key, row in physcount_example.WORKED.items()} | {"a1": "6", "e4": "2"}
    other = read_predictions(physcount_example.write_predictions(tmp_path / "o.jsonl", said), dataset)
    found = compare(worked, other, resamples=50)
    rows = {row.metric: row for row in found.rows}
    assert {name for name, row in rows.items() if not row.like} == {"phys_gnd", "mae.entity"}
    groups = {name: (row.a_groups, row.b_groups) for name, row in rows.items()}
    assert groups["score"] == (4, 4)
    assert groups["phys_gnd"] == (1, 0)
    assert groups["mae.entity"] == (2, 3)
    assert rows["phys_gnd"].difference.null_resamples == 50
    assert all(row.like for row in compare(worked, worked, resamples=0).rows)


def test_what_was_not_asked_yet_is_told_apart_from_what_failed(dataset, tmp_path, physcount_example):
    errors = {"e1": "HTTP 500: no"}
    run = physcount_example.write_run(tmp_path / "RUN", dataset, {"a1": "5", "c1": None}, errors=errors)
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "selection": {"group_ids": ["g1", "g2"]}}))
    found = score(read_predictions(run, dataset), resamples=0)
    assert (found.unasked, found.failed, found.refused) == (["e2", "f1", "c2", "a2", "e3"], errors, {})
    assert found.notes == [
        "Only 2 of 4 groups were asked about.",
        "Unfinished: 5 of 8 questions not asked yet, and counted as wrong; the same ask command goes on.",
        "1 question id failed, and counts as wrong: e1.",
        "1 question id has no answer, and counts as wrong: c1.",
    ]
    assert found.part
    assert (found.whole.groups, found.whole.questions) == (4, 11)


def test_resamples_must_make_sense(worked):
    with pytest.raises(UsageError, match="resamples -1"):
        score(worked, resamples=-1)
