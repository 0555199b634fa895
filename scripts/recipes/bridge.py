"""Megatron-Bridge's performance recipes, in the three forms that its releases have them.

v0.1 keeps YAML files with a matrix of GPUs and precisions (bridge_launch.py reads it), v0.2 to
v0.5 constants of a dataclass WorkloadBaseConfig, from v0.6 on one function per recipe. Whatever
the form, the settings are those of the finished configuration, as the release's own run_script.py
would hand it to training: the source is evaluated (evaluate.py), not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scripts.recipes.bridge_launch import Launch, defaults_of_arguments, evaluator_for, launch
from scripts.recipes.bridge_settings import settings_of
from scripts.recipes.trees import Tree
from scripts.recipes.values import ModuleValue, Raised, Record, Unsupported

__all__ = ["FOLDERS", "Found", "read_recipes"]

FOLDERS = ("scripts/performance", "scripts/common", "src/megatron/bridge", "docs")
"""What is read of a release."""
_PERFORMANCE = "scripts/performance/"
_MODELS = "src/megatron/bridge/models/"
_FLAT = "src/megatron/bridge/perf_recipes/"
_LEFT_OUT = ("qwen_vl", "wan")
"""Families of pictures and films, which are not language models."""
_TASKS = {"pretrain": "pretrain", "sft": "sft", "lora": "lora", "peft": "lora"}
"""Our word of each task of theirs; v0.6 calls LoRA after its class of methods."""
_GPUS = r"H100|H200|A100|B200|B300|GB200|GB300|VR200|R100"
_TYPES = r"BF16|FP8_CS|FP8_MX|FP8_SC|FP8_DS|NVFP4"
_CONSTANT_02 = re.compile(rf"(\w+?)_({_GPUS})(?:_(SFT|LORA))?_({_TYPES})_BASE_CONFIG")
_CONSTANT = re.compile(rf"(\w+?)_(PRETRAIN|SFT|LORA)_CONFIG_({_GPUS})_({_TYPES})(?:_(\w+))?")
_FUNCTION = re.compile(
    rf"([a-z]\w*?)_(pretrain|sft|peft)_(\d+)gpu_({_GPUS.lower()})_"
    r"(bf16|fp8cs|fp8mx|fp8sc|nvfp4)(?:_(\w+?))?_config"
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """A recipe as the repository has it."""

    model: str
    task: str
    gpu: str
    compute_dtype: str
    """Their word: `fp8_cs`."""
    variant: str
    num_gpus: int
    source: str
    """Path of the file at the tag."""
    settings: dict[str, str]
    is_default: bool = False
    """What the launcher takes when model, task, GPU and precision are named and no more."""


def read_recipes(tree: Tree) -> tuple[list[Found], list[str]]:
    """Return a release's recipes, and what could not be evaluated, in words."""
    if any(path.startswith(_FLAT) for path in tree):
        read = _read_functions(tree)
    elif any(path.endswith("workload_base_configs.py") for path in tree):
        read = _read_constants(tree)
    else:
        read = _read_matrices(tree)
    found: list[Found] = []
    failed: list[str] = []
    for one in read:
        if isinstance(one, str):
            failed.append(one)
        else:
            found.append(one)
    default = _model_dispatcher(tree)
    for one in found:
        one.settings["dispatcher"] = one.settings["dispatcher"] or default
    return _without_doubles(found), failed


def _model_dispatcher(tree: Tree) -> str:
    """The exchange that all sparse models have before a recipe names another, where they agree."""
    setting = re.compile(r'moe_token_dispatcher_type(?:: str)? = "(\w+)"')
    models = [text for path, text in tree.items() if path.startswith(_MODELS)]
    words = {word for text in models for word in setting.findall(text)}
    return words.pop() if len(words) == 1 else ""


def _without_doubles(found: Sequence[Found]) -> list[Found]:
    """Drop what differs from the default of its model, task, GPU and precision in the batch and the
    number of GPUs alone, which a user chooses anyway."""
    chosen = {_key(one): _shape(one) for one in found if one.is_default}
    return [one for one in found if one.is_default or _shape(one) != chosen.get(_key(one))]


def _shape(one: Found) -> dict[str, str]:
    return {name: held for name, held in one.settings.items() if name != "gbs"}


# --- v0.1: a YAML file per model ---


def _read_matrices(tree: Tree) -> Iterator[Found | str]:
    import yaml

    defaults = defaults_of_arguments(tree)
    for path in sorted(tree):
        parts = re.fullmatch(_PERFORMANCE + r"configs/(\w+)/(\w+)_llm_pretrain\.yaml", path)
        if not parts:
            continue
        name, model = parts.groups()
        matrix = yaml.safe_load(tree[path])["perf_matrix"]
        for gpu, count, dtype in _cells(matrix):
            kind, _, scaling = dtype.partition("_")
            words = {
                **{"model_name": name, "model_size": model.removeprefix(f"{name}_"), "gpu": gpu},
                **{"num_gpus": count, "compute_dtype": kind, "fp8_recipe": scaling or "ds"},
                **{"task": "pretrain", "config_file": path},
            }
            yield _launched(
                Launch(tree=tree, gpu=gpu, arguments={**defaults, **words}),
                Found(
                    model=model,
                    task="pretrain",
                    gpu=gpu,
                    compute_dtype={"fp8_ss": "fp8_sc"}.get(dtype, dtype),
                    variant="" if dtype != "fp8_ds" else "delayed_scaling",
                    num_gpus=count,
                    source=path,
                    settings={},
                    is_default=dtype != "fp8_ds",
                ),
            )


