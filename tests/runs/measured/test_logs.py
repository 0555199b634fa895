from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.runs.measured.logs import megatron_log, nccl_output, nemo_log, titan_log

from meshwright.api.measured import calibrate
from meshwright.cost.collectives import all_gather_s, all_reduce_s, group_of
from meshwright.runs.measured.files import MeasuredRun
from meshwright.runs.measured.results import read_nccl_tests, read_results
from meshwright.runs.measured.rows import Given
from meshwright.search.link_rates import link_rates
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.models.params import model_params

TIMES = (42_000.0, 9_100.0, 8_700.0, 8_600.0, 8_610.0, 30_000.0, 8_590.0, 8_605.0, 8_600.0, 8_600.0)
LLAMA = Given(
    model="llama3-8b", cluster="h100:8", seq_len=8192, gbs=128, stack="megatron", layout="mbs=1"
)


def run_of(text: str, folder: Path, given: Given | None = None) -> MeasuredRun:
    path = folder / "train.log"
    path.write_text(text, encoding="utf-8")
    found = read_results([path], given or Given())
    assert not found.left_out, found.left_out
    [run] = found.runs
    return run


def test_megatron_log_describes_its_run(tmp_path: Path) -> None:
    run = run_of(megatron_log(TIMES), tmp_path, Given(cluster="h100:16"))
    layout, model = run.case.layout, run.case.model
    assert run.step_s == pytest.approx(8.6)
    assert run.peak_bytes == pytest.approx(51234.5 * 2**20)
    assert (layout.tp, layout.pp, layout.dp, layout.mbs, layout.gbs, layout.sp) == (
        2,
        2,
        4,
        1,
        128,
        True,
    )
    assert (layout.sharding, layout.recompute, run.case.workload.seq_len) == ("zero1", "none", 8192)
    assert model_params(model).total == pytest.approx(8.03e9, rel=1e-3)
    assert (model.norm, model.positions, model.tied, model.gated, model.linear_bias) == (
        "rmsnorm",
        "rope",
        False,
        True,
        False,
    )
    assert (run.case.memory.kind, run.case.memory.rank, run.case.stack_name) == (
        "allocated",
        "max",
        "megatron",
    )
    assert run.case.stack_changes == ()


def test_megatron_switches_and_recompute(tmp_path: Path) -> None:
    changes = {
        "tp_comm_overlap": "False",
        "use_distributed_optimizer": "False",
        "recompute_granularity": "selective",
        "recompute_modules": "['core_attn', 'mlp']",
        "fp8": "hybrid",
        "fp8_recipe": "mxfp8",
        "num_experts": "8",
        "moe_router_topk": "2",
        "moe_ffn_hidden_size": "2048",
        "expert_model_parallel_size": "4",
        "expert_tensor_parallel_size": "1",
        "virtual_pipeline_model_parallel_size": "4",
    }
    case = run_of(megatron_log(TIMES, changes), tmp_path, Given(cluster="b200:16")).case
    assert case.stack_changes == (("tp_overlap", 0.0),)
    assert (case.layout.sharding, case.layout.ep, case.layout.etp, case.layout.vpp) == (
        "none",
        4,
        1,
        4,
    )
    assert (case.layout.recompute, case.layout.recompute_modules) == (
        "selective",
        ("core_attn", "mlp"),
    )
    assert case.workload.precision == "mxfp8"
    assert case.model.moe is not None
    assert (case.model.moe.num_experts, case.model.moe.top_k, case.model.moe.expert_ffn) == (
        8,
        2,
        2048,
    )


@pytest.mark.parametrize(
    ("said", "first", "every"), [("1", 0, 1), ("2", 0, 2), ("[0, 1, 1, 1]", 1, 1)]
)
def test_layers_with_experts_are_as_the_log_says(
    tmp_path: Path, said: str, first: int, every: int
) -> None:
    changes = {"num_layers": "4", "num_experts": "8", "moe_layer_freq": said}
    model = run_of(megatron_log(TIMES, changes), tmp_path, Given(cluster="h100:16")).case.model
    assert model.moe is not None
    assert (model.moe.first_dense_layers, model.moe.layer_frequency) == (first, every)


