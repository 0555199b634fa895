"""`download`: files over HTTP into a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import cache, partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from meshwright.data.listing import InputFile, freeze, read_frozen, text_of
from meshwright.data.steps import Record, StepResult, run_to_manifest, state_folder
from meshwright.data.transfer import Patience, Transfer, adopt, fetch, new_client
from meshwright.data.workers import Place
from meshwright.values.data import package_yaml
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.units import counted

__all__ = [
    "Corpus",
    "corpora",
    "corpus_files",
    "download",
    "expand",
    "find_corpus",
    "hf_files",
    "url_files",
]

_BRACES = re.compile(r"\{(\d+\.\.\d+|[^{}]*,[^{}]*)\}")
_MOST = 10_000_000
"""Files of one pattern: above it is a slip of the hand."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """A corpus known by name."""

    name: str
    title: str
    license: str
    url: str
    file_name: str
    files_per_chunk: tuple[int, ...]
    archive_bytes: int
    plain_bytes: int
    documents: int
    tokens: int

    @property
    def num_files(self) -> int:
        return sum(self.files_per_chunk)


@cache
def corpora() -> Mapping[str, Corpus]:
    """Return the corpora known by name."""
    rows = package_yaml("data/corpora.yaml")
    return {name: _corpus(name, row) for name, row in rows.items()}


def _corpus(name: str, row: Mapping[str, Any]) -> Corpus:
    given = {key: value for key, value in row.items() if key not in ("name", "files_per_chunk")}
    return Corpus(
        name=name, file_name=row["name"], files_per_chunk=tuple(row["files_per_chunk"]), **given
    )


def find_corpus(name: str) -> Corpus:
    """Return a corpus by name; UnknownNameError with the nearest."""
    if name not in corpora():
        raise UnknownNameError("corpus", name, corpora())
    return corpora()[name]


def corpus_files(corpus: Corpus, *, chunks: int | None = None) -> list[InputFile]:
    """Return the files of the first `chunks` chunks of a corpus, or of all."""
    most = len(corpus.files_per_chunk)
    if chunks is not None and not 1 <= chunks <= most:
        raise ConfigError(f"chunks={chunks}: {corpus.name} has {most} chunks; expected 1 to {most}")
    files = []
    for chunk, number in enumerate(corpus.files_per_chunk[:chunks], start=1):
        for file in range(number):
            path, name = (
                form.format(chunk=chunk, file=file) for form in (corpus.url, corpus.file_name)
            )
            files.append(InputFile(path=path, name=name, size_bytes=0))
    return files


def expand(pattern: str) -> list[str]:
    """Write out braces as bash does: `{0..9}`, `{000..127}` (with its zeros), `{train,test}`."""
    parts = _BRACES.split(pattern)
    choices = [_choices(part) if place % 2 else [part] for place, part in enumerate(parts)]
    number = prod(map(len, choices))
    if number > _MOST:
        raise ConfigError(f"{pattern}: stands for {number:,} URLs; at most {_MOST:,} are taken")
    return ["".join(words) for words in product(*choices)]


def _choices(inner: str) -> Sequence[str]:
    first, dots, last = inner.partition("..")
    if not dots:
        return inner.split(",")
    width = len(first) if len(first) > 1 and first.startswith("0") else 0
    begin, end = int(first), int(last)
    count, step = abs(end - begin) + 1, 1 if begin <= end else -1
    if count > _MOST:
        raise ConfigError(f"{{{inner}}}: stands for {count:,} names; at most {_MOST:,} are taken")
    return [f"{number:0{width}}" for number in range(begin, end + step, step)]


def url_files(words: Sequence[str]) -> list[InputFile]:
    """Return the files of URLs, patterns of them, and `@FILE` lists (a URL a line, with its sha256
    behind it where it is known). Names are what the URLs' paths have below the folder that all
    share. ConfigError for what is no URL of HTTP, or for a URL twice."""
    rows = list(_rows(words))
    if not rows:
        raise ConfigError("no URL was given")
    paths = [unquote(urlsplit(url).path).strip("/").split("/") for url, _ in rows]
    shared = 0
    while all(len(path) > shared + 1 and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    files: dict[str, InputFile] = {}
    for (url, digest), path in zip(rows, paths, strict=True):
        name = "/".join(path[shared:])
        _check_name(name, url)
        if name in files:
            raise ConfigError(f"{files[name].path} and {url} would both be written as {name}")
        files[name] = InputFile(path=url, name=name, size_bytes=0, sha256=digest)
    return list(files.values())


def _rows(words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    for word in words:
        lines = [word]
        if word.startswith("@"):
            lines = text_of(Path(word[1:]), what=word).splitlines()
        for line in lines:
            if line.strip() and not line.startswith("#"):
                yield from _row(line)


def _row(line: str) -> Iterator[tuple[str, str | None]]:
    parts = line.split()
    if not re.match(r"https?://[^/]+/.", parts[0]):
        raise ConfigError(
            f"{parts[0]}: expected a URL such as https://host/folder/file_{{0..99}}.jsonl.zst"
        )
    urls = expand(parts[0])
    digest = parts[1].removeprefix("sha256:").lower() if len(parts) > 1 else None
    alone = len(parts) == 2 and len(urls) == 1
    if digest is not None and not (alone and re.fullmatch(r"[0-9a-f]{64}", digest)):
        raise ConfigError(
            f"{line.strip()}: expected one URL, and behind it nothing or its sha256 of 64 digits"
        )
    yield from ((url, digest) for url in urls)


def _check_name(name: str, url: str) -> None:
    if any(not part or part.startswith(".") or "\0" in part for part in name.split("/")):
        raise ConfigError(f"{url}: its path makes no name of a file")


def hf_files(
    word: str, *, include: Sequence[str], endpoint: str, get: Callable[[str], Any]
) -> list[InputFile]:
    """Return the files of a Hugging Face dataset, `OWNER/NAME` or `OWNER/NAME@REVISION`, that match
    one of the patterns, or all. `get` returns an answer with `.json()` and `.links`. Files in LFS
    have their sha256 in the listing, the others their length."""
    name, _, revision = word.partition("@")
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise ConfigError(f"--hf {word}: expected OWNER/NAME or OWNER/NAME@REVISION")
    revision = quote(revision or "main", safe="")
    page, rows = f"{endpoint}/api/datasets/{name}/tree/{revision}?recursive=true", []
    while page:
        answer = get(page)
        rows += [row for row in answer.json() if row.get("type") == "file"]
        page = answer.links.get("next", {}).get("url", "")
    patterns = include or ("*",)
    wanted = [row for row in rows if any(fnmatch(row["path"], one) for one in patterns)]
    if not wanted:
        said = " and ".join(include) or "all"
        raise ConfigError(
            f"--hf {word}: {counted(len(rows), 'file')}, of which {said} matches none"
        )
    base = f"{endpoint}/datasets/{name}/resolve/{revision}"
    return [
        InputFile(
            path=f"{base}/{quote(row['path'])}",
            name=row["path"],
            size_bytes=row["size"],
            sha256=(row.get("lfs") or {}).get("oid"),
        )
        for row in wanted
    ]


_HF = "https://huggingface.co"


def download(
    urls: Sequence[str] = (),
    *,
    output: Path,
    corpus: str | None = None,
    chunks: int | None = None,
    hf: str | None = None,
    include: Sequence[str] = (),
    workers: int = 4,
    patience: Patience | None = None,
    place: Place | None = None,
    progress: bool = True,
) -> StepResult:
    """Fetch URLs, patterns (`{0..99}`) and `@FILE` lists of them; or a corpus by name; or the files
    of a Hugging Face dataset. A file is there under its name only when its length, its sha256 where
    that is known, and as an archive its whole content were checked. What does not exist is told
    from what failed. HF_TOKEN and HF_ENDPOINT are read. ConfigError unless exactly one source is
    given."""
    if sum((bool(urls), corpus is not None, hf is not None)) != 1:
        raise ConfigError("expected one of: URLs, --corpus NAME, --hf OWNER/NAME")
    if chunks is not None and corpus is None:
        raise ConfigError("--chunks has no effect without --corpus")
    if include and hf is None:
        raise ConfigError("--include has no effect without --hf")
    patience = patience or Patience()
    asked = {"corpus": corpus, "chunks": chunks, "hf": hf, "include": list(include)}
    settings = {"step": "download", "inputs": list(urls), **asked}
    settings = {key: value for key, value in settings.items() if value}
    files = _files(state_folder(output, "download") / "list.jsonl", settings, patience)
    tasks = [
        Transfer(
            name=file.name,
            size_bytes=file.size_bytes,
            url=file.path,
            output=output / file.name,
            sha256=file.sha256,
            patience=patience,
            headers=_headers(file.path),
        )
        for file in files
    ]
    return run_to_manifest(
        "download",
        tasks,
        _fetch,
        output=output,
        settings=settings,
        place=place,
        workers=workers,
        progress=progress,
    )


def _files(path: Path, settings: Mapping[str, Any], patience: Patience) -> list[InputFile]:
    if path.exists():
        return read_frozen(path, settings=settings)
    if "corpus" in settings:
        rows = corpus_files(find_corpus(settings["corpus"]), chunks=settings.get("chunks"))
        found = [replace(row, path=row.path.replace(_HF, _endpoint(), 1)) for row in rows]
    elif "hf" in settings:
        patterns, get = settings.get("include", ()), partial(_page, patience=patience)
        found = hf_files(settings["hf"], include=patterns, endpoint=_endpoint(), get=get)
    else:
        found = url_files(settings["inputs"])
    return freeze(path, found, settings=settings)


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", _HF).rstrip("/")


def _headers(url: str) -> tuple[tuple[str, str], ...]:
    """Return the login of Hugging Face, for its own hosts alone."""
    token = os.environ.get("HF_TOKEN") if url.startswith(f"{_endpoint()}/") else None
    return (("Authorization", f"Bearer {token}"),) if token else ()


def _page(url: str, patience: Patience) -> Any:
    client = new_client(patience)
    import httpx

    try:
        answer = client.get(url, headers=dict(_headers(url)))
        answer.raise_for_status()
        return answer
    except httpx.HTTPStatusError as error:
        status, advice = error.response.status_code, ""
        if status in (401, 403, 404):
            advice = " (no such dataset or revision, or one that needs HF_TOKEN)"
        raise ConfigError(f"{url}: {status} {error.response.reason_phrase}{advice}") from None
    except httpx.HTTPError as error:
        raise ConfigError(f"{url}: {type(error).__name__} {error}") from None
    finally:
        client.close()


@cache
def _client(patience: Patience) -> Any:
    return new_client(patience)


def _fetch(task: Transfer) -> Record:
    return adopt(task) or fetch(task, _client(task.patience))
