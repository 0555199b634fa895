"""What every software is held to, whichever package its folder is in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.software.examples import training_plan
from tests.software.frameworks import rebuilt

from meshwright.search.rules.software import stack_rules
from meshwright.software.beside import Beside
from meshwright.software.contract import Exported, ExportTarget, Imported, export_plan, import_text
from meshwright.software.folders import Software
from meshwright.software.log_reader import read_log
from meshwright.software.plan import TrainingPlan, completed
from meshwright.software.registry import find_source, find_target
from meshwright.software.settings import TrainingSettings
from meshwright.values.errors import ConfigError
from meshwright.values.stack import find_stack
from meshwright.values.stack_files import StackEntry

LAYOUTS = ("tp=2,pp=2,mbs=1", "tp=2,mbs=1,sharding=zero3", "mbs=1,sharding=zero3")
"""Of the simple plan; a software must have words for one of them."""
TOKENIZER = TrainingSettings(tokenizer="/models/llama3")
"""Some programs start with no other."""


def check_stack(entry: StackEntry) -> None:
    """A stack says only what differs, each figure with a source; what it searches it accepts."""
    stack = find_stack(entry.name)
    basis = find_stack(entry.builds_on) if entry.builds_on else None
    for name in entry.figures:
        assert entry.sources[name].strip()
        default = type(stack).__dataclass_fields__[name].default
        like = default if basis is None else getattr(basis, name)
        assert getattr(stack, name) != like, f"{entry.name}: {name} is what it would inherit"
    rules = stack_rules(stack)
    accepted = {*rules.shardings, *rules.shardings_without_pp}
    assert accepted and set(rules.searched_shardings) <= accepted
    assert set(rules.searched_schedules) <= set(rules.schedules)
    modules = {module for modules in rules.searched_modules for module in modules}
    assert modules <= set(rules.recompute_modules)


def check_exports(software: Software) -> None:
    """Each target writes a simple plan; a file of it that is read back says the same."""
    for target in software.targets():
        assert find_target(target.name) is target
        plan, exported = simple_export(target)
        assert exported.target == target.name
        assert exported.command or exported.files
        for found in read_back(exported, software, plan):
            read = completed(rebuilt(found, plan))
            assert read.layout == completed(plan).layout
            assert replace(read.model, name=plan.model.name) == plan.model


def check_read_back(software: Software) -> None:
    """A software with a reader of files recognises what one of its targets writes."""
    names = {source.name for source in software.sources()}
    recognised = {
        found.source
        for plan, exported in map(simple_export, software.targets())
        for found in read_back(exported, software, plan)
    }
    assert names == recognised


def check_logs(software: Software) -> None:
    """Each form reads its own line of a step, and no other form claims that line."""
    for form in software.logs():
        assert any(mark in form.sample for mark in form.marks)
        reading = read_log(form.sample)
        assert reading is not None
        assert (reading.framework, reading.num_reports) == (form.framework, 1)


def check_training(software: Software) -> None:
    """What a job starts is something that is exported, or the embedded trainer."""
    names = {target.name for target in software.targets()} or {software.name}
    for row in software.training:
        assert row.name in names
        assert len(row.source.split()) >= 1
        assert not row.stop or any("{limit}" in word for word in row.stop)


def simple_export(target: ExportTarget) -> tuple[TrainingPlan, Exported]:
    """Write Llama 3 8B on 64 chips by the first layout that the target has words for."""
    stack = target.stacks[0] if target.stacks else "megatron"
    refused = []
    for layout in LAYOUTS:
        try:
            plan = training_plan(layout=layout, stack=stack, settings=TOKENIZER)
            return plan, export_plan(plan, target=target)
        except ConfigError as error:
            refused.append(str(error))
    raise AssertionError(f"{target.name} has no words for any of {LAYOUTS}: {refused}")


def read_back(
    exported: Exported, software: Software, plan: TrainingPlan | None = None
) -> Iterator[Imported]:
    """Yield what each file says that is of one of the software's own kinds, beside the others of
    the export; what such files leave to flags is the plan's."""
    own = software.sources()
    beside = Beside(files={file.name: file.text for file in exported.files})
    if plan is not None:
        seq_len, mbs = plan.work.seq_len, plan.layout.mbs
        beside = replace(beside, model=plan.model, seq_len=seq_len, mbs=mbs)
    for file in exported.files:
        try:
            source = find_source(file.name, file.text)
        except ConfigError:
            continue
        if source in own:
            yield import_text(file.text, source=source, beside=beside)
