"""Every reader of a file of others, for a fuzz that gives it bytes: what it refuses it refuses by
an error that the command line says in one line."""

from __future__ import annotations

import json
import random
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tests.runs.loads.test_readers import AIPERF, GUIDELLM, VLLM
from tests.runs.loads.test_traces import AZURE, MOONCAKE, span, spans

from meshwright.api.existing import run_of
from meshwright.data.archives import open_plain
from meshwright.data.indexed import IndexedFile
from meshwright.data.recipe import read_recipe
from meshwright.data.steps import ShardError
from meshwright.runs.loads.load import read_trace
from meshwright.runs.loads.readers import read_results
from meshwright.runs.loads.traces import read_traffic
from meshwright.runs.measured.cells import TruthTable, read_table_file
from meshwright.runs.measured.rows import read_table
from meshwright.search.request import PlanRequest
from meshwright.software.log_reader import read_log
from meshwright.values.errors import MeshwrightError
from meshwright.values.hardware.cluster_file import load_yaml, read_cluster
from meshwright.values.hardware.profile import profile_from_bytes
from meshwright.values.models.huggingface import hf_reading

__all__ = ["READERS", "Reader", "finding_of", "mutated", "texts_of"]

SAID = (MeshwrightError, ShardError, OSError, UnicodeError, RecursionError, MemoryError)
"""What the command line turns into one line and 2 or 3."""
LATE_S = 20
MOST_BYTES = 1 << 20
"""What is read of an archive: a bomb has more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """A reader, and the valid files from which inputs are made."""

    read: Callable[[bytes, Path], object]
    """Reads bytes; the folder is for readers that open a file."""
    seeds: Sequence[str] = ()
    """Patterns in the folder of seeds."""
    texts: Sequence[bytes] = ()
    """And texts beside them."""


NO_MODEL = ("ds_config.json", "accelerate.yaml")
"""Files that say nothing of a model."""


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def _run(name: str) -> Callable[[bytes, Path], object]:
    """Read a script or configuration as `plan --from` does, up to the request."""
    told = {"model": "llama3-8b", "seq_len": 512, "cluster": "h100:16"}
    flags: dict[str, Any] = told if name in NO_MODEL else {}

    def read(data: bytes, folder: Path) -> object:
        run = run_of(folder / name, _text(data), flags)
        return PlanRequest.of({"cluster": "h100:16", "seq_len": 512, "gbs": 16, **run.fields()})

    return read


def _config(data: bytes, folder: Path) -> object:
    try:
        config = json.loads(data)
    except ValueError:
        return None
    return hf_reading(config, name="config.json") if isinstance(config, dict) else None


def _placed(name: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    def write_and_read(data: bytes, folder: Path) -> object:
        path = folder / name
        path.write_bytes(data)
        return read(path)

    return write_and_read


def _table(path: Path) -> object:
    table = read_table_file(path)
    return read_table(table) if isinstance(table, TruthTable) else table


def _index(path: Path) -> object:
    path.with_suffix(".bin").write_bytes(bytes(120))
    found = IndexedFile(path.with_suffix(""))
    return found.lengths.sum() if len(found.lengths) else 0


def _plain(path: Path) -> object:
    with open_plain(path) as plain:
        return len(plain.read(MOST_BYTES))


def _request(data: bytes, folder: Path) -> object:
    content = load_yaml(_text(data))
    return PlanRequest.of(content) if isinstance(content, dict) else None


def _profile(data: bytes, folder: Path) -> object:
    return profile_from_bytes(data, source="here.npz")


SCRIPTS = {
    "megatron-lm": ("train.sh", ["train.sh", "configs/megatron-lm/train.sh"]),
    "nemo1": ("plan.yaml", ["configs/nemo1/conf/training/meshwright/*.yaml"]),
    "nemo2": ("recipe.yaml", ["configs/nemo2/*.yaml"]),
    "torchtitan": ("torchtitan.toml", ["llama3_8b.toml", "configs/torchtitan-toml/*.toml"]),
    "nanotron": ("nanotron.yaml", ["configs/nanotron/*.yaml"]),
    "deepspeed": ("ds_config.json", ["configs/deepspeed/*.json"]),
    "accelerate": ("accelerate.yaml", ["configs/accelerate/*.yaml"]),
    "megatron-bridge": ("overrides.yaml", ["configs/megatron-bridge/*.yaml"]),
}
LOADS = [json.dumps(content).encode() for content in (VLLM, GUIDELLM, AIPERF)]
TRAFFIC = [AZURE.encode(), MOONCAKE.encode(), json.dumps(spans(span("chat", 1))).encode()]
READERS: Mapping[str, Reader] = {
    **{
        f"script {name}": Reader(read=_run(file), seeds=seeds)
        for name, (file, seeds) in SCRIPTS.items()
    },
    "config": Reader(read=_config, seeds=["hf/*.json"]),
    "log": Reader(read=lambda data, _: read_log(_text(data)), seeds=["*.log"]),
    "table": Reader(read=_placed("a.csv", _table), seeds=["runs.csv", "served.csv"]),
    "trace": Reader(read=_placed("trace.csv", read_trace), seeds=["requests.csv"]),
    "traffic": Reader(read=_placed("traffic", read_traffic), texts=TRAFFIC),
    "load": Reader(read=_placed("load.json", read_results), texts=LOADS),
    "index": Reader(read=_placed("a.idx", _index), seeds=["data/*.idx"]),
    "cluster": Reader(read=lambda data, _: read_cluster(_text(data)), seeds=["cluster.yaml"]),
    "request": Reader(read=_request, seeds=["asked.yaml"]),
    "profile": Reader(read=_profile, seeds=["here.npz"]),
    "recipe": Reader(read=_placed("recipe.yaml", read_recipe), seeds=["recipe.yaml"]),
    "gz": Reader(read=_placed("a.jsonl.gz", _plain), seeds=["shards/b.jsonl.gz"]),
    "bz2": Reader(read=_placed("a.jsonl.bz2", _plain), seeds=["wiki.xml.bz2"]),
    "zst": Reader(read=_placed("a.jsonl.zst", _plain), seeds=["bombs/c.jsonl.zst"]),
    "tar": Reader(read=_placed("a.tar.gz", _plain), seeds=["archives/up.tar.gz"]),
    "zip": Reader(read=_placed("a.zip", _plain), seeds=["archives/up.zip"]),
}


class _Late(BaseException):
    """A reader took longer than any file should take."""


@contextmanager
def _alarm() -> Iterator[None]:
    def late(_: int, __: FrameType | None) -> NoReturn:
        raise _Late

    old = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, LATE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)


def finding_of(reader: Reader, data: bytes, folder: Path) -> tuple[str, str] | None:
    """Give a reader bytes; what is wrong with its end, by its kind, or None."""
    try:
        with _alarm():
            reader.read(data, folder)
    except SAID:
        return None
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename.rpartition('/src/')[2]}:{last.name}"
        detail = "".join(traceback.format_exception(error)[-6:])
        return f"{type(error).__name__}: {place}", detail
    except _Late as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"late: {last.filename}:{last.name}", ""
    return None


def texts_of(reader: Reader, seeds: Path) -> list[bytes]:
    """The valid files of a reader."""
    found = list(reader.texts)
    found += [path.read_bytes() for pattern in reader.seeds for path in sorted(seeds.glob(pattern))]
    assert found, reader.seeds
    return found


VALUES = [b"0", b"-1", b"1e999", b"nan", b"null", b"true", b"[]", b"{}", b'""', b"9" * 25, b"1.5"]
VALUES += [b"[" * 300, b"\xff", b"\x00", b"~", b"&a", b"*a", b"!!x", b"'", b'"', b"\n", b" ", b"="]
VALUES += ["٣".encode(), b"1_000", b"a: b", b"$(id)", b"${X}", b"${X:-", b"2**63", b"0x10", b"-"]


def mutated(data: bytes, chance: random.Random, *, others: Sequence[bytes]) -> bytes:
    """Change some places: a word becomes another value, another file's, none, or comes twice."""
    for _ in range(chance.choice([1, 1, 2, 3, 8])):
        words = _words_of(data)
        begin, end = chance.choice(words) if words else (0, 0)
        kind = chance.randrange(6)
        if kind == 0:
            put = chance.choice(VALUES)
        elif kind == 1:
            other = chance.choice(others)
            inner = chance.choice(_words_of(other) or [(0, 0)])
            put = other[inner[0] : inner[1]]
        elif kind == 2:
            put = b""
        elif kind == 3:
            put = data[begin:end] * 2
        elif kind == 4:
            begin = end = chance.randrange(len(data) + 1)
            put = bytes([chance.randrange(256)])
        else:
            begin, end = chance.randrange(len(data) + 1), len(data)
            put = b"" if chance.random() < 0.3 else data[begin:][: chance.randrange(200)]
        data = data[:begin] + put + data[end:]
    return data


def _words_of(data: bytes) -> list[tuple[int, int]]:
    import re

    return [found.span() for found in re.finditer(rb"[\w.+-]+|\S", data[:20_000])]
