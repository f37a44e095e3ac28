"""A bundle is one exported model in a folder: its graphs, a tokenizer where it reads text, and what they are.

``bundle.json`` names every file with its SHA-256, the family of detectors that can read the model, the numbers that the
family needs (input size, normalisation, labels …), where the weights came from, the versions that made the graphs, and
what the acceptance gate found.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from tallymill.engine.sessions.base import Session, stamp
from tallymill.errors import ModelError

MANIFEST = "bundle.json"
# Bundles of 1 are refused: their graphs of Grounding DINO may answer by what else is in a batch, and their own SHA-256
# was compared with nothing.
FORMAT = 2
CARD_ONLY = frozenset({"tensorrt", "tensorrt_rtx"})  # runtimes that have nothing to run on without a card
# Of ``bundle.json``: what its hash is of.
_SHAPING = ("family", "runtime", "precision", "parts", "engines", "tokenizer", "files", "numbers")
_EXPORT_ANEW = "export it anew (tallymill export)"
# Numbers of any family that count something there has to be; all others may be 0, such as the id of a token.
_COUNTS = frozenset(
    {"side", "height", "width", "shortest", "longest", "tokens", "phrase", "queries", "top", "scale", "buckets"}
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle whose files have been checked.

    ``parts`` maps a part, such as ``vision``, to its file; ``numbers`` is what the family's detector reads with
    :meth:`read`; ``tokenizer`` is the file of the tokenizer, or None; ``sha256`` is that of everything in the bundle.
    ``engines`` maps the parts of a bundle for TensorRT to batch sizes and their files. ``device`` ("cpu", "cuda:0") is
    where its parts are opened; a bundle has been loaded for the CPU until :meth:`on` says otherwise.
    ``stamps`` are of its files when they were checked: parts may be opened later, when an image needs them.
    ``accepted`` says where it was last run beside its original and answered alike, ``refused`` where it did not.
    ``ungated`` says why it has not passed the gate, or is None.
    """

    folder: Path
    name: str
    family: str
    runtime: str
    precision: str
    parts: Mapping[str, str]
    numbers: Mapping[str, Any]
    tokenizer: Path | None
    sha256: str
    engines: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    device: str = "cpu"
    stamps: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    accepted: Mapping[str, Any] | None = None
    refused: Mapping[str, Any] | None = None
    ungated: str | None = None

    def on(self, device: str) -> Bundle:
        """The same bundle with its parts on another device."""
        return replace(self, device=device)

    @property
    def batch(self) -> int | None:
        """The rows of its largest engines; None for a runtime that takes batches of any size."""
        return max((size for files in self.engines.values() for size in files), default=None)

    def session(self, part: str, *, threads: int = 1, batch: int | None = None) -> Session:
        """Open one part on the bundle's device. ``batch`` is how many rows a run usually has, where that is known: of
        several engines, the session uses the one for it (see ``TensorRtSession``).

        Raises ``ModelError`` when the bundle has no such part, when it cannot be loaded, or when its runtime cannot use
        the device: there is no other device to fall back to.
        """
        if part not in self.parts:
            raise self.error(f"has no part {part!r}, only {', '.join(self.parts)}")
        if self.changed is not None:
            raise ModelError(
                f"{self.changed}: has been changed since it was checked",
                hint="the model was exported anew meanwhile: start again",
            )
        if self.runtime in CARD_ONLY:
            return self._engines_of(part, batch)
        if self.runtime == "torch":
            from tallymill.engine.sessions.pytorch import TorchSession

            return TorchSession(self.folder / self.parts[part], threads=threads, device=self.device)
        if self.runtime != "onnx":
            raise self.error(f"was exported for the runtime {self.runtime!r}, which this version does not have")
        from tallymill.engine.sessions.ort import OnnxRuntimeSession

        return OnnxRuntimeSession(self.folder / self.parts[part], threads=threads, device=self.device)

    @property
    def changed(self) -> Path | None:
        """A file that is not the one that was checked, if there is one."""
        files = ((self.folder / name, checked) for name, checked in self.stamps.items())
        return next((file for file, checked in files if not file.exists() or stamp(file.stat()) != checked), None)

    def _engines_of(self, part: str, batch: int | None) -> Session:
        if self.device == "cpu":
            raise ModelError(
                f"{self.folder}: engines of TensorRT run on an NVIDIA card, not on the device 'cpu'",
                hint="give --device cuda; for the CPU, export the model --to onnx",
            )
        from tallymill.engine.sessions.trt import TensorRtSession

        files = {batch: self.folder / file for batch, file in self.engines[part].items()}
        return TensorRtSession(files, module=self.runtime, device=self.device, batch=batch)

    def read(self, kind: type[T]) -> T:
        """The family's numbers as a dataclass. Raises ``ModelError`` naming what is missing or of the wrong type."""
        hints = get_type_hints(kind)
        names = [each.name for each in fields(kind)]  # type: ignore[arg-type]
        if missing := [name for name in names if name not in self.numbers]:
            raise self.error(f"its numbers lack {', '.join(missing)}")
        return kind(**{name: self._typed(name, self.numbers[name], hints[name]) for name in names})

    def _typed(self, name: str, value: Any, hint: Any) -> Any:
        if get_origin(hint) in (UnionType, Union):
            if value is None and NoneType in get_args(hint):
                return None
            hint = next(each for each in get_args(hint) if each is not NoneType)
        if get_origin(hint) is tuple and isinstance(value, list):
            inner = get_args(hint)
            each = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
            if len(each) == len(value):
                return tuple(self._typed(name, v, h) for v, h in zip(value, each, strict=True))
        if hint is float and type(value) in (int, float):
            return float(value)
        if hint is int and type(value) is int:
            if not (name in _COUNTS) <= value < 2**31:
                raise self.error(f"numbers.{name} = {value} cannot be")
            return value
        if hint in (str, bool) and type(value) is hint:
            return value
        raise self.error(f"numbers.{name} = {value!r} is not {getattr(hint, '__name__', hint)}")

    def error(self, message: str) -> ModelError:
        """A ``ModelError`` that names the bundle."""
        return ModelError(f"{self.folder}: {message}", hint=_EXPORT_ANEW)


