from __future__ import annotations

import csv
import os
from pathlib import Path
from typing import Any

import pytest
from tests.compat.nemo2.stand_ins import llama_recipe, lora

from meshwright.compat.nemo2.grid import generate_grid, get_grid_results
from meshwright.values.errors import ConfigError
from meshwright.values.text import read_yaml, write_yaml

GRID: dict[str, list[Any]] = {
    "model.peft.lora_tuning.adapter_dim": [32, 64],
    "model.optim.lr": [1e-4, 5e-4],
}
BASE: dict[str, Any] = {
    "trainer": {"max_steps": 1000},
    "exp_manager": {"explicit_log_dir": "elsewhere"},
    "model": {"peft": {"lora_tuning": {"adapter_dim": 8}}, "optim": {"lr": 1e-3}},
}


def test_every_combination_is_a_configuration_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "base.yaml"
    file.write_text(write_yaml(BASE))
    found = generate_grid(
        str(file),
        param_grid=GRID,
        base_results_dir=tmp_path,
        model_name="llama",
        max_steps_per_run=20,
    )
    pairs = {
        name: (
            values["model"]["peft"]["lora_tuning"]["adapter_dim"],
            values["model"]["optim"]["lr"],
        )
        for name, values in found.items()
    }
    assert pairs == {
        f"llama_grid_search_{i}": pair
        for i, pair in enumerate([(32, 1e-4), (32, 5e-4), (64, 1e-4), (64, 5e-4)])
    }
    for name, values in found.items():
        assert values["trainer"]["max_steps"] == 20
        assert values["exp_manager"]["explicit_log_dir"] == str(
            tmp_path / "ft_logs" / name / "results"
        )
        assert (
            read_yaml((tmp_path / "candidate_configs" / f"{name}.yaml").read_text(), what=name)
            == values
        )


def test_a_recipe_object_comes_back_as_objects(tmp_path: Path) -> None:
    found = generate_grid(
        llama_recipe(peft=lora(8)), param_grid={"peft.dim": [8, 16]}, base_results_dir=tmp_path
    )
    assert [config.peft.dim for config in found.values()] == [8, 16]
    assert found["model_grid_search_1"].log.log_dir == str(
        tmp_path / "ft_logs" / "model_grid_search_1" / "results"
    )
    assert not (tmp_path / "candidate_configs").exists()


def write_losses(folder: Path, losses: list[float], *, sets: int = 1) -> None:
    """What NeMo 1.x leaves: steps of 1.5 s behind three of warm-up, and a validation loss of each
    set every tenth step."""
    proto = pytest.importorskip(
        "tensorboardX.proto.event_pb2", reason="the extra tensorboard is absent"
    )
    folder.mkdir(parents=True)
    with (folder / "events.out.tfevents.1.host.1.0").open("wb") as file:
        for step in range(10 * len(losses)):
            event = proto.Event(step=step + 1)
            event.summary.value.add(
                tag="train_step_timing in s", simple_value=9.0 if step < 3 else 1.5
            )
            event.summary.value.add(tag="reduced_train_loss", simple_value=3.0)
            for number in range(sets if step % 10 == 9 else 0):
                event.summary.value.add(
                    tag=f"validation_loss_dataloader{number}",
                    simple_value=losses[step // 10] + number,
                )
            record = event.SerializeToString()
            file.write(len(record).to_bytes(8, "little") + bytes(4) + record + bytes(4))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as handle:
        return list(csv.DictReader(handle))


def test_the_best_last_loss_comes_first_and_failures_are_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "ft_logs"
    write_losses(runs / "m_grid_search_0" / "results", [2.0, 1.75], sets=2)
    write_losses(runs / "m_grid_search_2" / "results", [2.5, 1.25], sets=2)
    write_losses(runs / "m_grid_search_22" / "results", [0.1])  # of another grid
    (runs / "m_grid_search_1").mkdir()
    (runs / "m_grid_search_1" / "job.err").write_text(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    get_grid_results(param_grid=GRID, base_results_dir=tmp_path, model_name="m")
    done = rows(tmp_path / "final_result" / "results.csv")
    assert [
        (row["Run"], row["validation_loss_0"], row["validation_loss_1"], row["total_steps"])
        for row in done
    ] == [
        ("m_grid_search_2", "1.25", "2.25", "20"),
        ("m_grid_search_0", "1.75", "2.75", "20"),
    ]
    assert (done[0]["model.peft.lora_tuning.adapter_dim"], done[0]["train_step_timing in s"]) == (
        "64",
        "1.5",
    )
    failed = {row["Run"]: row["Class"] for row in rows(tmp_path / "final_result" / "failed.csv")}
    assert failed == {"m_grid_search_1": "cuda_oom", "m_grid_search_3": "never_started"}
    assert "best loss 1.2500 (m_grid_search_2)" in capsys.readouterr().out


def test_what_was_cut_short_or_is_older_is_no_result(tmp_path: Path) -> None:
    """Ten of twenty steps have the lowest loss, and so has a log of before."""
    grid = {"model.optim.lr": [1e-4, 2e-4, 3e-4]}
    known = {"param_grid": grid, "base_results_dir": tmp_path}
    generate_grid(BASE, **known, max_steps_per_run=20)  # type: ignore[arg-type]
    runs = tmp_path / "ft_logs"
    write_losses(runs / "model_grid_search_0", [2.5, 2.0])
    write_losses(runs / "model_grid_search_1", [0.5])
    write_losses(runs / "model_grid_search_2", [0.7, 0.6])
    for file in (runs / "model_grid_search_2").iterdir():
        os.utime(file, (1e9, 1e9))
    generate_grid(BASE, **known, max_steps_per_run=20)  # type: ignore[arg-type]
    get_grid_results(**known)  # type: ignore[arg-type]
    [done] = rows(tmp_path / "final_result" / "results.csv")
    assert done["Run"] == "model_grid_search_0"
    first, second = rows(tmp_path / "final_result" / "failed.csv")
    assert (first["Class"], second["Class"]) == ("refused", "refused")
    assert "its log ends at step 10 of 20" in first["Message"]
    assert "older than its configuration" in second["Message"]


def test_a_loss_that_is_no_number_is_a_failure(tmp_path: Path) -> None:
    write_losses(tmp_path / "model_grid_search_0", [1.0, float("nan")])
    [result] = get_grid_results(param_grid={"a": [1]}, base_results_dir=tmp_path)
    assert result.failure is not None and result.failure[0] == "nan_loss"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            {"param_grid": {"model.optim.lrr": [1]}},
            "'lrr' is no known key of model.optim; did you mean 'lr'",
        ),
        ({"param_grid": {"model.opt.lr": [1]}}, "has no model.opt"),
        (
            {"param_grid": {"model.optim.lr": 1e-4}},
            "param_grid.model.optim.lr=0.0001: expected a list",
        ),
        ({"param_grid": {}}, "expected dotted keys"),
        ({"limit_search_runs": 3}, "4 combinations, more than limit_search_runs=3"),
        ({"base_config": "/nowhere.yaml"}, "/nowhere.yaml: No such file"),
        ({"base_config": 7}, "expected a YAML file, a mapping or a recipe"),
        ({"base_config": {"model": BASE["model"], "trainer": {}}}, "has neither exp_manager"),
    ],
)
def test_what_cannot_be(words: dict[str, Any], said: str, tmp_path: Path) -> None:
    given = {"base_config": BASE, "param_grid": GRID, **words}
    with pytest.raises(ConfigError) as caught:
        generate_grid(given.pop("base_config"), base_results_dir=tmp_path, **given)
    assert said in str(caught.value)
