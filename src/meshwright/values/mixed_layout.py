"""MixedLayout: a model cut over stages that differ in chip, tp, batch and recomputation."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import groupby

from meshwright.values.layout import Layout, Recompute, RecomputeMethod, Schedule, Sharding

__all__ = ["MixedLayout", "StageLayout", "layers_words", "mixed_words", "runs_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StageLayout:
    """One stage of the pipeline: its chips, and how its layers run on them."""

    pool: int
    """Number of its pool in the cluster."""
    chip: str
    layers: int
    """Of all its chunks."""
    tp: int
    sp: bool
    dp: int
    """Replicas of this stage; dp * mbs is the same for all stages."""
    mbs: int
    recompute: Recompute = "none"
    recompute_method: RecomputeMethod = "uniform"
    recompute_layers: int | None = None
    """As of Layout."""
    recompute_modules: tuple[str, ...] = ()

    @property
    def recompute_words(self) -> str:
        """Say how it recomputes."""
        if self.recompute == "selective":
            return "+".join(self.recompute_modules)
        return (
            "full" if self.recompute_layers is None else f"{self.recompute} {self.recompute_layers}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedLayout:
    """How one model is trained on chips of several kinds; stages in the order of the pipeline."""

    stages: tuple[StageLayout, ...]
    gbs: int
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    """None follows each stage's tp."""
    vpp: int = 1
    sharding: Sharding = "none"
    schedule: Schedule = "1f1b"
    chunks: tuple[int, ...] | None = None
    """Layers of each chunk in model order; None deals a stage's layers as evenly as can be."""

    @property
    def pp(self) -> int:
        """Stages of the pipeline."""
        return len(self.stages)

    @property
    def num_microbatches(self) -> int:
        """Micro batches per step, the same on every stage."""
        return self.gbs // (self.stages[0].mbs * self.stages[0].dp)

    @property
    def num_chips(self) -> int:
        """Chips that it runs on."""
        return sum(self.chips_of(pool) for pool in {stage.pool for stage in self.stages})

    def chips_of(self, pool: int) -> int:
        """Chips of one pool that it runs on."""
        return sum(stage.tp * stage.dp * self.cp for stage in self.stages if stage.pool == pool)

    @property
    def pools(self) -> tuple[int, ...]:
        """The pools that hold stages, in the order of the pipeline."""
        return tuple(dict.fromkeys(stage.pool for stage in self.stages))

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """Pool and length of each run of stages on one pool; a pool that comes back has several."""
        return tuple(
            (pool, len(list(run))) for pool, run in groupby(stage.pool for stage in self.stages)
        )

    @property
    def chunk_layers(self) -> tuple[int, ...]:
        """Layers of each chunk in model order."""
        return self.chunks or tuple(
            stage.layers // self.vpp + (chunk < stage.layers % self.vpp)
            for chunk in range(self.vpp)
            for stage in self.stages
        )

    def row(self, stage: int) -> Layout:
        """The layout in which all stages run as this one does, with every stage's own layers."""
        own = self.stages[stage]
        names = {one.name for one in fields(Layout)}
        shared = {one.name: getattr(self, one.name) for one in fields(self) if one.name in names}
        of_stage = {one.name: getattr(own, one.name) for one in fields(own) if one.name in names}
        return Layout(**shared, **of_stage, pp=self.pp, layers_per_stage=self.chunk_layers)

    def uniform(self) -> Layout | None:
        """The same as a Layout, where all stages are alike but for their layers; else None."""
        first = self.stages[0]
        alike = all(replace(stage, layers=first.layers) == first for stage in self.stages)
        return self.row(0) if alike else None

    def unrolled(self) -> MixedLayout:
        """A pipeline as deep as this one has chunks, in model order: its stages take what those
        chunks take. Its schedule is one that runs experts' exchanges beside another micro batch's
        compute, as chunks do and plain 1F1B does not."""
        chunks = zip(self.chunk_layers, self.stages * self.vpp, strict=True)
        return replace(
            self,
            vpp=1,
            schedule="zero-bubble",
            chunks=None,
            stages=tuple(replace(stage, layers=layers) for layers, stage in chunks),
        )


def runs_of(layout: MixedLayout) -> list[tuple[StageLayout, ...]]:
    """Return the stages in runs that share the chip and how it is cut."""
    return [
        tuple(run)
        for _, run in groupby(
            layout.stages, key=lambda stage: (stage.pool, stage.tp, stage.dp, stage.mbs)
        )
    ]


def layers_words(run: tuple[StageLayout, ...]) -> str:
    """Write the layers of a run of stages, `13x5+12` for five stages of 13 and one of 12."""
    counts = [
        (layers, len(list(group))) for layers, group in groupby(stage.layers for stage in run)
    ]
    return "+".join(f"{layers}x{count}" if count > 1 else str(layers) for layers, count in counts)


def mixed_words(layout: MixedLayout) -> str:
    """Write the pipeline in a line: `h800 tp4 13x5 | a800 tp4 5x3`."""
    return " | ".join(f"{run[0].chip} tp{run[0].tp} {layers_words(run)}" for run in runs_of(layout))
