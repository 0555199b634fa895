from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.software.examples import training_plan
from tests.software.frameworks import (
    check_golden,
    check_round_trip,
    expressible,
    plans,
    run_loader,
    write_exports,
)

from meshwright.software.contract import Exported, export_plan, import_text
from meshwright.software.megatron_lm.export import MEGATRON_LM, split_words
from meshwright.software.megatron_lm.pipeline import layers_in_pattern, read_chunks
from meshwright.software.megatron_lm.read import MEGATRON_LM_SOURCE
from meshwright.software.megatron_lm.words import bound_flags, flags
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import Dataset, ModelDetails, TrainingSettings
from meshwright.values.errors import CannotExpress, ConfigError


def written(*args: Any, **given: Any) -> Exported:
    return export_plan(training_plan(*args, **given), target=MEGATRON_LM)


def words(*args: Any, **given: Any) -> dict[str, tuple[str, ...]]:
    return split_words(written(*args, **given).command[1:])


BOTH_ENDS = "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split"

GOLDEN: dict[str, Callable[[], TrainingPlan]] = {
    "dense": lambda: training_plan(
        "llama3-70b",
        "h100:256",
        "tp=8,pp=4,vpp=5,mbs=1",
        settings=TrainingSettings(
            data=(Dataset(path="/data/web", weight=3), Dataset(path="/data/code")),
            tokenizer="/tok",
            save_dir="/out",
            extra=("--use-flash-attn",),
        ),
    ),
    "latent": lambda: training_plan(
        "deepseek-v3",
        "h800:2048",
        "tp=1,ep=64,pp=16,mbs=1,layers_per_stage=" + "+".join(["4"] * 14 + ["3", "2"]),
        gbs=2048,
        seq_len=4096,
        precision="fp8-blockwise",
    ),
    "hybrid": lambda: training_plan(
        "nemotron-3-super", "b200:64", "tp=2,ep=8,pp=2,mbs=1", precision="mxfp8"
    ),
    "core-0.12": lambda: training_plan(
        "gpt-22b",
        "a100-80:64",
        "tp=8,pp=4,mbs=1,layers_per_stage=11+13+13+11",
        seq_len=2048,
        megatron_version="0.12",
    ),
    "t5": lambda: training_plan(
        "t5-2.8b", "a100-80:16", "tp=2,mbs=4", seq_len=512, megatron_version="0.17.1"
    ),
    "bert": lambda: training_plan(
        "bert-large", "a100-80:8", "mbs=4", seq_len=512, megatron_version="0.17.1"
    ),
    "sharded": lambda: training_plan(
        "qwen3-32b",
        "h200:64",
        "mbs=1,sharding=hybrid,shard_size=8,recompute=full,recompute_method=block,recompute_layers=3",
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case: str) -> None:
    check_golden(export_plan(GOLDEN[case](), target=MEGATRON_LM), case)


@pytest.mark.parametrize(
    ("changed", "reason", "nearest"),
    [
        ({"model": "falcon-7b"}, "one after the other", "parallel_block=0"),
        ({"model": "gemma2-9b"}, "2 norms, not 4", "norms_per_layer=2"),
        ({"model": "bloom-7b"}, "no word for alibi", r"model\.positions=rope"),
        ({"model": "gemma-7b"}, "no flag for a gated gelu", r"details\.activation=silu"),
        (
            {"details": ModelDetails(rope_base=10000.5)},
            "takes whole numbers",
            r"details\.rope_base=10000",
        ),
        (
            {"model": "t5-2.8b", "seq_len": 512},
            r"core 0\.20 has no pretrain_t5",
            r"megatron_version=0\.17\.1",
        ),
        (
            {"model": "bert-large", "seq_len": 512},
            r"core 0\.20 has no pretrain_bert",
            r"megatron_version=0\.17\.1",
        ),
        (
            {"model": "t5-2.8b", "seq_len": 512, "layout": "pp=2", "megatron_version": "0.17.1"},
            "encoder and decoder",
            "pp=1",
        ),
        ({"model": "gpt3-5b"}, "table of 2048 positions is shorter", "seq_len=2048"),
        (
            {"megatron_version": "0.12", "layout": "pp=4,layers_per_stage=8+9+8+7"},
            r"core 0\.12 takes another count",
            r"megatron_version=0\.13",
        ),
        (
            {"megatron_version": "0.12", "precision": "fp8-blockwise"},
            "blockwise fp8",
            r"megatron_version=0\.13",
        ),
        (
            {"megatron_version": "0.12", "precision": "nvfp4", "cluster": "b200:64"},
            "no --fp4-format",
            r"megatron_version=0\.15",
        ),
        ({"model": "gpt-oss-20b", "layout": "tp=2"}, "experts with biases are not cut", "etp=1"),
        (
            {"megatron_version": "0.12", "model": "gpt-oss-20b"},
            "no --glu-linear-offset",
            r"megatron_version=0\.15",
        ),
        (
            {"megatron_version": "0.14", "layout": "sharding=hybrid,shard_size=8"},
            "groups of shards",
            r"megatron_version=0\.16",
        ),
        (
            {"megatron_version": "0.15", "model": "nemotron-3-nano"},
            "hybrid models have experts",
            r"megatron_version=0\.16",
        ),
        (
            {"megatron_version": "0.16", "model": "nemotron-h-8b", "layout": "pp=4,vpp=13"},
            "uneven stages, chunks",
            r"megatron_version=0\.17",
        ),
        (
            {"megatron_version": "0.11"},
            "its flags were read from core 0.12",
            r"megatron_version=0\.12",
        ),
        (
            {"megatron_version": "0.12", "model": "mixtral-8x7b", "precision": "fp16"},
            "grouped products",
            "precision=bf16",
        ),
    ],
)
def test_what_has_no_words_is_refused_with_the_nearest_plan(
    changed: dict[str, Any], reason: str, nearest: str
) -> None:
    given: dict[str, Any] = {"layout": "mbs=1", **changed}
    with pytest.raises(CannotExpress, match=f"{reason}.*the nearest plan that it takes: {nearest}"):
        written(**given)


def test_what_the_user_set_is_never_dropped() -> None:
    # a window says nothing to a version without it, and rows of a position table nothing to a
    # rotary model
    with pytest.raises(ConfigError, match=r"has no --window-size"):
        written("mistral-7b", megatron_version="0.12")
    with pytest.raises(
        ConfigError,
        match=r"stack torchtitan, whose layouts it does not run; plan with --stack megatron",
    ):
        written("llama3-8b", layout="mbs=1", stack="torchtitan")


def test_one_queue_where_exchanges_overlap_and_none_with_fsdp_or_on_blackwell() -> None:
    def queue(**given: Any) -> str | None:
        found = {var.name: var.value for var in written(**given).environment}
        return found.get("CUDA_DEVICE_MAX_CONNECTIONS")

    assert queue(layout="tp=2") == "1"
    assert queue(layout="cp=2") == "1"
    assert queue(layout="tp=1") is None
    assert queue(layout="tp=2,sharding=zero3") is None
    assert queue(layout="tp=2", cluster="b200:64") is None
    assert queue(layout="tp=2", cluster="b200:64", megatron_version="0.12") == "1"


def test_overlapped_products_skip_multicast_on_chips_that_lack_it() -> None:
    # Transformer Engine's assertion: below compute capability 9.0 it wants UB_SKIPMC=1
    def names(**given: Any) -> set[str]:
        return {var.name for var in written(**given).environment}

    assert "UB_SKIPMC" in names(layout="tp=2", cluster="a100-80:64")
    assert "UB_SKIPMC" not in names(layout="tp=1", cluster="a100-80:64")
    assert "UB_SKIPMC" not in names(layout="tp=2", cluster="h100:64")


def test_the_vocabulary_is_the_models_whatever_the_tokenizer_of_the_version_adds() -> None:
    # NullTokenizer of core 0.17 and before counts an end-of-document token on top: 128,255 + 1 =
    # Llama 3's 128,256
    assert words()["--vocab-size"] == ("128256",)
    assert words(megatron_version="0.17.1")["--vocab-size"] == ("128255",)
    assert words(megatron_version="0.17.1", settings=TrainingSettings(tokenizer="/tok"))[
        "--vocab-size"
    ] == ("128256",)


def test_which_layers_have_experts() -> None:
    # DeepSeek-V3: 3 dense of 61; Llama 4 Maverick: every second of 48
    assert words("deepseek-v3", "h800:256", "ep=64", gbs=256)["--moe-layer-freq"] == (
        "([0]*3+[1]*58)",
    )
    assert words("llama4-maverick", "h100:128", "ep=16")["--moe-layer-freq"] == (
        "(([0]*1+[1])*24)",
    )


@pytest.mark.parametrize(
    ("line", "chunks", "mtp"),
    [
        ("--num-layers 12 --pipeline-model-parallel-size 3", (4, 4, 4), 0),
        (
            (
                "--num-layers 8 --pipeline-model-parallel-size 2"
                " --num-layers-per-virtual-pipeline-stage 2"
            ),
            (2, 2, 2, 2),
            0,
        ),
        (
            (
                "--num-layers 30 --pipeline-model-parallel-size 4"
                " --decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 5"
            ),
            (7, 9, 9, 5),
            0,
        ),
        (f"--num-layers 30 --pipeline-model-parallel-size 4 {BOTH_ENDS}", (7, 8, 8, 7), 0),
        # the example in the docstring of Megatron-Core's parse_str_to_list
        (
            (
                "--num-layers 61 --pipeline-model-parallel-size 32 --pipeline-model-parallel-layout"
                " Ettt|(tt|)*29,m|L"
            ),
            (3, *(2,) * 29, 0, 0),
            1,
        ),
        ("--encoder-num-layers 12 --decoder-num-layers 10", (22,), 0),
        ("--hybrid-layer-pattern M-M*|MM-E/*E --pipeline-model-parallel-size 2", (4, 4), 1),
        (
            "--hybrid-override-pattern M-M*MM-E --num-layers 8 --pipeline-model-parallel-size 2",
            (4, 4),
            0,
        ),
    ],
)
def test_layers_are_counted_as_the_program_counts_them(
    line: str, chunks: tuple[int, ...], mtp: int
) -> None:
    found = read_chunks(split_words(tuple(line.split())))
    assert (found.chunks, found.mtp) == (chunks, mtp)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--num-layers 30 --pipeline-model-parallel-size 4",
            "30 do not divide by 4; 28 would be trained",
        ),
        (
            (
                "--num-layers 30 --pipeline-model-parallel-size 2"
                " --decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 5"
            ),
            "7.5 layers of 30",
        ),
        (
            (
                "--num-layers 8 --pipeline-model-parallel-size 2"
                " --num-layers-per-virtual-pipeline-stage 3"
            ),
            "3 does not divide the 4 layers",
        ),
        ("--num-layers x", "--num-layers x: expected a whole number"),
        ("--num-layers 4 --pipeline-model-parallel-layout Et*9999999|L", "expected E, t, m and L"),
    ],
)
def test_a_split_that_loses_layers_is_refused(line: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("7.5", r"7\+5")):
        read_chunks(split_words(tuple(line.split())))


