"""A request with its names looked up, and one layout in it: what searches and answers work on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast, get_args

from meshwright.cost.headroom import headroom_bytes
from meshwright.search.finetune import Ways, finetuned, frozen_format, with_host
from meshwright.search.link_rates import local_pool, profiled_pool
from meshwright.search.quote import Setting, quotes
from meshwright.search.refusals import refuse_needless, refuse_unable, refuse_unpriced
from meshwright.search.request import PlanRequest
from meshwright.search.rules.check import complete_layout, require_valid
from meshwright.search.rules.experts import usable_modules
from meshwright.search.rules.rule import RuleCase
from meshwright.search.rules.software import (
    NONE_OR_FULL,
    known_version,
    stack_rules,
    usual_attention,
    usual_layout,
)
from meshwright.search.started import GRAPHED_SHARE, Started, library_stack, started
from meshwright.trust.calibration import Calibrated, Calibration, apply_calibration
from meshwright.trust.intervals import Assumption, that_widen
from meshwright.values.data import package_rows
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Cluster, Pool
from meshwright.values.hardware.parse import parse_cluster, parse_count
from meshwright.values.hardware.profile import Profile
from meshwright.values.layout import Layout, parse_layout
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.params import model_params
from meshwright.values.models.spec import MODEL_PARTS, ModelSpec
from meshwright.values.stack import Stack, find_stack
from meshwright.values.units import GIB, TERA, format_count
from meshwright.values.workload import (
    AttentionKernel,
    CpCommType,
    LoraTarget,
    Precision,
    Routing,
    Workload,
)

__all__ = [
    "DETAILS",
    "Asked",
    "BatchRule",
    "Files",
    "Problem",
    "Starts",
    "ask",
    "batch_rule",
    "completed",
    "details_of",
    "dims_of",
    "model_of",
    "problem_on",
    "resolve",
]

DETAILS = "details"
"""Key of a model by its dims: what its training hangs on and its cost does not."""
USUAL_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "fp32")
"""Of training, the first that the chips have."""
STACK_OF = {
    "NVIDIA": "megatron-bridge",
    "AMD": "primus",
    "Google": "maxtext",
    "AWS": "neuron",
    "Huawei": "mindspeed",
}
"""The training software that makers ship for their chips; Megatron-LM on the others."""
Starts = Literal["by-recipe", "as-library"]
"""How a software with recipes is started: a recipe is for one kind of chip."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """What is searched, in values."""

    request: PlanRequest
    setting: Setting
    headroom_bytes: float
    """Of the limit, what a plan leaves free to fit with certainty."""
    max_gbs: int
    """The largest batch; the only one where the request has `gbs`."""
    usd_per_chip_s: float | None
    ways: Ways = "usual"

    @property
    def case(self) -> RuleCase:
        """What layouts are held against."""
        return replace(self.setting.case, megatron_version=self.request.megatron_version)

    @property
    def num_chips(self) -> int:
        """Chips of the cluster."""
        return self.setting.pool.num_chips

    def assuming(self, assumptions: tuple[Assumption, ...]) -> Problem:
        """Return the same of a layout that leaves some things untold: wider intervals, and as much
        more left free to fit with certainty."""
        if not assumptions:
            return self
        setting = replace(self.setting, assumptions=assumptions)
        headroom = _headroom_bytes(self.request.headroom, setting)
        return replace(self, setting=setting, headroom_bytes=headroom)

    @property
    def facts(self) -> dict[str, Any]:
        """What the heading of a table says of the chips."""
        setting, node = self.setting, self.setting.pool.node
        return {
            "chip": node.chip.name,
            "num_chips": self.num_chips,
            "chips_per_node": node.chips_per_node,
            "peak_tflops": node.chip.peak_flops_per_s(setting.work.precision) / TERA,
            "limit_gib": setting.limit_bytes / GIB,
            "headroom_gib": self.headroom_bytes / GIB,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    """What the files that a request names hold; they are read outside."""

    calibration: Calibration | None = None
    profile: Profile | None = None
    cluster: Cluster | None = None
    """Of the request's cluster file; or this machine's accelerators, where its cluster is `local`
    and no profile says what it is."""

    def cluster_of(self, request: PlanRequest) -> Cluster:
        """Return the chips of the request: what its file holds, or its short form says."""
        return self.cluster or parse_cluster(request.cluster, gpus_per_node=request.gpus_per_node)


def resolve(request: PlanRequest, *, files: Files | None = None) -> Problem:
    """Look up the request's names; ConfigError for anything unknown or out of range."""
    if request.same:
        raise ConfigError(
            f"same={','.join(request.same)}: of plans over several kinds of chips, or with"
            " num_gpus; leave it out"
        )
    if request.unlike_batch:
        raise ConfigError("unlike_batch: of plans over several kinds of chips; leave it out")
    files = files or Files()
    pool = _pool(request, files)
    if request.stack is None and files.calibration:
        request = request.model_copy(update={"stack": files.calibration.stack})
    chips = [pool.node.chip]
    request = completed(finetuned(request, chips, pool.num_chips), chips)
    return problem_on(with_host(pool, request), request, files)


