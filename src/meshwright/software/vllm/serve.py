"""`vllm serve`: one worker of a serving plan in vLLM's flags."""

from __future__ import annotations

import json

from meshwright.software.serving import (
    EngineCommand,
    ServedWorker,
    ServingEngine,
    above_one,
    cache_word,
    check_words,
    checkpoint_note,
    flag_words,
    type_flag,
)
from meshwright.values.data import package_rows
from meshwright.values.errors import CannotExpress

__all__ = ["VLLM", "vllm_words"]

_QUANTISED = {
    "fp8": "fp8",
    "fp8-blockwise": "fp8",
    "int8": "int8_per_channel_weight_only",
    "nvfp4": "modelopt_fp4",
    "mxfp4": "mxfp4",
}
_CACHES = {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"}


def _command(served: ServedWorker) -> EngineCommand:
    head = ("vllm", "serve", served.path)
    words = (*head, *vllm_words(served), "--port", served.port, *served.extra)
    check_words(words, engines=("vllm",))
    return EngineCommand(words=words, notes=checkpoint_note(served))


def vllm_words(served: ServedWorker) -> list[str]:
    """Return the flags of a worker of vLLM, without model and port."""
    worker, engine = served.worker, served.engine
    if worker.ep not in (1, worker.stage_chips):
        reason = (
            f"ep={worker.ep} on {worker.stage_chips} chips: experts are whole on one chip each, or"
            " cut over all"
        )
        raise CannotExpress("vllm", reason, nearest=f"ep={worker.stage_chips}")
    _check_room(served)
    drafts = {"method": "mtp", "num_speculative_tokens": served.drafted}
    told = served.settings
    return flag_words(
        {
            "--tensor-parallel-size": worker.tp,
            "--pipeline-parallel-size": above_one(worker.pp),
            "--data-parallel-size": above_one(worker.attention_dp),
            "--enable-expert-parallel": worker.ep > 1,
            **type_flag("vllm", served.weights, _QUANTISED),
            "--kv-cache-dtype": cache_word("vllm", served, _CACHES),
            "--max-model-len": served.max_len,
            "--max-num-seqs": served.max_sequences,
            "--max-num-batched-tokens": engine.chunk_tokens or None,
            # A graph is its default, and has no other word than this one against it.
            "--enforce-eager": told.graphs is False,
            **_switch("chunked-prefill", told.chunked_prefill),
            **_switch("prefix-caching", told.prefix_caching),
            "--speculative-config": None if served.drafted is None else json.dumps(drafts),
            "--gpu-memory-utilization": f"{engine.memory_share:g}",
        }
    )


def _check_room(served: ServedWorker) -> None:
    """Refuse an iteration that is too small for its sequences, or for a prompt that may not be cut.

    Source:   SchedulerConfig.verify_max_model_len of vLLM (vllm/config/scheduler.py)
    """
    tokens = served.engine.chunk_tokens
    if 0 < tokens < served.max_sequences:
        reason = f"{tokens} tokens of an iteration for {served.max_sequences} sequences"
        nearest = f"batched_tokens={served.max_sequences}"
        raise CannotExpress("vllm", reason, nearest=nearest)
    if served.settings.chunked_prefill is False and 0 < tokens < served.max_len:
        reason = f"{tokens} tokens of an iteration for whole requests of {served.max_len}"
        raise CannotExpress("vllm", reason, nearest=f"batched_tokens={served.max_len}")


def _switch(name: str, on: bool | None) -> dict[str, bool]:
    """The flag of a switch that argparse's BooleanOptionalAction reads."""
    return {} if on is None else {f"--{'' if on else 'no-'}enable-{name}": True}


VLLM = ServingEngine(
    name="vllm", command=_command, options=package_rows("software/vllm/options.csv")
)
