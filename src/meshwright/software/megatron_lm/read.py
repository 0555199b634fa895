"""A command line or a shell script of Megatron-LM as a model, a workload and a layout."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from meshwright.search.rules.software import parse_version
from meshwright.software.contract import Imported, ImportSource, bf16_gradients, left_off
from meshwright.software.megatron_core.layout import STRATEGIES
from meshwright.software.megatron_core.model import FP8_WEIGHTS
from meshwright.software.megatron_lm.export import NULL_COUNTS_EOD, split_words
from meshwright.software.megatron_lm.mend import mended
from meshwright.software.megatron_lm.pipeline import PRECISION_FLAGS, read_chunks
from meshwright.software.megatron_lm.read_model import fields_below, read_model
from meshwright.software.megatron_lm.shell import Script, read_script
from meshwright.software.megatron_lm.words import NAME, Args, Bound, bound_flags, variable_hint
from meshwright.software.settings import Dataset, ModelDetails, TrainingSettings
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.models.spec import Family, ModelSpec
from meshwright.values.stack import Feature, Stack, find_stack
from meshwright.values.workload import CP_COMM_TYPES, CpCommType, Precision, Workload

__all__ = ["HALF_GRADIENTS", "MEGATRON_LM_SOURCE", "read_flags"]

_SWITCHES: Mapping[Feature, str] = {
    "tp_overlap": "--tp-comm-overlap",
    "dp_overlap": "--overlap-grad-reduce",
    "cross_entropy_fused": "--cross-entropy-loss-fusion",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _FoundStack:
    """A stack by its name, and what a command line leaves off of it."""

    name: str
    left_off: tuple[Feature, ...]


HALF_GRADIENTS = "megatron-half-gradients"
"""Stack of a script that sums gradients in 2 bytes and is else Megatron-Core's own."""


def _read_stack(
    args: Args,
    model: ModelSpec,
    precision: Precision,
    layout: Mapping[str, Any],
    *,
    named: str | None,
) -> _FoundStack:
    """Return the stack as it is named, else by what overlaps, by how experts exchange, and by the
    precision in which gradients are summed."""
    given = frozenset(feature for feature, flag in _SWITCHES.items() if args.switch(flag))
    overlaps = args.switch("--overlap-param-gather") or not given.isdisjoint(
        ("tp_overlap", "dp_overlap")
    )
    wide = args.switch("--accumulate-allreduce-grads-in-fp32")
    if named is not None:
        name = named
    elif args.switch("--grad-reduce-in-bf16") or (precision == "fp16" and not wide):
        flex = args.has_words("--moe-token-dispatcher-type", "flex")
        by_te = args.has_words("--cross-entropy-fusion-impl", "te")
        name = bf16_gradients("flex" if flex else "alltoall") if flex or by_te else HALF_GRADIENTS
    else:
        name = "megatron" if overlaps else "megatron-no-overlap"
    stack = find_stack(name).in_precision(precision)
    _read_loss(args, stack, fused="cross_entropy_fused" in given)
    missing = left_off(stack, model, layout, switches=_SWITCHES, given=given)
    args.warnings += missing.warnings
    if precision in FP8_WEIGHTS and not stack.narrow_weight_copies:
        for flag in ("--fp8-param-gather", "--reuse-grad-buf-for-mxfp8-param-ag"):
            args.switch(flag)
    return _FoundStack(name=name, left_off=missing.features)


def _read_loss(args: Args, stack: Stack, *, fused: bool) -> None:
    """Hand on the flags of a fused loss that an export of the stack does not write."""
    kernel = args.text("--cross-entropy-fusion-impl")
    if fused and stack.fused_loss is None:
        args.hand_on("--cross-entropy-loss-fusion")
    if kernel is not None and kernel != (stack.fused_loss or "native"):
        args.hand_on("--cross-entropy-fusion-impl", kernel)


