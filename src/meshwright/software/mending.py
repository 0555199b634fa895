"""How a configuration file is edited for another layout: the words of an export, the fewest of them
with which the file reads as the layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from meshwright.software.contract import ExportTarget, Imported, Mended
from meshwright.software.plan import TrainingPlan, completed
from meshwright.software.split import chunk_layers
from meshwright.software.text import Taken
from meshwright.values.edited import Format, Values, edited_values, smallest
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout
from meshwright.values.text import read_yaml

__all__ = ["fewest", "like_export", "nodes_note", "says_layout"]

_READ = (
    *("tp", "cp", "pp", "vpp", "ep", "mbs", "sharding"),
    *("recompute", "recompute_layers", "recompute_modules"),
)


def says_layout(read: dict[str, Any], layout: Layout, *, layers: int) -> bool:
    """Whether the fields that a file sets, with the defaults of Layout, are those of a layout; a
    batch and replicas that it leaves to its program are the caller's."""
    usual = Layout()
    names = [*_READ, *(name for name in ("dp", "gbs") if name in read)]
    names += ["sp"] if layout.tp > 1 else []
    names += ["schedule"] if layout.pp > 1 else []
    names += ["shard_size"] if layout.sharding == "hybrid" else []
    if any(read.get(name, getattr(usual, name)) != getattr(layout, name) for name in names):
        return False
    if layout.ep > 1 and read.get("etp", layout.tp) != layout.expert_tp:
        return False
    if layout.recompute == "full" and layout.recompute_layers is not None:
        method = read.get("recompute_method", usual.recompute_method)
        if method != layout.recompute_method:
            return False
    given = read.get("layers_per_stage")
    even = layers % (layout.pp * layout.vpp) == 0
    if layout.pp == 1 or (given is None and layout.layers_per_stage is None):
        return True
    if given is None or (layout.layers_per_stage is None and not even):
        return False
    return tuple(given) == chunk_layers(layout, layers)


def fewest(text: str, ways: Iterable[Values], *, form: Format, same: Callable[[str], bool]) -> str:
    """Return the text with the fewest values of the first way that makes it say what `same` asks;
    ConfigError where none does."""
    if same(text):
        return text
    for values in ways:
        if same(edited_values(text, values, form=form)):
            return smallest(text, values, form=form, same=same)
    raise ConfigError("no edit of the file alone makes it say this layout")


_OF_LAYOUT = frozenset(
    (
        *("tensor_model_parallel_size", "sequence_parallel", "context_parallel_size"),
        *("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size"),
        *("pipeline_model_parallel_layout", "expert_model_parallel_size"),
        *("expert_tensor_parallel_size", "micro_batch_size", "global_batch_size"),
        *("recompute_granularity", "recompute_method", "recompute_num_layers"),
        *("recompute_modules", "use_distributed_optimizer", "use_megatron_fsdp"),
        *("data_parallel_sharding_strategy", "num_distributed_optimizer_instances"),
        *("activations_checkpoint_granularity", "activations_checkpoint_method"),
        *("activations_checkpoint_num_layers", "num_nodes", "devices"),
    )
)
"""Keys of Megatron-Core's kin that a layout on some chips sets, wherever they stand in a file."""


def like_export(
    text: str,
    plan: TrainingPlan,
    *,
    target: ExportTarget,
    read: Callable[[str], Imported],
) -> Mended:
    """Return a YAML with the fewest of an export's values changed that make it say a plan's
    layout."""
    plan = completed(plan)
    written = [file.text for file in target.write(plan).files if file.name.endswith(".yaml")]
    values = Taken(read_yaml(written[0], what=target.name), what=target.name).left()
    own = Taken(read_yaml(text, what=target.name), what=target.name).left()
    words = {
        path: values.get(path)
        for path in dict.fromkeys((*values, *own))
        if path.rpartition(".")[2] in _OF_LAYOUT
    }

    def same(tried: str) -> bool:
        try:
            found = read(tried)
        except ConfigError:
            return False
        if found.num_chips not in (None, plan.pool.num_chips):
            return False
        batch = {} if found.work.gbs is None else {"gbs": found.work.gbs}
        layers = plan.model.num_layers
        return says_layout({**batch, **found.layout}, plan.layout, layers=layers)

    return Mended(text=fewest(text, [words], form="yaml", same=same), notes=(nodes_note(plan),))


def nodes_note(plan: TrainingPlan) -> str:
    """Say how many processes the program is started with: its launcher's, not the file's."""
    per_node = min(plan.pool.node.chips_per_node, plan.pool.num_chips)
    nodes = -(-plan.pool.num_chips // per_node)
    plural = "s" if nodes > 1 else ""
    return f"start it on {nodes} node{plural} with {per_node} processes each"
