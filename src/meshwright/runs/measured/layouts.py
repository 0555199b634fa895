"""The layout of a row: what its columns say, else what the software of its time does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshwright.runs.measured.cells import Cells, Notes, Rule, UnansweredError
from meshwright.runs.measured.machines import CONFIGURED, recompute_of_row
from meshwright.search.rules.split import own_split
from meshwright.values.layout import SHARDINGS, Layout, Schedule, Sharding
from meshwright.values.models.spec import ModelSpec

__all__ = ["axes_of_row", "layout_of_row", "split_by_ends"]

_LONGEST = 4096


def split_of_row(
    notes: Notes, *, model_name: str, total_layers: int, pp: int, vpp: int
) -> tuple[int, ...] | None:
    """Return layers per stage or chunk in model order; None where even or not told."""
    ways = (
        notes.partition and _without_ends(notes.partition, total_layers),
        notes.pipeline_pattern and pattern_chunks(notes.pipeline_pattern),
        notes.thin_ends and _thin_ends(total_layers, pp=pp, vpp=vpp),
        "account_for_embedding" in model_name and _thin_ends(total_layers, pp=pp, vpp=vpp),
    )
    for split in ways:
        if split and sum(split) == total_layers and len(split) in (pp, pp * vpp):
            return split
    return None


def split_by_ends(model: ModelSpec, *, pp: int, vpp: int) -> tuple[int, ...] | None:
    """Return layers per chunk as Megatron-Bridge's recipes cut a model: loss and each layer that
    predicts further tokens count as layers.

    All chunks are as large as the largest must be, and the last holds what is left: DeepSeek-V3's
    61 layers and one more on 4 stages of 4 chunks are 15 chunks of 4 and one of 1. Without such
    layers embedding and loss thin the ends where that comes out even. None: evenly.
    """
    chunks = pp * vpp
    if pp < 2 or chunks > model.total_layers or model.total_layers > _LONGEST:
        return None
    if not model.mtp_layers:
        return (
            _thin_ends(model.total_layers, pp=pp, vpp=vpp) if model.total_layers % chunks else None
        )
    ends = model.mtp_layers + 1
    each = -(-(model.total_layers + ends) // chunks)
    last = model.total_layers - each * (chunks - 1)
    if last >= 0:
        return (each, *([each] * (chunks - 2)), last)
    return (each + last, *([each] * (chunks - 2)), 0)


def _without_ends(sizes: tuple[int, ...], total_layers: int) -> tuple[int, ...] | None:
    """Take away entries that are no layers: half of the surplus lies before the first layer, half
    behind the last.

    DeepSpeed's pipeline of GPT-2 has six: cast, embedding, transpose; transpose, norm, head.
    Planners often count one at either end.
    """
    surplus = sum(sizes) - total_layers
    if surplus < 0:
        return None
    first, last = surplus // 2, sum(sizes) - (surplus - surplus // 2)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(
        max(0, min(end, last) - max(end - size, first))
        for size, end in zip(sizes, ends, strict=True)
    )


def _thin_ends(total_layers: int, *, pp: int, vpp: int) -> tuple[int, ...] | None:
    """One layer less in the first and the last chunk, where that comes out even."""
    chunks = pp * vpp
    if chunks < 2 or chunks > _LONGEST or (total_layers + 2) % chunks:
        return None
    each = (total_layers + 2) // chunks
    return (each - 1, *([each] * (chunks - 2)), each - 1)


def pattern_chunks(pattern: str) -> tuple[int, ...] | None:
    """Layers per chunk of a pipeline written as Megatron does, `Et*3|(tt|)*6L`, or with repeats,
    `Et*7|t*8x6|t*7,L`.

    E is the embedding, t a layer, m a layer that predicts further tokens, L the loss; | begins the
    next chunk.
    """
    text = _repeat_groups(pattern.replace(",", "").replace(" ", ""))
    text = re.sub(r"t\*(\d{1,3})x(\d{1,3})\|?", lambda m: ("t" * int(m[1]) + "|") * int(m[2]), text)
    text = re.sub(r"([EtmL])\*(\d{1,3})", lambda m: m[1] * int(m[2]), text)
    if len(text) > _LONGEST or not re.fullmatch(r"[EtmL|]+", text):
        return None
    return tuple(chunk.count("t") for chunk in text.split("|"))


def _repeat_groups(text: str) -> str:
    return re.sub(r"\(([EtmL|*\d]{1,50})\)\*(\d{1,3})", lambda m: m[1] * int(m[2]), text)


_WORDS_OF_SHARDING = {
    "0": "none",
    "1": "zero1",
    "2": "zero2",
    "3": "zero3",
    "ddp": "none",
    "none": "none",
}
USUAL_LENGTH = 4096
"""Tokens of a sequence for which the software's usual micro batch holds; of longer ones it takes as
many tokens. Assumed, as `mbs_cap` is of `frameworks.csv`; it is where `choices_of_row` starts, and
what runs on several kinds of chips have, of which no other micro batch is tried."""
PIPED_TOKENS = 2048
"""Tokens of the usual micro batch under a pipeline, where small ones keep the bubble short:
NeMo-Framework-Launcher's configurations have one sequence of 2,048 (gpt3/175b) and four of 512
(bert/20b)."""
_UNNAMED_CHIPS = 128
"""Chips of a run whose number is not published and that its layout does not fix."""
_SCHEDULES: Mapping[str, Schedule] = {
    **dict.fromkeys(("zero-bubble", "zbv", "zb-", "v-half", "v-min", "dualpipe"), "zero-bubble"),
    "gpipe": "gpipe",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Axes:
    """Sizes of the parallel axes and batches; `fold` devices were counted for every chip."""

    num_chips: int
    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    dp: int
    fold: int

    @property
    def replicas(self) -> int:
        """Chips that one copy of a layer's weights could be shared by."""
        return self.dp * self.cp


