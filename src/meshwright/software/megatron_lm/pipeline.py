"""Which layers lie on which chunk of Megatron-LM's pipeline: written as flags, and read back from
them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate

from meshwright.software.contract import NO_TE_LOSS_SINCE, TrainedLayers
from meshwright.software.megatron_core.layout import SHARDED, tp_overlap
from meshwright.software.megatron_core.model import keeps_narrow_weights
from meshwright.software.megatron_lm.words import NAME, Words
from meshwright.software.plan import TrainingPlan
from meshwright.software.split import read_split_text, split_text
from meshwright.values.errors import CannotExpress, ConfigError
from meshwright.values.layout import Layout
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "PRECISION_FLAGS",
    "hybrid_pattern",
    "layers_in_pattern",
    "read_chunks",
    "uses_fsdp",
    "write_layout",
    "write_pipeline",
]

Args = Mapping[str, tuple[str, ...]]
_ANY_SPLIT = "--pipeline-model-parallel-layout"
_SYMBOLS = {"attention": "*", "mamba": "M", "mlp": "-", "moe": "E"}
"""Megatron-Core hybrid_layer_allocation.py; multi-token prediction stands behind a slash."""
_MOST_CHUNKS = 100_000
"""Beyond any pipeline: a slip in what is read."""


def write_pipeline(words: Words, *, model: ModelSpec, layout: Layout) -> None:
    """Add the flags that split the layers over stages and chunks; a hybrid model's stand in its
    pattern."""
    split, vpp = layout.layers_per_stage, layout.vpp
    if model.hybrid is not None:
        return
    if model.family == "encoder-decoder" and layout.pp > 1:
        splits = "pretrain_t5.py splits encoder and decoder over the same stages"
        raise CannotExpress(NAME, f"{splits}, which no plan describes", nearest="pp=1")
    if split is None:
        if vpp > 1:
            size = model.num_layers // (layout.pp * vpp)
            words.add("layout", "--num-layers-per-virtual-pipeline-stage", size)
    elif words.has(_ANY_SPLIT):
        words.add("layout", _ANY_SPLIT, split_text(split, model.mtp_layers))
    else:
        _write_ends(words, split, layout)


def _write_ends(words: Words, split: tuple[int, ...], layout: Layout) -> None:
    """Write an uneven split for versions that take other ends only."""
    pp, vpp = layout.pp, layout.vpp
    first, last = _ends(split, pp, vpp)
    inner = set(split[1:-1]) or {max(split)}
    if len(inner) == 1 and split[0] in (k := inner.pop(), k - 1) and split[-1] in (k, k - 1):
        if split[0] == k - 1:
            words.add("layout", "--account-for-embedding-in-pipeline-split")
        if split[-1] == k - 1:
            words.add("layout", "--account-for-loss-in-pipeline-split")
        if vpp > 1:
            words.add("layout", "--num-layers-per-virtual-pipeline-stage", k)
    elif first and last:
        words.add("layout", "--decoder-first-pipeline-num-layers", first)
        words.add("layout", "--decoder-last-pipeline-num-layers", last)
        if vpp > 1:
            words.add("layout", "--num-virtual-stages-per-pipeline-rank", vpp)
    else:
        core = ".".join(map(str, words.version))
        only = "takes another count of layers on the first and the last stage only"
        reason = f"core {core} {only}, not {'+'.join(map(str, split))}"
        raise CannotExpress(NAME, reason, nearest="megatron_version=0.13")


def _ends(split: tuple[int, ...], pp: int, vpp: int) -> tuple[int, int]:
    """Return the layers of first and last stage where the stages between are alike and chunks of a
    stage are; else zeros."""
    rows = [split[stage::pp] for stage in range(pp)]
    alike = all(len(set(row)) == 1 for row in rows) and len({row[0] for row in rows[1:-1]}) <= 1
    return (rows[0][0] * vpp, rows[-1][0] * vpp) if alike and pp > 1 else (0, 0)


def hybrid_pattern(model: ModelSpec, *, layout: Layout, pipes: bool) -> str:
    """Return the layers of a hybrid model as symbols, each kind spread evenly; a pipe ends a chunk,
    a slash starts an MTP layer."""
    hybrid = model.hybrid
    assert hybrid is not None
    ffn = _SYMBOLS["mlp" if model.moe is None else "moe"]
    counts = {
        _SYMBOLS["mamba"]: hybrid.mamba_layers,
        ffn: hybrid.ffn_layers,
        _SYMBOLS["attention"]: hybrid.attention_layers,
    }
    places = sorted(
        (((i + 0.5) / count, symbol) for symbol, count in counts.items() for i in range(count)),
        key=lambda place: place[0],
    )
    text = "".join(symbol for _, symbol in places)
    assert len(text) == model.num_layers, f"{model.name}: parts of a hybrid sum to its layers"
    if pipes and layout.pp > 1:
        count = layout.pp * layout.vpp
        chunks = layout.layers_per_stage or (model.num_layers // count,) * count
        ends = list(accumulate(chunks))
        text = "|".join(text[end - size : end] for end, size in zip(ends, chunks, strict=True))
    return text + f"/{_SYMBOLS['attention']}{ffn}" * model.mtp_layers


def layers_in_pattern(pattern: str) -> dict[str, int]:
    """Return the layers of each kind in a hybrid pattern, the multi-token prediction's not
    counted."""
    main = pattern.partition("/")[0].replace("|", "")
    if not main or set(main) - set(_SYMBOLS.values()):
        raise ConfigError(
            f"hybrid pattern {pattern!r}: expected symbols of {' '.join(_SYMBOLS.values())}, with |"
            " between stages"
        )
    return {kind: main.count(symbol) for kind, symbol in _SYMBOLS.items()}


def read_chunks(args: Args) -> TrainedLayers:
    """Return the layers that a command line trains, chunk by chunk, as Megatron-Core's
    get_num_layers_to_build counts them."""
    pp = _int(args, "--pipeline-model-parallel-size", 1)
    mtp = _int(args, "--mtp-num-layers", 0)
    pattern = args.get("--hybrid-layer-pattern", args.get("--hybrid-override-pattern"))
    if pattern is not None:
        main, *depths = pattern[0].split("/")
        mtp = len(depths) or mtp
        if "|" in main:
            return TrainedLayers(chunks=tuple(map(len, main.split("|"))), mtp=mtp)
        return TrainedLayers(chunks=_even(len(main), pp, "the pattern's layers"), mtp=mtp)
    if _ANY_SPLIT in args:
        chunks = read_split_text(args[_ANY_SPLIT][0], what=_ANY_SPLIT)
        return TrainedLayers(
            chunks=tuple(chunk.count("t") for chunk in chunks),
            mtp=sum(chunk.count("m") for chunk in chunks),
        )
    layers = _int(args, "--num-layers", 0) or _int(args, "--encoder-num-layers", 0) + _int(
        args, "--decoder-num-layers", 0
    )
    return TrainedLayers(chunks=_counted(args, layers, pp), mtp=mtp)


def _counted(args: Args, layers: int, pp: int) -> tuple[int, ...]:
    first, last = (
        _int(args, f"--decoder-{end}-pipeline-num-layers", 0) for end in ("first", "last")
    )
    accounts = [f"--account-for-{end}-in-pipeline-split" in args for end in ("embedding", "loss")]
    if first or last:
        middle = pp - bool(first) - bool(last)
        rest = (
            _even(layers - first - last, middle, "the layers between first and last stage")
            if middle
            else ()
        )
        stages = ((first,) if first else ()) + rest + ((last,) if last else ())
        if sum(stages) != layers:
            raise ConfigError(
                f"first and last stage hold {first}+{last} layers of {layers} with pp={pp}: the"
                " others would not be trained"
            )
    else:
        stages = _even(layers + sum(accounts), pp, "num_layers")
    vpp = _int(args, "--num-virtual-stages-per-pipeline-rank", 1)
    if (size := _int(args, "--num-layers-per-virtual-pipeline-stage", 0)) and pp > 1:
        vpp = _even(stages[0], stages[0] // size or 1, "a stage's layers")[0] and stages[0] // size
        if size * vpp != stages[0]:
            raise ConfigError(
                f"--num-layers-per-virtual-pipeline-stage {size} does not divide the {stages[0]}"
                " layers of a stage"
            )
    if any(stage % vpp for stage in stages):
        raise ConfigError(
            f"stages of {'+'.join(map(str, stages))} layers do not divide into {vpp} chunks"
        )
    chunks = [stage // vpp for _ in range(vpp) for stage in stages]
    chunks[0] -= accounts[0]
    chunks[-1] -= accounts[1]
    return tuple(chunks)


def _even(layers: int, parts: int, what: str) -> tuple[int, ...]:
    if parts < 1 or parts > _MOST_CHUNKS or layers < 0 or layers % parts:
        raise ConfigError(
            f"{what}: {layers} do not divide by {parts}; {layers // max(1, parts) * parts} would be"
            " trained"
        )
    return (layers // parts,) * parts


def _int(args: Args, flag: str, default: int) -> int:
    if flag not in args or not args[flag]:
        return default
    try:
        return int(args[flag][0])
    except ValueError:
        raise ConfigError(f"{flag} {args[flag][0]}: expected a whole number") from None


PRECISION_FLAGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "fp32": (),
    "tf32": (),
    "bf16": (("--bf16",),),
    "fp16": (("--fp16",),),
    "fp8": (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
    "fp8-blockwise": (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "blockwise")),
    "mxfp8": (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "nvfp4": (("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
"""By `Workload.precision`. Formats as Transformer Engine's recipes have them: e4m3 both ways where
scales are fine, e5m2 gradients else. fp8 scales by the current tensor, since delayed scaling does
not go with recomputed norms and expert activations."""
_BLOCKWISE_SINCE = (0, 13)
"""Core 0.12's --fp8-recipe has tensorwise, delayed and mxfp8."""
_SHARED_EXPERTS_SINCE = (0, 14)
"""Core 0.14 recomputes shared_experts."""


