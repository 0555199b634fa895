"""A configuration of AMD's Primus for its Megatron-LM, read and edited in place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from meshwright.software.contract import Imported, ImportSource, Mended
from meshwright.software.megatron_lm.read import read_flags
from meshwright.software.mending import fewest, nodes_note, says_layout
from meshwright.software.plan import TrainingPlan, completed
from meshwright.software.primus.export import CORE, NAME, values_over
from meshwright.software.primus.presets import (
    flags_of,
    keys,
    model_presets,
    usual_values,
    without_variables,
)
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.switches import known_words
from meshwright.values.text import read_yaml

__all__ = ["PRIMUS_SOURCE", "read_primus"]

_MOCK_VOCAB = 131_072
"""Words of mock data where a configuration says none (mock_data_patches.py of Primus)."""
_DEEPEP = {"moe_token_dispatcher_type": "flex", "moe_enable_deepep": True}
"""What use_turbo_deepep stands for (moe_dispatcher_patches.py of Primus)."""
_LAYOUT = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "sequence_parallel"),
    *("context_parallel_size", "expert_model_parallel_size", "expert_tensor_parallel_size"),
    *("pipeline_model_parallel_layout", "num_layers_per_virtual_pipeline_stage"),
    *("num_virtual_stages_per_pipeline_rank", "decoder_first_pipeline_num_layers"),
    *("decoder_last_pipeline_num_layers", "micro_batch_size", "global_batch_size"),
    *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
    *("use_distributed_optimizer", "use_megatron_fsdp", "data_parallel_sharding_strategy"),
    *("num_distributed_optimizer_instances", "virtual_pipeline_model_parallel_size"),
)
"""Keys that an edit for another layout sets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trainer:
    """The part of a configuration that trains."""

    at: str
    """Its path."""
    preset: str
    given: Mapping[str, Any]
    """What it says beside its presets."""

    def values(self) -> dict[str, Any]:
        """Return what it says with them."""
        return usual_values(self.preset) | dict(self.given)


def _trainer(text: str) -> _Trainer:
    modules = read_yaml(without_variables(text), what=NAME).get("modules")
    found = modules if isinstance(modules, Mapping) else {}
    for name, module in found.items():
        if not isinstance(module, Mapping) or "framework" not in module:
            continue
        if module["framework"] != "megatron":
            words = f"modules.{name}.framework={module['framework']}"
            raise ConfigError(f"{NAME}: {words}: its configurations for megatron are read")
        preset = str(module.get("model", "")).removesuffix(".yaml")
        if preset not in model_presets():
            raise UnknownNameError(f"{NAME}: model preset", preset, tuple(model_presets()))
        given = module.get("overrides") or {}
        if not isinstance(given, Mapping):
            raise ConfigError(f"{NAME}: modules.{name}.overrides: expected keys and values")
        return _Trainer(at=f"modules.{name}.overrides", preset=preset, given=given)
    raise ConfigError(f"{NAME}: modules: expected pre_trainer with a framework")


def read_primus(text: str) -> Imported:
    """Return the run that a configuration describes."""
    trainer = _trainer(text)
    values = trainer.values()
    said = dict(values)
    if values.get("use_turbo_deepep") and values.get("enable_primus_turbo"):
        said |= _DEEPEP
    if values.get("mock_data"):
        said |= {"tokenizer_type": "NullTokenizer", "tokenizer_model": None}
        said["vocab_size"] = values.get("vocab_size") or _MOCK_VOCAB
    if (data := said.pop("train_data_path", None)) is not None:
        said["data_path"] = data if isinstance(data, str) else " ".join(map(str, data))
    if said.get("multi_latent_attention"):
        said["qk_layernorm"] = False  # of latents, which every model with them has
    if said["tensor_model_parallel_size"] == 1:
        said["sequence_parallel"] = False  # as sequence_parallel_tp1_patches.py of Primus does
    flags = f"pretrain_gpt.py {shlex.join(flags_of(said))}"
    try:
        found = read_flags(f"# Megatron-LM, core {CORE}\n{flags}\n", stack=NAME)
    except ConfigError as error:
        raise ConfigError(f"{NAME}: {_in_keys(str(error))}") from None
    return replace(
        found,
        source=NAME,
        told=_told(values),
        passed_through=_passed(found.passed_through, trainer.given),
        warnings=(*map(_in_keys, found.warnings), *_unknown(trainer.given)),
    )


def _told(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return which words of the stack a configuration has; those of experts without effect on a
    model without them."""
    words = [word.partition("=") for word in known_words(NAME)]
    return tuple(
        f"{key}={value}"
        for key, _, value in words
        if bool(values.get(key)) == (value == "true")
        and (values.get("num_experts") or not key.startswith(("use_turbo_deepep", "moe_")))
    )


def _passed(words: tuple[str, ...], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return of what is handed on what the file itself says; the presets' say it again."""
    own = {flags_of({name: value})[:1] for name, value in given.items()}
    kept: list[str] = []
    holds = False
    for word in words:
        if word.startswith("--"):
            holds = (word,) in own
        if holds:
            kept.append(word)
    return tuple(kept)


def _unknown(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Warn of keys that no preset and no argument of the release has, which Primus passes over."""
    known = {name for preset in model_presets().values() for name in preset} | keys().keys()
    left = [name for name in given if name not in known]
    return (f"{', '.join(left)}: no key of Primus, which passes it over",) if left else ()


def _in_keys(sentence: str) -> str:
    """Return a sentence about flags in the words of the configuration."""
    named = {key.flag: name for name, key in keys().items() if key.flag}
    return re.sub(r"--[\w-]+", lambda found: named.get(found[0], found[0]), sentence)


def _mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    plan = completed(plan)
    trainer = _trainer(text)
    there = usual_values(trainer.preset)
    wanted = values_over(plan, there)
    words = {
        f"{trainer.at}.{name}": value if name in trainer.given or value != there[name] else None
        for name in _LAYOUT
        if (value := wanted.get(name, keys()[name].megatron)) != trainer.values().get(name)
    }

    def same(tried: str) -> bool:
        try:
            read = read_primus(tried)
        except ConfigError:
            return False
        layers = plan.model.num_layers
        return says_layout({"gbs": read.work.gbs, **read.layout}, plan.layout, layers=layers)

    return Mended(text=fewest(text, [words], form="yaml", same=same), notes=(nodes_note(plan),))


def _matches(name: str, text: str) -> bool:
    return (
        name.endswith((".yaml", ".yml"))
        and re.search(r"^modules:", text, re.MULTILINE) is not None
        and "framework:" in text
    )


PRIMUS_SOURCE = ImportSource(
    name=NAME,
    title="Primus's YAML",
    matches=_matches,
    read=read_primus,
    mend=_mended,
)
