"""What several kinds of Hugging Face config have in common: typed values, whose complaints name
config and key, and parts that they describe alike: experts, windows, hybrid layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.values.errors import ConfigError
from meshwright.values.models.spec import HybridSpec, MambaSpec, MlaSpec, MoeSpec
from meshwright.values.units import counted

__all__ = [
    "Found",
    "HfConfig",
    "MoeKeys",
    "Part",
    "WindowKeys",
    "global_every",
    "hybrid_layers",
    "latent_attention",
]

_MOST = 10**8
"""Beyond any number in a config; keeps later arithmetic far from overflow."""
_TINIEST = 2.0**-1022
"""The least normal number of a double: a positive number is at least this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HfConfig:
    """A config.json, or a section of it. Keys may be alternatives, best first:
    `num_hidden_layers|n_layer`. null is as good as absent."""

    name: str
    """How messages call it."""
    values: Mapping[str, Any]
    asked: set[str] = field(default_factory=set, compare=False)
    """Keys that were looked at so far: the others are known to no reader."""

    def with_values(self, **values: Any) -> HfConfig:
        """Return the config with some values changed, which records in the same place."""
        return replace(self, values={**self.values, **values})

    def has(self, keys: str) -> bool:
        """Say whether one of the alternatives is given."""
        return self._find(keys) is not None

    def given(self, key: str) -> Any:
        """Return what a key holds, of whatever kind; None where it is absent."""
        self.asked.add(key)
        return self.values.get(key)

    def require(self, wanted: Iterable[str]) -> None:
        """Raise with the full list of the wanted keys that are absent."""
        missing = [
            keys.replace("|", " (or ") + (")" if "|" in keys else "")
            for keys in wanted
            if not self.has(keys)
        ]
        if missing:
            raise ConfigError(f"{self.name}: missing {', '.join(missing)}")

    def count(self, keys: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number from `least` on."""
        value = self._find(keys)
        if value is None:
            if default is None:
                self.require([keys])
            return default or 0
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
            raise self._wrong(keys, value, f"a whole number from {least} to {_MOST}")
        return value

    def number(
        self, keys: str, default: float, *, least: float = _TINIEST, most: float = _MOST
    ) -> float:
        """Return a number from `least` to `most`: without them a positive one."""
        value = self._find(keys)
        if value is None:
            return default
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not least <= value <= most
        ):
            raise self._wrong(keys, value, "a positive number" if least > 0 else "a number from 0")
        return float(value)

    def flag(self, keys: str, default: bool) -> bool:
        """Return true or false."""
        value = self._find(keys)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(keys, value, "true or false")
        return value

    def text(self, keys: str, default: str | None = None) -> str:
        """Return a text."""
        value = self._find(keys)
        if value is None:
            if default is None:
                self.require([keys])
            return default or ""
        if not isinstance(value, str):
            raise self._wrong(keys, value, "a text")
        return value

    def items(self, keys: str) -> list[Any] | None:
        """Return a list, or None where there is none."""
        value = self._find(keys)
        if value is not None and not isinstance(value, list):
            raise self._wrong(keys, value, "a list")
        return value

    def alike(self, *keys: str, length: int) -> HfConfig:
        """Return the config with one value in place of each of these keys' lists, which hold the
        same value for each of `length` layers."""
        values = dict(self.values)
        for key in keys:
            if isinstance(listed := values.get(key), list):
                if len(listed) != length or any(value != listed[0] for value in listed):
                    raise self._wrong(
                        key, listed, f"one value, or the same for each of {length} layers"
                    )
                values[key] = listed[0]
        return replace(self, values=values)

    def section(self, key: str) -> HfConfig:
        """Return a nested object; an absent one is empty."""
        value = self._find(key)
        if value is not None and not isinstance(value, dict):
            raise self._wrong(key, value, "an object")
        return HfConfig(name=f"{self.name}: {key}", values=value or {})

    def _find(self, keys: str) -> Any:
        self.asked.update(keys.split("|"))
        return next(
            (self.values[key] for key in keys.split("|") if self.values.get(key) is not None), None
        )

    def _wrong(self, keys: str, value: object, expected: str) -> ConfigError:
        key = next(key for key in keys.split("|") if self.values.get(key) is not None)
        return ConfigError(f"{self.name}: {key}={_shown(value)}: expected {expected}")


def _shown(value: object) -> str:
    """Return a value as messages show it: cut at 60 characters, and never a failure to print it."""
    try:
        return repr(value)[:60]
    except (ValueError, RecursionError):  # a number of thousands of digits, lists without end
        return f"a {type(value).__name__} too long to print"


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
            layer_frequency=self._frequency(config),
            expert_bias=self.bias,
            clamps_gate=self.clamps_gate,
        )
        all_experts = not moe.first_dense_layers and moe.layer_frequency == 1
        return {"moe": moe, "ffn": expert_ffn if all_experts else found["ffn"]}

    def _shared_ffn(self, config: HfConfig, expert_ffn: int) -> int:
        if self.shared_ffn is not None:
            return config.count(self.shared_ffn, 0, least=0)
        experts = config.count(self.shared_experts, 0, least=0) if self.shared_experts else 0
        return experts * expert_ffn

    def _frequency(self, config: HfConfig) -> int:
        """Every layer has experts where a list says it of each."""
        if self.frequency is None or isinstance(config.given(self.frequency), list):
            return 1
        return config.count(self.frequency, 1)

    def _first_dense(self, config: HfConfig) -> int:
        """Leading dense layers: by a list of each layer's kind, as `0, 1` or `dense, sparse`, else
        by their number."""
        named = isinstance(config.given(_KINDS_OF_FFN), list)
        key = _KINDS_OF_FFN if named else self.frequency
        if key is not None and isinstance(listed := config.given(key), list):
            return _leading(config, key, [kind not in (0, "dense") for kind in listed])
        if self.first_dense is not None:
            return config.count(self.first_dense, 0, least=0)
        layers = config.items(self.dense_layers) if self.dense_layers else None
        if layers and layers != list(range(len(layers))):
            raise ConfigError(
                f"{config.name}: {self.dense_layers}={_shown(layers)}: only leading layers may be"
                " dense"
            )
        return len(layers or [])


_KINDS_OF_FFN = "mlp_layer_types"


def _leading(config: HfConfig, key: str, with_experts: list[bool]) -> int:
    """Return the number of layers without experts, which must be the first."""
    dense = with_experts.count(False)
    if any(with_experts[:dense]):
        raise ConfigError(f"{config.name}: {key}: only leading layers may be dense")
    return dense


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
        config.asked.add(self.key)
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
_KINDS_OF_TRANSFORMERS_5 = {"linear_attention": "mamba", "full_attention": "attention"}


_LAYER_LIST = "layers_block_type|layer_types"


def hybrid_layers(config: HfConfig, found: Found) -> Found:
    """Read layers that each hold one block (`M-M*ME`), the Mamba mixer and the experts."""
    kinds = _layer_kinds(config)
    _check_further_tokens(config)
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
    blocks = config.items(_LAYER_LIST)
    if blocks is not None:
        blocks = [_KINDS_OF_TRANSFORMERS_5.get(str(kind), kind) for kind in blocks]
    else:
        blocks = [_KINDS.get(letter, letter) for letter in config.text("hybrid_override_pattern")]
    unknown = [kind for kind in blocks if kind not in _KINDS.values()]
    if unknown:
        raise ConfigError(
            f"{config.name}: layer of kind {_shown(unknown[0])}: expected"
            f" {', '.join(_KINDS.values())}"
        )
    return blocks


def _check_further_tokens(config: HfConfig) -> None:
    """A hybrid's layer for further tokens is one attention and one feed-forward."""
    blocks = config.items("mtp_layers_block_type") or []
    blocks = [_KINDS_OF_TRANSFORMERS_5.get(str(kind), kind) for kind in blocks]
    if not blocks:
        pattern = config.text("mtp_hybrid_override_pattern", "")
        blocks = [_KINDS.get(letter, letter) for letter in pattern]
    if blocks and sorted(blocks) not in (["attention", "moe"], ["attention", "mlp"]):
        raise ConfigError(
            f"{config.name}: layers for further tokens of {_shown(blocks)}: expected attention and"
            " a feed-forward"
        )


def _mamba(config: HfConfig) -> MambaSpec:
    keys = {
        "num_heads": "mamba_num_heads",
        "head_dim": "mamba_head_dim",
        "state_dim": "ssm_state_size|mamba_state_dim",
        "num_groups": "n_groups|mamba_n_groups",
    }
    config.require(keys.values())
    dims = {field: config.count(key) for field, key in keys.items()}
    return MambaSpec(**dims, conv_kernel=config.count("conv_kernel|mamba_d_conv", 4))


def _hybrid_experts(config: HfConfig) -> Found:
    found = MoeKeys(experts="n_routed_experts")(config, {})
    shared_ffn = config.count("moe_shared_expert_intermediate_size", 0, least=0)
    shared_ffn *= config.count("n_shared_experts", 1, least=0)
    latent_dim = config.count("moe_latent_size") if config.has("moe_latent_size") else None
    return found | {"moe": replace(found["moe"], shared_ffn=shared_ffn, latent_dim=latent_dim)}
