"""`meshwright data download`: files over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from meshwright.cli.data.flags import JsonFlag, OutputFlag, show
from meshwright.cli.terminal import QuietFlag

__all__ = ["download"]


def download(
    output: OutputFlag,
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[URL...]",
            help=(
                "URLs, quoted patterns such as 'https://h/f_{0..99}.zst', or @FILE with a URL per"
                " line."
            ),
        ),
    ] = None,
    corpus: Annotated[
        str | None, typer.Option(metavar="NAME", help="A corpus known by name: slimpajama.")
    ] = None,
    chunks: Annotated[
        int | None,
        typer.Option(metavar="N", help="The first N chunks of the corpus [default: all]."),
    ] = None,
    hf: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME[@REVISION]", help="The files of a Hugging Face dataset."),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Of the dataset only these: 'data/*.parquet'."),
    ] = None,
    workers: Annotated[
        int,
        typer.Option("--workers", "-j", metavar="N", help="Files at the same time, of this rank."),
    ] = 4,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Without a byte, until a server counts as hanging."),
    ] = 60.0,
    tries: Annotated[
        int, typer.Option(metavar="N", help="Attempts in a row that bring nothing.")
    ] = 8,
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Fetch files into a folder: URLs, a corpus by name, or a Hugging Face dataset.

    A file that broke off goes on where it ended (Range, while the server has the same file); 429,
    5xx and time-outs are tried again after the pause that the server asks for, or a doubling one. A
    file gets its name when its length, its sha256 where known, and its archive were checked.

    Prints files and bytes, and what failed: `missing` does not exist (404), `refused` needs a
    login, `failed` may do better next time. Exit code 3 where anything is not there. HF_TOKEN opens
    datasets behind a login, HF_ENDPOINT names a mirror.

    Examples:

      meshwright data download --corpus slimpajama --chunks 1 -o raw

      meshwright data download 'https://example.org/part_{000..127}.jsonl.zst' @more.txt -o raw --workers 8

      meshwright data download --hf wikimedia/wikipedia --include '20231101.en/*.parquet' -o raw
    """  # noqa: E501
    from meshwright.data.fetching import download as run
    from meshwright.data.transfer import Patience
    from meshwright.values.errors import ConfigError

    if timeout <= 0 or tries < 1:
        raise ConfigError(
            f"--timeout {timeout} --tries {tries}: expected more than 0 seconds and 1 or more tries"
        )
    result = run(
        urls or (),
        output=output,
        corpus=corpus,
        chunks=chunks,
        hf=hf,
        include=include or (),
        workers=workers,
        progress=not quiet,
        patience=Patience(timeout_s=timeout, tries=tries),
    )
    show(result, json_output=json_output)
