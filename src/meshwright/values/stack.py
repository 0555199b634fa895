"""Training software, as the cost model sees it: what it overlaps, fuses, shards and keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, get_args, get_type_hints

from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.stack_files import all_entries, find_entry
from meshwright.values.workload import Precision

__all__ = [
    "NATIVE_LOSS_BYTES",
    "PLAIN_LOSS_BYTES",
    "ContextExchange",
    "Factors",
    "Feature",
    "Stack",
    "figure_source",
    "find_stack",
    "lowest_basis",
    "stack_names",
]

LEAST, MOST = 0.05, 20.0
"""Beyond these a factor is a slip, or the run is not the one that was described."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Factors:
    """Multiples of the model's times and bytes; 1 is the model. A calibration fits them to runs."""

    compute: float = 1.0
    """Time of the chip's work: products, attention, element-wise passes, recompute, embedding, head
    and loss, optimizer."""
    tensor: float = 1.0
    """Time of tensor-parallel collectives, before what hides them."""
    context: float = 1.0
    """Time of the exposed context-parallel exchange."""
    expert: float = 1.0
    """Time of the exposed expert-parallel exchange."""
    data: float = 1.0
    """Time of gradient reductions and weight gathers, plain or sharded, before what hides them."""
    pipeline: float = 1.0
    """Time of pipeline messages."""
    activations: float = 1.0
    """Bytes that come and go in a step: kept activations, recompute workspace, logits."""
    states: float = 1.0
    """Bytes that stay: weights, gradients, optimizer, and gathered copies of them."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not LEAST <= value <= MOST:
                raise ConfigError(
                    f"factor {one.name}={value}: expected a number from {LEAST} to {MOST}"
                )


Feature = Literal["tp_overlap", "dp_overlap", "cross_entropy_fused"]
"""What a command line switches on, and a stack counts on."""

NATIVE_LOSS_BYTES = 8.0
"""Bytes per logit that Megatron-Core's own fused loss keeps beside the half-precision logits: an
fp32 copy and fp32 exponentials."""
PLAIN_LOSS_BYTES = 4.0
"""Bytes per logit of an fp32 copy (megatron/core/tensor_parallel/cross_entropy.py works on it in
place)."""


ContextExchange = Literal["ring", "gather", "all-to-all", "two-level", "kv-gather", "fastest"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """One training software; `software/*/stack.toml` holds them with the source of each figure."""

    name: str
    family: Literal["megatron", "fsdp"] = "megatron"
    """Whose layout rules hold."""
    embedded: bool = False
    """Whether it is the embedded trainer run op by op, whose host times and element-wise operators
    `meshwright profile` measures."""
    tp_overlap: float = 0.0
    """Share of the tensor-parallel collectives that can hide behind matrix products."""
    sequence_parallel: Literal["megatron", "dtensor", "dtensor-per-product"] = "megatron"
    """How activations lie that sequence parallelism gathers and scatters: sequence first; or, as in
    plain PyTorch, by sequence of the batch first, so that with several sequences a micro batch they
    lie in strides and are copied; and there, whether the gradient of a block's input is scattered
    as a sum or once for each of its products."""
    dp_overlap: float = 0.0
    """Share of data-parallel collectives that hide behind the last backward and first forward."""
    fsdp_overlap: float = 0.0
    """Share of zero3's gathers and scatters that can hide behind a layer's compute."""
    cp_overlap: float = 0.0
    """Share of the context-parallel exchange that can hide behind attention."""
    ep_overlap: float = 0.0
    """Share of the expert all-to-alls that can hide behind compute."""
    dispatcher: Literal["alltoall", "flex"] = "alltoall"
    """How tokens reach their experts: `alltoall`, a copy per expert through NCCL, sorted before and
    after; `flex`, DeepEP's and HybridEP's kernels, a copy per rank and one per domain over the
    network, sorted on arrival."""
    expert_capacity: float = 0.0
    """Capacity factor that experts are padded to where the model names none; 0: no token is
    dropped."""
    token_picking: Literal["indices", "one-hot"] = "indices"
    """How tokens are brought into the order of their experts: by their indices, or by products with
    one-hot masks over every place of every expert (GShard, arXiv:2006.16668)."""
    context_exchange: ContextExchange = "ring"
    """How context-parallel ranks share a sequence. ring: keys and values are passed round; gather:
    those of all query heads are gathered at once, and fp32 gradients passed round (torch's);
    all-to-all: tokens are swapped for heads around attention (arXiv:2309.14509); two-level: they
    are among neighbours, whose groups form a ring; kv-gather: keys and values are gathered before,
    and their gradients scattered; fastest: whichever of these is, layout by layout."""
    grouped_products: Literal["library", "streams", "megablox"] = "library"
    """What multiplies experts: a library's grouped product; a kernel each, two at a time; or
    MaxText's kernel in fixed tiles, of which neighbouring experts share some (not where tokens are
    padded to a capacity: those go through plain products)."""
    attention_library: Literal["vendor", "flash2"] = "vendor"
    """Whose fused attention runs as `flash`: the chip vendor's best, or FlashAttention-2."""
    p2p: Literal["blocking", "overlapped"] = "blocking"
    """Whether pipeline messages stop the sender in plain 1F1B; interleaved ones overlap."""
    p2p_scattered: float = 0.0
    """Share of a pipeline's messages of which each tensor-parallel rank sends its part alone, to be
    gathered at the receiver. With sequence parallelism all are."""
    messages_ahead: bool = False
    """Whether a pipeline makes a receive buffer for every micro batch beforehand, and keeps
    them."""
    gradient_bytes: float = 4.0
    """Bytes per gradient kept between micro batches."""
    reduce_bytes: float = 4.0
    """Bytes per gradient in the data-parallel reduction."""
    replicated_reduce_bytes: float = 0.0
    """The same where nothing is sharded, if that differs: torch's DDP reduces what autocast leaves,
    fp32, where FSDP reduces halves."""
    transient_gradient_bytes: float = 0.0
    """Bytes per parameter of a second gradient of replicas that hold whole ones: a bf16 one beside
    the fp32 sum, or the buckets of torch's DDP, which are copies."""
    gradients_freed: bool = False
    """Whether zero3 frees gradients after a step, so that none are there when the next backward
    pass begins (torch's set_to_none)."""
    shards_by_tensor: bool = False
    """Whether zero3 shards tensor by tensor, as FSDP2 does: what is gathered is copied out into
    whole tensors, and gradients are copied into what is scattered; FSDP1's are views of one
    buffer."""
    zero1_shards: Literal["states", "states-over-dp", "states-and-gradients"] = "states"
    """What zero1 splits: the optimizer's states over data-parallel and context-parallel ranks; over
    data-parallel ranks alone (nanotron's ZeroDistributedOptimizer takes dp_pg); or gradients too,
    scattered as they are made (MindSpore saves parameters in slices, gathers them for the forward
    pass and scatters their gradients; mindspore.cn, Optimizer Parallel)."""
    zero1_exchange: Literal["behind-passes", "after-passes"] = "behind-passes"
    """When zero1 exchanges: gradients are scattered behind the last backward pass and weights
    gathered behind the next forward pass, as far as `dp_overlap` says; or gradients are reduced
    whole after the one and weights gathered before the other, with nothing beside them (nanotron
    with fp32 sums: `make_ddp` and `sync_gradients_across_dp` of its trainer.py)."""
    reduction_deferred: bool = False
    """Whether zero3 keeps whole gradients between micro batches and reduces in the last alone."""
    accumulate_bytes: float = 0.0
    """Bytes moved per weight and micro batch where its gradient is added to the step's sum in a
    pass of its own: the gradient read, the sum read and written. 0 where the product of the
    gradient adds, where each micro batch is reduced, and where the pass is not told apart."""
    zero3_weights: Literal["master", "master-and-half"] = "master"
    """What zero3 keeps of the weights: shards that the optimizer updates, cast where they are
    gathered (FSDP), or a half-precision shard beside them (DeepSpeed)."""
    attention_in_8_bits: bool = False
    """Whether fused attention multiplies in fp8 and keeps its inputs so (Megatron-Core's
    fp8_dot_product_attention)."""
    narrow_linear: Literal["transformer-engine", "torchao", "torchao-gathers"] = (
        "transformer-engine"
    )
    """Whose linear layers run in narrow formats. Transformer Engine's keep their input in them for
    the backward pass; torchao's keep the half-precision one (`matmul_with_hp_or_float8_args` of
    torchao/float8/float8_linear.py). `torchao-gathers` also casts fully sharded weights, and what
    sequence parallelism gathers for a product, before they are gathered, where a tensor has one
    8-bit scale."""
    attention_output_bytes: float = 0.0
    """Bytes per element in which attention's output waits for the backward pass of its projection
    where linear layers are narrow, if not those of their other inputs."""
    narrow_weight_copies: float = 0.0
    """Copies of the linear layers' weights in a narrow format that stay beside the half-precision
    ones between micro batches: by rows and by columns where they are cast from them; none where the
    model's weights are narrow themselves (`fp8_param_gather`)."""
    frozen_weight_bytes: float = 2.0
    """Bytes per weight of layers beside adapters: 2, or about half of one in four bits (QLoRA);
    with `narrow_param_gather` no more than their 8-bit copies."""
    narrow_activation_input: bool = False
    """Whether a feed-forward keeps its activation's input in 8 bits (Megatron-Core's
    activation_func_fp8_input_store)."""
    adapter_scale_fused: bool = False
    """Whether a product of an adapter scales its result by alpha / rank itself, as NeMo AutoModel's
    Triton kernels do; else that is a pass over the whole correction, and one over its gradient."""
    master_bytes: float = 4.0
    """Bytes per parameter of the weights that the optimizer updates, beside the half-precision
    ones: 4 of an fp32 copy, 2 where the half is its upper part, 0 where it updates those."""
    moment_bytes: float = 8.0
    """Bytes per parameter of Adam's two moments."""
    gathered: Literal["layer", "matrix"] = "layer"
    """What zero3 gathers at a time: a whole layer, or one matrix just before its product."""
    offloads_inputs: bool = False
    """Whether layers' inputs wait in host memory, brought back behind the layer before."""
    offloads_kept: bool = False
    """The same for what selective recompute keeps beyond a layer's input."""
    offloads_outputs: bool = False
    """The same for what feed-forwards and experts hand back, which recompute then does not make
    again."""
    offloads_attention: bool = False
    """Whether what attention modules keep waits in host memory, brought back behind the layers
    between."""
    offloaded_layers: int = 0
    """Layers of a stage whose activations wait in host memory whole, hidden behind those above."""
    step_gather_bytes: float = 0.0
    """Bytes per parameter of the copy into which an optimizer step under zero1 gathers updated
    weights; activations are gone by then."""
    step_shard_bytes: float = 0.0
    """Bytes per parameter of a rank's own shard that such a step holds beside them: what it sends,
    in a copy of its own."""
    step_bytes: float = 0.0
    """Bytes per updated parameter that any optimizer step holds beside states and gradients: casts
    and temporaries of what is not fused."""
    host_buffers: float = 1.0
    """Host memory that offloaded states take, over their own size."""
    bucket_copies: float = 0.0
    """Buffers of `bucket_bytes` that gradients are copied into on their way to other ranks, beside
    the gradients: DeepSpeed's two where the exchange overlaps, one with zero3 (`setup_buckets` of
    runtime/zero/stage_1_and_2.py and stage3.py)."""
    bucket_bytes: float = 160e6
    """Size of one data-parallel collective: a bucket, or a tensor without buckets."""
    bucket_params: float = 0.0
    """The same in parameters, where the software counts them, whatever type they are sent in; one
    bucket where nothing overlaps. 0: `bucket_bytes` holds."""
    bucket_params_per_rank: float = 0.0
    """Least parameters of a bucket per rank that shares it: larger groups need larger buckets."""
    narrow_param_gather: bool = False
    """Whether zero1 gathers updated weights in 8 bits where a tensor has one scale (Megatron-Core's
    fp8_param_gather; block-scaled formats are gathered in half precision and cast)."""
    vocab_multiple: int = 128
    """The vocabulary is padded to a multiple of this times tp."""
    pointwise_fused: bool = True
    """Whether bias, activation, dropout and residual run as few fused kernels."""
    query_norms_joined: bool = False
    """Whether norms of queries and keys run in rotary's passes, as a compiler joins them."""
    routing_fused: bool = False
    """Whether router and permutation of experts run as few fused kernels (Megatron-Core's
    moe_router_fusion, moe_permute_fusion)."""
    expert_bias_fused: bool = False
    """Whether biases of experts are added, and their gate clamped, inside another kernel, as a
    compiler of whole graphs does and Transformer Engine's fused grouped feed-forward."""
    rotation_factor_fused: bool = True
    """Whether rotations that carry a factor (YaRN's) run as one kernel; Megatron-Core from 0.16 on
    falls back to plain PyTorch for them."""
    rotation_keeps_input: bool = False
    """Whether the rotation of queries and keys keeps what it turns for its backward pass; angles
    are enough."""
    cross_entropy_fused: bool = False
    """Whether the loss keeps no fp32 copy of the logits."""
    vocab_parallel_loss: bool = True
    """Whether each tensor-parallel rank keeps its share of the logits; else they are gathered and
    every rank computes the whole loss."""
    logits_bytes: float = 4.0
    """Bytes per logit at the peak of the loss beyond the half-precision logits themselves."""
    loss_tile: float = 0.0
    """Logits that the loss holds at a time, and makes again for the backward pass; 0: all of a
    micro batch."""
    head_gradient_bytes: float = 0.0
    """Bytes per weight of the output head that its backward pass holds beside the logits: the
    half-precision gradient that autograd is handed where the true one is added to the fp32 sum
    inside the product (`grad_added_to_main_grad` of megatron/core/tensor_parallel/layers.py)."""
    launch_hidden: float = 0.0
    """Share of kernel launches that CUDA graphs or compilation remove."""
    kernels_per_layer_scale: float = 1.0
    """Kernels launched per layer against a Transformer Engine layer."""
    collective_check_s: float = 0.0
    """Host time of a collective per member of its group where the members compare what each is
    about to send (TORCH_DISTRIBUTED_DEBUG=DETAIL); 0 without that check."""
    recompute_stops_early: bool = False
    """Whether recompute leaves out a layer's last product, which its backward never reads."""
    step_overhead_s: float = 0.0
    """Host work per step outside the model: data, logging, optimizer bookkeeping."""
    context_bytes: float = 0.0
    """CUDA context and library handles on each chip: used, never allocated by the framework;
    communicators come on top."""
    in_switch_reductions: bool = True
    """Whether communicators may reduce in the switch, with buffers (NCCL_NVLS_ENABLE)."""
    gathered_copies: float = 0.0
    """Whole copies of a layer's input that stay allocated where sequence parallelism gathers it."""
    library_workspaces: float = 2.0
    """Handles of the matrix-product library with a workspace each: one for each of torch's two
    threads (forward and backward), and one of Transformer Engine."""
    grouped_workspaces: float = 0.0
    """More of them for experts' grouped products: Transformer Engine runs those on four streams
    (cpp_extensions/gemm.py)."""
    thread_workspace_bytes: float = 0.0
    """Workspace of each of torch's two handles where the run sets a larger one
    (CUBLAS_WORKSPACE_CONFIG=:4096:8 of deterministic runs)."""
    fragmentation_frac: float = 0.0
    """Reserved beyond allocated where tensors pass through exchanges, against what comes and goes
    in a step in many pieces: activations and workspaces, not logits."""
    release: str = ""
    """Which release of it, whose recipe says how it starts (`search/started.py`); empty: not
    said."""
    source: str = ""
    """What it is, in a line; `figure_source` says where each figure comes from."""
    factors: Factors = field(default_factory=Factors)
    """What a calibration found on the user's own runs."""

    @property
    def fused_loss(self) -> Literal["native", "te"] | None:
        """Megatron-Core's name of its fused loss (`cross_entropy_fusion_impl`), None where the loss
        is not fused: `te` writes gradients over the logits, `native` keeps an fp32 copy of them
        beside their fp32 exponentials."""
        if self.family != "megatron" or not self.cross_entropy_fused:
            return None
        return "native" if self.logits_bytes else "te"

    def in_precision(self, precision: Precision) -> Stack:
        """Return the software as it trains in this precision: in fp32 and tf32 weights are fp32,
        and so is every gradient that is kept or sent; the fused loss that hands back bf16 is for
        bf16 alone; and weights of four bits are cast from half-precision ones."""
        stack = self
        if precision == "nvfp4" and self.family == "megatron":
            stack = replace(self, narrow_weight_copies=2.0)
        if precision in ("fp32", "tf32") or (precision == "fp16" and self.fused_loss == "native"):
            stack = stack.with_plain_loss()
        if precision not in ("fp32", "tf32"):
            return stack
        added = 12.0 if self.accumulate_bytes else 0.0
        # buckets stay; a half beside an fp32 sum is no more
        second = 4.0 if self.transient_gradient_bytes == 4.0 else 0.0
        return replace(
            stack,
            gradient_bytes=4.0,
            reduce_bytes=4.0,
            transient_gradient_bytes=second,
            accumulate_bytes=added,
        )

    def with_plain_loss(self) -> Stack:
        """Return the software with Megatron-Core's plain loss, which works in place on an fp32 copy
        of the logits; as it is where its loss is not one of Megatron-Core's fused ones."""
        if self.fused_loss is None:
            return self
        return replace(self, cross_entropy_fused=False, logits_bytes=PLAIN_LOSS_BYTES)

    def without(self, features: Iterable[Feature]) -> Stack:
        """Return the software with some of what it can do switched off."""
        stack = self
        for feature in features:
            none: dict[str, Any] = {feature: 0.0}
            fused = feature == "cross_entropy_fused"
            stack = stack.with_plain_loss() if fused else replace(stack, **none)
        return stack

    def on_processors(self) -> Stack:
        """Return the software as it runs on CPUs: exchanges take the cores that compute needs, so
        that none hides; and there is neither a context, nor a workspace of a library, nor an
        allocator that holds memory back."""
        none: dict[str, Any] = dict.fromkeys(_OF_ACCELERATORS.split(), 0.0)
        return replace(self, **none)


