"""What `finetune` says of a request: which weights learn, in which software, beside which host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from meshwright.search.request import PlanRequest
from meshwright.search.rules.software import stack_rules
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Host, Pool
from meshwright.values.stack import find_stack
from meshwright.values.stack_files import all_entries
from meshwright.values.units import GIB
from meshwright.values.workload import Frozen

__all__ = [
    "FINETUNE_STACK",
    "USUAL_RANK",
    "Ways",
    "finetuned",
    "frozen_format",
    "is_usual_case",
    "with_host",
]

Ways = Literal["usual", "all"]
"""Of what a software has, the forms that are tried unasked, or all offloading and optimizers."""
FINETUNE_STACK = "trl"
"""The software of a fine-tuning on the GPUs of one server where none is named: Hugging Face's own.
Larger ones run what the maker of the chips ships."""
USUAL_RANK = 16
"""TRL's ModelConfig.lora_r, torchtune's and Axolotl's examples of 8B models range from 8 to 64."""
_BY_TORCH = ("NVIDIA", "AMD")
MOST_CHIPS = 8
"""Of one server."""


def finetuned(request: PlanRequest, chips: Iterable[Chip], num_chips: int | None) -> PlanRequest:
    """Return the request with the rank and the software that a fine-tuning leaves open;
    ConfigError where its words contradict each other."""
    if request.finetune is None:
        return request
    if request.finetune == "full" and (request.lora_rank or request.lora_targets):
        raise ConfigError(
            "finetune=full trains all weights: leave --lora-rank and --lora-targets out, or take"
            " --finetune lora"
        )
    found: dict[str, Any] = {}
    if request.finetune != "full" and not request.lora_rank:
        found["lora_rank"] = USUAL_RANK
    chips = tuple(chips)
    number = MOST_CHIPS if request.finetune == "qlora" else num_chips
    if request.stack is None and is_usual_case(chips, number):
        found["stack"] = FINETUNE_STACK
    done = request.model_copy(update=found)
    if done.finetune == "qlora" and done.stack is not None:
        _require_four_bits(done.stack)
    return done


def is_usual_case(chips: Iterable[Chip], num_chips: int | None) -> bool:
    """Whether a fine-tuning on some chips is FINETUNE_STACK's where no software is named."""
    small = num_chips is not None and num_chips <= MOST_CHIPS
    return small and all(chip.vendor in _BY_TORCH for chip in chips)


def _require_four_bits(stack: str) -> None:
    if "nf4" in stack_rules(find_stack(stack)).frozen:
        return
    names = [entry.name for entry in all_entries()]
    able = [name for name in names if "nf4" in stack_rules(find_stack(name)).frozen]
    raise ConfigError(
        f"finetune=qlora: stack {stack} keeps no frozen weights in four bits; take --stack"
        f" {' or '.join(able)}, or --finetune lora"
    )


def frozen_format(request: PlanRequest) -> Frozen:
    """Return the format of the weights beside adapters."""
    return "nf4" if request.finetune == "qlora" else "half"


def with_host(pool: Pool, request: PlanRequest) -> Pool:
    """Return the pool with the host's memory and drives that a request gives."""
    given: dict[str, Any] = {}
    if request.host_memory_gib is not None:
        given["memory_bytes"] = request.host_memory_gib * GIB
    if request.nvme_gib is not None:
        given["nvme_bytes"] = request.nvme_gib * GIB
    if not given:
        return pool
    host = pool.node.host
    if host is None:
        raise ConfigError(
            f"host_memory_gib, nvme_gib: nothing is known of the host of {pool.node.chip.name},"
            " such as the rate of its memory; leave them out"
        )
    changed: Host = replace(host, **given)
    return replace(pool, node=replace(pool.node, host=changed))
