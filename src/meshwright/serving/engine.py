"""Inference engines as the cost model sees them: whose kernels run, what the host costs, how
requests are batched."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal, get_args

from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError, LayoutError, UnknownNameError
from meshwright.values.hardware.chip import Chip
from meshwright.values.models.spec import Checkpoint, ModelSpec
from meshwright.values.workload import Precision

__all__ = [
    "CACHES",
    "QUANTISATIONS",
    "Cache",
    "Engine",
    "Quantisation",
    "Weights",
    "Worker",
    "cache_bytes",
    "check_worker",
    "engine_names",
    "find_engine",
    "published_fp8",
    "quantisation",
]

Kernels = Literal["sglang", "trtllm", "vllm"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine:
    """One engine; `serving/engines.csv` holds them with the source of each figure."""

    name: str
    kernels: Kernels
    """Whose measured operators it runs (docs/operators.md)."""
    kernel_s: float
    """Time that a kernel of a decode iteration adds to its own inside a CUDA graph."""
    launch_s: float
    """Host time per kernel where no CUDA graph covers the batch (prefill); the longer of it and the
    device's time counts."""
    reduces_by: Literal["own", "nccl"]
    """Whose all-reduce it calls inside a server."""
    pass_scale: float
    """Element-wise passes over those of fused kernels."""
    graphs: bool
    """Whether CUDA graphs cover decode iterations, so that the host launches one graph."""
    host_s: float
    """Host time of one iteration that the device waits for: schedule, prepare inputs, read tokens
    back."""
    host_per_sequence_s: float
    """The same for each running sequence of an attention rank, which has a process of its own:
    sampling state, block tables."""
    request_s: float
    """Time of a request outside iterations, before its first token: HTTP, tokenizing, the queue
    between processes."""
    handover_s: float
    """The same where a request goes on to a worker for answers: the second queue, and agreeing on
    the transfer of its cache."""
    token_s: float
    """Time per token of a prompt in the server's front process (text to tokens, messages), which
    takes one request after the other."""
    cache_reserved: float
    """Share of an answer's tokens for which room in the cache is kept from the start; engines that
    take pages as they go hold half on average."""
    chunk_tokens: int
    """Tokens of prompts in one iteration at most; 0: whole prompts, as a static batch runs them."""
    whole_prompts: bool
    """Whether a prompt is never cut where an iteration holds others before it: it waits for an
    iteration that has room for all of it."""
    mixed: bool
    """Whether prompts and running sequences share an iteration, or prompts stop the others."""
    overlap: bool
    """Whether the host schedules an iteration while the device runs the one before, so that a
    request joins one iteration later."""
    max_sequences: int
    """Sequences that run at once by default."""
    memory_share: float
    """Share of the usable device memory that weights, activations and cache may fill."""
    cache_follows_weights: bool
    """Whether 8- and 4-bit weights bring an fp8 cache unless told otherwise."""
    activation_elements: float
    """Working memory per token of an iteration, in 16-bit elements per hidden dimension."""
    base_gib: float
    """Context, libraries, graphs and communication buffers of a process."""
    vendors: tuple[str, ...] = ()
    """Whose chips alone it runs on; none: any maker's, if through a plugin (vllm-ascend)."""
    aliases: tuple[str, ...] = ()
    source: str = ""
    poll_steps: int = 1
    """Iterations of running sequences between two looks at what has arrived (SGLang's
    --scheduler-recv-interval)."""
    balance_steps: int = 0
    """Iterations for which a prompt waits at most until every attention rank has one
    (TensorRT-LLM's attention_dp_config with enable_balance and timeout_iters); 0: prompts begin at
    once."""
    wait_steps: int = 0
    """Iterations that prompts wait at most, while others run, until an iteration is full of them
    (TensorRT-LLM's batch_wait_timeout_iters); 0: prompts begin at once."""
    wait_share: float = 0.9
    """Of `chunk_tokens`, what counts as full (TensorRT-LLM's batch_wait_max_tokens_ratio)."""
    mxfp4_kernels: Literal["own", "trtllm"] = "own"
    """Whose kernels run experts in mxfp4 on chips with 4-bit units: TensorRT-LLM's take 8-bit
    activations (FlashInfer's in vLLM under VLLM_USE_FLASHINFER_MOE_MXFP4_MXFP8)."""


