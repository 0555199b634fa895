"""Software is started by the words that its own public configurations have."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from scripts.recipes.automodel import automodel_rows
from scripts.recipes.mindspeed import mindspeed_rows
from scripts.recipes.nemo import nemo_rows
from scripts.recipes.primus import primus_rows
from scripts.recipes.spans import spans

from meshwright.search.started import recipe_span, started
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.models.catalogue import find_model
from meshwright.values.stack import find_stack
from meshwright.values.stack_files import all_entries
from meshwright.values.switches import (
    beginnings,
    find_beginning,
    known_words,
    release_key,
    switched,
    switches_of,
)

ASCEND = find_chip("ascend-910b")


def test_each_change_is_a_figure_of_the_stack_with_a_source() -> None:
    for entry in all_entries():
        stack = find_stack(entry.name)
        for one in switches_of(entry.name):
            assert one.source and one.changes
            assert all(hasattr(stack, field) for field, _ in one.changes)


@pytest.mark.parametrize(
    ("release", "told", "tp_overlap", "dp_overlap"),
    [
        # examples/llama2/pretrain_llama2_70b_ptd.sh of v1.0.RC1.0 has neither flag; --use-mc2
        # comes with v1.0.RC2.0
        ("@1.0.RC1", (), 0.0, 0.0),
        ("@1.0.RC3", ("use-mc2",), 0.8, 0.0),
    ],
)
def test_a_release_starts_a_model_by_its_script(
    release: str, told: tuple[str, ...], tp_overlap: float, dp_overlap: float
) -> None:
    stack = find_stack(f"mindspeed{release}")
    model = find_model("llama2-70b")
    found = find_beginning(stack, model=model, chip=ASCEND, precision="bf16", num_chips=64)
    assert found is not None and found.words == told
    assert found.source == "examples/llama2/pretrain_llama2_70b_ptd.sh"
    start = started(stack, model=model, chip=ASCEND, precision="bf16", num_chips=64)
    assert (start.stack.tp_overlap, start.stack.dp_overlap) == (tp_overlap, dp_overlap)
    assert found.source in start.words


def test_a_model_by_another_name_is_the_same_model() -> None:
    model = replace(find_model("qwen2.5-1.5b"), name="mine")
    found = find_beginning(
        find_stack("mindspeed@1.0.RC3"), model=model, chip=ASCEND, precision="bf16", num_chips=64
    )
    assert found is not None and found.model.startswith("qwen2_1point5b")
    assert found.words == ("use-mc2", "overlap-grad-reduce")


def test_of_several_scripts_the_nearest_in_length_counts() -> None:
    """Qwen 2 7B on eight chips: with --use-mc2 at 4,096 tokens, without at 32,768."""
    told = [
        found.words
        for seq_len in (4096, 32768)
        if (
            found := find_beginning(
                find_stack("mindspeed@1.0.RC3"),
                model=find_model("qwen2-7b"),
                chip=ASCEND,
                precision="bf16",
                num_chips=8,
                seq_len=seq_len,
            )
        )
    ]
    assert told == [("use-mc2", "overlap-grad-reduce"), ()]


def test_words_of_the_user_go_before_the_script_s() -> None:
    stack, model = find_stack("mindspeed@1.0.RC3"), find_model("llama2-70b")
    start = started(
        stack,
        model=model,
        chip=ASCEND,
        precision="bf16",
        num_chips=64,
        switches=["overlap-grad-reduce"],
    )
    assert (start.stack.tp_overlap, start.stack.dp_overlap) == (0.0, 0.8)
    assert start.words == "mindspeed, as asked: overlap-grad-reduce"


def test_release_and_number_format_hold_without_a_word() -> None:
    old, new = find_stack("mindspeed@1.0.RC1.0"), find_stack("mindspeed@1.0.RC3.0")
    one_hot = switched(old, told=(), precision="bf16", family="decoder")
    assert (one_hot.token_picking, one_hot.expert_capacity) == ("one-hot", 1.1)
    assert switched(new, told=(), precision="bf16", family="decoder") == new
    half = switched(new, told=(), precision="fp16", family="decoder")
    assert (half.gradient_bytes, half.reduce_bytes, half.step_bytes) == (2.0, 2.0, 4.0)
    encoder = switched(find_stack("nemo1"), told=(), precision="bf16", family="encoder")
    assert (encoder.dp_overlap, find_stack("nemo1").dp_overlap) == (0.0, 0.8)


def test_what_is_unknown_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'use-mc2'"):
        switched(find_stack("mindspeed"), told=["use-mc3"], precision="bf16", family="decoder")
    with pytest.raises(ConfigError, match="stack fsdp has none"):
        switched(find_stack("fsdp"), told=["use-mc2"], precision="bf16", family="decoder")
    first, last = recipe_span("mindspeed")
    assert first == "v1.0.RC1.0"
    with pytest.raises(ConfigError, match=f"newer than the recipes read, which end with {last}"):
        started(
            find_stack("mindspeed@99.0"),
            model=find_model("llama2-70b"),
            chip=ASCEND,
            precision="bf16",
            num_chips=8,
        )


def test_candidates_go_before_their_release() -> None:
    words = ["v2.1.0", "v1.0.RC3.0", "1.0.0", "1.0.rc1"]
    assert sorted(words, key=release_key) == ["1.0.rc1", "v1.0.RC3.0", "1.0.0", "v2.1.0"]


def test_each_configuration_has_words_that_its_software_knows() -> None:
    for entry in all_entries():
        known = set(known_words(entry.name))
        for one in beginnings(entry.name):
            assert set(one.words) <= known
            assert len(one.dims) == 6
            assert release_key(one.release) <= release_key(one.until)


def test_spans_join_releases_without_a_gap() -> None:
    def row(release: str, words: str) -> dict[str, str]:
        return {"stack": "x", "release": release, "words": words}

    found = spans([row("1", "a"), row("1", "b"), row("2", "a"), row("3", "a"), row("3", "b")])
    assert [(one["release"], one["until"], one["words"]) for one in found] == [
        ("1", "3", "a"),
        ("1", "1", "b"),
        ("3", "3", "b"),
    ]


def repository(tmp_path: Path, files: dict[str, str], *tags: str) -> Path:
    """A repository with one commit, at every tag."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "a"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    for tag in tags:
        subprocess.run(["git", "-C", str(tmp_path), "tag", tag], check=True)
    return tmp_path


