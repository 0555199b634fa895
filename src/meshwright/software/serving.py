"""A deployment that was chosen of a serving plan, read from what `meshwright serving plan --json`
prints, and the command that serves it, of the folder of its engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import ceil
from typing import Any, Literal

from meshwright.search.problem import model_of
from meshwright.serving.engine import Cache, Engine, Weights, Worker, check_worker, find_engine
from meshwright.serving.settings import AS_IT_IS, Settings, said_setting
from meshwright.software.folders import all_software
from meshwright.values.errors import CannotExpress, ConfigError, UnknownNameError
from meshwright.values.models.spec import ModelSpec

__all__ = [
    "CONFIG_FILE",
    "HALVES",
    "SERVING_TARGETS",
    "ChosenPart",
    "EngineCommand",
    "EngineOption",
    "Role",
    "ServedWorker",
    "ServingChoice",
    "ServingEngine",
    "above_one",
    "cache_word",
    "check_keys",
    "check_words",
    "checkpoint_note",
    "engine_command",
    "engine_options",
    "engine_version",
    "engines",
    "flag_words",
    "read_choice",
    "refuse_settings",
    "type_flag",
]

SERVING_TARGETS = ("vllm", "sglang", "trtllm", "k8s", "kserve", "dynamo", "llm-d", "ray-serve")
"""Names of everything that a serving plan can be written for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedWorker:
    """Everything that an engine's command says of one worker."""

    model: ModelSpec
    path: str
    """What the engine loads: a folder, or a name that it can fetch."""
    engine: Engine
    worker: Worker
    weights: Weights
    cache: Cache
    max_len: int
    """Tokens of the longest request, prompt and answer."""
    max_sequences: int
    """Requests that run at once on one attention rank."""
    drafted: int | None = None
    """Tokens that the model's own layers for multi-token prediction draft ahead; None: none."""
    settings: Settings = AS_IT_IS
    """What the engine is told beside; its sizes are those of `engine` already."""
    port: str = "8000"
    extra: tuple[str, ...] = ()
    """The user's own words for the engine's command."""

    def __post_init__(self) -> None:
        """Check what every engine needs."""
        check_worker(self.worker, self.model)
        if not self.path.strip() or any(ord(letter) < 32 for letter in self.path):
            raise ConfigError(f"model path {self.path!r}: expected a folder or a name on one line")
        if self.max_len < 2:
            raise ConfigError(
                f"max_len={self.max_len}: expected a token of the prompt and one of the answer at"
                " least"
            )
        if self.drafted is not None and not self.model.mtp_layers:
            raise ConfigError(
                f"drafted={self.drafted}: {self.model.name} has no layers for multi-token"
                " prediction"
            )
        if self.max_sequences < 1:
            raise ConfigError(f"max_sequences={self.max_sequences}: expected 1 or more")