_OF_ACCELERATORS = (
    "tp_overlap dp_overlap fsdp_overlap cp_overlap ep_overlap launch_hidden context_bytes"
    " library_workspaces grouped_workspaces fragmentation_frac"
)


@cache
def _stack(name: str) -> Stack | None:
    """Return a stack by its exact name, with what it inherits."""
    entry = find_entry(name)
    if entry is None:
        return None
    basis = None if entry.builds_on is None else _basis(entry.builds_on, (name,))
    own = {field: _checked(field, value, entry.place) for field, value in entry.figures.items()}
    if entry.family is not None:
        own["family"] = _checked("family", entry.family, entry.place)
    if basis is None:
        return Stack(name=name, source=entry.about, **own)
    return replace(basis, name=name, source=entry.about, **own)


def _basis(name: str, above: tuple[str, ...]) -> Stack:
    """Return the stack that others build on; ConfigError if absent, or built on them in turn."""
    at, chain = name, above
    while (entry := find_entry(at)) is not None and entry.builds_on is not None:
        chain, at = (*chain, at), entry.builds_on
        if at in chain:
            raise ConfigError(f"stack {above[0]} builds on itself: {' > '.join((*chain, at))}")
    found = _stack(name)
    if found is None:
        raise UnknownNameError(f"stack that {above[-1]} builds on", name, stack_names())
    return found


