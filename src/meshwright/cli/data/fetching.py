"""From a source to plain texts: `meshwright data run`, `download`, `extract`, `concat`, `wiki`."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

import typer

from meshwright import data
from meshwright.cli.data.flags import ConsumeFlag, InputsArgument, OutputFlag, WorkersFlag, show
from meshwright.cli.options import REQUIRED, Given, argument, command, fields_of, option
from meshwright.cli.terminal import JsonFlag, QuietFlag, print_json
from meshwright.data.atomic import parse_size
from meshwright.data.join import MAX_BYTES, MIN_BYTES
from meshwright.data.pipeline import recipe_job
from meshwright.data.recipe import read_recipe
from meshwright.data.transfer import Patience
from meshwright.platforms.files import make_folder, put_file
from meshwright.platforms.job import JobOptions, JobText
from meshwright.values.errors import ConfigError

__all__ = ["concat", "download", "extract", "run", "wiki"]


@command
def run(
    recipe: Path = argument(
        REQUIRED, "A YAML file: docs/data.md has one of each kind.", metavar="RECIPE"
    ),
    dry_run: bool = option(False, "Print the commands, and do nothing."),
    launcher: str | None = option(
        None,
        "Write a job script instead: slurm, k8s-jobset, bcp, bcprun, runai, lepton, sky, pai-dlc.",
        metavar="PLATFORM",
    ),
    nodes: int = option(1, "Of the job: one rank on each; workers are the recipe's.", metavar="N"),
    output: Path = option(
        Path("."), "Where the job script goes.", "--output", "-o", metavar="FOLDER"
    ),
    flags: Given = fields_of(
        JobOptions,
        *("name", "time", "image", "mounts", "workdir", "account", "partition", "instance"),
        "log_dir",
    ),
    json_output: JsonFlag = False,
) -> None:
    """Make a corpus by a recipe: slimpajama, wikipedia, or steps of your own.

    Ranks do a step together and begin the next when all have ended. The same command again goes on
    after a failure or a kill; what is done is not done again. Raw data is removed only where the
    recipe's strategy says so, when every file of what replaces it was read back and has its sha256.

    Prints each step with its command line; --json prints one object with the state and seconds of
    each, and the steps' own words go to stderr. Exit code 1 where the recipe's quota is too small,
    with what fits, 3 where a step is partly done. With --launcher nothing is run: a job script is
    written that starts one rank on each node, without GPUs.

    Examples:

      meshwright data run recipe.yaml

      meshwright data run recipe.yaml --dry-run

      meshwright data run recipe.yaml --launcher slurm --nodes 16 --time 12h --partition cpu -o jobs
    """
    if launcher is not None:
        job = recipe_job(recipe, launcher=launcher, nodes=nodes, options=flags)
        _write_job(job, output, json_output=json_output)
        return
    if flags or nodes != 1:
        names = ", ".join([*(["nodes"] if nodes != 1 else []), *flags])
        raise ConfigError(f"{names}: of no effect without --launcher, such as --launcher slurm")
    if dry_run:
        _print_steps(recipe, json_output=json_output)
        return
    from meshwright.cli import run as execute

    if json_output:
        with redirect_stdout(sys.stderr):
            report = data.run(recipe, execute=execute)
        print_json(report.to_dict())
    else:
        report = data.run(recipe, execute=execute)
    if report.code:
        raise typer.Exit(report.code)


def _print_steps(recipe: Path, *, json_output: bool) -> None:
    steps = read_recipe(recipe).steps
    if json_output:
        print_json({"steps": [{"name": step.name, "line": step.line()} for step in steps]})
    else:
        print("\n".join(step.line() for step in steps))


def _write_job(text: JobText, output: Path, *, json_output: bool) -> None:
    path = output / text.file_name
    make_folder(output)
    put_file(path, text.text, force=True)
    if json_output:
        print_json({"file": str(path), "submit": text.submit, "text": text.text})
        return
    print(f"{path}: submit it with `{text.submit}`")


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
    if timeout <= 0 or tries < 1:
        raise ConfigError(
            f"--timeout {timeout} --tries {tries}: expected more than 0 seconds and 1 or more tries"
        )
    result = data.download(
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


@command
def extract(
    inputs: InputsArgument,
    output: OutputFlag,
    workers: WorkersFlag = 1,
    consume: ConsumeFlag = False,
    where: str | None = option(
        None, "Keep documents, one a line, whose field is one of these.", metavar="KEY=VALUE,..."
    ),
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Extract .zst, .gz, .bz2 and .xz files.

    Ranks share the files by size. Archives of several members or frames are read to the end, and
    one that is cut off is named and not written. `tokenize` reads archives as they are, so this
    step is for tools that don't.

    A second start does what is left. Prints files and bytes, and what failed with the reason;
    manifest.json has size and sha256 of each file. Exit code 3 where an archive is damaged or
    missing.

    Examples:

      meshwright data extract raw -o plain

      meshwright data extract 'raw/chunk1/*.jsonl.zst' -o plain --workers 8

      meshwright data extract @archives.txt -o plain --consume

      meshwright data extract raw -o plain --where meta.redpajama_set_name=RedPajamaC4,RedPajamaArXiv
    """  # noqa: E501
    show(
        data.extract(
            inputs,
            output=output,
            workers=workers,
            consume=consume,
            where=where,
            progress=not quiet,
        ),
        json_output=json_output,
    )


@command
def concat(
    inputs: InputsArgument,
    output: OutputFlag,
    min_size: str | None = option(
        None, "Of a shard: 500MB, bytes [default: 12GiB].", metavar="SIZE"
    ),
    max_size: str | None = option(None, "Of a shard [default: 16GiB].", metavar="SIZE"),
    shards: int | None = option(None, "So many even shards, instead of sizes.", metavar="N"),
    workers: WorkersFlag = 1,
    consume: ConsumeFlag = False,
    quiet: QuietFlag = False,
    json_output: JsonFlag = False,
) -> None:
    """Join files of one document per line into shards between two sizes.

    Files follow each other in natural order (part_2 before part_10) and are cut at line ends only,
    so every shard can be written on its own: ranks and workers share them. Between two documents is
    exactly one line end, also where a file ends without one.

    Prints files and bytes; manifest.json has size, sha256 and documents of each shard. With
    --consume an input goes when every shard that holds a part of it was read back; until then both
    need disk.

    Examples:

      meshwright data concat plain -o shards

      meshwright data concat 'plain/**/*.jsonl' -o shards --min-size 500MB --max-size 1GB --workers 8

      meshwright data concat plain -o shards --shards 74 --consume
    """  # noqa: E501
    if shards is not None and (min_size or max_size):
        raise ConfigError(
            "--shards: their sizes follow from it; leave --min-size and --max-size out"
        )
    result = data.concat(
        inputs,
        output=output,
        min_bytes=MIN_BYTES if min_size is None else parse_size(min_size, name="--min-size"),
        max_bytes=MAX_BYTES if max_size is None else parse_size(max_size, name="--max-size"),
        shards=shards,
        workers=workers,
        consume=consume,
        progress=not quiet,
    )
    show(result, json_output=json_output)


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
    result = data.wiki(
        inputs,
        output=output,
        workers=workers,
        piece_bytes=parse_size(piece_size, name="--piece-size"),
        progress=not quiet,
    )
    show(result, json_output=json_output)
