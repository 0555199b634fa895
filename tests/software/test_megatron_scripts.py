from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.software.examples import training_plan
from tests.software.frameworks import (
    check_round_trip,
)

from meshwright.software.contract import Imported, export_plan, import_text
from meshwright.software.megatron_lm.export import MEGATRON_LM, split_words
from meshwright.software.megatron_lm.read import MEGATRON_LM_SOURCE
from meshwright.software.settings import Dataset
from meshwright.values.errors import ConfigError

SCRIPT = r"""
#!/bin/bash
# a script as people write them: arrays, sums, quotes, old flags
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8   # of each server
NUM_NODES=2
TP=4
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))
GBS=$((WORLD_SIZE * 4 / TP))
MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096 --ffn-hidden-size 14336   # SwiGLU
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length 8192 --max-position-embeddings 8192
    --position-embedding-type rope --rotary-base 500000
    --normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights
    "--vocab-size 128256"
)
MODEL_ARGS+=(--attention-dropout 0 --hidden-dropout 0)
OLD="--dataset-impl mmap --chunk-size 64"
run="python -u pretrain_gpt.py ${MODEL_ARGS[@]} --tensor-model-parallel-size $TP --sequence-parallel --micro-batch-size 1 \
  --global-batch-size ${GBS} --data-parallel-size 4 --use-distributed-optimizer --overlap-grad-reduce --bf16 \
  --lr ${LR:-3.0e-4} --train-iters 500 --data-path 0.3 '/data/a b' 0.7 $DATA --made-up-flag 1 2 ${OLD}"
srun --ntasks-per-node 8 bash -c "${run}"
"""  # noqa: E501


def read_script(text: str = SCRIPT) -> Imported:
    return import_text(text, source=MEGATRON_LM_SOURCE)


def test_a_script_is_read_with_its_variables_arrays_sums_and_quotes() -> None:
    found = read_script()
    assert (found.model.name, found.model.num_kv_heads) == ("llama3-8b", 8)
    assert {
        name: found.layout[name] for name in ("tp", "sp", "pp", "mbs", "gbs", "dp", "sharding")
    } == {
        **{"tp": 4, "sp": True, "pp": 1, "mbs": 1, "dp": 4, "sharding": "zero1"},
        "gbs": 16,  # 8 * 2 * 4 / 4
    }
    assert (found.num_chips, found.chips_per_node) == (16, 8)
    assert (found.work.seq_len, found.work.precision, found.stack) == (8192, "bf16", "megatron")
    assert (found.settings.learning_rate, found.settings.train_steps) == (3e-4, 500)
    assert found.settings.data == (
        Dataset(path="/data/a b", weight=0.3),
        Dataset(path="$DATA", weight=0.7),
    )
    assert found.details.rope_base == 500000


def test_flags_that_are_gone_are_left_out_and_unknown_ones_passed_through_each_with_a_warning() -> (
    None
):
    found = read_script()
    assert found.passed_through == ("--made-up-flag", "1", "2")
    assert found.settings.extra == found.passed_through
    told = " ".join(found.warnings)
    assert "--dataset-impl no longer exists" in told
    assert "--chunk-size no longer exists" in told
    assert "--made-up-flag is no flag of Megatron-LM" in told


def test_what_the_program_takes_where_nothing_is_said() -> None:
    found = read_script(
        "pretrain_gpt.py --num-layers 24 --hidden-size 2048 --num-attention-heads 16"
        " --micro-batch-size 2 --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257"
        " --data-parallel-size 4"
    )
    model = found.model
    assert (model.positions, model.norm, model.linear_bias, model.tied, model.gated, model.ffn) == (
        "learned",
        "layernorm",
        True,
        True,
        False,
        8192,
    )
    assert found.layout["gbs"] == 8  # a micro batch for each of 4 ranks
    assert (found.details.dropout, found.settings.adam_beta2, found.settings.weight_decay) == (
        0.1,
        0.999,
        0.01,
    )
    assert (found.work.precision, found.layout["sharding"], found.stack) == (
        "fp32",
        "none",
        "megatron-no-overlap",
    )


BARE = (
    "--num-layers 24 --hidden-size 2048 --num-attention-heads 16 --micro-batch-size 2 --seq-length"
    " 2048 --vocab-size 50257 --swiglu"
)


