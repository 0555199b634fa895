"""`download`: files over HTTP into a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from meshwright.data.listing import InputFile, freeze, read_frozen
from meshwright.data.ranks import Place, find_place
from meshwright.data.results import StepResult, conclude
from meshwright.data.sources import corpus_files, find_corpus, hf_files, url_files
from meshwright.data.steps import Record, run_step, state_folder
from meshwright.data.transfer import Patience, Transfer, adopt, fetch, new_client
from meshwright.errors import ConfigError

__all__ = ["download"]

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
    of a Hugging Face dataset.

    A file is there under its name only when its length, its sha256 where that is known, and as an
    archive its whole content were checked. What does not exist is told from what failed. HF_TOKEN
    and HF_ENDPOINT are read. ConfigError unless exactly one source is given.
    """
    if sum((bool(urls), corpus is not None, hf is not None)) != 1:
        raise ConfigError("expected one of: URLs, --corpus NAME, --hf OWNER/NAME")
    if chunks is not None and corpus is None:
        raise ConfigError("--chunks has no effect without --corpus")
    if include and hf is None:
        raise ConfigError("--include has no effect without --hf")
    patience = patience or Patience()
    settings = {
        "step": "download",
        "inputs": list(urls),
        "corpus": corpus,
        "chunks": chunks,
        "hf": hf,
        "include": list(include),
    }
    settings = {key: value for key, value in settings.items() if value}
    state = state_folder(output, "download")
    files = _files(
        state / "list.jsonl",
        settings,
        urls,
        corpus=corpus,
        chunks=chunks,
        hf=hf,
        include=include,
        patience=patience,
    )
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
    report = run_step(
        "download",
        tasks,
        _fetch,
        state=state,
        place=place or find_place(os.environ),
        workers=workers,
        still_there=_still_there,
        progress=progress,
    )
    return conclude(report, output=output, settings=settings)


def _files(
    path: Path,
    settings: Mapping[str, Any],
    urls: Sequence[str],
    *,
    corpus: str | None,
    chunks: int | None,
    hf: str | None,
    include: Sequence[str],
    patience: Patience,
) -> list[InputFile]:
    if path.exists():
        return read_frozen(path, settings=settings)
    if corpus is not None:
        rows = corpus_files(find_corpus(corpus), chunks=chunks)
        found = [replace(row, path=row.path.replace(_HF, _endpoint(), 1)) for row in rows]
    elif hf is not None:
        found = hf_files(
            hf, include=include, endpoint=_endpoint(), get=lambda page: _page(page, patience)
        )
    else:
        found = url_files(urls)
    return freeze(path, found, settings=settings)


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", _HF).rstrip("/")


def _headers(url: str) -> tuple[tuple[str, str], ...]:
    """Return the login of Hugging Face, for its own hosts alone."""
    token = os.environ.get("HF_TOKEN") if url.startswith(f"{_endpoint()}/") else None
    return (("Authorization", f"Bearer {token}"),) if token else ()


def _page(url: str, patience: Patience) -> Any:
    """Return one page of a listing; ConfigError where there is none."""
    client = new_client(patience)
    import httpx

    try:
        answer = client.get(url, headers=dict(_headers(url)))
        answer.raise_for_status()
        return answer
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        advice = (
            " (no such dataset or revision, or one that needs HF_TOKEN)"
            if status in (401, 403, 404)
            else ""
        )
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


def _still_there(task: Transfer, record: Mapping[str, Any]) -> bool:
    return task.output.exists() and task.output.stat().st_size == record["size_bytes"]
