"""Architecture baichuan (Baichuan 1 and 2): llama's layers; the 13B has ALiBi instead of RoPE."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

LAYERS_OF_13B = 40
ALIBI = 8.0


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; RoPE rotates neighbouring elements, except in the 13B."""
    is_13b = read.integer("block_count", 1, reading.MAX_LAYERS) == LAYERS_OF_13B
    layers = reading.layer_maker(
        mixer={"rope": None, "alibi": ALIBI} if is_13b else reading.NO_FIELDS
    )
    return reading.decoder_config(read, layers, neighbours=True)


ARCHITECTURE = Architecture(_read, decoder_tensors)
