"""A pipeline as a file: which steps it has, as the words of the commands that do them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from meshwright.data.atomic import parse_size
from meshwright.data.fetching import Corpus, find_corpus
from meshwright.data.footprint import (
    GPT2_VOCABULARY,
    RUNNABLE,
    WIDE_VOCABULARY,
    DiskPlan,
    plan,
    strategy_of,
)
from meshwright.data.listing import MANIFEST, text_of
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.text import read_yaml

__all__ = ["PIPELINES", "PipelineStep", "Recipe", "read_recipe"]

_SHARED = ("pipeline", "folder", "workers", "tokenize")
PIPELINES: Mapping[str, tuple[str, ...]] = {
    "slimpajama": (*_SHARED, "chunks", "strategy", "quota", "vocab_size", "download"),
    "wikipedia": (*_SHARED, "dump", "date", "download", "wiki"),
    "custom": ("pipeline", "folder", "workers", "steps"),
}
"""Keys of a recipe by pipeline."""
_POSITIONAL = {"inputs", "urls"}
_OUTPUT = {"tokenize": "output_prefix", "merge": "output_prefix"}
"""What a command calls its output; `output` of the others."""
_ALONE: Mapping[str, Mapping[str, Any]] = {"merge": {"overwrite": True}, "stats": {}, "blend": {}}
"""Commands of one process, and what is given to each so that it can be done again after a kill."""
_COMMANDS = "download extract concat wiki tokenize merge verify stats blend remove"
_DUMPS = (
    "https://dumps.wikimedia.org/{wiki}/{date}/{wiki}-{date}-pages-articles-multistream.xml.bz2"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineStep:
    """One step: a command of `meshwright data`, or a removal."""

    name: str
    words: tuple[str, ...] = ()
    """Of the command, behind `meshwright data`; empty for a removal."""
    manifest: Path
    """What is there when all ranks are done; of a removal, what is verified first."""
    removes: tuple[Path, ...] = ()
    on: Literal["every rank", "rank 0"] = "every rank"
    """Who does it; the others wait."""

    @property
    def makes_data(self) -> bool:
        """Whether a manifest says what it makes; of `stats` and `blend` none does."""
        return bool(self.words) and self.words[0] not in ("stats", "blend")

    def line(self) -> str:
        import shlex

        if self.removes:
            return (
                f"rm -r {shlex.join(map(str, self.removes))}  # when every file of {self.manifest}"
                " was read back"
            )
        return shlex.join(["meshwright", "data", *self.words])


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """A pipeline."""

    pipeline: str
    folder: Path
    """Of everything that it makes."""
    steps: tuple[PipelineStep, ...]
    too_large: DiskPlan | None = None
    """Why it does not fit into its quota, where it has one."""


def read_recipe(path: Path) -> Recipe:
    """Read a recipe; ConfigError names a key or value that is wrong, with the nearest."""
    given = read_yaml(text_of(path, what=f"recipe {path}"), what=f"recipe {path}")
    name = str(given.get("pipeline"))
    if name not in PIPELINES:
        raise UnknownNameError("pipeline", name, PIPELINES)
    for key in given:
        if key not in PIPELINES[name]:
            raise UnknownNameError(f"key of a {name} recipe", str(key), PIPELINES[name])
    if not isinstance(given.get("folder"), str):
        raise ConfigError(
            f"recipe {path}: folder={given.get('folder')}: expected the folder that everything is"
            " made in"
        )
    _check_count(given, "workers", what=f"recipe {path}")
    folder = Path(given["folder"])
    if name == "slimpajama":
        return _slimpajama(given, folder)
    return _wikipedia(given, folder) if name == "wikipedia" else _custom(given, folder)


def _check_count(given: Mapping[str, Any], key: str, *, what: str) -> None:
    """Raise ConfigError unless a key is absent or a whole number above 0."""
    value = given.get(key)
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value is not None and not (is_number and value > 0):
        raise ConfigError(f"{what}: {key}={value}: expected a whole number above 0")


def _slimpajama(given: Mapping[str, Any], folder: Path) -> Recipe:
    corpus, chunks = find_corpus("slimpajama"), given.get("chunks")
    if chunks is not None and not isinstance(chunks, int):
        raise ConfigError(f"recipe: chunks={chunks}: expected a whole number")
    strategy = strategy_of(str(given.get("strategy", "chunks")))
    if strategy not in RUNNABLE:
        raise ConfigError(
            f"recipe: strategy={strategy}: is there to compare; expected {', '.join(RUNNABLE)}"
        )
    quota = given.get("quota")
    too_large = None
    if quota is not None:
        found = plan(
            corpus=corpus.name,
            chunks=chunks,
            strategy=strategy,
            quota_bytes=parse_size(quota, name="recipe: quota"),
            vocab_size=_vocab_size(given),
        )
        too_large = None if found.advice is None else found
    make = _by_chunks if strategy == "chunks" else partial(_at_once, strategy=strategy)
    steps = tuple(make(given, folder, corpus=corpus, chunks=chunks))
    return Recipe(pipeline="slimpajama", folder=folder, steps=steps, too_large=too_large)


def _by_chunks(
    given: Mapping[str, Any], folder: Path, *, corpus: Corpus, chunks: int | None
) -> Iterator[PipelineStep]:
    for number, files in enumerate(corpus.files_per_chunk[:chunks], start=1):
        suffix, place = f"-chunk{number}", folder / "raw" / f"chunk{number}"
        prefix = folder / "tokens" / f"slimpajama_chunk{number}"
        url = corpus.url.format(chunk=number, file=f"{{0..{files - 1}}}")
        fetched = {"urls": [url], "output": str(place)}
        yield _command("download", fetched, given, suffix=suffix)
        tokenized = {"inputs": [str(place)], "output_prefix": str(prefix)}
        yield _command("tokenize", tokenized, given, suffix=suffix)
        verified = _verify(prefix, suffix=suffix)
        yield verified
        yield _remove((place,), verified, suffix=suffix)


def _at_once(
    given: Mapping[str, Any], folder: Path, *, corpus: Corpus, chunks: int | None, strategy: str
) -> Iterator[PipelineStep]:
    source, prefix = folder / "raw", folder / "tokens" / "slimpajama"
    fetched = {"corpus": corpus.name, "output": str(source)}
    some: dict[str, Any] = {} if chunks is None else {"chunks": chunks}
    yield _command("download", {**fetched, **some}, given)
    if strategy == "text":
        text = folder / "text"
        extracted = {"inputs": [str(source)], "output": str(text), "consume": True}
        yield _command("extract", extracted, given)
        source = text
    yield _command("tokenize", {"inputs": [str(source)], "output_prefix": str(prefix)}, given)
    yield _verify(prefix)


def _vocab_size(given: Mapping[str, Any]) -> int:
    """Return the vocabulary that the output is written for: as given, else GPT-2's, else the
    smallest that takes 4 bytes an id. The files of a tokenizer may not be there yet when a recipe
    is read, so another one is taken for the larger kind."""
    _check_count(given, "vocab_size", what="recipe")
    if given.get("vocab_size") is not None:
        return int(given["vocab_size"])
    words = given.get("tokenize")
    is_gpt2 = isinstance(words, Mapping) and words.get("merge_file") is not None
    return GPT2_VOCABULARY if is_gpt2 else WIDE_VOCABULARY


def _wikipedia(given: Mapping[str, Any], folder: Path) -> Recipe:
    wiki, date = str(given.get("dump", "enwiki")), str(given.get("date", "latest"))
    raw, articles, prefix = (str(folder / name) for name in ("raw", "articles", f"tokens/{wiki}"))
    url = _DUMPS.format(wiki=wiki, date=date)
    steps = (
        _command("download", {"urls": [url], "output": raw}, given),
        _command("wiki", {"inputs": [raw], "output": articles}, given),
        _command("tokenize", {"inputs": [articles], "output_prefix": prefix}, given),
        _verify(Path(prefix)),
    )
    return Recipe(pipeline="wikipedia", folder=folder, steps=steps)


def _custom(given: Mapping[str, Any], folder: Path) -> Recipe:
    rows = given.get("steps")
    if not isinstance(rows, list) or not rows:
        raise ConfigError(
            f"recipe: steps={rows}: expected a list of steps such as `- extract: {{inputs: [raw],"
            " output: plain}`"
        )
    steps: list[PipelineStep] = []
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or len(row) != 1:
            raise ConfigError(
                f"recipe: step {number}: expected one command with its options, got {row}"
            )
        ((command, options),) = row.items()
        if command not in (known := _COMMANDS.split()):
            raise UnknownNameError("step", str(command), known)
        shared = {} if command in _ALONE else {"workers": given.get("workers")}
        filled = _filled(options, str(folder))
        steps.append(_custom_step(command, filled, shared, before=steps, number=number))
    return Recipe(pipeline="custom", folder=folder, steps=tuple(steps))


def _verify(prefix: Path, *, suffix: str = "") -> PipelineStep:
    return PipelineStep(
        name=f"verify{suffix}",
        words=("verify", f"{prefix}_*.idx"),
        manifest=Path(f"{prefix}.manifest.json"),
        on="rank 0",
    )


def _remove(paths: tuple[Path, ...], before: PipelineStep, *, suffix: str) -> PipelineStep:
    name = f"remove{suffix}"
    return PipelineStep(name=name, manifest=before.manifest, removes=paths, on="rank 0")


def _custom_step(
    command: str,
    options: Any,
    shared: Mapping[str, Any],
    *,
    before: Sequence[PipelineStep],
    number: int,
) -> PipelineStep:
    if command == "remove":
        folders = isinstance(options, list) and all(isinstance(name, str) for name in options)
        if not before or before[-1].removes or not folders:
            raise ConfigError(
                f"recipe: step {number}: remove takes a list of folders, behind the step that"
                " replaces them"
            )
        made = [step for step in before if step.makes_data]
        if not made:
            raise ConfigError(
                f"recipe: step {number}: remove stands behind no step that makes data, so nothing"
                " could be verified"
            )
        for name in options:
            if made[-1].manifest.is_relative_to(name):
                raise ConfigError(
                    f"recipe: step {number}: remove {name}: the step before made it, and nothing"
                    " has replaced it yet"
                )
        return _remove(tuple(map(Path, options)), made[-1], suffix=f"-{number}")
    if not isinstance(options, dict):
        raise ConfigError(
            f"recipe: step {number}: {command} takes options such as `output: plain`, got {options}"
        )
    if command == "verify":
        if not isinstance(options.get("output_prefix"), str) or len(options) > 1:
            raise ConfigError(
                f"recipe: step {number}: verify takes the output_prefix of a tokenize step, got"
                f" {options}"
            )
        return _verify(Path(options["output_prefix"]), suffix=f"-{number}")
    return _command(command, options, shared, suffix=f"-{number}")


def _filled(value: Any, folder: str) -> Any:
    """Put the folder of the recipe where `{folder}` stands."""
    if isinstance(value, dict):
        return {key: _filled(inner, folder) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, folder) for inner in value]
    return value.replace("{folder}", folder) if isinstance(value, str) else value


def _command(
    command: str, options: Mapping[str, Any], given: Mapping[str, Any], *, suffix: str = ""
) -> PipelineStep:
    """Return a step with the recipe's options for that command, and the recipe's workers."""
    extra = given.get(command) if isinstance(given.get(command), dict) else None
    if given.get(command) is not None and extra is None:
        raise ConfigError(
            f"recipe: {command}={given[command]}: expected options of `meshwright data {command}`"
        )
    known = {"workers": given.get("workers"), **(extra or {}), **options, **_ALONE.get(command, {})}
    for key in known:
        if not isinstance(key, str):
            raise ConfigError(f"recipe: {command}: {key}: expected the name of an option")
    name = _OUTPUT.get(command, "output")
    if not isinstance(known.get(name), str):
        raise ConfigError(f"recipe: {command}: {name}={known.get(name)}: expected a path")
    made = Path(known[name])
    manifest = made if command in _ALONE else made / MANIFEST
    if command in _OUTPUT:
        manifest = Path(f"{made}.manifest.json")
    on: Literal["every rank", "rank 0"] = "rank 0" if command in _ALONE else "every rank"
    words = (command, *_words(known))
    return PipelineStep(name=f"{command}{suffix}", words=words, manifest=manifest, on=on)


def _words(options: Mapping[str, Any]) -> list[str]:
    """Return options as words: a list repeats its flag, true is the flag, false and null none."""
    words: list[str] = []
    loose: list[str] = []
    for key, value in options.items():
        flag, values = f"--{key.replace('_', '-')}", value if isinstance(value, list) else [value]
        if key in _POSITIONAL:
            loose += map(str, values)
        elif value is True:
            words.append(flag)
        else:
            said = [inner for inner in values if inner is not None and inner is not False]
            words += [word for inner in said for word in (flag, str(inner))]
    return [*loose, *words]
