"""Which layers each pipeline stage holds, and what this trainer refuses before it starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from meshwright.search.rules.split import even_split
from meshwright.trainer.job import OptimizerSettings, TrainJob
from meshwright.values.errors import ConfigError, LayoutError
from meshwright.values.layout import Layout
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "VOCAB_MULTIPLE",
    "Part",
    "is_v",
    "own_parts",
    "require_on",
    "require_trainable",
    "stage_of",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What one pipeline chunk holds of the model."""

    layers: tuple[int, ...]
    """Indices in the whole model."""
    first: bool
    last: bool


def own_parts(model: ModelSpec, layout: Layout, stage: int) -> list[tuple[int, Part]]:
    """Return the chunks of one stage with their places in the model: chunk v of stage s is number v
    * pp + s, and in a V, which goes down the stages and up again, s and 2 * pp - 1 - s."""
    sizes = layout.layers_per_stage or even_split(model.num_layers, pp=layout.pp, vpp=layout.vpp)
    if len(sizes) == layout.pp and layout.vpp > 1:
        sizes = _chunks_of_stages(sizes, layout)
    if len(sizes) != layout.pp * layout.vpp or sum(sizes) != model.num_layers:
        raise LayoutError(
            f"layers_per_stage={'+'.join(map(str, sizes))}: expected {layout.pp * layout.vpp}"
            f" chunks that sum to {model.num_layers} layers"
        )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    last = len(sizes) - 1
    places = (stage, last - stage) if is_v(layout) else range(stage, len(sizes), layout.pp)
    return [
        (
            i,
            Part(
                layers=tuple(range(starts[i], starts[i] + sizes[i])), first=i == 0, last=i == last
            ),
        )
        for i in places
    ]


def stage_of(place: int, layout: Layout) -> int:
    """Return the stage that holds a chunk."""
    return min(place, 2 * layout.pp - 1 - place) if is_v(layout) else place % layout.pp


def is_v(layout: Layout) -> bool:
    """Whether a pipeline's chunks go down the stages and up again: stage 0 holds both ends."""
    return layout.schedule == "zero-bubble" and layout.vpp == 2


