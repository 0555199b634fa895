"""What a request may not say: what a chip, a model or a software has not."""

from __future__ import annotations

from meshwright.search.request import PlanRequest
from meshwright.search.rules.software import stack_rules
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.chip import Chip
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack, find_stack
from meshwright.values.switches import known_words
from meshwright.values.workload import Precision

__all__ = ["refuse_needless", "refuse_unable", "refuse_unpriced"]

RUN_BY = {
    "Google": ("maxtext", "fsdp"),
    "AWS": ("neuron", "neuronx-nemo", "neuron-megatron", "fsdp"),
}
"""All that runs on chips that have no CUDA-like library for torch; FSDP by torch_xla."""


def refuse_needless(request: PlanRequest, model: ModelSpec) -> None:
    """ConfigError for what is said of a part that model or software has not."""
    if request.lora_targets and not request.lora_rank:
        raise ConfigError(
            f"lora_targets={','.join(request.lora_targets)}: of no effect with lora_rank=0; give"
            " --lora-rank, or leave it out"
        )
    if request.switches is not None and not known_words(find_stack(str(request.stack)).name):
        raise ConfigError(
            f"switches={','.join(request.switches) or 'none'}: of no effect on {request.stack},"
            " which has none; leave it out"
        )
    if request.cp_comm_type not in (None, "a2a") and model.refuses_ring:
        raise ConfigError(
            f"cp_comm_type={request.cp_comm_type}: {model.name} has windows or sinks, which only"
            " a2a carries; take that, or leave it out"
        )
    if request.cuda_graphs and find_stack(str(request.stack)).family != "megatron":
        raise ConfigError(
            f"cuda_graphs={request.cuda_graphs}: {request.stack} has no such setting; leave it out"
        )
    if request.cp_comm_type and find_stack(str(request.stack)).family != "megatron":
        raise ConfigError(
            f"cp_comm_type={request.cp_comm_type}: of no effect on {request.stack}, which has no"
            " such setting; leave it out"
        )
    if request.decoder_seq_len is not None and model.family != "encoder-decoder":
        raise ConfigError(
            f"decoder_seq_len={request.decoder_seq_len}: of no effect on {model.name}, which is no"
            " encoder-decoder; leave it out"
        )
    if request.routing != "balanced" and model.moe is None:
        raise ConfigError(
            f"routing={request.routing}: of no effect on {model.name}, which has no experts; leave"
            " it out"
        )


def refuse_unpriced(request: PlanRequest, chip: Chip, usd_per_hour: float | None) -> None:
    """ConfigError for an objective whose unit the chip has no figure of."""
    if request.objective == "tokens_per_dollar" and not usd_per_hour:
        raise ConfigError(
            f"objective=tokens_per_dollar: the catalogue has no price of {chip.name}; give"
            " usd_per_hour (--usd-per-hour)"
        )
    if request.objective == "tokens_per_joule" and not chip.tdp_w:
        raise ConfigError(
            f"objective=tokens_per_joule: the catalogue has no power of {chip.name}; give tdp_w in"
            " a cluster file"
        )


def refuse_unable(chip: Chip, stack: Stack, precision: Precision) -> None:
    """ConfigError for a number format, or a chip, that the software does not run."""
    able = stack_rules(stack).precisions
    if precision not in able:
        raise ConfigError(f"precision={precision}: stack {stack.name} has {', '.join(able)}")
    if stack.name not in RUN_BY.get(chip.vendor, (stack.name,)):
        raise ConfigError(
            f"stack {stack.name} does not run on {chip.name}; --stack"
            f" {' or '.join(RUN_BY[chip.vendor])}"
        )
