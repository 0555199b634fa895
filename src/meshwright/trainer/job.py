"""What is trained, how, and for how long: a plan with `key=value` words on top."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from meshwright.search.problem import details_of, model_of
from meshwright.sizing.checkpoints import Retention
from meshwright.software.defaults import complete_details
from meshwright.software.settings import ModelDetails
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.layout import Layout
from meshwright.values.models.spec import ModelSpec
from meshwright.values.units import counted
from meshwright.values.workload import Workload

__all__ = [
    "ROPE_BASE",
    "ContextWord",
    "DataSettings",
    "OptimizerSettings",
    "SaveSettings",
    "TrainJob",
    "ValidSettings",
    "available_bytes",
    "host_bytes",
    "job_keys",
    "keep_freed_memory",
    "own_runs",
    "read_job",
]

ContextWord = Literal["all-to-all", "ring"]
"""How context-parallel ranks attend: tokens are swapped for heads, or keys and values go round."""


def own_runs(seq_len: int, *, cp: int, place: int, context: ContextWord) -> tuple[range, ...]:
    """Return the tokens of a rank as runs. All-to-all: one run. Ring: of 2 * cp runs the one at
    `place` and its mirror image, so that under a causal mask all ranks have the same number of
    pairs to attend to (zigzag; Llama 3, arXiv:2407.21783, section 3.3.2)."""
    if context == "all-to-all" or cp == 1:
        length = seq_len // cp
        return (range(place * length, (place + 1) * length),)
    length = seq_len // (2 * cp)
    return tuple(range(i * length, (i + 1) * length) for i in (place, 2 * cp - 1 - place))


def host_bytes() -> float:
    """Memory of the host, or what the control group of this process may use of it."""
    total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="utf-8").strip()
    except OSError:
        return total
    return min(total, float(limit)) if limit.isdigit() else total


def available_bytes() -> float:
    """What of it is free now, or could be freed."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return host_bytes()
    known = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return min([*(float(kib) * 1024 for kib in known), host_bytes()])


def keep_freed_memory() -> bool:
    """Let glibc keep what tensors of up to 32 MiB leave for those that follow; return whether it
    does. Else every step gives its memory back and takes it again, page by page: 8,700 faults, 6 %
    of a step, of the tiny Llama at four samples of 128 tokens."""
    try:
        change = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(change(_MMAP_THRESHOLD, _MOST_KEPT) and change(_TRIM_THRESHOLD, _NEVER))


_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of mallopt(3)."""
_MOST_KEPT = 32 * 2**20
"""The largest threshold that glibc takes."""
_NEVER = 2**31 - 1


ROPE_BASE = 10000.0
"""Of rotary positions, as in RoFormer, arXiv:2104.09864."""
DeviceWord = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerSettings:
    """AdamW and its learning rate."""

    learning_rate: float = 3e-4
    least_learning_rate: float = 3e-5
    """At the end of the cosine: a tenth, as in GPT-3."""
    warmup_steps: int = 10
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    clip_norm: float = 1.0
    """Gradients are scaled to this norm at most; 0 is off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSettings:
    """Where tokens come from."""

    blend: tuple[str, ...] = ()
    """Weights and prefixes of .bin/.idx files, `0.7 a 0.3 b`, or prefixes; empty: random tokens."""
    epochs: int = 1000
    """At most; beyond it the data is at its end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SaveSettings:
    """Checkpoints."""

    folder: str | None = None
    every: int = 0
    """Steps between checkpoints; 0 saves at the end and on SIGTERM only."""
    keep: int = 2
    """Newest ones that stay."""
    best: int = 0
    """As many with the least validation loss stay too."""
    keep_every: int = 0
    """And each at a multiple of so many steps; 0 is none."""
    drop_states: bool = False
    """Whether all but the newest lose their optimizer states."""
    wait: Literal["auto", "yes", "no"] = "auto"
    """Whether steps wait for a checkpoint; auto waits on CPUs, where writing takes their cores."""
    resume: bool = True
    """Go on from the newest whole checkpoint of the folder."""

    @property
    def retention(self) -> Retention:
        """Which checkpoints stay; ConfigError for a rule that keeps none."""
        return Retention(
            best=self.best,
            last=self.keep,
            keep_every=self.keep_every or None,
            drop_states=self.drop_states,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidSettings:
    """The validation loss."""

    every: int = 0
    """Steps between evaluations; each checkpoint, and the end, has one too. 0 never evaluates."""
    batches: int = 10
    """Global batches of one evaluation, always the same; held-out data repeats if short."""
    blend: tuple[str, ...] = ()
    """As `data.blend`, of files that no step trains on."""
    share: float = 0.0
    """Instead: the last documents of each file of `data.blend` are held out, as many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainJob:
    """One run of the embedded trainer."""

    model: ModelSpec
    layout: Layout
    seq_len: int
    precision: Literal["bf16", "fp32"] = "bf16"
    steps: int = 20
    minutes: float | None = None
    """Stops as many after the start of the process, whichever comes first."""
    seed: int = 1234
    init_std: float = 0.02
    balance_weight: float = 0.01
    """Of the experts' load-balance loss."""
    rope_base: float = ROPE_BASE
    """Of rotary positions; a plan brings its model's."""
    context: ContextWord = "all-to-all"
    """How context-parallel ranks attend."""
    compile: bool = False
    device: DeviceWord = "auto"
    check_memory: bool = True
    """Refuse a layout that by prediction needs more memory than there is."""
    patience_s: float | None = None
    """How long a collective waits for a rank; None is 50 s, 10 minutes where ranks compile."""
    metrics: str | None = None
    """Folder for a file of JSON lines per rank, `rank-0.jsonl`; None: rank 0's are printed."""
    profile_step: int = 3
    """The step of this process, from 1, that torch's profiler records; 0 is none."""
    trace: str | None = None
    """Folder for a Chrome trace per rank, of that step."""
    memory_snapshot: str | None = None
    """Folder for each rank's record of CUDA allocations until that step, or out of memory."""
    peak_tflops: float | None = None
    """Dense peak of one device, for `mfu`; None asks the catalogue."""
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    data: DataSettings = field(default_factory=DataSettings)
    save: SaveSettings = field(default_factory=SaveSettings)
    valid: ValidSettings = field(default_factory=ValidSettings)


