"""`meshwright data stats`: how long the documents of .bin/.idx pairs are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshwright.cli.data.flags import JsonFlag, OutputFileFlag, write_json
from meshwright.cli.options import REQUIRED, argument, command
from meshwright.values.units import counted

if TYPE_CHECKING:
    from meshwright.data.counting import LengthStats

__all__ = ["stats"]

_BAR = 40


@command
def stats(
    inputs: list[str] = argument(
        REQUIRED, "Prefixes, folders, quoted patterns.", metavar="PAIRS..."
    ),
    output: OutputFileFlag = None,
    json_output: JsonFlag = False,
) -> None:
    """Count documents and tokens, with quantiles and a histogram of the documents' lengths.

    The index alone is read. A quantile is exact: the smallest length that at least this share of
    the documents does not exceed.

    Prints one block for each pair, and with several one for all of them together; the bars are
    shares of the tokens.

    Examples:

      meshwright data stats data/my-gpt_text_document

      meshwright data stats data/

      meshwright data stats 'data/*_text_document.idx' --json
    """
    import json
    from dataclasses import asdict

    from meshwright.data.counting import stats as run

    found = run(inputs)
    record = [{**asdict(entry), "mean": entry.mean} for entry in found]
    if output is not None:
        write_json(output, record)
    if json_output:
        print(json.dumps(record, indent=2))
        return
    for entry in found:
        _print(entry)


def _print(entry: LengthStats) -> None:
    from meshwright.data.progress import format_size

    print(
        f"{entry.prefix}: {counted(entry.documents, 'document')},"
        f" {counted(entry.sequences, 'sequence')}, {counted(entry.tokens, 'token')},"
        f" {format_size(entry.size_bytes)}, {entry.mean:,.1f} tokens a document"
    )
    print("  " + ", ".join(f"{share:.0%} {length:,}" for share, length in entry.quantiles.items()))
    for start, below, documents, tokens in entry.histogram:
        share = tokens / entry.tokens if entry.tokens else 0.0
        print(
            f"  {f'{start:,} to {below - 1:,}':>21} tokens {documents:>13,} documents {share:>6.1%}"
            f" {'#' * round(share * _BAR)}".rstrip()
        )
