"""Makes a folder with a vision-language model that is tiny and answers with one digit.

Usage: python bench/tiny_vlm.py FOLDER      (with torch and transformers, as in the environment of vLLM)

The architecture is Qwen2.5-VL's, so that a server treats it as it treats a real one: image processor, image tokens,
chat template. The weights are random but for the two ends: the output layer knows ten digits and the end of a message,
and every digit's embedding points to where that end lies. So the first token is a digit, which depends on image and
question, and the second ends the answer.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

END, PAD = "<|im_end|>", "<|endoftext|>"
IMAGE = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
SPECIAL = [PAD, "<|im_start|>", END, *IMAGE, "<|vision_pad|>", "<|video_pad|>"]
TEXT = (
    "Answer the following counting question about this image. Carefully distinguish visual appearances from physical "
    "entities, including appearances formed by reflections or seen through glass, and use appearance-entity "
    "correspondences when required by the question. Follow the counting target specified in the question. Return "
    "exactly one non-negative integer, with no labels or prose. JSON array of integers, in order. user assistant "
    "Question: How many are there in the mirror, directly visible, of the same physical object?"
)
WIDTH, PATCH, MOST_TOKENS = 64, 14, 256
PIXELS = {"min_pixels": 56 * 56, "max_pixels": (2 * PATCH) ** 2 * MOST_TOKENS}

# One message after another; an image stands where it was put, as three tokens.
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}" + "".join(IMAGE) + "{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make(folder: Path) -> None:
    """Write the model, its tokenizer and the settings of its image processor."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer()
    model = _model(tokenizer)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    vision = {"patch_size": PATCH, "merge_size": 2, "temporal_patch_size": 2, **PIXELS}
    size = {"shortest_edge": PIXELS["min_pixels"], "longest_edge": PIXELS["max_pixels"]}
    names = {"processor_class": "Qwen2_5_VLProcessor"}
    _write(
        folder / "preprocessor_config.json",
        {"image_processor_type": "Qwen2VLImageProcessor", **names, **vision, "size": size},
    )
    _write(
        folder / "video_preprocessor_config.json",
        {"video_processor_type": "Qwen2VLVideoProcessor", **names, **vision, "size": size},
    )
    end, pad = tokenizer.convert_tokens_to_ids([END, PAD])
    _write(folder / "generation_config.json", {"eos_token_id": [end], "pad_token_id": pad, "do_sample": False})


def _tokenizer() -> PreTrainedTokenizerFast:
    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    plain.train_from_iterator(
        [TEXT] * 10, trainers.BpeTrainer(vocab_size=800, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[name for name in SPECIAL if name not in (END, PAD)],
        model_max_length=4096,
        chat_template=TEMPLATE,
    )


def _model(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLForConditionalGeneration:
    ids: dict[str, int] = tokenizer.get_vocab()
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "mrope_section": [4, 6, 6], "rope_theta": 10_000.0},
        "bos_token_id": ids[PAD],
        "eos_token_id": ids[END],
    }
    vision = {
        "depth": 2,
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_heads": 2,
        "out_hidden_size": WIDTH,
        "patch_size": PATCH,
        "window_size": 8 * PATCH,
        "fullatt_block_indexes": [1],
    }
    tokens = {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **tokens)
    )
    with torch.no_grad():
        _answer_with_a_digit(model, [ids[str(digit)] for digit in range(10)], ids[END])
    return model.to(torch.bfloat16)


def _answer_with_a_digit(model: Qwen2_5_VLForConditionalGeneration, digits: list[int], end: int) -> None:
    for name, weight in model.named_parameters():
        if "self_attn" in name or "mlp" in name:  # the usual start is so small that the last token alone would decide
            weight.mul_(10)
    for layer in model.model.language_model.layers:  # so the first number of a state is that of its own token
        layer.self_attn.o_proj.weight[0] = 0
        layer.mlp.down_proj.weight[0] = 0
    embedding = model.get_input_embeddings().weight
    embedding[:, 0] = 0
    embedding[digits, 0] = 50.0
    output = model.get_output_embeddings().weight
    output.zero_()
    output[end, 0] = 50.0
    half = 4 * torch.randn(len(digits) // 2, WIDTH - 1)  # sharp, for servers that sample
    output[digits, 1:] = torch.cat([half, -half])  # one of them is always above 0, where every other token is


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