def completed(request: PlanRequest, chips: Iterable[Chip]) -> PlanRequest:
    """Return the request with what suits all its chips where it leaves that open: software, number
    format, attention kernel."""
    chips = tuple(chips)
    makers = {chip.vendor for chip in chips}
    stack = request.stack or STACK_OF.get(makers.pop() if len(makers) == 1 else "", "megatron")
    found: dict[str, str] = {} if request.stack else {"stack": stack}
    if request.precision is None:
        shared = set(stack_rules(find_stack(stack)).precisions).intersection(
            *(chip.precisions for chip in chips)
        )
        found["precision"] = next(
            (name for name in USUAL_PRECISIONS if name in shared), USUAL_PRECISIONS[0]
        )
    if request.attention is None:
        found["attention"] = usual_attention(
            find_stack(stack),
            seq_len=request.seq_len,
            has_flash=all(chip.has_flash_attention for chip in chips),
            precision=cast("Precision", request.precision or found["precision"]),
        )
    if "routing" not in request.model_fields_set and model_of(request.model).moe is not None:
        found["routing"] = stack_rules(find_stack(stack)).routing
    return request.model_copy(update=found) if found else request


def problem_on(
    pool: Pool, request: PlanRequest, files: Files, *, starts: Starts = "by-recipe"
) -> Problem:
    """Look up the names of a `completed` request for one pool of chips."""
    model = model_of(request.model)
    chip = pool.node.chip
    if request.attention not in get_args(AttentionKernel):
        raise UnknownNameError(
            "attention kernel", str(request.attention), get_args(AttentionKernel)
        )
    known_version(request.megatron_version)
    work = Workload(
        seq_len=request.seq_len,
        gbs=request.gbs,
        decoder_seq_len=request.decoder_seq_len,
        sample_len=request.sample_len,
        precision=cast("Precision", request.precision),
        attention=cast("AttentionKernel", request.attention),
        fused_norm=request.fused_norm,
        routing=cast("Routing", request.routing),
        dropout=stack_rules(find_stack(str(request.stack))).dropout,
        cp_comm_type=cast("CpCommType | None", request.cp_comm_type),
        lora_rank=request.lora_rank,
        frozen=frozen_format(request),
    )
    refuse_needless(request, model)
    chip.require(work.precision)
    limit = chip.usable_bytes if request.max_memory_gib is None else request.max_memory_gib * GIB
    if limit > chip.usable_bytes:
        raise ConfigError(
            f"max_memory_gib={request.max_memory_gib}: a process on {chip.name} sees"
            f" {chip.usable_bytes / GIB:.1f} GiB"
        )
    usd_per_hour = chip.usd_per_hour if request.usd_per_hour is None else request.usd_per_hour
    refuse_unpriced(request, chip, usd_per_hour)
    calibration = None if files.calibration is None else files.calibration.for_model(model)
    start = _started(request, work, model=model, pool=pool, starts=starts)
    stack, work = _graphed(request, start.stack), _adapted(request, work, start)
    refuse_unable(chip, stack, work.precision)
    stack = stack.on_processors() if chip.is_processor else stack
    values = _calibrated(request, calibration, Calibrated(pool=pool, stack=stack))
    setting = Setting(
        model=model,
        pool=values.pool,
        work=work,
        stack=_as_asked(request, values.stack, stack),
        limit_bytes=limit,
        calibration=calibration,
        start=start.start,
        started_by=start.words,
    )
    return Problem(
        request=request,
        setting=setting,
        headroom_bytes=_headroom_bytes(request.headroom, setting),
        max_gbs=request.gbs or request.max_gbs or batch_rule(model).max_gbs(request.seq_len),
        usd_per_chip_s=None if usd_per_hour is None else usd_per_hour / 3600.0,
    )


