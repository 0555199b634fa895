"""Parameters of a model, by part and by how they shard."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any, Literal

from meshwright.values.models.catalogue import Preset, presets
from meshwright.values.models.spec import Block, ModelSpec
from meshwright.values.text import html_table
from meshwright.values.units import format_count

__all__ = [
    "BlockParams",
    "ModelInfo",
    "ModelRow",
    "Params",
    "block_params",
    "head_params",
    "model_html",
    "model_info",
    "model_params",
    "models_info",
    "norm_params",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockParams:
    """Parameters of one block."""

    sharded: int
    """Split over tp (linear layers)."""
    replicated: int
    """Whole on every tp rank (norms, router, latent projections, row-parallel biases)."""
    expert: int = 0
    """Routed experts: split over ep and etp."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.sharded + self.replicated + self.expert


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    """Parameters of a model by part; `total` is their sum."""

    embedding: int
    positions: int
    attention: int
    mamba: int
    delta: int
    mlp: int
    experts: int
    router: int
    norms: int
    head: int
    mtp: int
    inactive_experts: int
    """Of `experts`, those that one token does not visit."""

    @property
    def total(self) -> int:
        """Every stored parameter but of multi-token prediction, as published counts have it."""
        return sum(self.parts.values())

    @property
    def parts(self) -> dict[str, int]:
        """The parts that `total` sums."""
        names = [one.name for one in fields(self) if one.name not in ("mtp", "inactive_experts")]
        return {name: getattr(self, name) for name in names}

    @property
    def active(self) -> int:
        """Parameters that one token uses."""
        return self.total - self.inactive_experts

    @property
    def layers(self) -> int:
        """Parameters outside embedding, positions and head."""
        return self.total - self.embedding - self.positions - self.head


def norm_params(model: ModelSpec) -> int:
    """One norm: a scale, and a shift for LayerNorm."""
    return model.hidden * (2 if model.norm == "layernorm" else 1)


def block_params(model: ModelSpec, block: Block) -> BlockParams:
    """Parameters of one block with the norm before it.

    Formula:  attention h*(heads + 2*kv_heads)*d + heads*d*h; feed-forward (3 if gated else
              2)*h*ffn; experts that times their number
    Units:    parameters, int.
    Source:   Megatron-LM paper (arXiv:1909.08053) for the split; DeepSeek-V2 (arXiv:2405.04434)
              section 2.1 for MLA.
    Valid:    any ModelSpec.
    Checked:  tests/values/models/test_params.py
    """
    sharded, replicated, expert = _PARTS[block.kind](model.at(block))
    return BlockParams(
        sharded=sharded, replicated=replicated + _block_norms(model, block), expert=expert
    )