def test_memory_of_one_rank_is_that_of_its_stage(tmp_path: Path) -> None:
    case = run_of(
        megatron_log(TIMES, max_allocated_mb=(51234.5,)), tmp_path, Given(cluster="h100:16")
    ).case
    assert case.memory.rank == "first"


def test_a_peak_told_behind_the_first_step_alone_is_that_steps(tmp_path: Path) -> None:
    """megatron/training/training.py reports once, behind the first line of progress: with
    --log-interval 1 before Adam's moments meet any activations."""
    text = megatron_log(TIMES)
    once = "\n".join(line for line in text.splitlines() if "(after 2 iterations)" not in line)
    later = once.replace("(after 1 iterations)", "(after 10 iterations)")
    kinds = [
        run_of(said, tmp_path, Given(cluster="h100:16")).case.memory.kind
        for said in (once, later, text)
    ]
    assert kinds == ["first-step", "allocated", "allocated"]


def test_only_reports_of_the_last_batch_count(tmp_path: Path) -> None:
    ramp = megatron_log((9e3, 4e3, 4e3), {"global_batch_size": "64"})
    full = megatron_log((8e3,) * 7).split("training ...")[1]
    assert run_of(ramp + full, tmp_path, Given(cluster="h100:16")).step_s == pytest.approx(8.0)


def test_prefixes_of_launchers_do_not_matter(tmp_path: Path) -> None:
    text = "\n".join(f"0: {line}" for line in megatron_log(TIMES).splitlines())
    assert run_of(text, tmp_path, Given(cluster="h100:16")).case.layout.tp == 2


def test_flags_go_before_the_log(tmp_path: Path) -> None:
    given = Given(
        model="llama2-13b", cluster="h100:16", layout="tp=8,pp=2", stack="megatron-no-overlap"
    )
    case = run_of(megatron_log(TIMES), tmp_path, given).case
    assert (case.model.name, case.layout.tp, case.layout.pp, case.layout.mbs) == (
        "llama2-13b",
        8,
        2,
        1,
    )
    assert case.stack_name == "megatron-no-overlap"


def test_nemo_log_needs_flags_and_has_its_batch(tmp_path: Path) -> None:
    run = run_of(
        nemo_log([40.0, 12.8, 12.6, 12.61, 12.6, 12.6, 12.6]), tmp_path, replace(LLAMA, gbs=None)
    )
    assert run.step_s == pytest.approx(12.6)
    assert run.case.layout.gbs == 128
    assert run.peak_bytes is None
    with pytest.raises(ConfigError, match="--model, --cluster, --stack, --seq, --layout"):
        run_of(nemo_log([40.0, 12.8, 12.6]), tmp_path)


@pytest.mark.parametrize("colour", [False, True])
def test_titan_log_describes_its_run(tmp_path: Path, colour: bool) -> None:
    run = run_of(
        titan_log([812.0, 6900.0, 7210.0, 7200.0, 7205.0, 7210.0], colour=colour), tmp_path
    )
    case = run.case
    assert run.step_s == pytest.approx(2 * 8192 / 7207.5, rel=1e-3)
    assert run.peak_bytes == pytest.approx(70.5 * 2**30)
    assert (case.model.name, case.machines.pools, case.stack_name) == (
        "llama3-8b",
        (("h100", 8),),
        "torchtitan",
    )
    assert (case.layout.sharding, case.layout.dp, case.layout.mbs, case.layout.gbs) == (
        "zero3",
        8,
        2,
        16,
    )
    assert (case.layout.recompute, case.layout.recompute_modules) == ("selective", ("ops",))
    assert (case.memory.kind, case.memory.rank) == ("reserved", "first")
    assert case.stack_changes == (("tp_overlap", 0.0),)


