"""A small residual dense network that doubles the sides of a photograph, as published for UpscalerJS."""

from __future__ import annotations

from tallymill.exporters.recipes.base import LayersRecipe, PackageFile

RECIPE = LayersRecipe(
    name="upscaler-2x",
    package="@upscalerjs/default-model",
    version="1.0.0",
    licence="MIT",
    files=(
        PackageFile("models/model.json", "8efb488c2caed0196a6163e3f06798f9245e92623ffd50654a26c372e09150ea"),
        PackageFile("models/group1-shard1of1.bin", "5cb464ae4d390ce0a771afd5feaf60fbfcdb18ab48a56db98cdf6b88202369de"),
    ),
    model_json="models/model.json",
    inputs=(),
    outputs=(),
    input_name="image",
    output_name="enlarged",
)
