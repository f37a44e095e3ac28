"""The 1,600 categories: their names, every plural, and how prompts that ask for them are read back."""

import re
from pathlib import Path

import inflect
import pytest

from tallymill.engine.detectors.base import DetectorSpec
from tallymill.engine.detectors.coco import COCO_80, COCO_SYNONYMS
from tallymill.engine.numbench.natural import parse_prompt
from tallymill.engine.numbench.prompts.text import one_of
from tallymill.engine.numbench.vocabulary import categories
from tallymill.engine.numbench.vocabulary.categories import Category, load_vocabulary
from tallymill.errors import UsageError

VOCABULARY = load_vocabulary()
NAMES = [category.name for category in VOCABULARY]

# A second opinion on plurals, by rule and by list, that shares nothing with the code that made them.
UNCHANGED = ("bison", "deer", "elk", "grouse", "salmon", "sheep", "shrimp", "triceratops")
BY_THE_PAIR = {
    "binoculars", "eyeglasses", "headphones", "jeans", "pajamas", "pliers", "scissors", "sunglasses", "swimming trunks",
    "tongs", "tweezers",
}  # fmt: skip
IRREGULAR = {
    "cactus": "cacti", "die": "dice", "fungus": "fungi", "goose": "geese", "harvestman": "harvestmen",
    "knife": "knives", "loaf": "loaves", "meatloaf": "meatloaves", "mouse": "mice", "ox": "oxen", "person": "people",
    "shelf": "shelves", "wolf": "wolves",
}  # fmt: skip
WHOLE = {"bouvier des flandres": "bouviers des flandres", "filet mignon": "filets mignons"}
IN_OES = ("buffalo", "dingo", "mango", "potato", "tomato", "volcano")
# Words whose ending often has a plural out of the rule, looked at and found to be regular.
REGULAR = """
abacus albatross ani apso armadillo avocado banjo basenji bikini birdhouse boathouse boot booth borzoi brontosaurus
bullmastiff burrito bus cannoli cello churro cockatoo compass coot corgi cuckoo cuirass doberman drum euphonium
flamingo gecko giraffe glass greenhouse handkerchief hippopotamus hourglass ibex ibis indri junco kangaroo kimono
lighthouse mantis mastiff mattress minibus mongoose nacho nautilus octopus okapi piano planetarium platypus plum
poncho radio rhinoceros safe saluki ski sombrero stegosaurus taco taxi trolleybus vireo yo-yo zucchini
"""


def expected_plural(name: str) -> str:
    if name in WHOLE:
        return WHOLE[name]
    if name in BY_THE_PAIR:
        return f"pairs of {name}"
    head, of, rest = name.partition(" of ")
    before, space, word = head.rpartition(" ")
    return before + space + expected_word(word) + of + rest


def expected_word(word: str) -> str:
    if word in UNCHANGED or word.endswith("fish"):
        return word
    if word in IRREGULAR:
        return IRREGULAR[word]
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search(r"(s|x|z|ch|sh)$", word) or word in IN_OES else "s")


def test_there_are_1600_sorted_and_distinct() -> None:
    assert len(VOCABULARY) == 1600
    assert sorted(set(NAMES)) == NAMES
    assert len({category.plural for category in VOCABULARY}) == 1600


def test_every_plural() -> None:
    wrong = [(c.name, c.plural) for c in VOCABULARY if c.plural != expected_plural(c.name)]
    assert wrong == []


def test_every_word_with_an_odd_ending_has_been_looked_at() -> None:
    heads = {c.name.partition(" of ")[0].rpartition(" ")[2] for c in VOCABULARY if c.plural != f"pairs of {c.name}"}
    odd = {w for w in heads if re.search(r"(ff?e?|man|child|oo[st]e?|ooth|ouse|[iu]s|um|[ei]x|eau|o|i|s)$", w)}
    listed = {*UNCHANGED, *IRREGULAR, *IN_OES, "flandres"}
    assert odd - listed == set(REGULAR.split())