def test_titan_forms_of_other_years(tmp_path: Path) -> None:
    old = (
        "{'model': {'name': 'llama3', 'flavor': '8B'}, 'training': {'batch_size': 1, 'seq_len':"
        " 8192, 'compile': False}, 'activation_checkpoint': {'mode': 'selective',"
        " 'selective_ac_option': '2'}}"
    )
    case = run_of(
        titan_log(
            [1.0, 7e3, 7e3],
            config=old,
            mesh="Building 2-D device mesh with ['dp_shard', 'tp'], [4, 2]",
        ),
        tmp_path,
    ).case
    assert (case.layout.tp, case.layout.dp, case.layout.gbs) == (2, 4, 4)
    assert (case.layout.recompute, case.layout.recompute_method, case.layout.recompute_layers) == (
        "full",
        "block",
        16,
    )
    assert ("pointwise_fused", 0.0) in case.stack_changes
    new = """{"model_spec": {"name": "llama3", "flavor": "8B", "model": {}}, "training": {"num_tokens_per_microbatch_per_dp_rank": 16384,
    "num_tokens_per_train_step": 524288, "max_context_length": 8192}, "parallelism": {}, "activation_checkpoint": {"mode": "full"},
    "compile": {"enable": true}}"""  # noqa: E501
    case = run_of(titan_log([1.0, 7e3, 7e3], config=new), tmp_path).case
    assert (case.layout.mbs, case.layout.gbs, case.layout.recompute) == (2, 64, "full")


def test_titan_log_without_a_dump_takes_flags(tmp_path: Path) -> None:
    given = Given(
        model="llama3-8b", seq_len=8192, gbs=16, cluster="h100:8", layout="mbs=2,sharding=zero3"
    )
    assert (
        run_of(titan_log([812.0, 7e3, 7e3, 7e3], config=None), tmp_path, given).case.layout.mbs == 2
    )


SIZES = [2**n for n in range(16, 33, 2)]


@pytest.mark.parametrize(
    ("operation", "name", "factor"),
    [(all_reduce_s, "all_reduce_perf", 1.75), (all_gather_s, "all_gather_perf", 0.875)],
)
def test_the_links_own_figures_are_found_again(operation: object, name: str, factor: float) -> None:
    pool = parse_cluster("h100:8").pools[0]
    link = pool.node.domain_link
    sizes = np.array(SIZES, dtype=float)
    times = operation(group_of(np.full_like(sizes, 8), np.ones_like(sizes), pool), sizes)  # type: ignore[operator]
    text = nccl_output(
        {size: 1e6 * float(s) for size, s in zip(SIZES, times, strict=True)},
        name=name,
        factor=factor,
    )
    rates = link_rates(read_nccl_tests(text, source="t"), pool)
    assert rates.level == "domain" and rates.name == link.name
    assert rates.bytes_per_s == pytest.approx(link.bytes_per_s * link.efficiency, rel=0.01)
    assert rates.latency_s == pytest.approx(link.latency_s, rel=0.03)


def test_alpha_and_beta_by_least_squares() -> None:
    """40 us and 480 GB/s of bus rate on 8 ranks: more than NVLink's nominal 450, as switches that
    reduce give.

    A rank's own share is a copy at twice the link's rate, so that 1 + 1/8 / 2 / 1.75 of the bus
    rate passes the link.
    """
    times = {size: 40.0 + size * 1.75 / 480e9 * 1e6 for size in SIZES}
    pool = parse_cluster("h100:8").pools[0]
    rates = link_rates(read_nccl_tests(nccl_output(times), source="t"), pool)
    rate = 480e9 * (1 + 1 / 16 / 1.75)
    assert rates.bytes_per_s == pytest.approx(rate, rel=0.01)
    link = rates.on(pool.node.domain_link)
    assert link.bytes_per_s * link.efficiency == pytest.approx(rate, rel=0.01)
    assert rates.source == "all_reduce_perf of 8 ranks on 1 host, 9 sizes"


def test_two_hosts_tell_the_network() -> None:
    pool = parse_cluster("h100:16").pools[0]
    times = {size: 200.0 + size * (2 * 15 / 16) / 300e9 * 1e6 for size in SIZES}
    rates = link_rates(read_nccl_tests(nccl_output(times, hosts=2, factor=1.875), source="t"), pool)
    assert rates.level == "network"
    assert rates.bytes_per_s == pytest.approx(
        300e9 / 8, rel=0.05
    )  # steps inside the hosts ramp up, which this table has none of


