"""Which images a gallery shows, and what their cards say."""

from __future__ import annotations

import io
import json
import math
import statistics
import tracemalloc
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tallymill.engine.report.gallery import Card
from tallymill.runners.numbench import gallery_cells
from tallymill.runners.numbench.gallery import Chosen, choose
from tallymill.runners.numbench.gallery_cells import BINS, CellRows, Medians
from tallymill.runners.numbench.gallery_images import make_cards
from tallymill.runners.run import Run
from tallymill.runners.sweep import sweep

DETECTORS = ("one", "two")


KEY = (0, None)


def chosen_of(run: Run, number: int, **options) -> list[Chosen]:
    """Of a RUN that names no system."""
    return choose([run], number, **options)[KEY]


def cards_of(run: Run, number: int) -> list[Card]:
    return make_cards([run], chosen_of(run, number), {KEY: "system"})


@pytest.fixture(scope="module")
def swept(tmp_path_factory, manifest_file, ensemble_file):
    """60 items, without image files, in shards of 7."""
    folder = tmp_path_factory.mktemp("gallery")
    manifest = manifest_file(folder / "m.jsonl", 60)
    ensemble = ensemble_file(folder / "e.toml", *DETECTORS)
    sweep(manifest, folder / "run", ensemble=ensemble, shard_items=7, workers=1)
    return folder, Run(folder / "run")


def test_the_worst_and_the_typical_are_what_a_plain_search_finds(swept):
    _, run = swept
    rows = [row for row in run.scores.to_pylist() if row["cw_nps"] is not None]
    cells = defaultdict(list)
    for row in rows:
        most = max(target["requested"] for target in row["targets"])
        cells[len(row["targets"]), (most - 1) // 25].append(row)
    ids = run.scores["item_id"].to_pylist()
    chosen = chosen_of(run, len(cells))
    found = {group: [ids[c.row] for c in chosen if c.group == group] for group in ("worst", "typical", "random")}
    assert [len(items) for items in found.values()] == [len(cells)] * 3
    for place, key in enumerate(sorted(cells)):
        scores = {row["item_id"]: row["cw_nps"] for row in cells[key]}
        assert scores[found["worst"][place]] == min(scores.values())
        del_worst = {item: value for item, value in scores.items() if item != found["worst"][place]}
        middle = statistics.median_low(scores.values())
        nearest = min(abs(value - middle) for value in del_worst.values())
        assert abs(scores[found["typical"][place]] - middle) <= nearest + 2 / BINS


def rows_of(key, scores):
    return CellRows(key, scores, np.zeros(len(key), np.uint64), np.arange(len(key)))


@pytest.mark.parametrize("few", [0, 20, 1 << 15])
def test_medians_are_the_same_of_few_and_of_many(few, monkeypatch):
    monkeypatch.setattr(gallery_cells, "_FEW", few)
    rng = np.random.default_rng(4)
    key = rng.integers(0, 9, 400) ** 2
    scores = rng.choice([0.0, 1.0, 1 / 3, *rng.random(50)], 400)
    medians = Medians()
    for start in range(0, 400, 90):
        medians.add(rows_of(key[start : start + 90], scores[start : start + 90]))
    found = medians.table(70)
    for cell in range(70):
        bins = [math.floor(score * BINS) for score in scores[key == cell]]
        assert found[cell] == (statistics.median_low(bins) / BINS if bins else 0)


def test_medians_of_many_cells_take_what_their_images_take():
    """A histogram for each of 2,000 cells would be 262 MB."""
    key, medians = np.repeat(np.arange(2_000), 5), Medians()
    tracemalloc.start()
    try:
        medians.add(rows_of(key, np.full(len(key), 0.5)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (medians.table(2_000) == 0.5).all()
    assert peak < 4e6


def test_rows_without_a_status_are_not_scored(swept, tmp_path):
    """Not even where no row is, so that the word is not there."""
    folder, _ = swept
    sweep(folder / "m.jsonl", tmp_path / "run", ensemble=folder / "e.toml", workers=1)
    run = Run(tmp_path / "run")
    for part in (run.path / "scores" / shard.part for shard in run.shards):
        table = pq.read_table(part)
        at = table.schema.get_field_index("status")
        field = table.schema.field(at)
        pq.write_table(table.set_column(at, field, pa.nulls(len(table), field.type)), part)
    assert choose([run], 5) == {KEY: []}


def test_no_image_is_chosen_twice_and_all_are_in_the_end(swept):
    _, run = swept
    scored = run.scores["cw_nps"].length() - run.scores["cw_nps"].null_count
    chosen = chosen_of(run, 100)
    assert len({c.row for c in chosen}) == len(chosen) == scored


def test_rows_and_shards_may_stand_in_any_order(swept, tmp_path):
    folder, run = swept
    lines = (folder / "m.jsonl").read_text().splitlines()
    (tmp_path / "m.jsonl").write_text("\n".join(reversed(lines)))
    sweep(tmp_path / "m.jsonl", tmp_path / "run", ensemble=folder / "e.toml", shard_items=16, workers=1)
    other = Run(tmp_path / "run")

    def chosen(of: Run) -> list[tuple[str, str]]:
        ids = of.scores["item_id"].to_pylist()
        return [(c.group, ids[c.row]) for c in chosen_of(of, 5)]

    assert chosen(run) == chosen(other)


def test_another_seed_gives_other_random_images(swept):
    _, run = swept
    rows = [{c.row for c in chosen_of(run, 8, seed=seed) if c.group == "random"} for seed in (0, 1)]
    assert rows[0] != rows[1]


def test_systems_are_told_apart_by_run_and_by_name(swept, tmp_path):
    folder, run = swept
    rows = [json.loads(line) for line in (folder / "m.jsonl").read_text().splitlines()]
    named = [{**row, "system": ("alpha", "", "beta")[k % 3]} for k, row in enumerate(rows)]
    rows_of_gamma = [
        {**row, "item_id": f"g{k}", "targets": {"cat": 101}, "system": "gamma"} for k, row in enumerate(rows)
    ]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*named, *rows_of_gamma]))
    sweep(tmp_path / "m.jsonl", tmp_path / "run", ensemble=folder / "e.toml", workers=1)
    found = choose([run, Run(tmp_path / "run")], 2)
    assert set(found) == {KEY, (1, "alpha"), (1, None), (1, "beta"), (1, "gamma")}
    assert found[1, "gamma"] == []
    assert all(c.run == key[0] for key, chosen in found.items() for c in chosen)
    names = dict(zip(found, "abcde", strict=True))
    flat = [c for chosen in found.values() for c in chosen]
    cards = make_cards([run, Run(tmp_path / "run")], flat, names)
    assert [card.system for card in cards] == [names[c.cell.system] for c in flat]


