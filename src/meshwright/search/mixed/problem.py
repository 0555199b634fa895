"""A request over several kinds of chips with its names looked up."""

from __future__ import annotations

from dataclasses import dataclass, replace

from meshwright.confidence import Kind
from meshwright.cost.mixed import Site
from meshwright.errors import ConfigError
from meshwright.hardware.cluster import Cluster
from meshwright.hardware.parse import load_cluster
from meshwright.rules._rule import nearest_multiples
from meshwright.search.problem import Files, Problem, completed, problem_on
from meshwright.search.request import PlanRequest

__all__ = ["MAX_GPUS", "MixedProblem", "is_mixed", "resolve_mixed"]

MAX_GPUS = 2**20
"""More chips than any cluster has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedProblem:
    """What is searched, in values."""

    request: PlanRequest
    cluster: Cluster
    parts: tuple[Problem, ...]
    """The same request on each pool alone: its limits, prices and rules."""
    num_gpus: int
    """Chips that a plan may use; the pools' counts are caps."""

    @property
    def site(self) -> Site:
        """Where stages are priced."""
        setting = self.parts[0].setting
        return Site(
            model=setting.model, cluster=self.cluster, work=setting.work, stack=setting.stack
        )

    @property
    def max_gbs(self) -> int:
        """The largest batch; the only one where the request has `gbs`."""
        return self.parts[0].max_gbs

    @property
    def kind(self) -> Kind:
        """Which published runs say how far off an estimate may be."""
        kinds = {part.setting.kind for part in self.parts}
        first = self.parts[0].setting.kind
        vendors = {kind.vendor for kind in kinds}
        return (
            first
            if len(kinds) == 1
            else replace(
                first, generation="mixed", vendor=first.vendor if len(vendors) == 1 else "mixed"
            )
        )


def is_mixed(request: PlanRequest) -> bool:
    """Whether a request has several pools, or leaves open which chips of one it uses."""
    text = request.cluster.strip().lower()
    if text.partition(":")[0] == "local":
        return False
    may_idle = request.num_gpus is not None or request.min_tokens_per_s is not None
    return (
        may_idle
        or len(load_cluster(request.cluster, gpus_per_node=request.gpus_per_node).pools) > 1
    )


def resolve_mixed(request: PlanRequest) -> MixedProblem:
    """Look up the request's names; ConfigError for anything unknown or out of range."""
    for name in ("calibration", "profile"):
        if getattr(request, name) is not None:
            raise ConfigError(
                f"{name}={getattr(request, name)!r}: it is of one kind of chip; leave it out, or"
                " plan that kind alone"
            )
    cluster = load_cluster(request.cluster, gpus_per_node=request.gpus_per_node)
    if request.usd_per_hour is not None and len(cluster.pools) > 1:
        raise ConfigError(
            "usd_per_hour is the price of one kind of chip; give each kind its own in a cluster"
            " file (chips: usd_per_hour)"
        )
    if request.unlike_batch and len(cluster.pools) == 1:
        raise ConfigError("unlike_batch: of plans over several kinds of chips; leave it out")
    num_gpus = _checked_count(request.num_gpus, cluster)
    request = completed(request, [pool.node.chip for pool in cluster.pools])
    parts = tuple(problem_on(pool, request, Files()) for pool in cluster.pools)
    return MixedProblem(request=request, cluster=cluster, parts=parts, num_gpus=num_gpus)


def _checked_count(num_gpus: int | None, cluster: Cluster) -> int:
    whole = cluster.num_chips
    wanted = whole if num_gpus is None else num_gpus
    if wanted > MAX_GPUS:
        raise ConfigError(f"{wanted} chips: expected at most {MAX_GPUS}")
    if wanted > whole:
        raise ConfigError(
            f"num_gpus={wanted}: the pools of {cluster.name} have {whole} chips together; take"
            f" {whole} or fewer"
        )
    node = min(pool.node.chips_per_node for pool in cluster.pools)
    if num_gpus is not None and wanted % node:
        near = " or ".join(map(str, nearest_multiples(wanted, node)))
        raise ConfigError(
            f"num_gpus={wanted}: no multiple of the {node} chips of a node; nearest that are:"
            f" {near}"
        )
    return wanted