def test_the_collective_is_known_by_its_ratio() -> None:
    times = {size: 40.0 + size / 3e5 for size in SIZES}
    text = (
        nccl_output(times)
        .replace("# Collective test starting: all_reduce_perf\n", "")
        .replace("concluded: all_reduce_perf", "")
    )
    assert read_nccl_tests(text, source="t").operation == "all_reduce"
    gather = nccl_output(times, factor=0.875).replace("all_reduce_perf", "")
    with pytest.raises(ConfigError, match="which collective"):
        read_nccl_tests(gather, source="t")


def test_old_tables_have_no_root() -> None:
    text = """# nThread 1 nGpus 1 minBytes 1048576 maxBytes 16777216 step: 4(factor) warmup iters: 5 iters: 20 validation: 1
#   Rank  0 Pid   1320 on ip-1 device  0 [0x00] Tesla V100-SXM2-16GB
#   Rank  1 Pid   2066 on ip-1 device  1 [0x00] Tesla V100-SXM2-16GB
#       size         count      type   redop     time   algbw   busbw  error     time   algbw
# busbw  error
     1048576        262144     float     sum    50.00   20.97   20.97  0e+00    50.00   20.97   20.97  0e+00
     4194304       1048576     float     sum   100.00   41.94   41.94  0e+00   100.00   41.94   41.94  0e+00
    16777216       4194304     float     sum   300.00   55.92   55.92  0e+00   300.00   55.92   55.92  0e+00
"""  # noqa: E501
    table = read_nccl_tests(text, source="t")
    assert (table.operation, table.ranks, table.hosts) == ("all_reduce", 2, 1)
    assert table.times_s == pytest.approx((50e-6, 100e-6, 300e-6))


