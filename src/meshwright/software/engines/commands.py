"""The command that serves one worker, of every engine; what an engine has no words for is
refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from meshwright.serving.engine import Cache, Weights
from meshwright.software.engines.chosen import ServedWorker
from meshwright.software.engines.options import check_keys, check_words
from meshwright.values.errors import CannotExpress, UnknownNameError

__all__ = [
    "CONFIG_FILE",
    "ENGINES",
    "EngineCommand",
    "engine_command",
    "sglang_words",
    "vllm_words",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineCommand:
    """How an engine is started, and asked whether it is ready."""

    words: tuple[str, ...]
    config: Mapping[str, Any] | None = None
    """Content of the YAML file that the words name as CONFIG_FILE."""
    notes: tuple[str, ...] = ()
    """What nothing in the command can make sure of."""


CONFIG_FILE = "extra_llm_api_options.yaml"
"""As the words name it, beside which it lies."""
_HALVES: Mapping[str, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_VLLM_QUANTISED: Mapping[str, str] = {
    "fp8": "fp8",
    "fp8-blockwise": "fp8",
    "int8": "int8_per_channel_weight_only",
    "nvfp4": "modelopt_fp4",
    "mxfp4": "mxfp4",
}
_SGLANG_QUANTISED: Mapping[str, str] = {
    "fp8": "fp8",
    "fp8-blockwise": "fp8",
    "nvfp4": "modelopt_fp4",
    "mxfp4": "mxfp4",
}
_FROM_CHECKPOINT = ("fp8-blockwise", "nvfp4", "mxfp4", "int4")
"""Types that a 16-bit checkpoint can't be turned into on the way in."""


def engine_command(served: ServedWorker) -> EngineCommand:
    """Return the command of a worker; CannotExpress where the engine has no words for it,
    UnknownNameError where no engine is known so."""
    name = served.engine.name
    if name not in ENGINES:
        raise UnknownNameError("engine that can be started", name, ENGINES)
    return ENGINES[name](served)


def _vllm(served: ServedWorker) -> EngineCommand:
    words = [
        "vllm",
        "serve",
        served.path,
        *vllm_words(served),
        "--port",
        served.port,
        *served.extra,
    ]
    check_words(words, engines=("vllm",))
    return EngineCommand(words=tuple(words), notes=_notes(served))


def vllm_words(served: ServedWorker) -> list[str]:
    """Return the flags of a worker of vLLM, without model and port."""
    worker = served.worker
    words = ["--tensor-parallel-size", str(worker.tp)]
    words += ["--pipeline-parallel-size", str(worker.pp)] if worker.pp > 1 else []
    words += ["--data-parallel-size", str(worker.attention_dp)] if worker.attention_dp > 1 else []
    if worker.ep not in (1, worker.stage_chips):
        reason = (
            f"ep={worker.ep} on {worker.stage_chips} chips: experts are whole on one chip each, or"
            " cut over all"
        )
        raise CannotExpress("vllm", reason, nearest=f"ep={worker.stage_chips}")
    words += ["--enable-expert-parallel"] if worker.ep > 1 else []
    words += _type_words("vllm", served.weights, _VLLM_QUANTISED)
    words += [
        "--kv-cache-dtype",
        _cache_word("vllm", served, {"bf16": "bfloat16", "fp16": "float16", "fp8": "fp8"}),
    ]
    words += ["--max-model-len", str(served.max_len), "--max-num-seqs", str(served.max_sequences)]
    words += (
        ["--max-num-batched-tokens", str(served.engine.chunk_tokens)]
        if served.engine.chunk_tokens
        else []
    )
    if served.drafted is not None:
        words += [
            "--speculative-config",
            json.dumps({"method": "mtp", "num_speculative_tokens": served.drafted}),
        ]
    return [*words, "--gpu-memory-utilization", f"{served.engine.memory_share:g}"]


def _sglang(served: ServedWorker) -> EngineCommand:
    words = [
        "python3",
        "-m",
        "sglang.launch_server",
        "--model-path",
        served.path,
        *sglang_words(served),
        "--port",
        served.port,
    ]
    words += served.extra
    check_words(words[3:], engines=("sglang",))
    return EngineCommand(words=tuple(words), notes=_notes(served))


def sglang_words(served: ServedWorker) -> list[str]:
    """Return the flags of a worker of SGLang, without model and port."""
    worker = served.worker
    words = ["--tp-size", str(worker.stage_chips)]
    words += ["--pp-size", str(worker.pp)] if worker.pp > 1 else []
    words += ["--attn-dp-size", str(worker.attention_dp)] if worker.attention_dp > 1 else []
    words += ["--ep-size", str(worker.ep)] if worker.ep > 1 else []
    words += _type_words("sglang", served.weights, _SGLANG_QUANTISED)
    words += [
        "--kv-cache-dtype",
        _cache_word("sglang", served, {"bf16": "bf16", "fp8": "fp8_e4m3"}),
    ]
    # SGLang divides the requests that it is told among its attention groups.
    running = served.max_sequences * worker.attention_dp
    words += ["--context-length", str(served.max_len), "--max-running-requests", str(running)]
    words += (
        ["--chunked-prefill-size", str(served.engine.chunk_tokens)]
        if served.engine.chunk_tokens
        else []
    )
    if served.drafted is not None:
        chain = ["--speculative-num-steps", str(served.drafted), "--speculative-eagle-topk", "1"]
        words += [
            "--speculative-algorithm",
            "EAGLE",
            *chain,
            "--speculative-num-draft-tokens",
            str(served.drafted + 1),
        ]
    return [*words, "--mem-fraction-static", f"{served.engine.memory_share:g}"]