_LEGACY_TOKENIZERS = {
    "BertWordPieceLowerCase": "bert-wordpiece",
    "SentencePieceTokenizer": "sentencepiece",
    "Llama2Tokenizer": "sentencepiece",
}
_USUAL = (
    *(("--ckpt-format", "torch_dist"), ("--ckpt-format", "fsdp_dtensor"), ("--log-throughput",)),
    *(("--distributed-timeout-minutes", "60"), ("--moe-token-dispatcher-type", "alltoall")),
    *(("--moe-router-dtype", "fp32"), ("--moe-grouped-gemm",), ("--moe-permute-fusion",)),
    *(("--moe-router-pre-softmax",), ("--no-gradient-accumulation-fusion",), ("--mock-data",)),
    ("--use-mcore-models",),
)
"""What an export writes whatever the plan."""
_FLEX = (("--moe-flex-dispatcher-backend", "deepep"), ("--moe-enable-deepep",))
"""What an export writes besides for a stack whose experts exchange through DeepEP."""
_FLEX_STACKS = ("megatron-bridge-25.09", "primus")
_UNPRICED = {
    *("--moe-token-dispatcher-type", "--overlap-moe-expert-parallel-comm"),
    *("--moe-shared-expert-overlap", "--delay-wgrad-compute", "--cuda-graph-impl"),
    *("--enable-cuda-graph", "--external-cuda-graph", "--cpu-offloading"),
    *("--optimizer-cpu-offload", "--fine-grained-activation-offloading", "--exp-avg-dtype"),
    *("--exp-avg-sq-dtype", "--main-params-dtype", "--main-grads-dtype", "--fp8-param-gather"),
    *("--fp4-param-gather", "--moe-expert-capacity-factor"),
    *("--moe-pad-expert-input-to-capacity", "--rampup-batch-size", "--optimizer"),
}
"""Flags that change a step's time or memory, and that no plan has a word for."""


_FLAGS = re.compile(
    r"pretrain_(?:gpt|t5|bert|mamba|hybrid)\.py|--tensor-model-parallel-size|--num-attention-heads"
)


def read_flags(text: str, *, stack: str | None = None) -> Imported:
    """Read a script, or flags alone; nothing in it is executed. `stack` is the software that is
    started so, where that is not Megatron-LM itself."""
    script = read_script(text)
    args = Args(split_words(script.words))
    if script.branches:
        args.warnings.append(
            "the script has conditions; all of their branches were read, the last setting holds"
        )
    version = re.search(r"^# Megatron-LM, core ([0-9.]+[0-9])", text, flags=re.MULTILINE)
    chunks = read_chunks(split_words(script.words))
    fields = _bound_fields(args)
    _read_feedforward(args, fields)
    null_adds = int(version is not None and (*parse_version(version[1]), 0)[:2] <= NULL_COUNTS_EOD)
    model = read_model(args, program=script.program, fields=fields, null_adds=null_adds)
    chips, per_node = _chips(script)
    split = fields["layout.tp"] * fields["layout.pp"] * fields["layout.cp"]
    if chips is not None and chips < split:
        # Public examples are written so, to be changed for the cluster: on one that is named,
        # replicas follow.
        args.warnings.append(
            f"the script starts {chips} processes, and tp * pp * cp = {split}: the number of its"
            " GPUs is left out"
        )
        chips = None
    layout = _layout(args, fields, chunks.chunks, chips)
    work = _work(args, fields, script, family=model.family)
    settings = _settings(args, fields, layout.get("gbs"), work)
    details = _details(
        args, fields, has_experts=model.moe is not None, has_mtp=bool(model.mtp_layers)
    )
    found = _read_stack(args, model, work.precision, layout, named=stack)
    flex = (
        _FLEX
        if found.name in _FLEX_STACKS and args.drop("--moe-token-dispatcher-type", "flex")
        else ()
    )
    for flag, *usual in (*_USUAL, *flex):
        args.drop(flag, *usual)
    args.hand_on_rest()
    _warn_of_unpriced(args)
    return Imported(
        source=NAME,
        model=model,
        work=work,
        layout=layout,
        stack=found.name,
        left_off=found.left_off,
        settings=settings,
        details=details,
        megatron_version=None if version is None else version[1],
        num_chips=chips,
        chips_per_node=per_node,
        warnings=tuple(args.warnings),
        passed_through=tuple(args.passed),
    )


def _bound_fields(args: Args) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    word = args.text("--tokenizer-type") if args.has("--tokenizer-type") else None
    if word is not None:
        fields["tokenizer_word"] = word
    for bound in bound_flags():
        words = (word,) if bound.flag == "--tokenizer-type" and word else args.words(bound.flag)
        if word is not None and bound.flag == "--tokenizer-type" and word in _LEGACY_TOKENIZERS:
            args.hand_on(bound.flag, word)
            fields[bound.field] = _LEGACY_TOKENIZERS[word]
            continue
        if words is None and bound.form in ("switch", "off"):
            fields[bound.field] = bound.form == "off"
        elif words is not None or bound.default:
            value = _value(bound, (bound.default,) if words is None else words)
            _note(args, fields, bound.field, value, bound.flag)
    return fields


