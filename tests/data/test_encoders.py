"""Encoders of each library, and when gigatoken stands in for one."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.data.corpora import gpt2_files, line, text

from meshwright.data.encoders import Encoded, EncoderSpec
from meshwright.data.engines import choose_engine, first_difference, open_encoder, open_reference
from meshwright.data.tokenize_request import train_sentencepiece
from meshwright.values.errors import ConfigError


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    random_ = random.Random(0)
    (folder / "a.jsonl").write_bytes(b"".join(line(text(random_)) for _ in range(300)) + b"{}\n")
    trained = train_sentencepiece([str(folder)], output_prefix=str(folder / "mine"), vocab_size=400)
    assert (trained.vocab_size, trained.documents, trained.rejects) == (400, 300, 1)
    assert sorted(path.name for path in folder.iterdir()) == ["a.jsonl", "mine.model", "mine.vocab"]
    return trained.model


def test_sentencepiece(model: str) -> None:
    import sentencepiece

    reference = open_reference(EncoderSpec(kind="sentencepiece", model=model))
    encoded = reference.encode(["the fox", "", "日本"])
    processor: Any = sentencepiece.SentencePieceProcessor(model_file=model)
    assert encoded.ids.tolist() == [*processor.encode("the fox"), *processor.encode("日本")]
    assert encoded.lengths.tolist() == [
        len(processor.encode("the fox")),
        0,
        len(processor.encode("日本")),
    ]
    assert (reference.eod, reference.vocab_size, reference.decode(processor.encode("the fox"))) == (
        2,
        400,
        "the fox",
    )
    assert (
        choose_engine(reference, []).engine == "library"
    )  # gigatoken reads <s> in a text as the piece, SentencePiece as text


def test_a_vocabulary_that_can_not_be_filled(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("too little\n")
    with pytest.raises(ConfigError, match=r"sentencepiece: .*Vocabulary size too high"):
        train_sentencepiece([str(tmp_path)], output_prefix=str(tmp_path / "m"), vocab_size=32000)


def test_gpt2_and_gigatoken_agree_on_hard_texts(tmp_path: Path) -> None:
    spec = gpt2_files(tmp_path)
    reference = open_reference(spec)
    fast = open_encoder(reference, "gigatoken")
    random_ = random.Random(5)
    letters = [
        *map(chr, range(32, 127)),
        " ",
        "\n",
        "\t",
        "é",
        "ß",
        "я",
        "中",
        "🙂",
        "\u0301",
        "\u200d",
        "\u00a0",
        "\r",
    ]
    texts = ["".join(random_.choices(letters, k=random_.randint(1, 80))) for _ in range(300)]
    assert first_difference(fast, reference, texts) is None
    choice = choose_engine(reference, texts)
    assert choice.engine == "gigatoken"
    assert choose_engine(reference, texts, wanted="library").engine == "library"


def test_other_ids_are_never_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = open_reference(gpt2_files(tmp_path))

    def wrong(self: object, texts: list[str]) -> Encoded:
        return Encoded(ids=np.full(len(texts), 7), lengths=np.ones(len(texts), dtype=np.int64))

    monkeypatch.setattr("meshwright.data.engines.GigatokenEncoder.encode", wrong)
    choice = choose_engine(reference, ["a text"])
    assert choice.engine == "library"
    assert (
        "gigatoken is left out, since it gives other ids: '' differs at token 0: [7] for []"
        in choice.note
    )
    with pytest.raises(ConfigError, match="--engine gigatoken: it gives other ids"):
        choose_engine(reference, ["a text"], wanted="gigatoken")


def test_a_tokenizer_json_with_tokens_around(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, processors

    spec = gpt2_files(tmp_path / "base")
    base: Any = open_reference(spec)
    tokenizer = Tokenizer.from_str(base.to_json())
    end = tokenizer.token_to_id("<|endoftext|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", end)]
    )
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<|endoftext|>"}})
    )
    opened = open_reference(EncoderSpec(kind="huggingface", model=str(tmp_path)))
    assert (opened.around, opened.eod) == (((end,), ()), end)
    assert (
        opened.encode(["the quick brown fox"]).ids.tolist()
        == base.encode(["the quick brown fox"]).ids.tolist()
    )  # not cut to three
    assert open_reference(
        EncoderSpec(kind="huggingface", model=str(tmp_path), special_tokens=False)
    ).around == ((), ())


def test_word_pieces(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nfox\n##es\n")
    spec = EncoderSpec(kind="bert-lower", vocab_file=str(tmp_path / "vocab.txt"))
    opened = open_reference(spec)
    assert (opened.encode(["The foxes"]).ids.tolist(), opened.eod, opened.around) == (
        [5, 6, 7],
        3,
        ((), ()),
    )


def test_tiktoken_files(tmp_path: Path) -> None:
    ranks = [bytes([byte]) for byte in range(256)] + [b"th", b"the"]
    path = tmp_path / "own.tiktoken"
    path.write_bytes(
        b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(ranks))
    )
    with pytest.raises(ConfigError, match="does not say how text is cut"):
        open_reference(EncoderSpec(kind="tiktoken", model=str(path)))
    opened = open_reference(
        EncoderSpec(kind="tiktoken", model=str(path), tiktoken_pattern=r"\S+|\s+")
    )
    assert (opened.encode(["the a<|endoftext|>"]).ids.tolist(), opened.eod) == (
        [257, 32, 97, 258],
        258,
    )
    assert choose_engine(opened, []).note.endswith(
        "gigatoken is left out, since it does not know how this tokenizer cuts text"
    )
    (tmp_path / "cl100k_base.tiktoken").write_bytes(path.read_bytes())
    with pytest.raises(ConfigError, match="is not OpenAI's file of that name"):
        open_reference(EncoderSpec(kind="tiktoken", model=str(tmp_path / "cl100k_base.tiktoken")))


def test_megatrons_tiktokenizer(tmp_path: Path) -> None:
    """Special tokens come first: with ten of them, byte 97 is 107."""
    rows = [
        {"rank": byte, "token_bytes": base64.b64encode(bytes([byte])).decode(), "token_str": None}
        for byte in range(256)
    ]
    (tmp_path / "vocab.json").write_text(json.dumps(rows))
    spec = EncoderSpec(
        kind="tiktoken", model=str(tmp_path / "vocab.json"), tiktoken_num_special=10, vocab_size=266
    )
    opened = open_reference(spec)
    assert (opened.encode(["a</s>"]).ids.tolist(), opened.eod, opened.vocab_size) == (
        [107, 2],
        2,
        266,
    )


def test_an_end_that_is_no_token(tmp_path: Path) -> None:
    from dataclasses import replace

    spec = gpt2_files(tmp_path)
    assert open_reference(replace(spec, eod="17")).eod == 17
    with pytest.raises(ConfigError, match="--eod '</s>': no token of this tokenizer"):
        open_reference(replace(spec, eod="</s>"))
