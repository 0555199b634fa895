"""A plan as the command line of Megatron-LM."""

from __future__ import annotations

import shlex

from meshwright.software.contract import (
    BF16_GRADIENTS,
    EnvVar,
    Exported,
    ExportedFile,
    ExportTarget,
    TrainedLayers,
    variables,
)
from meshwright.software.defaults import train_steps
from meshwright.software.megatron_core.layout import context_words, tp_overlap
from meshwright.software.megatron_core.model import BALANCE
from meshwright.software.megatron_lm.pipeline import (
    hybrid_pattern,
    read_chunks,
    uses_fsdp,
    write_layout,
    write_pipeline,
)
from meshwright.software.megatron_lm.ramp import RAMP, fitting_ramp, ramp_note, ramp_unit
from meshwright.software.megatron_lm.shell import names_position, quoted
from meshwright.software.megatron_lm.words import NAME, Words, bound_flags, minor
from meshwright.software.plan import TrainingPlan
from meshwright.software.split import expert_tp
from meshwright.software.words import field_of
from meshwright.values.errors import CannotExpress
from meshwright.values.models.spec import ModelSpec, MoeSpec

__all__ = ["MEGATRON_LM", "NULL_COUNTS_EOD", "environment", "split_words"]

_FREE_QUEUES = frozenset({"blackwell", "blackwell-rtx", "rubin"})
"""Generations whose launches keep their order without the limit (Megatron-LM arguments.py: arch
version 10 and later)."""
_NO_MULTICAST = frozenset({"volta", "turing", "ampere", "ada"})
"""NVIDIA's generations before compute capability 9.0."""
_ALWAYS_BEFORE = (0, 13)
"""Core 0.12 demands it with tensor parallelism on every generation: its condition lacks a
bracket."""


def environment(plan: TrainingPlan) -> tuple[EnvVar, ...]:
    """Return the variables of a plan."""
    order = (
        "kernels start in the order of their launch, so exchanges of tensor and context parallelism"
        " overlap"
    )
    margin = ("16", "leaves multiprocessors to exchanges that overlap norms")
    rows = [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", "less fragmentation of GPU memory"),
        *([("CUDA_DEVICE_MAX_CONNECTIONS", "1", order)] if _one_queue(plan) else []),
        ("TORCH_NCCL_AVOID_RECORD_STREAMS", "1", "exchanged tensors are freed without waiting"),
    ]
    if not plan.stack.in_switch_reductions:
        rows.append(("NCCL_NVLS_ENABLE", "0", "saves the buffers of in-switch reductions"))
    if plan.stack.tp_overlap and plan.layout.tp > 1:
        rows += [(f"NVTE_{way}_LAYERNORM_SM_MARGIN", *margin) for way in ("FWD", "BWD")]
    if tp_overlap(plan) and plan.pool.node.chip.generation in _NO_MULTICAST:
        rows.append(("UB_SKIPMC", "1", "overlapped products start by CUDA IPC: no multicast here"))
    if plan.work.precision == "tf32":
        rows.append(("NVIDIA_TF32_OVERRIDE", "1", "fp32 matrix products run in tf32"))
    return variables(*rows)


def _one_queue(plan: TrainingPlan) -> bool:
    """Megatron-LM demands one queue with tensor or context parallelism before Blackwell; FSDP
    forbids it."""
    layout = plan.layout
    if uses_fsdp(layout):
        return False
    if minor(plan.megatron_version) < _ALWAYS_BEFORE and layout.tp > 1:
        return True
    return plan.pool.node.chip.generation not in _FREE_QUEUES and (layout.tp > 1 or layout.cp > 1)


_STABLE_SHARE = 10
"""The last tenth of a warm-up, stable, decay run decays (MiniCPM, arXiv:2404.06395)."""


def _write_training(words: Words, plan: TrainingPlan) -> None:
    """Add what the bound flags do not say of the settings."""
    _write_schedule(words, plan)
    _write_data(words, plan)
    sharded = uses_fsdp(plan.layout) and words.version >= (0, 14)
    words.add("checkpoints", "--ckpt-format", "fsdp_dtensor" if sharded else "torch_dist")
    words.add("checkpoints", "--log-throughput")
    words.add("checkpoints", "--distributed-timeout-minutes", 60)
    if plan.work.dropout and not plan.details.dropout:
        reason = "the workload keeps dropout masks, but details.dropout is 0"
        raise CannotExpress(NAME, reason, nearest="details.dropout=0.1")