def test_a_hybrid_pattern_holds_the_layers_of_each_kind() -> None:
    # Nemotron-H 8B: 4 attention, 24 Mamba, 24 feed-forward layers
    pattern = words("nemotron-h-8b", layout="tp=2,pp=4")["--hybrid-layer-pattern"][0]
    assert layers_in_pattern(pattern) == {"attention": 4, "mamba": 24, "mlp": 24, "moe": 0}
    assert [len(stage) for stage in pattern.split("|")] == [13, 13, 13, 13]


def test_the_tables_of_flags_agree() -> None:
    assert [bound.flag for bound in bound_flags() if bound.flag not in flags()] == []
    assert flags()["--pipeline-model-parallel-layout"].lacks((0, 12)) == "0.13"
    assert flags()["--use-custom-fsdp"].lacks((0, 20)) == "0.13"
    assert flags()["--hidden-size"].lacks((0, 12)) is None


MODELS = (
    *(
        "llama3-8b",
        "llama3.1-70b",
        "gpt3-5b",
        "qwen2-7b",
        "qwen3-30b-a3b",
        "mixtral-8x7b",
        "deepseek-v2",
        "deepseek-v3",
        "gpt-oss-20b",
    ),
    *(
        "nemotron-h-8b",
        "nemotron-3-nano",
        "nemotron-3-super",
        "nemotron4-15b",
        "llama4-maverick",
        "mistral-7b",
        "glm4.5-air-106b-a12b",
    ),
)


