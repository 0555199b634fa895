from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import pytest
from tests.software.examples import training_plan

from meshwright.software.contract import (
    Exported,
    ExportTarget,
    Imported,
    ImportSource,
    TrainedLayers,
    export_plan,
    import_text,
)
from meshwright.software.plan import TrainingPlan
from meshwright.software.settings import TrainingSettings
from meshwright.software.split import read_split_text, split_text
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.layout import Layout


def read_all(values: Any) -> None:
    """Look at every field, the nested ones too."""
    kinds = ("model", "work", "layout", "settings", "details", "moe", "mla", "mamba", "hybrid")
    plainly = values._values
    for field in fields(plainly):
        value = getattr(values, field.name)
        if field.name in kinds and is_dataclass(getattr(plainly, field.name)):
            read_all(value)


def target(
    write: Callable[[TrainingPlan], Any] = read_all,
    chunks: tuple[int, ...] = (16, 16),
    mtp: int = 0,
    **more: Any,
) -> ExportTarget:
    def written(plan: TrainingPlan) -> Exported:
        write(plan)
        return Exported(target="example", files=(), command=("train.py",))

    layers = TrainedLayers(chunks=chunks, mtp=mtp)
    return ExportTarget(
        name="example",
        title="Example",
        versions="1",
        write=written,
        trained_layers=lambda plan, export: layers,
        **more,
    )


def test_a_target_that_looks_at_everything_is_heard() -> None:
    assert export_plan(training_plan(), target=target()).command == ("train.py",)


def test_what_a_target_does_not_look_at_is_refused_by_name() -> None:
    def all_but_clipping(plan: TrainingPlan) -> None:
        read_all(replace_hidden(plan, "clip_gradient"))

    plan = training_plan(settings=TrainingSettings(clip_gradient=0.5))
    with pytest.raises(
        ConfigError,
        match=r"example: has no place for settings.clip_gradient=0.5; --leave-out clip_gradient",
    ):
        export_plan(plan, target=target(all_but_clipping))
    export_plan(
        training_plan(), target=target(all_but_clipping)
    )  # a default that nobody set may be left to the program


def replace_hidden(plan: Any, hidden: str) -> Any:
    """Return a stand-in of which one setting is never looked at."""

    class Without:
        _values = plan._values

        def __getattr__(self, name: str) -> Any:
            return Settings() if name == "settings" else getattr(plan, name)

    class Settings:
        _values = plan._values.settings

        def __getattr__(self, name: str) -> Any:
            return None if name == hidden else getattr(plan.settings, name)

    return Without()


def test_extra_words_need_a_target_that_appends_them() -> None:
    def nothing_extra(plan: TrainingPlan) -> None:
        read_all(replace_hidden(plan, "extra"))

    plan = training_plan(settings=TrainingSettings(extra=("--foo",)))
    with pytest.raises(ConfigError, match=r"settings\.extra"):
        export_plan(plan, target=target(nothing_extra))
    assert export_plan(plan, target=target(nothing_extra, takes_extra=True)).target == "example"


@pytest.mark.parametrize(
    ("chunks", "mtp", "message"),
    [
        ((16, 14), 0, r"would train 16\+14 layers, the model has 32"),
        (
            (16, 16),
            1,
            (
                r"would train 16\+16 \(and 1 of multi-token prediction\) layers, the model has 32"
                r" \(and 0\)"
            ),
        ),
        ((32,), 0, "has 1 stages or chunks, the plan pp=2, vpp=1"),
        ((15, 17), 0, r"the written stages have 15\+17 layers, the plan's 16\+16"),
    ],
)
def test_layers_that_would_not_be_trained_are_an_error(
    chunks: tuple[int, ...], mtp: int, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        export_plan(training_plan(), target=target(chunks=chunks, mtp=mtp))


def test_interleaved_chunks_are_held_against_the_stages() -> None:
    # chunks of a 2 x 2 pipeline in model order: stage 0 holds chunks 0 and 2, stage 1 holds 1 and 3
    plan = training_plan(layout="tp=2,pp=2,vpp=2,mbs=1,layers_per_stage=9+8+8+7")
    assert export_plan(plan, target=target(chunks=(9, 8, 8, 7))).target == "example"
    with pytest.raises(
        ConfigError, match=r"the written stages have 16\+16 layers, the plan's 17\+15"
    ):
        export_plan(plan, target=target(chunks=(8, 8, 8, 8)))


def test_a_stack_that_the_target_does_not_run_is_refused() -> None:
    with pytest.raises(
        ConfigError,
        match=(
            "priced for stack megatron, whose layouts it does not run; plan with --stack torchtitan"
        ),
    ):
        export_plan(training_plan(), target=target(stacks=("torchtitan",)))


def test_a_plan_is_held_to_the_rules() -> None:
    plan = training_plan()
    with pytest.raises(ConfigError, match="gbs=128 is not divisible by mbs"):
        replace(plan, layout=replace(plan.layout, mbs=3))
    with pytest.raises(
        ConfigError, match="gbs=64 of the workload and gbs=128 of the layout differ"
    ):
        replace(plan, work=replace(plan.work, gbs=64))


def test_cannot_express_names_the_nearest_plan() -> None:
    error = CannotExpress("torchtitan", "has no interleaving of an uneven split", nearest="vpp=1")
    assert (
        str(error)
        == "torchtitan: has no interleaving of an uneven split; the nearest plan that it takes:"
        " vpp=1"
    )


def test_words_without_a_place_are_handed_on() -> None:
    plan = training_plan(settings=TrainingSettings(extra=("--kept",)))
    found = Imported(
        source="words",
        model=plan.model,
        work=plan.work,
        layout={},
        settings=plan.settings,
        passed_through=("--a", "1", "--b", "1"),
    )
    source = ImportSource(
        name="words", title="words", matches=lambda name, text: True, read=lambda text: found
    )
    assert import_text("", source=source).settings.extra == ("--kept", "--a", "1", "--b", "1")


def test_the_batch_of_the_workload_stands_in_the_layout_too() -> None:
    plan = training_plan()
    found = Imported(source="words", model=plan.model, work=plan.work, layout={"tp": 2})
    source = ImportSource(
        name="words", title="words", matches=lambda name, text: True, read=lambda text: found
    )
    assert import_text("", source=source).layout == {"gbs": 128, "tp": 2}
    other = replace(source, read=lambda text: replace(found, layout={"gbs": 64}))
    assert import_text("", source=other).layout == {"gbs": 64}


def test_layouts_that_are_the_same_compare_equal() -> None:
    by_hand = training_plan(layout="tp=2,pp=2,etp=2,mbs=1,layers_per_stage=16+16").layout
    assert by_hand == training_plan(layout="tp=2,pp=2,mbs=1").layout
    assert isinstance(by_hand, Layout)


@pytest.mark.parametrize(
    "text", ["(t*99999|)*99999", "((t*9999|)*9999)*9999", "t*999999999", "(", "", "x|t"]
)
def test_a_pipeline_that_repeats_its_repeats_is_refused_before_it_is_written_out(text: str) -> None:
    with pytest.raises(ConfigError, match="--pipeline"):
        read_split_text(text, what="--pipeline")


def test_symbols_of_each_chunk() -> None:
    assert read_split_text("Et*3|(tt|)*2,m*2|L", what="--pipeline") == (
        "Ettt",
        "tt",
        "tt",
        "mm",
        "L",
    )
    assert split_text((3, 1, 2), 1) == "Et*3|t|t*2mL"