def axes_of_row(cells: Cells, notes: Notes) -> Axes:
    """Return the axes; UnansweredError where they do not multiply to the chips."""
    tp, pp, cp, ep = (cells.count(name) or 1 for name in ("tp", "pp", "cp", "ep"))
    dp, chips = cells.count("dp"), cells.count("num_gpus")
    model = tp * pp * cp
    fold = 1
    if chips is None:
        dp = dp or max(_UNNAMED_CHIPS // model, -(-ep // (tp * cp)), 1)
        chips = model * dp
    elif dp is None or model * dp != chips:
        dp, fold = _fill(chips, model, dp)
    axes = Axes(
        num_chips=chips, tp=tp, pp=pp, vpp=_vpp(cells, notes, pp), cp=cp, ep=ep, dp=dp, fold=fold
    )
    return _as_v(axes) if cells.match("framework", r"dualpipe(?!v)") else axes


def _as_v(axes: Axes) -> Axes:
    """DualPipe feeds a pipeline from both ends, so that ranks s and pp - 1 - s hold the same two
    stages and take half the micro batches each: half as many ranks in a V, twice as many replicas
    (github.com/deepseek-ai/DualPipe, README: DualPipeV by cutting in half)."""
    if axes.pp % 2 or axes.vpp > 1:
        return axes
    return replace(axes, pp=axes.pp // 2, vpp=2, dp=2 * axes.dp)


def _fill(chips: int, model: int, dp: int | None) -> tuple[int, int]:
    """Data parallel ranks that fill the chips; a row that counts several devices a chip (two in a
    TPU7x) is folded to chips."""
    if chips % model:
        raise UnansweredError("num_gpus: not divisible by tp*pp*cp")
    ranks = chips // model
    if dp is not None and dp > ranks and dp % ranks == 0:
        return ranks, dp // ranks
    return ranks, 1


def _vpp(cells: Cells, notes: Notes, pp: int) -> int:
    given = cells.count("vpp")
    if given is not None:
        return given if pp > 1 else 1
    chunks = pattern_chunks(notes.pipeline_pattern) if notes.pipeline_pattern else None
    named = cells.match("framework", r"\bvpp(\d{1,2})\b")
    if chunks is not None and len(chunks) % pp == 0:
        return len(chunks) // pp
    return int(named[1]) if named and pp > 1 and int(named[1]) else 1


def layout_of_row(
    cells: Cells, notes: Notes, framework: Rule, model: ModelSpec, axes: Axes, *, seq_len: int
) -> Layout:
    """Return the whole layout; `seq_len` tells how many sequences a micro batch usually has."""
    axes = replace(axes, vpp=_usual_vpp(cells, framework, model, axes))
    mbs, gbs = _batches(cells, framework, axes, seq_len=seq_len)
    recomputed = recompute_of_row(
        cells, framework, layers_per_stage=-(-model.total_layers // axes.pp), vpp=axes.vpp
    )
    sharding, shard_size = _sharding(cells, framework, axes)
    return Layout(
        tp=axes.tp,
        sp=axes.tp > 1 and _sequence_parallel(cells, framework),
        cp=axes.cp,
        ep=axes.ep,
        etp=_expert_tp(notes, framework, model, axes),
        pp=axes.pp,
        vpp=axes.vpp,
        dp=axes.dp,
        sharding=sharding,
        shard_size=shard_size,
        mbs=mbs,
        gbs=gbs,
        recompute=recomputed.recompute,
        recompute_method=recomputed.recompute_method,
        recompute_layers=recomputed.recompute_layers,
        recompute_modules=recomputed.recompute_modules,
        schedule=_schedule(cells),
        layers_per_stage=_split(cells, notes, framework, model, axes),
    )


def _usual_vpp(cells: Cells, framework: Rule, model: ModelSpec, axes: Axes) -> int:
    """Chunks per stage: what the row says, else one layer a chunk where it comes out even and the
    software's users interleave so, or the row says that pipeline messages overlap, which
    Megatron-Core's do under interleaved schedules alone.
    """
    overlapped = cells.match("notes", r"overlap for [^;]*\bPP\b") is not None
    interleaved = framework["vpp"] == "layer" or overlapped
    if not interleaved or axes.vpp > 1 or cells.count("vpp") is not None or axes.pp == 1:
        return axes.vpp
    gbs, mbs = cells.count("gbs") or 0, cells.count("mbs") or 1
    rounds = gbs % (mbs * axes.dp * axes.pp) == 0 and gbs > 0
    even = rounds and model.total_layers % axes.pp == 0
    return model.total_layers // axes.pp if even else axes.vpp


def _split(
    cells: Cells, notes: Notes, framework: Rule, model: ModelSpec, axes: Axes
) -> tuple[int, ...] | None:
    """Layers per stage as the row says, else as its software cuts a model."""
    said = split_of_row(
        notes,
        model_name=cells.words("model"),
        total_layers=model.total_layers,
        pp=axes.pp,
        vpp=axes.vpp,
    )
    if said is None and framework["split"] == "cost" and axes.vpp == 1:
        # Sweeps of nanotron whose authors mended the pipeline end a stage with the layer that
        # reaches its share: their first ranks hold one layer's states less where it ends with one.
        mended = cells.match("notes", r"pp engine after fix")
        return own_split(model, pp=axes.pp, ends="reached" if mended else "passed")
    if said is None and framework["split"] == "ends":
        return split_by_ends(model, pp=axes.pp, vpp=axes.vpp)
    return said


def _batches(cells: Cells, framework: Rule, axes: Axes, *, seq_len: int) -> tuple[int, int]:
    """Micro and global batch: what is blank follows from the other and `ga`, else from what the
    software's users take."""
    mbs, gbs, ga = cells.count("mbs"), cells.count("gbs"), cells.count("ga")
    if mbs is not None:
        mbs *= axes.fold
    if mbs is None and gbs is None:
        mbs = 1
    if gbs is None:
        assert mbs is not None
        return mbs, mbs * axes.dp * (ga or _filling_micro_batches(axes))
    mbs = mbs or _usual_micro_batch(gbs, ga, axes, cap=_usual_cap(framework, axes, seq_len=seq_len))
    if gbs % (mbs * axes.dp):
        raise UnansweredError("gbs: not divisible by mbs*dp")
    return mbs, gbs


def _filling_micro_batches(axes: Axes) -> int:
    """Twice the stages: the pipeline is full, as any run worth measuring has it."""
    return 2 * axes.pp if axes.pp > 1 else 1


def _usual_cap(framework: Rule, axes: Axes, *, seq_len: int) -> int:
    """Sequences of the usual micro batch at the most."""
    if axes.pp > 1:
        return max(1, PIPED_TOKENS // seq_len)
    cap = framework["mbs_cap"].removeprefix(CONFIGURED)
    usual = int(cap) if cap.isdigit() else 1
    return max(1, usual * USUAL_LENGTH // max(seq_len, USUAL_LENGTH))


def _usual_micro_batch(gbs: int, ga: int | None, axes: Axes, *, cap: int) -> int:
    """Sequences of a replica over `ga`; without it the largest power of two up to the cap that
    divides them, and under a pipeline up to PIPED_TOKENS."""
    if gbs % axes.dp:
        raise UnansweredError("gbs: not divisible by dp")
    share = gbs // axes.dp
    if ga is not None:
        return max(1, share // ga) if share % ga == 0 else 1
    sizes = (2, 4, 8, 16)
    return max((size for size in sizes if size <= cap and share % size == 0), default=1)


def _sharding(cells: Cells, framework: Rule, axes: Axes) -> tuple[Sharding, int | None]:
    word = cells.words("zero").removeprefix("zero").removeprefix("-")
    name = _WORDS_OF_SHARDING.get(word) or (
        framework["fsdp"] if word in ("fsdp", "hsdp") else framework["sharding"] if not word else ""
    )
    if name not in SHARDINGS:
        raise UnansweredError("zero: expected 0, 1, 2, 3 or fsdp")
    size = cells.count("dp_shard")
    if size is None and cells.match("model", r"multi_dist_optimizer_inst"):
        # Megatron's --num-distributed-optimizer-instances 2, as its tests of the feature are named.
        size = max(1, axes.dp // 2)
    if size is not None and axes.fold > 1:
        size = max(1, size // axes.fold)
    if size is None or size >= axes.dp or name == "none" or axes.replicas % size:
        return name, None
    if size == 1:
        return "none", None
    return ("hybrid" if name == "zero3" else name), size


def _sequence_parallel(cells: Cells, framework: Rule) -> bool:
    word = cells.words("sp")
    if word in ("0", "false"):
        return False
    if word in ("1", "true"):
        return True
    if word:
        raise UnansweredError("sp: expected 0 or 1")
    return framework["sp"] == "tp"


def _expert_tp(notes: Notes, framework: Rule, model: ModelSpec, axes: Axes) -> int | None:
    """Tensor parallelism of experts; one that does not divide the ranks gives way to 1."""
    if model.moe is None:
        return None
    size = notes.flag_count("expert-tensor-parallel-size") or (
        axes.tp if framework["etp"] == "tp" else 1
    )
    return size if (axes.tp * axes.cp * axes.dp) % (axes.ep * size) == 0 else 1


def _schedule(cells: Cells) -> Schedule:
    text = cells.words("framework")
    return next((schedule for word, schedule in _SCHEDULES.items() if word in text), "1f1b")
