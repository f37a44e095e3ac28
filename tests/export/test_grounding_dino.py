from __future__ import annotations

import numpy as np
import pytest
import skimage.data
import torch
import transformers
from PIL import Image
from transformers.models.grounding_dino.modeling_grounding_dino import (
    generate_masks_with_special_tokens_and_transfer_map,
)

from tallymill.bench.small_models import SMALL
from tallymill.engine.detectors.grounding_dino import GroundingDino
from tallymill.engine.detectors.phrases import blocks
from tallymill.engine.ensemble import DetectorConfig, build_proposer
from tallymill.engine.sessions.base import stack
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.recipes.grounding_dino_modules import maxima_of_rows

CHELSEA, COFFEE = skimage.data.chelsea(), skimage.data.coffee()  # 300 x 451 and 400 x 600
SQUARE = COFFEE[:400, :400]
FAMILIES = {"GroundingDino": "grounding_dino", "MMGroundingDino": "mm_grounding_dino"}
BUCKETS = [(96, 96), (96, 160)]


@pytest.fixture(scope="module", params=FAMILIES)
def prefix(request):
    return request.param


@pytest.fixture(scope="module")
def detector(prefix, small_folder, tmp_path_factory):
    recipe = recipe_of(SMALL[FAMILIES[prefix]].recipe)
    out = tmp_path_factory.mktemp("out") / prefix
    bundle = export(recipe, small_folder(FAMILIES[prefix]), out=out, options={"buckets": BUCKETS})
    found = build_proposer(DetectorConfig("g", "grounding_dino", recipe.name), bundle.folder).detector
    assert isinstance(found, GroundingDino)
    return found


class Original:
    """The model, processor and post-processing of transformers."""

    def __init__(self, folder, prefix):
        self.model = getattr(transformers, f"{prefix}ForObjectDetection").from_pretrained(folder).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        images = transformers.GroundingDinoImageProcessorPil.from_pretrained(folder)
        self.processor = transformers.GroundingDinoProcessor(images, self.tokenizer)

    def outputs(self, images, texts, bucket):
        inputs = self.processor(
            text=texts,
            images=[Image.fromarray(image) for image in images],
            return_tensors="pt",
            padding=True,
            pad_size=dict(zip(("height", "width"), bucket, strict=True)),
        )
        with torch.no_grad():
            return self.model(**inputs)

    def read(self, outputs, row, image, phrases):
        """Boxes [Q, 4] in pixels, and confidences [Q, phrases] by the characters that each phrase has in the text."""
        text = written(phrases)
        places = self.tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
        scores, start = [], 0
        for phrase in phrases:
            mine = [
                k
                for k, (first, last) in enumerate(places)
                if start <= first < last <= start + len(phrase) and text[first:last] not in ".?"
            ]
            scores.append(outputs.logits[row][:, mine].sigmoid().amax(1).numpy())
            start += len(phrase) + 2
        return self.processor.post_process_grounded_object_detection(
            outputs, threshold=-1.0, target_sizes=[image.shape[:2]] * len(outputs.logits)
        )[row], np.stack(scores, 1)


def written(phrases):
    return ". ".join(phrases) + "."


@pytest.fixture(scope="module")
def original(prefix, small_folder):
    return Original(small_folder(FAMILIES[prefix]), prefix)


def seen(detector, images, asked):
    """Candidates of every image, with all queries, in one call."""
    names = list(dict.fromkeys(name for each in asked for name in each))
    assert detector.learn(names) == {}
    classes = [np.array([names.index(name) for name in each]) for each in asked]
    outputs = detector.run(stack([detector.preprocess(image) for image in images]), classes)
    return [detector.decode(outputs, k, image.shape[:2], classes[k], 0.0) for k, image in enumerate(images)]


ASKED = [["cat"], ["Cat", "dog", "wet dog"], ["st. dog", "b? cat", "wet"]]


@pytest.mark.parametrize("asked", ASKED, ids=["one", "three", "with stops inside"])
@pytest.mark.parametrize("image", [CHELSEA, COFFEE], ids=["chelsea", "coffee"])
def test_boxes_and_confidences_are_those_of_the_original(detector, original, image, asked):
    (found,) = seen(detector, [image], [asked])
    phrases = [f"a {name.lower()}" for name in asked]
    theirs, scores = original.read(original.outputs([image], written(phrases), (96, 160)), 0, image, phrases)
    assert len(found.scores) == scores.size
    np.testing.assert_allclose(found.scores.reshape(len(asked), -1), scores.T, atol=1e-3)
    boxes = found.boxes.reshape(len(asked), -1, 4)
    np.testing.assert_allclose(boxes, np.broadcast_to(theirs["boxes"], boxes.shape), atol=1)
    assert np.ptp(scores) > 0.05
    assert np.ptp(boxes[0], axis=0).min() > 5


def test_the_score_of_one_category_is_that_of_the_post_processing_unless_a_stop_is_better(detector, original):
    (found,) = seen(detector, [CHELSEA], [["cat"]])
    outputs = original.outputs([CHELSEA], "a cat.", (96, 160))
    theirs, _ = original.read(outputs, 0, CHELSEA, ["a cat"])
    better = outputs.logits[0].argmax(-1)
    ours = (better == 1) | (better == 2)
    assert (found.scores <= theirs["scores"].numpy() + 1e-4).all()
    np.testing.assert_allclose(found.scores[ours], theirs["scores"][ours], atol=1e-3)


