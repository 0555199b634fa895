"""`python -m meshwright.trainer.serving MODEL --port N [...]`, alone or under torchrun with a
process per tensor-parallel rank."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.util import find_spec

from meshwright.values.errors import MeshwrightError, MissingExtraError


def main(words: list[str]) -> int:
    """Serve until told to end; 1: the engine failed, 2: a bad word."""
    parser = argparse.ArgumentParser(
        prog="python -m meshwright.trainer.serving", description=__doc__
    )
    parser.add_argument(
        "model",
        help="a folder or name of a checkpoint; a config.json is served with random weights",
    )
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="bf16")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--max-model-len", type=int, default=4096, help="tokens of the longest request"
    )
    parser.add_argument("--max-num-seqs", type=int, default=64, help="requests that run at once")
    parser.add_argument(
        "--max-batched-tokens", type=int, default=None, help="tokens of one iteration"
    )
    for flag, what in (("graphs", "CUDA graphs"), ("prefix-caching", "pages that begin alike")):
        parser.add_argument(f"--{flag}", choices=("on", "off"), default=None, help=what)
    given = parser.parse_args(words)
    for module in ("torch", "transformers", "accelerate"):
        if find_spec(module) is None:
            raise MissingExtraError(module, "serve")
    from meshwright.trainer.serving.engine import open_engine, serve

    engine = open_engine(
        given.model,
        dtype=given.dtype,
        device=given.device,
        max_len=given.max_model_len,
        max_sequences=given.max_num_seqs,
        max_tokens=given.max_batched_tokens,
        graphs=_on(given.graphs),
        shares=_on(given.prefix_caching),
    )
    return serve(engine, port=given.port) if engine.leads else engine.follow()


def _on(word: str | None) -> bool | None:
    return None if word is None else word == "on"


if __name__ == "__main__":
    try:
        code = main(sys.argv[1:])
    except (MeshwrightError, OSError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = 2
    # transformers' batching runs in a thread that outlives an error of this one.
    sys.stderr.flush()
    os._exit(code)
