"""``python safetensors_of.py FILE.gguf FOLDER``: a model as vLLM takes it, in an environment with
transformers."""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

source = Path(sys.argv[1])
target = Path(sys.argv[2])
target.mkdir(parents=True, exist_ok=True)
tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
model = AutoModelForCausalLM.from_pretrained(
    str(source.parent), gguf_file=source.name, dtype=torch.bfloat16
)
weights = {name: tensor.contiguous().clone() for name, tensor in model.state_dict().items()}
if model.config.tie_word_embeddings:
    weights.pop("lm_head.weight", None)
save_file(weights, str(target / "model.safetensors"), metadata={"format": "pt"})
config = {**model.config.to_dict(), "architectures": [type(model).__name__], "dtype": "bfloat16"}
config.pop("quantization_config", None)
(target / "config.json").write_text(json.dumps(config, indent=1, default=str), encoding="utf-8")
tokenizer.save_pretrained(str(target))
