"""Values of settings and details that are not given, each by a published rule."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar

from meshwright.software.settings import ModelDetails, TrainingSettings
from meshwright.values.data import package_rows
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.workload import Workload

__all__ = ["complete_details", "complete_settings", "left_out", "train_steps"]

T = TypeVar("T", TrainingSettings, ModelDetails)


_TOKENS_PER_PARAMETER = 20
"""Chinchilla (arXiv:2203.15556), section 3.4: about 20 tokens per parameter at the least compute
for a loss."""
_MOCK_STEPS = 100
"""Enough for a steady step time; mock data teach nothing."""
_MOST_WARMUP_STEPS = 2000
"""Llama (arXiv:2302.13971), section 2.3."""
_WIDE = 7168
"""DeepSeek-V3's hidden size, which it initialises with 0.006 (arXiv:2412.19437, section 4.2)."""
_RATES = (
    *((125e6, 6e-4), (350e6, 3e-4), (760e6, 2.5e-4), (1.3e9, 2e-4)),
    *((2.7e9, 1.6e-4), (6.7e9, 1.2e-4), (13e9, 1e-4), (175e9, 0.6e-4)),
)
"""(parameters, learning rate): GPT-3 (arXiv:2005.14165), table 2.1."""
_NOMINAL = 1.1
"""A model this much smaller than a size of that table still counts as of that size."""
_FIXED: dict[str, Any] = {
    "decay_style": "cosine",
    "weight_decay": 0.1,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_eps": 1e-8,
    "clip_gradient": 1.0,
    "seed": 1234,
    "split": (99.0, 1.0, 0.0),
    "save_interval": 500,
    "eval_interval": 1000,
}
"""GPT-3's optimizer; intervals and the split as Megatron-LM's examples have them."""


def complete_settings(
    settings: TrainingSettings, *, model: ModelSpec, work: Workload
) -> TrainingSettings:
    """Fill in what is None by the rules that TrainingSettings names; tokens become steps, rounded
    up. Completing twice changes nothing."""
    mock = not settings.data
    found: dict[str, Any] = dict(_FIXED)
    if (settings.train_steps, settings.train_samples, settings.train_tokens) == (None, None, None):
        found |= (
            {"train_steps": _MOCK_STEPS}
            if mock
            else {"train_tokens": _TOKENS_PER_PARAMETER * model_params(model).active}
        )
    found["learning_rate"] = _learning_rate(model_params(model).total)
    peak = found["learning_rate"] if settings.learning_rate is None else settings.learning_rate
    found["min_learning_rate"] = float(f"{peak / 10:.6g}")
    found["init_std"] = 0.006 if model.hidden >= _WIDE else 0.02
    found |= {"log_interval": 1 if mock else 10, "eval_steps": 0 if mock else 10}
    found["tokenizer_kind"] = (
        "huggingface" if settings.tokenizer else "gpt2-bpe" if settings.vocab_file else "null"
    )
    filled = _filled(settings, found)
    steps = train_steps(filled, work)
    if filled.train_tokens is not None:
        filled = replace(filled, train_steps=steps, train_tokens=None)
    return _filled(filled, {"warmup_steps": max(1, min(_MOST_WARMUP_STEPS, steps // 100))})


def _learning_rate(params: int) -> float:
    """Return the rate of the largest published size that a model reaches."""
    return [_RATES[0][1], *(rate for size, rate in _RATES if size <= params * _NOMINAL)][-1]


def train_steps(settings: TrainingSettings, work: Workload) -> int:
    """Return the optimizer steps of completed settings.

    Formula:  steps, or samples / gbs, or tokens / (gbs * seq_len), rounded up
    Units:    steps.
    Checked:  tests/software/test_defaults.py
    """
    if settings.train_steps is not None:
        return settings.train_steps
    assert work.gbs is not None
    if settings.train_samples is not None:
        return -(-settings.train_samples // work.gbs)
    assert settings.train_tokens is not None
    return -(-settings.train_tokens // (work.gbs * work.seq_len))


def complete_details(details: ModelDetails, *, model: ModelSpec, work: Workload) -> ModelDetails:
    """Fill in what is None: by the model's row in `software/model_details.csv`, else by the rules
    that ModelDetails names."""
    found: dict[str, Any] = {
        "activation": "silu" if model.gated else "gelu",
        "norm_eps": 1e-5,
        "dropout": 0.1 if work.dropout else 0.0,
    }
    if model.positions == "rope":
        found |= {"rope_base": 10000.0, "rope_share": 1.0}
    if model.mtp_layers:
        found["mtp_loss"] = 0.1
    known = _table().get(model.name, {})
    if model.moe is not None:
        balance = details.router_balance or known.get("router_balance") or "aux-loss"
        biased = balance == "bias"
        found |= {
            "router_balance": balance,
            "router_score": "sigmoid" if biased else "softmax",
            "aux_loss": 1e-4 if biased else 1e-2,
        }
    return _filled(details, {**found, **known})


_DETAILS = "software/model_details.csv"


def left_out(name: str) -> str:
    """Return what a model has that no field holds, by its row in `software/model_details.csv`;
    empty where nothing is known."""
    rows = package_rows(_DETAILS)
    return next((row["left_out"] for row in rows if name in row["models"].split()), "")


def _filled(values: T, found: dict[str, Any]) -> T:
    return replace(
        values, **{name: value for name, value in found.items() if getattr(values, name) is None}
    )


_WHOLE = ("router_groups", "router_top_groups")
_TEXT = ("activation", "router_score", "router_balance")


_DETAILS = "software/model_details.csv"


@cache
def _table() -> dict[str, dict[str, Any]]:
    """Return the given values by model."""

    def value(name: str, cell: str) -> Any:
        return cell if name in _TEXT else int(cell) if name in _WHOLE else float(cell)

    names = [field.name for field in fields(ModelDetails)]
    return {
        model: {name: value(name, row[name]) for name in names if row[name]}
        for row in package_rows(_DETAILS)
        for model in row["models"].split()
    }
