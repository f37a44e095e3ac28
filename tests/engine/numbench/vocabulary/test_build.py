"""How the vocabulary is made: the stored tables are what the code gives, and every raw label is accounted for."""

from collections import Counter

import pytest

from tallymill.engine.numbench.vocabulary import build
from tallymill.engine.numbench.vocabulary.build import Decision, Label, decisions, raw_labels, resolve
from tallymill.engine.numbench.vocabulary.categories import load_vocabulary
from tallymill.engine.numbench.vocabulary.rules import plain_name

SIZES = {
    "imagenet1k": 1000, "coco": 80, "objects365": 365, "caltech101": 102, "caltech256": 257, "food101": 101,
    "cub200": 200,
}  # fmt: skip


def test_the_stored_tables_are_what_the_code_makes() -> None:
    made = build.tables(resolve(raw_labels(), decisions()))
    for name, text in made.items():
        stored = (build.HERE / name).read_text(encoding="utf-8")
        assert stored.splitlines() == text.splitlines(), f"run python -m {build.__name__}"


def test_all_labels_are_there() -> None:
    assert Counter(label.source for label in raw_labels()) == SIZES


def test_every_label_is_accounted_for_once() -> None:
    kept = Counter(Label(*source) for category in load_vocabulary() for source in category.sources)
    gone = Counter(Label(row["source"], row["label"]) for row in build.rows("removed.csv") if row["fate"] == "removed")
    labels = Counter(raw_labels())
    assert not kept & gone
    assert set(kept) | set(gone) == set(labels)
    assert set(labels.values()) == {1}
    twice = {label for label in kept if kept[label] > 1}
    assert all("/" in label.label or " and " in label.label for label in twice)
    assert all(kept[label] == 2 for label in twice)


def test_removed_and_merged_labels_have_a_reason() -> None:
    for row in build.rows("removed.csv"):
        assert row["reason"]
        assert row["fate"] == "removed" or row["fate"].removeprefix("merged into ") in load_vocabulary()


def test_names_are_restored_in_the_order_of_the_rules() -> None:
    labels, made = raw_labels(), decisions()
    sizes = [len(resolve(labels, made, build.GROUNDS[:n]).labels) for n in range(4)]
    assert sizes[0] < sizes[1] < sizes[2] < sizes[3] == build.SIZE


@pytest.mark.parametrize(
    ("source", "label", "name"),
    [
        ("cub200", "Black_footed_Albatross", "black footed albatross"),
        ("caltech256", "bonsai-101", "bonsai"),
        ("caltech256", "faces-easy-101", "face"),
        ("caltech101", "cougar_face", "cougar"),
        ("caltech101", "leopards", "leopard"),
        ("objects365", "Cigar/Cigarette ", "cigar/cigarette"),
        ("objects365", "Scissors", "scissors"),
        ("food101", "french_fries", "french fry"),
        ("food101", "fish_and_chips", "fish and chips"),
        ("caltech256", "hourglass", "hourglass"),
        ("imagenet1k", "sunglasses", "sunglasses"),
        ("imagenet1k", "jack-o'-lantern", "jack o' lantern"),
    ],
)
def test_plain_names(source: str, label: str, name: str) -> None:
    assert plain_name(source, label) == name


PEN = [Label("a", "Pen/Pencil"), Label("b", "pens"), Label("b", "Crane"), Label("c", "crane")]


def test_a_slash_label_is_its_first_half_until_both_are_restored() -> None:
    both = Decision("pen/pencil", "restore", ("pen", "pencil"), "slash label: two things")
    assert set(resolve(PEN[:1], []).labels) == {"pen"}
    assert set(resolve(PEN[:1], [both]).labels) == {"pen", "pencil"}
    assert set(resolve(PEN[:1], [both], ()).labels) == {"pen"}


def test_a_decision_about_a_label_counts_before_one_about_its_name() -> None:
    made = [
        Decision("crane", "rename", ("crane bird",), "homograph"),
        Decision("b:Crane", "rename", ("construction crane",), "homograph"),
    ]
    assert set(resolve(PEN[2:], made).labels) == {"crane bird", "construction crane"}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ([Decision("owl", "remove", (), "none")], "no label has the name"),
        ([Decision("crane", "remove", (), "none")] * 2, "decided twice"),
        ([Decision("crane", "merge", ("owl",), "none")], "no other label gives"),
    ],
)
def test_decisions_that_cannot_hold(made: list[Decision], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(PEN, made)
