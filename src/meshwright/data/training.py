"""A SentencePiece model trained on a corpus, by the library itself."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from meshwright.data.atomic import sync_folder, temporary_of
from meshwright.data.documents import SUFFIXES, TextUnit, form_of, read_documents
from meshwright.data.listing import walk
from meshwright.data.pieces import Form, Piece, Reject
from meshwright.data.tokenize_request import MAX_DOCUMENT_BYTES
from meshwright.values.errors import ConfigError, MissingExtraError

__all__ = ["ModelType", "Trained", "train_sentencepiece"]

ModelType = Literal["bpe", "unigram", "char", "word"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A model that was trained."""

    model: str
    vocab_size: int
    documents: int
    rejects: int
    """Of the corpus: what was no document and was passed over."""


def train_sentencepiece(
    inputs: Sequence[str],
    *,
    output_prefix: str,
    vocab_size: int,
    model_type: ModelType = "bpe",
    byte_fallback: bool = True,
    character_coverage: float = 0.9995,
    sentences: int = 1_000_000,
    key: str = "text",
    form: Form | None = None,
    text_unit: TextUnit = "line",
) -> Trained:
    """Train `PREFIX.model` and `PREFIX.vocab` on the lines of a corpus; a sample of `sentences`
    lines where it has more.

    Raises:
        ConfigError: no input; a vocabulary that the corpus can't fill, or that its characters don't
                     fit into.
    """
    try:
        import sentencepiece
    except ImportError:
        raise MissingExtraError("sentencepiece", "data") from None
    final = Path(output_prefix)
    if not final.name or final.is_dir():
        raise ConfigError(
            f"--output-prefix {output_prefix!r}: expected the beginning of a file's name, not a"
            " folder"
        )
    final.parent.mkdir(parents=True, exist_ok=True)
    lines = _Lines(
        [*walk(inputs, suffixes=() if form else SUFFIXES)], key=key, form=form, text_unit=text_unit
    )
    beside = temporary_of(final)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_prefix=str(beside),
            vocab_size=vocab_size,
            model_type=model_type,
            byte_fallback=byte_fallback,
            character_coverage=character_coverage,
            input_sentence_size=sentences,
            shuffle_input_sentence=True,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"sentencepiece: {' '.join(str(error).split())}") from None
    for ending in ("vocab", "model"):
        with Path(f"{beside}.{ending}").open("rb") as handle:
            os.fsync(handle.fileno())
        Path(f"{beside}.{ending}").rename(f"{final}.{ending}")
    sync_folder(final.parent)
    processor: Any = sentencepiece.SentencePieceProcessor(model_file=f"{final}.model")
    size: int = processor.get_piece_size()
    return Trained(
        model=f"{final}.model", vocab_size=size, documents=lines.documents, rejects=lines.rejects
    )


class _Lines:
    """The lines of a corpus, one document after the other."""

    def __init__(
        self, files: Sequence[Any], *, key: str, form: Form | None, text_unit: TextUnit
    ) -> None:
        self._files, self._key, self._form, self._text_unit = files, key, form, text_unit
        self.documents = self.rejects = 0

    def __iter__(self) -> Iterator[str]:
        for file in self._files:
            piece = Piece(
                path=file.path, form=form_of(file.name, self._form), size_bytes=file.size_bytes
            )
            for item in read_documents(
                piece, keys=(self._key,), text_unit=self._text_unit, max_bytes=MAX_DOCUMENT_BYTES
            ):
                if isinstance(item, Reject):
                    self.rejects += 1
                    continue
                self.documents += 1
                texts = [item.texts[0]] if isinstance(item.texts[0], str) else item.texts[0]
                for text in texts:
                    yield from (line for line in text.splitlines() if line.strip())
