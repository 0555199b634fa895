"""Parts of a model that several kinds of Hugging Face config describe: experts, latent attention,
windows, hybrid layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meshwright.errors import ConfigError
from meshwright.models._hf_config import HfConfig, shown
from meshwright.models.spec import HybridSpec, MambaSpec, MlaSpec, MoeSpec
from meshwright.units import counted

__all__ = [
    "Found",
    "MoeKeys",
    "Part",
    "WindowKeys",
    "global_every",
    "hybrid_layers",
    "latent_attention",
]

Found = dict[str, Any]
"""Values of fields of a ModelSpec."""
Part = Callable[[HfConfig, Found], Found]
"""Reads one part of a config, knowing what was found before it; a field set to None is left at its
default."""


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
    """Read multi-head latent attention; `head_dim` is then a query's, with and without rotary
    part."""
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
    """One layer in this many is global, 0: none; a list of layer types or a pattern in the config
    goes first."""
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