def find_engine(name: str) -> Engine:
    """Return the engine called `name`, in any case."""
    word = name.lower().replace("_", "-").split("(")[0]
    for engine in _engines():
        if word in (engine.name, *engine.aliases):
            return engine
    known = [word for engine in _engines() for word in (engine.name, *engine.aliases)]
    raise UnknownNameError("engine", name, known)


def engine_names() -> tuple[str, ...]:
    """Return the names of all engines."""
    return tuple(engine.name for engine in _engines())


@cache
def _engines() -> tuple[Engine, ...]:
    return tuple(
        Engine(
            **{
                field.name: _value(str(field.type), row[field.name])
                for field in fields(Engine)
                if field.name in row
            }
        )
        for row in package_rows("serving/engines.csv")
    )


def _value(annotation: str, cell: str) -> Any:
    if annotation == "bool":
        return {"yes": True, "no": False}[cell]
    if annotation.startswith("tuple"):
        return tuple(cell.split())
    if annotation == "int":
        return int(cell)
    return float(cell) if annotation == "float" else cell


Weights = Checkpoint
QUANTISATIONS: tuple[Weights, ...] = get_args(Weights)
Cache = Literal["fp32", "bf16", "fp16", "fp8", "int8"]
CACHES: tuple[Cache, ...] = get_args(Cache)

_KEPT: dict[Weights, tuple[float, Precision]] = {
    "fp32": (4.0, "tf32"),
    "bf16": (2.0, "bf16"),
    "fp16": (2.0, "fp16"),
    "fp8": (1.0, "fp8"),
    "fp8-blockwise": (1.0, "fp8-blockwise"),
    "int8": (1.0, "bf16"),
    "int4": (0.5625, "bf16"),
    "nvfp4": (0.5625, "nvfp4"),
    "mxfp4": (0.53125, "bf16"),
}
"""Bytes of a weight with its scales (int4 and nvfp4 have one 16- or 8-bit scale per 32 or 16
weights, mxfp4 one byte per 32), and what products of such weights run in: int8, int4 and mxfp4 are
unpacked for 16-bit activations."""
_CACHE_BYTES: dict[Cache, float] = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantisation:
    """What each part of a model is kept in."""

    name: Weights
    linear: Weights
    """Dense feed-forward and shared experts."""
    attention: Weights
    """Projections before attention."""
    output: Weights
    """The projection after attention."""
    experts: Weights

    @staticmethod
    def bytes_of(weights: Weights) -> float:
        return _KEPT[weights][0]

    @staticmethod
    def product_of(weights: Weights) -> Precision:
        return _KEPT[weights][1]

    def check(self, chip: Chip) -> None:
        """Raise ConfigError unless the chip has the units for it."""
        for weights in (self.linear, self.attention, self.output, self.experts):
            chip.peak_flops_per_s(_KEPT[weights][1])


def published_fp8(model: ModelSpec) -> Weights:
    """Return how models of this make are published in fp8: with block scales where a latent is kept
    or experts are many (DeepSeek, Qwen3, MiniMax), else with one scale a tensor, as Mixtral's
    generation and dense models are."""
    many = model.moe is not None and model.moe.num_experts > _FEW_EXPERTS
    latent = model.moe is not None and model.mla is not None
    return "fp8-blockwise" if many or latent else "fp8"


_FEW_EXPERTS = 16
"""Between the 8 of Mixtral and the 128 of Qwen3, whose checkpoints are of the two kinds."""


def quantisation(weights: str, model: ModelSpec) -> Quantisation:
    """Return what the parts of a model are kept in under this word.

    Checkpoints of models with experts keep the projections around attention in 16 bits when the
    rest goes to 4 bits (OpenAI's mxfp4 gpt-oss, Moonshot's int4 Kimi), but for the one after a
    latent's attention in NVIDIA's nvfp4 (of DeepSeek-R1-0528-FP4-v2 the card says that it also
    quantises wo; Kimi-K2.5's leaves out the others alone), and hold fp8 weights with block scales
    (DeepSeek, Qwen3, MiniMax); dense models are quantised throughout. mxfp4 and nvfp4 differ in
    their scales alone.
    """
    if weights not in QUANTISATIONS:
        raise UnknownNameError("quantisation", weights, QUANTISATIONS)
    whole = Quantisation(
        name=weights, linear=weights, attention=weights, output=weights, experts=weights
    )
    if model.moe is None and weights == "mxfp4":
        raise ConfigError(
            f"{model.name}: mxfp4 weights are modelled for experts only; nvfp4 or int4 would do"
        )
    if model.moe is None or weights not in ("nvfp4", "int4", "mxfp4"):
        return whole
    output: Weights = "nvfp4" if weights == "nvfp4" and model.mla is not None else "bf16"
    shared: Weights = "bf16" if weights == "mxfp4" else weights
    return replace(whole, linear=shared, attention="bf16", output=output)