@cache
def lowest_basis(name: str) -> str:
    """Return the stack that another builds on in the end, itself where it builds on none; empty
    for one that no file names."""
    entry = find_entry(name)
    while entry is not None and entry.builds_on is not None:
        name, entry = entry.builds_on, find_entry(entry.builds_on)
    return "" if entry is None else name


_FIELDS = {
    one.name: one
    for one in fields(Stack)
    if one.name not in ("name", "release", "source", "factors")
}
"""What a file may set."""


@cache
def _words(field_name: str) -> tuple[str, ...]:
    """Return the words that a field takes; none where it is no such field."""
    return get_args(get_type_hints(Stack)[field_name])


def _checked(name: str, value: Any, place: str) -> Any:
    """Return a figure of a file in its field's type; ConfigError says what it should have been."""
    if name not in _FIELDS:
        raise UnknownNameError(f"{place}: figure", name, _FIELDS)
    default = _FIELDS[name].default
    if isinstance(default, str):
        if value not in _words(name):
            raise UnknownNameError(f"{place}: {name}", str(value), _words(name))
        return value
    is_flag = isinstance(default, bool)
    if isinstance(value, bool) != is_flag or not isinstance(value, int | float):
        wanted = "true or false" if is_flag else "a number"
        raise ConfigError(f"{place}: {name}={value}: expected {wanted}")
    if is_flag:
        return value
    return float(value) if isinstance(default, float) else int(value)


def stack_names() -> list[str]:
    """Return the names of all stacks."""
    return [entry.name for entry in all_entries()]


def find_stack(name: str) -> Stack:
    """Return a stack by name, `NAME@RELEASE` for one release of it; UnknownNameError with the
    nearest names if there is none."""
    plain, at, release = name.lower().partition("@")
    if at and not release:
        raise ConfigError(f"stack={name}: expected a release after @, as megatron-bridge@26.02")
    found = _stack(plain)
    if found is None:
        raise UnknownNameError(
            "stack", name, stack_names(), hint="; `meshwright stacks` says what each is"
        )
    return replace(found, release=release) if release else found


def figure_source(name: str, figure: str) -> str:
    """Return where a figure of a stack comes from: its own file, or that of the nearest stack that
    it builds on and that sets it; empty where none does."""
    inherited, at = "", name
    while (entry := find_entry(at)) is not None:
        if figure in entry.sources:
            return f"{inherited}{entry.sources[figure]}"
        if entry.builds_on is None:
            break
        at, inherited = entry.builds_on, f"as {entry.builds_on}: "
    return ""
