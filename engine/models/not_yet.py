"""Architectures and file types that are known but not supported, with replacements."""

from __future__ import annotations

_HUGE = "far too large for one machine's memory"
_LARGEST = {
    "arctic": "Arctic 480B",
    "grok": "Grok",
    "deepseek32": "DeepSeek V3.2",
    "deepseek4": "DeepSeek V4",
    "dots3note": "dots 3",
    "glm-dsa": "GLM 5",
    "glm5-next": "GLM 5",
    "kimi-k3": "Kimi K3",
    "mimo2": "MiMo 2",
    "minimax-01": "MiniMax 01",
    "minimax-m2": "MiniMax M2",
    "minimax-m3": "MiniMax M3",
    "step35": "Step 3.5",
}
_EMBEDDERS = (
    "nomic-bert-moe",
    "neo-bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "eurobert",
    "gemma-embedding2",
    "llama-embed",
    "t5encoder",
)
_SPEECH = {"qwen3tts": "Qwen 3 TTS", "pockettts": "Pocket TTS", "wavtokenizer-dec": "WavTokenizer"}

NOT_YET: dict[str, tuple[str, str]] = {
    # Chat models of ordinary machines
    "gemma3n": ("Gemma 3n", "Gemma 4 E2B or E4B"),
    "llama4": ("Llama 4, 109B and more", "Llama 3 or Qwen 3 30B-A3B"),
    "deci": ("Nemotron NAS, 49B and more", "Nemotron 3 Nano or Llama 3"),
    "nanbeige": ("Nanbeige with loops", "Qwen 3"),
    "graniteswitch": ("Granite with switched adapters", "Granite 4"),
    "exaone-moe": ("EXAONE with experts", "EXAONE 4"),
    "cohere2moe": ("Command with experts", "Command R7B (cohere2)"),
    "afmoe": ("Trinity", "Qwen 3 30B-A3B"),
    "laguna": ("Laguna", "Qwen 3 30B-A3B"),
    "grovemoe": ("GroveMoE 33B", "Qwen 3 30B-A3B"),
    "mistral4": ("Mistral 4 with experts", "Ministral 3"),
    "hy_v3": ("Hunyuan 3", "Hunyuan A13B or Qwen 3 30B-A3B"),
    "hy_v4": ("Hunyuan 4", "Hunyuan A13B or Qwen 3 30B-A3B"),
    "bailingmoe3": ("Ling 3", "Ling 2 (bailingmoe2)"),
    "plamo2": ("PLaMo 2, partly recurrent", "LFM 2 or Qwen 3.5"),
    "plamo3": ("PLaMo 3", "Qwen 3"),
    "talkie": ("Talkie 13B", "Qwen 3"),
    "maple": ("Maple 20B", "Qwen 3"),
    "spark2_5": ("Spark 2.5", "Qwen 3"),
    "hrm_text": ("HRM, which reasons in loops", "Qwen 3"),
    "gptj": ("GPT-J", "GPT-NeoX, or Qwen 3"),
    "qwen4exp": ("an experiment on the way to Qwen 4", "Qwen 3.5"),
    # Recurrent, or partly
    "mamba": ("Mamba, recurrent", "Qwen 3.5 or LFM 2"),
    "mamba2": ("Mamba 2, recurrent", "Qwen 3.5 or LFM 2"),
    "jamba": ("Jamba, partly recurrent", "Granite 4 H or LFM 2"),
    "rwkv6": ("RWKV 6, recurrent", "Qwen 3.5 or LFM 2"),
    "rwkv6qwen2": ("QRWKV 6, recurrent", "Qwen 3.5 or LFM 2"),
    "rwkv7": ("RWKV 7, recurrent", "Qwen 3.5 or LFM 2"),
    "arwkv7": ("ARWKV 7, recurrent", "Qwen 3.5 or LFM 2"),
    "kimi-linear": ("Kimi Linear 48B-A3B, partly recurrent", "Qwen 3.5 35B-A3B"),
    # Models for data centres
    **{
        name: (f"{family}, {_HUGE}", "Qwen 3 30B-A3B or a smaller model")
        for name, family in _LARGEST.items()
    },
    # Models that only answer about images
    "chameleon": ("Chameleon, whose answers mix text and images", "Llama 3 or Qwen 3"),
    "cogvlm": ("CogVLM, made to see", "Qwen 3 VL, whose text runs"),
    "deepseek2-ocr": ("DeepSeek OCR, which reads images of pages", "a chat model"),
    "paddleocr": ("PaddleOCR, which reads images of pages", "a chat model"),
    # Diffusion models
    "dream": ("Dream, which fills in text in any order", "Qwen 2.5"),
    "llada": ("LLaDA, which fills in text in any order", "Llama 3"),
    "llada-moe": ("LLaDA with experts, which fills in text in any order", "OLMoE"),
    "rnd1": ("RND1, which fills in text in any order", "Qwen 3 30B-A3B"),
    # Parts of other models
    "clip": ("the part of a model that sees or hears, an mmproj file", "the model's main file"),
    "dflash": ("a part that guesses ahead for a larger model", "the larger model itself"),
    "eagle3": ("a part that guesses ahead for a larger model", "the larger model itself"),
    "gemma4-assistant": (
        "a part that guesses ahead for Gemma 4",
        "Gemma 4 itself, with --draft and this file",
    ),
    "controlvector": ("a control vector, which steers a model", "the model itself"),
    # Models that generate no text
    **dict.fromkeys(_EMBEDDERS, ("an embedding model, which writes no text", "a chat model")),
    **{name: (f"{family}, which makes speech", "a chat model") for name, family in _SPEECH.items()},
    "t5": ("T5, an encoder with a decoder", "a chat model"),
}
"""``general.architecture`` -> name of the model, and what to use instead."""
KINDS: dict[str, str] = {
    "adapter": "an adapter, which changes a model (open the model it was made for, with --lora "
    "and this file)",
    "imatrix": "an importance matrix, with which models are made smaller (open the model itself)",
    "mmproj": "the part of a model that sees or hears (open the model's main file)",
    "projector": "the part of a model that sees or hears (open the model's main file)",
    "controlvector": "a control vector, which steers a model (open the model itself)",
    "vocab": "a vocabulary without a model (open the model itself)",
}
"""``general.type`` of files other than language models -> description, and what to open."""
