"""Texts to token ids: what tokenizer is meant, and one encoder per tokenizer library."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from meshwright.values.errors import ConfigError, UnknownNameError, load_extra
from meshwright.values.options import Option

__all__ = [
    "KINDS",
    "Encoded",
    "Encoder",
    "EncoderSpec",
    "Engine",
    "HuggingFaceEncoder",
    "Kind",
    "SentencePieceEncoder",
    "TiktokenEncoder",
    "joined",
    "open_huggingface",
    "open_sentencepiece",
    "open_tiktoken",
]

Kind = Literal["huggingface", "gpt2", "bert-cased", "bert-lower", "sentencepiece", "tiktoken"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Engine = Literal["gigatoken", "library"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderSpec:
    """A tokenizer, as the user names it; with the files' content it decides every id."""

    kind: Kind
    model: Annotated[
        str | None,
        Option(
            "tokenizer.json, SentencePiece .model, .tiktoken.",
            ("--tokenizer", "--tokenizer-model"),
            metavar="FILE",
        ),
    ] = None
    """tokenizer.json or its folder, SentencePiece model, .tiktoken file, Megatron's TikTokenizer's
    .json, name of a tiktoken encoding."""
    vocab_file: Annotated[str | None, Option("Of GPT-2 or BERT.", metavar="FILE")] = None
    merge_file: Annotated[str | None, Option("Of GPT-2.", metavar="FILE")] = None
    eod: Annotated[
        str | None,
        Option("That token, or its id [default: the tokenizer's own].", metavar="TOKEN"),
    ] = None
    """The token that ends a document."""
    special_tokens: bool = True
    """Whether what a tokenizer.json puts around each text (a begin-of-text token) is kept, as
    Megatron's HuggingFaceTokenizer does."""
    vocab_size: Annotated[int | None, Option("Of TikTokenizer: cut the vocabulary to it.")] = None
    tiktoken_pattern: Annotated[
        str | None, Option("v1, v2 or a regular expression.", metavar="P")
    ] = None
    tiktoken_num_special: Annotated[
        int, Option("Of TikTokenizer.", ("--tiktoken-num-special-tokens",), usual=1000)
    ] = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """Ids of several texts."""

    ids: NDArray[Any]
    """Of all texts, one after the other, integers of any width."""
    lengths: NDArray[np.int64]
    """Of each text, (texts,)."""


class Encoder(Protocol):
    """One tokenizer of one library."""

    def __hash__(self) -> int:
        """One that is opened is itself alone."""

    @property
    def name(self) -> str:
        """Library and version."""

    @property
    def vocab_size(self) -> int:
        """Ids are below it."""

    @property
    def eod(self) -> int | None:
        """Id of the token that ends a document; None where the tokenizer names none."""

    @property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids that stand before and behind every text and are not in what `encode` returns."""

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of texts, without those of `around`."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""

    def specials(self) -> Sequence[str]:
        """Return the texts of special tokens; in a document they become their ids."""


def flattened(rows: Sequence[Sequence[int]]) -> Encoded:
    """Return lists of ids as one array."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    return Encoded(
        ids=np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths.sum())),
        lengths=lengths,
    )


def joined(rows: Sequence[NDArray[Any]]) -> Encoded:
    """Return arrays of ids as one."""
    lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    ids = np.concatenate(rows) if rows else np.zeros(0, dtype=np.uint32)
    return Encoded(ids=ids, lengths=lengths)


def eod_of(
    wanted: str | None, ids: dict[str, int], names: Sequence[str], *, vocab_size: int
) -> int | None:
    """Return the id of the end of a document: the token or the number that the user gave, else the
    first of `names` that exists. ConfigError where the user's is no token."""
    if wanted is None:
        return next((ids[name] for name in names if name in ids), None)
    if wanted in ids:
        return ids[wanted]
    if wanted.isdecimal() and int(wanted) < vocab_size:
        return int(wanted)
    near = ", ".join(repr(name) for name in names if name in ids) or "none of the usual ones"
    raise ConfigError(
        f"--eod {wanted!r}: no token of this tokenizer, nor an id below {vocab_size}; it has {near}"
    )