def _value(bound: Bound, words: tuple[str, ...]) -> Any:
    try:
        return bound.value(words)
    except ConfigError as error:
        raise ConfigError(f"{error}{''.join(variable_hint(word) for word in words[:1])}") from None


def _note(args: Args, fields: dict[str, Any], field: str, value: Any, flag: str) -> None:
    if fields.get(field, value) != value:
        args.warnings.append(
            f"{flag} {value} and {fields[field]} of its twin: a plan has one value, {fields[field]}"
        )
        args.hand_on(flag, str(value))
        return
    fields[field] = value


def _read_feedforward(args: Args, fields: dict[str, Any]) -> None:
    gates = {"--swiglu": "silu", "--quick-geglu": "quick-gelu"}
    given = [activation for flag, activation in gates.items() if args.switch(flag)]
    fields["details.activation"] = (
        given[0] if given else "squared-relu" if args.switch("--squared-relu") else "gelu"
    )
    fields["details.activation_gated"] = bool(given)


def _chips(script: Script) -> tuple[int | None, int | None]:
    """Return chips and chips per node from the launcher's words or the script's variables."""
    launcher = split_words(script.launcher)

    def size(*flags: str, names: tuple[str, ...]) -> int | None:
        words = [launcher[flag][0] for flag in flags if launcher.get(flag)] + [
            script.variables[name][0] for name in names if script.variables.get(name)
        ]
        plain = [re.sub(r"^\$\{\w+:-([0-9]+)\}$", r"\1", word) for word in words]
        return next((int(word) for word in plain if re.fullmatch(r"[1-9][0-9]{0,6}", word)), None)

    per_node = size(
        "--nproc-per-node", "--nproc_per_node", names=("GPUS_PER_NODE", "GPUS_PER_WORKER")
    )
    nodes = size("--nnodes", names=("NNODES", "NUM_NODES"))
    return (None if per_node is None else per_node * (nodes or 1), per_node)


_SPLITS = (
    *("--pipeline-model-parallel-layout", "--num-layers-per-virtual-pipeline-stage"),
    *("--num-virtual-stages-per-pipeline-rank", "--decoder-first-pipeline-num-layers"),
    *("--decoder-last-pipeline-num-layers", "--account-for-embedding-in-pipeline-split"),
    "--account-for-loss-in-pipeline-split",
)
"""Flags that `read_chunks` has read."""


def _layout(
    args: Args, fields: dict[str, Any], chunks: tuple[int, ...], chips: int | None
) -> dict[str, Any]:
    layout = fields_below(fields, "layout.")
    pp = layout["pp"]
    if len(chunks) > pp:
        layout["vpp"] = len(chunks) // pp
    if len(set(chunks)) > 1:
        layout["layers_per_stage"] = chunks
    for flag in _SPLITS:
        args.words(flag)
    if layout["sp"] and layout["tp"] == 1:
        args.warnings.append(
            "--sequence-parallel with one tensor-parallel rank is turned off, as Megatron-LM does"
        )
        layout["sp"] = False
    _read_sizes(args, layout, chips)
    _read_sharding(args, layout)
    _read_recompute(args, layout)
    return layout


def _read_sizes(args: Args, layout: dict[str, Any], chips: int | None) -> None:
    given = args.count("--data-parallel-size")
    split = layout["tp"] * layout["pp"] * layout["cp"]
    if chips is not None and chips % split:
        raise ConfigError(
            f"tp={layout['tp']} * pp={layout['pp']} * cp={layout['cp']} = {split} does not divide"
            f" {chips} GPUs"
        )
    if chips is not None:
        layout["dp"] = chips // split
    if given is not None and layout.setdefault("dp", given) != given:
        raise ConfigError(
            f"--data-parallel-size {given}: {chips} GPUs over tp * pp * cp = {split} leave"
            f" {layout['dp']}"
        )
    if "mbs" not in layout:
        raise ConfigError("--micro-batch-size: expected the sequences of a micro batch")
    if "gbs" not in layout and "dp" in layout:
        layout["gbs"] = layout["mbs"] * layout["dp"]
        args.warnings.append(
            f"no --global-batch-size: one micro batch for each rank, {layout['gbs']}, as"
            " Megatron-LM takes it"
        )


