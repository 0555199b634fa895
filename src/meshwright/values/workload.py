"""What is trained, apart from the model: sequence, batch, precision, which weights learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = [
    "CP_COMM_TYPES",
    "LORA_TARGETS",
    "PRECISIONS",
    "ROUTINGS",
    "AttentionKernel",
    "CpCommType",
    "Frozen",
    "LoraTarget",
    "Precision",
    "Routing",
    "Workload",
]

Precision = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "fp8-blockwise", "mxfp8", "nvfp4"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Routing = Literal["balanced", "in-turn", "typical", "worst"]
"""How tokens spread over experts. balanced: alike and at random, as benchmarks force it; in-turn:
alike, each token's choices on neighbouring experts, which few ranks hold (NeMo AutoModel's
`fake_balanced_gate`, torchtitan's `debug.moe_force_load_balance`); typical: as a trained router
with a balancing loss does, the busiest rank gating all; worst: every token chooses the experts of
one rank as far as it can."""
ROUTINGS: tuple[Routing, ...] = get_args(Routing)
AttentionKernel = Literal["flash", "flash1", "fused-softmax", "unfused"]
"""flash: FlashAttention-2 or later, or the vendor's equal; flash1: FlashAttention 1; fused-softmax:
scores in memory, one softmax kernel (Megatron-LM's); unfused: softmax, mask and dropout apart
too."""
CpCommType = Literal["p2p", "a2a", "all_gather", "a2a+p2p"]
"""How context-parallel ranks share a sequence, by Megatron-Core's names: keys and values go round a
ring; tokens are swapped for heads; keys and values are gathered; tokens are swapped inside a
domain, and its groups form a ring."""
CP_COMM_TYPES: tuple[CpCommType, ...] = get_args(CpCommType)
LoraTarget = Literal["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
"""Linear layers that adapters stand beside, by Megatron's names: those in front of a mixer's core
(queries, keys and values; of latent attention all down and up projections), the one behind it, and
the first and second layer of a feed-forward or an expert."""
LORA_TARGETS: tuple[LoraTarget, ...] = get_args(LoraTarget)


Frozen = Literal["half", "nf4"]
"""How the layers beside adapters are kept: in half precision, or in four bits that each product
casts back (QLoRA, arXiv:2305.14314)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One training job, apart from model, cluster and layout."""

    seq_len: int
    """Tokens in one sequence (of the encoder for encoder-decoder models)."""
    gbs: int | None = None
    """Global batch in sequences; None where it is searched."""
    decoder_seq_len: int | None = None
    """Tokens in one sequence of the decoder (encoder-decoder models); None is a quarter of
    `seq_len`, T5's 512/128."""
    sample_len: int | None = None
    """Tokens of a mean sample where several are packed into one sequence and attend to their own
    alone; None where the whole sequence is one."""
    precision: Precision = "bf16"
    """What the linear layers compute in."""
    attention: AttentionKernel = "flash"
    fused_norm: bool = True
    """Whether normalisation runs as one fused kernel."""
    routing: Routing = "balanced"
    dropout: bool = False
    """Whether residual and attention dropout masks are kept."""
    lora_rank: int = 0
    """Rank of adapters while the rest is frozen; 0 trains all weights."""
    lora_targets: tuple[LoraTarget, ...] = LORA_TARGETS
    """Linear layers with adapters."""
    frozen: Frozen = "half"
    """Of weights beside adapters."""
    cp_comm_type: CpCommType | None = None
    """How a Megatron's context-parallel ranks exchange; None leaves it to the software."""

    def __post_init__(self) -> None:
        if self.seq_len < 1:
            raise ConfigError(f"seq_len={self.seq_len}: expected a positive number of tokens")
        if self.gbs is not None and self.gbs < 1:
            raise ConfigError(f"gbs={self.gbs}: expected a positive number of sequences")
        if self.sample_len is not None and not 1 <= self.sample_len <= self.seq_len:
            raise ConfigError(
                f"sample_len={self.sample_len}: expected the tokens of a sample, at most seq_len ="
                f" {self.seq_len}"
            )
        if self.precision not in PRECISIONS:
            raise UnknownNameError("precision", self.precision, PRECISIONS)
        if self.routing not in ROUTINGS:
            raise UnknownNameError("routing", self.routing, ROUTINGS)
        if self.lora_rank < 0:
            raise ConfigError(
                f"lora_rank={self.lora_rank}: expected 0 (train all weights) or a positive rank"
            )
        if self.cp_comm_type not in (None, *CP_COMM_TYPES):
            raise UnknownNameError("cp_comm_type", str(self.cp_comm_type), CP_COMM_TYPES)
        if self.frozen not in get_args(Frozen):
            raise UnknownNameError("frozen", self.frozen, get_args(Frozen))
        for target in self.lora_targets:
            if target not in LORA_TARGETS:
                raise UnknownNameError("lora_targets", target, LORA_TARGETS)
        if not self.lora_targets:
            raise ConfigError(f"lora_targets=(): expected one or more of {', '.join(LORA_TARGETS)}")
