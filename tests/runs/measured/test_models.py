from __future__ import annotations

import pytest
from tests.runs.measured.examples import LLAMA, SMALL_GPT, case_of, reason_of

from meshwright.values.models.catalogue import find_model
from meshwright.values.models.params import model_params


def test_a_name_alone_gives_the_preset() -> None:
    assert case_of(LLAMA).model == find_model("llama3-8b")


def test_given_dims_override_the_preset() -> None:
    model = case_of(LLAMA, model="llama3-70b(truncated)", layers="12").model
    assert (model.num_layers, model.hidden, model.ffn, model.num_kv_heads) == (12, 8192, 28672, 8)


def test_dims_without_a_preset_take_the_habits_of_the_architecture() -> None:
    model = case_of(SMALL_GPT).model
    assert (model.ffn, model.vocab, model.head_dim) == (2048, 50257, 64)
    assert (
        model.norm,
        model.positions,
        model.max_positions,
        model.tied,
        model.linear_bias,
        model.gated,
    ) == (
        "layernorm",
        "learned",
        1024,
        True,
        True,
        False,
    )


def test_small_models_of_megatrons_tests_share_a_vocabulary() -> None:
    moe = {"arch": "moe", "experts": "8", "topk": "2"}
    assert case_of(SMALL_GPT, model="moe:deepseek_proxy", **moe).model.vocab == 50257
    assert case_of(SMALL_GPT, model="moe:deepseek_proxy", vocab="1000", **moe).model.vocab == 1000
    assert (
        case_of(
            SMALL_GPT, model="mixtral:mixtral_8x22b_release", **{**moe, "arch": "mixtral"}
        ).model.vocab
        == 32000
    )


def test_llama_without_a_preset_is_gated_and_rounded_up() -> None:
    model = case_of(SMALL_GPT, model="my-own", arch="llama").model
    assert (model.norm, model.gated, model.tied, model.ffn) == (
        "rmsnorm",
        True,
        False,
        1408,
    )  # 8/3 * 512 = 1365.3


def test_without_name_architecture_and_size_there_is_a_reason() -> None:
    assert "seq_len" in reason_of(SMALL_GPT, model="transform-o-mat", arch="", seq_len="")
    assert "transgan" not in reason_of(SMALL_GPT, model="transgan-12", arch="transgan")
    assert "hidden" in reason_of(SMALL_GPT, hidden="")
    assert "layers" in reason_of(LLAMA, model="no-one-knows", arch="")


def test_an_unknown_model_with_its_dims_is_taken_for_a_llama_and_says_so() -> None:
    case = case_of(SMALL_GPT, model="transform-o-mat", arch="")
    assert (case.model.norm, case.model.gated, case.model.num_layers, case.model.hidden) == (
        "rmsnorm",
        True,
        12,
        512,
    )
    assert "neither" in case.model_assumed
    assert case_of(LLAMA).model_assumed == case_of(SMALL_GPT).model_assumed == ""


@pytest.mark.parametrize(
    ("cells", "params", "gated"),
    [
        ({"model": "no-one-knows-3b", "arch": ""}, 3e9, True),
        ({"model": "no-one-knows", "arch": "", "params_b": "13"}, 13e9, True),
        ({"model": "no-one-knows-350M", "arch": "gpt"}, 350e6, False),
        ({"model": "no-one-knows", "arch": "llama", "params_b": "400"}, 400e9, True),
    ],
)
def test_a_dense_model_known_by_its_size_alone_has_that_size(
    cells: dict[str, str], params: float, *, gated: bool
) -> None:
    case = case_of(LLAMA, **cells)
    assert model_params(case.model).total == pytest.approx(
        params, rel=0.04
    )  # 2 % of the shape, and positions for the row's sequences
    assert case.model.gated == gated
    assert "number of parameters" in case.model_assumed


@pytest.mark.parametrize(
    "name",
    [
        "no-one-knows-30b-a3b",
        "no-one-knows-8x7b",
        "no-one-knows-300b",
        "flux-12b",
        "wan-14b",
        "neva_7b",
        "some-vl-7b",
        "sdxl-2.6b",
    ],
)
def test_a_model_that_is_perhaps_no_dense_language_model_is_not_made_up_from_its_size(
    name: str,
) -> None:
    assert "layers" in reason_of(LLAMA, model=name, arch="")


