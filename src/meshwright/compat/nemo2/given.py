"""What a recipe says of a training: an object of nemo_run, a mapping, or a name."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from meshwright.api import series_of
from meshwright.compat.checks import at_path, whole
from meshwright.runs.training.request import written
from meshwright.search.problem import Asked, Problem
from meshwright.software.contract import Imported, export_plan, import_text
from meshwright.software.megatron_core.layout import (
    context_words,
    parallel_words,
    recompute_words,
)
from meshwright.software.nemo2.encoders import encoder_kind
from meshwright.software.nemo2.export import NEMO2, finetuned, recipe, recipe_values
from meshwright.software.nemo2.read import NEMO2_SOURCE
from meshwright.software.plan import TrainingPlan, completed, plan_of
from meshwright.software.settings import TrainingSettings
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.spec import ModelSpec
from meshwright.values.text import write_yaml
from meshwright.values.units import MINUTE_S
from meshwright.values.workload import LORA_TARGETS, LoraTarget, Workload

__all__ = [
    "Given",
    "Mode",
    "changed",
    "given_of",
    "is_object",
    "named_recipe",
    "part_of",
    "refusal_for",
    "size_values",
    "tree_of",
]

_DIMS = ("num_layers", "hidden_size")
"""Where one is set by hand, the class's name no longer says the model, and all fields are read."""
_PLAIN = (bool, int, float, str)


def is_object(recipe: Any) -> bool:
    """Whether this is a Buildable."""
    return hasattr(recipe, "__fn_or_cls__") and hasattr(recipe, "__arguments__")


def tree_of(recipe: Any) -> dict[str, Any]:
    """Return a recipe as nemo_run's mapping; with every dim of a model that was changed by hand."""
    if isinstance(recipe, Mapping):
        return copy.deepcopy(dict(recipe))
    tree = _tree(recipe)
    assert isinstance(tree, dict), "an object with arguments is a mapping"
    config = getattr(getattr(recipe, "model", None), "config", None)
    if is_object(config) and _wants_dims(config):
        tree["model"]["config"] = {**_dims(config), **tree["model"]["config"]}
    return tree


def _tree(value: Any) -> Any:
    if is_object(value):
        return {
            "_target_": _name(value.__fn_or_cls__),
            **{key: _tree(entry) for key, entry in value.__arguments__.items()},
        }
    if isinstance(value, list | tuple):
        return [_tree(entry) for entry in value]
    if isinstance(value, Mapping):
        return {str(key): _tree(entry) for key, entry in value.items()}
    if value is None or isinstance(value, _PLAIN):
        return value
    return {"_target_": _name(value), "_call_": False}


def _name(target: Any) -> str:
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    # A dtype has neither, and reads torch.bfloat16.
    return f"{module}.{name}" if module and name else str(target)


def _wants_dims(config: Any) -> bool:
    """Whether dims are set by hand, here or in a class of the user's own."""
    own = not config.__fn_or_cls__.__module__.startswith("nemo.")
    return own or any(name in config.__arguments__ for name in _DIMS)


def _dims(config: Any) -> dict[str, Any]:
    """Every plain field of a configuration, with its default where it was not given."""
    made_of = config.__fn_or_cls__
    names = list(config.__arguments__)
    if is_dataclass(made_of):
        names = [field.name for field in fields(made_of)]
    found = {}
    for name in names:
        try:
            value = getattr(config, name)
        except (AttributeError, ValueError):
            continue  # a field with neither a value nor a default
        if isinstance(value, _PLAIN):
            found[name] = value
    return found


def part_of(recipe: Any, path: str) -> Any:
    """Return the part at a dotted path, itself where it is empty; ConfigError where absent."""
    part = recipe
    for name in path.split(".") if path else ():
        part = part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)
        if part is None:
            raise ConfigError(f"recipe: has no {path}")
    return part


