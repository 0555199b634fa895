"""Values of a composed configuration that every part of a search needs: of the right kind, or one
line that names the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meshwright.errors import ConfigError

__all__ = ["check_config"]

_FLAGS = ("run_training_hp_search", "run_inference_hp_search", "dry_run", "wandb.enable")
_TEXTS = ("base_results_dir", "data_dir", "wandb.project", "search_config.train_settings.logs")
_SECTIONS = ("cluster", "wandb", "search_config", "search_config.train_settings")
_ASKED = (
    *(
        "model_size_in_b",
        "act_ckpt_layers",
        "num_nodes",
        "gpus_per_node",
        "gpu_memory_gb",
        "max_training_days",
        "limit_search_runs",
    ),
    *(
        "output_top_n",
        "max_steps_per_run",
        "max_minutes_per_run",
        "tflops_per_gpu",
        "num_tokens_in_b",
        "vocab_size",
        "seq_length",
        "logs",
    ),
)
"""Keys of `train_settings` that every search has."""
_NODE = 8
"""`cluster.gpus_per_node` where nobody sets it."""


def check_config(config: Mapping[str, Any]) -> None:
    """Return where every value is of its kind; ConfigError names the first that is not, and what is
    expected."""
    for key in _SECTIONS:
        if not isinstance(_at(config, key), Mapping):
            raise ConfigError(f"{key}={_at(config, key)}: expected a section of keys")
    train = config["search_config"]["train_settings"]
    for name in _ASKED:
        if name not in train:
            raise ConfigError(f"search_config.train_settings.{name}: missing; give it a value")
    for key in _FLAGS:
        if not isinstance(_at(config, key), bool):
            raise ConfigError(f"{key}={_at(config, key)}: expected True or False")
    for key in _TEXTS:
        if not isinstance(_at(config, key), str) or not _at(config, key):
            raise ConfigError(f"{key}={_at(config, key)}: expected a text")
    if (
        "auto_configurator_path" in config
        and config["auto_configurator_path"] in (None, "")
        and str(train["logs"]).startswith("None/")
    ):
        raise ConfigError(
            "auto_configurator_path=null: expected a path, which results lie below; or give"
            " base_results_dir"
        )
    mounts = config["container_mounts"]
    if mounts is not None and (isinstance(mounts, str) or not isinstance(mounts, Sequence)):
        raise ConfigError(
            f"container_mounts={mounts}: expected a list, such as [/raw/data:/data,/models]"
        )
    runs = config["parallel_runs"]
    if isinstance(runs, bool) or not isinstance(runs, int) or runs < 1:
        raise ConfigError(f"parallel_runs={runs}: expected a whole number of 1 or more")
    _check_node(config["cluster"].get("gpus_per_node", _NODE), train["gpus_per_node"])


def _check_node(said: Any, used: Any) -> None:
    if said not in (_NODE, used):
        raise ConfigError(
            f"cluster.gpus_per_node={said}: nodes have {used} by"
            " search_config.train_settings.gpus_per_node, which counts"
        )


def _at(config: Mapping[str, Any], path: str) -> Any:
    part: Any = config
    for name in path.split("."):
        part = part.get(name) if isinstance(part, Mapping) else None
    return part