def _as_asked(request: PlanRequest, found: Stack, stack: Stack) -> Stack:
    """Keep CUDA graphs as the user asks for them, whatever a calibration's run had."""
    if request.cuda_graphs is None:
        return found
    return replace(found, launch_hidden=stack.launch_hidden)


def _started(
    request: PlanRequest, work: Workload, *, model: ModelSpec, pool: Pool, starts: Starts
) -> Started:
    stack = find_stack(str(request.stack))
    if starts == "as-library":
        return Started(stack=library_stack(stack))
    return started(
        stack,
        model=model,
        chip=pool.node.chip,
        precision=work.precision,
        num_chips=pool.num_chips,
        task="lora" if work.lora_rank else "pretrain",
        seq_len=work.seq_len,
        switches=request.switches,
    )


def _graphed(request: PlanRequest, stack: Stack) -> Stack:
    """The software with the graphs that are asked for."""
    if request.cuda_graphs is None:
        return stack
    return replace(stack, launch_hidden=GRAPHED_SHARE[request.cuda_graphs])


def _adapted(request: PlanRequest, work: Workload, start: Started) -> Workload:
    """The workload with the layers that have adapters: as asked, else as the recipe has it."""
    targets = tuple(request.lora_targets) or start.lora_targets
    if not work.lora_rank or not targets:
        return work
    return replace(work, lora_targets=cast("tuple[LoraTarget, ...]", targets))


def _pool(request: PlanRequest, files: Files) -> Pool:
    """The chips of the request, with what the profile says of them."""
    if files.profile is None and request.profile is not None:
        raise ConfigError(
            f"profile={request.profile!r} was not read; ask meshwright.api, or give resolve its"
            " content"
        )
    kind, colon, count = request.cluster.strip().lower().partition(":")
    if files.profile is not None and kind == "local":
        if request.gpus_per_node is not None:
            raise ConfigError(
                "gpus_per_node has no effect with cluster local, which is the machine of the"
                " profile; leave it out"
            )
        return local_pool(
            files.profile, num_chips=parse_count(count, kind="local") if colon else None
        )
    cluster = files.cluster_of(request)
    if len(cluster.pools) != 1:
        raise ConfigError(
            f"cluster {cluster.name}: several kinds of chips are for `meshwright plan` alone; give"
            " one of them here"
        )
    return (
        cluster.pools[0]
        if files.profile is None
        else profiled_pool(files.profile, cluster.pools[0])
    )


def _calibrated(
    request: PlanRequest, calibration: Calibration | None, plain: Calibrated
) -> Calibrated:
    if calibration is not None:
        return apply_calibration(calibration, pool=plain.pool, stack=plain.stack)
    if request.calibration is not None:
        raise ConfigError(
            f"calibration={request.calibration!r} was not read; ask meshwright.api, or give resolve"
            " its content"
        )
    return plain


def _headroom_bytes(headroom: float | None, setting: Setting) -> float:
    limit = setting.limit_bytes
    if headroom is None:
        high = setting.intervals_at(step_s=1.0, peak_bytes=1.0).peak_bytes[1]
        return headroom_bytes(limit, high=high)
    size = headroom * limit if headroom < 1 else headroom * GIB
    if size >= limit:
        raise ConfigError(
            f"headroom={headroom}: {size / GIB:.1f} GiB leave nothing of {limit / GIB:.1f} GiB"
        )
    return size


def model_of(given: str | Mapping[str, Any]) -> ModelSpec:
    """Return the model of a name, of `layers=32,...`, or of the dims of a ModelSpec."""
    if isinstance(given, str):
        return named_model(given)
    values = {"name": "custom", **given}
    if not isinstance(values.pop(DETAILS, {}), Mapping):
        raise ConfigError(f"model.{DETAILS}: expected keys and values such as rope_base: 500000")
    for part, kind in MODEL_PARTS.items():
        if isinstance(values.get(part), Mapping):
            values[part] = _build(kind, values[part], where=f"model.{part}")
    return cast("ModelSpec", _build(ModelSpec, values, where="model"))


def _build(kind: type[Any], values: Mapping[str, Any], *, where: str) -> Any:
    known = [field.name for field in fields(kind)]
    for key in values:
        if key not in known:
            raise UnknownNameError(f"key of {where}", str(key), known)
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{where}: {str(error).partition(') ')[2] or error}") from None


