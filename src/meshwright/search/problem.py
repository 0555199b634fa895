"""A request with its names looked up: what the search works on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast, get_args

from meshwright.cost.headroom import headroom_bytes
from meshwright.search.batch import batch_rule
from meshwright.search.link_rates import CollectiveTable, link_rates
from meshwright.search.quote import Setting
from meshwright.search.request import PlanRequest
from meshwright.search.rules.rule import RuleCase
from meshwright.search.rules.software import known_version, stack_rules
from meshwright.trust.calibration import Calibrated, Calibration, apply_calibration
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import default_node, find_device, find_link
from meshwright.values.hardware.chip import Chip
from meshwright.values.hardware.cluster import Cluster, Link, Node, Pool
from meshwright.values.hardware.parse import parse_cluster, parse_count
from meshwright.values.hardware.profile import Profile, Series
from meshwright.values.hardware.profiled import profiled_chip, with_measured_link
from meshwright.values.models.catalogue import named_model
from meshwright.values.models.spec import HybridSpec, MambaSpec, MlaSpec, ModelSpec, MoeSpec
from meshwright.values.stack import Stack, find_stack
from meshwright.values.units import GIB
from meshwright.values.workload import AttentionKernel, Precision, Routing, Workload

__all__ = [
    "DETAILS",
    "Files",
    "Problem",
    "completed",
    "details_of",
    "dims_of",
    "local_pool",
    "model_of",
    "problem_on",
    "profiled_pool",
    "resolve",
]

_OPERATION = "collective/all_reduce"
"""The collective that a link's rate and latency are fitted to."""
LEAST_SIZES = 3
"""Sizes that two unknowns need with one to spare."""
ASSUMED_DOMAIN, ASSUMED_NETWORK = "pcie4-shared", "tcp-25"
"""Links of a machine that the catalogue lacks, until collectives are measured there."""


def profiled_pool(profile: Profile, pool: Pool) -> Pool:
    """Return the pool with the profile's chip and measured links; ConfigError for another chip."""
    return _with_links(
        profile, replace(pool, node=replace(pool.node, chip=profiled_chip(profile, pool.node.chip)))
    )


def local_pool(profile: Profile, *, num_chips: int | None = None) -> Pool:
    """Return the machine of a profile as a pool, or as many of its chips as `num_chips` says."""
    known = find_device(profile.machine.device_name) if profile.machine.device != "cpu" else None
    devices = max(
        profile.machine.num_devices, _most_ranks(profile) if profile.machine.device == "cpu" else 1
    )
    chip = profiled_chip(profile, known)
    if known is not None:
        node = replace(default_node(known.name, gpus_per_node=devices), chip=chip)
    else:
        node = Node(
            chip=chip,
            chips_per_node=devices,
            domain_size=devices,
            domain_link=find_link(ASSUMED_DOMAIN),
            network_link=find_link(ASSUMED_NETWORK),
        )
    return _with_links(profile, Pool(node=node, num_chips=num_chips or profile.machine.num_devices))


def _most_ranks(profile: Profile) -> int:
    series = profile.find(_OPERATION)
    return (
        max((int(sample.point[0]) for sample in series.measured), default=1)
        if series is not None
        else 1
    )


def _with_links(profile: Profile, pool: Pool) -> Pool:
    """Put the measured links in: that of the most ranks within a host, and over hosts."""
    series = profile.find(_OPERATION)
    if series is None:
        return pool
    per_host = (
        pool.node.chips_per_node if profile.machine.device == "cpu" else profile.machine.num_devices
    )
    counts = sorted({int(sample.point[0]) for sample in series.measured})
    for inside in (True, False):
        ranks = [count for count in counts if (count <= per_host) == inside]
        table = _table(series, ranks[-1], profile, per_host) if ranks else None
        if table is not None:
            pool = _with_link(pool, table)
    return pool


