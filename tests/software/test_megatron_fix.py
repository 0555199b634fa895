"""Launch scripts in the form of Megatron-LM's examples, edited in place."""

from __future__ import annotations

import difflib
import subprocess

import pytest
from tests.software.examples import training_plan

from meshwright.software.contract import export_plan, import_text
from meshwright.software.megatron_lm.edit import edited, given_flags
from meshwright.software.megatron_lm.export import MEGATRON_LM
from meshwright.software.megatron_lm.ramp import fitting_ramp
from meshwright.software.megatron_lm.read import MEGATRON_LM_SOURCE
from meshwright.values.errors import ConfigError

ARRAYS = """#!/bin/bash
# Trains a 22B model
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NUM_NODES=16   # of DGX A100
WORLD_SIZE=$(($GPUS_PER_NODE*$NUM_NODES))

CHECKPOINT_PATH=$1 #<Specify path>
VOCAB_FILE=$2
MERGE_FILE=$3
DATA_PATH=$4
TP=8
NAME=gpt-tp${TP}

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE\x20
    --nnodes $NUM_NODES\x20
)

GPT_MODEL_ARGS=(
    --num-layers 48\x20
    --hidden-size 6144 --num-attention-heads 64
    --seq-length 2048\x20
    --max-position-embeddings 2048\x20
)

TRAINING_ARGS=(
    --micro-batch-size 4  # as large as fits
    --global-batch-size 1536\x20
    --rampup-batch-size 16 16 5859375\x20
    --train-iters 500000\x20
    --fp16
    --lr 6.0e-5\x20
    --lr-warmup-fraction .001\x20
    --lr-decay-iters 430000\x20
)

MODEL_PARALLEL_ARGS=(
\t--tensor-model-parallel-size $TP\x20
\t--pipeline-model-parallel-size=2
    --recompute-activations # to save memory
)

DATA_ARGS=(
    --data-path $DATA_PATH\x20
    --vocab-file $VOCAB_FILE --merge-file $MERGE_FILE\x20
    --save "$CHECKPOINT_PATH"
    --wandb-exp-name $NAME
)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} \\
    ${TRAINING_ARGS[@]} \\
    ${MODEL_PARALLEL_ARGS[@]} \\
    ${DATA_ARGS[@]}
"""

CONTINUED = """#!/bin/bash
MBS=${MBS:-2}
GBS=$((MBS * 64))
torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py \\
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
    --seq-length 4096 --max-position-embeddings 4096 --vocab-size 50257 \\
    --tensor-model-parallel-size 4 \\
    --micro-batch-size $MBS --global-batch-size $GBS \\
    --bf16 \\
    --sequence-parallel "$@" 2>&1 | tee log.txt
"""

QUOTED = """
MP=${MP:-4}
OPTIONS=" \\
    --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
    --seq-length 4096 --max-position-embeddings 4096 --vocab-size 50257 \\
    --tensor-model-parallel-size ${MP} \\
    --micro-batch-size 1 \\
    --recompute-granularity full \\
    --recompute-method uniform \\
    --recompute-num-layers 1"
run="python -u pretrain_gpt.py ${OPTIONS} --global-batch-size 64"
srun bash -c "${run}"
"""


def changed(before: str, after: str) -> tuple[list[str], list[str]]:
    """Return the lines that went and those that came; all others are the same bytes."""
    lines = list(difflib.ndiff(before.splitlines(True), after.splitlines(True)))
    gone, come = ([line[2:] for line in lines if line.startswith(sign)] for sign in "-+")
    return gone, come