def read_job(plan: Path, words: Iterable[str] = ()) -> TrainJob:
    """Read a plan of `meshwright plan --json` (the first; FILE#2 the second), words on top."""
    name, _, rank = str(plan).partition("#")
    try:
        content = json.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"plan {name!r}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"plan {name!r}: no JSON ({error})") from None
    if not isinstance(content, dict) or not isinstance(content.get("request"), dict):
        raise ConfigError(
            f"plan {name!r}: expected the object that `meshwright plan --json` prints"
        )
    request = content["request"]
    model, seq_len = model_of(request["model"]), request["seq_len"]
    details = ModelDetails.of(details_of(request["model"]))
    whole = complete_details(details, model=model, work=Workload(seq_len=seq_len))
    job = TrainJob(
        model=model,
        rope_base=whole.rope_base or ROPE_BASE,
        layout=_layout_of(content, name, rank),
        seq_len=seq_len,
        precision=_precision(request.get("precision", "bf16")),
    )
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise ConfigError(
                f"{word!r}: expected key=value such as steps=50 or optimizer.learning_rate=1e-3"
            )
        if key not in job_keys():
            raise UnknownNameError("key of a training run", key, job_keys())
        job = _with(job, key.split("."), value, key)
    return job


def _layout_of(content: Mapping[str, Any], name: str, rank: str) -> Layout:
    plans = content.get("plans") or []
    place = int(rank) if rank.isdecimal() else 1
    if not 1 <= place <= len(plans):
        raise ConfigError(
            f"plan {name!r}: #{rank or 1}: the file holds {counted(len(plans), 'plan')}"
        )
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in plans[place - 1]["layout"].items()
    }
    unknown = [key for key in given if key not in Layout.__dataclass_fields__]
    if unknown:
        raise UnknownNameError("layout key", unknown[0], list(Layout.__dataclass_fields__))
    return Layout(**given)


def _precision(word: str) -> Literal["bf16", "fp32"]:
    if word not in ("bf16", "fp32"):
        raise ConfigError(
            f"precision={word}: the embedded trainer computes in bf16 or fp32; plan with"
            " --precision bf16"
        )
    return word  # type: ignore[return-value]  # mypy does not narrow a str to its choices


def _with(values: Any, path: list[str], text: str, key: str) -> Any:
    head, *rest = path
    if rest:
        return replace(values, **{head: _with(getattr(values, head), rest, text, key)})
    return replace(values, **{head: _read(text, get_type_hints(type(values))[head], key)})


def _read(text: str, kind: Any, key: str) -> Any:
    """JSON first, else text; the type must suit the field."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if isinstance(value, list):
        value = tuple(str(part) for part in value)
    if kind == tuple[str, ...] and isinstance(value, str):
        value = tuple(value.split())
    wanted = str(kind)
    if isinstance(value, int) and not isinstance(value, bool) and "float" in wanted:
        value = float(value)
    # a choice, or None, is written there as its repr
    if type(value).__name__ not in wanted and repr(value) not in wanted:
        name = getattr(kind, "__name__", wanted.replace("typing.", ""))
        raise ConfigError(f"{key}={text}: expected {name}")
    return value


def job_keys(kind: Any = TrainJob, before: str = "") -> list[str]:
    """Return what `key=value` words may name."""
    found: list[str] = []
    for name, hint in get_type_hints(kind).items():
        if name not in ("model", "layout"):
            found += job_keys(hint, f"{before}{name}.") if is_dataclass(hint) else [before + name]
    return found