def changed(recipe: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a recipe with some dotted keys set; ConfigError where a part is missing."""
    found = copy.deepcopy(recipe)
    for path, value in values.items():
        above, _, last = path.rpartition(".")
        _set(part_of(found, above), last, value, path=path)
    return found


def _set(part: Any, name: str, value: Any, *, path: str) -> None:
    if isinstance(part, dict):
        part[name] = value
        return
    try:
        setattr(part, name, value)
    except AttributeError:  # fiddle's, of a parameter that the class has not
        if value is not None:
            raise ConfigError(
                f"recipe: {path}={value}: {_name(part.__fn_or_cls__)} has no such parameter"
            ) from None


Mode = Literal["pretrain", "finetune"]
_TYPES = (
    *("gpt3", "bert", "mt5", "t5", "llama", "mixtral", "mistral", "gemma", "nemotron"),
    *("starcoder", "qwen"),
)
"""NeMo's words for families of models, which its files are called by; others go by our own."""
_BEGINNINGS = {"gpt3": "gpt"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """One recipe, read."""

    recipe: Any
    """As it was given; None for a name."""
    model: ModelSpec
    model_type: str
    series: str
    """Of shapes of other sizes; empty where the model is of no known series."""
    work: Workload
    """With its batch; adapters have a rank."""
    num_nodes: int
    devices: int
    sharding: str
    """none or zero1, as the recipe's optimizer; more where it has FSDP."""
    imported: Imported | None

    @property
    def num_gpus(self) -> int:
        return self.num_nodes * self.devices


def given_of(
    recipe: Any,
    *,
    mode: Mode,
    vocab_size: int,
    num_nodes: int,
    num_gpus_per_node: int,
    seq_length: int | None,
    global_batch_size: int | None,
    lora_rank: int,
) -> Given:
    """Read a recipe; sizes and `lora_rank` are of one that is given by name."""
    if isinstance(recipe, str):
        if seq_length is None or global_batch_size is None:
            raise ConfigError(
                f"recipe={recipe!r}: a name alone has no batch; give seq_length and"
                " global_batch_size, or a recipe object"
            )
        model = find_model(recipe)
        rank = lora_rank if mode == "finetune" else 0
        return Given(
            recipe=None,
            model=model,
            model_type=_type_of(model.name),
            series=series_of(model.name),
            work=Workload(seq_len=seq_length, gbs=global_batch_size, lora_rank=rank),
            num_nodes=num_nodes,
            devices=num_gpus_per_node,
            sharding="none" if rank else "zero1",
            imported=None,
        )
    if not isinstance(recipe, Mapping) and not is_object(recipe):
        raise ConfigError(
            "recipe: expected a recipe of NeMo 2.0, its YAML as a mapping, or a name such as"
            f" 'llama3-8b'; got {recipe!r:.60}"
        )
    if (seq_length, global_batch_size, num_nodes, num_gpus_per_node) != (None, None, 1, 8):
        raise ConfigError(
            "seq_length, global_batch_size, num_nodes, num_gpus_per_node: the recipe says them;"
            " they go with a name"
        )
    return _of_tree(recipe, mode=mode, vocab_size=vocab_size)


def _of_tree(recipe: Any, *, mode: Mode, vocab_size: int) -> Given:
    tree = tree_of(recipe)
    config = _part(tree, "model.config")
    trainer, data = _part(tree, "trainer"), _part(tree, "data")
    name = str(config.get("_target_", "")).rpartition(".")[2]
    kind = encoder_kind(name)
    if "num_layers" in config or kind is not None:
        config.setdefault("vocab_size", vocab_size)
    imported = import_text(write_yaml(tree), source=NEMO2_SOURCE)
    rank = _rank(tree.get("peft")) if mode == "finetune" else 0
    batch, length = _count(data, "global_batch_size"), _count(data, "seq_length")
    precision = _precision(imported, rank)
    work = replace(imported.work, gbs=batch, seq_len=length, precision=precision, lora_rank=rank)
    if rank:
        work = replace(work, lora_targets=_targets(tree["peft"]))
    return Given(
        recipe=recipe,
        model=imported.model,
        model_type=kind or _type_of(name.lower() or imported.model.name),
        series=kind or series_of(imported.model.name),
        work=work,
        num_nodes=_count(trainer, "num_nodes"),
        devices=_count(trainer, "devices"),
        sharding="none" if rank else str(imported.layout.get("sharding", "zero1")),
        imported=imported,
    )


def _precision(imported: Imported, rank: int) -> Any:
    """Return what the recipe computes in; adapters are priced over half-precision weights."""
    precision = imported.work.precision
    if rank and precision in ("fp32", "tf32"):
        raise ConfigError(
            f"recipe: peft with precision={precision}: adapters are priced over half-precision"
            " weights"
        )
    return precision


def _part(tree: Mapping[str, Any], path: str) -> dict[str, Any]:
    part = at_path(tree, path)
    if not isinstance(part, dict):
        raise ConfigError(f"recipe: has no {path}")
    return part


def _count(part: Mapping[str, Any], name: str) -> int:
    return whole(part.get(name), f"recipe: {name}={part.get(name)}")


def _rank(peft: Any) -> int:
    """Return the rank of adapters; NeMo's own default is 32."""
    if peft is None:
        return 0
    rank = peft.get("dim", 32) if isinstance(peft, Mapping) else None
    if not isinstance(rank, int) or rank < 1:
        raise ConfigError(f"recipe: peft={peft}: expected LoRA or DoRA with a dim, or none")
    return rank


def _targets(peft: Mapping[str, Any]) -> tuple[LoraTarget, ...]:
    """Return the layers with adapters; NeMo's own default is all, and names of single layers
    (`*.layers.0.*.linear_qkv`) count as their kind."""
    named = peft.get("target_modules") or LORA_TARGETS
    kinds = {str(name).rpartition(".")[2] for name in named}
    found = tuple(target for target in LORA_TARGETS if target in kinds)
    if len(found) < len(kinds):
        raise ConfigError(
            f"recipe: peft.target_modules={', '.join(map(str, named))}: expected"
            f" {', '.join(LORA_TARGETS)}"
        )
    return found


def _type_of(name: str) -> str:
    """NeMo's word for a family, by the beginning of a model's or a class's name."""
    known = next((word for word in _TYPES if name.startswith(_BEGINNINGS.get(word, word))), None)
    return known or re.split(r"[^a-z]", name.lower())[0] or name


_NAME = "NeMo 2.0"
_RECOMPUTE = ("granularity", "method", "num_layers", "modules")


def refusal_for(given: Given, problem: Problem) -> Callable[[Layout], str | None]:
    """Return what says why NeMo 2.0 can't run a layout."""

    def refusal(layout: Layout) -> str | None:
        try:
            plan = _plan(problem, layout, steps=1)
            if given.recipe is None:
                export_plan(plan, target=NEMO2)
            else:
                layout_values(plan)
        except ConfigError as error:
            return str(error)
        return _of_release(given.recipe, layout) or _of_encoders(given.model, layout)

    return refusal


_SPLIT = "pipeline_model_parallel_layout"


def _of_release(recipe: Any, layout: Layout) -> str | None:
    """Say why the NeMo that made a recipe can't cut stages unevenly: before v2.4 its strategy has
    no word for them, and hands what it does not know to PyTorch's."""
    if layout.layers_per_stage is None or not is_object(recipe):
        return None
    strategy = recipe.trainer.strategy
    if not is_object(strategy) or _SPLIT in signature(strategy.__fn_or_cls__).parameters:
        return None
    return f"{_NAME}: before v2.4 stages are even; its MegatronStrategy has no {_SPLIT}"


def _of_encoders(model: ModelSpec, layout: Layout) -> str | None:
    """Say why T5 or BERT can't be cut so.

    Source: NeMo 2.5, nemo/lightning/megatron_init.py, which asserts that an encoder has no stages
            of its own, as T5Config wants them
    under a pipeline, and T5Config.configure_model, which takes no virtual stages.
    """
    if model.family == "encoder-decoder" and (layout.pp > 1 or layout.vpp > 1):
        return (
            f"{_NAME}: its T5 runs under no pipeline, pp={layout.pp}"
            " (nemo/lightning/megatron_init.py)"
        )
    if model.family != "decoder" and layout.cp > 1:
        return f"{_NAME}: the sequence of T5 and BERT is not cut there, cp={layout.cp}"
    return None


def _plan(problem: Problem, layout: Layout, *, steps: int) -> TrainingPlan:
    """The plan as of pretraining: adapters are written beside it."""
    setting = problem.setting
    plain = replace(problem, setting=replace(setting, work=replace(setting.work, lora_rank=0)))
    settings = TrainingSettings.of({"train_steps": steps, "log_interval": 1, "eval_steps": 0})
    return plan_of(Asked(layout=layout, problem=plain), settings=settings)


def layout_values(plan: TrainingPlan) -> dict[str, Any]:
    """Return the dotted keys of a recipe that a layout is, each with its value."""
    recompute, names = recompute_words(plan), [f"recompute_{name}" for name in _RECOMPUTE]
    return {
        **{f"trainer.strategy.{name}": value for name, value in parallel_words(plan).items()},
        **{f"model.config.{name}": recompute.get(name) for name in names},
        **{f"model.config.{name}": way for name, way in context_words(completed(plan)).items()},
        "data.micro_batch_size": plan.layout.mbs,
        "data.global_batch_size": plan.layout.gbs,
    }


def given_values(problem: Problem, layout: Layout, *, steps: int) -> dict[str, Any]:
    """Return what makes a recipe that was given a short run of a layout."""
    length = {"trainer.max_steps": steps, "trainer.log_every_n_steps": 1}
    return layout_values(_plan(problem, layout, steps=steps)) | length


def size_values(model: ModelSpec) -> dict[str, Any]:
    """Return the dims of a model whose size was calculated."""
    words = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden,
        "num_attention_heads": model.num_heads,
        "kv_channels": model.head_dim,
        "ffn_hidden_size": model.ffn,
    }
    if model.num_kv_heads != model.num_heads:
        words["num_query_groups"] = model.num_kv_heads
    if model.encoder_layers:
        words |= {"encoder_num_layers": model.encoder_layers, "gated_linear_unit": model.gated}
    return {f"model.config.{name}": value for name, value in words.items()}


def named_recipe(
    problem: Problem,
    layout: Layout,
    *,
    steps: int,
    restore_from: str | None,
    logs: Path | None,
    minutes: float,
) -> dict[str, Any]:
    """Return a whole recipe as nemo_run's mapping; `restore_from` makes it fine-tune."""
    tree = recipe(completed(_plan(problem, layout, steps=steps)))
    if restore_from is not None:
        tree = finetuned(tree, restore_from=restore_from, work=problem.setting.work)
    values: dict[str, Any] = recipe_values(tree)
    values["trainer"] |= {
        "max_time": time_words(minutes),
        "callbacks": [{"_target_": "nemo.utils.exp_manager.TimingCallback"}],
    }
    if logs is not None:
        values["log"] |= {"log_dir": str(logs)}
    return values


def time_words(minutes: float) -> str:
    """Return a time as Lightning's `max_time` reads it."""
    return written(round(minutes * MINUTE_S), "days:hours:minutes:seconds")
