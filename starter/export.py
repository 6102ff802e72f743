"""Write a checkpoint as GGUF: ``python -m starter.export CHECKPOINT TOKENIZER OUT``.

Matrices become Q8_0, norms stay F32; the output head shares the embedding's tensor. Rope
turns neighbouring elements here and in llama.cpp's ``llama`` alike, so nothing is permuted.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import gguf
import numpy as np

from starter.format import CONTEXT, END, END_OF_TEXT, START, TEMPLATE, Shape

_DESCRIPTION = (
    "Very small, trained from scratch for first steps with Jalopy: "
    "capitals, simple sums, and the program itself."
)

_TEMPERATURE = 0.2
"""Temperature that the file recommends; a model this small is right at once or never."""


def main() -> None:
    """Convert a checkpoint."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", choices=("Q8_0", "F32"), default="Q8_0", help="of the matrices")
    options = parser.parse_args()
    import torch

    state = torch.load(options.checkpoint, map_location="cpu", weights_only=True)
    weights = {name: tensor.float().numpy() for name, tensor in state["model"].items()}
    export(Shape(**state["shape"]), weights, options.tokenizer, options.out, options.type)
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.1f} MB")


def export(
    shape: Shape, weights: dict[str, np.ndarray], tokenizer: Path, out: Path, matrix_type: str
) -> None:
    """Write the file, as a whole or not at all.

    Args:
        shape: the model's sizes.
        weights: by the names in ``starter.model``, float32.
        tokenizer: a tokenizer.json of the same vocabulary.
        out: the GGUF file.
        matrix_type: "Q8_0" or "F32".
    """
    beside = out.with_name(out.name + ".new")
    writer = gguf.GGUFWriter(beside, "llama")
    _write_sizes(writer, shape, sum(w.size for w in weights.values()), matrix_type)
    _write_vocabulary(writer, tokenizer)
    for name, values in weights.items():
        target = name
        if "." not in name or not name.endswith("weight"):
            target = f"{name}.weight"
        if values.ndim == 2 and matrix_type == "Q8_0":
            packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(target, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(target, np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(beside, out)


def _write_sizes(writer: gguf.GGUFWriter, shape: Shape, count: int, matrix_type: str) -> None:
    writer.add_name("starter")
    writer.add_description(_DESCRIPTION)
    writer.add_license("mit")
    writer.add_author("The Jalopy founders")
    writer.add_size_label(f"{count / 1e6:.1f}M")
    writer.add_languages(["en"])
    file_type = gguf.LlamaFileType.ALL_F32
    if matrix_type == "Q8_0":
        file_type = gguf.LlamaFileType.MOSTLY_Q8_0
    writer.add_file_type(file_type)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_float32("general.sampling.temp", _TEMPERATURE)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_vocab_size(shape.vocabulary)


def _write_vocabulary(writer: gguf.GGUFWriter, tokenizer: Path) -> None:
    model = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]
    ids: dict[str, int] = model["vocab"]
    special = {END_OF_TEXT, START, END}
    texts = sorted(ids, key=ids.__getitem__)
    if [ids[text] for text in texts] != list(range(len(texts))):
        raise SystemExit(f"{tokenizer}: the ids have gaps (train the vocabulary again)")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(texts)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if text in special else gguf.TokenType.NORMAL for text in texts]
    )
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    )
    writer.add_bos_token_id(ids[END_OF_TEXT])
    writer.add_eos_token_id(ids[END])
    writer.add_eot_token_id(ids[END])
    writer.add_pad_token_id(ids[END_OF_TEXT])
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)


if __name__ == "__main__":
    main()
