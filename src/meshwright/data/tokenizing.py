"""Texts to .bin/.idx: inputs frozen, segmented, tokenized by ranks, joined by the last of them."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from meshwright.data.assembly import Assembly, EarlyJoin, TornScratch, clear, read_state
from meshwright.data.atomic import create_once, locked, read_journals
from meshwright.data.documents import SUFFIXES, form_of, read_documents
from meshwright.data.encoders import Encoder, Engine
from meshwright.data.engines import Stamp, asking_for, choose_engine, reference_of, stamp_of
from meshwright.data.indexed import token_dtype
from meshwright.data.listing import (
    InputFile,
    Manifest,
    natural_key,
    read_manifest,
    settle,
    sha256_of,
    write_manifest,
)
from meshwright.data.pieces import Document, LineCounter, Piece, Rejected, located
from meshwright.data.segment_work import (
    DIRTY,
    SegmentTask,
    part_path,
    sentence_splitter,
    tokenize_segment,
)
from meshwright.data.segments import check_forms, cut, entries, segment_bytes_for
from meshwright.data.steps import Record, StepReport, run_step
from meshwright.data.tokenize_request import MAX_DOCUMENT_BYTES, TokenizeReport, TokenizeRequest
from meshwright.data.workers import ALONE, Place, prepare_workers
from meshwright.values.errors import ConfigError, MeshwrightError

__all__ = ["MAX_DOCUMENT_BYTES", "TokenizeReport", "TokenizeRequest", "tokenize"]

_SAMPLE_FILES, _SAMPLE_DOCUMENTS, _SAMPLE_CHARACTERS = 8, 16, 4096
_SCRATCH, _INPUTS, _ENGINE, _ENTRIES = "scratch", "inputs.jsonl", "engine.txt", "entries.json"
"""In the state's folder: parts of the output, and what all ranks of a run hold to."""
_ASSEMBLY_LOCK = "assembly.lock"
"""In the state's folder: of the one process that writes the outputs."""
_NEEDED = ("meshwright.data.segment_work", "msgspec", "meshwright.data.engines")
"""Modules of a worker; the last one opens the tokenizer."""
_LEFT_OUT = "files_left_out"
"""In the manifest: whole files that the policy left out, which a later start names again."""


def tokenize(
    request: TokenizeRequest,
    /,
    *,
    workers: int = 1,
    place: Place = ALONE,
    overwrite: bool = False,
    progress: bool = True,
) -> TokenizeReport:
    """Tokenize a corpus to .bin/.idx, or go on where an earlier start was ended. The bytes of the
    output are the same for any number of ranks and workers, and after any kills. ConfigError where
    something can't be, an earlier start had other settings, or outputs of something else exist."""
    begin_s = time.monotonic()
    if workers > 1:
        prepare_workers(_NEEDED, asking_for(request.tokenizer, request.engine))
    stamp = stamp_of(request.tokenizer)
    reference = reference_of(request.tokenizer, stamp)
    settings = _settings(request, reference)
    if overwrite and place.world_size > 1:
        raise ConfigError(
            f"--overwrite with {place.world_size} ranks: one could remove what another writes;"
            " remove the outputs before"
        )
    if overwrite:
        _remove(request)
    done = _already(request, settings)
    if done is not None:
        note = f"complete since an earlier start: {request.folder / request.manifest_name}"
        left_out = tuple(done.settings.get(_LEFT_OUT, ()))
        return TokenizeReport(manifest=done, note=note, seconds=0.0, files_out=left_out)
    scratch = request.state / _SCRATCH
    with _held(request, place), ExitStack() as stack:
        with _undone_if_refused(request, place):
            tasks, note = _segments(request, reference, stamp, settings)
        assembled = read_state(scratch).segments
        early = None
        if place.world_size == 1:
            assembly, names = Assembly(scratch, request.prefixes()), [task.name for task in tasks]
            early = EarlyJoin(assembly, names, lock=request.state / _ASSEMBLY_LOCK)
            stack.enter_context(early)
        report = run_step(
            "tokenize",
            tasks,
            tokenize_segment,
            state=request.state,
            place=place,
            workers=workers,
            still_there=lambda task, record: _is_there(task, record, assembled),
            after=None if early is None else lambda task, record: early.take(task.name, record),
            progress=progress,
        )
        return _conclude(request, settings, tasks, report, early, note=note, begin_s=begin_s)


@contextmanager
def _held(request: TokenizeRequest, place: Place) -> Iterator[None]:
    """Hold this rank's lock. A start that ends before any inputs are frozen leaves neither the lock
    nor a folder that was made for it; the folders of other ranks are not empty, and stay."""
    lock = request.state / f"rank{place.rank}of{place.world_size}.lock"
    scratch, ours = request.state / _SCRATCH, request.state.parent
    made = [folder for folder in (ours, *ours.parents) if not folder.exists()]
    scratch.mkdir(parents=True, exist_ok=True)
    with locked(lock):
        try:
            yield
        except BaseException:
            if not (request.state / _INPUTS).exists():
                lock.unlink(missing_ok=True)
                with suppress(OSError):
                    for folder in dict.fromkeys((scratch, request.state, ours, *made)):
                        folder.rmdir()
            raise


