"""Data preparation by the launcher's keys: SlimPajama, the Pile, and a corpus of one's own."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from meshwright.compat.launcher.jobs import Step, step
from meshwright.compat.launcher.line import Line
from meshwright.data.fetching import find_corpus
from meshwright.values.errors import ConfigError
from meshwright.values.text import write_yaml
from meshwright.values.units import counted

__all__ = ["Prepared", "data_steps", "file_numbers"]

_SHARDS = 74
"""Joined files of SlimPajama: NVIDIA's concat.sh makes one of every 800 of its 59,166."""
_KINDS = ("slim_pajama", "pile", "custom_dataset")
_ALL_SOURCES = {
    *("RedPajamaCommonCrawl", "RedPajamaC4", "RedPajamaGithub", "RedPajamaArXiv"),
    *("RedPajamaWikipedia", "RedPajamaStackExchange", "RedPajamaBook"),
}
"""Of SlimPajama (slim_pajama_dataprep/extract.py); `approved_sources` usually leaves the books
out."""
_ENDINGS = (".json", ".jsonl", ".json.gz", ".jsonl.gz")


@dataclass(kw_only=True, slots=True)
class Prepared:
    """The jobs of a data preparation, and what they leave."""

    steps: list[Step] = field(default_factory=list)
    prefixes: tuple[str, ...] | None = None
    """Pairs of .bin and .idx that are there in the end; None: only the nodes can list them."""
    tokenizer: Mapping[str, Any] | None = None
    """Of `training.model.tokenizer`, where the corpus has one of its own."""
    corrected: list[str] = field(default_factory=list)
    """What was put right, in whole sentences."""


