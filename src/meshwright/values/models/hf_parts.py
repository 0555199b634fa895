"""Parts that several kinds of Hugging Face config describe: experts, windows, hybrid layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.values.errors import ConfigError
from meshwright.values.models.hf_config import HfConfig, shown
from meshwright.values.models.spec import HybridSpec, MambaSpec, MlaSpec, ModelSpec, MoeSpec
from meshwright.values.units import counted

__all__ = [
    "Found",
    "MoeKeys",
    "Part",
    "WindowKeys",
    "global_every",
    "hybrid_layers",
    "latent_attention",
    "left_out",
    "read_details",
]

Found = dict[str, Any]
"""Values of fields of a ModelSpec."""
Part = Callable[[HfConfig, Found], Found]
"""Reads one part of a config, knowing what was found before it; None leaves a default."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MoeKeys:
    """Where a kind of config keeps its experts."""

    experts: str
    top_k: str = "num_experts_per_tok"
    expert_ffn: str = "moe_intermediate_size"
    shared_ffn: str | None = None
    """Key of the inner width of all shared experts together."""
    shared_experts: str | None = None
    """Key of the number of shared experts, each as wide as a routed one."""
    first_dense: str | None = None
    frequency: str | None = None
    dense_layers: str | None = None
    """Key of a list of layers without experts."""
    bias: bool = False
    clamps_gate: bool = False
    optional: bool = False
    """Whether a config without experts is a dense model."""

    def __call__(self, config: HfConfig, found: Found) -> Found:
        """Read the MoeSpec; `ffn` becomes the experts' where no layer is dense."""
        if self.optional and not config.has(self.experts):
            return {}
        config.require([self.experts, self.top_k, self.expert_ffn])
        expert_ffn = config.count(self.expert_ffn)
        moe = MoeSpec(
            num_experts=config.count(self.experts),
            top_k=config.count(self.top_k),
            expert_ffn=expert_ffn,
            shared_ffn=self._shared_ffn(config, expert_ffn),
            first_dense_layers=self._first_dense(config),
            layer_frequency=config.count(self.frequency, 1) if self.frequency else 1,
            expert_bias=self.bias,
            clamps_gate=self.clamps_gate,
        )
        all_experts = not moe.first_dense_layers and moe.layer_frequency == 1
        return {"moe": moe, "ffn": expert_ffn if all_experts else found["ffn"]}

    def _shared_ffn(self, config: HfConfig, expert_ffn: int) -> int:
        if self.shared_ffn is not None:
            return config.count(self.shared_ffn, 0, least=0)
        return (
            config.count(self.shared_experts, 0, least=0) * expert_ffn if self.shared_experts else 0
        )

    def _first_dense(self, config: HfConfig) -> int:
        if self.first_dense is not None:
            return config.count(self.first_dense, 0, least=0)
        layers = config.items(self.dense_layers) if self.dense_layers else None
        if layers and layers != list(range(len(layers))):
            raise ConfigError(
                f"{config.name}: {self.dense_layers}={shown(layers)}: only leading layers may be"
                " dense"
            )
        return len(layers or [])


