from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runs.measured.serving.examples import ROW

from meshwright.cli import run
from meshwright.runs.measured.cells import TruthTable
from meshwright.runs.measured.rows import Unanswerable
from meshwright.runs.measured.serving_answers import (
    COLUMNS,
    FIGURES,
    SCORED,
    ServingPrediction,
    serving_predictions_csv,
)
from meshwright.runs.measured.serving_predict import (
    _slots,
    drafting,
    predict_case,
    predict_serving,
)
from meshwright.runs.measured.serving_rows import (
    MEASURED,
    ServingCase,
    read_serving_row,
    read_serving_table,
)
from meshwright.runs.measured.serving_words import as_started, load_of
from meshwright.values.errors import ConfigError
from meshwright_truth.serving_score import guesses_of_answers, score_serving, serving_accuracy_page

TWO = {"model": "deepseek-v3", "gpu": "H200", "mode": "disagg", "n_gpus": "16", "tp": ""}
HEADER = (*ROW, "n_experts", *MEASURED)


def case(**changes: str) -> ServingCase:
    found = read_serving_row(ROW | changes, source="t")
    assert isinstance(found, ServingCase), found
    return found


def refusal(**changes: str) -> str:
    found = read_serving_row(ROW | changes, source="t")
    assert isinstance(found, Unanswerable)
    return found.reason


def test_a_row_is_read() -> None:
    found = case()
    assert (found.model.name, found.node.chip.name, found.engine.name, found.workers[0].tp) == (
        "llama3.1-70b",
        "h100",
        "vllm",
        4,
    )
    assert (found.weights, found.cache, found.load, found.chips) == ("fp8", "bf16", 16, 4)
    assert case(engine="TensorRT-LLM").cache == "fp8"
    assert case(kv_precision="fp8").cache == "fp8"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("dynamo-vllm", "vllm"),
        ("vLLM (V1)", "vllm"),
        ("Dynamo TensorRT-LLM", "trtllm"),
        ("SGLang-router", "sglang"),
        ("HF Transformers", "transformers"),
    ],
)
def test_an_engines_name_within_another(written: str, name: str) -> None:
    assert case(engine=written).engine.name == name


@pytest.mark.parametrize(
    ("word", "weights"),
    [
        ("AWQ", "int4"),
        ("w4a16", "int4"),
        ("w8a8", "int8"),
        ("fp8_block", "fp8-blockwise"),
        ("NVFP4", "nvfp4"),
        ("auto", "bf16"),
        ("half", "fp16"),
    ],
)
def test_words_of_engines_options_for_weights(word: str, weights: str) -> None:
    assert case(precision=word).weights == weights


def test_precisions_mean_what_is_published_for_that_make_of_model() -> None:
    assert case(model="deepseek-v3", tp="8").weights == "fp8-blockwise"
    assert case(model="gpt-oss-120b", precision="fp4").weights == "mxfp4"
    assert case(model="mixtral-8x7b").weights == "fp8"


def test_axes_counted_twice_are_counted_once() -> None:
    assert (
        case(model="deepseek-v3", tp="64", ep="8", attention_dp="1").workers[0].name == "tp=8,ep=8"
    )
    assert (
        case(model="deepseek-v3", tp="4", ep="16", attention_dp="4").workers[0].name
        == "ep=4,attention_dp=4"
    )
    assert (
        case(model="deepseek-v3", tp="8", ep="8", attention_dp="1").workers[0].name == "tp=8,ep=8"
    )


def test_experts_on_two_chips_of_four_stay_there() -> None:
    """Each expert cut over two chips; half of the chips would not hold the weights."""
    told = case(model="qwen3-235b-a22b", tp="4", ep="2", attention_dp="1", n_gpus="4")
    assert told.workers[0].name == "tp=4,ep=2"


def test_axes_that_are_left_open_are_tried() -> None:
    names = [
        worker.name
        for worker in case(model="qwen3-235b-a22b", tp="8", ep="", attention_dp="").workers
    ]
    assert names == ["tp=8", "tp=8,ep=8", "ep=8,attention_dp=8"]
    assert len(case(model="mixtral-8x7b", tp="8", ep="", attention_dp="").workers) == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"engine": "Triton 1"}, "'Triton 1' is no known engine"),
        ({"concurrency": ""}, "concurrency: blank"),
        ({"input_len": "OpenOrca"}, "input_len: not a number"),
        ({"tp": "5"}, "num_heads=64 is not divisible by tp=5"),
        ({"model": "no-such-model"}, "is no known model"),
        ({"precision": "fp7"}, "precision: 'fp7' is not known"),
        ({"measure_kind": "vibes"}, "measure_kind: 'vibes' is not modelled"),
        ({"gpu": "H900"}, "'H900' is no known chip"),
    ],
)
def test_rows_without_an_answer_say_why(changes: dict[str, str], reason: str) -> None:
    assert reason in refusal(**changes)


