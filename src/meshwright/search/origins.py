"""What an estimate stands on: the user's profile, shipped tables, a kin's, or formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.cost.stages import Floats
from meshwright.search.quote import Setting, price_in
from meshwright.values.hardware.cluster import Pool
from meshwright.values.hardware.profiled import stretched_chip, stretched_link
from meshwright.values.hardware.tables import ChipTables, Origin, kin
from meshwright.values.layout import Layout, Layouts

__all__ = ["Origins", "origins_of", "profile_provenance"]

STRETCH = 1e-3
"""By how much the times of one origin are made longer: far below the steps of the pipeline's closed
form, far above rounding."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origins:
    """Shares of one step's time, which sum to 1."""

    profile_frac: float
    """Measured by the user: operators, memory, launches, links."""
    beyond_frac: float
    """Of that, operators at shapes outside those that were measured."""
    tables_frac: float
    """From tables that are shipped for the chip."""
    kin_frac: float
    """From tables of another chip of its generation, scaled."""

    @property
    def formula_frac(self) -> float:
        """From rooflines, data sheets, links of the catalogue and constants of the software."""
        return max(0.0, 1.0 - self.profile_frac - self.tables_frac - self.kin_frac)

    def to_dict(self) -> dict[str, Any]:
        """Return them as `--json` has them."""
        return {
            "profile": self.profile_frac,
            "profile_extrapolated": self.beyond_frac,
            "tables": self.tables_frac,
            "kin": self.kin_frac,
            "formula": self.formula_frac,
        }


def origins_of(layouts: Sequence[Layout], setting: Setting) -> list[Origins]:
    """Return what the steps of some layouts stand on.

    Formula:  share of an origin = d ln(step) / d ln(its times): all times of one origin are made
              longer by STRETCH, and the step priced again. A step is a sum of times, maxima of them
              included, so that the shares of all origins sum to 1 (Euler)
    Units:    shares of the closed form's step.
    Source:   definition.
    Valid:    any layout; what is hidden behind something else has no share.
    Checked:  tests/search/test_origins.py
    """
    if not layouts:
        return []
    columns, chip = Layouts.of(layouts), setting.pool.node.chip
    now = _step_s(columns, setting, setting.pool)

    def share(pool: Pool) -> Floats:
        shares: Floats = np.clip(
            np.log(_step_s(columns, setting, pool) / now) / np.log1p(STRETCH), 0.0, 1.0
        )
        return shares

    shares: dict[Origin, Floats] = {
        origin: share(_stretched(setting.pool, origin)) for origin in _present(setting)
    }
    nothing = np.zeros(len(layouts))
    inside = nothing if chip.tables is None else share(_beyond(setting.pool))
    columns_of = [shares.get(origin, nothing) for origin in ("profile", "tables", "kin")]
    return [
        Origins(
            profile_frac=float(own),
            beyond_frac=float(min(own, far)),
            tables_frac=float(shipped),
            kin_frac=float(other),
        )
        for own, far, shipped, other in zip(columns_of[0], inside, *columns_of[1:], strict=True)
    ]


def _step_s(columns: Layouts, setting: Setting, pool: Pool) -> Floats:
    return np.asarray(price_in(replace(setting, pool=pool), columns).step_s, dtype=np.float64)


def _present(setting: Setting) -> tuple[Origin, ...]:
    """Origins that a step on this chip may have at all."""
    chip = setting.pool.node.chip
    if chip.tables is not None:
        found = set(chip.tables.origins.values())
        return tuple(origin for origin in ("profile", "tables", "kin") if origin in found)
    relation = kin(chip).relation
    return ("tables",) if relation == "itself" else ("kin",) if relation == "generation" else ()


def _stretched(pool: Pool, origin: Origin) -> Pool:
    """The pool with every time of one origin longer."""
    node, factor = pool.node, 1.0 + STRETCH
    measured = (
        node.chip.tables.measured
        if origin == "profile" and node.chip.tables is not None
        else frozenset()
    )
    domain, network = (
        stretched_link(link, factor) if name in measured else link
        for name, link in (("domain_link", node.domain_link), ("network_link", node.network_link))
    )
    return replace(
        pool,
        node=replace(
            node,
            chip=stretched_chip(node.chip, origin, factor),
            domain_link=domain,
            network_link=network,
        ),
    )


def _beyond(pool: Pool) -> Pool:
    """The pool with times of the profile longer outside the measured shapes alone."""
    return replace(
        pool,
        node=replace(
            pool.node, chip=stretched_chip(pool.node.chip, "profile", 1.0, beyond=1.0 + STRETCH)
        ),
    )


def profile_provenance(found: Origins, setting: Setting) -> dict[str, dict[str, Any]]:
    """Return what an estimate owes to a profile, under the key `profile`; nothing without one."""
    tables = setting.pool.node.chip.tables
    return (
        {}
        if tables is None
        else {
            "profile": {
                "words": _words(found) + _part_words(tables),
                "source": tables.meta["source"],
            }
        }
    )


def _part_words(tables: ChipTables) -> str:
    unsteady = tables.meta["unsteady_frac"]
    return (
        ""
        if tables.meta["complete"]
        else "; the profile is partial, the same command measures the rest"
    ) + (
        f"; {unsteady:.0%} of its shapes were unsteady, as on a busy machine: measure again"
        if unsteady > MOST_UNSTEADY
        else ""
    )


MOST_UNSTEADY = 0.1
"""Share of unsteady shapes from which on a profile is doubted: more than single slow shapes."""


WORTH = 0.005
"""Share below which an origin is not worth a word."""


def _words(found: Origins) -> str:
    beyond = (
        f" ({found.beyond_frac:.0%} at shapes beyond those measured)"
        if found.beyond_frac >= WORTH
        else ""
    )
    others = [
        (found.tables_frac, "shipped tables"),
        (found.kin_frac, "tables of a kin"),
        (found.formula_frac, "formulas"),
    ]
    rest = "".join(f", {share:.0%} on {words}" for share, words in others if share >= WORTH)
    return f"{found.profile_frac:.0%} of the step stands on your profile{beyond}{rest}"
