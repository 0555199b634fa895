"""What the page shows, as words of an address, and read back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import urlencode

from meshwright.search.request import PlanRequest
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.layout import parse_layout
from meshwright.values.units import parse_count

__all__ = ["DEFAULTS", "WhatIf", "query_of", "read_state"]

_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*:[0-9]+(,[A-Za-z0-9][A-Za-z0-9._-]*:[0-9]+){0,3}")
_MOST_WORDS = 2000
"""Letters of one value; the longest honest one names the layers of some hundred stages."""
_MOST_CLUSTERS = 12
What = Literal["train", "serve", "compare"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WhatIf:
    """One plan that somebody looks at; a value per word of the address."""

    what: What = "train"
    model: str = "llama3-70b"
    cluster: str = "h100:256"
    """One kind of chip, whose layout is set by hand, or several, whose best plan is found."""
    seq: int = 8192
    gbs: int = 512
    precision: str = "bf16"
    stack: str = "megatron"
    finetune: str = ""
    """full, lora or qlora; empty trains from the start."""
    layout: str = "tp=8,pp=4,mbs=1"
    """As `--layout`; dp follows from the chips."""
    tokens: str = ""
    """Of a whole training, for days and cost; empty asks nothing."""
    usd: float | None = None
    """A chip's hour; None is the catalogue's price."""
    input: int = 1000
    """Tokens of a prompt, where it serves."""
    output: int = 500
    """Tokens of an answer."""
    ttft: float | None = None
    """Most seconds to the first token."""
    tpot: float | None = None
    """Most seconds between later tokens."""
    clusters: str = "h100:256,h200:256,b200:128"
    """Clusters to compare for one training."""

    def __post_init__(self) -> None:
        if self.what not in get_args(What):
            raise UnknownNameError("question", self.what, get_args(What))
        if not _CLUSTER.fullmatch(self.cluster):
            raise ConfigError(
                f"cluster={self.cluster!r}: the page takes up to four kinds of chips with their"
                " counts, such as h100:256 or a800:128,h800:160"
            )
        if len(self.clusters.split(",")) > _MOST_CLUSTERS:
            raise ConfigError(f"clusters: at most {_MOST_CLUSTERS} are compared at once")
        if any(not _CLUSTER.fullmatch(one) for one in self.clusters.split(",")):
            raise ConfigError(
                f"clusters={self.clusters!r}: expected kinds of chips with their counts, such as"
                " h100:256,b200:128"
            )
        if not parse_layout(self.layout):
            raise ConfigError("layout: expected key=value words such as tp=8,pp=4,mbs=1")
        if self.tokens:
            parse_count(self.tokens, name="tokens")

    @property
    def is_mixed(self) -> bool:
        """Whether it asks for several kinds of chips."""
        return "," in self.cluster

    @property
    def request(self) -> PlanRequest:
        """What `meshwright plan` would be asked."""
        return PlanRequest.of(self.request_fields())

    def request_fields(self) -> dict[str, Any]:
        """The fields of that request."""
        found: dict[str, Any] = {
            "model": self.model,
            "cluster": self.cluster,
            "seq_len": self.seq,
            "gbs": self.gbs,
            "precision": self.precision,
            "stack": self.stack,
        }
        if self.usd is not None:
            found["usd_per_hour"] = self.usd
        if self.finetune:
            found["finetune"] = self.finetune
        return found


DEFAULTS = WhatIf()
_KINDS: Mapping[str, type] = {
    **{"seq": int, "gbs": int, "usd": float},
    **{"input": int, "output": int, "ttft": float, "tpot": float},
}


def read_state(words: Mapping[str, str]) -> WhatIf:
    """Return what an address asks; ConfigError for a word that is unknown or has no such value."""
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
    values = {name: getattr(state, name) for name in WhatIf.__dataclass_fields__}
    return urlencode(
        {name: value for name, value in values.items() if value != getattr(DEFAULTS, name)},
        safe=":,=",
    )
