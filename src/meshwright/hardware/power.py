"""How fast a chip can keep working under its power limit."""

from __future__ import annotations

__all__ = ["FLOOR_SHARE", "share_at_power"]

FLOOR_SHARE = 2.0 / 3.0
"""Share of its benchmarked rate at which a chip's voltage reaches its floor. Assumed: voltage
follows the clock down to about two thirds of the boost clock and stays there. Checked on A100 cards
of 300 W: 0.77 foretold from 0.85 at 400 W, 0.79 by the benchmarks of products (252.9 of 271.2
TFLOPS); with a floor of 0.6 it would be 0.77 too, with one of 0.8 0.72. docs/decisions/0006 says
what the runs on H100 of 500 W tell."""


def share_at_power(share: float, power_ratio: float) -> float:
    """Sustained share of a chip whose power per peak FLOP is `power_ratio` times that of one of the
    same silicon that sustains `share`.

    Formula:  power needed at share s: s up to FLOOR_SHARE (voltage at its floor, energy per FLOP
              constant), s^3 / FLOOR_SHARE^2 above it (voltage rises with the clock); the share at
              which that is `power_ratio` times as much, at most 1
    Units:    shares of the benchmarked rate.
    Source:   dynamic power of CMOS, capacitance * voltage^2 * frequency; the board's other parts
              are taken to scale with its limit.
    Valid:    one silicon at several power limits, in long compute-bound work.
    Checked:  tests/hardware/test_power.py
    """
    needed = power_ratio * (share if share <= FLOOR_SHARE else share**3 / FLOOR_SHARE**2)
    return min(1.0, needed if needed <= FLOOR_SHARE else (needed * FLOOR_SHARE**2) ** (1 / 3))