def test_no_prompt_is_read_as_another_category_by_somebody_without_the_table() -> None:
    engine = inflect.engine()
    for category in VOCABULARY:
        assert VOCABULARY.singular(engine.plural_noun(category.name)) in (category.name, None)
        one = engine.singular_noun(category.plural)
        assert one == category.name or one not in VOCABULARY


def test_a_plural_is_never_another_categorys_name() -> None:
    same = {c.name for c in VOCABULARY if c.plural in VOCABULARY}
    assert [name for name in same if VOCABULARY.plural(name) != name] == []
    assert [name for name in same if not name.endswith((*UNCHANGED, "fish"))] == []


def test_names_are_lower_case_words() -> None:
    word = r"[a-z]+(?:['-][a-z0-9]+|-o'-lantern)*"
    assert [name for name in NAMES if not re.fullmatch(rf"{word}(?: {word})*", name)] == []


def test_no_two_names_differ_by_spelling_alone() -> None:
    joined: dict[str, list[str]] = {}
    for category in VOCABULARY:
        for text in {category.name, category.plural}:
            joined.setdefault(re.sub(r"[ '-]", "", text).replace("grey", "gray"), []).append(category.name)
    assert [names for names in joined.values() if len(names) > 1] == []


@pytest.mark.parametrize("part", range(4))
def test_every_category_comes_back_from_its_prompts(part: int) -> None:
    categories = VOCABULARY.categories
    for place, one in list(enumerate(categories))[part::4]:
        other = categories[(7 * place + 13) % len(categories)]
        assert parse_prompt(f"generate 17 {one.plural}") == [(one.name, 17)]
        assert parse_prompt(f"generate 1 {one.name}") == [(one.name, 1)]
        assert parse_prompt(f"generate 1 {one_of(one.name, one.plural)}") == [(one.name, 1)]
        assert parse_prompt(f"generate 11 {one.plural} and 9 {other.plural}") == [(one.name, 11), (other.name, 9)]
        both = f"generate 1 {one.name} and 100 {other.plural}, arranged in a regular grid, merged, partial"
        assert parse_prompt(both) == [(one.name, 1), (other.name, 100)]


def test_a_coco_label_stays_covered_under_its_new_name() -> None:
    spec = DetectorSpec("any", "fake", COCO_80, COCO_SYNONYMS)
    became = {label: c.name for c in VOCABULARY for source, label in c.sources if source == "coco"}
    assert sorted(became) == sorted(COCO_80)
    assert [(label, name) for label, name in became.items() if spec.class_of(name) != COCO_80.index(label)] == []


def test_what_is_only_like_a_coco_class_is_not_covered() -> None:
    spec = DetectorSpec("any", "fake", COCO_80, COCO_SYNONYMS)
    from_coco = {c.name for c in VOCABULARY if any(source == "coco" for source, _ in c.sources)}
    assert {name for name in NAMES if spec.class_of(name) is not None} == from_coco
    assert spec.class_of("tabby cat") is None


def test_a_category_keeps_its_sources() -> None:
    assert VOCABULARY["computer mouse"] == Category(
        "computer mouse",
        "computer mice",
        (("imagenet1k", "mouse"), ("coco", "mouse"), ("objects365", "Mouse"), ("caltech256", "computer-mouse")),
    )


def test_lookups() -> None:
    assert VOCABULARY.plural("goose") == "geese"
    assert VOCABULARY.singular("geese") == "goose"
    assert VOCABULARY.singular("goose") is None
    assert "goose" in VOCABULARY
    assert "geese" not in VOCABULARY
    assert load_vocabulary() is VOCABULARY


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("raccon", "'raccoon'"),
        ("geese", "singular: 'goose'"),
        ("mouse", "'computer mouse'"),
        ("qqq", str(Path(categories.__file__).with_name("categories.csv"))),
    ],
)
def test_an_unknown_category_is_told_with_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=f"'{name}'") as caught:
        VOCABULARY.plural(name)
    assert hint in str(caught.value.hint)
