"""A training run as its own file describes it: what it asks for, and its price."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from meshwright.api.problems import problem_of, read_text
from meshwright.platforms.given import read_hf_config
from meshwright.search.problem import Asked, Problem, ask, details_of, dims_of, model_of
from meshwright.search.quote import Quote, quotes
from meshwright.search.refine import requote, setting_of
from meshwright.search.request import PlanRequest
from meshwright.search.started import started_stack
from meshwright.software.beside import Beside
from meshwright.software.contract import BF16_GRADIENTS, Imported, ImportSource, import_text
from meshwright.software.megatron_lm.read import HALF_GRADIENTS
from meshwright.software.registry import find_source
from meshwright.software.settings import ModelDetails
from meshwright.values.errors import ConfigError
from meshwright.values.models.said_size import wrong_size

__all__ = ["Run", "price_of", "read_run", "run_of"]

_OF_WORK = ("seq_len", "gbs", "decoder_seq_len", "precision", "attention", "cp_comm_type")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A file and what was read from it."""

    path: Path
    text: str
    source: ImportSource
    found: Imported

    def fields(self) -> dict[str, Any]:
        """Return what the file says of a request."""
        found = self.found
        details = {
            name: value for name, value in asdict(found.details).items() if value is not None
        }
        values: dict[str, Any] = {name: getattr(found.work, name) for name in _OF_WORK}
        work = found.work
        if work.lora_rank:
            values |= {"lora_rank": work.lora_rank, "lora_targets": list(work.lora_targets)}
        if found.finetunes:
            frozen = "qlora" if work.frozen == "nf4" else "lora"
            values["finetune"] = frozen if work.lora_rank else "full"
        values |= {
            "gbs": found.layout.get("gbs"),
            "stack": found.stack,
            "megatron_version": found.megatron_version,
            "switches": None if found.told is None else list(found.told),
        }
        return {
            "model": dims_of(found.model, details=details),
            **{name: value for name, value in values.items() if value is not None},
        }

    def asked(self, problem: Problem) -> Asked:
        """Return the file's layout in the problem, without what the file leaves off of its
        software; on other chips than its own the number of replicas follows."""
        layout = {name: value for name, value in self.found.layout.items() if name != "gbs"}
        if self.found.num_chips != problem.num_chips:
            layout.pop("dp", None)
        if problem.request.gbs is None and "gbs" in self.found.layout:
            layout["gbs"] = self.found.layout["gbs"]
        self.require_batch(problem)
        try:
            return ask(layout, self.as_it_is(problem))
        except ConfigError as error:
            raise ConfigError(
                f"{self.path}: its layout does not run as it is: {error}; leave its words out of"
                " the file to plan without it"
            ) from None

    def require_batch(self, problem: Problem) -> None:
        """Refuse where neither the file nor the request says the global batch."""
        if problem.request.gbs is None and "gbs" not in self.found.layout:
            raise ConfigError(
                f"{self.path}: the file leaves the global batch to its software; add"
                f" --gbs{_usual_batch(self.found.layout, problem)}"
            )

    def as_it_is(self, problem: Problem) -> Problem:
        """Return the problem without what the file leaves off of its software."""
        setting, start = problem.setting, self.found.start
        stack = setting.stack if start is None else started_stack(setting.stack, start)
        return replace(
            problem,
            setting=replace(
                setting, stack=stack.without(self.found.left_off), start=start or setting.start
            ),
        )

    def set_names(self) -> list[str]:
        """Return the names of the training settings that the file gives: no part of a request."""
        settings = self.found.settings
        return [
            field.name
            for field in fields(settings)
            if getattr(settings, field.name) != field.default
        ]

    def lines(self) -> Iterator[str]:
        """Yield what a reader must know."""
        found = self.found
        yield f"{self.path}: {found.model.name} as {found.source} has it"
        if found.source == "megatron-lm" and found.stack in (HALF_GRADIENTS, *BF16_GRADIENTS):
            yield f"priced as stack {found.stack}: Megatron-Core that sums gradients in 2 bytes"
        if found.replica_batch is not None and "gbs" in found.layout:
            yield (
                f"global batch {found.layout['gbs']}: {found.replica_batch} sequences of each"
                f" replica, as {self.source.name.removesuffix('-toml')} takes them"
            )
        for warning in (*found.warnings, *filter(None, [wrong_size(found.model)])):
            yield f"warning: {warning}"
        if found.passed_through:
            yield f"passed through: {' '.join(found.passed_through)}"


def _usual_batch(layout: dict[str, Any], problem: Problem) -> str:
    """One micro batch for each rank of the file's layout, where its ranks are whole."""
    split = layout.get("tp", 1) * layout.get("cp", 1) * layout.get("pp", 1)
    replicas, rest = divmod(problem.num_chips, split)
    if rest or layout.get("pp", 1) > 1 or "mbs" not in layout:
        return " N"
    return f" {layout['mbs'] * replicas}, which is {layout['mbs']} on each of {replicas} ranks"


def read_run(path: Path, flags: dict[str, Any], *, option: str = "--from ") -> Run:
    """Read a file of any known kind; ConfigError where a flag and the file both name the model."""
    text = read_text(path, str(path))
    if "model" in flags and find_source(path.name, text).read_beside is None:
        raise ConfigError(f"{option}{path} names a model of its own; leave the other out")
    if "cluster" not in flags:
        raise ConfigError(
            f"{option}{path}: the file does not say which chips it runs on; add --cluster, such as"
            " h100:64"
        )
    return run_of(path, text, flags)


def run_of(path: Path, text: str, flags: Mapping[str, Any]) -> Run:
    """Return the run that a file's text describes on the cluster of `flags`; ConfigError where it
    is of no known kind, or broken."""
    source = find_source(path.name, text)
    try:
        found = import_text(text, source=source, beside=_beside(path, text, source, flags))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    run = Run(path=path, text=text, source=source, found=found)
    if found.replica_batch is None or flags.get("gbs") is not None:
        return run
    split = [found.layout.get(name, 1) for name in ("tp", "cp", "pp")]
    chips = problem_of(PlanRequest.of({**run.fields(), **flags})).num_chips
    replicas, rest = divmod(chips, math.prod(split))
    if rest:
        return run
    batch = {"gbs": found.replica_batch * replicas}
    return replace(run, found=replace(found, layout={**found.layout, **batch}))


def _beside(path: Path, text: str, source: ImportSource, flags: Mapping[str, Any]) -> Beside:
    """Return what a file's reader is told from elsewhere: what was typed, and the files that it
    names."""
    if source.read_beside is None:
        return Beside()
    files = {
        name: read_text(path.parent / name, name)
        for name in source.files(text)
        if (path.parent / name).is_file()
    }
    model, details = None, ModelDetails()
    if (given := flags.get("model")) is not None:
        model, details = model_of(given), ModelDetails.of(details_of(given))
    elif weights := source.weights(text):
        folders = (path.parent / weights, Path(weights).expanduser())
        place = next((one for one in folders if (one / "config.json").is_file()), None)
        if place is not None:
            reading = read_hf_config(place)
            model, details = reading.spec, ModelDetails.of(reading.details)
    pinned = flags.get("pins", {}).get("mbs", ())
    return Beside(
        model=model,
        details=details,
        seq_len=flags.get("seq_len"),
        mbs=int(pinned[0]) if len(pinned) == 1 else None,
        files=files,
    )


def price_of(asked: Asked) -> Quote:
    """Return the simulated price of a layout in its problem."""
    return requote(quotes([asked.layout], setting_of(asked.problem)), asked.problem)[0]
