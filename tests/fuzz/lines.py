"""Hypothesis strategies for command lines: the examples of each command's help, with options set,
dropped, doubled and spoiled, and with damage to the files that they name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import typer.main
from hypothesis import strategies as st
from tests.values.models.hf_configs import CONFIGS as HF_CONFIGS

from meshwright.cli import app

__all__ = ["Asked", "Damage", "asked", "catalogue", "damaged"]

MODELS = ["tiny-llama", "tiny-llama", "llama3-8b", "mixtral-8x7b", "t5-base", "bert-large"]
CLUSTERS = ["h100:8", "h100:8", "a100-80:4", "h100:12", "v100-16:6", "h100:4,a100-80:4", "mi300x:8"]
CLUSTERS += ["cluster.yaml", "local", "h100:1", "tpu-v5e:16"]
NUMBERS = ["0", "1", "2", "3", "8", "16", "64", "128", "512", "4096", "0.5", "1e-3"]
ABSURD = ["-1", "nan", "inf", "-inf", "1e999", "1e308", "5e-324", "9" * 30, "1_000", "0x10", "٣"]
ABSURD += ["1,2", "1:2", "1e", "+3", " 7 ", "2**63", "9223372036854775808", "18446744073709551616"]
TEXTS = ["", "nope", "a b", "$(id)", "`id`", "a\nb", "../../x", "/", ".", "..", "/dev/null", "~"]
TEXTS += ["\x1b[31m", "größer", "層", "\udcff", "a" * 300, "=", ",", ":", "@nope", "#1", "*", "%s"]
TEXTS += ["{0}", "None", "null", "[]", "{}", "\x00", "-n", "--", "-", "\u2028", "k=v", "a/b:c"]
FILES = ["plans.json", "plan.json", "plans.json#2", "earlier.json", "serving_plans.json"]
FILES += ["config.json", "hf", "runs.csv", "served.csv", "requests.csv", "train.log", "nemo.log"]
FILES += ["titan.log", "all_reduce_8.txt", "here.npz", "calibration.yaml", "asked.yaml", "raw"]
FILES += ["bombs", "bombs/a.jsonl.gz", "archives", "archives/up.tar.gz", "plain", "data"]
FILES += ["data/en_text_document", "wiki.xml.bz2", "recipe.yaml", "cluster.yaml", "estimate.json"]
FILES += ["predictions.csv", "shards", "configs", "configs/megatron-lm/train.sh"]
LAYOUTS = ["tp=2", "tp=2,mbs=1", "pp=2,vpp=2", "ep=2,tp=2", "sharding=zero3", "recompute=full"]
LAYOUTS += ["tp=0", "tp=3", "mbs=-1", "tp=2,tp=4", "cp=2", "dp=4", "pp=99999999", "sp=1,tp=8"]
LENGTHS = ("128", "512", "4096", "4095", "1")
BATCHES = ("1", "8", "16", "32", "33", "64")
SIZES = ["1", "2", "4", "8", "2,4", "3"]
TIMES = ["1h", "10h", "5D", "30d", "90m", "0h", "-1h", "1e99D", "nanh"]
SPANS = ["300B", "1T", "2M", "1", "0", "1e30T", "-5B"]
OUTPUTS = ["out.csv", "out.json", "out", "no/such/out", "out.html", "out.yaml", "/dev/full", "hf"]
POOLS: Mapping[str, Sequence[str]] = {
    "--cluster": CLUSTERS,
    "--clusters": ["h100:8,mi300x:8", "h100:8", "h100:8,h100:8", ",", "local"],
    "--chips": ["h100,h200", "h100", "nope,h100"],
    "--count": ["8", "16", "0"],
    "--model": MODELS,
    **dict.fromkeys(("--seq", "--input-len", "--output-len"), LENGTHS),
    **dict.fromkeys(("--gbs", "--max-gbs"), BATCHES),
    **dict.fromkeys(("--set", "--layout"), LAYOUTS),
    **dict.fromkeys(("--tp", "--cp", "--pp", "--vpp", "--ep", "--etp", "--dp", "--mbs"), SIZES),
    **dict.fromkeys(("--days", "--deadline", "--time", "--restart"), TIMES),
    **dict.fromkeys(("--tokens", "--train-tokens", "--min-tokens-per-s"), SPANS),
    **dict.fromkeys(("--output", "--csv", "--save-request", "--output-prefix"), OUTPUTS),
    "--precision": ["bf16", "fp8-cs", "fp32", "fp16", "int4"],
    "--stack": ["megatron", "fsdp", "nanotron", "deepspeed", "torchtitan", "maxtext", "nemo"],
    "--to": ["megatron-lm", "torchtitan", "nemo1", "nemo2", "deepspeed", "vllm", "k8s"],
    "--launcher": [
        "slurm",
        "torchrun",
        "k8s-jobset",
        "bcp",
        "bcprun",
        "sky",
        "lepton",
        "runai",
        "pai-dlc",
    ],
    "--recompute": ["none", "full", "selective"],
    "--sharding": ["zero1", "zero3", "hybrid"],
    "--objective": ["time", "cost", "energy"],
    "--mount": ["/a:/b", "pvc:c:/d", "a", ":", "/a:/b:ro:rw"],
    "--setting": ["lr=1e-4", "lr=nan", "seed=-1", "x", "train_iters=9e99"],
    "--workers": ["1"],
    "--requests": ["5", "20"],
    "--top": ["1", "3", "0"],
    "--concurrency": ["1", "4", "1,2"],
    "--rate": ["1", "2,4"],
    "--target-rate": ["1", "20"],
}
ALWAYS: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("tune", "serving tune", "train", "workflow"), ("--dry-run",)),
    "watch": ("--once",),
    "profile": ("--quick",),
}
"""Words without which a valid line starts something that a fuzz cannot wait for."""
MORE: Mapping[str, Sequence[str]] = {
    "plan": [
        "plan tiny-llama --cluster h100:8 --seq 512 --gbs 16",
        "plan --hf {hf} --cluster h100:8 --seq 512 --gbs 16 --tp 2",
        "plan --from {config} --cluster h100:16 --tp 2",
        "plan --request asked.yaml --tp 2",
    ],
    "explain": [
        "explain tiny-llama --cluster h100:8 --seq 512 --gbs 16 --layout tp=2",
        "explain --hf {hf} --cluster h100:8 --seq 512 --gbs 16 --layout mbs=1",
        "explain llama3-8b --cluster cluster.yaml --seq 512 --gbs 16 --layout tp=2",
    ],
    "fix": ["fix {config} --cluster h100:16 --tp 2"],
    "why-oom": ["why-oom {config} --cluster h100:16"],
    "models": ["models --hf {hf}"],
    "export": ["export plan.json --to {target} -o out", "export plan.json --to {target} --dry-run"],
    "calibrate": ["calibrate {log} --cluster h100:16 -o mine.yaml"],
    "anchor": ["anchor {log} --cluster h100:16"],
    "watch": ["watch {log}"],
    "serving export": ["serving export serving_plans.json --to vllm --model-path m --dry-run"],
    "train": ["train plan.json --to megatron-lm --launcher slurm --data d --steps 9 --time 1h"],
    "data extract": [
        "data extract bombs/a.jsonl.gz -o out -j 1",
        "data extract bombs/c.jsonl.zst -o out -j 1",
        "data extract archives/up.tar.gz -o out -j 1",
        "data extract archives/up.zip -o out -j 1",
        "data extract shards/b.jsonl.gz -o out -j 1",
    ],
    "data concat": ["data concat plain -o out -j 1 --shards 2"],
    "data wiki": ["data wiki wiki.xml.bz2 -o out -j 1"],
    "data tokenize": [
        "data tokenize plain -o out --vocab-file vocabulary/vocab.json"
        " --merge-file vocabulary/merges.txt --append-eod --workers 1"
    ],
    "data merge": ["data merge data/en_text_document data/de_text_document -o all"],
    "data verify": ["data verify data", "data verify data/en_text_document --vocab-size 60"],
    "data stats": ["data stats data", "data stats data/en_text_document"],
    "data blend": ["data blend data", "data blend data --to nemo --weights 0.5,0.5"],
    "data plan": ["data plan raw"],
    "autoconfigurator": ["autoconfigurator --write-conf conf"],
    "report": ["report plans.json -o out.html", "report plans.json --format svg --chart time"],
    "apss": ["apss --num-gpus 16 --gpu-infos a800:8,h800:8 --global-batch-size 512"],
}
"""Lines beside the examples of the help, which read what the seeds hold."""
CONFIGS = ["megatron-lm/train.sh", "nemo1/conf/training/meshwright/plan.yaml", "nemo2/recipe.yaml"]
CONFIGS += ["torchtitan-toml/torchtitan.toml", "nanotron/nanotron.yaml", "deepspeed/ds_config.json"]
CONFIGS += ["accelerate/accelerate.yaml", "megatron-bridge/overrides.yaml"]
TARGETS = ["megatron-lm", "nemo1", "nemo2", "torchtitan", "torchtitan-toml", "nanotron"]
TARGETS += ["accelerate", "axolotl", "deepspeed", "llamafactory", "megatron-bridge"]
LOGS = ["train.log", "nemo.log", "titan.log"]
LIKE = {
    **dict.fromkeys(("llama3-70b", "gpt3-175b", "llama2-70b"), "tiny-llama"),
    **dict.fromkeys(("deepseek-v3", "llama3.1-70b"), "llama3.1-8b"),
    "search_config=gpt3/5b": "search_config=tiny/llama",
    **{"llama3-8b": "tiny-llama", "tp=8,pp=4,mbs=1": "tp=4,pp=2,mbs=1", "tp=8,pp=4": "tp=2,pp=4"},
}
"""Small models and layouts in place of an example's large ones."""
NEVER = ("--follow", "-f")


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """An edit of a file: the bytes from a place, as a share of the file, become others; with a
    `token` a whole number, word or string there does."""

    place: float
    length: int
    put: bytes
    token: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A command line, and the damage to the files that it names."""

    words: tuple[str, ...]
    damage: tuple[Damage, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What the fuzz knows of a command: its words, its examples, its options."""

    name: str
    examples: tuple[tuple[str, ...], ...]
    options: tuple[tuple[str, bool], ...]
    """Each with whether it is a flag."""


