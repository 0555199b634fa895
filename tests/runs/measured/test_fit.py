from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.runs.measured.examples import LLAMA, case_of

from meshwright.runs.measured.cells import read_truth
from meshwright.runs.measured.files import MeasuredRun, runs_of_table
from meshwright.runs.measured.fit import fit_runs, memory_problem, time_problem
from meshwright.runs.measured.predict import predict_rows
from meshwright.runs.measured.rows import Case
from meshwright.trust.calibration import Calibration, Fitted, LinkRates
from meshwright.trust.ridge import posterior, read_priors, slopes_of
from meshwright.values.errors import ConfigError

LAYOUTS = (
    {"tp": "1", "pp": "1", "num_gpus": "8", "gbs": "32"},
    {"tp": "2", "pp": "1", "num_gpus": "8", "gbs": "32"},
    {"tp": "4", "pp": "1", "num_gpus": "8", "gbs": "32"},
    {"tp": "8", "pp": "1", "num_gpus": "8", "gbs": "32"},
    {"tp": "2", "pp": "2", "num_gpus": "16", "gbs": "32"},
    {"tp": "8", "pp": "1", "num_gpus": "16", "gbs": "32", "mbs": "2"},
    {"tp": "1", "pp": "4", "num_gpus": "16", "gbs": "64"},
    {"tp": "4", "pp": "2", "num_gpus": "16", "gbs": "64", "recompute": "full"},
)


def cases(layouts: Sequence[Mapping[str, str]] = LAYOUTS) -> list[Case]:
    return [
        case_of({**LLAMA, "framework": "Megatron-LM no tp/p2p overlap"}, row_id=f"r{i}", **cells)
        for i, cells in enumerate(layouts)
    ]


def perturbed(
    cases: Sequence[Case], factors: Mapping[str, float], *, noise: float = 0.0
) -> list[MeasuredRun]:
    """Runs as a model with these factors would have them."""
    known = tuple(
        Fitted(name=name, value=value, prior_width=1.0, width=0.0)
        for name, value in factors.items()
    )
    truth = Calibration(chip="h100", stack=cases[0].stack_name, factors=known)
    found = predict_rows(replace(case, calibration=truth) for case in cases).predictions
    errors = np.exp(noise * np.random.default_rng(7).standard_normal(2 * len(found)))
    return [
        MeasuredRun(
            case=case,
            step_s=p.step_s * errors[2 * i],
            peak_bytes=p.peak_memory_bytes * errors[2 * i + 1],
            fitted=True,
        )
        for i, (case, p) in enumerate(zip(cases, found, strict=True))
    ]


def test_known_factors_are_recovered() -> None:
    found = fit_runs(
        perturbed(cases(), {"compute": 1.2, "tensor": 1.3, "activations": 1.3, "states": 0.9})
    ).calibration
    assert found.value("compute") == pytest.approx(1.2, rel=0.02)
    assert found.value("tensor") == pytest.approx(1.3, rel=0.08)
    assert found.value("activations") == pytest.approx(1.3, rel=0.08)
    assert found.value("states") == pytest.approx(0.9, rel=0.05)
    assert found.step_time is not None and found.step_time.left_out_frac is not None
    assert found.step_time.before_frac > 0.15
    assert found.step_time.left_out_frac < 0.02
    assert found.measured_frac("compute") > 0.9


def test_what_runs_do_not_tell_stays() -> None:
    found = fit_runs(perturbed(cases(LAYOUTS[:1]), {"compute": 1.2, "tensor": 2.0})).calibration
    assert (
        found.value("tensor")
        == found.value("context")
        == found.value("expert")
        == found.value("pipeline")
        == 1.0
    )
    assert "tensor" not in {factor.name for factor in found.factors}
    assert found.value("constant") == 1.0


def test_one_run_moves_the_estimate_part_of_the_way() -> None:
    [run] = perturbed(cases(LAYOUTS[1:2]), {"compute": 1.3, "tensor": 1.3})
    report = fit_runs([run])
    [time] = [line for line in report.runs if line.quantity == "step time"]
    assert time.before < time.after < 1.0
    taken = 1.0 - math.log(time.after) / math.log(time.before)
    priors = read_priors()
    share = 1.0 / (
        1.0 + (priors.step_time_noise / priors.widths["compute"]) ** 2
    )  # were the whole step compute
    assert 0.8 * share < taken < 1.2 * share
    assert 1.0 < report.calibration.value("tensor") < report.calibration.value("compute") < 1.3
    misses = report.calibration.step_time
    assert misses is not None and misses.left_out_frac is None and time.left_out is None
    assert misses.spread == pytest.approx(read_priors().step_time_noise)