def is_bundle(folder: Path) -> bool:
    """Whether a path is the folder of a bundle."""
    return (folder / MANIFEST).is_file()


_checked: dict[tuple[Path, bytes], Bundle] = {}


def load_bundle(folder: str | Path, *, gated: bool = True) -> Bundle:
    """Read a bundle and check every file against its SHA-256, once in a process.

    Raises ``ModelError`` naming the file that is absent, damaged, or of another format, and for a bundle that has not
    passed the gate, unless that is not asked for (``gated``): the gate itself needs one.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except OSError as exc:
        raise ModelError(f"{path}: {exc.strerror or exc}", hint=_EXPORT_ANEW) from None
    known = _checked.get((folder, content))
    if known is None or known.changed is not None:
        known = _checked[folder, content] = _parse(folder, content)
    if gated and known.ungated is not None:
        raise ModelError(f"{path}: it has not passed the gate: {known.ungated}", hint=_EXPORT_ANEW)
    return known


def _parse(folder: Path, content: bytes) -> Bundle:
    path = folder / MANIFEST
    try:
        values = json.loads(content)
        form = values["format"]
        if form != FORMAT:
            raise ModelError(f"{path}: format {form!r}, this version reads {FORMAT}", hint=_EXPORT_ANEW)
        sha256 = digest_of(values)
        if values["sha256"] != sha256:
            raise ModelError(f"{path}: is not what was exported (its SHA-256 differs)", hint=_EXPORT_ANEW)
        for key in ("name", "family", "runtime", "precision"):
            if not isinstance(values[key], str):
                raise ValueError(f"{key} = {values[key]!r}")
        stamps = _check_files(folder, values["files"])
        _require_listed(path, values)
        return Bundle(
            folder=folder,
            name=values["name"],
            family=values["family"],
            runtime=values["runtime"],
            precision=values["precision"],
            parts=dict(values["parts"]),
            numbers=dict(values["numbers"]),
            tokenizer=None if values["tokenizer"] is None else folder / values["tokenizer"],
            sha256=sha256,
            engines={
                part: {int(batch): str(file) for batch, file in files.items()}
                for part, files in values.get("engines", {}).items()
            },
            stamps=stamps,
            accepted=None if values.get("accepted") is None else dict(values["accepted"]),
            refused=None if values.get("refused") is None else dict(values["refused"]),
            ungated=_ungated(values.get("gate")),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ModelError(f"{path}: not a bundle of tallymill: {exc!r}", hint=_EXPORT_ANEW) from None


def digest_of(values: Mapping[str, Any]) -> str:
    """SHA-256 over what shapes a bundle's answers, of ``bundle.json``: its files' hashes, which is which, numbers.

    What was found of it (``gate``, ``accepted``) changes no answer, and is no part of it.
    """
    shaping = json.loads(json.dumps({name: values.get(name) for name in _SHAPING}))  # as it is when it is read
    return hashlib.sha256(json.dumps(shaping, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _ungated(findings: Any) -> str | None:
    """What is wrong with ``gate`` of ``bundle.json``, a list of what the gate found; None if nothing is."""
    if not findings:
        return "nothing was compared"
    for each in findings:
        difference = each["difference"]  # None where it was no number
        if difference is None or not (each["compared"] > 0 and difference <= each["tolerance"]):
            return f"{each['part']}, {each['check']}: {each['output']}"
    return None


def _require_listed(path: Path, values: Mapping[str, Any]) -> None:
    """Every file that is opened is one that is checked."""
    named = [*values["parts"].values(), *(values["tokenizer"],) * (values["tokenizer"] is not None)]
    for engines in values.get("engines", {}).values():
        named += engines.values()
    for name in named:
        if name not in values["files"]:
            raise ModelError(f"{path}: {name!r} is not among its files", hint=_EXPORT_ANEW)


def _check_files(folder: Path, files: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """Stamps of the files, by which a later change of one is seen (see ``Bundle.session``)."""
    stamps = {}
    for name, expected in files.items():
        file = folder / name
        if Path(name).name != name:
            raise ModelError(f"{folder / MANIFEST}: {name!r} is not the name of a file beside it", hint=_EXPORT_ANEW)
        try:
            with file.open("rb") as stream:
                stamps[name] = stamp(os.fstat(stream.fileno()))
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as exc:
            raise ModelError(f"{file}: {exc.strerror or exc}", hint=_EXPORT_ANEW) from None
        if found != expected:
            raise ModelError(f"{file}: is not the file that was exported (its SHA-256 differs)", hint=_EXPORT_ANEW)
    return stamps
