from __future__ import annotations

import pytest

from meshwright.values.secrets import holds_secret, masked


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("export WANDB_API_KEY=abc123", "export WANDB_API_KEY=***"),
        ("-export HF_TOKEN='hf_x y'", "-export HF_TOKEN='*** y'"),
        ('{"HF_TOKEN": "hf_x"}', '{"HF_TOKEN": "***"}'),
        ("env:\n  DB_PASSWORD: hunter2\n", "env:\n  DB_PASSWORD: ***\n"),
        ("--wandb-api-key abc --lr 1", "--wandb-api-key *** --lr 1"),
        ("--wandb_key=abc", "--wandb_key=***"),
        ('["--hf-token", "abc"]', '["--hf-token", "***"]'),
        ("srun --export=ALL,AWS_SECRET_ACCESS_KEY=a/b+c", None),
    ],
)
def test_a_value_behind_a_secrets_name_is_hidden(text: str, wanted: str | None) -> None:
    assert masked(text) == (wanted or "srun --export=ALL,AWS_SECRET_ACCESS_KEY=***")
    assert holds_secret(text)


@pytest.mark.parametrize(
    "text",
    [
        "eos_token_id: 2, tokens=300B, train_tokens: 5",
        "HF_TOKEN (from your shell, or the platform's secrets)",
        '"WANDB_API_KEY=$WANDB_API_KEY"',
        ': "${HF_TOKEN:?set it where you submit; no file has its value}"; export HF_TOKEN',
        "--api-key TEXT  Of the server.",
        "--secret meshwright:HF_TOKEN:HF_TOKEN",
        "  HF_TOKEN: null\n",
        "TOKENIZERS_PARALLELISM=false NCCL_IB_PKEY=1",
        "tokens/s/GPU: 4,096  Tokens: 12",
        "--tokenizer-model /a --eod-token 2",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text
    assert not holds_secret(text)


def test_known_values_are_hidden_wherever_they_stand() -> None:
    value = 'a"b\\c-123456'
    assert masked(f"refused: {value}", [value]) == "refused: ***"
    assert masked('{"said": "a\\"b\\\\c-123456"}', [value]) == '{"said": "***"}'
    assert masked("a short abc", ["abc"]) == "a short abc"


def test_counts_of_tokens_are_no_secrets() -> None:
    line = "TRAIN_TOKENS=300000000000 LR_WARMUP_TOKENS=375000000"
    assert masked(line) == line
    assert masked("HF_TOKEN=hf_abcdefgh") == "HF_TOKEN=***"