def test_a_batch_of_different_texts_is_that_of_the_original(detector, original):
    asked = [["cat", "dog", "wet dog"], ["dog"]]
    phrases = [[f"a {name}" for name in each] for each in asked]
    outputs = original.outputs([CHELSEA, COFFEE], [written(each) for each in phrases], (96, 160))
    for row, (found, image) in enumerate(zip(seen(detector, [CHELSEA, COFFEE], asked), [CHELSEA, COFFEE], strict=True)):
        theirs, scores = original.read(outputs, row, image, phrases[row])
        np.testing.assert_allclose(found.scores.reshape(len(asked[row]), -1), scores.T, atol=1e-3)
        np.testing.assert_allclose(found.boxes[: len(scores)], theirs["boxes"], atol=1)


def test_images_of_one_batch_answer_as_alone(detector):
    images = [CHELSEA, COFFEE, CHELSEA[:40, :64], COFFEE[::2, 150:], COFFEE[:, ::-1]]
    asked = [["cat"], ["wet dog", "cat", "dog"], ["dog"], ["cat", "st. dog"], ["wet"]]
    for batch in (2, 5):
        together = seen(detector, images[:batch], asked[:batch])
        for k, other in enumerate(together):
            (one,) = seen(detector, images[k : k + 1], asked[k : k + 1])
            np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
            np.testing.assert_allclose(one.boxes, other.boxes, atol=1e-2)


def test_images_of_a_bucket_of_their_own_size_are_not_padded(detector, original):
    assert detector.preprocess(SQUARE)["image_mask"].all()
    (found,) = seen(detector, [SQUARE], [["cat"]])
    theirs, scores = original.read(original.outputs([SQUARE], "a cat.", (96, 96)), 0, SQUARE, ["a cat"])
    np.testing.assert_allclose(found.scores, scores[:, 0], atol=1e-3)
    np.testing.assert_allclose(found.boxes, theirs["boxes"], atol=1)


def test_pixels_are_those_of_the_original(detector, original):
    mine = detector.preprocess(CHELSEA)
    theirs = original.processor.image_processor(
        Image.fromarray(CHELSEA), return_tensors="np", pad_size={"height": 96, "width": 160}
    )
    np.testing.assert_allclose(mine["image"], theirs["pixel_values"][0], atol=1e-5)
    assert (mine["image_mask"] == theirs["pixel_mask"][0]).all()


def test_tokens_and_masks_are_those_of_the_original(detector, original):
    for asked in ASKED:
        detector.learn(asked)
        phrases = [detector.learned[place] for place in range(len(asked))]
        tokens = np.concatenate([[101], *(phrase.tokens for phrase in phrases), [102]])
        theirs = original.tokenizer(written([f"a {name.lower()}" for name in asked]), return_tensors="pt")["input_ids"]
        assert tokens.tolist() == theirs[0].tolist()
        mask, positions = generate_masks_with_special_tokens_and_transfer_map(
            theirs, torch.tensor([101, 102, 1012, 1029])
        )
        for mine, wanted in zip(blocks(tokens, [101, 102, 1012, 1029]), (mask, positions), strict=True):
            np.testing.assert_array_equal(mine, wanted[0])


def test_more_categories_than_a_text_holds_are_asked_in_several(detector):
    names = ["cat", "dog", "wet dog", "wet cat", "st dog"]
    detector.learn(names)
    classes = np.array([4, 0, 3, 1, 2])
    groups = detector.split(classes)
    assert [group.tolist() for group in groups] == [[0, 1, 2, 3], [4]]  # 4 + 3 + 4 + 3 and 4 of 14 tokens
    outputs = detector.run(stack([detector.preprocess(CHELSEA)]), [classes[groups[0]]])
    apart = detector.decode(outputs, 0, CHELSEA.shape[:2], classes[groups[0]], 0.0)
    (alone,) = seen(detector, [CHELSEA], [["st dog", "cat", "wet cat", "dog"]])
    np.testing.assert_array_equal(apart.scores, alone.scores)


def test_a_category_is_encoded_once_and_one_that_cannot_be_is_told_by_place(detector):
    detector.learn(["heron", "stork"])
    before = detector.learned.encoded
    faults = detector.learn(["stork", "", "...?", None, "heron", "abcdefghijklmno"])
    assert detector.learned.encoded == before
    assert list(faults) == [1, 2, 3, 5]
    assert faults[2] == "the category '...?' has no words for the model to read"
    assert faults[5].startswith("the category 'abcdefghijklmno' has 17 tokens with its prompt; the model reads 14")


def test_the_graphs_share_their_weights(detector):
    bundle = detector.session.model.parent
    weights = (bundle / "image.weights").stat().st_size
    graphs = [file.stat().st_size for file in bundle.glob("image-*.onnx")]
    assert len(graphs) == len(BUCKETS)
    assert 4 * max(graphs) < weights < 2_000_000  # of the weights of one graph there are 1.85 MB


def test_the_greatest_attention_is_that_of_an_image_and_head_and_only_meanwhile():
    attention = torch.rand(4, 3, 5, generator=torch.Generator().manual_seed(0))
    with maxima_of_rows():
        assert torch.equal(attention.max(), attention.amax((1, 2), keepdim=True))
        assert torch.equal(attention.max(dim=1).values, attention.amax(1))
    assert torch.equal(attention.max(), attention.amax())
