"""Architecture gemma-embedding (EmbeddingGemma): Gemma 3's layers; tokens also see later tokens."""

from dataclasses import replace

from engine.config import Attention, Layer, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import gemma3, reading
from engine.models.base import Architecture, decoder_tensors
from engine.weights.weights import TensorSpec


def _both_ways(layer: Layer) -> Layer:
    """Return a layer whose window is as wide, half of it on each side."""
    assert isinstance(layer.mixer, Attention)
    if layer.mixer.window is None:
        return replace(layer, mixer=replace(layer.mixer, sees_after=reading.MAX_CONTEXT_LENGTH))
    half = layer.mixer.window // 2
    return replace(layer, mixer=replace(layer.mixer, window=half + 1, sees_after=half))


def _read(read: Hyperparameters) -> ModelConfig:
    """Read the configuration; if the file has two dense matrices, pooled vectors pass through
    them."""
    config = gemma3.read_config(read, is_encoder=True)
    names = [n for n in (2, 3) if f"dense_{n}.weight" in read.tensors]
    if names not in ([], [2, 3]):
        raise read.fail(
            "of dense_2.weight and dense_3.weight only one is there (truncated, or not "
            "converted completely)"
        )
    widths = tuple(read.integer(f"dense_{n}_feat_out", 1, reading.MAX_DIM) for n in names)
    return replace(config, layers=tuple(map(_both_ways, config.layers)), dense_widths=widths)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    shapes = zip(config.dense_widths, (config.dim, *config.dense_widths), strict=False)
    dense = {
        f"dense_{n}.weight": TensorSpec(shape, read_share=0.0) for n, shape in enumerate(shapes, 2)
    }
    return {
        name: spec for name, spec in decoder_tensors(config).items() if name != "output.weight"
    } | dense


ARCHITECTURE = Architecture(_read, _tensors)