def catalogue() -> list[Command]:
    """Return every command of the tool."""
    return list(_commands(typer.main.get_command(app), ""))


def _commands(group: Any, before: str) -> Any:
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from _commands(command, f"{before}{name} ")
            continue
        full = f"{before}{name}"
        shown = re.findall(rf"^\s*meshwright {full}\b.*$", command.help or "", re.MULTILINE)
        lines = [shlex.split(re.split(r"&&| \| | > ", line)[0])[1:] for line in shown]
        lines = [_small(line) for line in lines] + [line.split() for line in MORE.get(full, ())]
        options = [p for p in command.params if p.param_type_name == "option"]
        yield Command(
            name=full,
            examples=tuple(map(tuple, lines)) or (tuple(full.split()),),
            options=tuple((option.opts[0], bool(option.is_flag)) for option in options),
        )


def _small(words: Sequence[str]) -> list[str]:
    """Let an example be small: what is slow for its size says nothing more."""
    sizes = {"--gbs": "64", "--seq": "512", "--requests": "20", "--num-gpus": "8", "--count": "8"}
    sizes |= {"--layout": "tp=2,mbs=1", "--concurrency": "2"}
    small = list(words)
    for at, word in enumerate(small[:-1]):
        if word in ("--cluster", "--clusters"):
            small[at + 1] = re.sub(r":\d+", ":8", small[at + 1])
        small[at + 1] = sizes.get(word, small[at + 1])
    return [LIKE.get(word, word) for word in small if word not in NEVER and word != "--pareto"]


