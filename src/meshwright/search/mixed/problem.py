"""A request over several kinds of chips with its names looked up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meshwright.cost.mixed import Site
from meshwright.cost.once import data_exchange_s, optimizer_s
from meshwright.cost.stages import Floats
from meshwright.search.mixed.curves import FIRST, stage_reader
from meshwright.search.problem import Files, Problem, Starts, completed, problem_on
from meshwright.search.request import PlanRequest
from meshwright.search.rules.rule import nearest_words
from meshwright.trust.intervals import Kind
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Cluster
from meshwright.values.layout import Layouts
from meshwright.values.models.adapters import trainable_share

__all__ = [
    "COUNTS",
    "MAX_GPUS",
    "MixedProblem",
    "OptionTimes",
    "Score",
    "every_team",
    "is_mixed",
    "of_pools",
    "option_times",
    "resolve_mixed",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """Score = seconds per sequence * rate, where the rate is 1, or a sum over the chips in use;
    smaller is better."""

    rates: tuple[float, ...] | None
    """Of one chip of each pool: dollars per second, or watts; None where time alone counts."""
    most_s: float = np.inf
    """Seconds per sequence that a plan may take at most: the deadline."""

    def rate(self, chips: Any, pools: Any) -> Floats:
        """Rate of plans that use `chips` of `pools`, both (R, K); pool -1 is none."""
        if self.rates is None:
            return np.ones(np.shape(chips)[0])
        table = np.array([*self.rates, 0.0])
        return np.asarray((np.asarray(chips) * table[np.asarray(pools)]).sum(axis=1))

    def of(self, seconds_per_sequence: Any, rate: Any) -> Any:
        """Score of plans; infinite where they are too slow."""
        return np.where(
            np.asarray(seconds_per_sequence) > self.most_s,
            np.inf,
            np.asarray(seconds_per_sequence) * rate,
        )


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
    team: tuple[int, ...]
    """Pools that may take part, ascending; the request holds for them, and others stay idle."""

    @property
    def lead(self) -> Problem:
        """The request on the first pool of the team."""
        return self.parts[self.team[0]]

    @property
    def site(self) -> Site:
        """Where stages are priced."""
        setting = self.lead.setting
        return Site(
            model=setting.model, cluster=self.cluster, work=setting.work, stack=setting.stack
        )

    @property
    def max_gbs(self) -> int:
        """The largest batch; the only one where the request has `gbs`."""
        return self.lead.max_gbs

    @property
    def kind(self) -> Kind:
        """Which published runs say how far off an estimate may be."""
        kinds = {self.parts[pool].setting.kind for pool in self.team}
        first = self.lead.setting.kind
        vendors = {kind.vendor for kind in kinds}
        return (
            first
            if len(kinds) == 1
            else replace(
                first, generation="mixed", vendor=first.vendor if len(vendors) == 1 else "mixed"
            )
        )


def is_mixed(request: PlanRequest, *, files: Files | None = None) -> bool:
    """Whether a request has several pools, or leaves open which chips of one it uses."""
    text = request.cluster.strip().lower()
    if text.partition(":")[0] == "local":
        return False
    may_idle = request.num_gpus is not None or request.min_tokens_per_s is not None
    return may_idle or len((files or Files()).cluster_of(request).pools) > 1


def resolve_mixed(request: PlanRequest, *, files: Files | None = None) -> MixedProblem:
    """Look up the request's names for the largest set of pools that can work as it says;
    ConfigError for anything unknown or out of range."""
    cluster, num_gpus = _checked_cluster(request, files or Files())
    first: ConfigError | None = None
    for team in subsets(len(cluster.pools)):
        try:
            return problem_of_team(request, cluster, num_gpus, team)
        except ConfigError as error:
            first = first or error
    assert first is not None, "a cluster has pools"
    raise first


def every_team(
    request: PlanRequest, *, files: Files | None = None
) -> tuple[tuple[MixedProblem, ...], dict[str, str]]:
    """Look up the request's names for every set of pools that can work together, the largest first;
    and of chips in none of these the reason. ConfigError where there is no such set."""
    cluster, num_gpus = _checked_cluster(request, files or Files())
    found, errors = list[MixedProblem](), dict[tuple[int, ...], ConfigError]()
    for team in subsets(len(cluster.pools)):
        try:
            found.append(problem_of_team(request, cluster, num_gpus, team))
        except ConfigError as error:
            errors[team] = error
    if not found:
        raise next(iter(errors.values()))
    able = {pool for problem in found for pool in problem.team}
    return tuple(found), {
        pool.node.chip.name: str(errors[(number,)])
        for number, pool in enumerate(cluster.pools)
        if number not in able
    }


def subsets(count: int) -> Iterator[tuple[int, ...]]:
    """Yield every set of some of the first whole numbers that is not empty, the largest first."""
    for size in range(count, 0, -1):
        yield from combinations(range(count), size)


def problem_of_team(
    request: PlanRequest, cluster: Cluster, num_gpus: int, team: tuple[int, ...]
) -> MixedProblem:
    """Look up a request for pools that work together: software, number format and attention that it
    leaves open are the best that these have, and one pool alone is started by its recipe."""
    asked = completed(request, [cluster.pools[pool].node.chip for pool in team])
    open_request = request.model_copy(
        update=dict.fromkeys(("precision", "attention", "stack"), None)
    )
    alone: Starts = "by-recipe" if len(team) == 1 else "as-library"
    parts = tuple(
        problem_on(pool, asked, Files(), starts=alone)
        if number in team
        # What stays idle is said to run as it could by itself.
        else problem_on(
            pool, completed(open_request, [pool.node.chip]), Files(), starts="as-library"
        )
        for number, pool in enumerate(cluster.pools)
    )
    return MixedProblem(request=asked, cluster=cluster, parts=parts, num_gpus=num_gpus, team=team)


def of_pools(problem: MixedProblem, team: tuple[int, ...]) -> MixedProblem:
    """Return the problem of a plan's own pools, as which its plan was priced."""
    if team == problem.team:
        return problem
    return problem_of_team(problem.request, problem.cluster, problem.num_gpus, team)


