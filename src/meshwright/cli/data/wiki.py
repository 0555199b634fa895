"""`meshwright data wiki`: a dump of Wikipedia to plain text."""

from __future__ import annotations

from meshwright.cli.data.flags import InputsArgument, JsonFlag, OutputFlag, WorkersFlag, show
from meshwright.cli.options import command, option
from meshwright.cli.terminal import QuietFlag

__all__ = ["wiki"]


@command
def wiki(
    inputs: InputsArgument,
    output: OutputFlag,
    workers: WorkersFlag = 1,
    piece_size: str = option("32MiB", "Of a dump per output file.", metavar="SIZE"),
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Turn MediaWiki dumps into JSON lines of plain text.

    A line is an article with id, revid, url, title and text, as WikiExtractor writes them.
    Templates, tables, references, files and categories are left out, in the wiki's own language.
    Plain XML and `multistream.xml.bz2` dumps are cut into pieces that ranks and workers share; any
    other archive is one piece.

    Prints files and bytes, and how many pages were left out: redirects, other namespaces, without
    text. Needs mwparserfromhell: pip install 'meshwright[data]'.

    Examples:

      meshwright data wiki enwiki-latest-pages-articles-multistream.xml.bz2 -o articles --workers 32

      meshwright data wiki dumps -o articles

      meshwright data wiki zhwiki-latest-pages-articles.xml -o articles --piece-size 8MiB --json
    """
    from meshwright.data.atomic import parse_size
    from meshwright.data.wikipedia import wiki as run

    result = run(
        inputs,
        output=output,
        workers=workers,
        piece_bytes=parse_size(piece_size, name="--piece-size"),
        progress=not quiet,
    )
    show(result, json_output=json_output)