@hypothesis_settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(data=st.data())
def test_what_is_read_back_is_the_plan(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from(("0.20", "0.17.1", "0.12")))
    precision = data.draw(st.sampled_from(("bf16", "fp8", "fp16", "fp32", "fp8-blockwise")))
    plan = data.draw(
        plans(
            models=MODELS,
            stack="megatron",
            shardings=("none", "zero1", "zero2", "zero3"),
            recomputes=(
                "",
                "recompute=full",
                "recompute=full,recompute_method=block,recompute_layers=2",
                "recompute=selective",
            ),
            megatron_version=version,
            precision=precision,
        )
    )
    expressible(plan, MEGATRON_LM)
    check_round_trip(plan, target=MEGATRON_LM, source=MEGATRON_LM_SOURCE)


@pytest.mark.parametrize("case", [case for case in GOLDEN if case != "dense"])
def test_every_family_is_read_back(case: str) -> None:
    check_round_trip(GOLDEN[case](), target=MEGATRON_LM, source=MEGATRON_LM_SOURCE)


LAYOUTS = (
    *(
        "tp=2,mbs=1",
        "tp=4,pp=2,mbs=1",
        "tp=2,cp=2,mbs=1",
        "pp=2,vpp=2,mbs=1",
        "tp=2,recompute=full",
        "tp=2,recompute=selective",
    ),
    *(
        "mbs=1,sharding=zero3",
        "mbs=1,sharding=zero2",
        "mbs=1,sharding=hybrid,shard_size=8",
        "ep=8,mbs=1",
    ),
)