def test_one_node_anchors_a_cluster() -> None:
    [node] = cases(({"tp": "2", "pp": "1", "num_gpus": "8", "gbs": "32"},))
    [cluster] = cases(({"tp": "2", "pp": "1", "num_gpus": "256", "gbs": "1024"},))
    calibration = fit_runs(perturbed([node], {"compute": 1.2, "activations": 1.4})).calibration
    [truth] = perturbed([cluster], {"compute": 1.2, "activations": 1.4})
    before, after = predict_rows([cluster, replace(cluster, calibration=calibration)]).predictions
    assert truth.step_s is not None and truth.peak_bytes is not None
    assert abs(math.log(after.step_s / truth.step_s)) < 0.5 * abs(
        math.log(before.step_s / truth.step_s)
    )
    assert abs(math.log(after.peak_memory_bytes / truth.peak_bytes)) < 0.5 * abs(
        math.log(before.peak_memory_bytes / truth.peak_bytes)
    )


@pytest.mark.slow
def test_a_run_left_out_is_one_that_the_fit_has_not_seen() -> None:
    runs = perturbed(cases(LAYOUTS[:4]), {"compute": 1.2, "tensor": 1.3}, noise=0.03)
    report = fit_runs(runs)
    [line] = [
        line
        for line in report.runs
        if line.quantity == "step time" and line.words == runs[2].words()
    ]
    alone = fit_runs([run for run in runs if run is not runs[2]]).calibration
    [prediction] = predict_rows([replace(runs[2].case, calibration=alone)]).predictions
    assert runs[2].step_s is not None
    assert line.left_out == pytest.approx(prediction.step_s / runs[2].step_s, rel=1e-4)


def test_a_slow_run_among_others_does_not_steer() -> None:
    runs = perturbed(cases(), {"compute": 1.1})
    slow = [replace(runs[0], step_s=3.0 * (runs[0].step_s or 0.0)), *runs[1:]]
    assert fit_runs(slow).calibration.value("compute") == pytest.approx(1.1, rel=0.04)


def test_a_run_that_failed_for_memory_is_a_bound() -> None:
    [case] = cases(({"tp": "4", "pp": "1", "num_gpus": "16", "gbs": "64", "mbs": "2"},))
    [prediction] = predict_rows([case]).predictions
    assert prediction.fits
    failed = fit_runs([MeasuredRun(case=case, fitted=False)]).calibration
    assert failed.value("activations") > 1.0
    assert failed.peak_memory is None
    assert fit_runs([MeasuredRun(case=case, fitted=True)]).calibration.factors == ()


@pytest.mark.parametrize(
    "cells",
    [
        {"tp": "4", "pp": "1", "num_gpus": "8", "gbs": "64", "mbs": "4"},
        {"tp": "1", "pp": "4", "num_gpus": "8", "gbs": "64", "mbs": "1"},
        {"tp": "4", "pp": "2", "num_gpus": "8", "gbs": "64", "mbs": "4"},
    ],
)
def test_a_bound_that_the_fit_keeps_has_told_something(cells: dict[str, str]) -> None:
    """A step that goes past the bound must not make the run count for nothing."""
    [case] = cases((cells,))
    [before] = predict_rows([case]).predictions
    calibration = fit_runs([MeasuredRun(case=case, fitted=False)]).calibration
    [after] = predict_rows([replace(case, calibration=calibration)]).predictions
    assert before.fits
    assert after.used_bytes > before.used_bytes
    assert after.used_bytes == pytest.approx(79.1 * 2**30, rel=0.06)


def test_links_go_in_first() -> None:
    slow = LinkRates(
        level="domain",
        name="nvlink4",
        bytes_per_s=1e11,
        latency_s=2e-6,
        setup_s=0.0,
        half_message_bytes=1e6,
        source="test",
    )
    runs = perturbed(cases(LAYOUTS[3:4]), {"compute": 1.0})
    with_link = fit_runs(runs, links=[slow], chip="h100").calibration
    assert with_link.links == (slow,)
    assert with_link.value("tensor") < fit_runs(runs).calibration.value("tensor")
    only = fit_runs([], links=[slow], chip="h100", stack="megatron").calibration
    assert (only.chip, only.stack, only.factors) == ("h100", "megatron", ())