def cache_bytes(cache: Cache) -> float:
    """Bytes of one value in the cache."""
    return _CACHE_BYTES[cache]


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    """The chips that run one copy of the model.

    `tp` chips share each attention, `attention_dp` such groups hold whole attention layers each and
    different requests, and all `tp * attention_dp` chips of a stage share the feed-forward: experts
    over `ep`, each expert over the rest.
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1
    attention_dp: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "ep", "attention_dp"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: expected 1 or more")
        if self.stage_chips % self.ep:
            raise LayoutError(
                f"ep={self.ep} does not divide the tp * attention_dp = {self.stage_chips} chips"
                " that share the experts"
            )

    @property
    def stage_chips(self) -> int:
        return self.tp * self.attention_dp

    @property
    def chips(self) -> int:
        return self.stage_chips * self.pp

    @property
    def expert_tp(self) -> int:
        """Chips that share one expert."""
        return self.stage_chips // self.ep

    @property
    def name(self) -> str:
        """`tp=8`, `tp=4,pp=2`, ...; axes of one are left out."""
        axes = ((name, getattr(self, name)) for name in ("tp", "pp", "ep", "attention_dp"))
        return ",".join(f"{name}={size}" for name, size in axes if size > 1) or "tp=1"


def check_worker(worker: Worker, model: ModelSpec) -> None:
    """Raise LayoutError, with what divides, where the engine can't cut this model so."""
    _divides("num_heads", model.num_heads, "tp", worker.tp)
    _shares_key_heads(model, worker.tp)
    _shares_states(model, worker.tp)
    if model.num_layers < worker.pp:
        raise LayoutError(
            f"pp={worker.pp} is more than the {model.num_layers} layers of {model.name}"
        )
    if model.moe is None:
        _divides("ffn", model.ffn, "tp", worker.tp)
        if worker.ep > 1 or worker.attention_dp > 1:
            raise LayoutError(
                f"{model.name} has no experts: ep and attention_dp are 1; more copies serve more"
                " requests"
            )
        return
    _divides("num_experts", model.moe.num_experts, "ep", worker.ep)
    _divides("expert_ffn", model.moe.expert_ffn, "expert tp", worker.expert_tp)


def _shares_key_heads(model: ModelSpec, tp: int) -> None:
    """Key heads are cut over the chips, or each is copied to as many; latent attention has none
    that are kept.

    Source: `divide` in QKVParallelLinear of vLLM and SGLang; TensorRT-LLM's attention likewise.
    """
    heads = model.num_kv_heads
    if model.mla is None and heads % tp and tp % heads:
        sizes = [n for n in range(1, model.num_heads + 1) if model.num_heads % n == 0]
        able = ", ".join(str(n) for n in sizes if heads % n == 0 or n % heads == 0)
        raise LayoutError(
            f"num_kv_heads={heads} neither divides tp={tp} nor is divisible by it; tp may be {able}"
        )


def _shares_states(model: ModelSpec, tp: int) -> None:
    """Heads of delta attention and of Mamba layers are cut over the chips."""
    if model.delta is not None:
        _divides("delta.num_key_heads", model.delta.num_key_heads, "tp", tp)
    if model.mamba is not None:
        _divides("mamba.num_heads", model.mamba.num_heads, "tp", tp)


def _divides(what: str, number: int, axis: str, size: int) -> None:
    if number % size:
        able = ", ".join(str(n) for n in range(1, 129) if number % n == 0)
        raise LayoutError(
            f"{what}={number} is not divisible by {axis}={size}; {axis} may be {able}"
        )