_SCRIPT = """
NPUS_PER_NODE=8
NNODES=2
WORLD_SIZE=$(($NPUS_PER_NODE*$NNODES))
LAYERS=28
GPT_ARGS="--num-layers ${LAYERS} --hidden-size 1536 --ffn-hidden-size 8960 \\
    --num-attention-heads 12 --group-query-attention --num-query-groups 2 --seq-length 4096 \\
    --use-mc2 --bf16"
"""


def test_the_script_reads_flags_at_every_release(tmp_path: Path) -> None:
    files = {
        "examples/mcore/qwen2/pretrain_qwen2_a3.sh": _SCRIPT,
        "examples/mcore/qwen2/data_convert_qwen2_pretrain.sh": "python convert.py",
    }
    repository(tmp_path, files, "v1.0.RC1.0", "v1.0.0", "other")
    rows, failed = mindspeed_rows(tmp_path)
    assert failed == []
    [row] = rows
    assert (row["release"], row["until"]) == ("v1.0.RC1.0", "v1.0.0")
    kept = ("dims", "chip", "precision", "num_chips", "seq_len", "words")
    wanted = ["28 1536 8960 12 2 0", "ascend-910c", "bf16", "16", "4096", "use-mc2"]
    assert [row[name] for name in kept] == wanted


_NEMO = """task,model,size,system,dtype,num_gpus,seq_len,cuda_graphs
pre_train,llama31,405b,b200,bf16,128,8192,0
pre_train,llama3,8b,b200,fp8,8.0,8192.0,1
sft,llama3,8b,b200,fp8,8,16384,1
pre_train,flux,12b,b200,bf16,8,4096,0
"""


def test_nemo_s_tables_say_where_graphs_are_captured(tmp_path: Path) -> None:
    folder = "scripts/performance/recommended_model_configs"
    files = {f"{folder}/model_configs_b200.csv": _NEMO}
    rows, failed = nemo_rows(repository(tmp_path, files, "v2.3.0", "v2.5.0rc0"))
    assert [(row["dims"], row["num_chips"], row["words"]) for row in rows] == [
        ("126 16384 53248 128 8 0", "128", ""),
        ("32 4096 14336 32 8 0", "8", "cuda_graphs"),
    ]
    assert (rows[0]["release"], rows[0]["until"]) == ("v2.3.0", "v2.5.0rc0")
    assert all("flux-12b" in line for line in failed) and failed


_PRIMUS = """
modules:
  pre_trainer:
    overrides:
      seq_length: ${PRIMUS_SEQ_LENGTH:4096}
      use_turbo_deepep: true
      cross_entropy_loss_fusion: true
"""


def test_primus_s_files_say_where_they_leave_what_others_have(tmp_path: Path) -> None:
    folder = "examples/megatron/configs/MI300X"
    files = {
        f"{folder}/{name}-BF16-pretrain.yaml": _PRIMUS for name in ("llama3_8B", "qwen3_30B_A3B")
    }
    rows, failed = primus_rows(repository(tmp_path, files, "v26.5.1"))
    assert failed == []
    fused = "gradient_accumulation_fusion=true"  # Megatron's own default
    assert [(row["chip"], row["seq_len"], row["words"]) for row in rows] == [
        ("mi300x", "4096", fused),
        ("mi300x", "4096", f"moe_use_fused_router_with_aux_score=false {fused}"),
    ]


def test_nemo_captures_graphs_as_its_table_has_it() -> None:
    """model_configs_b200.csv of v2.3.0 and later: cuda_graphs 1 for Llama 3 8B, 0 for 405B."""
    hidden = {
        name: started(
            find_stack("nemo"),
            model=find_model(name),
            chip=find_chip("b200"),
            precision="bf16",
            num_chips=64,
        ).stack.launch_hidden
        for name in ("llama3-8b", "llama3.1-405b")
    }
    assert hidden == {"llama3-8b": 1.0, "llama3.1-405b": 0.0}


_AUTOMODEL = """
benchmark:
  peak_tflops: 989
model:
  config:
    pretrained_model_name_or_path: Qwen/Qwen3-30B-A3B
  backend:
    enable_deepep: {deepep}
"""


def test_automodel_s_benchmarks_say_what_carries_tokens(tmp_path: Path) -> None:
    files = {
        f"examples/benchmark/configs/qwen3_{name}.yaml": _AUTOMODEL.format(deepep=deepep)
        for name, deepep in (("deepep", "true"), ("torch", "false"), ("lora", "true"))
    }
    rows, failed = automodel_rows(repository(tmp_path, files, "v0.2.0"))
    assert failed == []
    assert [(row["chip"], row["precision"], row["words"]) for row in rows] == [
        ("h100", "bf16", ""),
        ("h100", "bf16", "dispatcher=torch"),
    ]
