"""Colours of charts: the same term has the same colour everywhere, on light and on dark ground."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "BEST",
    "GROUND",
    "MEMORY_COLOURS",
    "OTHER",
    "SEQUENCE",
    "TIME_COLOURS",
    "chart_css",
    "ramp",
]

TIME_COLOURS: Mapping[str, str] = {
    # the model's own work: blues
    "matmul": "#1f5fa8",
    "attention": "#5b9bd9",
    "pointwise": "#a6cbee",
    "head": "#3d4f8f",
    "launch": "#8a9cc8",
    "recompute": "#a97bc4",
    # exchanges: orange to yellow
    "tp_comm": "#c2500b",
    "cp_comm": "#e9a13b",
    "ep_comm": "#a33b20",
    "fsdp_comm": "#f2c879",
    "dp_comm": "#d9b400",
    "pp_comm": "#8a6a16",
    # waiting: greys
    "imbalance": "#59636e",
    "bubble": "#a9b2bc",
    # once a step: greens
    "optimizer": "#14806a",
    "overhead": "#7cc4ae",
}
MEMORY_COLOURS: Mapping[str, str] = {
    "weights": "#1f5fa8",
    "gradients": "#5b9bd9",
    "optimizer": "#14806a",
    "activations": "#c2500b",
    "recompute_workspace": "#e9a13b",
    "logits": "#a33b20",
    "communication": "#d9b400",
    "libraries": "#8e5ba6",
    "slack": "#a9b2bc",
    "context": "#59636e",
}
"""Hues follow Okabe and Ito's set for colour-blind readers (blue, orange, yellow, green, grey); kin
differ in lightness."""
SEQUENCE = ("#3b82c9", "#c2500b", "#14806a", "#8e5ba6", "#d9b400", "#59636e")
"""For groups that have no colour of their own."""
BEST = "#c2500b"
OTHER = "#8793a0"
GROUND: Mapping[str, tuple[str, str]] = {
    "page": ("#f5f6f8", "#0e1217"),
    "card": ("#ffffff", "#171c23"),
    "ink": ("#14181f", "#e8ecf1"),
    "soft": ("#4f5a67", "#a8b3bf"),
    "line": ("#dde2e8", "#2c343e"),
    "accent": ("#0a58b5", "#7db8ff"),
}
"""By part of a page: on light ground, on dark."""
_RAMP = ("#00224e", "#2f3e6c", "#575d6d", "#7c7b78", "#a59c74", "#d2c060", "#fee838")
"""Cividis (Nunez, Anderton and Renslow, PLOS ONE 2018), made for colour-blind readers: steps of its
scale, dark to light."""


def ramp(share: float) -> str:
    """Return the colour of a share in [0, 1]; 0, the best, is the lightest."""
    place = (1.0 - min(1.0, max(0.0, share))) * (len(_RAMP) - 1)
    low = min(int(place), len(_RAMP) - 2)
    mixed = [_mix(_RAMP[low], _RAMP[low + 1], i, place - low) for i in (1, 3, 5)]
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _mix(low: str, high: str, at: int, share: float) -> int:
    first, second = int(low[at : at + 2], 16), int(high[at : at + 2], 16)
    return round(first + share * (second - first))


_RULES = """
text{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;font-variant-numeric:tabular-nums}
.ink{fill:@ink}.strong{fill:@ink;font-weight:600}.soft{fill:@soft}.on-light{fill:#14181f}.on-dark{fill:#ffffff}
.rule{stroke:@line;fill:none}.axis{stroke:@soft;fill:none}.limit{stroke:@ink;stroke-width:1.5;stroke-dasharray:5 4;fill:none}
.whisker{stroke:@ink;stroke-width:1.5;fill:none}.gap{stroke:@card;stroke-width:1}.frame{stroke:@ink;stroke-width:2.5;fill:none}
.hatch{stroke:@soft;stroke-width:1.2;fill:none}.void{fill:@card}.ground{fill:@card}
"""  # noqa: E501


def chart_css(ground: str | None = None) -> str:
    """Return the rules that charts are drawn by, with a page's variables, or with the colours of
    `light` or `dark` ground."""
    rules = _RULES
    for name, colours in GROUND.items():
        value = f"var(--{name})" if ground is None else colours[ground == "dark"]
        rules = rules.replace(f"@{name}", value)
    return rules.strip()
