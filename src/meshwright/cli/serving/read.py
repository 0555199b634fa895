"""`meshwright serving read`: results of other load tools as one table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from meshwright.cli.options import REQUIRED, argument, command, option

if TYPE_CHECKING:
    from meshwright.runs.loads.readers import ReadLoad

__all__ = ["read"]


@command
def read(
    files: list[Path] = argument(
        REQUIRED, "What vllm bench serve, guidellm or aiperf wrote.", metavar="RESULT.json..."
    ),
    json_output: bool = option(False, "Print one JSON object for programs.", "--json"),
) -> None:
    """Read results of vllm bench serve, guidellm and aiperf in the figures of `meshwright serving
    measure`.

    The tools share words that mean different things: what guidellm and aiperf call inter-token
    latency is the TPOT of this table, and guidellm's time per output token, which has the first
    token in it, is not shown. Percentiles that a file lacks are dashes; with `vllm bench serve
    --save-detailed` all are computed from its requests.

    Prints a line per load: requests answered and failed, throughput, and mean and p99 of TTFT, TPOT
    and end-to-end time.

    Examples:

      meshwright serving read vllm-result.json

      meshwright serving read benchmarks.json profile_export_aiperf.json

      meshwright serving read results/*.json --json
    """
    from meshwright.runs.loads.readers import read_results

    found = [load for path in files for load in read_results(path)]
    _print(found, json_output=json_output)


def _print(found: list[ReadLoad], *, json_output: bool) -> None:
    if json_output:
        import json

        loads = [
            {
                "tool": load.tool,
                "file": load.file,
                "load": load.name,
                "figures": load.figures.to_dict(),
            }
            for load in found
        ]
        print(json.dumps({"loads": loads}, indent=2))
        return
    from meshwright.report.serving_table import DEFINITIONS, load_lines

    rows = [((load.tool, load.file, load.name), load.figures) for load in found]
    print("\n".join(load_lines(rows, names=("tool", "file", "load"))))
    print(f"\n{DEFINITIONS}")
