"""The shell script of an export."""

from __future__ import annotations

import shlex

from meshwright.exports.exported import EnvVar
from meshwright.exports.megatron_lm._tables import Words

__all__ = ["script_text"]


def script_text(
    words: Words,
    *,
    program: str,
    environment: tuple[EnvVar, ...],
    extra: tuple[str, ...],
    chips: int,
    nodes: int,
) -> str:
    """Return a script that starts one node's ranks; all nodes run the same text."""
    lines = [
        "#!/bin/bash",
        (
            f"# Megatron-LM, core {'.'.join(map(str, words.version))}: {chips * nodes} GPUs on"
            f" {nodes} node{'s' if nodes > 1 else ''}."
        ),
        (
            "# Run it on every node in a checkout of Megatron-LM, or with MEGATRON_PATH set;"
            " NODE_RANK and MASTER_ADDR tell nodes apart."
        ),
        "set -euo pipefail",
        'cd "${MEGATRON_PATH:-.}"',
        "",
        *(
            line
            for var in environment
            for line in (f"# {var.why}", f"export {var.name}={shlex.quote(var.value)}")
        ),
        "",
        "LAUNCH_ARGS=(",
        f"    --nproc-per-node {chips}",
        f'    --nnodes "${{NNODES:-{nodes}}}"',
        '    --node-rank "${NODE_RANK:-0}"',
        '    --master-addr "${MASTER_ADDR:-localhost}"',
        '    --master-port "${MASTER_PORT:-6000}"',
        ")",
    ]
    groups = {**words.groups, **({"extra": [extra]} if extra else {})}
    for group, entries in groups.items():
        lines += [
            "",
            f"{group.upper()}_ARGS=(",
            *(f"    {shlex.join(entry)}" for entry in entries),
            ")",
        ]
    arrays = " ".join(f'"${{{group.upper()}_ARGS[@]}}"' for group in groups)
    lines += ["", f'torchrun "${{LAUNCH_ARGS[@]}}" {program} {arrays} "$@"']
    return "\n".join(lines) + "\n"
