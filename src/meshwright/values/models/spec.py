"""ModelSpec: the shape of a transformer, and the segments of layers that follow from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Literal, get_args

from meshwright.values.errors import ConfigError
from meshwright.values.lines import check_line

__all__ = [
    "MODEL_PARTS",
    "Block",
    "Checkpoint",
    "DeltaSpec",
    "Family",
    "GlobalSpec",
    "HybridSpec",
    "MambaSpec",
    "MlaSpec",
    "ModelSpec",
    "MoeSpec",
    "Segment",
]

Family = Literal["decoder", "encoder", "encoder-decoder"]
Checkpoint = Literal[
    "fp32", "bf16", "fp16", "fp8", "fp8-blockwise", "int8", "int4", "nvfp4", "mxfp4"
]
"""Types that weights are published in."""
Stream = Literal["main", "decoder"]

_MOST = 10**8
"""Beyond any count in a model; larger ones are slips, and their products inexact in float64."""


def _check_counts(owner: str, values: object, names: str, *, least: int) -> None:
    """Raise unless each named field is None or a number from `least` to _MOST."""
    for name in names.split():
        value = getattr(values, name)
        is_number = isinstance(value, Real)
        if value is not None and not (is_number and least <= value <= _MOST):
            raise ConfigError(f"{owner}: {name}={value}: expected a number from {least} to {_MOST}")


@dataclass(frozen=True, kw_only=True, slots=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434)."""

    kv_lora_rank: int
    q_lora_rank: int | None
    """None: queries come from the hidden state directly (V2-Lite)."""
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    def __post_init__(self) -> None:
        owner, names = "latent attention", "kv_lora_rank q_lora_rank qk_nope_head_dim v_head_dim"
        _check_counts(owner, self, names, least=1)
        _check_counts(owner, self, "qk_rope_head_dim", least=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class MoeSpec:
    """A mixture-of-experts feed-forward."""

    num_experts: int
    top_k: int
    expert_ffn: int
    """Inner width of one routed expert."""
    shared_ffn: int = 0
    """Inner width of all shared experts together."""
    first_dense_layers: int = 0
    """Leading layers with a dense feed-forward (of width `ModelSpec.ffn`)."""
    layer_frequency: int = 1
    """One layer in this many, after the leading dense ones, has experts; the others are dense."""
    capacity_factor: float | None = None
    """None is dropless."""
    expert_bias: bool = False
    """Whether expert projections have biases (gpt-oss)."""
    clamps_gate: bool = False
    """Whether the inputs of a gated activation are clamped (gpt-oss)."""
    latent_dim: int | None = None
    """Width that routed experts work in, reached by a projection down and up per layer; None is the
    hidden size (Nemotron 3 Super)."""

    def __post_init__(self) -> None:
        _check_counts(
            "experts", self, "num_experts top_k expert_ffn layer_frequency latent_dim", least=1
        )
        _check_counts("experts", self, "shared_ffn first_dense_layers", least=0)
        if self.top_k > self.num_experts:
            raise ConfigError(
                f"experts: top_k={self.top_k} is more than num_experts={self.num_experts}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class MambaSpec:
    """A Mamba-2 mixer (arXiv:2405.21060)."""

    state_dim: int
    num_heads: int
    head_dim: int
    num_groups: int
    conv_kernel: int = 4

    def __post_init__(self) -> None:
        _check_counts("mamba", self, "state_dim num_heads head_dim num_groups conv_kernel", least=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaSpec:
    """Linear attention by the delta rule, in place of most layers' attention: gated delta nets
    (arXiv:2412.06464) or, with a decay per channel, Kimi delta attention (arXiv:2510.26692)."""

    num_layers: int
    """Of the model's layers, those that have it."""
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int = 4
    decay: Literal["head", "channel"] = "head"
    """Whether a head decays as one or each of its channels, which are projected through
    `value_dim`."""
    gate_rank: int | None = None
    """Width that the output's gate is projected through; None is one full projection."""

    def __post_init__(self) -> None:
        names = "num_layers num_key_heads num_value_heads key_dim value_dim conv_kernel gate_rank"
        _check_counts("delta attention", self, names, least=1)
        if self.num_value_heads % self.num_key_heads:
            raise ConfigError(
                f"delta attention: num_value_heads={self.num_value_heads} is not divisible by"
                f" num_key_heads={self.num_key_heads}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalSpec:
    """Heads of the layers with full attention where those with a window have others (Gemma 4)."""

    num_kv_heads: int
    head_dim: int
    values_are_keys: bool = False

    def __post_init__(self) -> None:
        _check_counts("global attention", self, "num_kv_heads head_dim", least=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class HybridSpec:
    """Layers of one block each (Nemotron-H), by kind; they sum to the model's layers."""

    attention_layers: int
    mamba_layers: int
    ffn_layers: int
    """Dense feed-forward, or experts where the model has a MoeSpec."""

    def __post_init__(self) -> None:
        _check_counts("hybrid", self, "attention_layers mamba_layers ffn_layers", least=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """One attention, mixer or feed-forward with its norm and residual."""

    kind: Literal["attention", "cross_attention", "delta", "mamba", "mlp", "moe"]
    stream: Stream = "main"
    """Whose token count it works on: `decoder` is the decoder side of an encoder-decoder model."""
    causal: bool = True
    window: int | None = None
    """Tokens a query sees at most; None is the full sequence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """A run of layers of the same mean make-up."""

    num_layers: int
    blocks: tuple[tuple[Block, float], ...]
    """(block, mean count of it per layer)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSpec:
    """The shape of a model; names follow Hugging Face and Megatron where they agree."""

    name: str
    num_layers: int
    """Decoder layers (encoder layers for family `encoder`)."""
    hidden: int
    ffn: int
    """Inner width of the dense feed-forward."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab: int
    """Entries of the vocabulary before the training software pads it."""
    family: Family = "decoder"
    encoder_layers: int = 0
    gated: bool = True
    """Gated feed-forward (SwiGLU, GeGLU): three matrices instead of two."""
    tied: bool = False
    """Whether the output head shares the embedding's weights."""
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    norms_per_layer: int = 2
    """4 in Gemma 2 and 3, 7 in Gemma 4 with experts; 1 where a parallel block shares one norm
    (Falcon 7B, GPT-J)."""
    qk_norm: bool = False
    qk_norm_all_heads: bool = False
    """With `qk_norm`: one norm over all heads (MiniMax M2, OLMo 2), for which tensor-parallel ranks
    sum a statistic; else one per head."""
    positions: Literal["rope", "learned", "relative", "alibi", "none"] = "rope"
    max_positions: int = 0
    """Rows of the position table where `positions` is `learned`."""
    linear_bias: bool = False
    qkv_bias: bool = False
    attention_sinks: bool = False
    """One learned logit per head (gpt-oss)."""
    attention_gate: bool = False
    """Whether attention's output is multiplied by a gate that the layer's input is projected to
    (Qwen3-Next)."""
    values_are_keys: bool = False
    """Whether values are the keys, before norm and rotation, without a projection of their own."""
    rotation_has_factor: bool = False
    """Whether rotations are multiplied by a factor, as YaRN's are (gpt-oss)."""
    parallel_block: bool = False
    """Attention and feed-forward read one input, and their outputs are summed (Falcon, GPT-J)."""
    token_types: int = 0
    """Rows of the segment table (BERT)."""
    mlm_head: bool = False
    """BERT's transform before the tied head, its pooler and its next-sentence head."""
    window: int | None = None
    """Sliding-window length of the local attention layers."""
    global_every: int = 1
    """With `window`: one layer in this many has full attention; 0: none has."""
    mtp_layers: int = 0
    """Extra multi-token-prediction layers behind the last (DeepSeek-V3: 1)."""
    mla: MlaSpec | None = None
    global_attention: GlobalSpec | None = None
    moe: MoeSpec | None = None
    delta: DeltaSpec | None = None
    mamba: MambaSpec | None = None
    hybrid: HybridSpec | None = None
    context_tokens: int | None = field(default=None, compare=False)
    """Tokens of the longest sequence that the model was made for; None where it is not known. No
    shape hangs on it."""
    checkpoint: Checkpoint | None = field(default=None, compare=False)
    """Type of the weights as they are published; None where it is not known, or there are several.
    No shape hangs on it."""

    def _repr_html_(self) -> str:
        """Show dims and parameters by part in a notebook."""
        from meshwright.values.models.params import model_html

        return model_html(self)

    def __post_init__(self) -> None:
        check_line(self.name, "the name of a model")
        names = "num_layers hidden num_heads num_kv_heads head_dim vocab window context_tokens"
        _check_counts(self.name, self, names, least=1)
        names = (
            "ffn encoder_layers norms_per_layer max_positions token_types global_every mtp_layers"
        )
        _check_counts(self.name, self, names, least=0)
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.name}: num_heads={self.num_heads} is not divisible by"
                f" num_kv_heads={self.num_kv_heads}"
            )
        if self.ffn < 1 and self._has_dense_ffn:
            raise ConfigError(
                f"{self.name}: ffn={self.ffn}: expected the width of the dense feed-forward"
            )
        if self.checkpoint is not None and self.checkpoint not in get_args(Checkpoint):
            known = ", ".join(get_args(Checkpoint))
            raise ConfigError(f"{self.name}: checkpoint={self.checkpoint}: expected one of {known}")
        self._check_family()
        self._check_experts()
        self._check_hybrid()
        self._check_mixed_attention()

    @property
    def longest_tokens(self) -> int | None:
        """Tokens of the longest sequence: that it was made for, or rows of its position table."""
        learned = self.max_positions if self.positions == "learned" else 0
        return self.context_tokens or learned or None

    @property
    def refuses_ring(self) -> bool:
        """Whether attention has a window or sinks: no ring of context-parallel ranks carries those,
        so that tokens are swapped for heads (Transformer Engine's attn_forward_func_with_cp takes a
        window with all-to-alls or gathers, sinks with all-to-alls alone)."""
        return self.window is not None or self.attention_sinks

    @property
    def takes_user_buffers(self) -> bool:
        """Whether exchanges in Transformer Engine's user buffers are for its layers: these have
        names for the products of plain attention, feed-forward and Mamba layers, and one length of
        sequence (Megatron-Core's TELinear switches overlap off, for all layers that are made later,
        at the first name of latent attention; initialize.py makes buffers of one shape)."""
        return self.family != "encoder-decoder" and self.mla is None

    @property
    def _has_dense_ffn(self) -> bool:
        if self.hybrid is not None:
            return self.moe is None and self.hybrid.ffn_layers > 0
        return self.moe is None or self.moe.first_dense_layers > 0 or self.moe.layer_frequency > 1

    def _check_family(self) -> None:
        if (self.family == "encoder-decoder") != (self.encoder_layers > 0):
            raise ConfigError(
                f"{self.name}: encoder_layers={self.encoder_layers}: only an encoder-decoder model"
                " has them, and needs them"
            )
        if self.family != "decoder" and any(
            part is not None for part in (self.moe, self.hybrid, self.window)
        ):
            raise ConfigError(
                f"{self.name}: experts, hybrid layers and windows are modelled in decoders only,"
                f" not in family {self.family!r}"
            )

    def _check_experts(self) -> None:
        if self.moe is None or self.hybrid is not None:
            return
        if self.moe.first_dense_layers >= self.num_layers:
            raise ConfigError(
                f"{self.name}: first_dense_layers={self.moe.first_dense_layers} leave no layer of"
                f" num_layers={self.num_layers} with experts"
            )

    def _check_hybrid(self) -> None:
        if self.hybrid is None:
            if self.mamba is not None:
                raise ConfigError(
                    f"{self.name}: a Mamba mixer needs the counts of layers of each kind (hybrid)"
                )
            return
        parts = self.hybrid.attention_layers + self.hybrid.mamba_layers + self.hybrid.ffn_layers
        if parts != self.num_layers:
            raise ConfigError(
                f"{self.name}: hybrid parts sum to {parts}, expected num_layers={self.num_layers}"
            )
        if self.hybrid.mamba_layers and self.mamba is None:
            raise ConfigError(
                f"{self.name}: {self.hybrid.mamba_layers} Mamba layers need the dims of the mixer"
            )

    def _check_mixed_attention(self) -> None:
        own, delta = self.global_attention, self.delta
        if own is not None and (self.window is None or self.num_heads % own.num_kv_heads):
            raise ConfigError(
                f"{self.name}: global_attention with num_kv_heads={own.num_kv_heads}: expected a"
                f" divisor of num_heads={self.num_heads}, and a window for the other layers"
            )
        if delta is None:
            return
        if self.hybrid is not None or self.family != "decoder" or self.window is not None:
            raise ConfigError(
                f"{self.name}: delta attention beside windows, Mamba layers or an encoder is not"
                " modelled"
            )
        if delta.num_layers > self.num_layers:
            raise ConfigError(
                f"{self.name}: {delta.num_layers} layers of delta attention in"
                f" num_layers={self.num_layers}"
            )

    def at(self, block: Block) -> ModelSpec:
        """Return the model with the heads that this block has."""
        own = self.global_attention
        if own is None or block.kind != "attention" or block.window is not None:
            return self
        return replace(
            self,
            global_attention=None,
            num_kv_heads=own.num_kv_heads,
            head_dim=own.head_dim,
            values_are_keys=own.values_are_keys,
        )

    @property
    def total_layers(self) -> int:
        """Layers that a pipeline cuts, the encoder's and the decoder's, without MTP."""
        return self.num_layers + self.encoder_layers

    @property
    def num_moe_layers(self) -> int:
        """Layers with experts."""
        if self.moe is None:
            return 0
        if self.hybrid is not None:
            return self.hybrid.ffn_layers
        return (self.num_layers - self.moe.first_dense_layers) // self.moe.layer_frequency

    @property
    def segments(self) -> tuple[Segment, ...]:
        """One or two segments in model order: first dense layers, or the encoder."""
        if self.hybrid is not None:
            return (self._hybrid_segment(self.hybrid),)
        if self.family == "encoder-decoder":
            return (self._encoder_segment(self.encoder_layers), self._decoder_segment_with_cross())
        if self.family == "encoder":
            return (self._encoder_segment(self.num_layers),)
        if self.moe is None:
            return (self._dense_segment(self.num_layers),)
        return self._moe_segments(self.moe)

    @property
    def mtp_segment(self) -> Segment | None:
        """Return the multi-token-prediction layers, which lie behind the last; a hybrid's have one
        attention and one feed-forward each."""
        if not self.mtp_layers:
            return None
        blocks = self.segments[-1].blocks
        if self.hybrid is not None:  # as in Nemotron 3 Super
            blocks = tuple((block, 1.0) for block, _ in blocks if block.kind != "mamba")
        if self.delta is not None:  # as in Qwen3.5
            rest = ((b, count) for b, count in blocks if b.kind not in ("delta", "attention"))
            blocks = ((Block(kind="attention"), 1.0), *rest)
        return Segment(num_layers=self.mtp_layers, blocks=blocks)

    @property
    def priced_segments(self) -> tuple[Segment, ...]:
        """Return the segments and, behind them, the multi-token-prediction layers."""
        return (*self.segments, *((self.mtp_segment,) if self.mtp_segment is not None else ()))

    def _attention(self) -> tuple[tuple[Block, float], ...]:
        if self.delta is not None:
            share = self.delta.num_layers / self.num_layers
            mixed = ((Block(kind="delta"), share), (Block(kind="attention"), 1.0 - share))
            return tuple((block, count) for block, count in mixed if count > 0)
        if self.window is None:
            return ((Block(kind="attention"), 1.0),)
        every = self.global_every
        share = (self.num_layers // every) / self.num_layers if every else 0.0
        kinds = (
            (Block(kind="attention"), share),
            (Block(kind="attention", window=self.window), 1.0 - share),
        )
        return tuple((block, count) for block, count in kinds if count > 0)

    def _moe_segments(self, moe: MoeSpec) -> tuple[Segment, ...]:
        rest = self.num_layers - moe.first_dense_layers
        share = (rest // moe.layer_frequency) / rest
        kinds = (Block(kind="moe"), share), (Block(kind="mlp"), 1.0 - share)
        ffn = tuple((block, count) for block, count in kinds if count > 0)
        tail = Segment(num_layers=rest, blocks=(*self._attention(), *ffn))
        first = moe.first_dense_layers
        return (self._dense_segment(first), tail) if first else (tail,)

    def _dense_segment(self, num_layers: int) -> Segment:
        return Segment(num_layers=num_layers, blocks=(*self._attention(), (Block(kind="mlp"), 1.0)))

    def _hybrid_segment(self, hybrid: HybridSpec) -> Segment:
        ffn = Block(kind="mlp" if self.moe is None else "moe")
        parts = (
            (Block(kind="attention"), hybrid.attention_layers),
            (Block(kind="mamba"), hybrid.mamba_layers),
            (ffn, hybrid.ffn_layers),
        )
        return Segment(
            num_layers=self.num_layers,
            blocks=tuple((block, count / self.num_layers) for block, count in parts if count),
        )

    def _encoder_segment(self, num_layers: int) -> Segment:
        kinds = (Block(kind="attention", causal=False), Block(kind="mlp", causal=False))
        return Segment(num_layers=num_layers, blocks=tuple((block, 1.0) for block in kinds))

    def _decoder_segment_with_cross(self) -> Segment:
        kinds = (
            Block(kind="attention", stream="decoder"),
            Block(kind="cross_attention", stream="decoder", causal=False),
            Block(kind="mlp", stream="decoder"),
        )
        return Segment(num_layers=self.num_layers, blocks=tuple((block, 1.0) for block in kinds))


MODEL_PARTS: dict[str, type] = {
    "mla": MlaSpec,
    "global_attention": GlobalSpec,
    "moe": MoeSpec,
    "delta": DeltaSpec,
    "mamba": MambaSpec,
    "hybrid": HybridSpec,
}
"""Fields of a ModelSpec that have fields of their own, by their class."""