def many_plans() -> Iterator[tuple[str, TrainingPlan]]:
    """Every model in every layout whose rules it keeps, number formats in turn."""
    formats = ("bf16", "fp8", "mxfp8", "nvfp4", "fp8-blockwise")
    for i, model in enumerate(MODELS):
        for j, layout in enumerate(LAYOUTS):
            try:
                yield (
                    f"{model}-{j}",
                    training_plan(
                        model, "b200:64", layout, precision=formats[(i + j) % 5], seq_len=2048
                    ),
                )
            except ConfigError:
                continue


def test_megatron_lm_accepts_what_is_written(tmp_path: Path) -> None:
    assert write_exports(many_plans(), MEGATRON_LM, tmp_path) >= 60
    run_loader(
        "megatron_lm.py",
        tmp_path,
        variable="MESHWRIGHT_MEGATRON_LM",
        what="torch, triton and Megatron-LM's other requirements",
    )


@pytest.mark.parametrize(
    ("model", "cp", "said", "exchange"),
    [
        ("mistral-7b", 2, None, ("a2a",)),  # windows go on no ring
        ("mistral-7b", 1, None, None),
        ("llama3-8b", 2, "p2p", ("p2p",)),
        ("llama3-8b", 2, "all_gather", ("all_gather",)),
        ("llama3-8b", 16, "a2a+p2p", ("a2a+p2p",)),
        ("deepseek-v2-lite", 2, None, ("p2p",)),  # latent attention on a ring alone
    ],
)
def test_exchange_of_context_is_written_and_read(
    model: str, cp: int, said: Any, exchange: tuple[str, ...] | None
) -> None:
    plan = training_plan(model, "h100:16", f"cp={cp},mbs=1")
    plan = replace(plan, work=replace(plan.work, cp_comm_type=said))
    words = split_words(export_plan(plan, target=MEGATRON_LM).command[1:])
    assert words.get("--cp-comm-type") == exchange
    levels = ("8", "2") if exchange == ("a2a+p2p",) else None  # 8 key-value heads, servers of 8
    assert words.get("--hierarchical-context-parallel-sizes") == levels
    check_round_trip(plan, target=MEGATRON_LM, source=MEGATRON_LM_SOURCE)


