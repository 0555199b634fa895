"""The launcher's line, composed: `cluster_type=bcp stages=[training] training=gpt3/7b_improved`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.compat.autoconfigurator.cluster import Platform, cluster_platform
from meshwright.compat.autoconfigurator.settings import CLUSTERS
from meshwright.compat.hydra_words import HydraWord, compose_tree, entries, near_keys, read_words
from meshwright.compat.launcher.tree import GROUPS, Files, own_folder
from meshwright.platforms.base_command.allocation import Allocation, allocation_here
from meshwright.values.errors import ConfigError, UnknownNameError

__all__ = ["Line", "read_line"]

STAGES = ("data_preparation", "training", "notebook")
"""What is done here; the last is ours."""
_ELSEWHERE = (
    *("adapter_learning", "conversion", "conversion_hf2nemo", "data_curation", "evaluation"),
    *("export", "external_conversion", "fine_tuning", "fw_inference", "ia3_learning", "peft"),
    *("prompt_learning", "ptq", "rag_generating", "rag_indexing", "rlhf_ppo", "rlhf_rm"),
    "steerlm_reg",
)
"""Stages of NVIDIA's launcher that are not (launcher_scripts/main.py, 26e42fa)."""
_SCRIPTS = "/opt/NeMo-Framework-Launcher/launcher_scripts"
"""Where NeMo's images have the launcher."""
_NODES = ("trainer.num_nodes", "run.node_array_size")
_ARRAY_SIZE = ("", "$NGC_ARRAY_SIZE", "${NGC_ARRAY_SIZE}")
_EXAMPLE = "training.trainer.num_nodes=8"


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """What a line asks for."""

    stages: tuple[str, ...]
    config: Mapping[str, Any]
    typed: Mapping[str, str]
    """Keys of the line itself: what they say is never changed."""
    platform: Platform
    inside: Allocation | None
    """The nodes that we have: those of the job of Base Command that we are in, or this machine."""
    corrected: tuple[str, ...]
    """What was put right, in whole sentences."""

    def choice(self, group: str) -> str:
        """Return the file that a group takes."""
        return str(self.config[f"{group}_config"])

    def says(self, key: str) -> bool:
        """Whether the line itself says a key."""
        return key in self.typed


def read_line(words: Sequence[str], *, config_dir: Path | None = None) -> Line:
    """Compose a line; ConfigError names a wrong word and the nearest that is right."""
    read = read_words(words, example=_EXAMPLE)
    inside = allocation_here()
    read, corrected = _array_sizes(read, inside)
    typed = {word.key: word.value for word in read}
    kind = typed.get("cluster_type", "bcm")
    if kind not in CLUSTERS:
        raise UnknownNameError("cluster_type", kind, CLUSTERS)
    files = Files.of(own_folder(config_dir, typed.get("launcher_scripts_path")))
    for group in GROUPS:
        if group in typed and typed[group] not in files.names(group):
            raise UnknownNameError(group, typed[group], files.names(group))
    taken = _taken(typed, kind, files)
    texts = files.texts(["config", *(f"{group}/{name}" for group, name in taken.items())])
    found = compose_tree(texts, _words(read, typed, kind, files))
    stages = _stages(found["stages"])
    if kind != "bcp":
        inside = Allocation(nodes=1, gpus_per_node=None) if kind == "interactive" else None
    return Line(
        stages=stages,
        config=found,
        typed=typed,
        platform=_platform(found, kind, inside),
        inside=inside,
        corrected=tuple(corrected),
    )


def _array_sizes(
    words: Sequence[HydraWord], inside: Allocation | None
) -> tuple[list[HydraWord], list[str]]:
    """Put the number of nodes where a line has the variable that only a job has."""
    kept, corrected = [], []
    for word in words:
        if not word.key.endswith(_NODES) or word.value not in _ARRAY_SIZE:
            kept.append(word)
        elif inside is not None:
            kept.append(HydraWord(f"{word.key}={inside.nodes}", example=_EXAMPLE))
        else:
            corrected.append(
                f"{word.key}: NGC_ARRAY_SIZE is set inside a job alone, so the configuration's"
                f" number of nodes is taken; {word.key}=N sets another"
            )
    return kept, corrected


def _words(
    read: Sequence[HydraWord], typed: Mapping[str, str], kind: str, files: Files
) -> list[str]:
    """The words for Hydra: keys that another configuration of the group has are added, and so is
    what a line may leave out."""
    known = _known(typed, kind, files)
    others: set[str] = set()
    if any(word.key not in known for word in read):
        for name in files.names("training"):
            others |= {f"training.{key}" for key, _ in entries(files.values(f"training/{name}"))}
    words = []
    for word in read:
        if word.sign or word.key in known or word.key.startswith("hydra"):
            # `+key=` of a key that is there is what documents have, and what Hydra refuses.
            words.append(_quoted(word, "++" if word.sign == "+" else word.sign))
        elif word.key in others:
            words.append(_quoted(word, "++"))
        else:
            raise UnknownNameError("key", word.key, near_keys(word.key, known | others))
    if "cluster" not in typed:
        words.append(f"cluster={kind}")
    if "launcher_scripts_path" not in typed:
        words.append(f"launcher_scripts_path={_SCRIPTS if kind == 'bcp' else os.getcwd()}")
    return words


def _quoted(word: HydraWord, sign: str) -> str:
    """A word for Hydra: `0,3,5-7` or `gpt--{step}`, whose quotes the shell has taken, is one text,
    no sweep and no mapping."""
    signs = set(word.value.replace("${", "")) & set(",{")
    if signs and word.value[0] not in "[{'\"" and "(" not in word.value:
        return f"{sign}{word.key}='{word.value}'"
    return f"{sign}{word.text.removeprefix(word.sign)}"


def _taken(typed: Mapping[str, str], kind: str, files: Files) -> dict[str, str]:
    """The file of each group."""
    usual = {
        str(group): str(name)
        for line in files.values("config").get("defaults", ())
        if isinstance(line, Mapping)
        for group, name in line.items()
    }
    named = {name: value for name, value in typed.items() if name in usual}
    return {**usual, "cluster": kind, **named}


def _known(typed: Mapping[str, str], kind: str, files: Files) -> set[str]:
    """Every key of the configurations that a line takes."""
    taken = _taken(typed, kind, files)
    known = {key for key, _ in entries(files.values("config"))} | set(taken)
    for group, name in taken.items():
        known |= {f"{group}.{key}" for key, _ in entries(files.values(f"{group}/{name}"))}
    return known


def _stages(given: Any) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) else list(given or ())
    for name in names:
        if name in _ELSEWHERE:
            raise ConfigError(
                f"stages: {name} is not done here; data_preparation, training and notebook are,"
                " and NVIDIA's launcher runs the rest"
            )
        if name not in STAGES:
            raise UnknownNameError("stage", str(name), STAGES)
    if not names:
        raise ConfigError("stages=[]: expected data_preparation, training or notebook")
    return tuple(str(name) for name in names)


def _platform(config: Mapping[str, Any], kind: str, inside: Allocation | None) -> Platform:
    folders = ("launcher_scripts_path", "base_results_dir", "data_dir")
    return cluster_platform(
        config["cluster"],
        kind=kind,
        image=config.get("container"),
        mounts=[str(mount) for mount in config.get("container_mounts") or () if mount],
        folders=[str(config[key]) for key in folders],
        seen=[str(config[key]) for key in ("data_dir", "base_results_dir")],
        inside=inside,
    )
