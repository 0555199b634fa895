"""What is said of a command line that cannot be read, with what to type instead."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["as_meant", "usage_words"]

_ELSEWHERE = {
    "--gbs": ("global-batch-size", "global-batch", "batch-size", "batch", "global_batch_size"),
    "--mbs": ("micro-batch-size", "micro-batch", "per-device-train-batch-size", "mb"),
    "--seq": ("seq-length", "sequence-length", "max-seq-len", "context", "context-length", "ctx"),
    "--tp": ("tensor-parallel", "tensor-parallel-size", "tensor-model-parallel-size", "tp-size"),
    "--pp": (
        *("pipeline-parallel", "pipeline-parallel-size", "pipeline-model-parallel-size"),
        "pp-size",
    ),
    "--cp": ("context-parallel", "context-parallel-size", "cp-size"),
    "--ep": ("expert-parallel", "expert-parallel-size", "expert-model-parallel-size", "ep-size"),
    "--dp": ("data-parallel", "data-parallel-size", "dp-size"),
    "--cluster": ("gpu", "gpus", "chip", "chips", "nodes", "hardware", "device", "accelerator"),
    "--precision": ("dtype", "bf16", "fp8", "fp16", "mixed-precision"),
    "--objective": ("optimise", "optimize", "goal", "minimize", "minimise"),
    "--stack": ("framework", "software", "backend", "engine"),
    "--recompute": ("activation-checkpointing", "gradient-checkpointing", "recompute-activations"),
    "--sharding": ("zero", "zero-stage", "fsdp", "distributed-optimizer"),
    "--tokens": ("train-tokens", "num-tokens", "token"),
    "--deadline": ("days", "time", "max-days", "duration"),
    "--output-len": ("output-length", "osl", "max-tokens"),
    "--input-len": ("input-length", "isl", "prompt-len"),
}
"""Options by the words that other tools, and people, have for them."""
_EXAMPLES = {"--cluster": "h100:8", "--precision": "bf16", "--objective": "tokens_per_dollar"}


def as_meant(args: Sequence[str]) -> list[str]:
    """Return the words with `help` and `version`, which other tools take, as the options here."""
    words = list(args)
    if words[:1] == ["help"]:
        return [*words[1:], "--help"]
    return ["--version"] if words == ["version"] else words


def usage_words(error: Any) -> str:
    """Say what is wrong with a command line: what was given, what was expected."""
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return _unknown(error)
    if kind == "MissingParameter" and error.param is not None:
        return _missing(error.param)
    message = str(error.format_message())
    extra = re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message)
    return message if extra is None else _extra(extra[1], error)


def _unknown(error: Any) -> str:
    given, known = error.option_name, _options(error)
    if given == "--model" and known:
        return "--model: the model stands without an option, behind the command: llama3-8b"
    if given == "--layout" and "--set" in known:
        return (
            "--layout: the layout is what this command searches; hold an axis by --tp 2 or --set"
            " tp=1,2, or look at one layout with `meshwright explain`"
        )
    word = given.lstrip("-").lower().replace("_", "-")
    meant = [name for name, words in _ELSEWHERE.items() if word in words and name in known]
    if meant:
        example = f", such as {meant[0]} {_EXAMPLES[meant[0]]}" if meant[0] in _EXAMPLES else ""
        return f"{given}: no such option; did you mean {meant[0]}{example}?"
    near = f"; did you mean {' or '.join(error.possibilities)}?" if error.possibilities else ""
    path = error.ctx.command_path if error.ctx is not None else "meshwright"
    return f"{given}: no such option{near or f'; `{path} --help` lists them'}"


def _options(error: Any) -> list[str]:
    """Return the options of the command that refused one."""
    if error.ctx is None:
        return []
    return [name for param in error.ctx.command.params for name in param.opts if name[:1] == "-"]


def _missing(param: Any) -> str:
    is_option = param.param_type_name == "option"
    name = max(param.opts, key=len) if is_option else param.name.upper()
    value = f" {param.metavar}" if is_option and param.metavar else ""
    return f"give {name}{value}: {_lowered(param.help or 'it is needed')}"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:] if text[1:2].islower() else text


def _extra(words: str, error: Any) -> str:
    first = words.partition(" ")[0]
    if re.fullmatch(r"[A-Za-z0-9.-]+:[0-9_]+(,.*)?", first) and "--cluster" in _options(error):
        return f"{first}: chips go with --cluster: --cluster {first}"
    path = error.ctx.command_path if error.ctx is not None else "meshwright"
    return (
        f"{words or 'an empty word'}: not expected here; values go behind an option, which"
        f" `{path} --help` lists"
    )