def _trtllm(served: ServedWorker) -> EngineCommand:
    worker = served.worker
    words = [
        "trtllm-serve",
        served.path,
        "--backend",
        "pytorch",
        *_trtllm_words(served),
        "--port",
        served.port,
    ]
    words += ["--extra_llm_api_options", CONFIG_FILE, *served.extra]
    check_words(words, engines=("trtllm",))
    if worker.attention_dp not in (1, worker.stage_chips):
        reason = (
            f"attention_dp={worker.attention_dp} on {worker.stage_chips} chips: attention is whole"
            " on every chip, or cut over all"
        )
        raise CannotExpress(
            "trtllm",
            reason,
            nearest=f"tp=1,attention_dp={worker.stage_chips},ep={worker.stage_chips}",
        )
    config = _trtllm_config(served)
    check_keys(config, engine="trtllm-yaml")
    return EngineCommand(words=tuple(words), config=config, notes=_notes(served))


def _trtllm_words(served: ServedWorker) -> list[str]:
    worker = served.worker
    words = ["--tp_size", str(worker.stage_chips)]
    words += ["--pp_size", str(worker.pp)] if worker.pp > 1 else []
    words += ["--ep_size", str(worker.ep)] if worker.ep > 1 else []
    words += ["--max_batch_size", str(served.max_sequences), "--max_seq_len", str(served.max_len)]
    return (
        [*words, "--max_num_tokens", str(served.engine.chunk_tokens)]
        if served.engine.chunk_tokens
        else words
    )


def _trtllm_config(served: ServedWorker) -> dict[str, Any]:
    """What trtllm-serve has no flag for. Weights are what the checkpoint holds."""
    cache = _cache_word("trtllm", served, {"fp8": "fp8"})
    half = _HALVES.get(served.weights)
    return {
        **({"dtype": half} if half else {}),
        "kv_cache_config": {"dtype": cache, "free_gpu_memory_fraction": served.engine.memory_share},
        **({"enable_attention_dp": True} if served.worker.attention_dp > 1 else {}),
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": served.max_sequences},
        **(
            {} if served.drafted is None else {"speculative_config": _trtllm_drafts(served.drafted)}
        ),
    }


def _trtllm_drafts(count: int) -> dict[str, Any]:
    return {"decoding_type": "MTP", "num_nextn_predict_layers": count}


def _transformers(served: ServedWorker) -> EngineCommand:
    """Our server around transformers' continuous batching: `meshwright.trainer.serving`, split by
    torchrun."""
    worker = served.worker
    if worker.chips != worker.tp:
        raise CannotExpress(
            "transformers",
            f"{worker.name}: its plans split tensors alone",
            nearest=f"tp={worker.tp}",
        )
    if served.model.num_kv_heads % worker.tp:
        reason = f"tp={worker.tp} does not divide num_kv_heads={served.model.num_kv_heads}"
        raise CannotExpress("transformers", reason, nearest="tp=1")
    if served.weights not in _HALVES or served.cache != served.weights:
        reason = (
            f"weights={served.weights}, cache={served.cache}: both are fp32, bf16 or fp16, and the"
            " same"
        )
        raise CannotExpress("transformers", reason, nearest="weights=bf16, cache=bf16")
    ours = [
        "meshwright.trainer.serving",
        served.path,
        "--port",
        served.port,
        "--dtype",
        served.weights,
    ]
    ours += ["--max-model-len", str(served.max_len), "--max-num-seqs", str(served.max_sequences)]
    split = (
        ["torch.distributed.run", "--standalone", f"--nproc-per-node={worker.tp}", "-m"]
        if worker.tp > 1
        else []
    )
    return EngineCommand(words=("python3", "-m", *split, *ours, *served.extra), notes=())


ENGINES: Mapping[str, Callable[[ServedWorker], EngineCommand]] = MappingProxyType(
    {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm, "transformers": _transformers}
)
"""Every engine that a command can be written for."""


def _type_words(target: str, weights: Weights, quantised: Mapping[str, str]) -> list[str]:
    if weights in _HALVES:
        return ["--dtype", _HALVES[weights]]
    if weights not in quantised:
        reason = (
            f"{weights} weights: several formats of checkpoints hold such, and nothing says which"
            " yours is"
        )
        raise CannotExpress(target, reason, nearest=f"weights={next(iter(quantised))}")
    return ["--quantization", quantised[weights]]


def _cache_word(target: str, served: ServedWorker, words: Mapping[str, str]) -> str:
    """Return the engine's word for the cache's type; `auto` says that of 16- and 32-bit weights."""
    cache: Cache = served.cache
    if cache in words:
        return words[cache]
    if cache == served.weights:
        return "auto"
    raise CannotExpress(
        target,
        f"a {cache} cache beside {served.weights} weights",
        nearest=f"cache={next(iter(words))}",
    )


def _notes(served: ServedWorker) -> tuple[str, ...]:
    """Quantised weights come with the checkpoint, but for those that vLLM and SGLang make of 16
    bits."""
    reads = served.weights in _FROM_CHECKPOINT or (
        served.engine.name == "trtllm" and served.weights not in _HALVES
    )
    return (
        (f"{served.path} must be a checkpoint that holds {served.weights} weights",)
        if reads
        else ()
    )
