"""Targets and sources: what every export and every import is held to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from meshwright.search.rules.software import parse_version
from meshwright.search.started import runnable, started_stack
from meshwright.software.beside import Beside
from meshwright.software.defaults import left_out
from meshwright.software.looked_at import dropped_fields, plain, require_none, tracked
from meshwright.software.plan import TrainingPlan, completed
from meshwright.software.settings import ModelDetails, TrainingSettings
from meshwright.values.errors import ConfigError
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import NATIVE_LOSS_BYTES, Feature, Stack, find_stack, stack_names
from meshwright.values.start import Start
from meshwright.values.workload import Precision, Workload

__all__ = [
    "BF16_GRADIENTS",
    "NO_TE_LOSS_SINCE",
    "EnvVar",
    "ExportTarget",
    "Exported",
    "ExportedFile",
    "ImportSource",
    "Imported",
    "LeftOff",
    "Mended",
    "RunsOn",
    "TrainedLayers",
    "bf16_gradients",
    "counted_but_not_set",
    "export_plan",
    "import_text",
    "left_off",
    "plain",
    "require_place",
    "require_runs",
    "variables",
]

RunsOn = Literal["rank", "node", "once"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvVar:
    """An environment variable of the training processes."""

    name: str
    value: str
    why: str
    """A few words for the reader of the script."""


def variables(*rows: tuple[str, str, str]) -> tuple[EnvVar, ...]:
    """Return variables of names, values and reasons."""
    return tuple(EnvVar(name=name, value=value, why=why) for name, value, why in rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedFile:
    """One file of an export."""

    name: str
    """Relative to the folder of the export."""
    text: str
    executable: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A plan in the words of one training software."""

    target: str
    files: tuple[ExportedFile, ...]
    command: tuple[str, ...]
    """The program and its arguments, without interpreter or launcher: `pretrain_gpt.py --num-layers
    32 ...`, `-m torchtitan.train ...`."""
    runs_on: RunsOn = "rank"
    """rank: the command is run for each chip, behind torchrun or its like; node: once per node,
    where it starts the ranks itself and reads NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT; once:
    on one machine, from which it starts everything."""
    environment: tuple[EnvVar, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader must know before the start: what to edit, what was left to the program's
    default."""

    def to_dict(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedLayers:
    """Layers that an exported configuration would train, found by reading the export back as its
    program does."""

    chunks: tuple[int, ...]
    """Layers (of encoder and decoder) of each chunk in model order: one entry per stage, or per
    chunk where stages are interleaved."""
    mtp: int = 0
    """Layers of multi-token prediction beside them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A training run as its files describe it."""

    source: str
    """Name of the ImportSource."""
    model: ModelSpec
    work: Workload
    layout: dict[str, Any]
    """Fields of Layout that the file sets (or that follow from its program's defaults);
    `rules.complete_layout` fills in the rest."""
    stack: str = "megatron"
    left_off: tuple[Feature, ...] = ()
    """What the stack counts on and the file does not switch on."""
    start: Start | None = None
    """What it switches on beside the layout, where the file says."""
    told: tuple[str, ...] | None = None
    """Of its software's own words (`switches.csv`) those that it has; None: the software knows
    none."""
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    details: ModelDetails = field(default_factory=ModelDetails)
    megatron_version: str | None = None
    num_chips: int | None = None
    """Where the file says so."""
    chips_per_node: int | None = None
    replica_batch: int | None = None
    """Sequences of a replica, where the program takes as many from each and no global batch."""
    warnings: tuple[str, ...] = ()
    """What the reader must know: options that no longer exist, values that contradict each
    other."""
    finetunes: bool = False
    """Whether it starts from weights that are there, by a program of fine-tuning."""
    beside: Beside = field(default_factory=Beside)
    """What was taken from elsewhere than the file."""
    passed_through: tuple[str, ...] = ()
    """Words without a place in a plan, in their order; `import_text` appends them to
    `settings.extra`, so that an export hands them on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mended:
    """A file of a training run, edited to run another layout."""

    text: str
    notes: tuple[str, ...] = ()
    """What a reader must know besides the edit."""


BF16_GRADIENTS = (
    *("nemo", "megatron-bridge-25.09", "megatron-bridge-dgx", "megatron-bridge-26.02"),
    *("megatron-bridge-hopper", "megatron-bridge"),
)
"""Stacks on Megatron-Core that sum gradients in bf16; the first is of what NeMo 2.0's and
Megatron-Bridge's exports switch on."""
_ALLTOALL = ("megatron-bridge", "nemo2")
"""Targets that exchange tokens of experts through NCCL where no recipe says otherwise."""
NO_TE_LOSS_SINCE = (0, 19)
"""Version of Megatron-Core from which Megatron-LM refuses Transformer Engine's fused loss
("stability issues", its arguments.py)."""
_OWN = {"accelerate": "accelerate", "deepspeed": "deepspeed", "nanotron": "nanotron"}
"""Targets that switch nothing of this by the plan's stack: the stack that is what their files
start."""
_KEPT = {
    "gradient_bytes": "bytes a gradient kept",
    "reduce_bytes": "a gradient reduced",
    "transient_gradient_bytes": "a second gradient beside it",
    "zero3_weights": "weights that zero3 keeps:",
    "reduction_deferred": "whole gradients until the last micro batch",
    "logits_bytes": "bytes a logit of the loss",
}
"""Fields of a stack that memory is counted with, in words."""
_WRITES_START = "megatron-bridge"
"""The target that has words for all that a recipe switches on."""
_TARGETS = (*_ALLTOALL, "megatron-lm", "pai-megatron-patch")
"""Software on Megatron-Core with words for graphs and hidden exchanges; none is written: their
conditions hang on more than a plan says."""


def bf16_gradients(dispatcher: str) -> str:
    """Return the stack of a configuration that sums gradients in bf16, by how its experts exchange
    tokens."""
    return "megatron-bridge-25.09" if dispatcher == "flex" else "nemo"


def counted_but_not_set(plan: TrainingPlan, *, target: str) -> tuple[str, ...]:
    """Return a note where the plan's stack has CUDA graphs, or faster or hidden exchanges of
    experts, and the files do without."""
    stack = plan.stack
    if target in _OWN:
        precision = plan.work.precision
        return _unlike(stack, find_stack(_OWN[target]).in_precision(precision), precision=precision)
    if target not in _TARGETS or stack.embedded:
        return ()
    set_here = _set_here(plan, target=target)
    counted = ["CUDA graphs"] if stack.launch_hidden > set_here.launch_hidden else []
    moe = plan.model.moe
    fused_here = set_here.expert_bias_fused or not stack.expert_bias_fused
    if not fused_here and moe is not None and (moe.expert_bias or moe.clamps_gate):
        counted.append("biases and clamps of experts inside their products")
    if (
        target not in _ALLTOALL
        and stack.fused_loss == "te"
        and parse_version(plan.megatron_version) >= NO_TE_LOSS_SINCE
    ):
        set_here = replace(set_here, logits_bytes=NATIVE_LOSS_BYTES)
        counted.append(
            "Transformer Engine's loss, which keeps 8 bytes a logit less (this core refuses it)"
        )
    if plan.layout.ep > 1 and stack.dispatcher != set_here.dispatcher:
        counted.append("experts through DeepEP or HybridEP")
    if plan.layout.ep > 1 and stack.ep_overlap > set_here.ep_overlap:
        counted.append("expert exchanges behind another micro batch's compute")
    if not counted:
        return ()
    listed = " and on ".join(filter(None, (", on ".join(counted[:-1]), counted[-1])))
    says = f"stack {stack.name} counts on {listed}, which these files do not switch on"
    return (says + _advice(set_here, plan.model),)


def _set_here(plan: TrainingPlan, *, target: str) -> Stack:
    """The stack as the files start it: by the words of its recipe, else without graphs and hidden
    exchanges."""
    stack = plan.stack
    if target == _WRITES_START and plan.start is not None:
        started = started_stack(stack, runnable(plan.start, plan.layout, plan.model))
        return replace(
            started,
            rotation_factor_fused=stack.rotation_factor_fused,
            offloaded_layers=stack.offloaded_layers,
        )
    dispatcher = "alltoall" if target in _ALLTOALL else stack.dispatcher
    return replace(
        stack, launch_hidden=0.0, ep_overlap=0.0, expert_bias_fused=False, dispatcher=dispatcher
    )


def _figure(value: float | str) -> str:
    return value if isinstance(value, str) else f"{float(value):g}"


def _unlike(stack: Stack, own: Stack, *, precision: Precision) -> tuple[str, ...]:
    """Say in which of `_KEPT` the plan's stack is not the one that the files start."""
    counted = stack.in_precision(precision)
    pairs = [(words, getattr(counted, name), getattr(own, name)) for name, words in _KEPT.items()]
    unlike = [
        f"{words} {_figure(there)} (here {_figure(here)})"
        for words, there, here in pairs
        if there != here
    ]
    if not unlike:
        return ()
    says = f"stack {stack.name} counts memory with {', '.join(unlike)}"
    return (f"{says}; --stack {own.name} predicts what these files do",)


def _advice(stack: Stack, model: ModelSpec) -> str:
    """Name the stack that is as this one for the model, if there is one."""
    wanted = _that_matters(stack, model)
    known = [_that_matters(find_stack(name), model) for name in stack_names()]
    same = next((other.name for other in known if other == replace(wanted, name=other.name)), None)
    return "" if same is None else f"; --stack {same} predicts what they do"


def _that_matters(stack: Stack, model: ModelSpec) -> Stack:
    """Return a stack without what touches no layer of the model."""
    return replace(
        stack,
        source="",
        rotation_factor_fused=stack.rotation_factor_fused and model.rotation_has_factor,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOff:
    """What a file leaves off of its software, and a line of warning for each."""

    features: tuple[Feature, ...]
    warnings: tuple[str, ...]


def left_off(
    stack: Stack,
    model: ModelSpec,
    layout: Mapping[str, Any],
    *,
    switches: Mapping[Feature, str],
    given: frozenset[Feature],
) -> LeftOff:
    """Return which of a software's switches, by their words in a file, are not given, and warn of
    those that make a difference to the file's layout; an edit to another layout leaves them off
    too. Whether it has replicas hangs on the chips, which a file need not name."""
    has: dict[Feature, bool] = {
        "tp_overlap": stack.tp_overlap > 0 and model.takes_user_buffers,
        "dp_overlap": stack.dp_overlap > 0,
        "cross_entropy_fused": stack.fused_loss is not None,
    }
    features = tuple(feature for feature in switches if has[feature] and feature not in given)
    by_sequence = layout.get("tp", 1) > 1 and layout.get("sp", False)
    ending = (
        f"the file's layout is priced without it; stack {stack.name} counts on it, and an export"
        " writes it where it can run"
    )
    return LeftOff(
        features=features,
        warnings=tuple(
            f"{switches[feature]} is off: {ending}"
            for feature in features
            if feature != "tp_overlap" or by_sequence
        ),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportTarget:
    """One training software that plans are written for."""

    name: str
    """As `--to` takes it."""
    title: str
    versions: str
    """Which versions the export is for, in words."""
    write: Callable[[TrainingPlan], Exported]
    """Text from a completed plan. CannotExpress where the software has no words for it."""
    trained_layers: Callable[[TrainingPlan, Exported], TrainedLayers]
    """The layers that the written configuration trains, by reading it as its program does (never by
    asking the plan; that is given for what the program knows from elsewhere, such as the number of
    chips)."""
    stacks: tuple[str, ...] = ()
    """Names of the stacks whose plans it writes; empty takes any."""
    takes_extra: bool = False
    """Whether `settings.extra` is appended to its command."""
    usual: Callable[[TrainingPlan], TrainingPlan] | None = None
    """Settings of its own where nobody says, before the rules of all fill in the rest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportSource:
    """One kind of file that plans are read from."""

    name: str
    title: str
    matches: Callable[[str, str], bool]
    """(file's name, text): whether the file is of this kind."""
    read: Callable[[str], Imported]
    """The run that a text describes; ConfigError says what is wrong, in one line."""
    read_beside: Callable[[str, Beside], Imported] | None = None
    """The same with what stands beside the file, where that is needed: a model that it does not
    name, other files of its program."""
    files: Callable[[str], tuple[str, ...]] = lambda text: ()
    """Names of the files that it reads beside it, where they are."""
    weights: Callable[[str], str | None] = lambda text: None
    """The weights that it starts from: a folder, or a name of the Hugging Face Hub."""
    last: bool = False
    """Whether it is tried after the others, because it takes what may be theirs."""
    mend: Callable[[str, Imported, TrainingPlan], Mended] | None = None
    """The smallest edit of a text, of what was read from it, that runs a plan's layout; None where
    such files are not edited."""
    shardings: tuple[str, ...] = ("none", "zero1")
    """Of these an edit may choose, beside the file's own."""


def export_plan(plan: TrainingPlan, *, target: ExportTarget) -> Exported:
    """Write a plan for one training software.

    Everything that the plan sets is looked at by the target, else this is refused; and the layers
    that the written configuration would train are counted against the model's.
    """
    require_runs(target, plan.stack.name)
    seen: set[str] = set()
    full = completed(plan if target.usual is None else target.usual(plan))
    exported = target.write(tracked(full, seen))
    require_none(dropped_fields(plan, seen, takes_extra=target.takes_extra), name=target.name)
    _require_all_layers(plan, target.trained_layers(full, exported), target)
    notes = (*exported.notes, *counted_but_not_set(plan, target=target.name))
    rest = left_out(plan.model.name)
    return replace(
        exported, notes=(*notes, f"{plan.model.name} is written without: {rest}") if rest else notes
    )


def require_place(plans: Iterable[TrainingPlan], *, target: ExportTarget) -> None:
    """Refuse, before a search, a model's details and settings that a target has no place for.

    The plans differ in their layouts alone; those that the target has no words for say nothing.
    """
    missing: dict[str, Any] | None = None
    for plan in plans:
        seen: set[str] = set()
        try:
            full = completed(plan if target.usual is None else target.usual(plan))
            target.write(tracked(full, seen))
        except ConfigError:
            continue
        found = dropped_fields(plan, seen, takes_extra=target.takes_extra)
        missing = {
            name: value
            for name, value in found.items()
            if name.startswith(("details.", "settings.")) and (missing is None or name in missing)
        }
    require_none(missing or {}, name=target.name)


def require_runs(target: ExportTarget, stack: str) -> None:
    """Refuse a plan of a software whose layouts the target does not run."""
    if target.stacks and stack.partition("@")[0] not in target.stacks:
        words = f"the plan is priced for stack {stack}"
        raise ConfigError(
            f"{target.name}: {words}, whose layouts it does not run; plan with --stack"
            f" {target.stacks[0]}"
        )


def _require_all_layers(plan: TrainingPlan, found: TrainedLayers, target: ExportTarget) -> None:
    model, layout = plan.model, plan.layout
    if sum(found.chunks) != model.total_layers or found.mtp != model.mtp_layers:
        shown, wanted = "+".join(map(str, found.chunks)), str(model.total_layers)
        if found.mtp or model.mtp_layers:
            shown, wanted = (
                f"{shown} (and {found.mtp} of multi-token prediction)",
                f"{wanted} (and {model.mtp_layers})",
            )
        raise ConfigError(
            f"{target.name}: the written pipeline would train {shown} layers, the model has"
            f" {wanted}"
        )
    if len(found.chunks) not in (layout.pp, layout.pp * layout.vpp):
        words = f"the written pipeline has {len(found.chunks)} stages or chunks"
        raise ConfigError(f"{target.name}: {words}, the plan pp={layout.pp}, vpp={layout.vpp}")
    even = (model.total_layers // layout.pp,) * layout.pp
    wanted_sums = (
        even if layout.layers_per_stage is None else _stage_sums(layout.layers_per_stage, layout.pp)
    )
    if _stage_sums(found.chunks, layout.pp) != wanted_sums:
        shown, wanted = (
            "+".join(map(str, sums)) for sums in (_stage_sums(found.chunks, layout.pp), wanted_sums)
        )
        raise ConfigError(
            f"{target.name}: the written stages have {shown} layers, the plan's {wanted}"
        )


def _stage_sums(split: tuple[int, ...], pp: int) -> tuple[int, ...]:
    """Return the layers of each stage of a split by stage or by chunk; chunk v of stage s is entry
    v * pp + s."""
    return tuple(sum(split[stage::pp]) for stage in range(pp))


def import_text(text: str, *, source: ImportSource, beside: Beside | None = None) -> Imported:
    """Read a run from a text; words without a place in a plan go to `settings.extra`, so that a
    later export hands them on."""
    if source.read_beside is None:
        found = source.read(text)
    else:
        beside = beside or Beside()
        found = replace(source.read_beside(text, beside), beside=beside)
    # a layout names its batch, and sources may leave it to the workload
    batch = {} if found.work.gbs is None else {"gbs": found.work.gbs}
    settings = replace(found.settings, extra=(*found.settings.extra, *found.passed_through))
    return replace(found, layout={**batch, **found.layout}, settings=settings)