def starts(text: str) -> bool:
    return subprocess.run(["bash", "-n"], input=text.encode(), check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "flag", "words", "gone", "come"),
    [
        # in the variable; the name of the experiment follows it, so the flag itself changes
        (
            ARRAYS,
            "--tensor-model-parallel-size",
            ("4",),
            ["\t--tensor-model-parallel-size $TP \n"],
            ["\t--tensor-model-parallel-size 4 \n"],
        ),
        (
            ARRAYS,
            "--nnodes",
            ("8",),
            ["NUM_NODES=16   # of DGX A100\n"],
            ["NUM_NODES=8   # of DGX A100\n"],
        ),
        (
            ARRAYS,
            "--pipeline-model-parallel-size",
            ("4",),
            ["\t--pipeline-model-parallel-size=2\n"],
            ["\t--pipeline-model-parallel-size=4\n"],
        ),
        (
            ARRAYS,
            "--micro-batch-size",
            ("1",),
            ["    --micro-batch-size 4  # as large as fits\n"],
            ["    --micro-batch-size 1  # as large as fits\n"],
        ),
        (
            ARRAYS,
            "--rampup-batch-size",
            ("48", "48", "5859375"),
            ["    --rampup-batch-size 16 16 5859375 \n"],
            ["    --rampup-batch-size 48 48 5859375 \n"],
        ),
        (ARRAYS, "--sequence-parallel", (), [], ["    --sequence-parallel\n"]),
        (
            ARRAYS,
            "--recompute-activations",
            None,
            ["    --recompute-activations # to save memory\n"],
            ["    # to save memory\n"],
        ),
        (ARRAYS, "--fp16", None, ["    --fp16\n"], []),
        # the default in the variable would change the batch too
        (
            CONTINUED,
            "--micro-batch-size",
            ("1",),
            ["    --micro-batch-size $MBS --global-batch-size $GBS \\\n"],
            ["    --micro-batch-size 1 --global-batch-size $GBS \\\n"],
        ),
        (CONTINUED, "--bf16", None, ["    --bf16 \\\n"], []),
        (
            CONTINUED,
            "--use-distributed-optimizer",
            (),
            ['    --sequence-parallel "$@" 2>&1 | tee log.txt\n'],
            [
                "    --sequence-parallel \\\n",
                '    --use-distributed-optimizer "$@" 2>&1 | tee log.txt\n',
            ],
        ),
        (QUOTED, "--tensor-model-parallel-size", ("2",), ["MP=${MP:-4}\n"], ["MP=${MP:-2}\n"]),
        (QUOTED, "--recompute-method", None, ["    --recompute-method uniform \\\n"], []),
        (
            QUOTED,
            "--recompute-num-layers",
            None,
            ['    --recompute-num-layers 1"\n'],
            ['    "\n'],
        ),
        (
            QUOTED,
            "--pipeline-model-parallel-size",
            ("2",),
            ['    --recompute-num-layers 1"\n'],
            ["    --recompute-num-layers 1 \\\n", '    --pipeline-model-parallel-size 2"\n'],
        ),
    ],
)  # fmt: skip
def test_an_edit_changes_its_line_alone(
    text: str, flag: str, words: tuple[str, ...] | None, gone: list[str], come: list[str]
) -> None:
    before = given_flags(text)
    after = edited(text, {flag: words})
    assert changed(text, after) == (gone, come)
    assert starts(after)
    assert given_flags(after) == {
        **{name: value for name, value in before.items() if name != flag},
        **({} if words is None else {flag: words}),
    }


def test_a_last_line_that_goes_ends_the_command_before_it() -> None:
    text = "pretrain_gpt.py --num-layers 2 \\\n  --hidden-size 8 \\\n  --bf16\necho done\n"
    after = edited(text, {"--bf16": None})
    assert after == "pretrain_gpt.py --num-layers 2 \\\n  --hidden-size 8\necho done\n"


def test_what_is_said_already_is_left() -> None:
    assert edited(ARRAYS, {"--tensor-model-parallel-size": ("8",), "--bf16": None}) == ARRAYS


def test_what_no_edit_reaches_is_refused() -> None:
    text = 'FLAG="--tensor-model-parallel-size"\npretrain_gpt.py --num-layers 2 $FLAG 8 --bf16\n'
    with pytest.raises(ConfigError, match="--tensor-model-parallel-size is to say 4, and no edit"):
        edited(text, {"--tensor-model-parallel-size": ("4",)})


@pytest.mark.parametrize(
    ("ramp", "unit", "to", "fits"),
    [
        (("16", "16", "99"), 16, 1536, ("16", "16", "99")),
        (("16", "16", "99"), 48, 1536, ("48", "48", "99")),  # 1488 = 31 * 48
        (("32", "32", "99"), 24, 1536, ("48", "48", "99")),
        (("16", "16", "99"), 1536, 1536, None),  # nothing lies below the whole batch
        (("16", "600", "99"), 512, 1536, ("512", "1024", "99")),
    ],
)
def test_a_ramp_goes_by_whole_micro_batches(
    ramp: tuple[str, ...], unit: int, to: int, fits: tuple[str, ...] | None
) -> None:
    assert fitting_ramp(ramp, unit=unit, to=to) == fits


def test_a_script_with_positional_words_and_gpt2s_words_is_read() -> None:
    found = import_text(ARRAYS, source=MEGATRON_LM_SOURCE)
    assert found.model.num_layers == 48
    assert found.settings.save_dir == "$1"
    # Megatron-LM counts a share of the decay: 0.001 * 430,000
    assert found.settings.warmup_steps == 430


def test_an_export_of_a_script_keeps_the_callers_words_and_says_each_flag_once() -> None:
    found = import_text(ARRAYS, source=MEGATRON_LM_SOURCE)
    plan = training_plan(
        "gpt-22b", layout="tp=2,mbs=1", gbs=1536, seq_len=2048, settings=found.settings
    )
    exported = export_plan(plan, target=MEGATRON_LM)
    text = exported.files[0].text
    assert '    --save "$1"\n' in text and "'$1'" not in text
    assert not text.rstrip().endswith('"$@"')  # $1 would be an argument too
    assert text.count("--lr-decay-iters") == 1 and "--lr-decay-iters 430000" in text
    assert "    --lr-warmup-iters 430\n" in text
    # 64 cards by tp=2 are 32 replicas; 1536 - 32 = 47 * 32
    assert given_flags(text)["--rampup-batch-size"] == ("32", "32", "5859375")
    assert starts(text)