def latent_attention(config: HfConfig, found: Found) -> Found:
    """Read multi-head latent attention; `head_dim` is then a query's, rotary part included."""
    config.require(["kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"])
    mla = MlaSpec(
        kv_lora_rank=config.count("kv_lora_rank"),
        q_lora_rank=config.count("q_lora_rank") if config.has("q_lora_rank") else None,
        qk_nope_head_dim=config.count("qk_nope_head_dim"),
        qk_rope_head_dim=config.count("qk_rope_head_dim", least=0),
        v_head_dim=config.count("v_head_dim"),
    )
    return {
        "mla": mla,
        "head_dim": mla.qk_nope_head_dim + mla.qk_rope_head_dim,
        "num_kv_heads": found["num_heads"],
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowKeys:
    """Where a kind of config keeps its sliding windows."""

    key: str = "sliding_window"
    assumed: int | None = None
    """Length where the key is absent; a null switches windows off."""
    every: int = 0
    """One layer in this many is global, 0: none; layer types or a pattern go first."""
    pattern_key: str | None = None
    switch: str | None = None
    """Flag that must be true, if there is one."""

    def __call__(self, config: HfConfig, found: Found) -> Found:
        """Read `window` and `global_every`."""
        length = self._length(config)
        if length is None or (
            config.has("max_position_embeddings")
            and length >= config.count("max_position_embeddings")
        ):
            return {}
        every = (
            config.count(self.pattern_key, self.every, least=0) if self.pattern_key else self.every
        )
        if config.has("layer_types"):
            is_global = [kind == "full_attention" for kind in config.items("layer_types") or []]
            return {"window": length} | global_every(config, is_global, found)
        return {} if every == 1 else {"window": length, "global_every": every}

    def _length(self, config: HfConfig) -> int | None:
        if self.switch is not None and not config.flag(self.switch, False):
            return None
        given = self.key in config.values
        return (config.count(self.key) if config.has(self.key) else None) if given else self.assumed


def global_every(config: HfConfig, is_global: list[bool], found: Found) -> Found:
    """Turn a list of layers (true: global) into the `global_every` that gives as many, or nearly;
    the list's length must be the layers'."""
    layers = found["num_layers"]
    if len(is_global) != layers:
        raise ConfigError(
            f"{config.name}: the list of layer types has {len(is_global)} entries, expected one for"
            f" each of {layers} layers"
        )
    full = sum(is_global)
    if full == layers:
        return {"window": None}
    fitting = [every for every in range(2, layers + 1) if layers // every >= full]
    return {"global_every": max(fitting, default=2) if full else 0}


_KINDS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def hybrid_layers(config: HfConfig, found: Found) -> Found:
    """Read layers that each hold one block (`M-M*ME`), the Mamba mixer and the experts."""
    kinds = _layer_kinds(config)
    if len(kinds) != found["num_layers"]:
        raise ConfigError(
            f"{config.name}: the layer pattern has {counted(len(kinds), 'layer')},"
            f" num_hidden_layers={found['num_layers']}"
        )
    if {"mlp", "moe"} <= set(kinds):
        raise ConfigError(
            f"{config.name}: the layer pattern mixes dense and expert feed-forwards, which is not"
            " modelled"
        )
    ffn_layers = kinds.count("mlp") + kinds.count("moe")
    hybrid = HybridSpec(
        attention_layers=kinds.count("attention"),
        mamba_layers=kinds.count("mamba"),
        ffn_layers=ffn_layers,
    )
    experts = _hybrid_experts(config) if "moe" in kinds else {}
    return {"hybrid": hybrid, "mamba": _mamba(config) if hybrid.mamba_layers else None} | experts


def _layer_kinds(config: HfConfig) -> list[str]:
    blocks = config.items("layers_block_type")
    if blocks is None:
        blocks = [_KINDS.get(letter, letter) for letter in config.text("hybrid_override_pattern")]
    unknown = [kind for kind in blocks if kind not in _KINDS.values()]
    if unknown:
        raise ConfigError(
            f"{config.name}: layer of kind {shown(unknown[0])}: expected"
            f" {', '.join(_KINDS.values())}"
        )
    return blocks


def _mamba(config: HfConfig) -> MambaSpec:
    config.require(
        [
            "mamba_num_heads",
            "mamba_head_dim",
            "ssm_state_size|mamba_state_dim",
            "n_groups|mamba_n_groups",
        ]
    )
    return MambaSpec(
        state_dim=config.count("ssm_state_size|mamba_state_dim"),
        num_heads=config.count("mamba_num_heads"),
        head_dim=config.count("mamba_head_dim"),
        num_groups=config.count("n_groups|mamba_n_groups"),
        conv_kernel=config.count("conv_kernel|mamba_d_conv", 4),
    )


def _hybrid_experts(config: HfConfig) -> Found:
    config.require(["n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"])
    moe = MoeSpec(
        num_experts=config.count("n_routed_experts"),
        top_k=config.count("num_experts_per_tok"),
        expert_ffn=config.count("moe_intermediate_size"),
        shared_ffn=config.count("moe_shared_expert_intermediate_size", 0, least=0)
        * config.count("n_shared_experts", 1, least=0),
        latent_dim=config.count("moe_latent_size") if config.has("moe_latent_size") else None,
    )
    return {"moe": moe, "ffn": moe.expert_ffn}


_ACTIVATIONS = {
    **dict.fromkeys(("silu", "swish", "swiglu"), "silu"),
    **dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "geglu"), "gelu"),
    "relu": "relu",
    "relu2": "squared-relu",
}
_ACTIVATION_KEYS = "hidden_act|hidden_activation|activation_function|mlp_hidden_act"
_NORM_KEYS = (
    "rms_norm_eps|layer_norm_eps|layer_norm_epsilon|layernorm_epsilon|norm_epsilon|norm_eps"
)
_BALANCED_BY_BIAS = {"router_score": "sigmoid", "router_balance": "bias"}
_FIXED: Mapping[str, Mapping[str, str | float]] = {
    **dict.fromkeys(
        (
            "bailing_moe_v2",
            "deepseek_v3",
            "deepseek_v32",
            "dots1",
            "glm4_moe",
            "glm_moe_dsa",
            "kimi_k2",
            "minimax_m2",
        ),
        _BALANCED_BY_BIAS,
    ),
    "deepseek_v2": {"router_balance": "sequence-aux-loss"},
    "llama4_text": {"router_score": "sigmoid"},
    "gpt_oss": {"activation": "quick-gelu", "gate_offset": 1.0},
}
"""What an architecture takes where its config does not say it."""
_BASE_KEYS = "rope_theta|rotary_emb_base|rotary_base"
_MOST_BASE = 1e12
"""Mistral Small 3.1 has 1e9."""
_STRETCHED = "llama3"
_PLAIN = ("default", "none", "")


