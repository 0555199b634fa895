"""`meshwright data download`: files over HTTP."""

from __future__ import annotations

from meshwright.cli.data.flags import JsonFlag, OutputFlag, show
from meshwright.cli.options import argument, command, option
from meshwright.cli.terminal import QuietFlag

__all__ = ["download"]


@command
def download(
    output: OutputFlag,
    urls: list[str] | None = argument(
        None,
        "URLs, quoted patterns such as 'https://h/f_{0..99}.zst', or @FILE with a URL per line.",
        metavar="[URL...]",
    ),
    corpus: str | None = option(None, "A corpus known by name: slimpajama.", metavar="NAME"),
    chunks: int | None = option(
        None, "The first N chunks of the corpus [default: all].", metavar="N"
    ),
    hf: str | None = option(
        None, "The files of a Hugging Face dataset.", metavar="OWNER/NAME[@REVISION]"
    ),
    include: list[str] | None = option(
        None, "Of the dataset only these: 'data/*.parquet'.", metavar="PATTERN"
    ),
    workers: int = option(
        4, "Files at the same time, of this rank.", "--workers", "-j", metavar="N"
    ),
    timeout: float = option(
        60.0, "Without a byte, until a server counts as hanging.", metavar="SECONDS"
    ),
    tries: int = option(8, "Attempts in a row that bring nothing.", metavar="N"),
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