def test_a_command_without_a_word_for_context_goes_round_a_ring() -> None:
    plan = training_plan("llama3-8b", "h100:16", "cp=2,mbs=1")
    plan = replace(plan, work=replace(plan.work, cp_comm_type="p2p"))
    exported = export_plan(plan, target=MEGATRON_LM).files[0].text
    text = exported.replace("--cp-comm-type p2p", "")
    assert text != exported
    assert import_text(text, source=MEGATRON_LM_SOURCE).work.cp_comm_type == "p2p"
    with pytest.raises(ConfigError, match="cp-comm-type"):
        import_text(exported.replace("type p2p", "type ring"), source=MEGATRON_LM_SOURCE)


def test_multi_token_prediction_in_a_chunk_of_its_own_is_written_and_read() -> None:
    split = "+".join(["3", *["2"] * 29, "0", "0"])
    plan = training_plan(
        "deepseek-v3",
        "h100:1024",
        f"tp=2,pp=16,vpp=2,ep=8,etp=1,mbs=1,layers_per_stage={split}",
        seq_len=4096,
        gbs=8192,
    )
    [text] = split_words(export_plan(plan, target=MEGATRON_LM).command[1:])[
        "--pipeline-model-parallel-layout"
    ]
    assert text.endswith("|t*2|m|L")
    check_round_trip(plan, target=MEGATRON_LM, source=MEGATRON_LM_SOURCE)
    own = read_chunks(split_words(("--pipeline-model-parallel-layout", "Et*3|(tt|)*29m|L")))
    assert (own.chunks, own.mtp) == ((3, *[2] * 29, 0, 0), 1)


@pytest.mark.parametrize("text", ["Et|tm|tL", "Et|ttm|L", "Ett||mL"])
def test_multi_token_prediction_elsewhere_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is planned behind the last layer"):
        read_chunks(split_words(("--pipeline-model-parallel-layout", text)))


@pytest.mark.parametrize(
    ("model", "cluster", "overlaps"),
    [
        *(("llama3-8b", "h100:16", True), ("llama3-8b", "l40s:16", False)),
        *(("nemotron-h-8b", "h100:16", True), ("deepseek-v2-lite", "h100:16", False)),
    ],
)
def test_exchanges_overlap_products_where_buffers_are_made(
    model: str, cluster: str, overlaps: bool
) -> None:
    """Transformer Engine's user buffers want NVLink; over PCIe the program would stop as it makes
    them. TELinear switches overlap off at the first product of latent attention; Mamba's products
    have the names of a feed-forward's."""
    exported = written(model, cluster, "tp=4,mbs=1", seq_len=4096)
    assert ("--tp-comm-overlap" in exported.command) == overlaps
    assert any(note.startswith("--tp-comm-overlap") for note in exported.notes) == overlaps