ANY = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(ABSURD),
    st.sampled_from(TEXTS),
    st.sampled_from(FILES),
    st.sampled_from(MODELS + CLUSTERS + LAYOUTS),
    st.text(max_size=8),
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(str),
)
JUNK = st.one_of(
    st.sampled_from([word.encode("utf-8", "surrogateescape") for word in (*ABSURD, *TEXTS)]),
    st.sampled_from(
        [b"[" * 2000, b"{", b'"', b"\x00" * 8, b"\xff\xfe", b"true", b"null", b"1e400"]
    ),
    st.sampled_from([b"&a [*a]", b"!!python/object:os.system x", b"<<: *x", b"\r\n", b"a: b: c"]),
    st.binary(max_size=6),
)
DAMAGE = st.builds(
    Damage,
    place=st.floats(0, 1),
    length=st.sampled_from([0, 0, 1, 2, 8, 40, 10**9]),
    put=JUNK,
    token=st.booleans(),
)


@st.composite
def _values(draw: st.DrawFn, option: str) -> str:
    pool = POOLS.get(option)
    known = pool is not None and draw(st.integers(0, 3)) > 0
    value: str = draw(st.sampled_from(list(pool))) if pool is not None and known else draw(ANY)
    return value


@st.composite
def asked(draw: st.DrawFn, commands: Sequence[Command]) -> Asked:
    """Draw a command, one of its examples, edits of its words, and damage to its files."""
    command = draw(st.sampled_from(list(commands)))
    words = [_filled(draw, word) for word in draw(st.sampled_from(command.examples))]
    if draw(st.booleans()) and command.options:
        for option, is_flag in draw(
            st.lists(st.sampled_from(command.options), min_size=1, max_size=3)
        ):
            if option not in NEVER:
                words += [option] if is_flag else [option, draw(_values(option))]
    first = len(command.name.split())
    for _ in range(draw(st.sampled_from([0, 0, 1, 1, 2, 4]))):
        _edit(draw, words, first)
    words += ALWAYS.get(command.name, ())
    damage = draw(st.lists(DAMAGE, max_size=3)) if draw(st.booleans()) else []
    return Asked(words=tuple(words), damage=tuple(damage))