def _block_norms(model: ModelSpec, block: Block) -> int:
    """Half of the layer's norms; an odd one, of a parallel block, counts at the attention."""
    if model.hybrid is not None:
        return norm_params(model)
    odd = model.norms_per_layer % 2 if block.kind in _MIXERS else 0
    return norm_params(model) * (model.norms_per_layer // 2 + odd)


def _attention(model: ModelSpec) -> tuple[int, int, int]:
    if model.mla is not None:
        return _mla(model)
    h, d = model.hidden, model.head_dim
    projected = 1 if model.values_are_keys else 2
    gates = model.num_heads if model.attention_gate else 0
    qkv = h * (model.num_heads + gates + projected * model.num_kv_heads) * d
    out = model.num_heads * d * h
    bias_sharded = qkv // h if model.qkv_bias or model.linear_bias else 0
    bias_replicated = h if model.linear_bias else 0
    qk_norm = 2 * d if model.qk_norm else 0
    sinks = model.num_heads if model.attention_sinks else 0
    return qkv + out + bias_sharded + sinks, bias_replicated + qk_norm, 0


def _mla(model: ModelSpec) -> tuple[int, int, int]:
    mla = model.mla
    assert mla is not None
    h, heads = model.hidden, model.num_heads
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if mla.q_lora_rank is None:
        query_down, query_up = 0, h * heads * qk
    else:
        query_down, query_up = h * mla.q_lora_rank + mla.q_lora_rank, mla.q_lora_rank * heads * qk
    kv_down = h * (mla.kv_lora_rank + mla.qk_rope_head_dim) + mla.kv_lora_rank
    kv_up = mla.kv_lora_rank * heads * (mla.qk_nope_head_dim + mla.v_head_dim)
    out = heads * mla.v_head_dim * h
    gate = out if model.attention_gate else 0
    return query_up + kv_up + out + gate, query_down + kv_down, 0


def _mlp(model: ModelSpec) -> tuple[int, int, int]:
    matrices, biases = 3 if model.gated else 2, int(model.linear_bias)
    sharded = matrices * model.hidden * model.ffn + biases * (matrices - 1) * model.ffn
    return sharded, biases * model.hidden, 0


def _moe(model: ModelSpec) -> tuple[int, int, int]:
    moe = model.moe
    assert moe is not None
    matrices = 3 if model.gated else 2
    width = moe.latent_dim or model.hidden
    expert = matrices * width * moe.expert_ffn
    if moe.expert_bias:
        expert += (matrices - 1) * moe.expert_ffn + model.hidden
    router = model.hidden * moe.num_experts + (moe.num_experts if moe.expert_bias else 0)
    latent = 2 * model.hidden * moe.latent_dim if moe.latent_dim else 0
    return matrices * model.hidden * moe.shared_ffn, router + latent, expert * moe.num_experts


def _mamba(model: ModelSpec) -> tuple[int, int, int]:
    mamba = model.mamba
    assert mamba is not None
    inner = mamba.num_heads * mamba.head_dim
    states = 2 * mamba.num_groups * mamba.state_dim
    into = model.hidden * (2 * inner + states + mamba.num_heads)
    conv = (inner + states) * (mamba.conv_kernel + 1)
    per_head = 3 * mamba.num_heads
    return into + conv + per_head + inner + inner * model.hidden, 0, 0


def _delta(model: ModelSpec) -> tuple[int, int, int]:
    delta = model.delta
    assert delta is not None
    h, heads = model.hidden, delta.num_value_heads
    keys, values = delta.num_key_heads * delta.key_dim, heads * delta.value_dim
    projected = h * (2 * keys + values + heads)  # queries, keys, values and how much is written
    conv = (2 * keys + values) * delta.conv_kernel
    if delta.decay == "head":
        decay, down = h * heads + 2 * heads, 0
    else:
        decay, down = delta.value_dim * heads * delta.key_dim, h * delta.value_dim
        decay += heads + heads * delta.key_dim
    if delta.gate_rank is None:
        gate = h * values
    else:
        gate, down = delta.gate_rank * values, down + h * delta.gate_rank
    return projected + conv + decay + gate + values * h, down + delta.value_dim, 0


_MIXERS = ("attention", "cross_attention", "delta")
_PARTS = {
    "attention": _attention,
    "delta": _delta,
    "cross_attention": _attention,
    "mamba": _mamba,
    "mlp": _mlp,
    "moe": _moe,
}


def head_params(model: ModelSpec) -> int:
    """Parameters of the output side beside the embedding: the head, BERT's transform."""
    h, untied = model.hidden, 0 if model.tied else model.vocab * model.hidden
    if not model.mlm_head:
        return untied
    transform = h * h + h + norm_params(model) + model.vocab
    return untied + transform + (h * h + h) + (2 * h + 2)


def model_params(model: ModelSpec) -> Params:
    """Parameters of the whole model by part.

    Formula:  sum over blocks of `block_params`, plus embedding, positions, head
    Units:    parameters, int.
    Source:   as block_params.
    Valid:    any ModelSpec; the vocabulary is not padded here.
    Checked:  tests/values/models/test_presets.py against published counts.
    """
    names = ("attention", "mamba", "delta", "mlp", "experts", "router", "norms")
    sums = dict.fromkeys(names, 0.0)
    for segment in model.segments:
        for block, per_layer in segment.blocks:
            count = per_layer * segment.num_layers
            part = block_params(model, block)
            norms = _block_norms(model, block)
            sums["norms"] += count * norms
            sums["experts"] += count * part.expert
            if block.kind == "moe":
                sums["router"] += count * (part.replicated - norms)
                sums["mlp"] += count * part.sharded
            else:
                name = "attention" if "attention" in block.kind else block.kind
                sums[name] += count * (part.sharded + part.replicated - norms)
    final_norms = norm_params(model) * (2 if model.family == "encoder-decoder" else 1)
    counts = {name: round(value) for name, value in sums.items()}
    counts["norms"] += final_norms
    return Params(
        embedding=model.vocab * model.hidden,
        positions=_position_params(model),
        head=head_params(model),
        mtp=_mtp_params(model),
        inactive_experts=_inactive_experts(model),
        **counts,
    )


def _position_params(model: ModelSpec) -> int:
    learned = model.max_positions * model.hidden if model.positions == "learned" else 0
    # T5: 32 buckets per head, encoder and decoder
    relative = 2 * 32 * model.num_heads if model.positions == "relative" else 0
    return learned + relative + model.token_types * model.hidden


def _mtp_params(model: ModelSpec) -> int:
    """Parameters of the layers for multi-token prediction: each has one full layer, a projection of
    two inputs to one, three norms."""
    segment = model.mtp_segment
    if segment is None:
        return 0
    layer = sum(count * block_params(model, block).total for block, count in segment.blocks)
    beside = 2 * model.hidden * model.hidden + 3 * norm_params(model)
    return round(model.mtp_layers * (layer + beside))


def _inactive_experts(model: ModelSpec) -> int:
    moe = model.moe
    if moe is None:
        return 0
    routed = _moe(model)[2]
    return round(model.num_moe_layers * routed * (1 - moe.top_k / moe.num_experts))


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRow:
    """One line of the list of models."""

    name: str
    series: str
    family: str
    num_layers: int
    hidden: int
    params: int
    """From the shape."""
    published_params: int
    published_kind: Literal["exact", "nominal"]
    difference_frac: float
    """(from the shape - published) / published."""
    active_params: int
    aliases: tuple[str, ...]
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """One model by part; `parts` sum to `params`."""

    spec: ModelSpec
    dims: dict[str, Any]
    """Dims and choices that are not the default, nested ones as `moe.top_k`."""
    parts: dict[str, int]
    params: int
    """From the shape, layers for multi-token prediction left out."""
    mtp_params: int
    active_params: int
    published: ModelRow | None
    """The row of the table with this shape (its name may be another); None where there is none."""
    notes: tuple[str, ...] = ()
    """What its shape lacks of the model, or of the configuration that it was read from."""


def models_info() -> list[ModelRow]:
    """Return one row for each known model, in the table's order."""
    return [_row(preset) for preset in presets()]


def model_info(spec: ModelSpec) -> ModelInfo:
    """Return a model's dims and parameters by part, and what is published of it."""
    params = model_params(spec)
    preset = _preset_of(spec)
    return ModelInfo(
        spec=spec,
        dims=_dims(spec, ""),
        parts={name: count for name, count in params.parts.items() if count},
        params=params.total,
        mtp_params=params.mtp,
        active_params=params.active,
        published=_row(preset) if preset is not None else None,
        notes=_left_out(spec, preset),
    )


def _left_out(spec: ModelSpec, preset: Preset | None) -> tuple[str, ...]:
    return (f"{spec.name}: {preset.left_out}",) if preset is not None and preset.left_out else ()


def model_html(spec: ModelSpec) -> str:
    """Return a model's dims and its parameters by part as HTML."""
    found = model_info(spec)
    is_sparse = found.active_params < found.params
    active = f", {format_count(found.active_params)} active" if is_sparse else ""
    rows = [
        (name, format_count(count), f"{count / found.params:.1%}")
        for name, count in found.parts.items()
    ]
    dims = ", ".join(f"{key}={value}" for key, value in found.dims.items())
    return html_table(
        f"{spec.name}: {format_count(found.params)} parameters{active}",
        ("part", "parameters", "share"),
        rows,
        note=dims,
    )


def _preset_of(spec: ModelSpec) -> Preset | None:
    """Return the row of this very shape: of the same name if there is one, else the first."""
    same = [preset for preset in presets() if replace(preset.spec, name=spec.name) == spec]
    named = [preset for preset in same if preset.spec.name == spec.name]
    return (*named, *same, None)[0]


def _row(preset: Preset) -> ModelRow:
    spec, params = preset.spec, model_params(preset.spec)
    return ModelRow(
        name=spec.name,
        series=preset.series,
        family=spec.family,
        num_layers=spec.total_layers,
        hidden=spec.hidden,
        params=params.total,
        published_params=preset.published_params,
        published_kind=preset.published_kind,
        difference_frac=params.total / preset.published_params - 1,
        active_params=params.active,
        aliases=preset.aliases,
        source=preset.source,
    )


def _dims(values: Any, prefix: str) -> dict[str, Any]:
    dims: dict[str, Any] = {}
    for field in fields(values):
        value = getattr(values, field.name)
        if is_dataclass(value):
            dims |= _dims(value, f"{prefix}{field.name}.")
        elif field.default is MISSING or value != field.default:
            dims[prefix + field.name] = value
    return {key: value for key, value in dims.items() if key != "name"}