def _chunks_of_stages(stages: Sequence[int], layout: Layout) -> tuple[int, ...]:
    """Split each stage's layers over its chunks, earlier chunks first."""
    parts = [
        [size // layout.vpp + (v < size % layout.vpp) for v in range(layout.vpp)] for size in stages
    ]
    rounds = [[part[v] for part in parts] for v in range(layout.vpp)]
    if is_v(layout):
        rounds[1].reverse()
    return tuple(size for sizes in rounds for size in sizes)


VOCAB_MULTIPLE = 128
"""The vocabulary is padded to a multiple, so that every layout computes the same loss."""
_SEEDS = 2**31
"""Seeds that fit beside 32 bits of a weight's name into what torch takes."""


def require_trainable(job: TrainJob, *, num_processes: int) -> None:
    """Raise for the first thing that can't run: ConfigError (model) or LayoutError."""
    for reason in _value_reasons(job):
        raise ConfigError(reason)
    for reason in _model_reasons(job.model, job.seq_len):
        raise ConfigError(f"model {job.model.name}: {reason}")
    for reason in _layout_reasons(job, num_processes):
        raise LayoutError(reason)
    if job.device != "auto":
        require_on(job, job.device)


def require_on(job: TrainJob, device_type: str) -> None:
    """Raise ConfigError for what this kind of device can't do."""
    if job.memory_snapshot is not None and device_type != "cuda":
        raise ConfigError(
            f"memory_snapshot={job.memory_snapshot}: torch records the allocations of CUDA alone;"
            " on a processor peak_allocated_bytes is the largest resident size of each rank"
        )


def _value_reasons(job: TrainJob) -> Iterator[str]:
    for name, least in (("steps", 1), ("seq_len", 1), ("profile_step", 0)):
        if getattr(job, name) < least:
            yield f"{name}={getattr(job, name)}: expected {least} or more"
    for name in ("minutes", "peak_tflops", "patience_s"):
        value = getattr(job, name)
        if value is not None and not 0 < value < math.inf:
            yield f"{name}={value}: expected a positive number"
    if not 0 <= job.seed < _SEEDS:
        yield f"seed={job.seed}: expected 0 to {_SEEDS - 1}"
    if not 0 < job.init_std < math.inf:
        yield f"init_std={job.init_std}: expected a positive number"
    yield from _optimizer_reasons(job.optimizer)
    yield from _saving_reasons(job)
    for name in ("trace", "memory_snapshot"):
        if getattr(job, name) is not None and not 0 < job.profile_step <= job.steps:
            yield (
                f"{name}={getattr(job, name)}: it is of profile_step={job.profile_step}, which a"
                f" run of steps={job.steps} does not have"
            )


def _optimizer_reasons(settings: OptimizerSettings) -> Iterator[str]:
    for name in (
        "learning_rate",
        "least_learning_rate",
        "warmup_steps",
        "weight_decay",
        "clip_norm",
    ):
        if not 0 <= getattr(settings, name) < math.inf:
            yield f"optimizer.{name}={getattr(settings, name)}: expected 0 or more"
    for name in ("beta1", "beta2"):
        if not 0 <= getattr(settings, name) < 1:
            yield f"optimizer.{name}={getattr(settings, name)}: expected 0 or more and less than 1"
    if not 0 < settings.epsilon < math.inf:
        yield f"optimizer.epsilon={settings.epsilon}: expected a positive number"


def _saving_reasons(job: TrainJob) -> Iterator[str]:
    save, valid = job.save, job.valid
    counts = {
        "save.every": save.every,
        "save.keep_every": save.keep_every,
        "save.best": save.best,
        "valid.every": valid.every,
    }
    for name, value in counts.items():
        if value < 0:
            yield f"{name}={value}: expected 0 (none) or more"
    if save.keep < 1:
        yield f"save.keep={save.keep}: expected 1 or more; a run goes on from the newest checkpoint"
    if save.best and not valid.every:
        yield (
            f"save.best={save.best}: the validation loss says which are best; valid.every says how"
            " often it is taken"
        )
    for name, value in (("valid.batches", valid.batches), ("data.epochs", job.data.epochs)):
        if value < 1:
            yield f"{name}={value}: expected 1 or more"
    if not 0 <= valid.share < 1:
        yield f"valid.share={valid.share}: expected a share in [0, 1)"
    if valid.share and valid.blend:
        yield (
            f"valid.share={valid.share}: it holds out documents of data.blend, and valid.blend"
            " names other files; give one of them"
        )
    if valid.share and not job.data.blend:
        yield (
            f"valid.share={valid.share}: random tokens have no documents to hold out; give"
            " data.blend"
        )
    if valid.every and job.data.blend and not (valid.blend or valid.share):
        yield (
            f"valid.every={valid.every}: nothing is held out; name files by valid.blend, or a share"
            " of data.blend by valid.share=0.01"
        )


def _model_reasons(model: ModelSpec, seq_len: int) -> Iterator[str]:
    if model.family != "decoder":
        yield (
            f"family {model.family!r}: the embedded trainer runs decoders; export the plan to"
            " Megatron-LM"
        )
    if model.hybrid is not None:
        yield "Mamba layers: the embedded trainer has none; export the plan to Megatron-LM"
    if model.delta is not None:
        yield "delta attention: the embedded trainer has none"
    if model.global_attention is not None or model.values_are_keys or model.attention_gate:
        yield (
            "heads of full attention that differ from the windows', values that are the keys and"
            " gated attention are not in the embedded trainer"
        )
    if model.mtp_layers:
        yield (
            f"mtp_layers={model.mtp_layers}: the embedded trainer predicts one token; set"
            " mtp_layers=0 or export the plan"
        )
    if model.attention_sinks:
        yield "attention sinks: no fused kernel that the embedded trainer uses has them"
    if model.qk_norm_all_heads:
        yield (
            "one norm of queries and keys over all heads: the embedded trainer has one a head,"
            " which is another model"
        )
    if model.moe is not None and model.moe.capacity_factor is not None:
        yield f"capacity_factor={model.moe.capacity_factor}: the embedded trainer drops no tokens"
    if model.moe is not None and (model.moe.latent_dim is not None or model.moe.expert_bias):
        yield "experts with biases or a width of their own are not in the embedded trainer"
    if model.mla is not None and (
        model.positions != "rope" or model.linear_bias or model.qkv_bias or model.qk_norm
    ):
        yield (
            "latent attention with biases, norms of queries and keys, or positions other than rope"
            " is not in the embedded trainer"
        )
    if model.positions == "relative":
        yield "relative positions: the embedded trainer has rope, learned, alibi and none"
    if model.positions == "learned" and seq_len > model.max_positions:
        yield f"seq_len={seq_len} is more than its {model.max_positions} positions"


def _layout_reasons(job: TrainJob, processes: int) -> Iterator[str]:
    layout, model = job.layout, job.model
    if layout.num_chips != processes:
        yield (
            f"the layout runs on tp*cp*pp*dp = {layout.num_chips} processes, {processes} were"
            f" started: torchrun --nproc-per-node {layout.num_chips} -m meshwright.trainer ..."
        )
    if layout.gbs % (layout.mbs * layout.dp):
        yield f"gbs={layout.gbs} is not divisible by mbs*dp = {layout.mbs * layout.dp}"
    yield from _tensor_reasons(layout, model)
    yield from _context_reasons(job)
    yield from _expert_reasons(layout, model)
    yield from _pipeline_reasons(layout, model)
    yield from _sharding_reasons(layout, model)
    yield from _recompute_reasons(job)
    yield from _compile_reasons(job)


def _tensor_reasons(layout: Layout, model: ModelSpec) -> Iterator[str]:
    for name, count in (
        ("num_heads", model.num_heads),
        ("num_kv_heads", model.num_kv_heads),
        ("ffn", model.ffn),
    ):
        if name == "num_kv_heads" and model.mla is not None:
            continue
        if count % layout.tp:
            yield f"{name}={count} is not divisible by tp={layout.tp}"
    if model.moe is not None and model.moe.shared_ffn and model.moe.shared_ffn % layout.tp:
        yield f"shared_ffn={model.moe.shared_ffn} is not divisible by tp={layout.tp}"
    if VOCAB_MULTIPLE % layout.tp:
        yield (
            f"tp={layout.tp}: the embedded trainer pads vocabularies to multiples of"
            f" {VOCAB_MULTIPLE}, which tp must divide"
        )
    if layout.sp and layout.tp == 1:
        yield "sp=1 needs tp > 1"


def _context_reasons(job: TrainJob) -> Iterator[str]:
    layout, model = job.layout, job.model
    rings = job.context == "ring" and layout.cp > 1
    cut = layout.cp * math.lcm(2 if rings else 1, layout.tp if layout.sp else 1)
    if job.seq_len % cut:
        why = f"cp={layout.cp}{', two runs of tokens a rank' if rings else ''}{f', sp over tp={layout.tp}' if layout.sp else ''}"  # noqa: E501
        yield f"seq_len={job.seq_len} is not divisible by {cut} ({why})"
    if job.context == "ring":
        if layout.cp == 1:
            yield "context=ring: with cp=1 nothing goes round"
        return
    heads = model.num_heads // layout.tp
    kv_heads = heads if model.mla is not None else model.num_kv_heads // layout.tp
    if heads % layout.cp or (kv_heads % layout.cp and layout.cp % max(kv_heads, 1)):
        yield (
            f"cp={layout.cp}: context=all-to-all swaps tokens for heads, and a tensor-parallel rank"
            f" has {heads} ({kv_heads} of keys); context=ring takes any number"
        )


def _expert_reasons(layout: Layout, model: ModelSpec) -> Iterator[str]:
    if model.moe is None:
        if layout.ep > 1:
            yield f"ep={layout.ep}: {model.name} has no experts"
        if layout.etp not in (None, layout.tp, 1):
            yield f"etp={layout.etp}: {model.name} has no experts"
        return
    if model.moe.num_experts % layout.ep:
        yield f"num_experts={model.moe.num_experts} is not divisible by ep={layout.ep}"
    if layout.expert_tp not in (1, layout.tp):
        yield (
            f"etp={layout.expert_tp}: the embedded trainer cuts experts like the rest"
            f" (etp={layout.tp}) or not (etp=1)"
        )
    if model.moe.expert_ffn % layout.expert_tp:
        yield f"expert_ffn={model.moe.expert_ffn} is not divisible by etp={layout.expert_tp}"
    if layout.dp * layout.cp * layout.tp % (layout.ep * layout.expert_tp):
        yield (
            f"ep*etp = {layout.ep * layout.expert_tp} does not divide dp*cp*tp ="
            f" {layout.dp * layout.cp * layout.tp}"
        )
    if layout.tp > 1 and not layout.sp:
        yield f"experts with tp={layout.tp} need sequence parallelism: sp=1"


def _pipeline_reasons(layout: Layout, model: ModelSpec) -> Iterator[str]:
    if layout.pp == 1 and (layout.vpp > 1 or layout.schedule != "1f1b"):
        yield f"vpp={layout.vpp}, schedule={layout.schedule}: these need pp > 1"
    if layout.pp * layout.vpp > model.num_layers:
        yield f"pp*vpp = {layout.pp * layout.vpp} is more than the {model.num_layers} layers"
        return
    for stage in range(layout.pp):
        if any(not part.layers for _, part in own_parts(model, layout, stage)):
            yield f"stage {stage} has a chunk without layers: every chunk needs one or more"
    if (
        layout.pp > 1
        and layout.vpp > 1
        and layout.schedule != "zero-bubble"
        and layout.num_microbatches % layout.pp
    ):
        yield (
            f"with vpp > 1 the {layout.num_microbatches} micro batches must be a multiple of"
            f" pp={layout.pp}"
        )
    if layout.schedule == "zero-bubble":
        yield from _zero_bubble_reasons(layout)
    if layout.pp > 1 and layout.num_microbatches < layout.pp:
        yield (
            f"{layout.num_microbatches} micro batches are fewer than pp={layout.pp} stages; lower"
            " mbs or dp"
        )


def _zero_bubble_reasons(layout: Layout) -> Iterator[str]:
    rounds = max(1, layout.num_microbatches // layout.pp)
    if layout.vpp > 2:
        yield (
            f"schedule=zero-bubble with vpp={layout.vpp}: it has one chunk per stage, or two in a V"
        )
    if layout.vpp == 1 and layout.num_microbatches % rounds:
        yield (
            f"schedule=zero-bubble: torch's runs micro batches in {layout.num_microbatches} // pp ="
            f" {rounds} equal rounds, which {layout.num_microbatches} do not make; a multiple of"
            f" pp={layout.pp} does"
        )
    if layout.sharding in ("zero3", "hybrid"):
        yield (
            f"schedule=zero-bubble with sharding={layout.sharding}: torch's backward for weights"
            " alone runs after sharding dropped them, and their gradients are lost; sharding=zero1"
            " keeps them"
        )


def _sharding_reasons(layout: Layout, model: ModelSpec) -> Iterator[str]:
    data = layout.dp * layout.cp
    if layout.pp > 1 and layout.sharding == "zero2":
        yield (
            "sharding=zero2 with pp > 1: torch's pipeline reduces gradients once a step, which is"
            " sharding=zero1"
        )
    if layout.sharding == "hybrid" and layout.shard_size is None:
        yield (
            f"sharding=hybrid: say over how many of dp*cp = {data} ranks, shard_size=..., or use"
            " zero3"
        )
    if layout.shard_size is None:
        return
    if layout.sharding == "none":
        yield f"shard_size={layout.shard_size}: sharding=none shards nothing"
    if data % layout.shard_size:
        yield f"shard_size={layout.shard_size} does not divide dp*cp = {data}"
    if model.moe is not None and layout.shard_size != data:
        yield (
            f"shard_size={layout.shard_size} with experts: the embedded trainer shards them over"
            " all ranks that hold the same ones"
        )


def _recompute_reasons(job: TrainJob) -> Iterator[str]:
    layout = job.layout
    if layout.recompute != "full" and (
        layout.recompute_layers is not None or layout.recompute_method != "uniform"
    ):
        yield (
            f"recompute_layers, recompute_method: these need recompute=full, not {layout.recompute}"
        )
    if layout.recompute != "selective" and layout.recompute_modules:
        yield (
            f"recompute_modules={'+'.join(layout.recompute_modules)}: this needs"
            f" recompute=selective, not {layout.recompute}"
        )
    if layout.recompute_method == "uniform" and layout.recompute_layers == 0:
        yield "recompute_layers=0: a recomputed unit has one layer or more"
    for name in layout.recompute_modules:
        if name in _NEEDS and not _NEEDS[name](job.model):
            yield f"recompute_modules={name}: {job.model.name} has none"


def _compile_reasons(job: TrainJob) -> Iterator[str]:
    layout = job.layout
    if not job.compile:
        return
    if layout.tp > 1:
        yield (
            f"compile=true with tp={layout.tp}: compiled layers gave other losses than plain ones"
            " (5e-3 within 6 steps, torch 2.13)"
        )
    if job.context == "ring":
        yield (
            "compile=true with context=ring: torch's compiler can't follow the ring;"
            " context=all-to-all"
        )
    if layout.schedule == "zero-bubble":
        yield (
            "compile=true with schedule=zero-bubble: torch does not split the backward of compiled"
            " stages; schedule=1f1b"
        )
    if layout.recompute == "selective":
        yield (
            "compile=true with recompute=selective: the compiler decides by itself what it keeps;"
            " recompute=none or full"
        )


_NEEDS: dict[str, Callable[[ModelSpec], bool]] = {
    "moe": lambda model: model.moe is not None,
    "moe_act": lambda model: model.moe is not None,
    "shared_experts": lambda model: model.moe is not None and bool(model.moe.shared_ffn),
    "mla_up_proj": lambda model: model.mla is not None,
    "mlp": lambda model: (
        model.moe is None or model.moe.first_dense_layers > 0 or model.moe.layer_frequency > 1
    ),
}
"""What a model must have for the name to mean something."""