def test_flags_in_the_notes_change_the_shape() -> None:
    notes = (
        "untie-embeddings-and-output-weights=True; position-embedding-type=rope; swiglu=True;"
        " num-query-groups=2; vocab-size=131073"
    )
    model = case_of(SMALL_GPT, notes=notes).model
    assert (model.tied, model.positions, model.gated, model.num_kv_heads, model.vocab) == (
        False,
        "rope",
        True,
        2,
        131073,
    )
    assert model.ffn == 1344  # int(4 * 512 * 2 / 3 / 64) * 64


def test_words_of_a_test_name_change_the_shape() -> None:
    assert case_of(SMALL_GPT, model="gpt:x_disable_bias_linear").model.linear_bias is False
    assert case_of(SMALL_GPT, model="gpt:x_qk_layernorm").model.qk_norm is True


def test_ffn_column_of_experts_and_of_dense_layers() -> None:
    moe = {"experts": "64", "topk": "8", "tp": "1", "pp": "1"}
    qwen = case_of(
        LLAMA,
        model="qwen3-mine",
        arch="moe",
        layers="4",
        hidden="2048",
        heads="32",
        kv_heads="4",
        ffn="512",
        **moe,
    ).model
    assert qwen.moe is not None and qwen.moe.expert_ffn == 512
    deepseek = case_of(
        LLAMA,
        model="deepseek-v2(truncated)",
        arch="deepseek-mla-moe",
        layers="4",
        ffn="10000",
        **moe,
    ).model
    assert deepseek.moe is not None and deepseek.mla is not None
    assert (
        deepseek.ffn,
        deepseek.moe.expert_ffn,
        deepseek.moe.num_experts,
        deepseek.moe.first_dense_layers,
    ) == (10000, 1536, 64, 1)


def test_dense_width_that_equals_the_presets_leaves_the_experts_alone() -> None:
    model = case_of(
        LLAMA,
        model="ci-qwen3",
        arch="moe",
        layers="2",
        hidden="2048",
        heads="32",
        ffn="6144",
        experts="128",
        topk="8",
    ).model
    assert model.moe is not None and model.moe.expert_ffn == 768


def test_moe_flags() -> None:
    notes = (
        "moe-ffn-hidden-size=256; moe-shared-expert-intermediate-size=128;"
        " moe-layer-freq=([0]*3+[1]*9); multi-latent-attention=True"
    )
    model = case_of(SMALL_GPT, arch="moe", model="moe:x", experts="8", topk="2", notes=notes).model
    assert model.moe is not None and model.mla is not None
    assert (model.moe.expert_ffn, model.moe.shared_ffn, model.moe.first_dense_layers) == (
        256,
        128,
        3,
    )


def test_hybrid_pattern() -> None:
    model = case_of(
        SMALL_GPT,
        model="hybrid:x",
        arch="hybrid",
        layers="",
        notes="hybrid-layer-pattern=M-M*-M/*-",
    ).model
    assert model.hybrid is not None and model.mamba is not None
    parts = model.hybrid
    assert (
        model.num_layers,
        parts.mamba_layers,
        parts.attention_layers,
        parts.ffn_layers,
        model.mtp_layers,
    ) == (6, 3, 1, 2, 1)


def test_encoder_decoder_has_both_sides() -> None:
    model = case_of(SMALL_GPT, model="t5:x", arch="t5", layers="", hidden="768", heads="12").model
    assert (model.family, model.num_layers, model.encoder_layers) == ("encoder-decoder", 12, 12)
    assert "hidden" in reason_of(
        SMALL_GPT, model="t5:x", arch="t5", layers="", hidden="", heads="12"
    )


def test_a_position_table_has_the_sequences_rows() -> None:
    short = case_of(
        SMALL_GPT,
        model="mpt-7b",
        arch="mpt",
        layers="32",
        hidden="4096",
        heads="32",
        seq_len="2048",
    ).model
    long = case_of(
        SMALL_GPT,
        model="mpt-7b",
        arch="mpt",
        layers="32",
        hidden="4096",
        heads="32",
        seq_len="65536",
    ).model
    assert model_params(long).total - model_params(short).total == (65536 - 2048) * 4096
    assert model_params(short).total == pytest.approx(6.65886e9, rel=1e-3)


