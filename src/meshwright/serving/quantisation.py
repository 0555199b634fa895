"""In what numbers weights and cache are kept, and products run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from meshwright.errors import ConfigError, UnknownNameError
from meshwright.hardware.chip import Chip
from meshwright.models.spec import ModelSpec
from meshwright.workload import Precision

__all__ = [
    "CACHES",
    "QUANTISATIONS",
    "Cache",
    "Quantisation",
    "Weights",
    "cache_bytes",
    "published_fp8",
    "quantisation",
]

Weights = Literal["fp32", "bf16", "fp16", "fp8", "fp8-blockwise", "int8", "int4", "nvfp4", "mxfp4"]
QUANTISATIONS: tuple[Weights, ...] = get_args(Weights)
Cache = Literal["fp32", "bf16", "fp16", "fp8", "int8"]
CACHES: tuple[Cache, ...] = get_args(Cache)

_BYTES: dict[Weights, float] = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8-blockwise": 1.0,
    "int8": 1.0,
    "int4": 0.5625,
    "nvfp4": 0.5625,
    "mxfp4": 0.53125,
}
"""Of a weight with its scales: int4 and nvfp4 one 16- or 8-bit scale per 32 or 16 weights, mxfp4
one byte per 32."""
_PRODUCT: dict[Weights, Precision] = {
    "fp32": "tf32",
    "bf16": "bf16",
    "fp16": "fp16",
    "fp8": "fp8",
    "fp8-blockwise": "fp8-blockwise",
    "int8": "bf16",
    "int4": "bf16",
    "nvfp4": "nvfp4",
    "mxfp4": "bf16",
}
"""What products of such weights run in: int8, int4 and mxfp4 weights are unpacked for 16-bit
activations."""
_CACHE_BYTES: dict[Cache, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantisation:
    """What each part of a model is kept in."""

    name: Weights
    linear: Weights
    """Dense feed-forward and shared experts."""
    attention: Weights
    """Projections before attention."""
    output: Weights
    """The projection after attention."""
    experts: Weights

    @staticmethod
    def bytes_of(weights: Weights) -> float:
        """Bytes of one weight."""
        return _BYTES[weights]

    @staticmethod
    def product_of(weights: Weights) -> Precision:
        """Precision of a product with such weights."""
        return _PRODUCT[weights]

    def check(self, chip: Chip) -> None:
        """Raise ConfigError unless the chip has the units for it."""
        for weights in (self.linear, self.attention, self.output, self.experts):
            chip.peak_flops_per_s(_PRODUCT[weights])


def published_fp8(model: ModelSpec) -> Weights:
    """Return how models of this make are published in fp8: with block scales where a latent is kept
    or experts are many (DeepSeek, Qwen3, MiniMax), else with one scale a tensor, as Mixtral's
    generation and dense models are."""
    return (
        "fp8-blockwise"
        if model.moe is not None and (model.mla is not None or model.moe.num_experts > _FEW_EXPERTS)
        else "fp8"
    )


_FEW_EXPERTS = 16
"""Between the 8 of Mixtral and the 128 of Qwen3, whose checkpoints are of the two kinds."""


def quantisation(weights: str, model: ModelSpec) -> Quantisation:
    """Return what the parts of a model are kept in under this word.

    Checkpoints of models with experts keep the projections around attention in 16 bits when the
    rest goes to 4 bits (OpenAI's mxfp4 gpt-oss, Moonshot's int4 Kimi), but for the one after a
    latent's attention in NVIDIA's nvfp4 (of DeepSeek-R1-0528-FP4-v2 the card says that it also
    quantises wo; Kimi-K2.5's leaves out the others alone), and hold fp8 weights with block scales
    (DeepSeek, Qwen3, MiniMax); dense models are quantised throughout. mxfp4 and nvfp4 differ in
    their scales alone.
    """
    if weights not in QUANTISATIONS:
        raise UnknownNameError("quantisation", weights, QUANTISATIONS)
    if model.moe is None:
        if weights == "mxfp4":
            raise ConfigError(
                f"{model.name}: mxfp4 weights are modelled for experts only; nvfp4 or int4 would do"
            )
        return Quantisation(
            name=weights, linear=weights, attention=weights, output=weights, experts=weights
        )
    if weights in ("fp8", "fp8-blockwise"):
        return Quantisation(
            name=weights, linear=weights, attention=weights, output=weights, experts=weights
        )
    if weights in ("nvfp4", "int4", "mxfp4"):
        shared: Weights = "bf16" if weights == "mxfp4" else weights
        output: Weights = "nvfp4" if weights == "nvfp4" and model.mla is not None else "bf16"
        return Quantisation(
            name=weights, linear=shared, attention="bf16", output=output, experts=weights
        )
    return Quantisation(
        name=weights, linear=weights, attention=weights, output=weights, experts=weights
    )


def cache_bytes(cache: Cache) -> float:
    """Bytes of one value in the cache."""
    return _CACHE_BYTES[cache]
