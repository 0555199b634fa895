"""Megatron-Bridge's own performance recipes, by release.

`scripts/distil_recipes.py megatron-bridge CLONE` writes the table `recipes.csv` from the public
repository; no line is typed. A blank cell means that the recipe leaves the setting to a library, or
that it is off. Of the variants of a recipe those are left out that differ from the default in the
batch and the number of GPUs alone, and of releases that mend another (v0.4.2) all lines that are as
in the release before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError
from meshwright.values.start import Dispatcher, GraphMaker, Start
from meshwright.values.workload import Precision

__all__ = [
    "RECIPES_OF",
    "Recipe",
    "Task",
    "find_recipe",
    "is_known",
    "other_models",
    "recipes",
    "releases",
]

RECIPES_OF = "megatron-bridge"
"""The stack whose releases have recipes: `--stack megatron-bridge@26.02`."""
_TABLE = "software/megatron_bridge/recipes.csv"
Task = Literal["pretrain", "sft", "lora"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """What a release runs for a model on a number of GPUs; None and () where it says nothing."""

    release: str
    """The repository's tag."""
    container: str | None
    """The NeMo container that ships the release."""
    model: str
    """The repository's name of the model."""
    meshwright_model: str | None
    """The catalogue's name."""
    task: Task
    gpu: str
    precision: Precision
    variant: str | None
    is_default: bool
    """Taken by the launcher when model, task, GPU and precision are named and no more."""
    num_gpus: int
    seq_len: int
    tp: int
    pp: int
    cp: int
    vpp: int | None
    ep: int
    etp: int | None
    gbs: int
    mbs: int
    pp_layout: str | None
    """Stages as Megatron-Core writes them: `Et*4|(t*4|)*14tmL`."""
    recompute: Literal["selective", "full"] | None
    recompute_modules: tuple[str, ...]
    recompute_num_layers: int | None
    cpu_offloading_num_layers: int | None
    offload_modules: tuple[str, ...]
    """Modules whose kept inputs wait in host memory."""
    dispatcher: Dispatcher | None
    a2a_overlap: bool
    """Exchanges of one micro-batch run beside another's compute."""
    cuda_graph_impl: GraphMaker
    cuda_graph_scope: tuple[str, ...]
    megatron_fsdp: bool
    nccl_ub: bool
    """NCCL's registered user buffers."""
    tp_comm_overlap: bool
    grad_reduce_in_fp32: bool | None
    router_fusion: bool
    op_fuser: bool
    """Transformer Engine's fused operations, the grouped feed-forward among them."""
    expert_capacity_factor: float | None
    """Tokens over it are dropped, and fewer are padded up to it."""
    moment_dtype: str | None
    """Of Adam's moments, where not fp32."""
    lora_targets: tuple[str, ...]
    source: str
    """File of the repository at the tag."""

    @property
    def start(self) -> Start:
        """What it switches on beside the layout. One for tp=1 says nothing of what hides with
        tensor parallelism, which is then the library's own."""
        return Start(
            dispatcher=self.dispatcher,
            a2a_overlap=self.a2a_overlap,
            cuda_graph_impl=self.cuda_graph_impl,
            cuda_graph_scope=self.cuda_graph_scope,
            router_fusion=self.router_fusion,
            op_fuser=self.op_fuser,
            tp_comm_overlap=self.tp_comm_overlap or self.tp == 1,
            cpu_offloading_num_layers=self.cpu_offloading_num_layers or 0,
            half_moments=self.moment_dtype == "bfloat16",
        )


@cache
def recipes() -> tuple[Recipe, ...]:
    """Return all recipes, oldest release first."""
    return tuple(_recipe(row) for row in package_rows(_TABLE))


@cache
def releases() -> tuple[str, ...]:
    """Return the tags that have recipes, oldest first."""
    return tuple(dict.fromkeys(recipe.release for recipe in recipes()))


