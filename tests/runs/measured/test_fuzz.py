"""Whatever stands in the cells, a row is a case or has a reason."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.runs.measured.examples import LLAMA, SMALL_GPT

from meshwright.runs.measured.cells import MEASURED
from meshwright.runs.measured.predict import predict_rows
from meshwright.runs.measured.rows import Case, read_row

COLUMNS = [
    *dict.fromkeys([*LLAMA, *SMALL_GPT]),
    *(
        "task",
        "params_b",
        "ffn",
        "kv_heads",
        "vocab",
        "experts",
        "topk",
        "gpus_per_node",
        "interconnect",
        "vpp",
        "cp",
        "ep",
        "dp",
        "zero",
    ),
    *(
        "dp_shard",
        "sp",
        "ga",
        "recompute",
        "recompute_detail",
        "attention_kernel",
        "rmsnorm_kernel",
        "release",
        "mem_def",
        "notes",
    ),
]
NUMBERS = st.one_of(
    st.integers(-3, 70).map(str),
    st.integers(1, 20).map(lambda n: str(2**n)),
    st.sampled_from(
        [
            "0",
            "1.0",
            "1e300",
            "1e15",
            "inf",
            "nan",
            "-1",
            "0x10",
            "1_000",
            "٣",
            "999999999999999999999",
        ]
    ),
)
WORDS = st.sampled_from(
    [
        "llama3-70b(truncated)",
        "mixtral",
        "ci-deepseek_v2",
        "t5:x",
        "hybrid",
        "gpt-oss",
        "moe",
        "bert",
        "V100-16GBx12+T4x4",
        "RTX-3090x2+Titan-RTXx2",
        "TPU7x",
        "T4x0",
        "+",
        "fsdp",
        "hsdp",
        "full",
        "selective",
        "none",
        "lora",
        "fp8-cs",
        "int4",
        "full/block/99999999999",
        "layers 5-1",
        "modules moe,,mlp",
        "recompute-modules=[nothing]",
        "layer partition [0, 9, 5, 30]",
        "layer partition [0]",
        "layers_per_stage=[0, 0]",
        "stage placement=[[[[1,2]]]]",
        'stage placement=[[[["T4",1e9]]],{}]',
        "hybrid-layer-pattern=M/",
        "hybrid-layer-pattern=ME*-",
        "pipeline-model-parallel-layout=(t*999|)*999L",
        "kv-channels=0; swiglu=True",
        "moe-layer-freq=([0]*9999+[1]*1)",
        "vocab-size=0",
        "head_dim 0",
        "multi-latent-attention=True; mtp-num-layers=999",
        "ICI; 0 slice(s)",
        "0 Gb/s per node",
        "9 x 999999 Gb/s",
        "PyTorch FSDP",
        "MaxText",
        "Megatron-DeepSpeed",
    ]
)
CELLS = st.one_of(NUMBERS, WORDS, st.text(max_size=30), st.just(""))
CHANGES = st.dictionaries(st.sampled_from(COLUMNS), CELLS, max_size=6)


@given(base=st.sampled_from([LLAMA, SMALL_GPT, {}]), changes=CHANGES)
@settings(max_examples=400)
def test_any_cell_gives_a_case_or_a_reason(base: dict[str, str], changes: dict[str, str]) -> None:
    found = read_row({**base, **changes}, source="t")
    assert isinstance(found, Case) or found.reason
    if isinstance(found, Case):
        assert found.layout.num_chips == found.machines.num_chips
        assert found.layout.gbs % (found.layout.mbs * found.layout.dp) == 0
        assert len(found.placement) == found.layout.pp
        hash(found.model)


@given(
    changes=st.dictionaries(st.sampled_from(MEASURED), st.text(max_size=20)),
    base=st.sampled_from([LLAMA, SMALL_GPT]),
)
def test_measured_columns_do_not_change_the_case(
    changes: dict[str, str], base: dict[str, str]
) -> None:
    assert read_row({**base, **changes}, source="t") == read_row(base, source="t")


@given(base=st.sampled_from([LLAMA, SMALL_GPT]), changes=CHANGES)
@settings(max_examples=150)
def test_any_case_is_predicted_or_has_a_reason(
    base: dict[str, str], changes: dict[str, str]
) -> None:
    found = read_row({**base, **changes}, source="t")
    if isinstance(found, Case) and (found.layout.pp > 64 or found.layout.num_microbatches > 4096):
        return  # rows beyond any real run; the simulator of mixed chips would take long
    answers = predict_rows([found])
    assert len(answers.predictions) + len(answers.unanswered) == 1
    assert all(p.step_s > 0 and p.peak_memory_bytes > 0 for p in answers.predictions)
    assert all(u.reason for u in answers.unanswered)