def _read_sharding(args: Args, layout: dict[str, Any]) -> None:
    optimizer = args.switch("--use-distributed-optimizer")
    strategy = args.text("--data-parallel-sharding-strategy")
    fsdp = any([args.switch("--use-megatron-fsdp"), args.switch("--use-custom-fsdp")])
    replicas = args.count("--num-distributed-optimizer-instances") or 1
    if fsdp and strategy not in (*STRATEGIES, None):
        raise ConfigError(
            f"--data-parallel-sharding-strategy {strategy}: expected {', '.join(STRATEGIES)}"
        )
    layout["sharding"] = (
        STRATEGIES[strategy or "optim_grads_params"] if fsdp else "zero1" if optimizer else "none"
    )
    if replicas > 1:
        if layout["sharding"] != "zero3":
            args.hand_on("--num-distributed-optimizer-instances", str(replicas))
            args.warnings.append(
                "--num-distributed-optimizer-instances: a plan has replicas of fully sharded"
                " weights only; passed through"
            )
        elif "dp" not in layout:
            raise ConfigError(
                "--num-distributed-optimizer-instances: the number of GPUs is not in the script;"
                " add --data-parallel-size N"
            )
        else:
            layout |= {"sharding": "hybrid", "shard_size": layout["dp"] * layout["cp"] // replicas}


def _read_recompute(args: Args, layout: dict[str, Any]) -> None:
    granularity = args.text("--recompute-granularity")
    method, layers = args.text("--recompute-method"), args.count("--recompute-num-layers")
    modules = args.words("--recompute-modules")
    if args.switch("--recompute-activations"):
        granularity = "selective"
    if granularity is None:
        if method is not None:
            args.warnings.append(
                "--recompute-method without --recompute-granularity has no effect; nothing is"
                " recomputed"
            )
        return
    layout["recompute"] = granularity
    if granularity == "selective":
        layout["recompute_modules"] = tuple(modules or ("core_attn",))
    else:
        layout |= {"recompute_method": method or "uniform", "recompute_layers": layers}


def _work(args: Args, fields: dict[str, Any], script: Script, *, family: Family) -> Workload:
    seq_len, encoder = args.count("--seq-length"), args.count("--encoder-seq-length")
    if (seq_len or encoder) is None:
        raise ConfigError("--seq-length: expected the tokens in one sequence")
    backend = args.text("--attention-backend") or "auto"
    tokens = cast("int", seq_len or encoder)
    decoder = args.count("--decoder-seq-length") if family == "encoder-decoder" else None
    return Workload(
        seq_len=tokens,
        gbs=fields.get("layout.gbs"),
        decoder_seq_len=None if decoder == tokens // 4 else decoder,
        precision=_precision(args, script),
        attention="unfused" if backend == "unfused" else "flash",
        dropout=fields["details.dropout"] > 0,
        cp_comm_type=_cp_comm_type(args, cp=fields["layout.cp"]),
    )


def _cp_comm_type(args: Args, *, cp: int) -> CpCommType | None:
    """How context-parallel ranks exchange: by default on a ring; of words for each layer the
    first."""
    words = args.words("--cp-comm-type") or ("p2p",)
    levels = args.words("--hierarchical-context-parallel-sizes")
    if len(set(words)) > 1:
        args.hand_on("--cp-comm-type", *words)
    if levels is not None and words[0] != "a2a+p2p":
        args.hand_on("--hierarchical-context-parallel-sizes", *levels)
    if cp == 1:
        return None
    if words[0] not in CP_COMM_TYPES:
        raise UnknownNameError("--cp-comm-type", words[0], CP_COMM_TYPES)
    return words[0]


def _precision(args: Args, script: Script) -> Precision:
    half = "bf16" if args.switch("--bf16") else "fp16" if args.switch("--fp16") else None
    fp8, fp4 = args.text("--fp8-format"), args.text("--fp4-format")
    recipe = args.text("--fp8-recipe") or "delayed"
    args.drop("--fp4-recipe", "nvfp4")
    if fp4 is not None:
        return "nvfp4"
    if fp8 is not None:
        known = {PRECISION_FLAGS[name][2][1]: name for name in ("fp8", "fp8-blockwise", "mxfp8")}
        name = known.get(recipe, "fp8")
        for words in (("--fp8-format", fp8), ("--fp8-recipe", recipe)):
            if words not in PRECISION_FLAGS[name]:
                args.hand_on(*words)
        return cast("Precision", name)
    if half is None and script.variables.get("NVIDIA_TF32_OVERRIDE") == ["1"]:
        return "tf32"
    return cast("Precision", half or "fp32")


def _settings(
    args: Args, fields: dict[str, Any], gbs: int | None, work: Workload
) -> TrainingSettings:
    values = fields_below(fields, "settings.")
    steps, samples = values.get("train_steps"), values.get("train_samples")
    whole = steps or samples or 0
    unit, per_step = ("samples", gbs or 1) if samples and not steps else ("iters", 1)
    warmup, share = args.count(f"--lr-warmup-{unit}"), args.number("--lr-warmup-fraction")
    decay = args.count(f"--lr-decay-{unit}")
    if warmup is not None or share is not None:
        # a share is one of the decay (Megatron-LM's training.py), which lasts the run unless said
        part = (warmup or 0) if share is None else share * (decay or whole)
        values["warmup_steps"] = round(part / per_step)
    if decay not in (None, whole):
        args.hand_on(f"--lr-decay-{unit}", str(decay))
    if values.get("decay_style") == "warmup-stable-decay":
        args.drop("--lr-wsd-decay-style", "exponential")
        args.drop(f"--lr-wsd-decay-{unit}", str(max(1, whole // 10)))
    path = args.words("--data-path")
    if path:
        values["data"] = _blend(path)
    return TrainingSettings(**values)


def _blend(words: tuple[str, ...]) -> tuple[Dataset, ...]:
    parts = tuple(words[0].split()) if len(words) == 1 else words
    if len(parts) == 1:
        return (Dataset(path=parts[0]),)
    try:
        return tuple(
            Dataset(path=path, weight=float(weight))
            for weight, path in zip(parts[::2], parts[1::2], strict=True)
        )
    except ValueError:
        return tuple(Dataset(path=part) for part in parts)


_DETAILS = (
    *("activation", "gate_offset", "gate_clamp", "norm_eps", "dropout", "rope_base", "rope_share"),
    *("aux_loss", "routed_scale", "router_groups", "router_top_groups"),
)


def _details(
    args: Args, fields: dict[str, Any], *, has_experts: bool, has_mtp: bool
) -> ModelDetails:
    values = {name: fields[f"details.{name}"] for name in _DETAILS if f"details.{name}" in fields}
    if args.switch("--use-rope-scaling"):
        values["rope_scaling"] = args.number("--rope-scaling-factor") or 8.0
    if fields["model.positions"] != "rope":
        values.pop("rope_base", None)
        values.pop("rope_share", None)
    if has_mtp:
        values["mtp_loss"] = fields["details.mtp_loss"]
    balance = args.words("--moe-router-load-balancing-type") or ("aux_loss",)
    biased = args.switch("--moe-router-enable-expert-bias")
    if not has_experts:
        values.pop("aux_loss", None)
        return ModelDetails(**values)
    known = {"aux_loss": "aux-loss", "seq_aux_loss": "sequence-aux-loss", "none": "none"}
    if balance[0] not in known or len(balance) > 1 or (biased and balance[0] != "seq_aux_loss"):
        args.hand_on("--moe-router-load-balancing-type", *balance)
    values["router_balance"] = "bias" if biased else known.get(balance[0], "aux-loss")
    values["router_score"] = fields["details.router_score"]
    return ModelDetails(**values)


def _warn_of_unpriced(args: Args) -> None:
    """Say which of the flags that are handed on would move the time or the memory."""
    given = [flag for flag in dict.fromkeys(args.passed) if flag in _UNPRICED]
    if given:
        args.warnings.append(
            f"not priced, only passed through: {', '.join(given)}; this run's own time and memory"
            " may differ by them"
        )


MEGATRON_LM_SOURCE = ImportSource(
    name=NAME,
    title="a Megatron-LM command line",
    matches=lambda _, text: _FLAGS.search(text) is not None,
    read=read_flags,
    last=True,
    mend=mended,
)