def dims_of(model: ModelSpec, *, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the dims that `model_of` reads back, without defaults; `details` go with them."""
    return _changed(model) | ({DETAILS: dict(details)} if details else {})


def details_of(given: str | Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the details that go with a model's dims; none with a name."""
    return {} if isinstance(given, str) else given.get(DETAILS, {})


def _changed(values: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(values):
        value = getattr(values, field.name)
        if value != field.default:
            found[field.name] = _changed(value) if field.name in MODEL_PARTS else value
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRule:
    """The largest batch that published runs of this size used."""

    tokens_per_step: int
    source: str

    def max_gbs(self, seq_len: int) -> int:
        """Return the batch in sequences, at least one."""
        return max(1, self.tokens_per_step // seq_len)

    def words(self, seq_len: int) -> str:
        """Say the rule for people."""
        tokens = format_count(self.tokens_per_step)
        return (
            f"no batch given: up to {self.max_gbs(seq_len)} sequences ({tokens} tokens a step) for"
            f" this size; {self.source}"
        )


def batch_rule(model: ModelSpec) -> BatchRule:
    """Return the first row whose `params` are not below the model's parameters."""
    size = model_params(model).total
    for row in package_rows("search/batch_rule.csv"):
        if not row["params"] or size <= int(row["params"]):
            return BatchRule(tokens_per_step=int(row["tokens_per_step"]), source=row["source"])
    raise AssertionError("search/batch_rule.csv: the last row has no upper bound")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A layout that keeps the rules of its problem."""

    layout: Layout
    problem: Problem
    told: frozenset[str] = frozenset()
    """Fields of the layout that were given; all of one that stands for itself."""


LAYOUT_FIELDS = frozenset(field.name for field in fields(Layout))
_SAYS_ALL = frozenset(("dp", "gbs"))
"""Fields that a layout has which stands for itself, as plans are printed: what it leaves out is
off."""


def ask(layout: str | Mapping[str, Any], problem: Problem) -> Asked:
    """Fill in what a layout (words, or fields) leaves open, as the software's own configurations do
    unless it has all that a printed plan has; LayoutError where it breaks a rule."""
    given = parse_layout(layout) if isinstance(layout, str) else dict(layout)
    if not given:
        raise ConfigError(f"layout {layout!r}: expected key=value words such as tp=8,pp=4,mbs=1")
    found = complete_layout(_as_usual(given, problem), problem.case)
    if "recompute" not in given and _is_short(found, problem):
        found = complete_layout(_as_usual(given, problem, short=True), problem.case)
    require_valid(found, problem.case)
    told = LAYOUT_FIELDS if given.keys() >= _SAYS_ALL else frozenset(given)
    return Asked(layout=found, problem=problem.assuming(_untold(given, found)), told=told)


def _untold(given: Mapping[str, Any], layout: Layout) -> tuple[Assumption, ...]:
    """What a layout in part does not tell; nothing of one that stands for itself. Sharding of one
    replica and sequence parallelism of one rank play no part."""
    if given.keys() >= _SAYS_ALL:
        return ()
    blank: Mapping[Assumption, bool] = {
        "micro batch": "mbs" not in given,
        "recompute": not any(name.startswith("recompute") for name in given),
        "sharding": not {"sharding", "shard_size"} & given.keys() and layout.dp * layout.cp > 1,
        "sequence parallelism": "sp" not in given and layout.tp > 1,
    }
    return that_widen([name for name, is_blank in blank.items() if is_blank])


def _as_usual(given: dict[str, Any], problem: Problem, *, short: bool = False) -> dict[str, Any]:
    """A layout's fields before those of the software's own configurations that it leaves open."""
    if given.keys() >= _SAYS_ALL:
        return given
    usual = usual_layout(problem.setting.stack, short=short)
    if "recompute_modules" in usual:
        known = usable_modules(problem.setting.model, usual["recompute_modules"])
        usual |= {"recompute_modules": tuple(known)} if known else {"recompute": "none"}
    if any(name.startswith("recompute") for name in given):
        usual = {name: value for name, value in usual.items() if name == "sp"}
    if given.get("tp", 1) == 1:
        usual.pop("sp", None)
    return {**usual, **given}


def _is_short(layout: Layout, problem: Problem) -> bool:
    """Whether the software's users recompute where it would not fit otherwise, and it does not."""
    setting = problem.setting
    if stack_rules(setting.stack).recompute != NONE_OR_FULL or layout.recompute != "none":
        return False
    return not quotes([layout], setting)[0].fits