@contextmanager
def _undone_if_refused(request: TokenizeRequest, place: Place) -> Iterator[None]:
    """Take back what a lone rank froze in this start where the request is then refused, so that
    another start with other words is free. Of several ranks another may work by it already."""
    paths = [request.state / name for name in (_INPUTS, _ENGINE, _ENTRIES)]
    fresh = place.world_size == 1 and not paths[0].exists()
    try:
        yield
    except MeshwrightError:
        if fresh:
            for path in paths:
                path.unlink(missing_ok=True)
        raise


def _segments(
    request: TokenizeRequest, reference: Encoder, stamp: Stamp, settings: dict[str, Any]
) -> tuple[list[SegmentTask], str]:
    """Return the segments of the frozen inputs, and what does the work."""
    files = settle(
        request.state / _INPUTS,
        request.inputs,
        settings=settings,
        suffixes=() if request.form else SUFFIXES,
        check=partial(check_forms, form=request.form),
    )
    engine, note = _engine(request, reference, files)
    dtype = str(token_dtype(reference.vocab_size).str)
    return _tasks(request, files, stamp=stamp, engine=engine, dtype=dtype), note


def _settings(request: TokenizeRequest, reference: Encoder) -> dict[str, Any]:
    """Return what the bytes of the output depend on, beside the inputs."""
    if request.append_eod and reference.eod is None:
        raise ConfigError(
            "--append-eod: this tokenizer names no token that ends a document; give it with --eod"
            " TOKEN"
        )
    if request.split_sentences:
        sentence_splitter(request.language, keep_newlines=request.keep_newlines)
    kept = ", newlines kept" if request.keep_newlines else ""
    spec = asdict(request.tokenizer)
    for name in ("model", "vocab_file", "merge_file"):
        if spec[name] is not None and Path(spec[name]).is_file():
            spec[name] = f"sha256 {sha256_of(Path(spec[name]))}"
    return {
        "tokenizer": spec,
        "library": reference.name,
        "eod": reference.eod if request.append_eod else None,
        "around": [list(ids) for ids in reference.around],
        "vocab_size": reference.vocab_size,
        "keys": list(request.keys),
        "sentences": f"{request.language}{kept}" if request.split_sentences else None,
        "format": request.form,
        "text_unit": request.text_unit,
        "max_document_bytes": request.max_document_bytes,
    }


def _already(request: TokenizeRequest, settings: dict[str, Any]) -> Manifest | None:
    """Return the manifest of a complete run; ConfigError where outputs are of something else."""
    path = request.folder / request.manifest_name
    if path.exists():
        manifest = read_manifest(request.folder, name=request.manifest_name)
        asked = {"inputs": list(request.inputs), **settings}
        differing = [key for key in asked if manifest.settings.get(key) != asked[key]]
        if differing:
            raise ConfigError(
                f"{path}: the output is complete, and was made with another {differing[0]}; give"
                " another --output-prefix, or --overwrite"
            )
        return manifest
    if not request.state.exists():
        foreign = next((path for path in _outputs(request) if path.exists()), None)
        if foreign is not None:
            raise ConfigError(
                f"{foreign} exists, and was not made by this step; give another --output-prefix, or"
                " --overwrite"
            )
    return None


def _remove(request: TokenizeRequest) -> None:
    if request.state.exists():
        shutil.rmtree(request.state)
    beside = (request.folder / request.manifest_name, _rejects_path(request))
    for path in (*_outputs(request), *beside):
        path.unlink(missing_ok=True)


def _outputs(request: TokenizeRequest) -> list[Path]:
    prefixes = request.prefixes().values()
    return [Path(f"{prefix}.{ending}") for prefix in prefixes for ending in ("bin", "idx")]


def _rejects_path(request: TokenizeRequest) -> Path:
    return Path(f"{request.output_prefix}.rejected.jsonl")


def _engine(
    request: TokenizeRequest, reference: Encoder, files: Sequence[InputFile]
) -> tuple[Engine, str]:
    """Return what does the work: what the first rank to start chose, so that all do alike."""
    path = request.state / _ENGINE
    if not path.exists():
        choice = choose_engine(reference, list(_sample(request, files)), wanted=request.engine)
        create_once(path, f"{choice.engine}\n{choice.note}\n".encode())
    engine, note = path.read_text(encoding="utf-8").splitlines()
    if request.engine is not None and engine != request.engine:
        raise ConfigError(
            f"--engine {request.engine}: the run was begun with {engine}; ask for the same, or"
            " --overwrite"
        )
    return ("gigatoken" if engine == "gigatoken" else "library"), note


