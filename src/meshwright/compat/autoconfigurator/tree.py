"""The tree of configurations that `key=value` words override: `config`, `cluster/*`,
`search_config/<family>/<size>`.

Keys, interpolations and values are those of NVIDIA's AutoConfigurator (NeMo-Framework-Launcher,
auto_configurator/conf); the rows of `compat/autoconfigurator/nemo1_searches.csv` become
`search_config` entries. Keys of ours are `model`, `series`, `chip`, `precision` and
`global_batch_size` of `train_settings`, `engine`, `model_path` and `container` of
`inference_settings.run`, and `parallel_runs`, `program`, `software` and `dry_run`.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from meshwright.values.data import package_rows

__all__ = ["CLUSTERS", "clusters", "root", "search_names", "searches"]

JOB_NAME_PREFIX = "nemo_megatron_autoconfig:"
"""The old tool's."""
CLUSTERS = ("bcm", "bcp", "k8s", "interactive")
"""Kinds of clusters: Slurm, Base Command Platform, Kubernetes, and this machine."""
_AUTO = "auto"
_LAPTOP = "tiny"
"""The family whose searches are for one machine with two processes."""
_COUNTS = (
    "num_nodes",
    "limit_search_runs",
    "output_top_n",
    "max_steps_per_run",
    "max_minutes_per_run",
    "vocab_size",
    "seq_length",
)
_NUMBERS = ("model_size_in_b", "max_training_days", "tflops_per_gpu", "num_tokens_in_b")


def root() -> dict[str, Any]:
    """Return `config.yaml`."""
    return {
        "defaults": ["_self_", {"cluster": "bcm"}, {"search_config": "gpt3/5b"}],
        "run_training_hp_search": True,
        "run_inference_hp_search": True,
        "cluster_type": "bcm",
        "auto_configurator_path": "???",
        "launcher_scripts_path": "${auto_configurator_path}/../launcher_scripts",
        "base_results_dir": "${auto_configurator_path}/results",
        "data_dir": "${launcher_scripts_path}/data",
        "training_container": "nvcr.io/nvidia/nemo:24.09",
        "container_mounts": [None],
        "wandb": {"enable": False, "api_key_file": None, "project": "nemo-megatron-autoconfig"},
        "search_config_value": "${hydra:runtime.choices.search_config}",
        "parallel_runs": 8,
        "program": None,
        "software": _AUTO,
        "dry_run": False,
    }


def clusters() -> dict[str, dict[str, Any]]:
    """Return `cluster/*.yaml` by name."""
    common: dict[str, Any] = {"gpus_per_node": 8, "job_name_prefix": JOB_NAME_PREFIX}
    return {
        "bcm": {
            "partition": None,
            "account": None,
            "exclusive": True,
            "gpus_per_task": None,
            **common,
            "mem": 0,
            "srun_args": ["--no-container-mount-home"],
        },
        "bcp": {
            "ace": None,
            "org": None,
            "team": None,
            "instance": "dgxa100.80g.8.norm",
            "workspace": None,
            **common,
        },
        "k8s": {
            "namespace": "default",
            "volume": None,
            "nfs_server": None,
            "nfs_path": None,
            **common,
        },
        "interactive": {**common},
    }


@cache
def searches() -> dict[str, dict[str, Any]]:
    """Return every `search_config` by its name, `gpt3/5b`."""
    return {
        f"{row['family']}/{row['size']}": _search(row)
        for row in package_rows("compat/autoconfigurator/nemo1_searches.csv")
    }


def search_names() -> tuple[str, ...]:
    """Return the names of all search configurations."""
    return tuple(searches())


def _search(row: dict[str, str]) -> dict[str, Any]:
    given: dict[str, Any] = {name: int(row[name]) for name in _COUNTS}
    given |= {name: json.loads(row[name]) if row[name] else None for name in _NUMBERS}
    train = {
        **given,
        "gpus_per_node": 2 if row["family"] == _LAPTOP else 8,
        "gpu_memory_gb": 80,
        "chip": _AUTO,
        "model": row["model"] or None,
        "series": row["series"],
        "global_batch_size": _AUTO,
        "precision": _AUTO,
        "custom_config": None,
        "logs": "${base_results_dir}/${search_config_value}_${.gpu_memory_gb}gb",
        "tensor_parallel_sizes": _AUTO,
        "pipeline_parallel_sizes": _AUTO,
        "context_parallel_sizes": _sizes(row["context_parallel_sizes"], [1]),
        "expert_parallel_sizes": _sizes(row["expert_parallel_sizes"], [1]),
        "min_model_parallel_size": _AUTO,
        "max_model_parallel_size": _AUTO,
        "micro_batch_sizes": _AUTO,
        "act_ckpt_layers": _AUTO,
    }
    return {"train_settings": train, "inference_settings": _inference(row)}


def _sizes(cell: str, default: list[int]) -> Any:
    return _AUTO if cell == _AUTO else [int(size) for size in cell.split()] or default


def _inference(row: dict[str, str]) -> dict[str, Any]:
    family, size = row["family"], row["size"]
    known = size if row["model_size_in_b"] else "20b"
    return {
        "run": {
            "model_type": family,
            "model_train_name": f"{family}_{known}",
            "gpus_per_node": 8,
            "data_type": "fp32" if family == _LAPTOP else "fp16",
            "engine": _AUTO,
            "model_path": None,
            "container": None,
            "time_limit": "0:30:00",
            "results_dir": (
                "${base_results_dir}/${search_config_value}_${search_config.train_settings.gpu_memory_gb}gb"
            ),
            "tensor_parallel_sizes": _sizes(row["inference_tensor_parallel_sizes"], [1, 2, 4, 8]),
            "pipeline_parallel_sizes": _sizes(row["inference_pipeline_parallel_sizes"], [1]),
        },
        "benchmark": {
            "input_len": 60,
            "output_len": 20,
            "batch_sizes": _sizes(row["inference_batch_sizes"], [4, 8, 16, 32, 64, 128]),
            "beam_width": 1,
            "topk": 4,
            "topp": 0.0,
        },
    }