BAD = {
    "empty": ("", "no form that is known"),
    "prose": ("the quick brown fox", "no form that is known"),
    "another world": (megatron_log(TIMES, {"world_size": "32"}), "32 chips, --cluster h100:16"),
    "no division": (
        megatron_log(TIMES, {"tensor_model_parallel_size": "3"}),
        "does not divide 16 chips",
    ),
    "words for a number": (megatron_log(TIMES, {"num_layers": "many"}), "num_layers=many"),
    "table of one size": (nccl_output({1024: 10.0}), "1 size in the table"),
    "broadcast": (
        nccl_output({2**n: 10.0 for n in range(10, 20)}, name="broadcast_perf"),
        "broadcast_perf is not read",
    ),
    "no batch": (titan_log([1.0, 7e3, 7e3], config='{"training": {"seq_len": 0}}'), "seq_len=0"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_logs_are_one_line(name: str, tmp_path: Path) -> None:
    text, words = BAD[name]
    with pytest.raises(ConfigError, match=words) as caught:
        run_of(text, tmp_path, Given(cluster="h100:16"))
    assert "\n" not in str(caught.value)


def test_directories(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(
        ConfigError, match=r"a directory without runs/<id>/stdout\.log, so no study"
    ):
        read_results([tmp_path / "other"], Given())
    with pytest.raises(ConfigError, match="cannot be read"):
        read_results([tmp_path / "absent.log"], Given())


def test_a_study_gives_its_runs(tmp_path: Path) -> None:
    failed = megatron_log([], {"micro_batch_size": "4"}, max_allocated_mb=())
    logs = {
        "a": {"stdout.log": megatron_log([42_000, 9_100, *[8_600] * 8]), "stderr.log": "a warning"},
        "b": {"stdout.log": "", "stderr.log": titan_log([1.0, 7e3, *[7e3] * 6])},
        "c": {
            "stdout.log": failed,
            "stderr.log": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        },
        "d": {"stdout.log": "nothing of ours"},
        "e": {"stdout.log": failed},
    }
    (tmp_path / "study.yaml").write_text("")
    for name, files in logs.items():
        (tmp_path / "runs" / name).mkdir(parents=True)
        for file, text in files.items():
            (tmp_path / "runs" / name / file).write_text(text)
    found = read_results([tmp_path], Given(cluster="h100"))
    by_name = {run.case.source: run for run in found.runs}
    assert set(by_name) == {"a", "b", "c"}
    assert by_name["a"].step_s == pytest.approx(8.6)
    assert by_name["c"].fitted is False and by_name["c"].step_s is None
    assert by_name["c"].case.layout.mbs == 4
    assert (by_name["a"].case.machines.num_chips, by_name["b"].case.machines.num_chips) == (16, 8)
    assert [line.partition(":")[0] for line in found.left_out] == ["d", "e"]
    assert "stands on 0 steps behind the warm-up" in found.left_out[1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (megatron_log([8600.0]), "stands on 0 steps behind the warm-up"),
        (megatron_log([8600.0] * 6), "stands on 4 steps behind the warm-up"),
        (megatron_log([860.0] * 9), "above 100 %"),
    ],
)
def test_a_log_that_does_not_count_is_left_out(text: str, words: str, tmp_path: Path) -> None:
    """8e9 * 6 FLOPs of 128 * 8192 tokens are 50e15; 16 x 989 TFLOPS need 3.2 s for them."""
    (tmp_path / "short.log").write_text(text)
    (tmp_path / "good.log").write_text(megatron_log(TIMES))
    paths = [tmp_path / "short.log", tmp_path / "good.log"]
    found = read_results(paths, Given(cluster="h100:16"))
    assert [run.step_s for run in found.runs] == [pytest.approx(8.6)]
    [line] = found.left_out
    assert line.startswith("short.log: ") and words in line
    with pytest.raises(ConfigError, match=words):
        calibrate(paths[:1], cluster="h100:16")


def test_logs_older_than_their_configuration_are_left_out(tmp_path: Path) -> None:
    for name, age_s in (("fresh", 0), ("stale", 7200)):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(megatron_log(TIMES))
        (folder / "run.yaml").write_text("")
        at = (folder / "run.yaml").stat().st_mtime - age_s
        os.utime(folder / "stdout.log", (at, at))
    found = read_results([tmp_path], Given(cluster="h100:16"))
    assert [run.case.source for run in found.runs] == ["fresh"]
    assert found.left_out == (
        "stale: its log is older than its configuration (run.yaml) by 2.0 hours: it is of another"
        " run",
    )


def test_the_device_must_be_the_clusters(tmp_path: Path) -> None:
    path = tmp_path / "all_reduce.txt"
    path.write_text(nccl_output({size: 40.0 + size / 3e5 for size in SIZES}))
    assert read_results([path], Given()).chip == "h100"
    assert math.isfinite(read_results([path], Given()).links[0].bytes_per_s)
    with pytest.raises(ConfigError, match="ran on NVIDIA H100"):
        read_results([path], Given(cluster="b200:8"))
    with pytest.raises(ConfigError, match="two benchmarks"):
        read_results([path, path], Given())


TEXTS = (
    megatron_log(TIMES),
    nemo_log([9.0, 8.0, 8.0, 8.0]),
    titan_log([812.0, 7e3, 7e3, 7e3]),
    nccl_output(dict.fromkeys(SIZES, 900.0)),
)
JUNK = st.sampled_from(
    [
        "",
        "0",
        "-1",
        "9" * 30,
        "1.2.3",
        "nan",
        "None",
        "True",
        "{",
        "}",
        "'",
        "=",
        " ",
        "1e999",
        "\x1b[31m",
        "[",
        "|",
        ":",
    ]
)


@given(
    text=st.sampled_from(TEXTS),
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 12), JUNK), max_size=6),
)
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_is_read_or_refused(
    tmp_path: Path, text: str, edits: list[tuple[int, int, str]]
) -> None:
    for at, length, junk in edits:
        start = at % len(text)
        text = text[:start] + junk + text[start + length :]
    path = tmp_path / "damaged.log"
    path.write_text(text, encoding="utf-8")
    try:
        found = read_results(
            [path],
            Given(
                cluster="h100:8",
                model="llama3-8b",
                seq_len=8192,
                gbs=128,
                layout="mbs=1",
                stack="megatron",
            ),
        )
    except ConfigError as error:
        assert "\n" not in str(error)
    else:
        assert all(run.step_s is None or 0 < run.step_s < math.inf for run in found.runs)
        assert all(0 < rates.bytes_per_s < math.inf for rates in found.links)