def _each_kind(finetune: str, cluster: Cluster) -> str:
    """Say why a fine-tuning is of one kind of chip, and what to type for each."""
    names = [f"{pool.node.chip.name}:{pool.num_chips}" for pool in cluster.pools]
    asked = " or ".join(f"--cluster {name}" for name in names)
    if len(names) == 1:
        chip = cluster.pools[0].node.chip.name
        return (
            f"finetune={finetune} with num_gpus: a fine-tuning uses all chips that it is given;"
            f" type their number, such as --cluster {chip}:8"
        )
    return (
        f"finetune={finetune} over {len(names)} kinds of chips: the programs of fine-tuning give"
        f" every rank the same micro batch and share of weights; plan each kind alone, {asked}"
    )


def _checked_cluster(request: PlanRequest, files: Files) -> tuple[Cluster, int]:
    """Return the chips of a request and how many of them a plan may use; ConfigError for what is
    not searched over several kinds."""
    for name in ("calibration", "profile", "host_memory_gib", "nvme_gib"):
        if getattr(request, name) is not None:
            raise ConfigError(
                f"{name}={getattr(request, name)!r}: it is of one kind of chip; leave it out, or"
                " plan that kind alone"
            )
    cluster = files.cluster_of(request)
    if request.finetune is not None:
        raise ConfigError(_each_kind(request.finetune, cluster))
    for key in ("offload", "optimizer"):
        if key in request.pins:
            raise ConfigError(
                f"--set {key}=: plans over several kinds of chips, or with num_gpus, keep all"
                " states on the chips in plain Adam; leave it out"
            )
    if request.usd_per_hour is not None and len(cluster.pools) > 1:
        raise ConfigError(
            "usd_per_hour is the price of one kind of chip; give each kind its own in a cluster"
            " file (chips: usd_per_hour)"
        )
    if request.unlike_batch and len(cluster.pools) == 1:
        raise ConfigError("unlike_batch: of plans over several kinds of chips; leave it out")
    if "@" in str(request.stack):
        raise ConfigError(
            f"stack={request.stack}: a release's recipe is for one kind of chip; leave"
            f" @{str(request.stack).partition('@')[2]} out"
        )
    return cluster, _checked_count(request.num_gpus, cluster)


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
        raise ConfigError(
            f"num_gpus={wanted}: no multiple of the {node} chips of a node; nearest that are:"
            f" {nearest_words(wanted, node)}"
        )
    return wanted


COUNTS = np.array(
    [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128, 192, 256]
)
"""Layers of a stage for which the exchange is priced; between them the lower one bounds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptionTimes:
    """Seconds of each option, (O,), or (O, C) by COUNTS."""

    forward_s: Floats
    """Of its quickest layer, nothing recomputed; and backward."""
    backward_s: Floats
    first_s: Floats
    """What the first stage takes beyond its layers at most, forward and backward."""
    exchange_s: Floats
    """Reduction and gathering of stages of so many layers, (O, C), nothing hidden."""
    optimizer_s: Floats
    """(O, C)."""

    @staticmethod
    def place(layers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the count that is just not above some layers."""
        return np.asarray(np.searchsorted(COUNTS, layers, side="right") - 1)


def option_times(layouts: Layouts, *, pool: int, site: Site) -> OptionTimes:
    """Price one layer of each layout, and what is done once by the fullest stage's layers."""
    reader = stage_reader(layouts, pool=pool, site=site)
    forward, backward, dense, expert = (
        reader.slopes(t) for t in (reader.forward, reader.backward, reader.dense, reader.expert)
    )
    bases = [
        reader.bases(table, slopes)[:, FIRST]
        for table, slopes in ((reader.forward, forward), (reader.backward, backward))
    ]
    share = trainable_share(site.model, site.work)
    params = [np.outer(share * each.min(axis=1), COUNTS).ravel() for each in (dense, expert)]
    wide, own = (
        layouts.take(np.repeat(np.arange(len(layouts)), len(COUNTS))),
        site.cluster.pools[pool],
    )
    reduce, gather = data_exchange_s(
        wide, *params, pool=own, stack=site.stack, precision=site.work.precision
    )
    optimizer = optimizer_s(wide, *params, pool=own, stack=site.stack)
    return OptionTimes(
        forward_s=forward.min(axis=1),
        backward_s=backward.min(axis=1),
        first_s=np.maximum(0.0, sum(bases)),
        exchange_s=(reduce + gather).reshape(len(layouts), len(COUNTS)),
        optimizer_s=optimizer.reshape(len(layouts), len(COUNTS)),
    )