def uses_fsdp(layout: Layout) -> bool:
    """Whether Megatron's FSDP runs instead of its distributed optimizer."""
    return layout.sharding in SHARDED


def write_layout(words: Words, plan: TrainingPlan) -> None:
    """Add what the bound flags do not say of the layout, the stack and the precision."""
    _write_sharding(words, plan)
    _write_recompute(words, plan.layout)
    _write_overlap(words, plan)
    _write_precision(words, plan)
    _write_loss(words, plan)


def _write_sharding(words: Words, plan: TrainingPlan) -> None:
    layout = plan.layout
    if not uses_fsdp(layout):
        words.put("layout", {"--use-distributed-optimizer": layout.sharding == "zero1"})
        return
    group = layout.shard_size if layout.sharding == "hybrid" else None
    if group is not None and not words.has("--outer-dp-sharding-strategy"):
        reason = "groups of shards have replicas from core 0.16 on"
        raise CannotExpress(NAME, reason, nearest="megatron_version=0.16")
    known = words.has("--use-megatron-fsdp")
    replicas = None if group is None else layout.dp * layout.cp // group
    words.put(
        "layout",
        {
            "--use-megatron-fsdp" if known else "--use-custom-fsdp": True,
            "--use-distributed-optimizer": True,
            "--data-parallel-sharding-strategy": SHARDED[layout.sharding],
            "--no-gradient-accumulation-fusion": True,
            "--num-distributed-optimizer-instances": replicas,
        },
    )