def find_recipe(
    *,
    release: str,
    model: str,
    gpu: str,
    precision: Precision,
    task: Task = "pretrain",
    num_gpus: int | None = None,
) -> Recipe | None:
    """Return the recipe that the launcher of a release takes, None where there is none.

    `release` is a version of Megatron-Bridge (`v0.3.0`, `0.3`) or a NeMo container (`26.02`);
    `model` is the catalogue's name or the repository's. Where a release lacks the recipe, that of
    the newest release before counts. Among recipes for several numbers of GPUs, `num_gpus` picks
    its own where there is one, else the default.
    """
    last = _release_index(release)
    fitting = [
        recipe
        for recipe in recipes()
        if model in (recipe.model, recipe.meshwright_model)
        and (recipe.task, recipe.gpu, recipe.precision) == (task, gpu, precision)
        and releases().index(recipe.release) <= last
    ]
    default = next((recipe for recipe in reversed(fitting) if recipe.is_default), None)
    if default is None or num_gpus is None:
        return default
    alike = (recipe for recipe in fitting if _is_other_size(recipe, default, num_gpus))
    return next(alike, default)


def _is_other_size(recipe: Recipe, default: Recipe, num_gpus: int) -> bool:
    """True for a release's recipe of the same kind as the default, for that number of GPUs."""
    same = (recipe.release, recipe.variant) == (default.release, default.variant)
    return same and recipe.num_gpus == num_gpus


def other_models(*, release: str, gpu: str) -> tuple[Recipe, ...]:
    """Return the default pre-training recipes of a release for a GPU, of all models and number
    formats; those of the newest release before where it has none."""
    last = _release_index(release)
    for tag in reversed(releases()[: last + 1]):
        found = tuple(
            recipe
            for recipe in recipes()
            if (recipe.release, recipe.gpu, recipe.task) == (tag, gpu, "pretrain")
            and recipe.is_default
        )
        if found:
            return found
    return ()


def is_known(release: str) -> bool:
    """Whether a release is no newer than the newest that has recipes."""
    newest = releases()[-1]
    shown = _containers()[newest] if _is_container(release) else newest
    return _numbers(release)[:2] <= _numbers(shown or newest)[:2]


def _is_container(release: str) -> bool:
    """`26.02`; a version of Megatron-Bridge has one figure behind its first point, as `0.3.0`."""
    return re.match(r"v?\d+\.\d\d(?!\d)", release) is not None


def _release_index(release: str) -> int:
    """The place of the newest release that is not after the one asked for, -1 where all are."""
    shape = re.fullmatch(r"v?(\d+)\.(\d+)((?:\.\d+)*)(?:rc\d+)?", release)
    if not shape:
        raise ConfigError(
            f"release={release!r}: expected a version of Megatron-Bridge such as 0.3.0 or a NeMo"
            " container such as 26.02"
        )
    wanted = _numbers(release)
    is_container = len(shape[2]) == 2
    reached = -1
    for index, tag in enumerate(releases()):
        shown = _containers()[tag] if is_container else tag
        if shown and _numbers(shown) <= wanted:
            reached = index
    return reached


@cache
def _containers() -> dict[str, str | None]:
    return {recipe.release: recipe.container for recipe in recipes()}


def _numbers(version: str) -> tuple[int, ...]:
    """`v0.3` as (0, 3, 0); a candidate counts as its version."""
    parts = re.findall(r"\d+", version.partition("rc")[0])
    return tuple(int(part) for part in (*parts, "0"))[:3]


def _recipe(row: dict[str, str]) -> Recipe:
    cells: dict[str, object] = {}
    for name, kind in Recipe.__annotations__.items():
        cells[name] = _cell(row[name], kind=str(kind))
    return Recipe(**cells)  # type: ignore[arg-type]


def _cell(text: str, *, kind: str) -> object:
    """The value of a cell by the type of its field."""
    if kind.startswith("tuple"):
        return tuple(text.split())
    if kind == "bool":
        return text == "1"
    if not text:
        return None
    if kind.startswith("bool"):
        return text == "1"
    if kind.startswith(("int", "float")):
        return int(text) if kind.startswith("int") else float(text)
    return text
