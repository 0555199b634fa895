from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.serving.cases import prices

from meshwright.serving.engine import find_engine
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.hardware.tables import gemm_seconds


def column(*values: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.array(values, dtype=np.float64)


def test_a_product_is_the_measured_one_while_memory_bounds_it() -> None:
    kernels = prices().kernels
    found = kernels.linear_s("bf16", m=column(1.0), n=8192.0, k=8192.0)
    table = gemm_seconds(find_chip("h100"), precision="bf16", m=1.0, n=8192.0, k=8192.0)
    assert table is not None
    assert found[0] == pytest.approx(float(table.seconds), rel=0.01)
    assert found[0] > 8192 * 8192 * 2 / 3.35e12


def test_narrow_weights_save_reading_and_no_arithmetic() -> None:
    kernels = prices().kernels
    few, many = column(1.0), column(8192.0)
    assert (
        kernels.linear_s("int4", m=few, n=8192.0, k=8192.0)[0]
        < 0.6 * kernels.linear_s("bf16", m=few, n=8192.0, k=8192.0)[0]
    )
    assert (
        kernels.linear_s("int4", m=many, n=8192.0, k=8192.0)[0]
        > 0.9 * kernels.linear_s("bf16", m=many, n=8192.0, k=8192.0)[0]
    )


def test_attention_over_a_cache_takes_at_least_its_reading() -> None:
    found = prices().kernels.decode_attention_s(
        "bf16", batch=column(64.0), context=column(8192.0), heads=16, kv_heads=2, head_dim=128
    )
    least = 64 * 8192 * 2 * 2 * 128 * 2 / 3.35e12
    assert least < found[0] < 2 * least


def test_a_prompt_in_two_chunks_is_about_the_whole_prompt() -> None:
    kernels = prices().kernels

    def seconds(new: float, context: float) -> float:
        shape = {"heads": 16.0, "kv_heads": 2.0, "head_dim": 128.0}
        return float(
            kernels.prefill_attention_s(
                batch=column(1.0), new=column(new), context=column(context), window=None, **shape
            )[0]
        )

    assert seconds(4096, 0) + seconds(4096, 4096) == pytest.approx(seconds(8192, 0), rel=0.25)


def test_a_window_bounds_attention() -> None:
    kernels = prices().kernels

    def seconds(window: int | None) -> float:
        sizes = {"heads": 16.0, "kv_heads": 2.0, "head_dim": 128.0}
        found = kernels.prefill_attention_s(
            batch=column(1.0), new=column(8192.0), context=column(0.0), window=window, **sizes
        )
        return float(found[0])

    assert seconds(128) < 0.2 * seconds(None)


def test_one_rank_exchanges_nothing_and_more_bytes_take_longer() -> None:
    kernels = prices().kernels
    sizes = column(2.0**14, 2.0**20, 2.0**26)
    assert kernels.all_reduce_s(ranks=1, buffer_bytes=sizes).tolist() == [0, 0, 0]
    assert kernels.exchange_s(ranks=1, token_bytes=sizes, copies=8).tolist() == [0, 0, 0]
    assert (np.diff(kernels.all_reduce_s(ranks=8, buffer_bytes=sizes)) > 0).all()


def test_an_exchange_starts_at_once_on_all_members_of_a_domain() -> None:
    """Measured on GB200 with TensorRT-LLM's two-sided exchange of 8-bit tokens: 12 to 13 us for 8
    tokens, on 4 ranks and on 64."""
    few = column(8 * 7168.0)
    found = [
        prices(chip="gb200").kernels.exchange_s(ranks=ranks, token_bytes=few, copies=8)[0]
        for ranks in (4, 16, 64)
    ]
    assert 12e-6 < found[0] < 18e-6
    assert found[0] < found[1] < found[2] < 1.1 * found[0]
    # 8192 tokens on 8 ranks took 743 us: 5.25 members hold a token's 8 experts, 7 of 8 of them
    # elsewhere.
    many = prices(chip="gb200").kernels.exchange_s(
        ranks=8, token_bytes=column(8192 * 7168.0), copies=8
    )[0]
    assert many == pytest.approx(743e-6, rel=0.15)


def test_an_exchange_between_servers_waits_for_the_network() -> None:
    kernels, many = prices(chip="h100").kernels, column(2.0**26)
    inside, outside = (
        kernels.exchange_s(ranks=ranks, token_bytes=many, copies=8)[0] for ranks in (8, 16)
    )
    assert outside > inside
    assert outside > 2.0**26 / 50e9


def test_a_chip_without_tables_takes_the_roofline() -> None:
    kernels = prices(chip="mi300x").kernels
    least = 64 * 8192 * 2 * 2 * 128 * 2 / 5.3e12
    found = kernels.decode_attention_s(
        "bf16", batch=column(64.0), context=column(8192.0), heads=16, kv_heads=2, head_dim=128
    )
    assert least < found[0] < 2 * least


def test_experts_in_mxfp4_may_run_another_engines_kernels() -> None:
    """With 8-bit activations an expert layer of gpt-oss takes less on a B200; an H100 has no units
    for them."""
    ours = find_engine("vllm")
    theirs = replace(ours, mxfp4_kernels="trtllm")
    for chip, faster in (("b200", True), ("h100", False)):
        own, other = (
            prices("gpt-oss-120b", chip=chip, weights="mxfp4", engine=engine).kernels.experts_s(
                "mxfp4",
                per_expert=column(2.0),
                experts=128.0,
                hidden=2880.0,
                inter=2880.0,
                matrices=3,
            )[0]
            for engine in (ours, theirs)
        )
        assert bool(other < own) is faster
        assert faster or bool(other == own)


def test_experts_read_what_the_tokens_hit() -> None:
    kernels = prices("mixtral-8x7b", weights="bf16").kernels
    one, all_of_them = (
        kernels.experts_s(
            "bf16", per_expert=column(n / 4), experts=8.0, hidden=4096.0, inter=14336.0, matrices=3
        )[0]
        for n in (1, 256)
    )
    weights_s = 3 * 8 * 4096 * 14336 * 2 / 3.35e12
    assert 0.2 * weights_s < one < 0.6 * weights_s
    assert weights_s < all_of_them < 2 * weights_s


def test_experts_of_a_few_tokens_of_every_rank_run_by_kernels_of_their_own_up_to_what_was_measured() -> (  # noqa: E501
    None
):
    """DeepSeek's experts over 16 ranks: 1024 tokens on a rank are measured, 2048 not."""
    kernels = prices(
        "deepseek-v3", chip="h200", weights="fp8-blockwise", engine=find_engine("sglang")
    ).kernels
    layer: Callable[[], dict[str, Any]] = partial(
        dict, per_expert=column(64.0, 128.0), experts=16.0, hidden=7168.0, inter=2048.0, matrices=3
    )
    spread, plain = (
        how("fp8-blockwise", **layer()) for how in (kernels.spread_experts_s, kernels.experts_s)
    )
    assert spread[0] < 0.8 * plain[0]
    assert spread[1] == plain[1]
    vllm = prices(
        "deepseek-v3", chip="h200", weights="fp8-blockwise", engine=find_engine("vllm")
    ).kernels
    same = [
        how("fp8-blockwise", **layer()).tolist() for how in (vllm.spread_experts_s, vllm.experts_s)
    ]
    assert same[0] == same[1]


def test_an_engines_own_all_reduce_over_pcie_is_faster_than_nccls_ring() -> None:
    """Worked: 2 cards sum 64 MiB by sending it once, at 0.7 of 31.5 GB/s."""
    size = column(2.0**26)
    own = prices(chip="l40s", engine=find_engine("trtllm")).kernels.all_reduce_s(
        ranks=2, buffer_bytes=size
    )
    ring = prices(chip="l40s", engine=find_engine("fastertransformer")).kernels.all_reduce_s(
        ranks=2, buffer_bytes=size
    )
    assert own[0] == pytest.approx(2.0**26 / (0.7 * 31.5e9), rel=0.1)
    assert own[0] < ring[0]
