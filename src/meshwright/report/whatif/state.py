"""What the page asks: the words of its address, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

from meshwright.search.request import PlanRequest
from meshwright.search.rules.software import stack_rules
from meshwright.search.titles import MEMORY_READINGS, TIME_READINGS
from meshwright.software.registry import TARGETS
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import chip_rows
from meshwright.values.layout import SHARDINGS, parse_layout
from meshwright.values.models.params import models_info
from meshwright.values.stack import find_stack, stack_names
from meshwright.values.units import parse_count
from meshwright.values.workload import PRECISIONS

__all__ = [
    "DEFAULTS",
    "WhatIf",
    "choices_record",
    "query_of",
    "read_state",
]

_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*:[0-9]+")
_MOST_WORDS = 2000
"""Letters of one value; the longest honest one names the layers of some hundred stages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """One plan that somebody looks at; a value per word of the address."""

    model: str = "llama3-70b"
    cluster: str = "h100:256"
    seq: int = 8192
    gbs: int = 512
    precision: str = "bf16"
    stack: str = "megatron"
    layout: str = "tp=8,pp=4,mbs=1"
    """As `--layout`; dp follows from the chips."""
    tokens: str = ""
    """Of a whole training, for days and cost; empty asks nothing."""
    usd: float | None = None
    """A chip's hour; None is the catalogue's price."""

    def __post_init__(self) -> None:
        if not _CLUSTER.fullmatch(self.cluster):
            raise ConfigError(
                f"cluster={self.cluster!r}: the page takes one kind of chip and its count, such as"
                " h100:256"
            )
        if not parse_layout(self.layout):
            raise ConfigError("layout: expected key=value words such as tp=8,pp=4,mbs=1")
        if self.tokens:
            parse_count(self.tokens, name="tokens")

    @property
    def request(self) -> PlanRequest:
        """What `meshwright plan` would be asked."""
        fields = {
            "model": self.model,
            "cluster": self.cluster,
            "seq_len": self.seq,
            "gbs": self.gbs,
        }
        price = {} if self.usd is None else {"usd_per_hour": self.usd}
        return PlanRequest.of({**fields, "precision": self.precision, "stack": self.stack, **price})


DEFAULTS = WhatIf()
_KINDS: Mapping[str, type] = {"seq": int, "gbs": int, "usd": float}


def read_state(words: Mapping[str, str]) -> WhatIf:
    """Return what an address asks; ConfigError with one line for a word that is unknown or has no
    such value."""
    names = list(WhatIf.__dataclass_fields__)
    given: dict[str, Any] = {}
    for name, word in words.items():
        if name not in names:
            raise UnknownNameError("word of the address", name, names)
        if len(word) > _MOST_WORDS:
            raise ConfigError(f"{name}: {len(word)} letters; at most {_MOST_WORDS} are read")
        kind = _KINDS.get(name, str)
        text = (
            word.strip().replace(" ", "+") if name == "layout" else word
        )  # of `3+5`, as it was typed, an address makes `3 5`
        if text == "" and name != "tokens":
            continue
        try:
            given[name] = kind(text)
        except ValueError:
            raise ConfigError(
                f"{name}={text!r}: expected a {'whole number' if kind is int else 'number'}"
            ) from None
    return WhatIf(**given)


def query_of(state: WhatIf) -> str:
    """Return the address of a state, without what is as by default."""
    from urllib.parse import urlencode

    values = {name: getattr(state, name) for name in WhatIf.__dataclass_fields__}
    return urlencode(
        {name: value for name, value in values.items() if value != getattr(DEFAULTS, name)},
        safe=":,=",
    )


_STEPS: dict[str, tuple[int, ...]] = {
    "gpus": (
        1,
        2,
        4,
        8,
        16,
        32,
        *(step for n in range(6, 18) for step in (2**n, 3 * 2 ** (n - 1))),
    ),
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
        "steps": {name: list(steps) for name, steps in _STEPS.items()},
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