def test_an_example_for_one_node_is_read_for_the_cluster_that_it_will_run_on() -> None:
    """Megatron-LM's own example of GPT-3 175B: tp=8 * pp=16 on NUM_NODES=1, to be changed."""
    flags = "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 3 --global-batch-size 64"
    found = read_script(
        f"NUM_NODES=1\ntorchrun --nproc_per_node 8 --nnodes $NUM_NODES pretrain_gpt.py {BARE}"
        f" {flags}"
    )
    assert (found.num_chips, found.layout.get("dp"), found.chips_per_node) == (None, None, 8)
    assert (
        "the script starts 8 processes, and tp * pp * cp = 24: the number of its GPUs is left out"
        in found.warnings
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{SCRIPT}".replace("--data-parallel-size 4", "--data-parallel-size 8"),
            r"--data-parallel-size 8: 16 GPUs over .* leave 4",
        ),
        (SCRIPT.replace("TP=4", "TP=3"), "tp=3 .* = 3 does not divide 16 GPUs"),
        (SCRIPT.replace("TP=4", ""), r"--tensor-model-parallel-size \$TP.* does not set TP"),
        ("echo hello", "no training command"),
        ("pretrain_gpt.py --num-layers 'open", "does not read as shell"),
        (
            BARE.replace("--vocab-size 50257", ""),
            "no --vocab-size, and no known model has this shape",
        ),
        (BARE.replace("--micro-batch-size 2", ""), "--micro-batch-size: expected"),
        (f"{BARE} --num-experts 8 --moe-layer-freq [0,1,1]", "3 layers of 24"),
        (
            f"{BARE} --num-experts 8 --moe-layer-freq __import__('os')",
            "expected a number or a list",
        ),
        (f"{BARE} --pipeline-model-parallel-size 5", "24 do not divide by 5; 20 would be trained"),
        (f"{BARE} --lr fast", "--lr fast: expected a number"),
    ],
)
def test_a_script_that_does_not_add_up_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_script(text)


def test_a_method_without_granularity_is_called_out() -> None:
    found = read_script(f"{BARE} --recompute-method uniform --recompute-num-layers 1")
    assert "recompute" not in found.layout
    assert found.warnings == (
        "--recompute-method without --recompute-granularity has no effect; nothing is recomputed",
    )


PIECES = (
    "A=(",
    ")",
    "$A",
    "${A[@]}",
    "$((1+",
    "))",
    '"',
    "'",
    "\\\n",
    "\n",
    "--num-layers",
    "pretrain_gpt.py",
    "8",
    "A+=$A",
    "# x",
    "if",
    "|",
    BARE,
)


@hypothesis_settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=25))
def test_any_text_is_read_or_refused_in_one_line(pieces: list[str]) -> None:
    try:
        found = read_script(" ".join(pieces))
    except ConfigError as error:
        assert str(error)
    else:
        assert found.model.hidden > 0


@pytest.mark.parametrize("version", ["0.20", "0.15"])
def test_bridge_exchanges_experts_through_deepep(version: str) -> None:
    plan = training_plan(
        "qwen3-30b-a3b", layout="ep=8,mbs=1", stack="megatron-bridge", megatron_version=version
    )
    found = split_words(export_plan(plan, target=MEGATRON_LM).command[1:])
    assert found["--moe-token-dispatcher-type"] == ("flex",)
    assert ("--moe-flex-dispatcher-backend" in found, "--moe-enable-deepep" in found) == (
        version == "0.20",
        version == "0.15",
    )
    check_round_trip(plan, target=MEGATRON_LM, source=MEGATRON_LM_SOURCE)


def test_what_a_stack_counts_on_and_the_script_does_without_is_said() -> None:
    """Megatron-Bridge v0.6.0 runs Qwen3 30B on H100 with graphs and hidden exchanges
    (scripts/performance); megatron-bridge-25.09 is HybridEP without."""
    plan = training_plan(
        "qwen3-30b-a3b", layout="ep=8,mbs=1", stack="megatron-bridge", megatron_version="0.18"
    )
    (note,) = (
        note for note in export_plan(plan, target=MEGATRON_LM).notes if note.startswith("stack")
    )
    counted = (
        "CUDA graphs and on expert exchanges behind another micro batch's compute, which these"
        " files do not switch on"
    )
    assert (
        note
        == f"stack megatron-bridge counts on {counted}; --stack megatron-bridge-25.09 predicts what"
        " they do"
    )
    plain = training_plan(
        "mixtral-8x7b", layout="ep=8,mbs=1", stack="megatron-bridge-25.09", megatron_version="0.18"
    )
    assert not any(
        note.startswith("stack") for note in export_plan(plain, target=MEGATRON_LM).notes
    )


@pytest.mark.parametrize(
    ("flags", "stack"),
    [
        ("--overlap-grad-reduce", "megatron"),
        ("--grad-reduce-in-bf16", "megatron-half-gradients"),
        (
            "--grad-reduce-in-bf16 --cross-entropy-loss-fusion --cross-entropy-fusion-impl te",
            "nemo",
        ),
        ("--grad-reduce-in-bf16 --moe-token-dispatcher-type flex", "megatron-bridge-25.09"),
    ],
)
def test_a_script_is_priced_as_the_stack_that_does_what_its_flags_say(
    flags: str, stack: str
) -> None:
    assert read_script(f"{BARE} --max-position-embeddings 2048 {flags}").stack == stack


def test_flags_that_move_a_step_and_are_not_priced_are_named() -> None:
    found = read_script(
        f"{BARE} --max-position-embeddings 2048 --cuda-graph-impl local --moe-token-dispatcher-type"
        " flex --manual-gc"
    )
    (said,) = (warning for warning in found.warnings if warning.startswith("not priced"))
    assert said.startswith(
        "not priced, only passed through: --cuda-graph-impl, --moe-token-dispatcher-type; this"
        " run's own time"
    )