def answered(**changes: str) -> dict[str, str]:
    rows = (ROW | changes,)
    [found] = predict_serving([TruthTable("t", rows)]).predictions
    return dict(zip(COLUMNS, found.cells, strict=True))


def test_every_figure_has_an_interval_a_verdict_and_what_was_assumed() -> None:
    line = answered(kv_precision="")
    assert COLUMNS[: len(SCORED)] == SCORED
    for name in FIGURES.values():
        assert bool(line[name]) == bool(line[f"{name}_low"]) == bool(line[f"{name}_high"])
        if line[name]:
            assert float(line[f"{name}_low"]) < float(line[name]) < float(line[f"{name}_high"])
    assert line["ttft_ms"] and line["fits"] == "yes"
    assert "precision of the cache not told: bf16 taken" in line["assumed"]
    assert "precision of the cache" not in answered(kv_precision="fp8")["assumed"]


def test_a_server_whose_weights_leave_no_room_does_not_fit() -> None:
    """By hand: 70 B weights of two bytes are 141 GB, one H100 has 80."""
    assert answered(tp="1", n_gpus="1", precision="bf16")["fits"] == "no"


@pytest.mark.parametrize(
    "kind", ["serving_closed_loop", "max_load_inflight_throughput", "static_batch_e2e"]
)
def test_what_no_chip_holds_is_not_priced(kind: str) -> None:
    """By hand: Llama 3.1 405B has 405.9 B weights of two bytes, 756 GiB; one H100 has 80."""
    line = answered(measure_kind=kind, model="llama3.1-405b", tp="1", n_gpus="1", precision="bf16")
    assert (line["oom"], line["fits"]) == ("1", "no")
    assert 756 < float(line["memory_gb"]) < 775
    for name in ("ttft_ms", "tpot_ms", "e2e_latency_ms", "throughput_out_tok_s_per_gpu"):
        assert line[name] == ""


def test_memory_is_said_of_every_layout_that_fits() -> None:
    """By hand: 70.6 B weights of one byte on four chips are 16.4 GiB each, beside which the engine
    itself and the cache of 16 requests stand; two pools say that of the fuller one."""
    one = answered(kv_precision="bf16")
    two = answered(mode="disagg", prefill_tp="4", decode_tp="4", n_gpus="8", kv_precision="bf16")
    for line in (one, two):
        assert line["oom"] == "0"
        assert 17 < float(line["memory_gb"]) < 30


def test_axes_of_one_beside_many_chips_are_no_layout() -> None:
    blank = {"model": "llama3.1-405b", "precision": "bf16", "tp": "", "n_gpus": "8"}
    [untold] = predict_serving([TruthTable("t", (ROW | blank,))]).unanswered
    assert "layout not told: one of the 8 chips does not hold llama3.1-405b" in untold.reason
    pools = {"mode": "disagg", "prefill_tp": "1", "decode_tp": "1"}
    assert predict_serving([TruthTable("t", (ROW | blank | pools,))]).unanswered


def test_a_static_batch_is_at_risk_where_its_interval_passes_the_memory() -> None:
    usable = case().node.chip.usable_bytes / 2**30
    for share, verdict in ((0.5, "yes"), (0.999, "at risk")):
        found = ServingPrediction(
            source="t", row_id="", memory_gib=share * usable, oom=False, case=case()
        )
        assert found.verdict == verdict
    assert ServingPrediction(source="t", row_id="", oom=True, case=case()).verdict == "no"


def test_a_published_run_within_ten_percent() -> None:
    """InferenceX, vLLM on four H100: 13.19 ms a token."""
    found = predict_case(case())
    assert found.tpot_s == pytest.approx(13.19e-3, rel=0.1)
    assert found.e2e_s == pytest.approx((found.ttft_s or 0) + 1023 * (found.tpot_s or 0))
    assert found.tokens_per_s_per_chip == pytest.approx(16 * 1024 / (found.e2e_s or 1) / 4)


