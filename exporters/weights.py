"""Published weights, by Hugging Face id or from a folder that somebody brought."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tallymill.errors import ModelError

T = TypeVar("T")
# Buffers of a model that no weights need to have: a count of training, and constants that transformers makes of the
# config (each point of deformable sampling has one divided by the number of points of its level).
_COMPUTED = ("num_batches_tracked", "n_points_scale", "num_points_scale")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pth", "*.pt", "*.onnx")


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
        raise ModelError(f"{weights}: transformers cannot load it: {reason}", hint="see `tallymill export --help`")
    raise ModelError(
        f"the weights {weights!r} cannot be had from Hugging Face: {reason}",
        hint=f"where it can be reached: hf download {weights} --local-dir FOLDER; then --weights FOLDER",
    )


def model_from(kind: Any, weights: str | Path) -> Any:
    """A model of transformers, for inference, with every one of its weights from ``weights``, those that training does
    not learn (means and variances of a batch norm) among them.

    transformers itself makes up what is missing, at random or as a layer has it before it is trained, and says so in
    its log alone. Raises ``ModelError``.
    """
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


def is_local(weights: str | Path) -> bool:
    """Whether it is a folder or a file rather than an id. Raises ``ModelError`` for a path where there is neither."""
    if Path(weights).exists():
        return True
    if isinstance(weights, Path) or str(weights).startswith((".", "/", "~")) or str(weights).count("/") > 1:
        raise ModelError(f"{weights}: no such folder or file", hint="a folder with config.json and the weights")
    return False


def digest(weights: str | Path) -> str | None:
    """SHA-256 over the names and contents of a folder's weight files, or of one file's; None for an id, whose files
    are not ours.
    """
    if not is_local(weights):
        return None
    path = Path(weights)
    files = [path] if path.is_file() else sorted(each for pattern in _WEIGHTS for each in path.glob(pattern))
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            whole.update(f"{file.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()
