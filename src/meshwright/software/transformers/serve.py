"""`meshwright.trainer.serving`: our server around transformers' continuous batching, split by
torchrun."""

from __future__ import annotations

from meshwright.software.serving import (
    HALVES,
    EngineCommand,
    ServedWorker,
    ServingEngine,
    refuse_settings,
)
from meshwright.values.errors import CannotExpress

__all__ = ["TRANSFORMERS"]

_NAME = "transformers"


def _command(served: ServedWorker) -> EngineCommand:
    worker = served.worker
    if worker.chips != worker.tp:
        reason = f"{worker.name}: its plans split tensors alone"
        raise CannotExpress(_NAME, reason, nearest=f"tp={worker.tp}")
    if served.model.num_kv_heads % worker.tp:
        reason = f"tp={worker.tp} does not divide num_kv_heads={served.model.num_kv_heads}"
        raise CannotExpress(_NAME, reason, nearest="tp=1")
    if served.weights not in HALVES or served.cache != served.weights:
        reason = (
            f"weights={served.weights}, cache={served.cache}: both are fp32, bf16 or fp16, and the"
            " same"
        )
        raise CannotExpress(_NAME, reason, nearest="weights=bf16, cache=bf16")
    told = served.settings
    reason = "its scheduler cuts every prompt that does not fit, and drafts nothing"
    refuse_settings(_NAME, told, ("chunked_prefill", "drafted"), reason)
    ours = ["meshwright.trainer.serving", served.path, "--port", served.port]
    ours += ["--dtype", served.weights, "--max-model-len", str(served.max_len)]
    ours += ["--max-num-seqs", str(served.max_sequences)]
    if told.batched_tokens is not None:
        ours += ["--max-batched-tokens", str(told.batched_tokens)]
    for flag, on in (("--graphs", told.graphs), ("--prefix-caching", told.prefix_caching)):
        ours += [] if on is None else [flag, "on" if on else "off"]
    ours += served.extra
    if worker.tp > 1:
        split = f"--nproc-per-node={worker.tp}"
        ours = ["torch.distributed.run", "--standalone", split, "-m", *ours]
    return EngineCommand(words=("python3", "-m", *ours))


TRANSFORMERS = ServingEngine(name=_NAME, command=_command)
