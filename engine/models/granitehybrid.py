"""Architecture granitehybrid (Granite 4 H): granite's layers, most with Mamba-2, dense or with
experts."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, recurrent
from engine.models.base import Architecture
from engine.models.granite import granite_config, granite_tensors
from engine.models.granitemoe import granite_experts


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; layers without key heads are recurrent."""
    has_experts = read.integer("expert_count", 0, reading.MAX_DIM, default=0) > 0
    return granite_config(
        read, granite_experts(read) if has_experts else None, recurrent.mamba2_of(read)
    )


ARCHITECTURE = Architecture(_read, granite_tensors)
