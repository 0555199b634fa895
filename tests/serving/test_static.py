from __future__ import annotations

import csv
import statistics
from pathlib import Path

import pytest
from tests.serving.cases import prices

from meshwright.runs.measured.serving_predict import predict_serving
from meshwright.runs.measured.serving_rows import read_serving_table
from meshwright.serving.engine import Worker
from meshwright.serving.static import static_batch
from meshwright.values.errors import ConfigError


def test_latency_is_the_first_token_and_the_steps_after_it() -> None:
    priced = prices(
        "gpt3-20b",
        chip="a100-80",
        worker=Worker(),
        weights="fp16",
        cache="fp16",
        engine="fastertransformer",
    )
    found = static_batch(priced, batch=4, input_len=128, output_len=20)
    assert found.latency_s == pytest.approx(found.first_token_s + 19 * found.tpot_s)
    one = static_batch(priced, batch=4, input_len=128, output_len=1)
    assert one.latency_s == one.first_token_s == pytest.approx(found.first_token_s)


def test_published_latency_of_gpt_20b() -> None:
    """FasterTransformer's GPT guide: batch 1, 200 in, 200 out on one A100: 5648 ms."""
    priced = prices(
        "gpt3-20b",
        chip="a100-80",
        worker=Worker(),
        weights="fp16",
        cache="fp16",
        engine="fastertransformer",
    )
    assert static_batch(priced, batch=1, input_len=200, output_len=200).latency_s == pytest.approx(
        5.648, rel=0.15
    )


def test_a_batch_that_does_not_fit_says_so() -> None:
    priced = prices(
        "gpt3-20b",
        chip="a100-80",
        worker=Worker(),
        weights="fp16",
        cache="fp16",
        engine="fastertransformer",
    )
    assert static_batch(priced, batch=64, input_len=200, output_len=200).fits
    assert not static_batch(priced, batch=128, input_len=200, output_len=200).fits


def test_a_pipeline_cuts_large_batches() -> None:
    flat, deep = (
        prices(
            "gpt3-530b", chip="a100-80", worker=worker, weights="fp16", engine="fastertransformer"
        )
        for worker in PIPES
    )
    small, large = ({"batch": batch, "input_len": 128, "output_len": 8} for batch in (1, 128))
    assert static_batch(deep, **small).latency_s > 1.1 * static_batch(flat, **small).latency_s
    assert static_batch(deep, **large).latency_s < 1.2 * static_batch(flat, **large).latency_s


PIPES = (Worker(tp=16), Worker(tp=8, pp=3))


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="batch=0: expected 1 or more"):
        static_batch(prices(), batch=0, input_len=1, output_len=1)


def test_published_static_batches(truth_dir: Path) -> None:
    table = read_serving_table(truth_dir / "inference_fastertransformer.csv")
    predicted = {p.row_id: p for p in predict_serving([table]).predictions}
    measured = {row["row_id"]: row for row in table.rows if row["row_id"] in predicted}
    errors = [
        abs((predicted[i].e2e_s or 0) * 1e3 / float(row["e2e_latency_ms"]) - 1)
        for i, row in measured.items()
        if row["e2e_latency_ms"]
    ]
    assert statistics.fmean(errors) < 0.125
    assert [predicted[i].oom for i in measured] == [
        row["oom"] == "True" for row in measured.values()
    ]


def test_encoder_decoder_models_read_their_source(truth_dir: Path) -> None:
    with (truth_dir / "inference_misc.csv").open(newline="") as stream:
        rows = {
            row["model"]: float(row["e2e_latency_ms"])
            for row in csv.DictReader(stream)
            if row["e2e_latency_ms"]
        }
    priced = prices(
        "t5-11b", chip="a100-80", worker=Worker(tp=4), weights="fp16", engine="fastertransformer"
    )
    assert static_batch(
        priced, batch=1, input_len=60, output_len=20
    ).latency_s * 1e3 == pytest.approx(rows["T5-11B"], rel=0.3)
