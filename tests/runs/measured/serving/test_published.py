from __future__ import annotations

import math

import numpy as np
import pytest
from tests.runs.measured.serving.examples import ROW

from meshwright.runs.measured import serving_predict as predict
from meshwright.runs.measured.rows import Unanswerable
from meshwright.runs.measured.serving_predict import predict_case
from meshwright.runs.measured.serving_rows import ServingCase, read_serving_row
from meshwright.runs.measured.serving_words import (
    Load,
    _by_key,
    _entry,
    as_started,
    load_of,
    mean_of,
    published_pools,
)
from meshwright.serving.engine import find_engine
from meshwright.values.hardware.catalogue import default_node
from meshwright.values.models.catalogue import find_model

DISAGGREGATED = ROW | {
    **{
        "model": "deepseek-ai/DeepSeek-R1",
        "gpu": "GB200",
        "gpu_mem_gb": "186",
        "precision": "fp4",
        "engine": "TensorRT-LLM",
    },
    **{
        "mode": "disagg",
        "n_gpus": "12",
        "tp": "",
        "ep": "",
        "attention_dp": "",
        "concurrency": "24",
        "date": "2026-03-23",
    },
    **{
        "prefill_tp": "4",
        "prefill_ep": "4",
        "prefill_attention_dp": "1",
        "decode_tp": "8",
        "decode_ep": "4",
        "decode_attention_dp": "1",
    },
}


def case(**changes: str) -> ServingCase:
    found = read_serving_row(DISAGGREGATED | changes, source="t")
    assert isinstance(found, ServingCase), found
    return found


def test_pools_are_those_of_the_benchmarks_configuration() -> None:
    """nvidia-master.yaml of InferenceX on 23 March 2026, dsr1-fp4-gb200-dynamo-trt, 24 clients of
    1024 tokens: one worker of 4 chips for prompts, four of 8 for answers, with three drafted tokens
    and 8 sequences (ctx1_gen4_tep8_batch8_eplb0_mtp3) or with none and 32.
    """
    found = published_pools(case())
    assert {(one.drafted, one.decode_sequences) for one in found} == {(3, 8), (0, 32)}
    for one in found:
        assert (one.pools.prefill_workers, one.pools.prefill.name) == (1, "ep=4,attention_dp=4")
        assert (one.pools.decode_workers, one.pools.decode.name) == (4, "tp=8,ep=8")


def test_runs_that_tell_their_workers_draft_nothing() -> None:
    told = case(prefill_workers="1", decode_workers="4", prefill_tp="1", prefill_attention_dp="4")
    assert [one.drafted for one in published_pools(told)] == [0]
    assert published_pools(case(prefill_workers="2", decode_workers="4")) == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": "H20"},
        {"concurrency": "23"},
        {"decode_tp": "16"},
        {"output_len": "1023"},
        {"precision": "fp8"},
    ],
)
def test_other_runs_find_no_pools(changes: dict[str, str]) -> None:
    assert published_pools(case(**changes)) == ()


@pytest.mark.parametrize(
    ("day", "sequences"),
    [("2026-02-07", 64), ("2026-06-01", 1), ("2026-01-01", 64), ("2026-12-01", 1)],
)
def test_a_run_takes_what_stood_on_its_day(day: str, sequences: int) -> None:
    """srt-slurm's ctx1_gen8_tp8_batch64_eplb0_mtp0_12.yaml: max_batch_size 64, and 1 since 3 March
    2026."""
    b300 = {
        "gpu": "B300",
        "gpu_mem_gb": "288",
        "precision": "fp8",
        "concurrency": "12",
        "prefill_ep": "1",
        "decode_ep": "1",
        "date": day,
    }
    assert [one.decode_sequences for one in published_pools(case(**b300))] == [sequences]


@pytest.mark.parametrize(
    ("written", "day"),
    [
        ("2026-03-23T10:00:00Z", "2026-03-23"),
        ("2026-03", "2026-03-01"),
        ("2025", "2025-01-01"),
        *((odd, "") for odd in ("", "March 2026", "23/03/2026", "2026-13-01", "20260323")),
    ],
)
def test_a_date_is_a_day_a_month_or_a_year(written: str, day: str) -> None:
    found = case(date=written)
    assert found.date == day
    assert published_pools(found)


