"""Lets torchvision be imported where its compiled operators do not load.

The wheel of torchvision on PyPI is built against the CUDA libraries, which the CPU build of torch does not bring. Its
operators are then missing, and the import stops where it describes one of them: `operator torchvision::nms does not
exist`. Here the two that it describes are declared, without an implementation, just before torchvision is imported.
vLLM uses torchvision to resize images, and none of its own operators.

`.ci/install-vllm` puts this file into the environment, with a .pth file that imports it at every start of Python.
"""

import sys
from importlib.abc import MetaPathFinder

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _Declares(MetaPathFinder):
    """Finds nothing; it is told when torchvision is about to be imported."""

    library = None  # a library that is forgotten takes its declarations with it

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002
        if name == "torchvision":
            sys.meta_path.remove(self)
            from torch.library import Library

            _Declares.library = Library("torchvision", "DEF")
            for schema in _SCHEMAS:
                self.library.define(schema)


sys.meta_path.insert(0, _Declares())