def test_stated_size_tells_tied_from_untied() -> None:
    dims = {"layers": "32", "hidden": "6144", "heads": "48", "vocab": "131072"}
    assert case_of(SMALL_GPT, params_b="16", **dims).model.tied is False
    assert case_of(SMALL_GPT, params_b="15.3", **dims).model.tied is True
    assert (
        case_of(SMALL_GPT, params_b="40", **dims).model.tied is True
    )  # neither fits: as the family


DENSE_7B = {
    "layers": "30",
    "hidden": "4096",
    "ffn": "11008",
    "heads": "32",
    "kv_heads": "32",
    "vocab": "102400",
}


@pytest.mark.parametrize("name", ["deepseek-foo-7b", "qwen3-foo-7b", "kimi-foo", "gpt-oss-foo-7b"])
@pytest.mark.parametrize("arch", ["", "llama"])
def test_a_familys_word_in_an_unknown_name_gives_no_experts(name: str, arch: str) -> None:
    model = case_of(LLAMA, model=name, arch=arch, **DENSE_7B).model
    assert (model.moe, model.mla, model.mtp_layers, model.window) == (None, None, 0, None)
    assert model.head_dim == 128
    # DeepSeek LLM 7B (arXiv:2401.02954) has these dims and 6.9 B parameters
    assert model_params(model).total == pytest.approx(6_910_365_696, rel=1e-4)


def test_experts_that_a_row_tells_of_are_taken() -> None:
    told = {**DENSE_7B, "ffn": "1536", "experts": "64", "topk": "6"}
    model = case_of(LLAMA, model="qwen3-foo", arch="", **told).model
    assert model.moe is not None
    assert (model.moe.num_experts, model.moe.top_k, model.moe.expert_ffn) == (64, 6, 1536)


@pytest.mark.parametrize("missing", ["hidden", "heads"])
def test_an_unknown_name_takes_no_dims_from_a_family(missing: str) -> None:
    cells = {**DENSE_7B, missing: ""}
    assert missing in reason_of(LLAMA, model="deepseek-foo-7b", arch="", **cells)


def test_a_cut_model_has_dense_and_predicting_layers_where_they_are_told() -> None:
    cut = {"model": "deepseek-v3(truncated)", "arch": "deepseek-mla-moe", "layers": "4"}
    blank = dict.fromkeys(("hidden", "ffn", "heads", "kv_heads", "vocab"), "")
    plain = case_of(LLAMA, **cut, **blank)
    assert plain.model.moe is not None
    assert (plain.model.moe.first_dense_layers, plain.model.mtp_layers) == (0, 0)
    line = "model: cut to 4 layers, without its 3 dense first layers and its multi-token prediction"
    assert line in plain.assumed
    told = case_of(LLAMA, **cut, **blank, notes="2 dense layers; mtp-num-layers=1")
    assert told.model.moe is not None
    assert (told.model.moe.first_dense_layers, told.model.mtp_layers) == (2, 1)
    assert not any("model" in line for line in told.assumed)


def test_another_size_than_the_row_says_is_told() -> None:
    def told(**cells: str) -> str:
        return case_of(LLAMA, arch="llama", **DENSE_7B, **cells).model_assumed

    line = "model: foo: 6.91B parameters by its dims, but params_b=67 says otherwise"
    assert told(model="foo", params_b="67") == line
    assert told(model="foo", params_b="6.9") == ""
    line = "model: foo-70b: 6.91B parameters by its dims, but 70b says otherwise"
    assert told(model="foo-70b") == line


def test_a_cut_hybrid_keeps_its_mix_of_layers() -> None:
    cut = {"model": "ci-qwen3_next", "arch": "moe", "layers": "4", "hidden": "2048", "heads": "16"}
    model = case_of(LLAMA, **cut, kv_heads="2", experts="64", topk="10").model
    assert model.delta is not None and model.moe is not None
    assert (model.delta.num_layers, model.moe.num_experts, model.head_dim) == (3, 64, 256)
    alone = case_of(LLAMA, **{**cut, "layers": "1"}, kv_heads="2", experts="64", topk="10").model
    assert alone.delta is None
