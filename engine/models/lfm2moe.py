"""Architecture lfm2moe (LFM 2 8B-A1B, 24B-A2B): lfm2's layers, all except the first ones with
experts."""

from dataclasses import replace
from functools import partial

from engine.config import Dense, FeedForward, ModelConfig
from engine.gguf.hyperparameters import Hyperparameters
from engine.models import reading, steps
from engine.models.base import Architecture, choice_biases, decoder_tensors
from engine.models.lfm2 import LAST_NORM, lfm2_config
from engine.weights.weights import TensorSpec


def _read(read: Hyperparameters) -> ModelConfig:
    first = reading.leading_dense(read)

    def feed_forward(number: int, dense: Dense) -> FeedForward:
        if number < first:
            return dense
        router = replace(reading.keyed_router(read), renormalised=True)
        return reading.experts(read, reading.expert_width(read), router)

    return lfm2_config(read, feed_forward)


def _tensors(config: ModelConfig) -> dict[str, TensorSpec]:
    return {**decoder_tensors(config, LAST_NORM), **choice_biases(config)}


ARCHITECTURE = Architecture(_read, _tensors, head=partial(steps.output_head, norm_name=LAST_NORM))