Role = Literal["both", "prefill", "decode"]
"""Prompts and answers on the same chips, or on pools of their own."""
_ROLES: Mapping[str, Role] = {
    "prompts and answers": "both",
    "prompts": "prefill",
    "answers": "decode",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenPart:
    """Workers of one kind."""

    role: Role
    chip: str
    vendor: str
    gpus_per_node: int
    worker: Worker
    count: int
    max_sequences: int
    """On one attention rank."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingChoice:
    """One deployment of a plan."""

    model: ModelSpec
    engine: Engine
    mode: str
    weights: Weights
    cache: Cache
    max_len: int
    parts: tuple[ChosenPart, ...]
    drafted: int | None
    """Tokens drafted ahead; None: none."""

    def with_limits(self, *, max_len: int | None, max_sequences: int | None) -> ServingChoice:
        """Return the deployment with another longest request in tokens, and other requests at once
        on each attention rank that answers; None keeps the plan's. ConfigError for what the planned
        load does not fit into."""
        if max_len is not None and max_len < self.max_len:
            raise ConfigError(
                f"max_model_len={max_len}: the plan's own requests have {self.max_len} tokens"
            )
        context = self.model.longest_tokens
        if max_len is not None and context is not None and max_len > context:
            raise ConfigError(
                f"max_model_len={max_len}: {self.model.name}'s context has {context:,} tokens"
            )
        planned = max(part.max_sequences for part in self.parts if part.role != "prefill")
        if max_sequences is not None and max_sequences < planned:
            raise ConfigError(
                f"max_num_seqs={max_sequences}: the planned load has {planned} requests at once on"
                " an attention rank; plan with a smaller --concurrency"
            )
        parts = tuple(
            part
            if part.role == "prefill" or max_sequences is None
            else replace(part, max_sequences=max_sequences)
            for part in self.parts
        )
        return replace(self, max_len=max_len or self.max_len, parts=parts)

    def served(self, part: ChosenPart, *, path: str, port: str = "8000") -> ServedWorker:
        """Return what an engine's command says of one worker of a part."""
        return ServedWorker(
            model=self.model,
            path=path,
            engine=self.engine,
            worker=part.worker,
            weights=self.weights,
            cache=self.cache,
            max_len=self.max_len,
            max_sequences=part.max_sequences,
            drafted=self.drafted,
            port=port,
        )


def read_choice(content: Mapping[str, Any], *, rank: int, what: str) -> ServingChoice:
    """Read the plan of a rank; ConfigError names what is missing of the file `what`."""
    try:
        request, plans = content["request"], content["plans"]
        found = next((plan for plan in plans if plan["rank"] == rank), None)
        if found is None:
            raise ConfigError(
                f"{what}: has plans 1 to {len(plans)}, and none of rank {rank}"
                if plans
                else f"{what}: holds no plan"
            )
        engine = find_engine(request["engine"])
        _require_own_drafts(request, engine)
        return ServingChoice(
            model=model_of(request["dims"]),
            engine=engine,
            mode=found["mode"],
            weights=found["weights"],
            cache=found["cache"],
            max_len=int(request["input_len"]) + int(request["output_len"]),
            parts=tuple(_part(part, found, request, engine) for part in found["parts"]),
            drafted=request["drafted"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{what}: no plan of serving, as `meshwright serving plan --json` prints it ({error!r})"
        ) from None


def _require_own_drafts(request: Mapping[str, Any], engine: Engine) -> None:
    """Refuse drafts that are not the model's own layers': their checkpoint or table is not told."""
    method = request.get("drafted_by") or "mtp"
    if method != "mtp":
        reason = f"tokens drafted by {method}: which drafter, no plan says"
        near = "a plan without --speculate, with the engine's own words for drafts added by hand"
        raise CannotExpress(engine.name, reason, nearest=near)


def _part(
    part: Mapping[str, Any], plan: Mapping[str, Any], request: Mapping[str, Any], engine: Engine
) -> ChosenPart:
    """Requests at once are those of the planned load; workers for prompts take as many as the
    engine does by default."""
    role, worker = _ROLES[part["role"]], Worker(**part["layout"])
    node = request["nodes"][part["chip"]]
    count = int(part["workers"])
    running = (
        plan["concurrency"] / (count * worker.attention_dp)
        if role == "both"
        else part["running_per_rank"]
    )
    return ChosenPart(
        role=role,
        chip=part["chip"],
        vendor=node["vendor"],
        gpus_per_node=int(node["gpus_per_node"]),
        worker=worker,
        count=count,
        max_sequences=engine.max_sequences if role == "prefill" else max(1, ceil(running)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineCommand:
    """How an engine is started, and asked whether it is ready."""

    words: tuple[str, ...]
    config: Mapping[str, Any] | None = None
    """Content of the YAML file that the words name as CONFIG_FILE."""
    notes: tuple[str, ...] = ()
    """What nothing in the command can make sure of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingEngine:
    """An engine that a command can be written for."""

    name: str
    """As `--engine` takes it."""
    command: Callable[[ServedWorker], EngineCommand]
    """CannotExpress where the engine has no words for a worker."""
    options: tuple[Mapping[str, str], ...] = ()
    """Rows of `options.csv`: the options of its command, its files and its worker of Dynamo."""


CONFIG_FILE = "extra_llm_api_options.yaml"
"""As the words name it, beside which it lies."""
HALVES: Mapping[Weights, str] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_FROM_CHECKPOINT = ("fp8-blockwise", "nvfp4", "mxfp4", "int4")
"""Types that a 16-bit checkpoint can't be turned into on the way in."""


@cache
def engines() -> dict[str, ServingEngine]:
    """Return every engine that a command can be written for, by name."""
    return {engine.name: engine for software in all_software() for engine in software.engines()}


def engine_command(served: ServedWorker) -> EngineCommand:
    """Return the command of a worker; CannotExpress where the engine has no words for it,
    UnknownNameError where no engine is known so."""
    name = served.engine.name
    if name not in engines():
        raise UnknownNameError("engine that can be started", name, engines())
    return engines()[name].command(served)


def flag_words(flags: Mapping[str, object]) -> list[str]:
    """Return flags with their values; one that is None or false is left out, true has no value."""
    given = [(flag, value) for flag, value in flags.items() if value not in (None, False)]
    return [
        word for flag, value in given for word in ((flag,) if value is True else (flag, str(value)))
    ]


def refuse_settings(target: str, settings: Settings, names: Sequence[str], reason: str) -> None:
    """Raise CannotExpress where one of these settings is not the engine's own."""
    if told := next((name for name in names if name in settings.told), None):
        word = f"{told}={said_setting(settings.told[told])}"
        raise CannotExpress(target, f"{word}: {reason}", nearest=f"no {told}")


def above_one(size: int) -> int | None:
    """Return a size that an engine takes as 1 unless told otherwise."""
    return size if size > 1 else None


def type_flag(target: str, weights: Weights, quantised: Mapping[str, str]) -> dict[str, str]:
    """Return the flag for the weights' type, by the engine's words for quantised ones."""
    if weights in HALVES:
        return {"--dtype": HALVES[weights]}
    if weights not in quantised:
        reason = (
            f"{weights} weights: several formats of checkpoints hold such, and nothing says which"
            " yours is"
        )
        raise CannotExpress(target, reason, nearest=f"weights={next(iter(quantised))}")
    return {"--quantization": quantised[weights]}


def cache_word(target: str, served: ServedWorker, words: Mapping[str, str]) -> str:
    """Return the engine's word for the cache's type; `auto` says that of 16- and 32-bit weights."""
    if served.cache in words:
        return words[served.cache]
    if served.cache == served.weights:
        return "auto"
    reason = f"a {served.cache} cache beside {served.weights} weights"
    raise CannotExpress(target, reason, nearest=f"cache={next(iter(words))}")


def checkpoint_note(served: ServedWorker, *, casts: bool = True) -> tuple[str, ...]:
    """Say that quantised weights come with the checkpoint, but for those that an engine which casts
    makes of 16 bits."""
    reads = served.weights in _FROM_CHECKPOINT or (not casts and served.weights not in HALVES)
    note = f"{served.path} must be a checkpoint that holds {served.weights} weights"
    return (note,) if reads else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOption:
    """One flag of a command line (`--tensor-parallel-size`), or one key of a YAML file
    (`kv_cache_config.dtype`)."""

    engine: str
    version: str
    """Of the engine whose source the row was read from."""
    option: str
    aliases: tuple[str, ...]
    choices: tuple[str, ...]
    """Empty: any value, or none."""
    source: str


@cache
def engine_options(engine: str) -> Mapping[str, EngineOption]:
    """Return the options of an engine by every name that they have."""
    found: dict[str, EngineOption] = {}
    for option in _table():
        if option.engine == engine:
            found |= dict.fromkeys((option.option, *option.aliases), option)
    if not found:
        raise UnknownNameError(
            "engine with a table of options", engine, sorted({option.engine for option in _table()})
        )
    return found


def engine_version(engine: str) -> str:
    """Return the version of an engine that its options were read from."""
    return next(iter(engine_options(engine).values())).version


def check_words(words: Sequence[str], *, engines: Sequence[str]) -> None:
    """Refuse a command line with a flag that none of these engines has, or a value that is none of
    its choices.

    Several engines where one hands on what it does not know, as Dynamo's workers do.
    """
    known = {
        name: option
        for engine in reversed(engines)
        for name, option in engine_options(engine).items()
    }
    said = " and ".join(f"{engine} {engine_version(engine)}" for engine in engines)
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if not name.startswith("-") or _is_number(name):
            continue
        option = known.get(name) or known.get(name.replace("--no-", "--", 1))
        if option is None:
            raise UnknownNameError(f"option of {said}", name, known)
        follows = value if equals else words[at + 1] if at + 1 < len(words) else ""
        if option.choices and follows not in option.choices:
            raise ConfigError(
                f"{said}: {name} {follows}: expected one of {', '.join(option.choices)}"
            )


def check_keys(content: Mapping[str, Any], *, engine: str) -> None:
    """Refuse a YAML file with a key that the engine does not have; keys of a part are
    `part.key`."""
    known = engine_options(engine)
    for name, value in _flat(content):
        option = known.get(name)
        if option is None:
            raise UnknownNameError(f"key of {engine} {engine_version(engine)}", name, known)
        if option.choices and str(value) not in option.choices:
            raise ConfigError(
                f"{engine} {engine_version(engine)}: {name}: {value}: expected one of"
                f" {', '.join(option.choices)}"
            )


def _flat(content: Mapping[str, Any], before: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _is_number(word: str) -> bool:
    return word[1:2].isdigit()


@cache
def _table() -> tuple[EngineOption, ...]:
    return tuple(
        EngineOption(
            engine=row["engine"],
            version=row["version"],
            option=row["option"],
            aliases=tuple(row["aliases"].split()),
            choices=tuple(row["choices"].split("|")) if row["choices"] else (),
            source=row["source"],
        )
        for engine in engines().values()
        for row in engine.options
    )
