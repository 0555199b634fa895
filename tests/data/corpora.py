"""Small corpora, a small tokenizer, and what .bin/.idx must hold of them by the plainest way."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.data.encoders import EncoderSpec

WORDS = [
    "the",
    "quick",
    "brown",
    "jumps",
    "over",
    "1234",
    "lazy",
    "dogs",
    "\n\t",
    "don't",
    "naïve",
    "Ελλάδα",
    "日本語",
    "🙂",
]
WORDS += ["<|endoftext|>", "{'key':", "[1,2]}"]


def text(random_: random.Random, most_words: int = 60) -> str:
    return " ".join(random_.choice(WORDS) for _ in range(random_.randint(1, most_words)))


def line(content: str, **more: Any) -> bytes:
    return json.dumps({"text": content, **more}, ensure_ascii=False).encode() + b"\n"


def gpt2_files(folder: Path) -> EncoderSpec:
    """Train a vocabulary on the words above and return the tokenizer: GPT-2's kind, with
    <|endoftext|> behind them."""
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = ByteLevelBPETokenizer()
    random_ = random.Random(0)
    tokenizer.train_from_iterator(
        [text(random_) for _ in range(50)], vocab_size=400, show_progress=False
    )
    tokenizer.save_model(str(folder))
    return EncoderSpec(
        kind="gpt2", vocab_file=str(folder / "vocab.json"), merge_file=str(folder / "merges.txt")
    )


def end_of(spec: EncoderSpec) -> int:
    """Id of <|endoftext|>: the first behind the vocabulary."""
    return len(json.loads(Path(str(spec.vocab_file)).read_text()))


def plain_ids(spec: EncoderSpec, texts: Sequence[str]) -> list[list[int]]:
    """Ids of texts, one call of `tokenizers` each."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer(spec.vocab_file, spec.merge_file)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return [tokenizer.encode(content).ids for content in texts]


def bin_and_idx(documents: Sequence[Sequence[int]], *, eod: int | None) -> tuple[bytes, bytes]:
    """The two files of documents of one sequence each, u16."""
    rows = [[*document, *([] if eod is None else [eod])] for document in documents]
    lengths = np.array([len(row) for row in rows], dtype="<i4")
    pointers = np.concatenate([[0], np.cumsum(lengths.astype("<i8") * 2)[:-1]]).astype("<i8")
    header = (
        b"MMIDIDX\0\0"
        + np.array([1], "<u8").tobytes()
        + b"\x08"
        + np.array([len(rows), len(rows) + 1], "<u8").tobytes()
    )
    index = (
        header
        + lengths.tobytes()
        + pointers.tobytes()
        + np.arange(len(rows) + 1, dtype="<i8").tobytes()
    )
    return b"".join(np.array(row, dtype="<u2").tobytes() for row in rows), index
