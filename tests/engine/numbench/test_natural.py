"""Prompts in natural words: what is read, and what is refused."""

import inflect
import pytest

from tallymill.engine.detectors.coco import COCO_80, COCO_SYNONYMS
from tallymill.engine.numbench.natural import parse_prompt, singular
from tallymill.errors import ManifestError

NUMBERS = inflect.engine()
# inflect takes "skis" for a singular.
PLURAL_EXCEPTIONS = {"skis": "skis"}


@pytest.mark.parametrize(
    ("text", "targets"),
    [
        ("3 ginger kittens and 2 grey kittens", [("ginger kitten", 3), ("grey kitten", 2)]),
        ("Twenty three cats", [("cat", 23)]),
        ("twenty-three cats", [("cat", 23)]),
        ("one hundred cats", [("cat", 100)]),
        ("a hundred cats", [("cat", 100)]),
        ("ninety-nine red balloons", [("red balloon", 99)]),
        ("a dozen eggs", [("egg", 12)]),
        ("a dozen of eggs", [("egg", 12)]),
        ("two dozen eggs", [("egg", 24)]),
        ("half a dozen eggs", [("egg", 6)]),
        ("a pair of cats", [("cat", 2)]),
        ("three pairs of shoes", [("shoe", 6)]),
        ("a pair of scissors", [("scissors", 1)]),
        ("two pairs of scissors", [("scissors", 2)]),
        ("a cat, two dogs, and three birds", [("cat", 1), ("dog", 2), ("bird", 3)]),
        ("an apple and a pear.", [("apple", 1), ("pear", 1)]),
        ("4 cups of coffee & 2 glasses of wine", [("cup of coffee", 4), ("glass of wine", 2)]),
        ("3 cats and 2 cats", [("cat", 3), ("cat", 2)]),
        ("3 black and white cats and a dog", [("black and white cat", 3), ("dog", 1)]),
        ("5 black-and-tan coonhounds", [("black-and-tan coonhound", 5)]),
        ("5 jack-o'-lanterns", [("jack-o'-lantern", 5)]),
        ("2 american three toed woodpeckers", [("american three toed woodpecker", 2)]),
        ("3 people and 4 mice", [("person", 3), ("mouse", 4)]),
        ("generate 51 raccoons", [("raccoon", 51)]),
        ("generate 1 raccoon, cropped", [("raccoon", 1)]),
        ("generate 11 cats and 9 dogs, arranged in a regular grid, blurry, overlapping", [("cat", 11), ("dog", 9)]),
        ("generate 11 cats, placed naturally in a scene, low quality, artifacts", [("cat", 11)]),
        ("generate 11 cats, scattered at random positions", [("cat", 11)]),
        ("a photo of three dogs", [("dog", 3)]),
        ("An image of a dog", [("dog", 1)]),
        ("Please draw me an illustration of two owls!", [("owl", 2)]),
        ("draw two pictures", [("picture", 2)]),
        ("two pairs of swimming trunks", [("swimming trunks", 2)]),
        ("a pair of swimming trunks and three formula one cars", [("swimming trunks", 1), ("formula one car", 3)]),
        ("twenty one-piece swimsuits", [("one-piece swimsuit", 20)]),
        ("3 hen-of-the-woods mushrooms", [("hen-of-the-woods mushroom", 3)]),
        (
            "two plates of fish and chips and a bouvier des flandres",
            [("plate of fish and chips", 2), ("bouvier des flandres", 1)],
        ),
        ("show exactly 3 teddy bears", [("teddy bear", 3)]),
        ("there are 3 cats", [("cat", 3)]),
    ],
)
def test_reads(text: str, targets: list[tuple[str, int]]) -> None:
    assert parse_prompt(text) == targets


@pytest.mark.parametrize(
    "text",
    [
        "hundred and twenty cats",
        "one hundred and one cats",
        "two hundred cats",
        "hundred twenty cats",
        "101 cats",
        "nine dozen eggs",
        "a thousand cats",
        "1,000 cats",
        "0 cats",
        "zero cats",
        "no cats",
        "-3 cats",
        "1.5 cats",
        "3-4 cats",
        "three to four cats",
        "three twenty cats",
        "some cats",
        "a few cats",
        "dozens of cats",
        "a couple of cats",
        "a group of cats",
        "3 groups of cats",
        "cats",
        "cat",
        "3",
        "",
        "  ",
        "generate",
        "a photo of",
        "3 cats and dogs",
        "3 cats, dogs",
        "3 cats and",
        "3 ginger and 2 grey kittens",
        "3 cats 2 dogs",
        "a 3 cats",
        "3 cats on a table",
        "3 cats sleeping",
        "3 cats arranged in a circle",
        "3 cats, in a garden",
        "blurry, 3 cats",
        "3 cat",
        "1 cats",
        "3 cats; 2 dogs",
        "3 of cats",
        "101 formula one cars",
        "0 geese",
        "3 goose",
        "1 geese",
        "3 sets of jeans",
    ],
)
def test_refuses_and_quotes_the_prompt(text: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_prompt(text)
    assert repr(text) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("name", COCO_80)
def test_every_coco_name_in_plural_and_alone(name: str) -> None:
    plural = PLURAL_EXCEPTIONS.get(name) or NUMBERS.plural(name)
    [(found, count)] = parse_prompt(f"generate 7 {plural}")
    assert count == 7
    assert found == name or COCO_SYNONYMS[found] == name
    assert parse_prompt(f"generate 1 {name}") == [(name, 1)]


@pytest.mark.parametrize(
    ("plural", "one"),
    [
        ("wine glasses", "wine glass"),
        ("cactuses", "cactus"),
        ("couches", "couch"),
        ("kelpies", "kelpie"),
        ("butterflies", "butterfly"),
        ("leaves", "leaf"),
        ("binoculars", "binoculars"),
        ("deer", "deer"),
        ("walkie-talkies", "walkie-talkie"),
        ("birds of paradise", "bird of paradise"),
        ("table", None),
    ],
)
def test_singular(plural: str, one: str | None) -> None:
    assert singular(plural) == one


@pytest.mark.parametrize(
    "name", ["bus", "glass", "cactus", "scissors", "skis", "lens", "octopus", "albatross", "person"]
)
def test_a_singular_survives_a_count_of_one(name: str) -> None:
    assert parse_prompt(f"a {name}") == [(name, 1)]


def test_all_numbers_in_words() -> None:
    for value in range(2, 101):
        words = str(NUMBERS.number_to_words(str(value)))
        assert parse_prompt(f"{words} cats") == [("cat", value)]
        assert parse_prompt(f"{words.replace('-', ' ')} cats") == [("cat", value)]