def data_steps(line: Line, *, setup: str | None) -> Prepared:
    """Return the jobs of `data_preparation`; ConfigError for what its keys leave open."""
    given = line.config["data_preparation"]
    make = {"slim_pajama": _slim_pajama, "pile": _pile, "custom_dataset": _custom}
    kind = str(given.get("dataset"))
    if kind not in make:
        raise ConfigError(
            f"data_preparation={line.choice('data_preparation')}: its dataset={kind} is none of"
            f" {', '.join(_KINDS)}; `meshwright data` has the steps for others"
        )
    found = Prepared()
    _Jobs(line=line, given=given, found=found, setup=setup).corrections()
    make[kind](_Jobs(line=line, given=given, found=found, setup=setup))
    if not found.steps:
        raise ConfigError(
            "data_preparation: every step is switched off; preprocess_data=True makes .bin and .idx"
        )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Jobs:
    """What the jobs of one preparation share."""

    line: Line
    given: Mapping[str, Any]
    found: Prepared
    setup: str | None

    @property
    def run(self) -> Mapping[str, Any]:
        return dict(self.given["run"])

    @property
    def nodes(self) -> int:
        """`node_array_size`, or all nodes of the job that we are in."""
        here = self.line.inside
        wanted = int(self.run["node_array_size"])
        if here is None or wanted <= here.nodes:
            return wanted
        if self.line.says("data_preparation.run.node_array_size"):
            raise ConfigError(
                f"data_preparation.run.node_array_size={wanted}:"
                f" {counted(here.nodes, 'node')} {'is' if here.nodes == 1 else 'are'} here"
            )
        return here.nodes

    def corrections(self) -> None:
        """Say what holds for every job."""
        wanted, found = int(self.run["node_array_size"]), self.found
        if self.nodes != wanted:
            found.corrected.append(
                f"data_preparation.run.node_array_size={wanted} is {self.nodes}, the nodes that"
                " are here"
            )
        if self.line.platform.launcher in ("bcp", "bcprun"):
            found.corrected.append(
                "every step runs on all its nodes and ends with its own exit code; NVIDIA's script"
                " ends with that of tee"
            )

    def add(
        self,
        name: str,
        does: str,
        words: Sequence[str],
        *,
        recipe: Sequence[Mapping[str, Any]] = (),
        needs: Sequence[str] = (),
        nodes: int | None = None,
        copies: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Add a job of `meshwright data`, or of a recipe, with files that are copied behind it."""
        file = None
        if recipe:
            folder = f"{self.run['results_dir']}/{name}"
            text = {"pipeline": "custom", "folder": folder, "steps": [dict(one) for one in recipe]}
            file = (f"{name}.yaml", write_yaml(text))
            words = ("meshwright", "data", "run", file[0])
        if copies:
            behind = [f"cp -f -- {quote(old)} {quote(new)}" for old, new in copies]
            words = ("bash", "-c", " && ".join([" ".join(map(quote, words)), *behind]))
        self.found.steps.append(
            step(
                self.line,
                f"{self.run['name']}-{name}",
                does=does,
                command=words,
                nodes=nodes or self.nodes,
                time=str(self.run["time_limit"]),
                logs=f"{self.run['results_dir']}/{name}",
                needs=needs,
                programs=() if words[0] == "python3" else ("meshwright",),
                file=file,
                setup=self.setup,
                checks=name == "verify",
            )
        )

    def vocabulary(self) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
        """Downloads of the tokenizer's files, and copies of those that the launcher names
        otherwise."""
        steps, copies = [], []
        for url, place in self.files().values():
            folder, fetched = posixpath.dirname(place), posixpath.basename(url)
            steps.append({"download": {"urls": [url], "output": folder}})
            if fetched != posixpath.basename(place):
                copies.append((f"{folder}/{fetched}", place))
        return steps, copies

    def files(self) -> dict[str, tuple[str, str]]:
        """Each file of the tokenizer: where it is fetched from, and where the launcher keeps it
        (core/data_stages.py)."""
        given, found = self.given, {}
        for kind, folder in (("vocab", "vocab"), ("merges", "merges"), ("tokenizer", "tokenizer")):
            if not (url := given.get(f"download_{kind}_url")):
                continue
            ending = "vocab.json" if str(url).endswith("json") else "vocab.txt"
            names = {"vocab": ending, "merges": "merges.txt", "tokenizer": "llama_tokenizer.model"}
            found[kind] = (str(url), f"{given[f'{folder}_save_dir']}/{names[kind]}")
        return found

    def tokenizer(self) -> dict[str, Any]:
        """The words of `data tokenize` for the configuration's tokenizer."""
        given = self.given
        kind, library = given.get("tokenizer_type"), str(given.get("tokenizer_library", "megatron"))
        if library == "sentencepiece" or given.get("tokenizer_model"):
            return {"tokenizer": str(given["tokenizer_model"]), "append_eod": True}
        if library == "huggingface":
            return {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer": str(kind)}
        vocab, merges = self.vocabulary_files()
        words: dict[str, Any] = {"vocab_file": vocab}
        if merges is not None:
            return {**words, "merge_file": merges, "append_eod": True}
        return {**words, "tokenizer_type": str(kind)}

    def vocabulary_files(self) -> tuple[str | None, str | None]:
        """Where the vocabulary and the merges lie."""
        given, files = self.given, self.files()
        if given.get("vocab_file"):
            merges = given.get("merges_file")
            return str(given["vocab_file"]), None if merges is None else str(merges)
        places = [files[kind][1] if kind in files else None for kind in ("vocab", "merges")]
        return places[0], places[1]


def _slim_pajama(jobs: _Jobs) -> None:
    given, run, folder = jobs.given, jobs.run, str(jobs.line.config["data_dir"])
    raw, text, shards = f"{folder}/raw", f"{folder}/text", f"{folder}/shards"
    workers = ("--workers", str(run["ntasks_per_node"]))
    whole = find_corpus("slimpajama")
    sources = tuple(given.get("approved_sources") or ())
    where: tuple[str, ...] = ()
    if sources and set(sources) != _ALL_SOURCES:
        where = ("--where", f"meta.redpajama_set_name={','.join(sources)}")
    if given.get("download_slim_pajama"):
        corpus = {"corpus": "slimpajama", "output": raw, "workers": int(run["ntasks_per_node"])}
        fetched, copies = jobs.vocabulary()
        jobs.add(
            "download",
            f"{whole.title}: archives, each with its length and sha256",
            (),
            recipe=[*fetched, {"download": corpus}],
            copies=copies,
        )
        check = ("meshwright", "data", "check", raw, "--corpus", "slimpajama", *workers)
        needs = (f"{raw}/manifest.json",)
        jobs.add("verify", "every archive is there and whole", check, needs=needs, nodes=1)
    if given.get("extract_slim_pajama"):
        consume = ("--consume",) if given.get("rm_downloaded") else ()
        line = ("meshwright", "data", "extract", raw, "-o", text, *where, *consume, *workers)
        does = "archives to text" + (f", of {counted(len(sources), 'source')}" if where else "")
        jobs.add("extract", does, line, needs=(f"{raw}/manifest.json",))
    if given.get("concat_slim_pajama"):
        consume = ("--consume",) if given.get("rm_extracted") else ()
        line = ("meshwright", "data", "concat", text, "-o", shards, "--shards", str(_SHARDS))
        jobs.add(
            "concat",
            f"{_SHARDS} even files, cut between documents",
            (*line, *consume, *workers),
            needs=(f"{text}/manifest.json",),
        )
    if given.get("preprocess_data"):
        tokens = str(given["preprocessed_dir"])
        names = [f"shard_{number:02}" for number in range(_SHARDS)]
        pairs = [(f"{shards}/{name}.jsonl", f"{tokens}/{name}") for name in names]
        _tokenize(jobs, pairs, needs=(f"{shards}/manifest.json",))


def _pile(jobs: _Jobs) -> None:
    given, folder = jobs.given, str(jobs.line.config["data_dir"])
    numbers = file_numbers(str(given["file_numbers"]))
    if given.get("download_the_pile"):
        urls = [f"{str(given['the_pile_url']).rstrip('/')}/{n:02}.jsonl.zst" for n in numbers]
        fetched, copies = jobs.vocabulary()
        recipe = [*fetched, {"download": {"urls": urls, "output": f"{folder}/raw"}}]
        does = f"{counted(len(urls), 'file')} of the Pile"
        jobs.add("download", does, (), recipe=recipe, copies=copies)
        consume = ("--consume",) if given.get("rm_downloaded") else ()
        line = ("meshwright", "data", "extract", f"{folder}/raw", "-o", f"{folder}/text", *consume)
        jobs.add("extract", "archives to text", line, needs=(f"{folder}/raw/manifest.json",))
    if given.get("preprocess_data"):
        family = jobs.line.choice("data_preparation").partition("/")[0]
        pairs = [(f"{folder}/text/{n:02}.jsonl", f"{folder}/my-{family}_{n:02}") for n in numbers]
        removed = (f"{folder}/text",) if given.get("rm_extracted") else ()
        sentences = {"split_sentences": True} if family == "bert" else {}
        needs = (f"{folder}/text/manifest.json",)
        _tokenize(jobs, pairs, needs=needs, more=sentences, removed=removed)


def _custom(jobs: _Jobs) -> None:
    given = jobs.given
    if given.get("train_tokenizer"):
        words = {**given["train_tokenizer_args"]}
        if not words.get("input"):
            raise ConfigError(
                "data_preparation.train_tokenizer_args.input: expected a text file to train the"
                " tokenizer on, or data_preparation.train_tokenizer=False"
            )
        words["model_prefix"] = f"{given['bpe_save_dir']}/{words['model_prefix']}"
        flags = [f"--{name}={value}" for name, value in words.items() if value is not None]
        jobs.add(
            "tokenizer",
            f"a SentencePiece model of {words['vocab_size']} pieces",
            ("python3", "-c", _TRAIN, str(given["bpe_save_dir"]), *flags),
            needs=[str(words["input"])],
            nodes=1,
        )
        jobs.found.corrected.append(
            "the tokenizer is trained by SentencePiece's Python package, which takes the options of"
            " spm_train and needs no program on the path"
        )
    if given.get("preprocess_data"):
        files = _raw_files(given)
        tokens = str(given["preprocessed_dir"])
        pairs = [(path, f"{tokens}/{posixpath.basename(path)}") for path in files]
        library = given.get("tokenizer_library")
        if library == "sentencepiece":
            jobs.found.corrected.append(
                "every document ends with the tokenizer's token for that; NVIDIA's script leaves it"
                " out, so that documents run into each other"
            )
            jobs.found.tokenizer = {
                "library": "sentencepiece",
                "type": None,
                "model": str(given["tokenizer_model"]),
                "vocab_file": None,
                "merge_file": None,
            }
        _tokenize(jobs, pairs, needs=())


_TRAIN = (
    "import os, sys, sentencepiece; os.makedirs(sys.argv[1], exist_ok=True);"
    " sentencepiece.SentencePieceTrainer.train(' '.join(sys.argv[2:]))"
)
"""SentencePiece takes the options of its program in one text."""


def _raw_files(given: Mapping[str, Any]) -> list[str]:
    """The files of `raw_dataset_files`, a list or a folder that is to be seen from here."""
    raw = given.get("raw_dataset_files")
    if isinstance(raw, str):
        folder = Path(raw)
        if not folder.is_dir():
            raise ConfigError(
                f"data_preparation.raw_dataset_files={raw}: the folder is not to be seen from here;"
                " name its files in a list, or start the line inside the job"
            )
        names = [path for path in sorted(folder.iterdir()) if path.name.endswith(_ENDINGS)]
        files = [str(path) for path in names]
    else:
        files = [str(path) for path in raw or () if path is not None]
    if not files:
        raise ConfigError(
            f"data_preparation.raw_dataset_files={raw}: expected files of JSON lines"
            f" ({', '.join(_ENDINGS)})"
        )
    return files


def _tokenize(
    jobs: _Jobs,
    pairs: Sequence[tuple[str, str]],
    *,
    needs: Sequence[str],
    more: Mapping[str, Any] | None = None,
    removed: Sequence[str] = (),
) -> None:
    """Add the job that makes a pair of .bin and .idx of each file, reads them back and weighs
    them."""
    words = {**jobs.tokenizer(), **(more or {})}
    if cpus := jobs.run.get("cpus_per_node"):
        words["workers"] = int(cpus)
    recipe: list[dict[str, Any]] = [
        {"tokenize": {"inputs": [path], "output_prefix": prefix, **words}} for path, prefix in pairs
    ]
    recipe += [{"verify": {"output_prefix": prefix}} for _, prefix in pairs]
    ending = "text_sentence" if words.get("split_sentences") else "text_document"
    prefixes = tuple(f"{prefix}_{ending}" for _, prefix in pairs)
    weights = f"{posixpath.dirname(pairs[0][1])}/blend.json"
    recipe.append({"blend": {"inputs": list(prefixes), "output": weights}})
    recipe += [{"remove": list(removed)}] if removed else []
    files = [words.get(name) for name in ("vocab_file", "merge_file", "tokenizer")]
    trained = bool(jobs.given.get("train_tokenizer"))
    jobs.add(
        "preprocess",
        f"{counted(len(pairs), 'pair')} of .bin and .idx, read back and weighed",
        (),
        recipe=recipe,
        needs=[*needs, *(str(file) for file in files if file and (trained or "/" in str(file)))],
    )
    jobs.found.prefixes = prefixes


def file_numbers(text: str) -> list[int]:
    """Read `0-29` or `0,3,5-7`; ConfigError for anything else."""
    numbers: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.partition("-")
            numbers += range(int(first), int(last or first) + 1)
    except ValueError:
        numbers = []
    if not numbers:
        raise ConfigError(
            f"data_preparation.file_numbers={text}: expected numbers and ranges, such as 0,3,5-7"
        )
    return sorted(set(numbers))