def test_two_pools() -> None:
    pools = {
        f"{pool}_{axis}": value
        for pool in ("prefill", "decode")
        for axis, value in (("tp", "8"), ("ep", "8"), ("workers", "1"))
    }
    found = predict_case(
        case(model="deepseek-v3", gpu="H200", mode="disagg", n_gpus="16", tp="", **pools)
    )
    together = predict_case(case(model="deepseek-v3", gpu="H200", tp="8", ep="8"))
    assert 0 < (found.tpot_s or 0) < (together.tpot_s or 0)


def test_pools_that_are_told_in_full_draft_no_tokens() -> None:
    pools = {f"{pool}_{axis}": "8" for pool in ("prefill", "decode") for axis in ("tp", "ep")}
    told = {"prefill_workers": "1", "decode_workers": "1"}
    full, open_ = (
        predict_case(
            case(
                model="deepseek-v3", gpu="H200", mode="disagg", n_gpus="16", tp="", **pools, **more
            )
        )
        for more in (told, {})
    )
    assert (full.tpot_s or 0) > 1.4 * (open_.tpot_s or 0)


@pytest.mark.parametrize(
    ("clients", "workers", "slots"),
    [
        ("1229", "", 1024),
        ("27", "", 24),
        ("27", "3", 24),
        ("192", "", None),
        ("36", "5", None),
        ("360", "", None),
        ("36", "4", 32),
    ],
)
def test_clients_that_are_a_few_more_than_a_power_of_two_wait_for_a_slot(
    clients: str, workers: str, slots: int | None
) -> None:
    pools = {
        "prefill_tp": "8",
        "decode_tp": "8",
        "decode_workers": workers,
        "prefill_workers": "1",
        "concurrency": clients,
    }
    run = case(
        model="deepseek-v3", engine="TensorRT-LLM", mode="disagg", n_gpus="40", tp="", **pools
    )
    assert _slots(run) == slots
    assert (
        _slots(
            case(model="deepseek-v3", engine="SGLang", mode="disagg", n_gpus="40", tp="", **pools)
        )
        is None
    )


def started(**changes: str) -> ServingCase:
    run = case(**changes)
    return as_started(run, load_of(run.input_len, run.output_len), tp=run.workers[0].tp)


def test_servers_start_as_the_benchmark_starts_them() -> None:
    sglang = {"engine": "SGLang", "model": "deepseek-v3", "tp": "8", "n_gpus": "8"}
    assert [
        started(**sglang, gpu="B200", concurrency=clients).engine.poll_steps
        for clients in ("8", "16")
    ] == [10, 30]
    assert started(**sglang, gpu="H200").engine.poll_steps == 1
    assert started(**sglang, gpu="B200", input_len="2048").engine.poll_steps == 1
    assert started(engine="TensorRT-LLM").engine.wait_steps == 20
    assert started(engine="TensorRT-LLM", output_len="8192").engine.wait_steps == 0
    assert started(engine="TensorRT-LLM", input_len="2048").engine.whole_prompts is False


@pytest.mark.parametrize(
    ("date", "tokens"),
    [("2025-11-02", 1024 + 256 + 64), ("2026-02-06", 8192), ("", 1024 + 256 + 64)],
)
def test_an_iteration_holds_what_the_recipe_of_the_day_lets_it(date: str, tokens: int) -> None:
    run = started(
        engine="TensorRT-LLM",
        model="deepseek-v3",
        tp="8",
        gpu="B200",
        n_gpus="8",
        concurrency="256",
        date=date,
    )
    assert run.engine.chunk_tokens == tokens


def test_drafting_where_tables_do_not_say() -> None:
    """Worked: 0.664 + 0.664^2 + 0.664^3 = 1.40."""
    spec = drafting(3)
    assert spec is not None and spec.accepted == pytest.approx(1.40, abs=0.005)
    assert drafting(0) is None
    latent = {"model": "deepseek-v3", "tp": "8", "gpu": "B200", "n_gpus": "8"}
    assert [started(**latent, engine=engine).drafted for engine in ("TensorRT-LLM", "SGLang")] == [
        1,
        0,
    ]
    assert started(engine="TensorRT-LLM").drafted == 0


def test_two_pools_draft_less_under_more_requests() -> None:
    """Where nobody says how many tokens are drafted, no number of them is faster than what is
    predicted."""
    pools = {f"{pool}_{axis}": "8" for pool in ("prefill", "decode") for axis in ("tp", "ep")}
    asked = {
        "model": "deepseek-v3",
        "gpu": "H200",
        "mode": "disagg",
        "n_gpus": "16",
        "tp": "",
        "engine": "SGLang",
        **pools,
    }
    told = {"prefill_workers": "1", "decode_workers": "1"}
    for clients in ("4", "2048"):
        drafted, none = (
            predict_case(case(**asked, **more, concurrency=clients)).tpot_s for more in ({}, told)
        )
        assert 0 < (drafted or 0) <= 1.001 * (none or 0)


