"""Models of SentencePiece, and training one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.data.encoders.encoder import Encoded, EncoderSpec, eod_of, flattened
from meshwright.errors import ConfigError, MissingExtraError

__all__ = ["SentencePieceEncoder", "open_sentencepiece"]


class SentencePieceEncoder:
    """A model of SentencePiece; special tokens in a text are ordinary text to it."""

    around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def __init__(self, processor: Any, path: str, *, eod: str | None) -> None:
        import sentencepiece

        self.processor, self.path, self.name = (
            processor,
            path,
            f"sentencepiece {sentencepiece.__version__}",
        )
        self.vocab_size: int = processor.get_piece_size()
        end = processor.eos_id()
        pieces = (
            {}
            if eod is None
            else {processor.id_to_piece(number): number for number in range(self.vocab_size)}
        )
        self.eod = (
            (end if end >= 0 else None)
            if eod is None
            else eod_of(eod, pieces, ("</s>",), vocab_size=self.vocab_size)
        )

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of texts."""
        return flattened(self.processor.encode(list(texts), out_type=int, num_threads=1))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return str(self.processor.decode([int(token) for token in ids]))

    def specials(self) -> Sequence[str]:
        """Return the texts of the model's own special pieces: ordinary text, which a stand-in must
        treat alike."""
        numbers = range(min(self.vocab_size, 16))
        return [
            self.processor.id_to_piece(number)
            for number in numbers
            if self.processor.is_control(number)
        ]


def open_sentencepiece(spec: EncoderSpec) -> SentencePieceEncoder:
    """Open the model of a spec; ConfigError where it is absent or no model."""
    try:
        import sentencepiece
    except ImportError:
        raise MissingExtraError("sentencepiece", "data") from None
    if spec.model is None:
        raise ConfigError("a SentencePiece tokenizer needs --tokenizer with its .model file")
    if not Path(spec.model).is_file():
        raise ConfigError(f"{spec.model}: no such file")
    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=spec.model)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{spec.model}: no SentencePiece model ({error})") from None
    return SentencePieceEncoder(processor, spec.model, eod=spec.eod)
