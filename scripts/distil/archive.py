"""Writing one .npz whose bytes depend on its content alone."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from distil.surface import Fit
from meshwright.values.hardware.tables import encode

__all__ = ["grid_facts", "write_archive"]


def write_archive(path: Path, facts: Mapping[str, object], fits: Mapping[str, Fit]) -> None:
    """Write the tables, and what is known of them."""
    meta = json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()
    arrays = {
        "meta": np.frombuffer(meta, dtype=np.uint8),
        **{name: encode(fit.log_seconds) for name, fit in sorted(fits.items())},
    }
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, np.ascontiguousarray(array), allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            archive.writestr(
                entry, content.getvalue(), compress_type=zipfile.ZIP_DEFLATED, compresslevel=9
            )


def grid_facts(fits: Mapping[str, Fit]) -> dict[str, dict[str, object]]:
    """What a lookup needs of every table, and what its points stand on."""
    return {
        name: {
            "points": fit.surface.points,
            "growth": fit.surface.growth,
            "rows": fit.rows,
            "held_rows": len(fit.held.seconds),
            **fit.facts,
        }
        for name, fit in sorted(fits.items())
    }
