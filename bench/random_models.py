"""Folders of weights that transformers can load, with random numbers in models of published or small sizes.

They stand in for published weights where those cannot be had: speeds and exports depend on shapes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

# Families of ours, and how their classes in transformers begin.
OWL = {"owlvit": "OwlViT", "owlv2": "Owlv2"}


def make_folder(family: str, folder: Path, *, small: bool = False) -> Path:
    """Write a model of a family, its tokenizer and its image processor; with ``small`` of 32 dimensions."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    makers: Mapping[str, Callable[[str, Path, bool], None]] = {
        "owlvit": _owl,
        "owlv2": _owl,
        "grounding_dino": _grounding_dino,
    }
    makers[family](family, folder, small)
    return folder


def _owl(family: str, folder: Path, small: bool) -> None:
    prefix = OWL[family]
    config, model, processor = (
        getattr(transformers, prefix + name) for name in ("Config", "ForObjectDetection", "ImageProcessor")
    )
    tokenizer = clip_tokenizer()
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if small:
        tower = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        text = {**tower, **ids, "vocab_size": len(tokenizer), "max_position_embeddings": 16}
        vision = {**tower, "image_size": 64, "patch_size": 16}
        made = stirred(model(config(text_config=text, vision_config=vision, projection_dim=32)))
        images = processor(size={"height": 64, "width": 64})
    else:
        made, images = model(config(text_config=ids)).eval(), processor()
        # They begin with a deviation of 1, which makes logits of hundreds of 768 inputs: all or nothing, and no
        # measure of bfloat16. Weights that were learned are not like that.
        for layer in (made.box_head.dense0, made.box_head.dense1, made.class_head.logit_scale):
            layer.weight.data *= layer.in_features**-0.5
    # Random heads put every box into a corner, and every score at 0 or 1; these keep them where a fault shows.
    for head in (made.box_head.dense2, made.class_head.logit_shift):
        head.weight.data *= 0.02
        head.bias.data *= 0.02
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    images.save_pretrained(folder)


def _grounding_dino(_family: str, folder: Path, small: bool) -> None:
    """Of the size of grounding-dino-tiny, with Swin-T and BERT base."""
    if small:
        raise ValueError("a Grounding DINO of the published size only")
    swin = {"embed_dim": 96, "depths": [2, 2, 6, 2], "num_heads": [3, 6, 12, 24], "window_size": 7, "image_size": 224}
    config = transformers.GroundingDinoConfig(
        backbone_config=transformers.SwinConfig(**swin, out_indices=[2, 3, 4]), text_config=transformers.BertConfig()
    )
    # The noise keeps proposals apart, of which the model starts from the best.
    stirred(transformers.GroundingDinoForObjectDetection(config), 0.01).save_pretrained(folder)
    bert_tokenizer().save_pretrained(folder)
    transformers.GroundingDinoImageProcessor().save_pretrained(folder)


def bert_tokenizer() -> Any:
    """Letters, some words, and the tokens that close a phrase where Grounding DINO looks for them."""
    fixed = {0: "[PAD]", 100: "[UNK]", 101: "[CLS]", 102: "[SEP]", 103: "[MASK]", 1012: ".", 1029: "?"}
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = iter([*letters, *(f"##{letter}" for letter in letters), "cat", "dog", "wet", "st", "-", "'"])
    names = [fixed.get(place) or (next(pieces, None) if place > 500 else None) for place in range(1100)]
    vocab = {piece or f"[unused{place}]": place for place, piece in enumerate(names)}
    return transformers.BertTokenizerFast(vocab=vocab)


def clip_tokenizer() -> Any:
    """A byte-pair tokenizer whose pieces are letters and a few words; its last token ends a text."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["!", *letters, *(f"{letter}</w>" for letter in letters), "ca", "cat</w>", "do", "dog</w>", "of</w>"]
    vocab = {piece: place for place, piece in enumerate([*pieces, "<|startoftext|>", "<|endoftext|>"])}
    merges = [("c", "a"), ("ca", "t</w>"), ("d", "o"), ("do", "g</w>"), ("o", "f</w>")]
    return transformers.CLIPTokenizer(vocab=vocab, merges=merges, pad_token="!", model_max_length=16)


def stirred(model: Any, scale: float = 0.03) -> Any:
    """The same model with noise on every weight, so that no two answers are near a tie."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for value in model.parameters():
            value.data += scale * torch.randn(value.shape, generator=generator)
    return model.eval()