def _filled(draw: st.DrawFn, word: str) -> str:
    """Draw what stands at a place in braces."""
    pools = {"config": [f"configs/{name}" for name in CONFIGS], "target": TARGETS, "log": LOGS}
    pools["hf"] = [f"hf/{name.replace('/', '-')}.json" for name in HF_CONFIGS]
    pool = pools.get(word.strip("{}")) if word.startswith("{") else None
    drawn: str = word if pool is None else draw(st.sampled_from(pool))
    return drawn


def _edit(draw: st.DrawFn, words: list[str], first: int) -> None:
    """Change a word behind the command's name: another value, none, twice, or one more."""
    if len(words) <= first:
        words.append(draw(ANY))
        return
    at = draw(st.integers(first, len(words) - 1))
    kind = draw(st.sampled_from(["value", "value", "value", "drop", "double", "insert", "spoil"]))
    if kind == "value":
        words[at] = draw(_values(words[at - 1]))
    elif kind == "drop":
        del words[at]
    elif kind == "double":
        words.append(words[at])
    elif kind == "insert":
        words.insert(at, draw(ANY))
    else:
        cut = draw(st.integers(0, len(words[at])))
        words[at] = words[at][:cut] + draw(st.sampled_from(ABSURD + TEXTS)) + words[at][cut:]


TOKEN = re.compile(rb'-?\d[\w.+]*|"[^"\n]*"|\b[a-zA-Z_][\w-]*\b')


def damaged(content: bytes, edits: Sequence[Damage]) -> bytes:
    """Return a file's bytes after the edits, one after the other."""
    for edit in edits:
        at, length = int(edit.place * len(content)), edit.length
        found = TOKEN.search(content, at) if edit.token else None
        if found is not None:
            at, length = found.start(), found.end() - found.start()
        content = content[:at] + edit.put + content[at + length :]
    return content
