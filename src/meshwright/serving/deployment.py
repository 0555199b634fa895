"""How one copy of a model is spread over chips to be served."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import ConfigError, LayoutError
from meshwright.models.spec import ModelSpec

__all__ = ["Worker", "check_worker"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """The chips that run one copy of the model.

    `tp` chips share each attention, `attention_dp` such groups hold whole attention layers each and
    different requests, and all `tp * attention_dp` chips of a stage share the feed-forward: experts
    over `ep`, each expert over the rest.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ep", "attention_dp"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected 1 or more")
        if self.stage_chips % self.ep:
            raise LayoutError(
                f"ep={self.ep} does not divide the tp * attention_dp = {self.stage_chips} chips"
                " that share the experts"
            )

    @property
    def stage_chips(self) -> int:
        """Chips of one pipeline stage."""
        return self.tp * self.attention_dp

    @property
    def chips(self) -> int:
        """Chips of the whole copy."""
        return self.stage_chips * self.pp

    @property
    def expert_tp(self) -> int:
        """Chips that share one expert."""
        return self.stage_chips // self.ep

    @property
    def name(self) -> str:
        """`tp=8`, `tp=4,pp=2`, ...; axes of one are left out."""
        axes = ((name, getattr(self, name)) for name in ("tp", "pp", "ep", "attention_dp"))
        return ",".join(f"{name}={size}" for name, size in axes if size > 1) or "tp=1"


def check_worker(worker: Worker, model: ModelSpec) -> None:
    """Raise LayoutError where the engine can't cut this model so; the message names what does
    divide."""
    _divides("num_heads", model.num_heads, "tp", worker.tp)
    _shares_key_heads(model, worker.tp)
    if model.num_layers < worker.pp:
        raise LayoutError(
            f"pp={worker.pp} is more than the {model.num_layers} layers of {model.name}"
        )
    if model.moe is None:
        _divides("ffn", model.ffn, "tp", worker.tp)
        if worker.ep > 1 or worker.attention_dp > 1:
            raise LayoutError(
                f"{model.name} has no experts: ep and attention_dp are 1; more copies serve more"
                " requests"
            )
        return
    _divides("num_experts", model.moe.num_experts, "ep", worker.ep)
    _divides("expert_ffn", model.moe.expert_ffn, "expert tp", worker.expert_tp)


def _shares_key_heads(model: ModelSpec, tp: int) -> None:
    """Key heads are cut over the chips, or each is copied to as many; latent attention has none
    that are kept.

    Source: `divide` in QKVParallelLinear of vLLM and SGLang; TensorRT-LLM's attention likewise.
    """
    heads = model.num_kv_heads
    if model.mla is None and heads % tp and tp % heads:
        able = ", ".join(
            str(n)
            for n in range(1, model.num_heads + 1)
            if model.num_heads % n == 0 and (heads % n == 0 or n % heads == 0)
        )
        raise LayoutError(
            f"num_kv_heads={heads} neither divides tp={tp} nor is divisible by it; tp may be {able}"
        )


def _divides(what: str, number: int, axis: str, size: int) -> None:
    if number % size:
        able = ", ".join(str(n) for n in range(1, 129) if number % n == 0)
        raise LayoutError(
            f"{what}={number} is not divisible by {axis}={size}; {axis} may be {able}"
        )
