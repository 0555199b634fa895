"""A plan over several kinds of chips, read back from what `plan --json` printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meshwright.errors import ConfigError
from meshwright.mixed_layout import MixedLayout, StageLayout

if TYPE_CHECKING:
    from meshwright.search.mixed.problem import MixedProblem

__all__ = ["mixed_layout_of"]


def mixed_layout_of(plan: Mapping[str, Any], problem: MixedProblem) -> MixedLayout:
    """Read the stages of a plan; ConfigError where they are not as `plan --json` prints them, or on
    chips that the cluster has not."""
    try:
        stages = tuple(_stage(stage, problem) for stage in plan["stages"])
        shared = {
            name: plan["layout"][name]
            for name in ("gbs", "cp", "ep", "etp", "vpp", "sharding", "schedule")
        }
        layout, chunks = (
            MixedLayout(stages=stages, **shared),
            tuple(plan["layout"]["layers_per_stage"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"a plan's stages are not as `plan --json` prints them ({type(error).__name__}:"
            f" {error})"
        ) from None
    if sum(chunks) != problem.site.model.total_layers or len(chunks) != layout.pp * layout.vpp:
        raise ConfigError(
            f"a plan's layers {'+'.join(map(str, chunks))} are not the"
            f" {problem.site.model.total_layers} of {problem.site.model.name} over pp={layout.pp} *"
            f" vpp={layout.vpp} chunks"
        )
    return layout if chunks == layout.chunk_layers else replace(layout, chunks=chunks)


def _stage(stage: Mapping[str, Any], problem: MixedProblem) -> StageLayout:
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in stage.items()
    }
    chips = [pool.node.chip.name for pool in problem.cluster.pools]
    place = values.pop("pool", None)
    if place is None and values["chip"] in chips:
        place = chips.index(values["chip"])
    if not isinstance(place, int) or not 0 <= place < len(chips) or chips[place] != values["chip"]:
        raise ConfigError(
            f"a plan has a stage on {values['chip']}, which is not in its place in the cluster"
            f" {problem.request.cluster}"
        )
    return StageLayout(pool=place, **values)