_V1 = r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_V2 = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MEGATRON_PATTERNS = {"v1": _V1, "v2": _V2}
"""How text is cut before its bytes are merged: Megatron-Core's --tiktoken-pattern."""
MEGATRON_SPECIALS = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
"""The first ids of Megatron's TikTokenizer; `<SPECIAL_n>` fills the rest."""
MEGATRON_VOCAB_SIZE = 2**17
_END = "<|endoftext|>"


class TiktokenEncoder:
    """An encoding of tiktoken; special tokens in a text become their ids, as in Megatron."""

    around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def __init__(
        self, encoding: Any, *, eod: str | None, end: str, path: str | None = None
    ) -> None:
        import tiktoken

        self.encoding, self.path, self.name = encoding, path, f"tiktoken {tiktoken.__version__}"
        self.vocab_size: int = encoding.max_token_value + 1
        names = encoding.special_tokens_set
        specials = {text: encoding.encode_single_token(text) for text in names}
        self.eod = eod_of(eod, specials, (end,), vocab_size=self.vocab_size)

    def encode(self, texts: Sequence[str]) -> Encoded:
        return joined([self.encoding.encode_to_numpy(t, allowed_special="all") for t in texts])

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.encoding.decode([int(token) for token in ids]))

    def specials(self) -> Sequence[str]:
        return sorted(self.encoding.special_tokens_set)


def open_tiktoken(spec: EncoderSpec) -> TiktokenEncoder:
    """Open a spec's encoding; ConfigError for an absent or broken file, or an unknown pattern."""
    tiktoken = load_extra("tiktoken", "data")
    if spec.model is None:
        raise ConfigError(
            "tiktoken needs --tokenizer with a .tiktoken file, Megatron's .json, or the name of an"
            " encoding"
        )
    path = Path(spec.model)
    if path.is_file():
        return _megatron(spec, path) if path.suffix == ".json" else _ranks_file(spec, path)
    if spec.model in tiktoken.list_encoding_names():
        return TiktokenEncoder(tiktoken.get_encoding(spec.model), eod=spec.eod, end=_END)
    raise UnknownNameError(
        "file or encoding of tiktoken", spec.model, tiktoken.list_encoding_names()
    )


def _ranks_file(spec: EncoderSpec, path: Path) -> TiktokenEncoder:
    """Open a .tiktoken file: one of OpenAI's by its name and hash, else with the given pattern."""
    import tiktoken
    from tiktoken_ext import openai_public

    known = openai_public.ENCODING_CONSTRUCTORS.get(path.stem)
    if known is not None and spec.tiktoken_pattern is None:
        # here: a fourteenth of a second, which every worker would take to start
        from unittest.mock import patch

        def load(_url: str, expected_hash: str) -> dict[bytes, int]:
            return _read_ranks(path, expected_hash)

        with patch.object(openai_public, "load_tiktoken_bpe", load):
            encoding = tiktoken.Encoding(**known())
        return TiktokenEncoder(encoding, eod=spec.eod, end=_END, path=str(path))
    if spec.tiktoken_pattern is None:
        raise ConfigError(
            f"{path}: a .tiktoken file does not say how text is cut before its bytes are merged:"
            f" name it after its encoding ({', '.join(openai_public.ENCODING_CONSTRUCTORS)}), or"
            " give --tiktoken-pattern (v1, v2 or a regular expression)"
        )
    ranks = _read_ranks(path)
    pattern = MEGATRON_PATTERNS.get(spec.tiktoken_pattern, spec.tiktoken_pattern)
    specials = {_END: max(ranks.values()) + 1}
    encoding = tiktoken.Encoding(
        name=path.stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials
    )
    return TiktokenEncoder(encoding, eod=spec.eod, end=_END)


def _read_ranks(path: Path, expected_hash: str | None = None) -> dict[bytes, int]:
    """Read a base64 token and its rank per line; tiktoken's own loader caches by path alone."""
    content = path.read_bytes()
    if expected_hash is not None and hashlib.sha256(content).hexdigest() != expected_hash:
        raise ConfigError(
            f"{path}: is not OpenAI's file of that name (sha256 differs); give --tiktoken-pattern"
            " if it is one of your own"
        )
    try:
        return {
            base64.b64decode(token): int(rank)
            for token, rank in (line.split() for line in content.splitlines() if line)
        }
    except ValueError as error:
        raise ConfigError(f"{path}: no .tiktoken file ({error})") from None


