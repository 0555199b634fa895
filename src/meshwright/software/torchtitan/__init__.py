"""torchtitan: its TOML and its Python form, written and read, and its log."""

from __future__ import annotations

from meshwright.software.folders import Software, Training, parts

__all__ = ["SOFTWARE"]

SOFTWARE = Software(
    name="torchtitan",
    title="torchtitan",
    order=50,
    targets=parts(__name__, "export:TORCHTITAN", "toml:TORCHTITAN_TOML"),
    sources=parts(__name__, "mend:TORCHTITAN_SOURCE"),
    logs=parts(__name__, "log:LOG"),
    training=(
        Training(
            name="torchtitan",
            reads_indexed=False,
            keeps=10,
            source="torchtitan 0.2: checkpoint.keep_latest_k is 10, and no limit on its time",
        ),
        Training(
            name="torchtitan-toml",
            reads_indexed=False,
            keeps=10,
            source="torchtitan 0.1: checkpoint.keep_latest_k is 10, and no limit on its time",
        ),
    ),
)
