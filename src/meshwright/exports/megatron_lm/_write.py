"""A plan as the command line of Megatron-LM."""

from __future__ import annotations

from typing import Any

from meshwright.exports.exported import Exported, ExportedFile, TrainedLayers
from meshwright.exports.mcore.layout import tp_overlap
from meshwright.exports.megatron_lm._environment import environment
from meshwright.exports.megatron_lm._layout import write_layout
from meshwright.exports.megatron_lm._model import program_of, write_model
from meshwright.exports.megatron_lm._pipeline import read_chunks, write_pipeline
from meshwright.exports.megatron_lm._script import script_text
from meshwright.exports.megatron_lm._tables import NAME, Words, bound_flags
from meshwright.exports.megatron_lm._training import write_training
from meshwright.exports.plan import TrainingPlan

__all__ = ["split_words", "trained_layers", "write"]


def write(plan: TrainingPlan) -> Exported:
    """Return the arguments, the environment and a script."""
    words = Words(plan.megatron_version)
    program = program_of(plan.model, words.version)
    for bound in bound_flags():
        if (values := bound.words(_at(plan, bound.field))) is not None:
            words.add(bound.group, bound.flag, *values)
    write_model(words, plan)
    write_pipeline(words, model=plan.model, layout=plan.layout)
    write_layout(words, plan)
    write_training(words, plan)
    variables, extra = environment(plan), plan.settings.extra
    per_node = min(plan.pool.node.chips_per_node, plan.pool.num_chips)
    nodes = -(-plan.pool.num_chips // per_node)
    text = script_text(
        words, program=program, environment=variables, extra=extra, chips=per_node, nodes=nodes
    )
    entries = (entry for entries in words.groups.values() for entry in entries)
    return Exported(
        target=NAME,
        files=(ExportedFile(name="train.sh", text=text, executable=True),),
        command=(program, *(word for entry in entries for word in entry), *extra),
        environment=variables,
        notes=_notes(plan),
    )


def _at(plan: TrainingPlan, path: str) -> Any:
    """Return the field of a path, or None where a part on the way is None."""
    value: Any = plan
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def _notes(plan: TrainingPlan) -> tuple[str, ...]:
    notes = []
    if plan.model.family != "decoder" and plan.settings.tokenizer_kind == "null":
        notes.append(
            "T5 and BERT mask words of their tokenizer: give tokenizer_kind=bert-wordpiece,"
            " vocab_file and data before the start"
        )
    if plan.model.hybrid is not None:
        notes.append(
            "a plan knows how many layers of each kind there are, not their order: the pattern"
            " spreads them evenly"
        )
    if tp_overlap(plan):
        notes.append(
            "--tp-comm-overlap needs Transformer Engine's user buffers; leave it out where they"
            " can't be made"
        )
    return tuple(notes)


def split_words(command: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the words behind each flag; the last of a flag that is given twice counts, as in
    argparse."""
    args: dict[str, tuple[str, ...]] = {}
    flag = ""
    for word in command:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            args[flag] = (value,) if equals else ()
        elif flag:
            args[flag] = (*args[flag], word)
    return args


def trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    """Return the layers that the written command line trains."""
    return read_chunks(split_words(exported.command[1:]))
