"""Reading the Parquet files of aiconfigurator-core: rows of one operator on one chip, by serving
framework."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "PACKAGE",
    "SYSTEMS",
    "VERSION",
    "Rows",
    "Source",
    "age_of",
    "find_package",
    "merged",
    "read",
    "version_of",
    "versions_in",
]

PACKAGE = "aiconfigurator-core"
VERSION = "0.12.0"

SYSTEMS: Mapping[str, str] = {
    "a100-80": "a100_sxm",
    "l40s": "l40s",
    "h100": "h100_sxm",
    "h200": "h200_sxm",
    "b200": "b200_sxm",
    "gb200": "gb200",
    "b300": "b300_sxm",
    "gb300": "gb300",
    "rtx-pro-6000": "rtx_pro_6000_server",
}
"""Name of a chip in our catalogue, and of its folder in the source."""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Measured rows: integer keys and seconds."""

    keys: NDArray[np.int64]
    """(N, keys)."""
    seconds: NDArray[np.float64]

    def least(self) -> Rows:
        """One row per key, in the order of the keys, with the least time."""
        unique, place = np.unique(self.keys, axis=0, return_inverse=True)
        seconds = np.full(len(unique), np.inf)
        np.minimum.at(seconds, place.ravel(), self.seconds)
        return Rows(keys=unique, seconds=seconds)

    def where(self, keep: NDArray[np.bool_]) -> Rows:
        """The rows of a mask."""
        return Rows(keys=self.keys[keep], seconds=self.seconds[keep])

    @cached_property
    def by_key(self) -> dict[tuple[int, ...], float]:
        """Seconds by key."""
        return dict(zip(map(tuple, self.keys.tolist()), self.seconds.tolist(), strict=True))


def merged(parts: Iterable[Rows], choice: Literal["least", "median"] = "least") -> Rows:
    """One row per key of any part: the least of their times, or the median."""
    parts = list(parts)
    keys = np.unique(np.concatenate([part.keys for part in parts]), axis=0)
    times = np.array(
        [[part.by_key.get(key, np.nan) for key in map(tuple, keys.tolist())] for part in parts]
    )
    return Rows(
        keys=keys,
        seconds=np.nanmin(times, axis=0) if choice == "least" else np.nanmedian(times, axis=0),
    )


@dataclass(frozen=True, kw_only=True)
class Source:
    """The measurements of one chip."""

    folder: Path

    def frameworks(self, operator: str, table: str) -> dict[str, Path]:
        """The file of each framework that measured an operator: its largest one (later versions may
        add a few rows alone)."""
        found: dict[str, Path] = {}
        for file in sorted((self.folder / operator).glob(f"*/*/{table}.parquet"), key=_age):
            name = file.parent.parent.name
            if name not in found or file.stat().st_size >= 0.8 * found[name].stat().st_size:
                found[name] = file
        return found


def read(file: Path, keys: Iterable[str], *, without_kernel: str = "", **equal: object) -> Rows:
    """Rows of a file in which these columns have these values (a list: one of them); latencies are
    milliseconds there."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    keys = list(keys)
    table = pq.read_table(file)
    for column, value in equal.items():
        if column in table.column_names:
            values = value if isinstance(value, (list, tuple)) else [value]
            table = table.filter(pc.field(column).isin(values))
    if without_kernel:
        table = table.filter(pc.field("kernel_source") != without_kernel)
    columns = [table.column(key).to_numpy().astype(np.int64) for key in keys]
    seconds = table.column("latency").to_numpy().astype(np.float64) * 1e-3
    rows = Rows(
        keys=np.stack(columns, axis=1) if columns else np.zeros((0, len(keys)), dtype=np.int64),
        seconds=seconds,
    )
    return rows.where(np.isfinite(seconds) & (seconds > 0)).least()


def version_of(file: Path) -> str:
    """Framework and version that measured a file, from its folder."""
    return f"{file.parent.parent.name} {file.parent.name}"


def find_package(path: Path | None) -> Path:
    """The folder of the systems in a given or the installed package."""
    if path is None:
        try:
            found = distribution(PACKAGE)
        except PackageNotFoundError as error:
            raise SystemExit(
                f"{PACKAGE}=={VERSION} is not installed: pip install -r requirements-tables.txt, or"
                " give --package PATH"
            ) from error
        if found.version != VERSION:
            raise SystemExit(
                f"{PACKAGE} {found.version} is installed; the tables are made from {VERSION}"
            )
        path = Path(str(found.locate_file("")))
    for folder in (
        path / "aiconfigurator_core" / "systems" / "data",
        path / "systems" / "data",
        path,
    ):
        if (folder / "h100_sxm").is_dir():
            return folder
    raise SystemExit(f"{path}: holds no aiconfigurator_core/systems/data")


def versions_in(file: Path) -> set[str]:
    """The versions that the rows of a file name."""
    import pyarrow.parquet as pq

    if "version" not in pq.read_schema(file).names:
        return set()
    return set(pq.read_table(file, columns=["version"]).column("version").unique().to_pylist())


def age_of(version: str) -> tuple[int, ...]:
    """A version as numbers, to be compared."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def _age(file: Path) -> tuple[int, ...]:
    return age_of(file.parent.name)