def _write_recompute(words: Words, layout: Layout) -> None:
    if layout.recompute == "none":
        return
    words.add("layout", "--recompute-granularity", layout.recompute)
    if layout.recompute == "full":
        layers = 1 if layout.recompute_layers is None else layout.recompute_layers
        words.add("layout", "--recompute-method", layout.recompute_method)
        words.add("layout", "--recompute-num-layers", layers)
        return
    if "shared_experts" in layout.recompute_modules and words.version < _SHARED_EXPERTS_SINCE:
        reason = "shared_experts are recomputed from core 0.14 on"
        raise CannotExpress(NAME, reason, nearest="megatron_version=0.14")
    words.add("layout", "--recompute-modules", *layout.recompute_modules)


def _write_overlap(words: Words, plan: TrainingPlan) -> None:
    stack, half = plan.stack, plan.work.precision not in ("fp32", "tf32", "fp16")
    overlaps, wide = stack.dp_overlap > 0, plan.work.precision == "fp16"
    words.put(
        "overlap",
        {
            "--overlap-grad-reduce": overlaps,
            "--overlap-param-gather": overlaps and plan.layout.sharding != "none",
            "--tp-comm-overlap": tp_overlap(plan),
            "--grad-reduce-in-bf16": stack.gradient_bytes < 4 and half,
            "--accumulate-allreduce-grads-in-fp32": stack.gradient_bytes == 4 and wide,
        },
    )


def _write_precision(words: Words, plan: TrainingPlan) -> None:
    precision = plan.work.precision
    if precision == "fp8-blockwise" and words.version < _BLOCKWISE_SINCE:
        reason = "blockwise fp8 came with core 0.13"
        raise CannotExpress(NAME, reason, nearest="megatron_version=0.13")
    for flag, *values in PRECISION_FLAGS[precision]:
        words.add("precision", flag, *values)
    if keeps_narrow_weights(plan):
        words.add("precision", "--fp8-param-gather")
        if precision == "mxfp8":
            words.add("precision", "--reuse-grad-buf-for-mxfp8-param-ag")


def _write_loss(words: Words, plan: TrainingPlan) -> None:
    fused = plan.stack.in_precision(plan.work.precision).fused_loss
    if fused is None:
        return
    words.add("training", "--cross-entropy-loss-fusion")
    if fused == "te" and words.version < NO_TE_LOSS_SINCE:
        words.add("training", "--cross-entropy-fusion-impl", "te")
