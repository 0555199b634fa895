"""MindSpeed-LLM's example scripts of pre-training: which of its flags each has."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.recipes.spans import spans
from scripts.recipes.trees import read_tree, tags_like

from meshwright.values.switches import known_words

__all__ = ["mindspeed_rows"]

_TAG = re.compile(r"v(\d+)\.(\d+)\.(RC)?(\d+)(?:\.(\d+))?")
_SCRIPT = re.compile(r"examples/(?!.*data_convert|mindspore/|fsdp2/).*pretrain.*\.sh")
_GENERATIONS = {"a3": "ascend-910c", "a5": "ascend-950"}
"""Of Atlas servers, as file names end; without one the Atlas 800T A2 and its kin."""
_USUAL = "ascend-910b"


def mindspeed_rows(repository: Path) -> tuple[list[dict[str, str]], list[str]]:
    """Return a row for each script as long as releases have it so, and a line for each that tells
    no dims."""
    rows: list[dict[str, str]] = []
    failed: list[str] = []
    for tag in tags_like(repository, _TAG):
        tree = read_tree(repository, tag, folders=("examples",), endings=(".sh",))
        for path, text in tree.items():
            if not _SCRIPT.fullmatch(path):
                continue
            try:
                rows.append(_row(text, tag=tag, path=path))
            except (KeyError, ValueError) as error:
                failed.append(f"{tag} {path}: {error}")
    return spans(rows), failed


def _row(text: str, *, tag: str, path: str) -> dict[str, str]:
    values = dict(re.findall(r"^(?:export )?([A-Z_]+)=(.*)$", text, re.MULTILINE))

    def number(flag: str, *, default: int | None = None) -> int:
        found = re.search(rf"--{flag}[ =](\S+)", text)
        if found is None and default is not None:
            return default
        if found is None:
            raise KeyError(f"no --{flag}")
        return _evaluated(found[1], values)

    heads = number("num-attention-heads")
    experts = 0 if "--num-experts" not in text else number("num-experts")
    dims = (
        *(number("num-layers"), number("hidden-size"), _width(number, experts)),
        *(heads, number("num-query-groups", default=heads), experts),
    )
    stem = Path(path).stem.lower()
    generation = re.search(r"(?<![a-z0-9])(a3|a5)(?![a-z0-9])", stem.replace("_", " "))
    chips = next((values[name] for name in ("WORLD_SIZE",) if name in values), "")
    return {
        "stack": "mindspeed",
        "release": tag,
        "model": re.sub(r"^pretrain_", "", stem),
        "dims": " ".join(map(str, dims)),
        "chip": _GENERATIONS[generation[1]] if generation else _USUAL,
        "precision": "fp16" if "--fp16" in text else "bf16" if "--bf16" in text else "",
        "num_chips": str(_product(chips, values)) if chips else "",
        "seq_len": str(number("seq-length", default=0) or ""),
        "words": " ".join(
            word for word in known_words("mindspeed") if re.search(rf"--{word}(?![\w-])", text)
        ),
        "source": path,
    }


def _width(number: Callable[..., int], experts: int) -> int:
    """Of the feed-forward or an expert; Megatron's default is four times the hidden size."""
    usual = number("ffn-hidden-size", default=4 * number("hidden-size"))
    if not experts:
        return usual
    return number("moe-ffn-hidden-size", default=number("moe-intermediate-size", default=usual))


def _evaluated(word: str, values: Mapping[str, str]) -> int:
    """A number, or the variable that holds it."""
    named = re.fullmatch(r"\$\{?(\w+)\}?", word)
    text = values.get(named[1], word) if named else word
    return int(text.strip("\"' ").partition(" ")[0])


def _product(text: str, values: Mapping[str, str]) -> int:
    """`$(($NPUS_PER_NODE*$NNODES))`."""
    found = 1
    for name in re.findall(r"\$\{?(\w+)\}?", text):
        found *= _evaluated(f"${name}", values)
    return found