def _table(series: Series, ranks: int, profile: Profile, per_host: int) -> CollectiveTable | None:
    rows = [sample for sample in series.measured if sample.point[0] == ranks]
    if len(rows) < LEAST_SIZES:
        return None
    return CollectiveTable(
        operation="all_reduce",
        ranks=ranks,
        hosts=-(-ranks // per_host),
        device=profile.machine.device_name,
        bytes=tuple(sample.point[1] for sample in rows),
        times_s=tuple(sample.seconds or 0.0 for sample in rows),
    )


def _with_link(pool: Pool, table: CollectiveTable) -> Pool:
    rates = link_rates(table, replace(pool, num_chips=table.ranks))
    node = pool.node
    link: Link = node.domain_link if rates.level == "domain" else node.network_link
    changed = {
        f"{rates.level}_link": rates.on(link),
        "chip": with_measured_link(node.chip, f"{rates.level}_link"),
    }
    return replace(pool, node=replace(node, **changed))  # type: ignore[arg-type]  # links and the chip by field name


DETAILS = "details"
"""Key of a model by its dims: what its training hangs on and its cost does not."""
USUAL_PRECISIONS: tuple[Precision, ...] = ("bf16", "fp16", "fp32")
"""Of training, the first that the chips have."""
STACK_OF = {"Google": "maxtext", "AWS": "neuron", "Huawei": "mindspeed"}
"""The training software of makers whose chips Megatron-LM itself does not run on."""
RUN_BY = {"Google": ("maxtext", "fsdp"), "AWS": ("neuron", "fsdp")}
"""All that runs on chips that have no CUDA-like library for torch; FSDP by torch_xla."""
_PARTS = {"mla": MlaSpec, "moe": MoeSpec, "mamba": MambaSpec, "hybrid": HybridSpec}


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

    @property
    def case(self) -> RuleCase:
        """What layouts are held against."""
        return replace(self.setting.case, megatron_version=self.request.megatron_version)

    @property
    def num_chips(self) -> int:
        """Chips of the cluster."""
        return self.setting.pool.num_chips


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
    return problem_on(pool, completed(request, [pool.node.chip]), files)


def completed(request: PlanRequest, chips: Iterable[Chip]) -> PlanRequest:
    """Return the request with what suits all its chips where it leaves that open: software, number
    format, attention kernel.

    Flash attention has no kernels for chips before Ampere (Dao-AILab/flash-attention, README);
    Megatron's attention then keeps the scores, torch's scaled_dot_product_attention has its
    memory-efficient kernel.
    """
    chips = tuple(chips)
    makers = {chip.vendor for chip in chips}
    stack = request.stack or (
        STACK_OF.get(makers.pop(), "megatron") if len(makers) == 1 else "megatron"
    )
    found: dict[str, str] = {} if request.stack else {"stack": stack}
    if request.precision is None:
        shared = set(stack_rules(find_stack(stack)).precisions).intersection(
            *(chip.precisions for chip in chips)
        )
        found["precision"] = next(
            (name for name in USUAL_PRECISIONS if name in shared), USUAL_PRECISIONS[0]
        )
    if request.attention is None:
        old = (
            not all(chip.has_flash_attention for chip in chips)
            and find_stack(stack).family == "megatron"
        )
        found["attention"] = "fused-softmax" if old else "flash"
    return request.model_copy(update=found) if found else request


def problem_on(pool: Pool, request: PlanRequest, files: Files) -> Problem:
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
        precision=cast("Precision", request.precision),
        attention=cast("AttentionKernel", request.attention),
        routing=cast("Routing", request.routing),
    )
    _refuse_needless(request, model)
    chip.require(work.precision)
    limit = chip.usable_bytes if request.max_memory_gib is None else request.max_memory_gib * GIB
    if limit > chip.usable_bytes:
        raise ConfigError(
            f"max_memory_gib={request.max_memory_gib}: a process on {chip.name} sees"
            f" {chip.usable_bytes / GIB:.1f} GiB"
        )
    usd_per_hour = chip.usd_per_hour if request.usd_per_hour is None else request.usd_per_hour
    _refuse_unpriced(request, chip, usd_per_hour)
    calibration = None if files.calibration is None else files.calibration.for_model(model)
    stack = find_stack(str(request.stack))
    _refuse_unable(chip, stack, work.precision)
    values = _calibrated(
        request,
        calibration,
        Calibrated(pool=pool, stack=stack.on_processors() if chip.is_processor else stack),
    )
    setting = Setting(
        model=model,
        pool=values.pool,
        work=work,
        stack=values.stack,
        limit_bytes=limit,
        calibration=calibration,
    )
    return Problem(
        request=request,
        setting=setting,
        headroom_bytes=_headroom_bytes(request.headroom, setting),
        max_gbs=request.gbs or request.max_gbs or batch_rule(model).max_gbs(request.seq_len),
        usd_per_chip_s=None if usd_per_hour is None else usd_per_hour / 3600.0,
    )


def _refuse_needless(request: PlanRequest, model: ModelSpec) -> None:
    """ConfigError for what is said of a part that the model has not."""
    if request.decoder_seq_len is not None and model.family != "encoder-decoder":
        raise ConfigError(
            f"decoder_seq_len={request.decoder_seq_len}: of no effect on {model.name}, which is no"
            " encoder-decoder; leave it out"
        )
    if request.routing != "balanced" and model.moe is None:
        raise ConfigError(
            f"routing={request.routing}: of no effect on {model.name}, which has no experts; leave"
            " it out"
        )


def _refuse_unpriced(request: PlanRequest, chip: Chip, usd_per_hour: float | None) -> None:
    """ConfigError for an objective whose unit the chip has no figure of."""
    if request.objective == "tokens_per_dollar" and not usd_per_hour:
        raise ConfigError(
            f"objective=tokens_per_dollar: the catalogue has no price of {chip.name}; give"
            " usd_per_hour (--usd-per-hour)"
        )
    if request.objective == "tokens_per_joule" and not chip.tdp_w:
        raise ConfigError(
            f"objective=tokens_per_joule: the catalogue has no power of {chip.name}; give tdp_w in"
            " a cluster file"
        )


def _refuse_unable(chip: Chip, stack: Stack, precision: Precision) -> None:
    """ConfigError for a number format, or a chip, that the software does not run."""
    able = stack_rules(stack).precisions
    if precision not in able:
        raise ConfigError(f"precision={precision}: stack {stack.name} has {', '.join(able)}")
    if stack.name not in RUN_BY.get(chip.vendor, (stack.name,)):
        raise ConfigError(
            f"stack {stack.name} does not run on {chip.name}; --stack"
            f" {' or '.join(RUN_BY[chip.vendor])}"
        )


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
    for part, kind in _PARTS.items():
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
            found[field.name] = _changed(value) if field.name in _PARTS else value
    return found
