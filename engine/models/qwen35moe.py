"""Architecture qwen35moe (Qwen 3.5 and 3.6 35B-A3B): qwen35's layers with experts, and a gated
shared expert."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models.base import Architecture
from engine.models.qwen35 import compose, qwen35_config, qwen35_experts, qwen35_tensors


def _read(read: Hyperparameters) -> ModelConfig:
    return qwen35_config(read, feed_forward=qwen35_experts(read))


ARCHITECTURE = Architecture(_read, qwen35_tensors, compose)
