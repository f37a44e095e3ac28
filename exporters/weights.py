"""Published weights, by Hugging Face id or from a folder that somebody brought."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from tallymill.errors import ModelError
from tallymill.exporters.hub import sha256

T = TypeVar("T")
# Buffers of a model that no weights need to have: a count of training, and constants that transformers makes of the
# config (each point of deformable sampling has one divided by the number of points of its level).
_COMPUTED = ("num_batches_tracked", "n_points_scale", "num_points_scale")
# What config.json calls the models that are exported from a folder. transformers loads a model of one kind from the
# weights of another as well as it can, or fails in it somewhere.
_TYPES = frozenset(
    {"deformable_detr", "d_fine", "grounding-dino", "mm-grounding-dino", "owlv2", "owlvit", "rf_detr", "rt_detr"}
    | {"rt_detr_v2", "sam3", "sam3_video", "swin2sr"}
)
_WEIGHTS = ("*.safetensors", "*.bin", "*.pth", "*.pt", "*.onnx")
_TOKENIZERS = ({"tokenizer.json"}, {"vocab.json", "merges.txt"}, {"vocab.txt"})
_COMPLETE = "a folder is complete as `hf download ID --local-dir FOLDER` makes it"
_BESIDE = ("*.json", "vocab.txt", "merges.txt")


def from_pretrained(load: Callable[..., T], weights: str | Path, **options: Any) -> T:
    """Call ``load``, a ``from_pretrained`` of transformers. Raises ``ModelError`` that says how to bring a folder."""
    local = is_local(weights)
    try:
        return load(str(weights), local_files_only=local, **options)
    # Not found, no network, not such a model, a file that is cut short, a package that it needs: said in words. A value
    # that it did not expect in one of the JSON files can be any error, whose words mean little without its kind.
    except Exception as exc:
        reason = str(exc).strip().partition("\n")[0]
        if not isinstance(exc, OSError | ValueError | RuntimeError | ImportError) or not reason:
            reason = f"{type(exc).__name__}: {reason}"
    if local:
        raise ModelError(f"{weights}: transformers cannot load it: {reason}", hint=_COMPLETE)
    raise ModelError(
        f"there is no folder {str(weights)!r}, and as an id it cannot be had from Hugging Face: {reason}",
        hint=f"where it can be reached: hf download {weights} --local-dir FOLDER; then --weights FOLDER",
    )


def tokenizer_from(weights: str | Path) -> Any:
    """The tokenizer beside weights. Raises ``ModelError``, where its files are absent too: transformers makes an empty
    one then.
    """
    if is_local(weights):
        there = {each.name for each in Path(weights).iterdir()}
        if not any(files <= there for files in _TOKENIZERS):
            raise ModelError(
                f"{weights}: no tokenizer in it: tokenizer.json, or vocab.json and merges.txt", hint=_COMPLETE
            )
    return from_pretrained(importlib.import_module("transformers").AutoTokenizer.from_pretrained, weights)


def model_from(kind: Any, weights: str | Path) -> Any:
    """A model of transformers, for inference, with every one of its weights from ``weights``, those that training does
    not learn (means and variances of a batch norm) among them.

    transformers itself makes up what is missing, at random or as a layer has it before it is trained, and says so in
    its log alone. Raises ``ModelError``, for the weights of a model of another kind too.
    """
    _require_folder(weights)
    _require_type(kind, weights)
    model, told = from_pretrained(kind.from_pretrained, weights, output_loading_info=True)
    needed = {name for name in model.state_dict() if name.rpartition(".")[2] not in _COMPUTED}
    missing = sorted(needed & set(told["missing_keys"]))
    other = sorted(map(str, told["mismatched_keys"]))
    for what, keys in (("lack", missing), ("have another shape of", other)):
        if keys:
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            raise ModelError(
                f"{weights}: these weights {what} {keys[0]}{more}, which {type(model).__name__} has",
                hint="they may be those of another model, or a part of them",
            )
    return model.float().eval()


def _require_folder(weights: str | Path) -> None:
    """transformers takes its defaults where there is no config, and names another file where it is given one."""
    if not is_local(weights):
        return
    if Path(weights).is_file():
        raise ModelError(f"{weights}: is a file; name the folder in which it lies, with config.json", hint=_COMPLETE)
    if not (Path(weights) / "config.json").is_file():
        raise ModelError(f"{weights}: no config.json in it", hint=_COMPLETE)


def _require_type(kind: Any, weights: str | Path) -> None:
    """``kind`` is a class of transformers; one of their automatic classes takes what its caller looks at."""
    if getattr(kind, "config_class", None) is None:
        return
    wanted, found = kind.config_class.model_type, _type_of(weights)
    # SAM 3 is published within its tracker, from which transformers takes it.
    if found in _TYPES and found.removesuffix("_video") != wanted:
        raise ModelError(
            f"{weights}: config.json: model_type = {found!r}; wanted {wanted!r}",
            hint="these are the weights of another model than the one that was named",
        )


def _type_of(weights: str | Path) -> Any:
    config = importlib.import_module("transformers").PreTrainedConfig.get_config_dict
    values, _ = from_pretrained(config, weights)
    return values.get("model_type")


def is_local(weights: str | Path) -> bool:
    """Whether it is a folder or a file rather than an id. Raises ``ModelError`` for a path where there is neither."""
    text = str(weights)
    if text and Path(weights).exists():
        return True
    if isinstance(weights, Path) or text.startswith((".", "/", "~")) or text.count("/") != 1:
        hint = "wanted a folder with config.json and the weights, or an id of Hugging Face, which is OWNER/NAME"
        raise ModelError(f"{text!r}: no such folder or file", hint=hint)
    return False


@dataclass(frozen=True, slots=True)
class Origin:
    """What weights were read from: the SHA-256 of each file, by its name, and of a model of Hugging Face its revision.

    ``files`` has the weights and what transformers reads beside them: config, image processor, tokenizer.
    """

    name: str
    revision: str | None
    files: Mapping[str, str]

    @property
    def sha256(self) -> str | None:
        """SHA-256 over the names and contents of all files; None where none could be had."""
        lines = "".join(f"{name} {digest}\n" for name, digest in sorted(self.files.items()))
        return hashlib.sha256(lines.encode()).hexdigest() if lines else None

    def unlike(self, other: Origin) -> str | None:
        """What tells it from another in words, or None. Of an id there are only those files that transformers fetched,
        so that others may be absent.
        """
        if not (self.files and other.files):
            return None
        for name in sorted(self.files.keys() & other.files.keys()):
            if self.files[name] != other.files[name]:
                return f"the SHA-256 of {name} differs"
        weights, others = (set(filter(_is_weights, each.files)) for each in (self, other))
        apart = sorted(weights ^ others)
        if apart and (self.revision is other.revision is None or not weights & others):
            return f"{apart[0]} is only in one of them"
        return None


def origin(weights: str | Path) -> Origin:
    """The files of a folder, or the one file, or those of an id where Hugging Face's cache has them: after loading."""
    if not is_local(weights):
        snapshot = _snapshot(str(weights))
        return Origin(str(weights), None if snapshot is None else snapshot.name, _hashes(snapshot))
    path = Path(weights)
    if path.is_file():
        return Origin(path.resolve().name, None, {path.name: sha256(path)})
    return Origin(path.resolve().name, None, _hashes(path))


def _snapshot(name: str) -> Path | None:
    """The folder of the cache from which transformers reads an id."""
    if find_spec("huggingface_hub") is None:
        return None
    config = importlib.import_module("huggingface_hub").try_to_load_from_cache(name, "config.json")
    return Path(config).parent if isinstance(config, str) else None


def _is_weights(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _WEIGHTS)


def _hashes(folder: Path | None) -> dict[str, str]:
    files = {} if folder is None else {each.name: each for each in folder.iterdir() if each.is_file()}
    read = [name for name in sorted(files) if any(fnmatch(name, pattern) for pattern in (*_WEIGHTS, *_BESIDE))]
    return {name: sha256(files[name]) for name in read}