def _cells(matrix: dict[str, dict[str, dict[str, object]]]) -> Iterator[tuple[str, int, str]]:
    for gpu, blocks in matrix.items():
        for block, types in blocks.items():
            for dtype in types:
                if dtype != "common":
                    yield gpu, int(block.removeprefix("num_gpus_")), dtype


# --- v0.2 to v0.5: constants ---


def _read_constants(tree: Tree) -> Iterator[Found | str]:
    defaults = defaults_of_arguments(tree)
    wanted = str(defaults.get("config_variant", ""))
    evaluator = evaluator_for(tree, gpu="")
    for path in sorted(tree):
        parts = re.fullmatch(_PERFORMANCE + r"(configs/(\w+)/\w*workload_base_configs)\.py", path)
        if not parts or parts[2] in _LEFT_OUT:
            continue
        module = evaluator.module(parts[1].replace("/", "."))
        assert module is not None, path
        names = _constants(module, family=parts[2], path=path, wanted=wanted)
        for found in names:
            yield _launched(_launch_of(tree, defaults, parts[2], found), found)


def _constants(module: ModuleValue, *, family: str, path: str, wanted: str) -> list[Found]:
    """The recipes that a module's constants name; of the settings only the number of GPUs."""
    found: list[Found] = []
    for name, value in module.values.items():
        if not isinstance(value, Record) or value.kind != "WorkloadBaseConfig":
            continue
        old, new = _CONSTANT_02.fullmatch(name), _CONSTANT.fullmatch(name)
        if old:
            model, gpu, task, dtype, variant = (*old.groups(), None)
        elif new:
            model, task, gpu, dtype, variant = new.groups()
        else:
            continue
        found.append(
            Found(
                model=model.lower(),
                task=_TASKS[(task or "pretrain").lower()],
                gpu=gpu.lower(),
                compute_dtype=dtype.lower(),
                variant=(variant or "").lower(),
                num_gpus=value.known["num_gpus"],
                source=path,
                settings={},
            )
        )
    return [replace(one, is_default=_is_default(one, found, wanted)) for one in found]


def _is_default(one: Found, found: Sequence[Found], wanted: str) -> bool:
    """True for the variant that get_workload_base_config takes: the wanted one, then v1, then the
    one without a name."""
    others = {other.variant for other in found if _key(other) == _key(one)}
    chosen = next((name for name in (wanted, "v1", "") if name in others), "")
    return one.variant == chosen


def _key(one: Found) -> tuple[str, ...]:
    return (one.model, one.task, one.gpu, one.compute_dtype)


def _launch_of(tree: Tree, defaults: dict[str, object], family: str, one: Found) -> Launch:
    words: dict[str, object] = {
        **{"gpu": one.gpu, "num_gpus": one.num_gpus, "compute_dtype": one.compute_dtype},
        **{"task": one.task, "domain": "llm"},
        **{"model_name": family, "model_size": one.model.removeprefix(f"{family}_")},
        **{"model_family_name": family, "model_recipe_name": one.model},
    }
    if one.variant:
        words["config_variant"] = one.variant
    return Launch(tree=tree, gpu=one.gpu, arguments={**defaults, **words})


def _launched(how: Launch, found: Found) -> Found | str:
    try:
        return replace(found, settings=settings_of(launch(how)))
    except (Raised, Unsupported) as error:
        words = (found.source, *_key(found), found.variant)
        return f"{' '.join(words)}: {type(error).__name__} {error}"


# --- from v0.6 on: functions ---


def _read_functions(tree: Tree) -> Iterator[Found | str]:
    found: list[Found | str] = []
    for path in sorted(tree):
        parts = re.fullmatch(rf"{_FLAT}(\w+)/(\w+)/(\w+)\.py", path)
        if not parts or parts[1] in _LEFT_OUT or parts[3] == "__init__":
            continue
        evaluator = evaluator_for(tree, gpu=parts[2])
        module = evaluator.module(path.removeprefix("src/").removesuffix(".py").replace("/", "."))
        assert module is not None, path
        for name in list(module.values):
            words = _FUNCTION.fullmatch(name)
            if not words or f"def {name}(" not in tree[path]:
                continue
            try:
                config = evaluator.call(evaluator.resolve(module.values[name]))
            except (Raised, Unsupported) as error:
                found.append(f"{path} {name}: {type(error).__name__} {error}")
                continue
            found.append(
                Found(
                    model=words[1],
                    task=_TASKS[words[2]],
                    gpu=words[4],
                    compute_dtype=words[5].replace("fp8", "fp8_"),
                    variant=words[6] or "",
                    num_gpus=int(words[3]),
                    source=path,
                    settings=settings_of(config),
                )
            )
    good = [one for one in found if isinstance(one, Found)]
    chosen = _default_counts(tree)
    for one in found:
        if isinstance(one, str):
            yield one
        else:
            yield replace(one, is_default=_is_default_count(one, good, chosen))


def _default_counts(tree: Tree) -> dict[tuple[object, ...], int]:
    """The numbers of GPUs that the launcher prefers to the largest, by model, task, GPU, precision
    and variant."""
    module = evaluator_for(tree, gpu="").module("utils.utils")
    held = module.values.get("_DEFAULT_GPU_COUNT_OVERRIDES", {}) if module else {}
    return held if isinstance(held, dict) else {}


def _is_default_count(
    one: Found, found: Sequence[Found], chosen: dict[tuple[object, ...], int]
) -> bool:
    if one.variant:
        return False
    key = (one.model, one.task, one.gpu, one.compute_dtype.replace("_", ""), None)
    counts = [o.num_gpus for o in found if _key(o) == _key(one) and not o.variant]
    return one.num_gpus == chosen.get(key, max(counts))
