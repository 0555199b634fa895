"""NeMo 1.x without its launcher: one configuration for NeMo's own pretraining script, run behind
torchrun or a job's ranks."""

from __future__ import annotations

from typing import Any

from meshwright.software.contract import Exported, ExportedFile, ExportTarget, TrainedLayers
from meshwright.software.megatron_lm.export import environment
from meshwright.software.nemo1.export import launcher_values, trained_by
from meshwright.software.plan import TrainingPlan
from meshwright.values.text import read_yaml, write_yaml

__all__ = ["NEMO1_SCRIPT"]

_NAME = "nemo1-script"
_SCRIPTS = "/opt/NeMo/examples/nlp/language_modeling"
"""Where NVIDIA's containers `nvcr.io/nvidia/nemo:23.05` to `24.09` have them."""
_PROGRAMS = {
    "decoder": "megatron_gpt_pretraining",
    "encoder": "megatron_bert_pretraining",
    "encoder-decoder": "megatron_t5_pretraining",
}
_LAUNCHER_WORDS = {
    "${data_dir}": "${oc.env:DATA_DIR,data}",
    "${training.run.results_dir}/results": "results",
}
"""Values that the launcher's own configuration holds, and what stands for them without it."""


def _write(plan: TrainingPlan) -> Exported:
    program = _PROGRAMS[plan.model.family]
    extra = [word.removeprefix("training.") for word in plan.settings.extra]
    values = {name: section for name, section in launcher_values(plan).items() if name != "run"}
    head = {"name": values["exp_manager"]["name"], "restore_from_path": None}
    comment = f"# Written by meshwright for {program}.py of NeMo 1.20 to 1.23 and 2.0.\n"
    text = comment + write_yaml({**head, **_without_launcher(values)})
    return Exported(
        target=_NAME,
        files=(ExportedFile(name="plan.yaml", text=text),),
        command=(f"{_SCRIPTS}/{program}.py", "--config-dir=.", "--config-name=plan", *extra),
        environment=environment(plan),
        notes=(
            "the script's place is that of NVIDIA's containers up to nemo:24.09",
            "the vocabulary is the tokenizer's; DATA_DIR is the folder that its files lie in",
        ),
    )


def _without_launcher(value: Any) -> Any:
    """Return a value with nothing in it that only the launcher could resolve."""
    if isinstance(value, dict):
        return {key: _without_launcher(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_launcher(entry) for entry in value]
    if isinstance(value, str):
        for word, own in _LAUNCHER_WORDS.items():
            value = value.replace(word, own)
    return value


def _trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    return trained_by(read_yaml(exported.files[0].text, what=_NAME)["model"])


NEMO1_SCRIPT = ExportTarget(
    name=_NAME,
    title="NeMo 1.x pretraining script",
    versions="NeMo 1.20 to 1.23, and 2.0 with its 1.x configurations",
    write=_write,
    trained_layers=_trained_layers,
    stacks=("megatron",),
    takes_extra=True,
)
