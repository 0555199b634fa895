"""Everything on the page that does not depend on what was chosen."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any, get_args

from meshwright.report.whatif_page.state import DEFAULTS
from meshwright.search.request import Finetune
from meshwright.search.rules.software import stack_rules
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS
from meshwright.software.registry import TARGETS
from meshwright.values.hardware.catalogue import chip_rows
from meshwright.values.layout import SHARDINGS
from meshwright.values.models.params import models_info
from meshwright.values.stack import find_stack, stack_names
from meshwright.values.workload import PRECISIONS

__all__ = ["STEPS", "choices_record"]

STEPS: dict[str, tuple[int, ...]] = {
    "gpus": tuple(sorted({*(2**n for n in range(18)), *(3 * 2**n for n in range(5, 17))})),
    "seq": (512, *(1024 * 2**n for n in range(11))),
    "gbs": tuple(2**n for n in range(15)),
    "tp": (1, 2, 4, 8, 16, 32, 64),
    "pp": (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 48, 64),
    "vpp": (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20),
    "cp": (1, 2, 4, 8, 16, 32, 64),
    "ep": (1, 2, 4, 8, 16, 32, 64, 128, 256),
    "mbs": (1, 2, 3, 4, 6, 8, 12, 16, 32, 64),
}
"""Where the sliders stop; the fields beside them take any number."""


@cache
def choices_record() -> dict[str, Any]:
    """Return everything that does not depend on what was chosen."""
    return {
        "models": [
            {
                "name": row.name,
                "params": row.params,
                "layers": row.num_layers,
                "moe": row.active_params < row.params,
            }
            for row in models_info()
        ],
        "chips": [
            {
                "name": row.chip.name,
                "usable_gib": row.chip.usable_bytes / 2**30,
                "precisions": list(row.chip.precisions),
            }
            for row in chip_rows()
        ],
        "finetunes": list(get_args(Finetune)),
        "stacks": [
            {
                "name": name,
                "recompute_modules": list(stack_rules(find_stack(name)).recompute_modules),
            }
            for name in stack_names()
        ],
        "precisions": list(PRECISIONS),
        "shardings": list(SHARDINGS),
        "targets": [{"name": target.name, "stacks": list(target.stacks)} for target in TARGETS],
        "steps": {name: list(steps) for name, steps in STEPS.items()},
        "time_terms": {
            term: {"title": reading.title, "what": reading.what}
            for term, reading in TIME_READINGS.items()
        },
        "memory_terms": {
            term: {"title": reading.title, "what": reading.what}
            for term, reading in MEMORY_READINGS.items()
        },
        "defaults": asdict(DEFAULTS),
    }