def test_the_end_of_a_queue_leaves_room() -> None:
    """1500 requests of 2048 and 2048 tokens run in few waves, the last not full; lengths that no
    table tells have no end."""
    load = {
        "measure_kind": "max_load_inflight_throughput",
        "concurrency": "",
        "engine": "TensorRT-LLM",
    }
    ends, none = (
        predict_case(case(**load, input_len="2048", output_len=length)).tokens_per_s_per_chip
        for length in ("2048", "2049")
    )
    assert 0.5 * (none or 0) < (ends or 0) < (none or 0)
    staged = {**load, "tp": "2", "pp": "2", "input_len": "2048"}
    ends, none = (
        predict_case(case(**staged, output_len=length)).tokens_per_s_per_chip
        for length in ("2048", "2049")
    )
    assert ends == pytest.approx(none, rel=0.01)


def test_the_caches_precision_is_the_recipes_unless_the_run_tells_it() -> None:
    assert started(gpu="B200").cache == "fp8"
    assert started(gpu="B200", kv_precision="bf16").cache == "bf16"
    assert started().cache == "bf16"


def test_prompts_repeat_in_studies_that_make_a_hundred() -> None:
    again, new = (
        predict_case(case(input_len=length, output_len="100", concurrency="100"))
        for length in ("4000", "4096")
    )
    assert (again.ttft_s or 0) < 0.7 * (new.ttft_s or 0)
    assert (again.tpot_s or 0) < 0.7 * (new.tpot_s or 0)


def test_a_load_beyond_the_cache_waits() -> None:
    """Llama 3.1 70B in fp8 on two H100 leaves room for about 300,000 tokens: 64 requests of 9,000
    wait, 16 do not."""
    few, many = (
        predict_case(case(input_len="8192", output_len="1024", tp="2", n_gpus="2", concurrency=n))
        for n in ("16", "64")
    )
    assert (many.ttft_s or 0) > 10 * (few.ttft_s or 0)


def test_a_latent_on_more_chips_than_a_server_has_is_open() -> None:
    names = [
        worker.name
        for worker in case(
            model="deepseek-v3", tp="32", ep="1", attention_dp="1", n_gpus="32"
        ).workers
    ]
    assert names == ["tp=32", "tp=32,ep=32", "ep=32,attention_dp=32"]
    assert len(case(model="deepseek-v3", tp="8", ep="1", attention_dp="1").workers) == 1


def test_clients_of_more_copies_than_chips_are_one_copys_load() -> None:
    """13 requests a rank and 416 clients on 2 chips are 32 copies; on 64 chips they can be 32 ranks
    of attention."""
    assert (
        case(model="qwen3-32b", tp="2", n_gpus="2", batch_size="13", concurrency="416").load == 13
    )
    assert (
        case(
            model="qwen3-235b-a22b",
            tp="1",
            attention_dp="64",
            n_gpus="64",
            batch_size="13",
            concurrency="416",
        ).load
        == 416
    )


def test_a_model_that_is_not_known_by_name_is_read_from_its_dims() -> None:
    dims = {
        "n_layers": "60",
        "hidden": "4096",
        "n_heads": "32",
        "n_kv_heads": "2",
        "ffn_hidden": "1024",
        "vocab": "248320",
    }
    found = case(model="Qwen/Qwen9.9-397B-A17B", n_experts="512", experts_per_token="10", **dims)
    assert found.model.moe is not None
    assert (found.model.num_layers, found.model.moe.top_k, found.model.moe.expert_ffn) == (
        60,
        10,
        1024,
    )


def test_measured_columns_change_nothing(truth_dir: Path) -> None:
    tables = [read_serving_table(path) for path in sorted(truth_dir.glob("inference_*.csv"))]
    some = [TruthTable(name=table.name, rows=table.rows[::97]) for table in tables]
    blank = [
        TruthTable(name=t.name, rows=tuple(row | dict.fromkeys(MEASURED, "") for row in t.rows))
        for t in some
    ]
    absent = [
        TruthTable(
            name=t.name,
            rows=tuple({k: v for k, v in row.items() if k not in MEASURED} for row in t.rows),
        )
        for t in some
    ]
    full = serving_predictions_csv(predict_serving(some))
    assert (
        full
        == serving_predictions_csv(predict_serving(blank))
        == serving_predictions_csv(predict_serving(absent))
    )
    assert full.count("\n") > 30


