"""The baichuan architecture (Baichuan 1 and 2): llama's layers; the larger tells positions apart by
distance."""

from engine.config import ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading
from engine.models.base import Architecture, decoder_tensors

LAYERS_OF_13B = 40
ALIBI = 8.0


def _read(read: Hyperparameters) -> ModelConfig:
    """Rope turns neighbouring elements, but of the model whose scores fall with distance."""
    is_13b = read.integer("block_count", 1, reading.MAX_LAYERS) == LAYERS_OF_13B
    layers = reading.layer_maker(
        mixer={"rope": None, "alibi": ALIBI} if is_13b else reading.NO_FIELDS
    )
    return reading.decoder_config(read, layers, neighbours=True)


ARCHITECTURE = Architecture(_read, decoder_tensors)
