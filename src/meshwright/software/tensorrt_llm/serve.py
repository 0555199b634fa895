"""`trtllm-serve`: one worker of a serving plan in TensorRT-LLM's flags, and a YAML file for the
rest."""

from __future__ import annotations

from typing import Any

from meshwright.software.serving import (
    CONFIG_FILE,
    HALVES,
    EngineCommand,
    ServedWorker,
    ServingEngine,
    above_one,
    cache_word,
    check_keys,
    check_words,
    checkpoint_note,
    flag_words,
)
from meshwright.values.data import package_rows
from meshwright.values.errors import CannotExpress

__all__ = ["TRTLLM"]


def _command(served: ServedWorker) -> EngineCommand:
    worker = served.worker
    flags = {
        "--backend": "pytorch",
        "--tp_size": worker.stage_chips,
        "--pp_size": above_one(worker.pp),
        "--ep_size": above_one(worker.ep),
        "--max_batch_size": served.max_sequences,
        "--max_seq_len": served.max_len,
        "--max_num_tokens": served.engine.chunk_tokens or None,
        "--port": served.port,
        "--extra_llm_api_options": CONFIG_FILE,
    }
    words = ("trtllm-serve", served.path, *flag_words(flags), *served.extra)
    check_words(words, engines=("trtllm",))
    if worker.attention_dp not in (1, worker.stage_chips):
        reason = (
            f"attention_dp={worker.attention_dp} on {worker.stage_chips} chips: attention is whole"
            " on every chip, or cut over all"
        )
        nearest = f"tp=1,attention_dp={worker.stage_chips},ep={worker.stage_chips}"
        raise CannotExpress("trtllm", reason, nearest=nearest)
    config = _config(served)
    said = {name: value for name, value in config.items() if value is not None}
    check_keys(said, engine="trtllm-yaml")
    notes = checkpoint_note(served, casts=False)
    return EngineCommand(words=words, config=config, notes=notes)


def _config(served: ServedWorker) -> dict[str, Any]:
    """What trtllm-serve has no flag for. Weights are what the checkpoint holds."""
    cache, share = cache_word("trtllm", served, {"fp8": "fp8"}), served.engine.memory_share
    drafts = {"decoding_type": "MTP", "num_nextn_predict_layers": served.drafted}
    graphs = {"enable_padding": True, "max_batch_size": served.max_sequences}
    pages = {"dtype": cache, "free_gpu_memory_fraction": share}
    told = served.settings
    if told.prefix_caching is not None:
        pages["enable_block_reuse"] = told.prefix_caching
    words = {
        "dtype": HALVES.get(served.weights),
        "kv_cache_config": pages,
        "enable_attention_dp": True if served.worker.attention_dp > 1 else None,
        "cuda_graph_config": graphs,
        "enable_chunked_prefill": told.chunked_prefill,
        "speculative_config": None if served.drafted is None else drafts,
    }
    given = {name: value for name, value in words.items() if value is not None}
    # Only null says none of what is there by default.
    return given if told.graphs is not False else {**given, "cuda_graph_config": None}


TRTLLM = ServingEngine(
    name="trtllm", command=_command, options=package_rows("software/tensorrt_llm/options.csv")
)