def test_figures_are_those_of_the_reference_script(truth_dir: Path, tmp_path: Path) -> None:
    script = truth_dir.parent / "tools" / "score_serving.py"
    if not script.is_file():
        pytest.skip("the reference script is absent")
    table = read_serving_table(truth_dir / "inference_trtllm_docs.csv")
    answers = predict_serving([TruthTable(name=table.name, rows=table.rows[:60])])
    predictions, shown = tmp_path / "p.csv", tmp_path / "scores.json"
    predictions.write_text(serving_predictions_csv(answers))
    command = [
        sys.executable,
        str(script),
        str(predictions),
        str(truth_dir / "inference_trtllm_docs.csv"),
        "--json",
        str(shown),
    ]
    subprocess.run(command, check=True, capture_output=True)
    reference = json.loads(shown.read_text())["inference_trtllm_docs"]
    ours = score_serving([table], guesses_of_answers(answers))["inference_trtllm_docs"]
    assert ours.answered == pytest.approx(reference["answered"])
    assert ours.errors["ttft_ms"].mape == pytest.approx(reference["ttft_ms"]["mape"])
    assert ours.errors["throughput_out_tok_s_per_gpu"].bias == pytest.approx(
        reference["throughput_out_tok_s_per_gpu"]["bias"]
    )
    assert ours.best_tp == reference["best_tp"]


def test_scores_by_hand() -> None:
    told = (("False", "11", "0"), ("False", "8", "0"), ("True", "10", "1"), ("True", "10", "0"))
    rows = tuple(
        ROW | {"row_id": f"r{i}", "tpot_ms": "10", "oom": oom, "n_experts": ""}
        for i, (oom, _, _) in enumerate(told)
    )
    guesses = {("t", f"r{i}"): {"tpot_ms": ms, "oom": oom} for i, (_, ms, oom) in enumerate(told)}
    found = score_serving([TruthTable(name="t", rows=rows)], guesses)["t"]
    assert found.errors["tpot_ms"].mape == pytest.approx(0.15)
    assert found.errors["tpot_ms"].bias == pytest.approx((1.1 * 0.8) ** 0.5 - 1)
    assert found.oom_f1 == pytest.approx(2 / 3)
    assert "| t | 4 | 100.0 % |" in serving_accuracy_page({"t": found}, {})


def write_rows(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, HEADER, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_the_command_writes_a_line_per_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_rows(tmp_path / "mine.csv", ROW, ROW | {"row_id": "r1", "tp": "5"})
    assert run(["serving", "predict", str(table), "-o", str(tmp_path / "out.csv")]) == 0
    shown = capsys.readouterr().out
    assert "1 of      2 rows answered" in shown
    assert "tp may be 1, 2, 4, 8" in shown
    lines = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert tuple(lines[0]) == COLUMNS
    assert (lines[0]["source"], lines[0]["row_id"], lines[1]["tpot_ms"]) == ("mine", "r0", "")
    assert 10 < float(lines[0]["tpot_ms"]) < 17


def test_the_commands_refuse_what_is_no_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    assert run(["serving", "predict", str(other), "-o", str(tmp_path / "out.csv")]) == 2
    assert "expected a table of serving runs" in capsys.readouterr().err
    unanswered = write_rows(tmp_path / "none.csv", ROW | {"tp": "5"})
    assert (
        run(["serving", "predict", str(unanswered), "-o", str(tmp_path / "out.csv"), "--json"]) == 1
    )
    assert json.loads(capsys.readouterr().out)["tables"]["none"]["answered"] == 0
    with pytest.raises(ConfigError, match="cannot be read"):
        read_serving_table(tmp_path / "absent.csv")


def test_validate_prints_and_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = write_rows(
        tmp_path / "mine.csv", ROW | {"tpot_ms": "13.19", "ttft_ms": "121.4", "oom": "False"}
    )
    assert run(["serving", "validate", str(table), "-o", str(tmp_path / "page.md")]) == 0
    assert "mine vLLM H100 dense" in capsys.readouterr().out
    assert (tmp_path / "page.md").read_text().startswith("# Accuracy of serving predictions")
    assert run(["serving", "predict", str(table), "-o", str(tmp_path / "out.csv")]) == 0
    capsys.readouterr()
    assert (
        run(
            [
                "serving",
                "validate",
                str(table),
                "--predictions",
                str(tmp_path / "out.csv"),
                "--json",
            ]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["tables"]["mine"]["tpot_ms"]["n"] == 1
