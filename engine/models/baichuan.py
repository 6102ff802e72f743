"""The baichuan architecture (Baichuan 1 and 2): llama's layers; the larger tells positions apart by distance."""

from dataclasses import replace

from engine.config import Attention, Dense, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

LAYERS_OF_13B, ALIBI = 40, 8.0


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope turns neighbouring elements, but of the model whose scores fall with distance."""
    is_13b = read.integer("block_count", 1, reading.MAX_LAYERS) == LAYERS_OF_13B

    def layer(number: int, attention: Attention, feed_forward: Dense) -> Layer:
        return Layer(replace(attention, rope=None, alibi=ALIBI) if is_13b else attention, feed_forward)

    return reading.decoder_config(read, layer, neighbours=True)


ARCHITECTURE = Architecture(_read, decoder_tensors)
