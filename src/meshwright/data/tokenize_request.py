"""What to tokenize and how, what came of it, and training a SentencePiece model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, Literal

from meshwright.data.atomic import write_whole
from meshwright.data.documents import SUFFIXES, TextUnit, form_of, read_documents
from meshwright.data.encoders import EncoderSpec, Engine
from meshwright.data.indexed import prefix_path
from meshwright.data.listing import FileRecord, Manifest, walk
from meshwright.data.pieces import Form, Piece, Reject, Rejected
from meshwright.data.segment_work import OnError
from meshwright.data.steps import state_folder
from meshwright.values.amounts import check_amounts
from meshwright.values.errors import ConfigError, load_extra
from meshwright.values.options import Option, word_of
from meshwright.values.units import MIB

__all__ = [
    "MAX_DOCUMENT_BYTES",
    "ModelType",
    "TokenizeReport",
    "TokenizeRequest",
    "Trained",
    "train_sentencepiece",
]

MAX_DOCUMENT_BYTES = 64 * MIB
"""A longer document would take a worker beyond 1 GiB: line, text and ids are held at once."""


def _mib_bytes(size: int) -> int:
    return size * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeRequest:
    """What to tokenize, how, and where to."""

    inputs: tuple[str, ...]
    """Files, folders, patterns, and @FILE lists of them."""
    output_prefix: Annotated[
        str,
        Option(
            "Files are PREFIX_KEY_document.bin.",
            ("--output-prefix", "-o"),
            metavar="PREFIX",
            usual="",
        ),
    ]
    """Files are `PREFIX_KEY_document.bin` and `.idx`, as Megatron's; `_sentence` where split."""
    tokenizer: EncoderSpec
    keys: Annotated[
        tuple[str, ...],
        Option("Of the text in each object [default: text].", ("--json-keys",), metavar="KEY"),
    ] = ("text",)
    append_eod: Annotated[
        bool, Option("End each document with the tokenizer's token for that.")
    ] = False
    split_sentences: Annotated[bool, Option("One sequence per sentence (BERT, T5), by NLTK.")] = (
        False
    )
    keep_newlines: Annotated[bool, Option("Sentences keep the white space behind them.")] = False
    """As Megatron's --keep-newlines has it."""
    language: Annotated[str, Option("Language of the sentences.", ("--lang",), usual="english")] = (
        "english"
    )
    form: Annotated[
        Form | None,
        Option(
            "json, text or parquet [default: by the names].",
            ("--format",),
            metavar="FORM",
            read=word_of(Form, "--format"),
        ),
    ] = None
    """What the inputs hold."""
    text_unit: Annotated[
        TextUnit,
        Option(
            "What is a document of a text: file, line or paragraph.",
            metavar="UNIT",
            read=word_of(TextUnit, "--text-unit"),
            usual="file",
        ),
    ] = "file"
    on_error: Annotated[
        OnError,
        Option(
            "With what is no document: fail, skip or quarantine.",
            metavar="POLICY",
            read=word_of(OnError, "--on-error"),
            usual="fail",
        ),
    ] = "fail"
    max_document_bytes: Annotated[
        int,
        Option(
            "A longer document is none: memory.",
            ("--max-document-mib",),
            read=_mib_bytes,
            usual=MAX_DOCUMENT_BYTES // MIB,
        ),
    ] = MAX_DOCUMENT_BYTES
    engine: Annotated[
        Engine | None,
        Option(
            "gigatoken or library [default: the faster that is exact].",
            metavar="NAME",
            read=word_of(Engine, "--engine"),
        ),
    ] = None
    """None: gigatoken where a sample shows the same ids."""

    def __post_init__(self) -> None:
        check_amounts(self, ["max_document_bytes"], least=1)
        if not self.inputs:
            raise ConfigError("no input: give files, folders or patterns")
        if not self.keys or len(set(self.keys)) != len(self.keys):
            raise ConfigError(
                f"--json-keys {' '.join(self.keys)}: expected one or more different keys"
            )
        if not self.output_prefix:
            raise ConfigError(
                "--output-prefix is missing: give the beginning of the output files' names, such as"
                " data/my-gpt"
            )
        prefix_path(self.output_prefix)
        if self.keep_newlines and not self.split_sentences:
            raise ConfigError(
                "--keep-newlines: only with --split-sentences; a document that is not split keeps"
                " all of its text"
            )

    @property
    def folder(self) -> Path:
        return Path(self.output_prefix).parent

    @property
    def state(self) -> Path:
        """Folder of the frozen list, the journals and the scratch files."""
        return state_folder(self.folder, f"tokenize-{Path(self.output_prefix).name}")

    @property
    def manifest_name(self) -> str:
        return f"{Path(self.output_prefix).name}.manifest.json"

    def prefixes(self) -> dict[str, Path]:
        """Return the prefix of each key's files."""
        level = "sentence" if self.split_sentences else "document"
        return {key: Path(f"{self.output_prefix}_{key}_{level}") for key in self.keys}


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenizeReport:
    """What a run of `tokenize` has come to."""

    manifest: Manifest | None
    """Of the outputs; None where they are not complete yet."""
    note: str
    """What does the work, and why."""
    seconds: float
    rejects: int = 0
    """What was left out by the policy."""
    files_out: tuple[str, ...] = ()
    """Files that were left out whole."""
    failed: tuple[Rejected, ...] = ()
    """By the policy `fail`: what is no document, at most a hundred of each segment."""
    problems: tuple[str, ...] = ()
    open_segments: int = 0
    """Of other ranks."""

    @property
    def exit_code(self) -> int:
        """0 done, or this rank's share done; 1 nothing to write; 3 partly done."""
        if self.failed or self.problems or self.files_out:
            return 3
        return 1 if self.manifest is not None and not self.documents else 0

    @property
    def documents(self) -> int:
        """Of the output; the same for every key."""
        return next((file.documents for file in self._files() if file.documents is not None), 0)

    @property
    def tokens(self) -> int:
        """Of the output, over all keys."""
        return sum(file.tokens or 0 for file in self._files())

    def _files(self) -> tuple[FileRecord, ...]:
        return self.manifest.files if self.manifest is not None else ()


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
    """Train `PREFIX.model` and `PREFIX.vocab` on the lines of a corpus, or on a sample of
    `sentences` lines. ConfigError without input, and for a vocabulary that the corpus can't fill,
    or that its characters don't fit into."""
    sentencepiece = load_extra("sentencepiece", "data")
    final = prefix_path(output_prefix)
    final.parent.mkdir(parents=True, exist_ok=True)
    model = BytesIO()
    lines = _Lines(
        [*walk(inputs, suffixes=() if form else SUFFIXES)], key=key, form=form, text_unit=text_unit
    )
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
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
    processor: Any = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    size: int = processor.get_piece_size()
    pieces = (f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n" for i in range(size))
    # The trainer's own writer says nothing of a full disk, and leaves a torn file.
    write_whole(Path(f"{final}.vocab"), "".join(pieces).encode())
    write_whole(Path(f"{final}.model"), model.getvalue())
    return Trained(
        model=f"{final}.model", vocab_size=size, documents=lines.documents, rejects=lines.rejects
    )


class _Lines:
    def __init__(
        self, files: Sequence[Any], *, key: str, form: Form | None, text_unit: TextUnit
    ) -> None:
        self._files, self._key, self._form, self._text_unit = files, key, form, text_unit
        self.documents = self.rejects = 0

    def __iter__(self) -> Iterator[str]:
        for file in self._files:
            piece = Piece(
                path=file.path, form=form_of(file.path, self._form), size_bytes=file.size_bytes
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
