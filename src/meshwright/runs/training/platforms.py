"""Where a training is started: one row for each launcher, with the form of its limit on time and
what it can't do."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.runs.training.software import TimeForm
from meshwright.values.errors import UnknownNameError
from meshwright.values.layout import Layout
from meshwright.values.units import counted

__all__ = [
    "PLATFORMS",
    "Division",
    "Platform",
    "divide",
    "divides",
    "find_platform",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Platform:
    """One launcher."""

    name: str
    script: str
    """The platform of `meshwright export --launcher` that writes its job."""
    limit: str
    """Where the limit on time stands; {time} is it in the platform's form."""
    form: TimeForm
    sees_here: bool = False
    """Whether a job without a container sees the paths of the machine that submits it."""
    copies_paths: bool = False
    """Whether a path that is mounted is a copy on each node, gone with it; buckets are mounted."""
    chains: bool = False
    """Whether the platform itself starts a job when another has ended."""
    caveats: tuple[str, ...] = ()
    """Of limits and of what can't be followed."""


_OWN_TIMEOUT = (
    "the platform has no limit on time: coreutils' timeout around the program ends it, in every"
    " node by its own clock"
)
_TELLS_LITTLE = (
    "it tells no exit code, keeps no stderr apart, and a job that its limit ended reads as failed"
)
PLATFORMS: tuple[Platform, ...] = (
    Platform(
        name="local",
        script="torchrun",
        limit="its watcher ends it after {time} s",
        form="seconds",
        sees_here=True,
    ),
    Platform(
        name="slurm",
        script="slurm",
        limit="#SBATCH --time={time}",
        form="days-hours:minutes:seconds",
        sees_here=True,
        chains=True,
        caveats=("Slurm counts minutes and ends a job up to half a minute late",),
    ),
    Platform(
        name="k8s", script="k8s-trainjob", limit="activeDeadlineSeconds: {time}", form="seconds"
    ),
    Platform(
        name="bcp",
        script="bcp",
        limit="--total-runtime {time}",
        form="nDnHnMnS",
        caveats=(
            "--total-runtime is a graceful stop: the job is told to end, and killed later",
            (
                "NeMo's run.time_limit does nothing on Base Command; the limit above is the"
                " platform's own"
            ),
        ),
    ),
    Platform(
        name="runai",
        script="runai",
        limit="timeout {time}",
        form="seconds",
        caveats=(_OWN_TIMEOUT, _TELLS_LITTLE),
    ),
    Platform(
        name="lepton",
        script="lepton",
        limit="timeout {time}",
        form="seconds",
        caveats=(_OWN_TIMEOUT, _TELLS_LITTLE),
    ),
    Platform(
        name="sky",
        script="sky",
        limit="timeout {time}",
        form="seconds",
        copies_paths=True,
        caveats=(_OWN_TIMEOUT, _TELLS_LITTLE),
    ),
)
"""In the order of help. Sources: docs/jobs.md; SkyPilot, Run:ai and Lepton have no option of that
kind."""


def find_platform(name: str) -> Platform:
    """Return a row; UnknownNameError with the nearest names."""
    for row in PLATFORMS:
        if row.name == name:
            return row
    raise UnknownNameError("launcher", name, [row.name for row in PLATFORMS])


_SHOWN = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Division:
    """A layout on some GPUs."""

    gpus: int
    per_replica: int
    """tp * cp * pp."""
    dp: int | None
    """None where the GPUs are no whole number of replicas."""
    micro_batches: int | None
    """Of one replica in a step; None where the batch does not divide."""
    nearest_gpus: tuple[int, ...] = ()
    """Counts around this one on which plan and batch divide."""
    nearest_gbs: tuple[int, ...] = ()
    """Batches around the plan's that divide on these GPUs."""

    @property
    def divides(self) -> bool:
        """Whether the plan runs."""
        return self.micro_batches is not None

    def words(self, layout: Layout) -> str:
        """Return the sentence of it."""
        per = f"tp {layout.tp} * cp {layout.cp} * pp {layout.pp}"
        if self.dp is None:
            return (
                f"{counted(self.gpus, 'GPU')} are no multiple of {per} ="
                f" {self.per_replica}{self._remedies()}"
            )
        whole = f"{counted(self.gpus, 'GPU')} / ({per}) = dp {self.dp}"
        if self.micro_batches is None:
            return (
                f"{whole}, but gbs {layout.gbs} is no multiple of mbs {layout.mbs} * dp"
                f" {self.dp}{self._remedies()}"
            )
        return (
            f"{whole}; gbs {layout.gbs} / (mbs {layout.mbs} * dp {self.dp}) = {self.micro_batches}"
            " micro batches"
        )

    def _remedies(self) -> str:
        found = [f"{', '.join(map(str, self.nearest_gpus))} GPUs"] if self.nearest_gpus else []
        found += [f"gbs {', '.join(map(str, self.nearest_gbs))}"] if self.nearest_gbs else []
        return f"; {' or '.join(found)} would do" if found else ""


def divide(layout: Layout, *, gpus: int, gpus_per_node: int) -> Division:
    """Return how a layout's replicas and batch divide on some GPUs; dp is the layout's to change,
    its batch is not.

    Formula:  dp = gpus / (tp * cp * pp), micro batches = gbs / (mbs * dp), both whole
    Units:    counts.
    Source:   megatron/core/parallel_state.py. Older documents divide the GPUs by tp * pp alone, and
              the batch by mbs * GPUs
    Checked:  tests/runs/training/test_replicas.py
    """
    per_replica = layout.tp * layout.cp * layout.pp
    dp = gpus // per_replica if gpus % per_replica == 0 and gpus > 0 else None
    batches = (
        layout.gbs // (layout.mbs * dp) if dp is not None and divides(layout, gpus=gpus) else None
    )
    near_gpus: tuple[int, ...] = ()
    near_gbs: tuple[int, ...] = ()
    if batches is None:
        near_gpus = _near_gpus(
            layout, gpus=gpus, per_replica=per_replica, gpus_per_node=gpus_per_node
        )
        near_gbs = () if dp is None else _near_gbs(layout.gbs, layout.mbs * dp)
    return Division(
        gpus=gpus,
        per_replica=per_replica,
        dp=dp,
        micro_batches=batches,
        nearest_gpus=near_gpus,
        nearest_gbs=near_gbs,
    )


def divides(layout: Layout, *, gpus: int) -> bool:
    """Whether GPUs make whole replicas of a layout, and its batch whole micro batches of each, as
    in `divide`."""
    replicas, rest = divmod(gpus, layout.tp * layout.cp * layout.pp)
    return replicas > 0 and not rest and layout.gbs % (layout.mbs * replicas) == 0


def _near_gpus(
    layout: Layout, *, gpus: int, per_replica: int, gpus_per_node: int
) -> tuple[int, ...]:
    """Counts of whole nodes, or within one, nearest first."""
    most = layout.gbs // layout.mbs
    counts = [dp * per_replica for dp in range(1, most + 1) if layout.gbs % (layout.mbs * dp) == 0]
    usable = [count for count in counts if count % gpus_per_node == 0 or count < gpus_per_node]
    return tuple(sorted(sorted(usable, key=lambda count: (abs(count - gpus), count))[:_SHOWN]))


def _near_gbs(gbs: int, unit: int) -> tuple[int, ...]:
    below = gbs // unit * unit
    return tuple(size for size in (below, below + unit) if size > 0)
