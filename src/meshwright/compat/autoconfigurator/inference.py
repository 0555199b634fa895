"""AutoConfigurator's inference part: a grid of TP and PP sizes, predicted, and its tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

from meshwright.compat.autoconfigurator.settings import TrainSettings, chip_of, model_of_settings
from meshwright.compat.checks import is_whole, made, whole
from meshwright.runs.serving.trial import OWN_ENGINE
from meshwright.runs.store import write_whole
from meshwright.serving.candidates import Candidate, candidate_of
from meshwright.serving.engine import Cache, Weights, Worker, find_engine
from meshwright.serving.request import ServingRequest
from meshwright.serving.static import static_batch
from meshwright.values.errors import ConfigError, LayoutError, UnknownNameError
from meshwright.values.hardware.parse import parse_cluster
from meshwright.values.models.spec import ModelSpec
from meshwright.values.text import csv_text
from meshwright.values.units import GIB, MINUTE_S, parse_duration

__all__ = [
    "InferenceSearch",
    "Point",
    "PointTable",
    "Refused",
    "inference_of",
    "predict_points",
    "sorted_out",
    "write_points",
]

THEIRS = ("TP", "PP", "BS", "Latency [ms]", "Throughput per GPU [samples/sec/gpu]")
"""NeMo's headings, to the letter."""
OURS = (
    *("GPUs", "Nodes", "First Token [ms]", "TPOT [ms]", "Output Tokens per GPU [tokens/sec/gpu]"),
    *("Memory [GiB]", "Model", "GPU", "Data Type", "Input Len", "Output Len", "Source", "Engine"),
    "Predicted Latency [ms]",
)
FINAL, BESIDE = "final_summary", "predicted_summary"
FAILED = ("TP", "PP", "BS", "Class", "Reason", "Evidence")


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One point that runs."""

    tp: int
    pp: int
    batch: int
    latency_ms: float
    """Of a static batch, predicted: from its first prompt token to its last new one. Measured: of a
    request, mean, with as many clients."""
    samples_per_s_per_gpu: float
    """NeMo's throughput."""
    first_token_ms: float
    tpot_ms: float | None
    """None of one token."""
    memory_gib: float | None = None
    """Of the fullest chip, as predicted; None where it was measured, which says nothing of it."""
    predicted_ms: float | None = None
    """Of a measured point: what was predicted of this engine."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """One point that can't run, or did not."""

    tp: int
    pp: int
    batch: int
    kind: str
    """`rule` and `oom` before a run, of a run its failure class."""
    reason: str
    evidence: str | None = None
    """The line that shows it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PointTable:
    """All points of a grid, with what they share."""

    points: Sequence[Point]
    refused: Sequence[Refused]
    search: InferenceSearch
    chip: str
    """What was measured, or predicted."""
    source: Literal["predicted", "measured"]

    @property
    def engine(self) -> str:
        return PREDICTED if self.source == "predicted" else self.search.engine


def write_points(table: PointTable, *, beside: bool = False) -> Path:
    """Write `final_output.csv`, `all_points.csv` and `failed_points.csv`; return the first. Every
    row says what it is of.

    They are the final summary, unless they lie `beside` one that is measured.
    """
    folder = made(table.search.folder / (BESIDE if beside else FINAL))
    rows = [
        [p.tp, p.pp, p.batch, round(p.latency_ms, 3), round(p.samples_per_s_per_gpu, 3)]
        for p in table.points
    ]
    more = [_more(table, point) for point in table.points]
    failed = [[p.tp, p.pp, p.batch, p.kind, p.reason, p.evidence] for p in table.refused]
    write_whole(folder / "final_output.csv", csv_text(THEIRS, rows))
    joined = [[*row, *rest] for row, rest in zip(rows, more, strict=True)]
    write_whole(folder / "all_points.csv", csv_text((*THEIRS, *OURS), joined))
    write_whole(folder / "failed_points.csv", csv_text(FAILED, failed))
    return folder / "final_output.csv"


def _more(table: PointTable, point: Point) -> list[Any]:
    gpus, search = point.tp * point.pp, table.search
    return [
        *(gpus, -(-gpus // search.gpus_per_node)),
        *(_rounded(point.first_token_ms, 3), _rounded(point.tpot_ms, 3)),
        _rounded(point.samples_per_s_per_gpu * search.output_len, 3),
        *(_rounded(point.memory_gib, 2), search.model.name, table.chip, search.data_type),
        *(search.input_len, search.output_len, table.source, table.engine),
        _rounded(point.predicted_ms, 3),
    ]


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


PREDICTED = "fastertransformer"
"""The engine whose static batches are predicted."""

_RUN = "search_config.inference_settings.run"
_BENCHMARK = "search_config.inference_settings.benchmark"
_TYPES: tuple[Weights, ...] = ("fp32", "fp16", "bf16")
_LISTS = {"tensor_parallel_sizes": _RUN, "pipeline_parallel_sizes": _RUN, "batch_sizes": _BENCHMARK}
_USUAL = {"topk": 4, "topp": 0.0}
_IN_RUN = (
    *("model_train_name", "gpus_per_node", "data_type", "results_dir"),
    *("tensor_parallel_sizes", "pipeline_parallel_sizes"),
)
_IN_BENCHMARK = ("input_len", "output_len", "batch_sizes", "beam_width", *_USUAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class InferenceSearch:
    """What is searched: every point of the grid."""

    model: ModelSpec
    name: str
    """`model_train_name`, as the old tool calls its folders."""
    chip: str
    gpus_per_node: int
    data_type: Weights
    input_len: int
    output_len: int
    grid: tuple[tuple[int, int, int], ...]
    """(tensor parallel, pipeline parallel, batch)."""
    folder: Path
    engine: str
    """What is measured; predicted is FasterTransformer."""
    model_path: str | None
    """The checkpoint that the engine loads; None: random weights, which transformers makes."""
    container: str | None
    """Image of the runs; None: `training_container`."""
    minutes_per_run: float
    notes: tuple[str, ...]

    @property
    def study(self) -> Path:
        return self.folder / "study"

    @property
    def was_measured(self) -> bool:
        """Whether there are runs of an earlier start."""
        return self.study.exists()

    def table(
        self,
        points: Sequence[Point],
        refused: Sequence[Refused],
        *,
        source: Literal["predicted", "measured"],
    ) -> PointTable:
        return PointTable(
            points=points, refused=refused, search=self, chip=self.chip, source=source
        )


def inference_of(config: Mapping[str, Any]) -> InferenceSearch:
    """Read `inference_settings`; ConfigError names the key whose value can't be."""
    train = TrainSettings.of(config)
    settings = config["search_config"]["inference_settings"]
    run, benchmark = (
        _section(settings, word, names)
        for word, names in (("run", _IN_RUN), ("benchmark", _IN_BENCHMARK))
    )
    model = model_of_settings(train)
    lists = [
        _list(f"{where}.{name}", (run if where == _RUN else benchmark)[name])
        for name, where in _LISTS.items()
    ]
    if run["data_type"] not in _TYPES:
        raise UnknownNameError(f"{_RUN}.data_type", str(run["data_type"]), _TYPES)
    if _count(_BENCHMARK, "beam_width", benchmark) > 1:
        raise ConfigError(
            f"{_BENCHMARK}.beam_width={benchmark['beam_width']}: batches of one beam are modelled;"
            " expected 1"
        )
    output_len = _count(_BENCHMARK, "output_len", benchmark)
    engine = str(run.get("engine", "auto"))  # `auto` needs no checkpoint
    return InferenceSearch(
        model=model,
        name=str(run["model_train_name"]),
        chip=chip_of(train),
        gpus_per_node=_count(_RUN, "gpus_per_node", run),
        data_type=run["data_type"],
        input_len=_count(_BENCHMARK, "input_len", benchmark),
        output_len=1 if model.family == "encoder" else output_len,
        grid=tuple(itertools.product(lists[0], lists[1], lists[2])),
        folder=Path(run["results_dir"]) / "inference",
        engine=OWN_ENGINE if engine == "auto" else find_engine(engine).name,
        model_path=None if run.get("model_path") is None else str(run["model_path"]),
        container=None if run.get("container") is None else str(run["container"]),
        minutes_per_run=_minutes(run.get("time_limit", "0:30:00")),
        notes=tuple(_notes(model, benchmark)),
    )