def read_details(config: HfConfig, spec: ModelSpec, *, kind: str) -> dict[str, Any]:
    """Return what the config says, by field of ModelDetails."""
    found: dict[str, Any] = {}
    if config.has(_NORM_KEYS):
        found["norm_eps"] = config.number(_NORM_KEYS, 1e-5)
    if (activation := _ACTIVATIONS.get(_word(config, _ACTIVATION_KEYS))) is not None:
        found["activation"] = activation
    if spec.positions == "rope":
        found |= _rotation(config, spec)
    if spec.moe is not None:
        found |= dict(_FIXED.get(kind, {})) | _routing(config)
    for name, keys in _OF_FAMILY.get(kind, {}).items():
        if config.has(keys):
            found[name] = config.number(keys, 0.0)
    return found


_OF_FAMILY: Mapping[str, Mapping[str, str]] = {
    "gpt_oss": {"gate_clamp": "swiglu_limit"},
    "gemma2": {
        "query_scale": "query_pre_attn_scalar",
        "score_cap": "attn_logit_softcapping",
        "logit_cap": "final_logit_softcapping",
    },
    "gemma3_text": {
        "query_scale": "query_pre_attn_scalar",
        "window_rope_base": "rope_local_base_freq",
    },
}
"""Fields of details that some software has words for in these architectures alone."""


_SCALES = (
    *(
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "embedding_multiplier",
        "attention_multiplier",
        "residual_multiplier",
    ),
    *(
        "logits_scaling",
        "logit_scale",
        "scale_emb",
        "scale_depth",
        "swiglu_limit",
        "no_rope_layers",
        "attn_temperature_tuning",
    ),
)
"""Keys that change what is computed, hardly its time, and that no export has a word for."""
_TRIVIAL: tuple[Any, ...] = (None, 0, 1, False, [])


