"""What the flags of a launch script must say for another layout: the few that differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from meshwright.software.contract import Imported, Mended
from meshwright.software.megatron_lm.edit import edited, given_flags
from meshwright.software.megatron_lm.export import environment
from meshwright.software.megatron_lm.ramp import RAMP, fitting_ramp, ramp_note, ramp_unit
from meshwright.software.megatron_lm.spans import blocks
from meshwright.software.plan import TrainingPlan
from meshwright.software.split import expert_tp
from meshwright.values.errors import ConfigError
from meshwright.values.layout import Layout

__all__ = ["layout_edits", "mended"]

Given = Mapping[str, tuple[str, ...]]
_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
_SPLITS = (
    *("--pipeline-model-parallel-layout", "--decoder-first-pipeline-num-layers"),
    *("--decoder-last-pipeline-num-layers", "--account-for-embedding-in-pipeline-split"),
    "--account-for-loss-in-pipeline-split",
)
_DISPATCHER = "--moe-token-dispatcher-type"
_CHUNK_LAYERS = "--num-layers-per-virtual-pipeline-stage"
_CHUNK_COUNT = "--num-virtual-stages-per-pipeline-rank"


def mended(text: str, found: Imported, plan: TrainingPlan) -> Mended:
    """Return a script that runs a plan's layout, with even stages or with the script's own, on the
    plan's nodes."""
    layout, given = plan.layout, given_flags(text)
    per_node = min(plan.pool.node.chips_per_node, plan.pool.num_chips)
    nodes = -(-plan.pool.num_chips // per_node)
    edits = dict(layout_edits(given, found, layout))
    edits |= _launcher_edits(given, nodes=nodes, per_node=per_node)
    notes: list[str] = []
    ramp, unit = given.get(RAMP), ramp_unit(layout)
    if ramp is not None and (fits := fitting_ramp(ramp, unit=unit, to=layout.gbs)) != ramp:
        edits[RAMP] = fits
        notes.append(ramp_note(fits, unit=unit))
    out = edited(text, edits)
    for variable in environment(plan):
        if variable.name == _QUEUES and _QUEUES not in text:
            out = _with_line(out, f"export {_QUEUES}={variable.value}")
            notes.append(f"{_QUEUES}=1: Megatron-LM demands it with tensor or context parallelism")
    if "--nnodes" not in edits:
        notes.append(f"start it on {nodes} nodes with {per_node} processes each")
    return Mended(text=out, notes=tuple(notes))


def layout_edits(
    given: Given, found: Imported, layout: Layout
) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    """Yield what the flags of a layout must say; a flag that is left out stays so where the program
    takes its value anyway."""
    if layout.layers_per_stage not in (None, found.layout.get("layers_per_stage")):
        raise ConfigError("an uneven split over the stages is for `plan --from FILE --export DIR`")
    for flag, size in (
        ("--tensor-model-parallel-size", layout.tp),
        ("--pipeline-model-parallel-size", layout.pp),
        ("--context-parallel-size", layout.cp),
        ("--expert-model-parallel-size", layout.ep),
        ("--micro-batch-size", layout.mbs),
    ):
        if flag in given or size > 1:
            yield flag, (str(size),)
    if "--data-parallel-size" in given:
        yield "--data-parallel-size", (str(layout.dp),)
    if found.model.moe is not None:
        etp = expert_tp(layout)
        if layout.ep > found.layout.get("ep", 1) == 1 and _DISPATCHER not in given:
            yield _DISPATCHER, ("alltoall",)  # what is priced; the program's own is allgather
        if "--expert-tensor-parallel-size" in given or etp != layout.tp:
            yield "--expert-tensor-parallel-size", (str(etp),)
    if layout.tp > 1:
        yield "--sequence-parallel", () if layout.sp else None
    if not layout.sp:
        # Megatron-LM's arguments.py asserts sequence parallelism with it
        yield "--tp-comm-overlap", None
    if found.layout.get("sharding", "none") != layout.sharding:
        if layout.sharding not in ("none", "zero1"):
            raise ConfigError(f"sharding={layout.sharding} needs other flags than a script's edit")
        yield "--use-distributed-optimizer", () if layout.sharding == "zero1" else None
    yield from _chunk_edits(given, found, layout)
    yield from _recompute_edits(given, layout)


def _chunk_edits(
    given: Given, found: Imported, layout: Layout
) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    same = all(
        getattr(layout, name) == found.layout.get(name, usual)
        for name, usual in (("pp", 1), ("vpp", 1), ("layers_per_stage", None))
    )
    if same:
        return
    for flag in _SPLITS:
        yield flag, None
    size = found.model.num_layers // (layout.pp * layout.vpp)
    counts = _CHUNK_COUNT in given
    yield _CHUNK_COUNT, (str(layout.vpp),) if counts and layout.vpp > 1 else None
    yield _CHUNK_LAYERS, (str(size),) if not counts and layout.vpp > 1 else None


def _recompute_edits(given: Given, layout: Layout) -> Iterator[tuple[str, tuple[str, ...] | None]]:
    short = "--recompute-activations" in given  # selective, of core_attn where nothing else is said
    full = layout.recompute == "full"
    if layout.recompute == "selective" and short:
        granularity = given.get("--recompute-granularity")
    else:
        yield "--recompute-activations", None
        granularity = None if layout.recompute == "none" else (layout.recompute,)
    yield "--recompute-granularity", granularity
    layers = 1 if layout.recompute_layers is None else layout.recompute_layers
    usual_layers = full and layers == 1 and "--recompute-num-layers" not in given
    yield "--recompute-method", (layout.recompute_method,) if full else None
    yield "--recompute-num-layers", (str(layers),) if full and not usual_layers else None
    modules = layout.recompute_modules if layout.recompute == "selective" else ()
    if modules == ("core_attn",) and "--recompute-modules" not in given:
        modules = ()
    yield "--recompute-modules", modules or None
    if "moe_act" in modules:
        # Megatron-Core's transformer_config.py takes it with grouped products alone
        yield "--moe-grouped-gemm", ()
    delayed = "--fp8-format" in given and given.get("--fp8-recipe", ("delayed",)) == ("delayed",)
    if delayed and {"moe_act", "layernorm"} & set(modules):
        raise ConfigError(
            f"delayed fp8 scales do not go with recompute_modules={'+'.join(modules)}; hold another"
            " by --set recompute=none,full"
        )


def _launcher_edits(given: Given, *, nodes: int, per_node: int) -> dict[str, tuple[str, ...]]:
    """What starts the processes, where the script counts them itself."""
    counts = {"--nnodes": nodes, "--nproc-per-node": per_node, "--nproc_per_node": per_node}
    return {
        flag: (str(count), *given[flag][1:])
        for flag, count in counts.items()
        if flag in given and given[flag] and given[flag][0].isdecimal()
    }


def _with_line(text: str, line: str) -> str:
    """Add a line before the first command, behind the comments that a script begins with."""
    first = next(iter(blocks(text)))
    at = text.rfind("\n", 0, first.words[0].start) + 1
    return f"{text[:at]}{line}\n{text[at:]}"
