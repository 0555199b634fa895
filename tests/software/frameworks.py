"""What the tests of all targets share: golden texts, random plans, plans over all families, round
trips, the programs' own loaders."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume
from hypothesis import strategies as st
from tests.software.examples import training_plan

from meshwright.search.rules.check import complete_layout
from meshwright.search.rules.rule import RuleCase
from meshwright.search.started import started_stack
from meshwright.software.contract import (
    Exported,
    ExportTarget,
    Imported,
    ImportSource,
    export_plan,
    import_text,
)
from meshwright.software.plan import TrainingPlan, canonical_layout, completed
from meshwright.software.settings import Dataset, TrainingSettings
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.stack import find_stack

_GOLDEN = Path(__file__).parent / "golden"


def check_golden(exported: Exported, case: str) -> None:
    """Hold an export against the text that was read and accepted."""
    parts = [f"command: {' '.join(exported.command)}\nruns on: {exported.runs_on}\n"]
    parts += [f"export {var.name}={var.value}  # {var.why}\n" for var in exported.environment]
    parts += [f"note: {note}\n" for note in exported.notes]
    parts += [f"==== {file.name}\n{file.text}" for file in exported.files]
    text, golden = "".join(parts), _GOLDEN / exported.target / f"{case}.txt"
    if os.environ.get("MESHWRIGHT_ACCEPT"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), (
        "read the difference; to accept it, run pytest once with MESHWRIGHT_ACCEPT=1"
    )


def rebuilt(found: Imported, plan: TrainingPlan) -> TrainingPlan:
    """Return the plan that an import describes, on the chips of the exported one."""
    work = replace(found.work, gbs=plan.layout.gbs if found.work.gbs is None else found.work.gbs)
    stack = find_stack(found.stack)
    if found.start is not None:
        stack = started_stack(stack, found.start)
    chips = plan.cluster.num_chips
    case = RuleCase(model=found.model, work=work, num_chips=chips, stack=stack)
    layout = complete_layout(found.layout, case)
    return TrainingPlan(
        model=found.model,
        cluster=plan.cluster,
        work=replace(work, gbs=layout.gbs),
        stack=stack,
        layout=canonical_layout(layout, found.model),
        settings=found.settings,
        details=found.details,
        megatron_version=plan.megatron_version,
        start=found.start,
    )


def check_round_trip(
    plan: TrainingPlan, *, target: ExportTarget, source: ImportSource, file: int = 0
) -> None:
    """Demand that what is read back is the plan, and that it is written again as it was."""
    exported = export_plan(plan, target=target)
    text = exported.files[file].text
    assert source.matches(exported.files[file].name, text)
    found = import_text(text, source=source)
    read = rebuilt(found, plan)
    again = completed(read)
    wanted = completed(plan)
    assert replace(again.model, name=wanted.model.name) == wanted.model
    assert again.layout == wanted.layout
    assert again.work == replace(wanted.work, attention=again.work.attention)
    assert again.settings == wanted.settings
    assert found.warnings == ()
    assert found.passed_through == ()
    assert export_plan(replace(read, stack=plan.stack), target=target).files[file].text == text


@st.composite
def plans(
    draw: st.DrawFn,
    /,
    *,
    models: Sequence[str],
    stack: str,
    shardings: Sequence[str],
    recomputes: Sequence[str],
    data: tuple[Dataset, ...] = (),
    **given: Any,
) -> TrainingPlan:
    """Return a plan that keeps the rules, with an even or an uneven pipeline."""
    tp, cp, pp = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4, 8), (1, 2, 4), (1, 2, 4)))
    vpp = draw(st.sampled_from((1, 2))) if pp > 1 else 1
    ep = draw(st.sampled_from((1, 2, 8)))
    mbs, dp = draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 2, 8, 16)))
    words = [
        f"tp={tp},cp={cp},pp={pp},vpp={vpp},ep={ep},dp={dp},mbs={mbs}",
        f"sharding={draw(st.sampled_from(shardings))}",
    ]
    recompute = draw(st.sampled_from(recomputes))
    words += [recompute] if recompute else []
    words += [f"etp={draw(st.sampled_from((1, tp)))}"] if ep > 1 else []
    words += [f"sp={int(draw(st.booleans()))}"] if tp > 1 else []
    settings = draw(
        st.builds(
            TrainingSettings,
            train_steps=st.sampled_from((10, 5000)),
            learning_rate=st.sampled_from((None, 3e-4)),
            clip_gradient=st.sampled_from((None, 0.5)),
            adam_beta2=st.sampled_from((None, 0.98)),
            weight_decay=st.sampled_from((None, 0.01)),
            seed=st.sampled_from((None, 7)),
            save_dir=st.sampled_from((None, "/checkpoints/run")),
            decay_style=st.sampled_from((None, "linear")),
            data=st.just(data),
        )
    )
    chips, gbs = tp * cp * pp * dp, mbs * dp * pp * draw(st.sampled_from((2, 4)))
    try:
        plan = training_plan(
            draw(st.sampled_from(models)),
            f"h100:{chips}",
            ",".join(words),
            stack=stack,
            gbs=gbs,
            seq_len=draw(st.sampled_from((2048, 8192))),
            settings=settings,
            **given,
        )
        if pp > 1 and draw(st.booleans()):
            layers = plan.model.total_layers // (pp * vpp)
            split = [layers] * (pp * vpp)
            split[0], split[-1] = layers + 1, plan.model.total_layers - layers * (pp * vpp - 1) - 1
            plan = replace(plan, layout=replace(plan.layout, layers_per_stage=tuple(split)))
    except ConfigError:
        assume(False)
    return plan


def expressible(plan: TrainingPlan, target: ExportTarget) -> Exported:
    """Return the export; the case is left out where the target has no words for it."""
    try:
        return export_plan(plan, target=target)
    except CannotExpress:
        assume(False)
        raise


def write_exports(
    plans_: Iterable[tuple[str, TrainingPlan]], target: ExportTarget, folder: Path
) -> int:
    """Write each plan that the target has words for into a folder of its own; return how many."""
    count = 0
    for name, plan in plans_:
        try:
            exported = export_plan(plan, target=target)
        except CannotExpress:
            continue
        count += 1
        for file in exported.files:
            path = folder / name / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(file.text, encoding="utf-8")
        (folder / name / "plan.txt").write_text(
            f"{plan.cluster.num_chips} {plan.model.num_layers} {plan.model.hidden}"
            f" {plan.layout.words()}\n{' '.join(exported.command)}\n",
            encoding="utf-8",
        )
    return count


def run_loader(script: str, folder: Path, *, variable: str, what: str) -> None:
    """Run a program's own loader over the exports, in the Python that an environment variable
    names."""
    python = os.environ.get(variable)
    if not python:
        pytest.skip(f"{variable} names no Python with {what}")
    path = Path(__file__).parent / "loaders" / script
    done = subprocess.run(
        [python, str(path), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


_MEGATRON_LAYOUTS = {
    "llama3-8b": (
        "tp=2,pp=2,mbs=1",
        "mbs=1,recompute=full",
        "tp=4,cp=2,mbs=1",
        "pp=4,vpp=2,mbs=1",
        "mbs=1,sharding=zero3",
    ),
    "llama3-70b": (
        "tp=8,pp=4,mbs=1",
        "tp=8,pp=4,mbs=1,layers_per_stage=21+20+20+19",
        "tp=4,pp=8,vpp=5,mbs=1",
    ),
    "llama3.1-8b": (
        "cp=8,mbs=1,recompute=full",
        "tp=2,cp=4,mbs=1,recompute=selective,recompute_modules=layernorm",
    ),
    "llama3.1-405b": ("tp=8,pp=8,mbs=1,layers_per_stage=16+16+16+16+16+16+16+14",),
    "llama2-7b": (
        "tp=1,mbs=2",
        "tp=2,mbs=1,sp=0",
        "mbs=1,sharding=none,recompute=full,recompute_method=block,recompute_layers=4",
    ),
    "llama2-70b": ("tp=8,pp=2,mbs=1", "tp=4,pp=4,vpp=2,mbs=1"),
    "mistral-7b-v0.3": ("tp=2,mbs=1", "tp=1,pp=2,mbs=1"),
    "mixtral-8x7b": ("ep=8,mbs=1", "tp=2,ep=8,etp=1,pp=4,vpp=2,mbs=1", "tp=2,ep=4,mbs=1"),
    "mixtral-8x22b": ("tp=2,ep=8,etp=1,pp=4,mbs=1",),
    "qwen2-7b": ("tp=2,mbs=1", "tp=4,pp=2,mbs=1"),
    "qwen2-72b": ("tp=8,pp=4,mbs=1",),
    "qwen3-8b": ("tp=2,mbs=1", "pp=2,mbs=1,layers_per_stage=19+17"),
    "qwen3-30b-a3b": (
        "ep=8,mbs=1",
        "tp=2,ep=8,etp=1,mbs=1,recompute=selective,recompute_modules=moe_act",
        "ep=8,pp=2,mbs=1",
    ),
    "qwen3-235b-a22b": ("tp=4,ep=8,etp=1,pp=2,mbs=1",),
    "gpt3-5b": (
        "tp=2,mbs=1",
        "tp=2,mbs=1,recompute=selective,recompute_modules=core_attn",
        "mbs=1,sharding=none",
    ),
    "gpt3-20b": ("tp=4,pp=4,mbs=1", "tp=2,pp=4,mbs=1,recompute=full"),
    "gpt3-175b": ("tp=8,pp=8,mbs=1", "tp=8,pp=8,vpp=2,mbs=1"),
    "deepseek-v2-lite": (
        "ep=8,mbs=1",
        "tp=2,ep=8,etp=1,mbs=1,recompute=selective,recompute_modules=mla_up_proj",
    ),
    "deepseek-v2": ("ep=16,pp=4,mbs=1",),
    "deepseek-v3": ("tp=2,ep=16,etp=1,pp=4,mbs=1,layers_per_stage=16+16+16+13",),
    "nemotron4-15b": ("tp=4,mbs=1", "tp=2,pp=2,mbs=1"),
    "nemotron4-340b": ("tp=8,pp=8,mbs=1",),
    "gemma-7b": ("tp=2,mbs=1",),
    "pythia-6.9b": ("tp=2,mbs=1",),
    "yi-34b": ("tp=4,pp=2,mbs=1", "tp=8,mbs=1,recompute=full"),
}


def megatron_plans(stack: str, **given: Any) -> list[tuple[str, TrainingPlan]]:
    """Plans over families and sizes for the loaders of Megatron's kin."""
    return [
        (
            f"{model.replace('.', '_')}-{number}",
            training_plan(
                model, "h100:64", layout, **{"stack": stack, "gbs": 3840, "seq_len": 2048, **given}
            ),
        )
        for model, layouts in _MEGATRON_LAYOUTS.items()
        for number, layout in enumerate(layouts)
    ]