def _megatron(spec: EncoderSpec, path: Path) -> TiktokenEncoder:
    """Open the vocabulary of Megatron's TikTokenizer: special tokens, then ranks that fit."""
    import tiktoken

    pattern = MEGATRON_PATTERNS.get(spec.tiktoken_pattern or "v2")
    if pattern is None:
        raise ConfigError(
            f"--tiktoken-pattern {spec.tiktoken_pattern!r}: expected v1 or v2 for Megatron's"
            " TikTokenizer"
        )
    first, size = spec.tiktoken_num_special, spec.vocab_size or MEGATRON_VOCAB_SIZE
    if not len(MEGATRON_SPECIALS) <= first < size:
        raise ConfigError(
            f"--tiktoken-num-special-tokens {first}: expected {len(MEGATRON_SPECIALS)} to"
            f" {size - 1}"
        )
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        tokens = [base64.b64decode(row["token_bytes"]) for row in rows]
    except (ValueError, TypeError, KeyError):
        raise ConfigError(
            f"{path}: no vocabulary of Megatron's TikTokenizer: a list of objects with rank and"
            " token_bytes"
        ) from None
    ranks = {token: first + rank for rank, token in enumerate(tokens[: size - first])}
    fill = (f"<SPECIAL_{number}>" for number in range(len(MEGATRON_SPECIALS), first))
    specials = {name: number for number, name in enumerate((*MEGATRON_SPECIALS, *fill))}
    encoding = tiktoken.Encoding(
        name=path.stem, pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials
    )
    return TiktokenEncoder(encoding, eod=spec.eod, end="</s>")


_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
"""End of a document where nothing says it: GPT-2, SentencePiece models, Llama 3, Gemma, BERT."""


class HuggingFaceEncoder:
    """A tokenizer of `tokenizers`."""

    def __init__(
        self, tokenizer: Any, *, eod: str | None, special_tokens: bool, named_end: str | None = None
    ) -> None:
        """Wrap a `tokenizers.Tokenizer`; it then cuts and pads nothing, whatever its file says."""
        import tokenizers

        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer, self.name = tokenizer, f"tokenizers {tokenizers.__version__}"
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        highest = max(vocabulary.values(), default=-1)
        self.vocab_size: int = max(tokenizer.get_vocab_size(with_added_tokens=True), highest + 1)
        names = (named_end,) if named_end is not None else _ENDS
        self.eod = eod_of(eod, vocabulary, names, vocab_size=self.vocab_size)
        self.around = _around(tokenizer) if special_tokens else ((), ())

    def encode(self, texts: Sequence[str]) -> Encoded:
        found = self.tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return flattened([encoding.ids for encoding in found])

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def specials(self) -> Sequence[str]:
        return [token.content for token in self.tokenizer.get_added_tokens_decoder().values()]

    def to_json(self) -> str:
        return str(self.tokenizer.to_str())


def _around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    bare = tokenizer.encode("a", add_special_tokens=False).ids
    whole = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(whole) - len(bare) + 1):
        if whole[start : start + len(bare)] == bare:
            return tuple(whole[:start]), tuple(whole[start + len(bare) :])
    raise ConfigError(
        "the tokenizer's post-processor changes the ids of the text itself; give"
        " --no-special-tokens to leave it out"
    )


def open_huggingface(spec: EncoderSpec) -> HuggingFaceEncoder:
    """Open the tokenizer of a spec; ConfigError where a file is absent or no tokenizer."""
    # a worker is one process; its threads would take the others' cores
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    load_extra("tokenizers", "data")
    if spec.kind == "gpt2":
        return _gpt2(spec)
    if spec.kind in ("bert-cased", "bert-lower"):
        return _bert(spec)
    return _from_json(spec)