def _write_schedule(words: Words, plan: TrainingPlan) -> None:
    """Decay lasts the whole run; with samples, Megatron-LM counts warm-up and decay in samples
    too."""
    settings, gbs = plan.settings, plan.layout.gbs
    steps = train_steps(settings, plan.work)
    unit, per_step = ("iters", 1) if settings.train_samples is None else ("samples", gbs)
    whole = settings.train_samples or steps
    warmup = settings.warmup_steps
    assert warmup is not None
    words.add("training", f"--lr-warmup-{unit}", warmup * per_step)
    words.add("training", f"--lr-decay-{unit}", whole)
    if settings.decay_style == "warmup-stable-decay":
        words.add("training", "--lr-wsd-decay-style", "exponential")
        words.add("training", f"--lr-wsd-decay-{unit}", max(1, whole // _STABLE_SHARE))


def _write_data(words: Words, plan: TrainingPlan) -> None:
    data = plan.settings.data
    if not data:
        words.add("data", "--mock-data")
        return
    alone = len(data) == 1 and data[0].weight == 1
    paths = [word for entry in data for word in (f"{entry.weight:g}", entry.path)]
    words.add("data", "--data-path", *(paths[1:] if alone else paths))


def _script_text(
    words: Words,
    *,
    program: str,
    environment: tuple[EnvVar, ...],
    extra: tuple[str, ...],
    chips: int,
    nodes: int,
) -> str:
    """Return a script that starts one node's ranks; all nodes run the same text."""
    lines = [
        "#!/bin/bash",
        (
            f"# Megatron-LM, core {'.'.join(map(str, words.version))}: {chips * nodes} GPUs on"
            f" {nodes} node{'s' if nodes > 1 else ''}."
        ),
        (
            "# Run it on every node in a checkout of Megatron-LM, or with MEGATRON_PATH set;"
            " NODE_RANK and MASTER_ADDR tell nodes apart."
        ),
        "set -euo pipefail",
        'cd "${MEGATRON_PATH:-.}"',
        "",
        *(
            line
            for var in environment
            for line in (f"# {var.why}", f"export {var.name}={shlex.quote(var.value)}")
        ),
        "",
        "LAUNCH_ARGS=(",
        f"    --nproc-per-node {chips}",
        f'    --nnodes "${{NNODES:-{nodes}}}"',
        '    --node-rank "${NODE_RANK:-0}"',
        '    --master-addr "${MASTER_ADDR:-localhost}"',
        '    --master-port "${MASTER_PORT:-6000}"',
        ")",
    ]
    groups = {**words.groups, **({"extra": [extra]} if extra else {})}
    for group, entries in groups.items():
        lines += [
            "",
            f"{group.upper()}_ARGS=(",
            *(f"    {' '.join(map(quoted, entry))}" for entry in entries),
            ")",
        ]
    arrays = " ".join(f'"${{{group.upper()}_ARGS[@]}}"' for group in groups)
    # words that a caller adds would be those that $1 stands for already
    own = any(names_position(word) for entries in groups.values() for e in entries for word in e)
    rest = "" if own else ' "$@"'
    lines += ["", f'torchrun "${{LAUNCH_ARGS[@]}}" {program} {arrays}{rest}']
    return "\n".join(lines) + "\n"


_LAST_TWO_STACKS = (0, 17)
"""Core 0.17.1 is the last with pretrain_t5.py and pretrain_bert.py."""
_HYBRID_PROGRAM = (0, 18)
"""Core 0.18 renamed pretrain_mamba.py to pretrain_hybrid.py, and its modules."""
_PATTERN_WITH_STAGES = (0, 17)
"""Core 0.17 reads pipeline stages out of the pattern."""
_HYBRID_EXPERTS = (0, 16)
"""Core 0.16 knows the symbol E."""
_ANY_GROUPED = (0, 16)
"""Core 0.16 groups the products of experts in every precision."""
NULL_COUNTS_EOD = (0, 17)
"""Up to core 0.17 NullTokenizer adds an end-of-document token to --vocab-size."""


def _program_of(model: ModelSpec, version: tuple[int, ...]) -> str:
    """Return the training program; CannotExpress where the version has none."""
    if model.hybrid is not None:
        return "pretrain_hybrid.py" if version >= _HYBRID_PROGRAM else "pretrain_mamba.py"
    if model.family == "decoder":
        return "pretrain_gpt.py"
    program = {"encoder": "pretrain_bert.py", "encoder-decoder": "pretrain_t5.py"}[model.family]
    if version > _LAST_TWO_STACKS:
        reason = f"core {'.'.join(map(str, version))} has no {program}"
        raise CannotExpress(NAME, reason, nearest="megatron_version=0.17.1")
    return program


def _write_model(words: Words, plan: TrainingPlan) -> None:
    """Add what the bound flags do not say of the model."""
    _refuse_unknown_parts(plan.model)
    _write_layers(words, plan)
    _write_attention(words, plan)
    _write_feedforward(words, plan)
    _write_positions(words, plan)
    if plan.model.moe is not None:
        _write_experts(words, plan, plan.model.moe)
    _write_vocabulary(words, plan)


def _refuse_unknown_parts(model: ModelSpec) -> None:
    types = model.token_types
    if model.parallel_block:
        reason = "attention and feed-forward run one after the other, not side by side"
        raise CannotExpress(NAME, reason, nearest="parallel_block=0")
    if model.norms_per_layer != 2:
        reason = f"a layer has 2 norms, not {model.norms_per_layer}"
        raise CannotExpress(NAME, reason, nearest="norms_per_layer=2")
    if model.family == "encoder" and (types > 0) != model.mlm_head:
        has = "pretrain_bert.py has 2 token types and a binary head or neither"
        raise CannotExpress(NAME, f"{has}, not {types} types", nearest="token_types=2")
    if types not in (0, 2):
        raise CannotExpress(NAME, f"it has 2 token types, not {types}", nearest="token_types=2")


def _write_layers(words: Words, plan: TrainingPlan) -> None:
    model = plan.model
    if model.hybrid is not None:
        _write_hybrid(words, plan)
    elif model.family == "encoder-decoder":
        words.add("model", "--encoder-num-layers", model.encoder_layers)
        words.add("model", "--decoder-num-layers", model.num_layers)
        words.add("model", "--encoder-seq-length", plan.work.seq_len)
        words.add("model", "--decoder-seq-length", _decoder_seq_len(plan))
        return
    else:
        words.add("model", "--num-layers", model.num_layers)
    if model.family == "encoder" and not model.mlm_head:
        words.add("model", "--bert-no-binary-head")
    words.add("model", "--seq-length", plan.work.seq_len)


def _decoder_seq_len(plan: TrainingPlan) -> int:
    given = plan.work.decoder_seq_len
    return plan.work.seq_len // 4 if given is None else given


def _write_hybrid(words: Words, plan: TrainingPlan) -> None:
    model, layout, mamba = plan.model, plan.layout, plan.model.mamba
    version = words.version
    if model.moe is not None and version < _HYBRID_EXPERTS:
        reason = "hybrid models have experts from core 0.16 on"
        raise CannotExpress(NAME, reason, nearest="megatron_version=0.16")
    staged = version >= _PATTERN_WITH_STAGES
    if not staged and (layout.layers_per_stage is not None or layout.vpp > 1 or model.mtp_layers):
        has = "uneven stages, chunks and multi-token prediction"
        reason = f"hybrid models have {has} from core 0.17 on"
        raise CannotExpress(NAME, reason, nearest="megatron_version=0.17")
    if not staged:
        words.add("model", "--num-layers", model.num_layers)
    flag = "--hybrid-layer-pattern" if staged else "--hybrid-override-pattern"
    words.add("model", flag, hybrid_pattern(model, layout=layout, pipes=staged))
    name = "hybrid" if version >= _HYBRID_PROGRAM else "mamba"
    specs = f"megatron.core.models.{name}.{name}_layer_specs"
    words.add("model", "--spec", specs, f"{name}_stack_spec")
    if mamba is None:
        return
    if mamba.conv_kernel != 4:
        reason = f"its mixer has a convolution of 4, not {mamba.conv_kernel}"
        raise CannotExpress(NAME, reason, nearest="mamba.conv_kernel=4")
    if words.has("--mamba-num-heads"):
        words.add("model", "--mamba-num-heads", mamba.num_heads)
    elif mamba.num_heads * mamba.head_dim != 2 * model.hidden:
        reason = (
            f"core 0.12 makes mixers 2 * hidden = {2 * model.hidden} wide, not"
            f" {mamba.num_heads * mamba.head_dim}"
        )
        raise CannotExpress(NAME, reason, nearest="megatron_version=0.13")


def _write_attention(words: Words, plan: TrainingPlan) -> None:
    model = plan.model
    if model.mla is not None:
        if model.num_kv_heads != model.num_heads:
            reason = f"latent attention has as many KV heads as heads, not {model.num_kv_heads}"
            raise CannotExpress(NAME, reason, nearest=f"num_kv_heads={model.num_heads}")
        words.add("model", "--multi-latent-attention")
        # latent attention stretches its rotations 40 times unless told otherwise
        words.add("model", "--rotary-scaling-factor", "1.0")
    elif model.num_kv_heads != model.num_heads:
        words.add("model", "--group-query-attention")
        words.add("model", "--num-query-groups", model.num_kv_heads)
    window = None if model.window is None else f"{model.window - 1},0"
    backends = {"flash": "auto", "flash1": "auto", "unfused": "unfused", "fused-softmax": "unfused"}
    words.put(
        "model",
        {
            "--softmax-type": "learnable" if model.attention_sinks else None,
            "--window-size": window,
            "--window-attn-skip-freq": model.global_every or None if window else None,
            "--attention-backend": backends[plan.work.attention],
        },
    )
    for name, value in context_words(plan).items():
        several = value if isinstance(value, list) else [value]
        words.add("model", f"--{name.replace('_', '-')}", *several)


_ACTIVATIONS = {
    (True, "silu"): "--swiglu",
    (True, "quick-gelu"): "--quick-geglu",
    (False, "squared-relu"): "--squared-relu",
    (False, "gelu"): None,
}
"""The flag of each, by whether it is gated; gelu alone is what the program has without one."""


def _write_feedforward(words: Words, plan: TrainingPlan) -> None:
    shape = (plan.model.gated, plan.details.activation)
    if shape not in _ACTIVATIONS:
        gate = "a gated " if shape[0] else ""
        nearest = f"details.activation={'silu' if shape[0] else 'gelu'}"
        raise CannotExpress(NAME, f"it has no flag for {gate}{shape[1]}", nearest=nearest)
    if (flag := _ACTIVATIONS[shape]) is not None:
        words.add("model", flag)


def _write_positions(words: Words, plan: TrainingPlan) -> None:
    model, work = plan.model, plan.work
    longest = max(work.seq_len, _decoder_seq_len(plan) if model.family == "encoder-decoder" else 0)
    if model.positions == "learned" and model.max_positions < longest:
        reason = (
            f"a table of {model.max_positions} positions is shorter than the sequence of {longest}"
        )
        raise CannotExpress(NAME, reason, nearest=f"seq_len={model.max_positions}")
    table = model.max_positions if model.positions == "learned" else longest
    words.add("model", "--max-position-embeddings", table)
    if plan.details.rope_scaling is not None:
        words.add("model", "--use-rope-scaling")
        words.add("model", "--rope-scaling-factor", plan.details.rope_scaling)


def _write_experts(words: Words, plan: TrainingPlan, moe: MoeSpec) -> None:
    model, details = plan.model, plan.details
    if moe.expert_bias != model.linear_bias:
        reason = "--disable-bias-linear takes the biases of experts with those of all linear layers"
        raise CannotExpress(NAME, reason, nearest=f"moe.expert_bias={int(model.linear_bias)}")
    etp = expert_tp(plan.layout)
    if moe.expert_bias and etp > 1:
        reason = f"experts with biases are not cut over ranks (etp={etp})"
        raise CannotExpress(NAME, reason, nearest="etp=1")
    if model.hybrid is None and (moe.first_dense_layers or moe.layer_frequency > 1):
        words.add("experts", "--moe-layer-freq", _frequency(model, moe))
    assert details.router_balance is not None
    words.add("experts", "--moe-router-load-balancing-type", BALANCE[details.router_balance])
    if details.router_balance == "bias":
        words.add("experts", "--moe-router-enable-expert-bias")
    if moe.top_k == 1 and details.router_score == "softmax":
        # a softmax over one chosen expert is 1 whatever its score
        words.add("experts", "--moe-router-pre-softmax")
    _write_dispatcher(words, plan)
    words.add("experts", "--moe-router-dtype", "fp32")
    if words.version < _ANY_GROUPED and plan.work.precision in ("fp32", "tf32", "fp16"):
        reason = "grouped products of experts run in bf16 only before core 0.16"
        raise CannotExpress(NAME, reason, nearest="precision=bf16")
    words.add("experts", "--moe-grouped-gemm")
    words.add("experts", "--moe-permute-fusion")


def _write_dispatcher(words: Words, plan: TrainingPlan) -> None:
    if plan.stack.dispatcher == "alltoall" or plan.layout.ep == 1:
        words.add("experts", "--moe-token-dispatcher-type", "alltoall")
        return
    words.add("experts", "--moe-token-dispatcher-type", "flex")
    if words.has("--moe-flex-dispatcher-backend"):
        words.add("experts", "--moe-flex-dispatcher-backend", "deepep")
    else:
        words.add("experts", "--moe-enable-deepep")


def _frequency(model: ModelSpec, moe: MoeSpec) -> str:
    """Return which layers have experts: dense ones first, then the last of every
    `layer_frequency`."""
    every = moe.layer_frequency
    rounds, left = divmod(model.num_layers - moe.first_dense_layers, every)
    first = f"[0]*{moe.first_dense_layers}+" if moe.first_dense_layers else ""
    unit = f"([0]*{every - 1}+[1])*{rounds}" if every > 1 else f"[1]*{rounds}"
    return f"({first}{unit}{f'+[0]*{left}' if left else ''})"


def _write_vocabulary(words: Words, plan: TrainingPlan) -> None:
    null = plan.settings.tokenizer_kind == "null"
    added = null and words.version <= NULL_COUNTS_EOD
    words.add("data", "--vocab-size", plan.model.vocab - added)


def _write(plan: TrainingPlan) -> Exported:
    """Return the arguments, the environment and a script."""
    words = Words(plan.megatron_version)
    program = _program_of(plan.model, words.version)
    for bound in bound_flags():
        if (values := bound.words(field_of(plan, bound.field))) is not None:
            words.add(bound.group, bound.flag, *values)
    _write_model(words, plan)
    write_pipeline(words, model=plan.model, layout=plan.layout)
    write_layout(words, plan)
    _write_training(words, plan)
    variables, extra = environment(plan), _extra(plan)
    for group in words.groups:  # what is handed on stands once
        words.groups[group] = [entry for entry in words.groups[group] if entry[0] not in extra]
    per_node = min(plan.pool.node.chips_per_node, plan.pool.num_chips)
    nodes = -(-plan.pool.num_chips // per_node)
    text = _script_text(
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


def _extra(plan: TrainingPlan) -> tuple[str, ...]:
    """Return the words that are handed on, a batch ramp as the layout runs it."""
    words = plan.settings.extra
    if RAMP not in words:
        return words
    at = words.index(RAMP)
    ramp = words[at + 1 : at + 4]
    fits = fitting_ramp(ramp, unit=ramp_unit(plan.layout), to=plan.layout.gbs)
    return (*words[:at], *(() if fits is None else (RAMP, *fits)), *words[at + 1 + len(ramp) :])


def _notes(plan: TrainingPlan) -> tuple[str, ...]:
    notes = []
    if (extra := _extra(plan)) != plan.settings.extra:
        fits = extra[(at := extra.index(RAMP)) + 1 : at + 4] if RAMP in extra else None
        notes.append(ramp_note(fits, unit=ramp_unit(plan.layout)))
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


def _trained_layers(plan: TrainingPlan, exported: Exported) -> TrainedLayers:
    """Return the layers that the written command line trains."""
    return read_chunks(split_words(exported.command[1:]))


MEGATRON_LM = ExportTarget(
    name=NAME,
    title="Megatron-LM",
    versions="core 0.12 to 0.20; T5 and BERT to 0.17.1",
    write=_write,
    trained_layers=_trained_layers,
    stacks=(
        "megatron",
        "megatron-half-gradients",
        *BF16_GRADIENTS,
        "megatron-no-overlap",
        "primus",
    ),
    takes_extra=True,
)
