"""How many parameters adapters have."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from tests.values.models.strategies import specs

from meshwright.values.errors import ConfigError
from meshwright.values.models.adapters import adapter_params, trainable_share
from meshwright.values.models.catalogue import find_model
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import ModelSpec
from meshwright.values.workload import LORA_TARGETS, Workload

WORK = Workload(seq_len=8192, lora_rank=16)


def test_llama2_70b_on_attention() -> None:
    """MLPerf Training's: 80 layers, 8192 to 10240 and 8192 to 8192, rank 16; 44.6 million of 69
    billion."""
    llama = find_model("llama2-70b")
    work = replace(WORK, lora_targets=("linear_qkv", "linear_proj"))
    assert adapter_params(llama, work) == 16 * 80 * (8192 + 10240 + 8192 + 8192) == 44_564_480
    assert trainable_share(llama, work) == pytest.approx(44_564_480 / model_params(llama).total)


def test_qlora_7b_on_all_layers() -> None:
    """Llama 7B, rank 16 on every layer, with one adapter for queries, keys and values."""
    sides = (4096 + 3 * 4096) + 2 * 4096 + (4096 + 2 * 11008) + (11008 + 4096)
    assert adapter_params(find_model("llama2-7b"), WORK) == 16 * 32 * sides


def test_each_expert_has_its_own() -> None:
    mixtral = find_model("mixtral-8x7b")
    work = replace(WORK, lora_targets=("linear_fc2",))
    assert adapter_params(mixtral, work) == 16 * 32 * 8 * (14336 + 4096)


@given(specs())
def test_targets_add_up_and_grow_with_the_rank(model: ModelSpec) -> None:
    one_by_one = (adapter_params(model, replace(WORK, lora_targets=(t,))) for t in LORA_TARGETS)
    whole = adapter_params(model, WORK)
    assert sum(one_by_one) == pytest.approx(whole)
    assert adapter_params(model, replace(WORK, lora_rank=32)) == pytest.approx(2 * whole)
    assert trainable_share(model, replace(WORK, lora_rank=0)) == 1.0


def test_unknown_targets_are_refused() -> None:
    with pytest.raises(ConfigError, match="lora_targets"):
        Workload(seq_len=8, lora_targets=("q_proj",))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected one or more"):
        Workload(seq_len=8, lora_targets=())
