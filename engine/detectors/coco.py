"""The 80 COCO classes as the shipped detectors order them, and what else people call them."""

from __future__ import annotations

_NAMES = """
    person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign,
    parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella,
    handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove,
    skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple,
    sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining
    table, toilet, tv, laptop, mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink,
    refrigerator, book, clock, vase, scissors, teddy bear, hair drier, toothbrush
"""
COCO_80: tuple[str, ...] = tuple(" ".join(name.split()) for name in _NAMES.split(","))

# The 91-entry numbering of the annotation files skips these ids.
_UNUSED_IDS = frozenset({12, 26, 29, 30, 45, 66, 68, 69, 71, 83})
COCO_IDS: tuple[int, ...] = tuple(i for i in range(1, 91) if i not in _UNUSED_IDS)

# Only names that mean the same thing. "man" is a person but not every person is a man, so it is not here.
COCO_SYNONYMS: dict[str, str] = {
    "people": "person",
    "human": "person",
    "bike": "bicycle",
    "motorbike": "motorcycle",
    "aeroplane": "airplane",
    "plane": "airplane",
    "fireplug": "fire hydrant",
    "rucksack": "backpack",
    "necktie": "tie",
    "ski": "skis",
    "head of broccoli": "broccoli",
    "doughnut": "donut",
    "hotdog": "hot dog",
    "sofa": "couch",
    "houseplant": "potted plant",
    "television": "tv",
    "television set": "tv",
    "laptop computer": "laptop",
    "computer mouse": "mouse",
    "remote control": "remote",
    "computer keyboard": "keyboard",
    "cellphone": "cell phone",
    "mobile phone": "cell phone",
    "cellular telephone": "cell phone",
    "microwave oven": "microwave",
    "fridge": "refrigerator",
    "scissor": "scissors",
    "pair of scissors": "scissors",
    "teddy": "teddy bear",
    "hair dryer": "hair drier",
    "hairdryer": "hair drier",
    "blow dryer": "hair drier",
    "tooth brush": "toothbrush",
}
