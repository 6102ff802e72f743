"""Architecture qwen3next (Qwen 3 Next): qwen35moe's layers with neighbouring key heads and fused
rates."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import recurrent
from engine.models.base import Architecture
from engine.models.qwen35 import compose, qwen35_config, qwen35_experts, qwen35_tensors


def _read(read: Hyperparameters) -> ModelConfig:
    return qwen35_config(read, recurrent.delta_net_of(read, is_grouped=True), qwen35_experts(read))


ARCHITECTURE = Architecture(_read, qwen35_tensors, compose)
