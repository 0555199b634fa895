"""`sglang.launch_server`: one worker of a serving plan in SGLang's flags."""

from __future__ import annotations

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

__all__ = ["SGLANG", "sglang_words"]

_QUANTISED = {
    "fp8": "fp8",
    "fp8-blockwise": "fp8",
    "nvfp4": "modelopt_fp4",
    "mxfp4": "mxfp4",
}
_CACHES = {"bf16": "bf16", "fp8": "fp8_e4m3"}


def _command(served: ServedWorker) -> EngineCommand:
    head = ("--model-path", served.path)
    words = (*head, *sglang_words(served), "--port", served.port, *served.extra)
    check_words(words, engines=("sglang",))
    words = ("python3", "-m", "sglang.launch_server", *words)
    return EngineCommand(words=words, notes=checkpoint_note(served))


def sglang_words(served: ServedWorker) -> list[str]:
    """Return the flags of a worker of SGLang, without model and port."""
    worker, engine, drafted = served.worker, served.engine, served.drafted
    drafts = {
        "--speculative-algorithm": "EAGLE",
        "--speculative-num-steps": drafted,
        "--speculative-eagle-topk": 1,
        "--speculative-num-draft-tokens": 1 + (drafted or 0),
    }
    return flag_words(
        {
            "--tp-size": worker.stage_chips,
            "--pp-size": above_one(worker.pp),
            "--attn-dp-size": above_one(worker.attention_dp),
            "--ep-size": above_one(worker.ep),
            **type_flag("sglang", served.weights, _QUANTISED),
            "--kv-cache-dtype": cache_word("sglang", served, _CACHES),
            "--context-length": served.max_len,
            # SGLang divides the requests that it is told among its attention groups.
            "--max-running-requests": served.max_sequences * worker.attention_dp,
            # -1 switches the cutting of prompts off.
            "--chunked-prefill-size": (
                -1 if served.settings.chunked_prefill is False else engine.chunk_tokens or None
            ),
            "--disable-decode-cuda-graph": served.settings.graphs is False,
            "--disable-radix-cache": served.settings.prefix_caching is False,
            **({} if drafted is None else drafts),
            "--mem-fraction-static": f"{engine.memory_share:g}",
        }
    )


SGLANG = ServingEngine(
    name="sglang", command=_command, options=package_rows("software/sglang/options.csv")
)