def _from_json(spec: EncoderSpec) -> HuggingFaceEncoder:
    from tokenizers import Tokenizer

    if spec.model is None:
        raise ConfigError(
            "a Hugging Face tokenizer needs --tokenizer with a tokenizer.json or its folder"
        )
    path = Path(spec.model)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(
            f"{path}: no such file; give a tokenizer.json or its folder (names of the Hub are not"
            " fetched here)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(f"{path}: no tokenizer.json that `tokenizers` reads ({error})") from None
    end, kept = _named_end(path.parent), spec.special_tokens
    return HuggingFaceEncoder(tokenizer, eod=spec.eod, special_tokens=kept, named_end=end)


def _named_end(folder: Path) -> str | None:
    """Return the end token that tokenizer_config.json names, as Megatron and NeMo do."""
    try:
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    token = config.get("eos_token") or config.get("sep_token") if isinstance(config, dict) else None
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None


def _gpt2(spec: EncoderSpec) -> HuggingFaceEncoder:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocab, merges = _file(spec.vocab_file, "--vocab-file"), _file(spec.merge_file, "--merge-file")
    try:
        tokenizer = Tokenizer(models.BPE.from_file(vocab, merges))
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(
            f"{vocab}, {merges}: no vocabulary and merges of a byte-pair encoding ({error})"
        ) from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    return HuggingFaceEncoder(tokenizer, eod=spec.eod, special_tokens=False)


def _bert(spec: EncoderSpec) -> HuggingFaceEncoder:
    """Word pieces without [CLS] and [SEP]: Megatron's BERT data set puts these in itself."""
    from tokenizers import BertWordPieceTokenizer

    vocab = _file(spec.vocab_file, "--vocab-file")
    try:
        wrapped = BertWordPieceTokenizer(vocab, lowercase=spec.kind == "bert-lower")
    except Exception as error:  # the library raises Exception itself
        raise ConfigError(f"{vocab}: no vocabulary of word pieces ({error})") from None
    return HuggingFaceEncoder(
        wrapped._tokenizer, eod=spec.eod, special_tokens=False, named_end="[SEP]"
    )


def _file(path: str | None, flag: str) -> str:
    if path is None:
        raise ConfigError(f"this tokenizer needs {flag}")
    if not Path(path).is_file():
        raise ConfigError(f"{flag} {path}: no such file")
    return path


class SentencePieceEncoder:
    """A model of SentencePiece; special tokens in a text are ordinary text to it."""

    around: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def __init__(self, processor: Any, path: str, *, eod: str | None) -> None:
        import sentencepiece

        self.processor, self.path = processor, path
        self.name = f"sentencepiece {sentencepiece.__version__}"
        self.vocab_size: int = processor.get_piece_size()
        end = processor.eos_id()
        self.eod: int | None = end if end >= 0 else None
        if eod is not None:
            pieces = {processor.id_to_piece(number): number for number in range(self.vocab_size)}
            self.eod = eod_of(eod, pieces, ("</s>",), vocab_size=self.vocab_size)

    def encode(self, texts: Sequence[str]) -> Encoded:
        return flattened(self.processor.encode(list(texts), out_type=int, num_threads=1))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self.processor.decode([int(token) for token in ids]))

    def specials(self) -> Sequence[str]:
        """Return the model's special pieces: ordinary text, which a stand-in must treat alike."""
        numbers = filter(self.processor.is_control, range(min(self.vocab_size, 16)))
        return [self.processor.id_to_piece(number) for number in numbers]


def open_sentencepiece(spec: EncoderSpec) -> SentencePieceEncoder:
    """Open the model of a spec; ConfigError where it is absent or no model."""
    sentencepiece = load_extra("sentencepiece", "data")
    if spec.model is None:
        raise ConfigError("a SentencePiece tokenizer needs --tokenizer with its .model file")
    if not Path(spec.model).is_file():
        raise ConfigError(f"{spec.model}: no such file")
    try:
        processor = sentencepiece.SentencePieceProcessor(model_file=spec.model)
    except (OSError, RuntimeError) as error:
        raise ConfigError(f"{spec.model}: no SentencePiece model ({error})") from None
    return SentencePieceEncoder(processor, spec.model, eod=spec.eod)