def test_nothing_is_chosen_where_nothing_is_wanted(swept):
    _, run = swept
    assert choose([run], 0) == {}


def test_layers_hold_the_boxes_that_the_score_counted(swept):
    _, run = swept
    cards = cards_of(run, 5)
    scores = {row["item_id"]: row for row in run.scores.to_pylist()}
    for card in cards:
        row = scores[card.item_id]
        assert (card.cw_nps, card.b_nps) == (row["cw_nps"], row["b_nps"])
        assert [layer.detector for layer in card.layers] == list(DETECTORS)
        for t, asked in enumerate(card.asked):
            assert sum(layer.soft[t] for layer in card.layers) / 2 == pytest.approx(asked.soft, abs=1e-12)
            assert all(layer.number(t) == sum(layer.target == t) for layer in card.layers)


def test_an_image_that_is_not_there_has_a_card_with_the_reason(swept):
    _, run = swept
    cards = cards_of(run, 1)
    assert all(card.thumbnail is None for card in cards)
    assert all("not found" in card.reason for card in cards)


@pytest.fixture(scope="module")
def pictured(tmp_path_factory, image_folder, image_ensemble_file):
    folder = tmp_path_factory.mktemp("pictured")
    images = image_folder(folder / "images", 6)
    rows = [json.loads(line) for line in (images / "metadata.jsonl").read_text().splitlines()]
    texts = [{**row, "text": f"generate {row['targets']}"} for row in rows]
    (images / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    sweep(images, folder / "run", ensemble=image_ensemble_file(folder / "e.toml", *DETECTORS), workers=1)
    return images, Run(folder / "run")


def test_a_card_has_a_thumbnail_the_prompt_and_the_size_that_boxes_refer_to(pictured):
    _, run = pictured
    cards = cards_of(run, 2)
    assert len(cards) == 6
    for card in cards:
        with Image.open(io.BytesIO(card.thumbnail)) as thumbnail:
            assert thumbnail.format == "WEBP"
            assert thumbnail.size == card.thumbnail_size == (card.width, card.height)
        assert card.prompt.startswith("generate {")
        boxes = np.concatenate([layer.boxes for layer in card.layers])
        assert (boxes[:, 2] <= card.width + 1).all()


def test_a_file_that_changed_or_went_is_told(pictured):
    images, run = pictured
    chosen = chosen_of(run, 2)
    names = [card.item_id for card in make_cards([run], chosen, {KEY: "system"})]
    kept = {name: (images / name).read_bytes() for name in names[:2]}
    try:
        (images / names[0]).write_bytes(kept[names[0]] + b"more")
        (images / names[1]).unlink()
        cards = make_cards([run], chosen, {KEY: "system"})
    finally:
        for name, data in kept.items():
            (images / name).write_bytes(data)
    assert cards[0].reason.endswith("the file has changed since it was scored")
    assert "not found" in cards[1].reason
    assert all(card.thumbnail for card in cards[2:])


def test_the_text_of_a_prompt_is_looked_up_where_the_run_does_not_know_it(tmp_path, ensemble_file):
    rows = [{"item_id": f"{k}", "image": f"{k}.png", "prompt_id": f"p{k}", "targets": {"cat": 1 + k}} for k in range(3)]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sweep(tmp_path / "m.jsonl", tmp_path / "run", ensemble=ensemble_file(tmp_path / "e.toml", "one"), workers=1)
    run = Run(tmp_path / "run")
    cards = make_cards([run], chosen_of(run, 1), {KEY: "system"}, {"p0": "a cat", "p1": "2 cats", "p2": "3 cats"}.get)
    assert sorted((card.item_id, card.prompt) for card in cards) == [("0", "a cat"), ("1", "2 cats"), ("2", "3 cats")]


def test_a_large_image_is_made_small(tmp_path, image_ensemble_file):
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (1000, 500), (200, 30, 30)).save(folder / "a.png")
    (folder / "metadata.jsonl").write_text(json.dumps({"file_name": "a.png", "targets": {"cat": 2}}) + "\n")
    sweep(folder, tmp_path / "run", ensemble=image_ensemble_file(tmp_path / "e.toml", "one"), workers=1)
    run = Run(tmp_path / "run")
    (card,) = cards_of(run, 3)
    assert card.thumbnail_size == (400, 200)
    assert (card.width, card.height) == (1000, 500)


def test_a_run_that_lost_its_items_says_so(swept, tmp_path):
    folder, _ = swept
    sweep(folder / "m.jsonl", tmp_path / "run", ensemble=folder / "e.toml", workers=1)
    (tmp_path / "run" / "items.arrow").unlink()
    run = Run(tmp_path / "run")
    assert "items.arrow is gone" in cards_of(run, 1)[0].reason