def test_refusals() -> None:
    one, other = cases(LAYOUTS[:1])[0], case_of(LLAMA, gpu="B200", row_id="b")
    with pytest.raises(ConfigError, match="runs of 2 kinds"):
        fit_runs([MeasuredRun(case=one, step_s=1.0), MeasuredRun(case=other, step_s=1.0)])
    with pytest.raises(ConfigError, match="no run to calibrate on"):
        fit_runs([])
    with pytest.raises(ConfigError, match="links of b200"):
        fit_runs([MeasuredRun(case=one, step_s=1.0)], chip="b200")


def test_a_table_gives_runs_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    rows = (
        {**LLAMA, "row_id": "timed", "step_time_s": "10", "oom": "0"},
        {**LLAMA, "row_id": "rated", "tokens_per_s_per_gpu": "8192", "oom": "0"},
        {**LLAMA, "row_id": "blank"},
        {**LLAMA, "row_id": "broken", "tp": "3", "step_time_s": "10"},
        {**LLAMA, "row_id": "failed", "oom": "1"},
    )
    names = list(dict.fromkeys(name for row in rows for name in row))
    path.write_text(
        "\n".join(
            [",".join(names), *(",".join(row.get(name, "") for name in names) for row in rows)]
        )
    )
    found = runs_of_table(read_truth(path), stack="megatron-no-overlap")
    assert [run.case.row_id for run in found.runs] == ["timed", "rated", "failed"]
    assert found.runs[1].step_s == pytest.approx(128 * 8192 / 8192 / 64)
    assert [run.fitted for run in found.runs] == [True, True, False]
    assert {run.case.stack_name for run in found.runs} == {"megatron-no-overlap"}
    assert [line.split(":")[0] for line in found.left_out] == ["mine blank", "mine broken"]


TABLES = ("vtrain", "llm_foundry")
LEAST, MOST, DRAWS, ROWS = 9, 12, 2, 3


def studies(folder: Path) -> list[list[MeasuredRun]]:
    """All runs of one table with one model and one chip, where there are enough; of many, some."""
    groups: dict[tuple[str, str, str], list[MeasuredRun]] = defaultdict(list)
    for table in TABLES:
        for run in runs_of_table(read_truth(folder / f"{table}.csv")).runs:
            if run.step_s is not None:
                groups[table, run.case.model.name, run.case.machines.nodes[0].chip.name].append(run)
    kept = [runs for runs in groups.values() if len(runs) >= LEAST]
    return [
        [runs[i] for i in np.unique(np.linspace(0, len(runs) - 1, MOST).astype(int))]
        for runs in kept
    ]


def held_out(runs: Sequence[MeasuredRun]) -> tuple[float, float]:
    """Mean error of the other runs before and after a fit on three at random."""
    kind = Calibration(chip=runs[0].case.machines.nodes[0].chip.name, stack=runs[0].case.stack_name)
    problem = time_problem(runs, kind, read_priors())
    slopes, rows, chance = slopes_of(problem), np.arange(len(runs)), np.random.default_rng(1)
    errors = []
    for _ in range(DRAWS):
        rest = np.setdiff1d(rows, chosen := chance.choice(rows, ROWS, replace=False))
        logs = (np.zeros(len(problem.names)), posterior(problem, chosen, slopes).logs)
        errors.append(
            [
                np.abs(np.exp(problem.predict(found, rest) - problem.measured[rest]) - 1).mean()
                for found in logs
            ]
        )
    before, after = np.mean(errors, axis=0)
    return float(before), float(after)


@pytest.mark.slow
def test_three_runs_of_a_study_predict_its_others(truth_dir: Path) -> None:
    """Published studies, each with one model, chip and software: the rows that are scored were not
    fitted."""
    before, after = np.mean([held_out(runs) for runs in studies(truth_dir)], axis=0)
    assert after < 0.93 * before


def test_memory_problem_takes_bounds_by_what_the_chip_shows() -> None:
    [case] = cases(LAYOUTS[:1])
    problem = memory_problem(
        [MeasuredRun(case=case, fitted=False)],
        Calibration(chip="h100", stack=case.stack_name),
        read_priors(),
    )
    assert problem.bound.tolist() == [1]
    assert math.exp(problem.measured[0]) == pytest.approx(case.machines.nodes[0].chip.usable_bytes)