def _section(settings: Any, word: str, names: Sequence[str]) -> Mapping[str, Any]:
    section = settings.get(word) if isinstance(settings, Mapping) else None
    missing = [name for name in names if not isinstance(section, Mapping) or name not in section]
    if missing:
        raise ConfigError(
            f"search_config.inference_settings.{word}.{missing[0]}: missing;"
            " run_inference_hp_search=False does without"
        )
    assert isinstance(section, Mapping), "else every name is missing"
    return section


def _notes(model: ModelSpec, benchmark: Mapping[str, Any]) -> list[str]:
    moved = [name for name, usual in _USUAL.items() if benchmark[name] != usual]
    idle = [f"{_BENCHMARK}.{name}={benchmark[name]}" for name in moved]
    notes = []
    if idle:
        notes.append(f"{', '.join(idle)}: how a token is drawn takes no time that is modelled")
    if model.family == "encoder":
        notes.append(
            f"{_BENCHMARK}.output_len: an encoder writes nothing; the latency is that of one pass"
            " over the input"
        )
    return notes


def _minutes(limit: Any) -> float:
    """Of `time_limit`, H:MM:SS; a YAML file without quotes makes seconds of it."""
    if is_whole(limit, least=-(2**40)):
        return int(limit) / MINUTE_S
    return parse_duration(str(limit), name=f"{_RUN}.time_limit") / MINUTE_S


