"""What `meshwright profile` measured on one device: the value, and its form as a file (.npz or
.json, the same content).

    {"form": 1, "effort": "quick", "complete": true,
     "machine": {"device": "cpu", "device_name": ..., "driver": ..., "torch_version": ..., "date":
     ..., ...}, "series": [{"name": "gemm/fp32", "dims": ["m", "n", "k"], "axes": [[64, 256], [256],
     [256, 1024]],
                 "points": [[64, 256, 256], ...], "seconds": [1.2e-4, ...], "spread_frac": [...],
                 "repeats": [...], "outcomes": [...]}],
     "skipped": {"gemm/fp8": "why it was not measured"}}

`.npz` holds all but the columns as JSON in the array `meta`, with the number of `rows` of each
series, and each column as one array over all series (`points` flat, `outcomes` as places in
OUTCOMES, no time as -1).
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import islice
from math import inf
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from meshwright.values.errors import ConfigError

__all__ = [
    "FORM",
    "OUTCOMES",
    "UNSTEADY_FRAC",
    "Effort",
    "FileForm",
    "Machine",
    "Outcome",
    "Profile",
    "ProfileForm",
    "Sample",
    "Series",
    "SeriesForm",
    "checked",
    "profile_from_bytes",
    "profile_to_bytes",
]

FORM = 1
"""Version of the file's form."""
Effort = Literal["quick", "standard", "full"]
FileForm = Literal["npz", "json"]
Outcome = Literal["measured", "out of memory", "not supported"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
UNSTEADY_FRAC = 0.2
"""Spread beyond which a time is called unsteady."""
_COLUMNS = ("points", "seconds", "spread_frac", "repeats", "outcomes")
_KINDS = ("<f8", "<f8", "<f8", "<i8", "<i1")
_ZIP = b"PK"
_NOT_MEASURED = -1.0
"""Seconds of a point without a time, in an array of .npz."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One operator at one shape."""

    point: tuple[float, ...]
    """The shape: a number for each of the series' dims."""
    seconds: float | None = None
    """Median; None where there is no time."""
    spread_frac: float | None = None
    """Distance between the quartiles over the median."""
    repeats: int = 0
    outcome: Outcome = "measured"

    def __post_init__(self) -> None:
        if not all(0 < number < inf for number in self.point):
            raise ConfigError(f"point={list(self.point)}: expected positive numbers")
        has_time = self.seconds is not None and 0 < self.seconds < inf
        if not has_time if self.outcome == "measured" else self.seconds is not None:
            raise ConfigError(
                f"seconds={self.seconds} at {list(self.point)}, {self.outcome}: expected a time"
                " above 0 where it was measured"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One operator at all its shapes."""

    name: str
    """`gemm/bf16`: operator, then precision or kind; docs/profile.md lists them."""
    dims: tuple[str, ...]
    axes: tuple[tuple[float, ...], ...]
    """The grid that was asked for, one axis per dim. Samples may lie beside it (a model's
    shapes)."""
    samples: tuple[Sample, ...] = ()

    def __post_init__(self) -> None:
        if not self.dims or len(self.axes) != len(self.dims) or not all(self.axes):
            raise ConfigError(
                f"{self.name}: {len(self.axes)} axes for dims={list(self.dims)}: expected one with"
                " points for each"
            )
        if any(
            list(axis) != sorted(set(axis)) or not 0 < axis[0] <= axis[-1] < inf
            for axis in self.axes
        ):
            raise ConfigError(f"{self.name}: expected axes of rising positive numbers")
        if any(len(sample.point) != len(self.dims) for sample in self.samples):
            raise ConfigError(
                f"{self.name}: expected points with {len(self.dims)} numbers,"
                f" {', '.join(self.dims)}"
            )

    @property
    def measured(self) -> tuple[Sample, ...]:
        """Samples that have a time."""
        return tuple(sample for sample in self.samples if sample.seconds is not None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Where, with what and when it was measured."""

    device: str
    """`cuda` or `cpu`, as torch calls it."""
    device_name: str
    num_devices: int
    total_bytes: float
    """Memory of one device."""
    usable_bytes: float
    """What a process sees of it."""
    platform: str
    """Operating system and processor."""
    num_threads: int
    """Host threads that torch computes with."""
    driver: str | None = None
    cuda_version: str | None = None
    torch_version: str
    python_version: str
    date: str
    """Of the first measurement, UTC, ISO 8601."""
    clock_mhz: float | None = None
    """Core clock before the first measurement, None where it can't be read."""
    max_clock_mhz: float | None = None
    power_limit_w: float | None = None
    load_average: float | None = None
    """Processes that ran on the host in the minute before the first measurement; others slow the
    figures down, on the CPU above all."""

    def differences(self, other: Machine) -> list[str]:
        """Say what keeps measurements of both out of one table, beside what changes run by run."""
        varying = {"date", "clock_mhz", "load_average", "usable_bytes", "total_bytes"}
        if self.device != "cpu":
            varying.add("num_threads")
        names = [field.name for field in fields(self) if field.name not in varying]
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in names]
        return [
            f"{name} {mine} is {theirs} there" for name, mine, theirs in pairs if mine != theirs
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """All that was measured on one device."""

    machine: Machine
    effort: Effort
    complete: bool
    """False where it was interrupted; running the same command again measures the rest."""
    series: tuple[Series, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Series that were not measured at all, and why."""

    def __post_init__(self) -> None:
        names = [series.name for series in self.series]
        if len(set(names)) < len(names):
            raise ConfigError(f"series={names}: expected each name once")

    def find(self, name: str) -> Series | None:
        """Return the series of this name, None where there is none."""
        return next((series for series in self.series if series.name == name), None)

    @property
    def num_measured(self) -> int:
        """Shapes that have a time."""
        return sum(len(series.measured) for series in self.series)

    @property
    def num_unsteady(self) -> int:
        """Shapes whose time varied much between repeats."""
        samples = (sample for series in self.series for sample in series.samples)
        return sum((sample.spread_frac or 0.0) > UNSTEADY_FRAC for sample in samples)


def profile_to_bytes(profile: Profile, *, form: FileForm) -> bytes:
    """Return the content of a profile's file; the same profile gives the same bytes."""
    record = {
        "form": FORM,
        "effort": profile.effort,
        "complete": profile.complete,
        "machine": asdict(profile.machine),
        "series": [_columns(series) for series in profile.series],
        "skipped": dict(profile.skipped),
    }
    if form == "json":
        return (json.dumps(record, indent=1) + "\n").encode()
    return _npz(record)


def profile_from_bytes(content: bytes, *, source: str) -> Profile:
    """Read a profile's file; ConfigError names `source` and what is wrong with it."""
    try:
        record = _from_npz(content) if content.startswith(_ZIP) else json.loads(content)
    except Exception as error:  # numpy, zipfile and json raise a dozen kinds
        raise ConfigError(
            f"{source}: no profile of `meshwright profile`: {str(error) or type(error).__name__}"
        ) from None
    try:
        return _read(record)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _columns(series: Series) -> dict[str, Any]:
    samples = series.samples
    return {
        "name": series.name,
        "dims": list(series.dims),
        "axes": [list(axis) for axis in series.axes],
        "points": [list(sample.point) for sample in samples],
        "seconds": [sample.seconds for sample in samples],
        "spread_frac": [sample.spread_frac for sample in samples],
        "repeats": [sample.repeats for sample in samples],
        "outcomes": [sample.outcome for sample in samples],
    }


def _npz(record: dict[str, Any]) -> bytes:
    import numpy as np

    columns: dict[str, list[Any]] = {column: [] for column in _COLUMNS}
    for series in record["series"]:
        series["rows"] = len(series["points"])
        for column in _COLUMNS:
            columns[column] += series.pop(column)
    columns["points"] = [number for point in columns["points"] for number in point]
    columns["outcomes"] = [OUTCOMES.index(outcome) for outcome in columns["outcomes"]]
    for column in ("seconds", "spread_frac"):
        columns[column] = [_NOT_MEASURED if one is None else one for one in columns[column]]
    arrays: dict[str, Any] = {
        column: np.asarray(columns[column], dtype=kind)
        for column, kind in zip(_COLUMNS, _KINDS, strict=True)
    }
    buffer, meta = io.BytesIO(), np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)
    np.savez_compressed(buffer, meta=meta, **arrays)
    return buffer.getvalue()


def _from_npz(content: bytes) -> Any:
    import numpy as np

    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        record = json.loads(arrays["meta"].tobytes())
        columns: dict[str, list[Any]] = {column: arrays[column].tolist() for column in _COLUMNS}
    for column in ("seconds", "spread_frac"):
        columns[column] = [None if one == _NOT_MEASURED else one for one in columns[column]]
    columns["outcomes"] = [
        OUTCOMES[code] if 0 <= code < len(OUTCOMES) else code for code in columns["outcomes"]
    ]
    entries = {column: iter(values) for column, values in columns.items()}
    for series in record["series"]:
        rows, dims = series.pop("rows"), len(series["dims"])
        numbers = list(islice(entries["points"], rows * dims))
        series["points"] = [numbers[start : start + dims] for start in range(0, rows * dims, dims)]
        series.update({column: list(islice(entries[column], rows)) for column in _COLUMNS[1:]})
    return record


def _read(record: Any) -> Profile:
    if not isinstance(record, dict) or "form" not in record:
        raise ConfigError("no profile of `meshwright profile`: it has no 'form'")
    if record["form"] != FORM:
        raise ConfigError(
            f"form={record['form']}: this version reads form {FORM}; measure again, or use the"
            " version that wrote it"
        )
    form = checked(record)
    given = {name: getattr(form, name) for name in ("machine", "effort", "complete", "skipped")}
    return Profile(**given, series=tuple(_series(columns) for columns in form.series))


def _series(form: Any) -> Series:
    columns = [getattr(form, column) for column in _COLUMNS]
    if len({len(column) for column in columns}) > 1:
        raise ConfigError(
            f"{form.name}: columns of {', '.join(str(len(column)) for column in columns)} rows:"
            " expected as many in each"
        )
    samples = tuple(
        Sample(point=point, seconds=seconds, spread_frac=spread, repeats=repeats, outcome=outcome)
        for point, seconds, spread, repeats, outcome in zip(*columns, strict=True)
    )
    return Series(name=form.name, dims=form.dims, axes=form.axes, samples=samples)


class SeriesForm(BaseModel):
    """One series: its grid, and its samples as columns."""

    model_config = ConfigDict(extra="forbid")
    name: str
    dims: tuple[str, ...]
    axes: tuple[tuple[float, ...], ...]
    points: list[tuple[float, ...]]
    seconds: list[float | None]
    spread_frac: list[float | None]
    repeats: list[int]
    outcomes: list[Outcome]


class ProfileForm(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid")
    form: int
    effort: Effort
    complete: bool
    machine: Machine
    series: list[SeriesForm]
    skipped: dict[str, str]


def checked(record: dict[str, Any]) -> ProfileForm:
    """Return the record with every field checked; ConfigError names the first that is wrong."""
    try:
        return ProfileForm.model_validate(record)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"])
        raise ConfigError(
            f"{place}: {fault['msg']} ({error.error_count()} faults in all)"
        ) from None