def _sample(request: TokenizeRequest, files: Sequence[InputFile]) -> Iterator[str]:
    """Yield beginnings of documents from files all over the list."""
    unit, most = request.text_unit, request.max_document_bytes
    for file in files[:: max(1, len(files) // _SAMPLE_FILES)][:_SAMPLE_FILES]:
        form = form_of(file.path, request.form)
        piece = Piece(path=file.path, form=form, size_bytes=file.size_bytes)
        read = read_documents(piece, keys=request.keys, text_unit=unit, max_bytes=most)
        documents = (item for item in read if isinstance(item, Document))
        for document in islice(documents, _SAMPLE_DOCUMENTS):
            yield document.first_text[:_SAMPLE_CHARACTERS]


def _tasks(
    request: TokenizeRequest,
    files: Sequence[InputFile],
    *,
    stamp: Stamp,
    engine: Engine,
    dtype: str,
) -> list[SegmentTask]:
    segment_bytes = segment_bytes_for(files)
    segments = cut(
        files,
        form=request.form,
        text_unit=request.text_unit,
        segment_bytes=segment_bytes,
        archive_entries=_entries(request, files, segment_bytes),
    )
    names = ("keys", "append_eod", "keep_newlines", "text_unit", "on_error")
    shared: dict[str, Any] = {name: getattr(request, name) for name in names} | {
        "scratch": str(request.state / _SCRATCH),
        "spec": request.tokenizer,
        "stamp": stamp,
        "engine": engine,
        "dtype": dtype,
        "language": request.language if request.split_sentences else None,
        "max_bytes": request.max_document_bytes,
    }
    return [SegmentTask(segment=segment, **shared) for segment in segments]


def _entries(
    request: TokenizeRequest, files: Sequence[InputFile], segment_bytes: int
) -> dict[str, list[int]]:
    """Return where archives are entered, found once; an older run enters none."""
    path, found = request.state / _ENTRIES, {}
    if not path.exists():
        if next(read_journals(request.state / "journal"), None) is None:
            form, unit = request.form, request.text_unit
            found = entries(files, form=form, text_unit=unit, segment_bytes=segment_bytes)
        create_once(path, json.dumps(found).encode())
    known: dict[str, list[int]] = json.loads(path.read_bytes())
    return known


def _is_there(task: SegmentTask, record: Record, assembled: int) -> bool:
    """Whether a segment is assembled, or in its scratch file by the present policy."""
    if task.segment.number < assembled:
        return True
    if record.get("rejects") and record["on_error"] != task.on_error:
        return False
    try:
        return part_path(task.scratch, task.name).stat().st_size == int(record["size_bytes"])
    except FileNotFoundError:
        return False


def _conclude(
    request: TokenizeRequest,
    settings: dict[str, Any],
    tasks: Sequence[SegmentTask],
    step: StepReport,
    early: EarlyJoin | None,
    *,
    note: str,
    begin_s: float,
) -> TokenizeReport:
    """Put the output together where this rank is the last, and say what there is."""
    dirty, problems = [], []
    for name, (kind, reason) in step.failed.items():
        if kind == DIRTY:
            dirty += json.loads(reason)
        else:
            problems.append(f"segment {name}: {reason}")
    problems += [step.stopped] if step.stopped is not None else []
    records = {record["shard"]: record for record in read_journals(request.state / "journal")}
    known = [(task.name, records[task.name]) for task in tasks if task.name in records]
    manifest = None
    if not dirty and not problems and len(known) == len(tasks):
        try:
            manifest = _put_together(request, settings, known, early)
        except TornScratch as error:
            problems.append(str(error))
    return TokenizeReport(
        manifest=manifest,
        note=note,
        seconds=time.monotonic() - begin_s,
        rejects=sum(record.get("rejects", 0) for _, record in known),
        files_out=tuple(path for _, record in known for path in record.get("files_out", ())),
        failed=tuple(_located(dirty)),
        problems=tuple(problems),
        open_segments=len(tasks) - len(known) - len(step.failed),
    )


def _located(rows: Sequence[dict[str, Any]]) -> list[Rejected]:
    counter = LineCounter()

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        return natural_key(row["file"]), row["start"], row["line"] or 0

    return [located(row, counter) for row in sorted(rows, key=place)]


def _put_together(
    request: TokenizeRequest,
    settings: dict[str, Any],
    records: Sequence[tuple[str, Record]],
    early: EarlyJoin | None,
) -> Manifest | None:
    """Join the scratch files that are left and name the outputs; None where another rank does."""
    scratch = request.state / _SCRATCH
    with ExitStack() as stack:
        if early is not None:
            assembly = early.settle()
        else:
            try:
                stack.enter_context(locked(request.state / _ASSEMBLY_LOCK))
            except ConfigError:
                return None
            assembly = Assembly(scratch, request.prefixes())
            stack.callback(assembly.close)
        for name, record in records[assembly.segments :]:
            assembly.add(name, record)
        rejects = _rejects_path(request) if request.on_error != "fail" else None
        done = assembly.finish(dtype=str(token_dtype(settings["vocab_size"]).str), rejects=rejects)
        files = [record for output in done for record in output.files]
        left_out = [path for _, record in records for path in record.get("files_out", ())]
        said = {"inputs": list(request.inputs), **settings}
        said |= {_LEFT_OUT: left_out} if left_out else {}
        manifest = write_manifest(
            request.folder, step="tokenize", settings=said, files=files, name=request.manifest_name
        )
        clear(scratch)
        return manifest