def left_out(config: HfConfig, spec: ModelSpec, *, kind: str) -> list[str]:
    """Say what no field holds: caps and scales, an activation, a stretching of the rotation,
    attention to chosen tokens alone."""
    said = []
    read = _OF_FAMILY.get(kind, {}).values()
    given = [key for key in _SCALES if key not in read and config.values.get(key) not in _TRIVIAL]
    activation = _word(config, _ACTIVATION_KEYS)
    if activation and activation not in _ACTIVATIONS:
        given.append(f"activation {activation}")
    if given:
        said.append(
            f"left out, as exports have no words and times hardly hang on them: {', '.join(given)}"
        )
    kind = _word(_scaling(config), "rope_type|type")
    if spec.positions == "rope" and kind not in (*_PLAIN, _STRETCHED):
        said.append(f"rope_scaling of type {kind} is left out: exports rotate by rope_theta alone")
    if config.has("index_topk"):
        tokens = config.count("index_topk")
        said.append(
            f"attention is priced in full: the indexer that chooses {tokens} tokens for each, and"
            " its weights, are left out"
        )
    return said


def _rotation(config: HfConfig, spec: ModelSpec) -> dict[str, Any]:
    """The base, the rotated share of a head's dims, and Llama 3.1's stretching."""
    found: dict[str, Any] = {}
    newer, scaling = _parameters(config), _scaling(config)
    for section in (config, newer):
        if section.has(_BASE_KEYS):
            found["rope_base"] = section.number(_BASE_KEYS, 10_000.0, most=_MOST_BASE)
        if section.has("partial_rotary_factor|rotary_pct"):
            found["rope_share"] = section.number("partial_rotary_factor|rotary_pct", 1.0)
    if config.has("rotary_dim") and "rope_share" not in found:
        found["rope_share"] = config.count("rotary_dim") / spec.head_dim
    if _word(scaling, "rope_type|type") == _STRETCHED:
        found["rope_scaling"] = scaling.number("factor", 8.0)
    return found


def _parameters(config: HfConfig) -> HfConfig:
    """What transformers 5 writes in place of rope_theta and rope_scaling; of models with two
    rotations, that of full attention."""
    section = config.section("rope_parameters")
    return section.section("full_attention") if section.has("full_attention") else section


def _scaling(config: HfConfig) -> HfConfig:
    return config.section("rope_scaling") if config.has("rope_scaling") else _parameters(config)


def _routing(config: HfConfig) -> dict[str, Any]:
    """How experts are chosen and balanced."""
    found: dict[str, Any] = {}
    if (score := _word(config, "scoring_func")) in ("softmax", "sigmoid"):
        found["router_score"] = score
    if config.has("topk_method"):
        biased = _word(config, "topk_method") == "noaux_tc"
        found["router_balance"] = (
            "bias"
            if biased
            else "sequence-aux-loss"
            if config.flag("seq_aux", False)
            else "aux-loss"
        )
    if config.has("router_aux_loss_coef|aux_loss_alpha"):
        found["aux_loss"] = config.number("router_aux_loss_coef|aux_loss_alpha", 1e-2, least=0.0)
    if config.number("routed_scaling_factor", 1.0) != 1.0:
        found["routed_scale"] = config.number("routed_scaling_factor", 1.0)
    if config.has("topk_group") and config.count("n_group", 1) > 1:
        found |= {
            "router_groups": config.count("n_group"),
            "router_top_groups": config.count("topk_group"),
        }
    return found


def _word(config: HfConfig, keys: str) -> str:
    """A text; what is none counts as absent, as no shape hangs on it."""
    value = next(
        (config.values[key] for key in keys.split("|") if config.values.get(key) is not None), ""
    )
    return value.lower() if isinstance(value, str) else ""