def test_sglang_splits_its_chunk_among_attention_ranks() -> None:
    row = dict.fromkeys(
        ("prefill_workers", "decode_workers", "prefill_ep", "decode_ep", "decode_sequences"), "1"
    )
    row |= {
        "prefill_chips": "8",
        "prefill_ranks": "8",
        "decode_chips": "8",
        "decode_ranks": "1",
        "prefill_tokens": "32768",
    }
    row |= {"prefill_batch": "", "drafted": ""}
    assert [_entry(row | {"engine": engine}).prefill_tokens for engine in ("sglang", "trtllm")] == [
        4096,
        32768,
    ]
    assert _entry(row | {"engine": "sglang"}).drafted is None


def test_every_entry_is_of_a_known_engine_model_and_chip() -> None:
    for (engine, model, _, chip, *_), rows in _by_key().items():
        assert (find_engine(engine).name, find_model(model).name, default_node(chip).chip.name) == (
            engine,
            model,
            chip,
        )
        assert all(_entry(row).pools.decode.chips == int(row["decode_chips"]) for row in rows)


def test_entries_that_spread_copies_of_experts_are_left_out() -> None:
    """256 experts on 48 chips."""
    wide = [
        (key, row)
        for key, rows in _by_key().items()
        for row in rows
        if row["decode_ep"] == "48" and key[0] == "sglang"
    ]
    assert wide
    key, row = wide[0]
    lengths = {
        "input_len": key[4],
        "output_len": key[5],
        "concurrency": str(key[6]),
        "gpu": key[3].upper(),
        "precision": key[2],
    }
    pools = {
        "prefill_tp": row["prefill_chips"],
        "decode_tp": "48",
        "decode_ep": "1",
        "n_gpus": "64",
        "engine": "SGLang",
    }
    found = read_serving_row(DISAGGREGATED | lengths | pools, source="t")
    assert isinstance(found, Unanswerable) or published_pools(found) == ()


def test_of_entries_that_fit_alike_the_geometric_mean_is_predicted() -> None:
    run = case()
    parts = [predict._as_published(run, one) for one in published_pools(run)]
    whole = predict_case(run)
    assert len(parts) == 2
    assert whole.tpot_s == pytest.approx(math.sqrt(parts[0].tpot_s * parts[1].tpot_s))  # type: ignore[operator]
    assert whole.ttft_s == pytest.approx(math.sqrt(parts[0].ttft_s * parts[1].ttft_s))  # type: ignore[operator]


def test_fewer_rounds_than_a_runs_count_as_it_has_them() -> None:
    """Worked: 2 clients of 10 rounds, of which 4 were simulated: (2 * 9 + 8 * 2 * 1 + 2 * 1) / 20 =
    1.8."""
    load = Load(name="", shortest=1.0, rounds=10, client_gap_s=0.0, front="engine")
    assert mean_of(np.array([9.0, 9.0, *[1.0] * 6]), load, clients=2) == pytest.approx(1.8)
    assert mean_of(np.array([9.0, np.nan, *[1.0] * 6]), load, clients=2) == pytest.approx(
        (9 + 16 + 2) / 19
    )
    assert mean_of(np.array([3.0, 1.0]), load, clients=2) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("day", "version", "drafted"),
    [
        ("2025-11-02", "", 0),
        ("2026-01-14", "1.1.0rc2.post2", 3),
        ("2026-02-03", "1.2.0rc6.post2", 0),
        ("2026-02-06", "1.2.0rc6.post3", 3),
        ("2026-06-01", "1.3.0rc14", 1),
        ("", "", 1),
    ],
)
def test_the_image_and_the_day_tell_what_is_drafted_on_one_pool(
    day: str, version: str, drafted: int
) -> None:
    """nvidia-master.yaml: dsr1-fp4-b200-trt-mtp since 14 January 2026, then with images of its own;
    since May both run the same."""
    one_pool = {
        "mode": "agg",
        "n_gpus": "8",
        "tp": "8",
        "gpu": "B200",
        "engine_version": version,
        "date": day,
    }
    run = case(**one_pool)
    assert as_started(run, load_of(run.input_len, run.output_len), tp=8).drafted == drafted