def predict_points(search: InferenceSearch) -> tuple[list[Point], list[Refused]]:
    """Price every point as FasterTransformer runs it: the whole batch together, end to end."""
    most = max(tp * pp for tp, pp, _ in search.grid)
    nodes = -(-most // search.gpus_per_node)
    chips = f"{search.chip}:{nodes * search.gpus_per_node}"
    request = ServingRequest(
        model=search.model,
        cluster=parse_cluster(chips, gpus_per_node=search.gpus_per_node),
        engine=find_engine(PREDICTED),
        input_len=search.input_len,
        output_len=search.output_len,
        modes=("static",),
    )
    return sorted_out(_point(request, search, *at) for at in search.grid)


def sorted_out(found: Iterable[Point | Refused]) -> tuple[list[Point], list[Refused]]:
    """Return the points that run, and those that don't."""
    all_of = list(found)
    done = [point for point in all_of if isinstance(point, Point)]
    return done, [point for point in all_of if isinstance(point, Refused)]


def _point(
    request: ServingRequest, search: InferenceSearch, tp: int, pp: int, batch: int
) -> Point | Refused:
    lengths = {"input_len": search.input_len, "output_len": search.output_len}
    refused = partial(Refused, tp=tp, pp=pp, batch=batch)
    try:
        held = _candidate(request, search, Worker(tp=tp, pp=pp))
        found = static_batch(held.prices, batch=batch, **lengths)
    except LayoutError as error:
        return refused(kind="rule", reason=str(error))
    except ConfigError as error:
        return refused(kind="oom", reason=str(error))
    if not found.fits:
        over = (found.memory_bytes - held.memory.limit) / GIB
        return refused(kind="oom", reason=f"{over:.1f} GiB short at the last token")
    return Point(
        tp=tp,
        pp=pp,
        batch=batch,
        latency_ms=found.latency_s * 1e3,
        samples_per_s_per_gpu=batch / found.latency_s / tp / pp,
        first_token_ms=found.first_token_s * 1e3,
        tpot_ms=found.tpot_s * 1e3 if search.output_len > 1 else None,
        memory_gib=found.memory_bytes / GIB,
    )


def _candidate(request: ServingRequest, search: InferenceSearch, worker: Worker) -> Candidate:
    layers = search.model.num_layers
    if layers % worker.pp:
        able = ", ".join(str(n) for n in range(1, layers + 1) if layers % n == 0)
        raise LayoutError(
            f"num_layers={layers} is not divisible by pp={worker.pp}; pp may be {able}"
        )
    return candidate_of(
        request, request.cluster.pools[0], worker, search.data_type, cast("Cache", search.data_type)
    )


def _list(name: str, value: Any) -> list[int]:
    found = value if isinstance(value, list) else [value]
    if not found:
        raise ConfigError(f"{name}={value}: expected a list of whole numbers, such as [1,2,4]")
    return list(dict.fromkeys(whole(size, f"{name}={size}", below=_MOST) for size in found))


_MOST = 2**20


def _count(where: str, name: str, section: Mapping[str, Any]) -> int:
    return whole(section[name], f"{where}.{name}={section[name]}", below=_MOST)
