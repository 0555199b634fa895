"""TrainingPlan: everything that an export is a function of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from meshwright.search.exchange import context_way
from meshwright.search.problem import Asked, details_of
from meshwright.search.rules.check import require_valid
from meshwright.search.rules.rule import RuleCase
from meshwright.search.rules.software import NEWEST_MEGATRON
from meshwright.software.defaults import complete_details, complete_settings
from meshwright.software.settings import ModelDetails, TrainingSettings
from meshwright.values.errors import ConfigError
from meshwright.values.hardware.cluster import Cluster, Pool
from meshwright.values.layout import Layout
from meshwright.values.models.spec import ModelSpec
from meshwright.values.stack import Stack
from meshwright.values.start import Start
from meshwright.values.workload import Workload

__all__ = ["TrainingPlan", "canonical_layout", "completed", "plan_of", "without"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """A model, a cluster and a complete layout that keeps the rules, with the settings to train
    by."""

    model: ModelSpec
    cluster: Cluster
    work: Workload
    """Its `gbs` is that of the layout."""
    stack: Stack
    layout: Layout
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    details: ModelDetails = field(default_factory=ModelDetails)
    megatron_version: str = NEWEST_MEGATRON
    start: Start | None = None
    """What the stack is started with beside the layout; None where no recipe says."""

    def __post_init__(self) -> None:
        if self.work.gbs != self.layout.gbs:
            raise ConfigError(
                f"gbs={self.work.gbs} of the workload and gbs={self.layout.gbs} of the layout"
                " differ"
            )
        case = RuleCase(
            model=self.model,
            work=self.work,
            num_chips=self.cluster.num_chips,
            stack=self.stack,
            megatron_version=self.megatron_version,
        )
        require_valid(self.layout, case)

    @property
    def pool(self) -> Pool:
        """The chips, where they are of one kind; ConfigError where they are not."""
        if len(self.cluster.pools) > 1:
            raise ConfigError(
                f"cluster {self.cluster.name}: exports take one kind of chip; export the plan of"
                " each pool by itself"
            )
        return self.cluster.pools[0]


def plan_of(
    asked: Asked, *, settings: TrainingSettings | None = None, details: ModelDetails | None = None
) -> TrainingPlan:
    """Return the plan of a layout in its problem (`search.problem.ask`); without `details`, with
    those that go with the model's dims."""
    setting = asked.problem.setting
    if details is None:
        details = ModelDetails.of(details_of(asked.problem.request.model))
    return TrainingPlan(
        model=setting.model,
        cluster=Cluster(pools=(setting.pool,)),
        work=replace(setting.work, gbs=asked.layout.gbs),
        stack=setting.stack,
        layout=canonical_layout(asked.layout, setting.model),
        settings=settings or TrainingSettings(),
        details=details,
        megatron_version=asked.problem.request.megatron_version,
        start=setting.start,
    )


def without(plan: TrainingPlan, names: Iterable[str]) -> TrainingPlan:
    """Return the plan without some of what it sets beyond its layout: a model's details, such as
    `aux_loss`, and settings. ConfigError for what it does not set."""
    parts: dict[str, Any] = {"settings": plan.settings, "details": plan.details}
    given = {
        one.name: part
        for part, values in parts.items()
        for one in fields(values)
        if getattr(values, one.name) != getattr(type(values)(), one.name)
    }
    for name in names:
        if name not in given:
            raise ConfigError(
                f"--leave-out {name}: the plan does not set it; it sets"
                f" {', '.join(sorted(given)) or 'nothing that can be left out'}"
            )
        part = given[name]
        parts[part] = replace(parts[part], **{name: getattr(type(parts[part])(), name)})
    return replace(plan, **parts)


def completed(plan: TrainingPlan) -> TrainingPlan:
    """Return the plan with every setting and detail that has a rule filled in; what is given is
    never changed."""
    details = complete_details(plan.details, model=plan.model, work=plan.work)
    way = context_way(
        plan.layout, model=plan.model, pool=plan.cluster.pools[0], work=plan.work, stack=plan.stack
    )
    return replace(
        plan,
        work=replace(plan.work, cp_comm_type=None if way is None else way.word),
        settings=complete_settings(plan.settings, model=plan.model, work=plan.work),
        details=details,
        layout=canonical_layout(plan.layout, plan.model),
    )


def canonical_layout(layout: Layout, model: ModelSpec) -> Layout:
    """Return the same layout with values that equal their default written as that default, so that
    equal layouts compare equal."""
    one_by_one = layout.recompute != "full" or layout.recompute_layers is None
    return replace(
        layout,
        etp=None if layout.etp == layout.tp else layout.etp,
        shard_size=(
            None
            if layout.shard_size == layout.dp * layout.cp and layout.sharding != "hybrid"
            else layout.shard_size
        ),
        recompute_method="uniform" if one_by_one else layout.recompute_method,
        recompute_layers=(
            None
            if layout.recompute_method == "uniform" and layout.recompute_layers == 1
            else layout.recompute_layers
        ),
        recompute_modules=tuple(sorted(set(layout.recompute_modules))),
        layers_per_stage=_canonical_split(layout),
    )


def _canonical_split(layout: Layout) -> tuple[int, ...] | None:
    """Return an uneven split with an entry for each chunk; None for an even one."""
    split = layout.layers_per_stage
    if split is None or len(set(split)) == 1:
        return None
    if len(split) == layout.pp:
        return tuple(entry // layout.vpp for _ in range(layout.vpp) for entry in split)
    return split
