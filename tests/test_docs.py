"""Documentation that is checked: generated pages are current, commands and formulas are documented,
examples run, links resolve."""

from __future__ import annotations

import ast
import csv
import glob
import importlib.util
import json
import re
import shlex
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest
from tests.runs.loads.test_traces import MOONCAKE
from tests.runs.measured.examples import LLAMA
from tests.runs.measured.logs import megatron_log, nccl_output, nemo_log
from tests.runs.measured.serving.examples import SERVED
from tests.values.hardware.profiles import ON_H100
from tests.values.models.hf_configs import CONFIGS

from meshwright.cli import run
from meshwright.values.hardware.profile import profile_to_bytes

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
MEASURED = {
    "step_time_s": "10",
    "peak_mem_gib": "30",
    "oom": "0",
    "notes": "",
    "source": "",
    "group": "g",
    "release": "",
    "task": "",
}
NOT_HERE = {
    "autoconfigurator": (
        "starts runs and takes its time; tests/compat/autoconfigurator runs its words"
    ),
    "ui": "serves until it is stopped; tests/report/whatif/test_page.py does so for a browser",
    "ci": "asks git about a repository; tests/cli/test_ci.py makes one",
    "mcp": "answers its client until that ends; tests/cli/test_mcp.py is one",
    "doctor": (
        "answers for the machine that it runs on; tests/cli/test_doctor.py asks it on an empty one"
    ),
    "bcp": "asks NGC CLI; tests/platforms/base_command has a stand-in for it",
    "data": "works on corpora and the network; tests/data runs the steps on small ones",
    "train": "starts jobs; tests/cli/test_train.py does so with a torchrun of its own",
    "tune": "starts runs; tests/cli/test_tune.py does so with a torchrun of its own",
    "watch": "follows a run until its end; tests/runs/watch runs it",
    "profile": (
        "measures a machine for minutes, with torch; tests/trainer/test_profile.py runs it on small"
        " shapes"
    ),
    "serving measure": "asks a server; tests/cli/test_serving_loads.py asks one that stands in",
    "serving read": (
        "reads what other tools wrote; tests/cli/test_serving_loads.py reads such files"
    ),
    "serving tune": "starts engines; tests/runs/serving does so with one that stands in",
}
"""Commands, by one word or two, whose examples are not run, and why."""
EXAMPLES = 3
"""How many a command's help has, at least."""
FACTORS = 3
"""Multiplications and divisions from which on a private function of cost/ makes a number of the
model, and so says how and from where."""
NO_FORMULAS = {
    "event_loops._messages": "numbers the links of a pipeline",
    "event_loops._run_overlapped": "an event loop, whose products are places in lists",
    "schedules._dualpipev": "the order of a schedule, whose products number operations",
    "schedules._sequences": "the order of a schedule, whose products number operations",
    "schedules._stepwise": "the order of a schedule, whose products number operations",
    "simulate._events": "an event loop, whose products are places in lists",
    "stages._hold_uneven_chunks": "sorts layouts into shapes; `held_layers` has the formula",
    "weights._vendors": "reads cost/communicators.csv and turns MiB into bytes",
}
"""Private functions of cost/ with as many factors that are algorithms, and why."""
NOT_YET = ("memory._bucket_bytes", "memory._frozen_bytes", "memory._gathered_bytes")
"""Formulas that still lack headings; the next change of that file ends this list."""


def generator() -> ModuleType:
    """Load scripts/docs, which has no suffix."""
    loader = SourceFileLoader("meshwright_docs_script", str(ROOT / "scripts" / "docs"))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[loader.name] = module  # dataclasses look their module up
    written = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # or scripts/docsc would lie beside it
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = written
    return module


DOCS = generator()
COMMANDS = DOCS.commands()
FUNCTIONS = DOCS.public_functions()


@pytest.mark.parametrize("page", list(DOCS.pages()), ids=lambda page: str(page.relative_to(ROOT)))
def test_generated_page_is_current(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == DOCS.pages()[page], (
        "run scripts/docs, and read what changed"
    )


@pytest.mark.parametrize("name", list(COMMANDS))
def test_command_says_what_it_does_with_three_examples(name: str) -> None:
    examples = DOCS.examples_of(COMMANDS[name])
    assert len(examples) >= EXAMPLES
    words = ["meshwright", *name.split()]
    assert all(shlex.split(example)[: len(words)] == words for example in examples)
    paragraphs = DOCS._help_paragraphs(COMMANDS[name])
    assert paragraphs.index("Examples:") >= 3, "what it does, the physics, what it prints"


def test_public_formulas_have_the_five_headings() -> None:
    missing = {
        f"{f.module}.{f.name}": [h for h in DOCS.HEADINGS if h not in f.sections] for f in FUNCTIONS
    }
    lines = [
        f"cost/{name}: no {', '.join(headings)}" for name, headings in missing.items() if headings
    ]
    assert not lines, "\n".join(lines)


def factors_of(function: ast.FunctionDef) -> int:
    """Count the multiplications and divisions of a function; `//` and `%` are index arithmetic."""
    kinds = (ast.Mult, ast.Div)
    return sum(
        isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, kinds)
        for node in ast.walk(function)
    )


def private_formulas(text: str) -> dict[str, list[str]]:
    """Return the private functions of a module that have FACTORS factors, methods among them, with
    what their docstrings lack of Formula and Source."""
    return {
        node.name: [
            heading
            for heading in ("Formula", "Source")
            if not DOCS._formula("", node).sections.get(heading)
        ]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("_")
        and factors_of(node) >= FACTORS
    }


def test_private_formulas_say_formula_and_source() -> None:
    found = {
        f"{path.stem}.{name}": lacking
        for path in sorted(DOCS.COST.glob("*.py"))
        for name, lacking in private_formulas(path.read_text(encoding="utf-8")).items()
    }
    lines = [
        f"cost/{name}: no {' and no '.join(lacking)}"
        for name, lacking in found.items()
        if lacking and name not in NO_FORMULAS and name not in NOT_YET
    ]
    assert not lines, "\n".join(lines)
    needless = [name for name in NO_FORMULAS if not found.get(name)]
    assert not needless, f"no exception needed: {', '.join(needless)}"


@pytest.mark.parametrize(
    ("docstring", "lacking"),
    [
        ("One number.", ["Formula", "Source"]),
        ("One number.\n\n    Formula:  a * b\n    ", ["Source"]),
        ("One number.\n\n    Formula:  a * b\n    Source:\n    ", ["Source"]),
        ("One number.\n\n    Formula:  a * b\n    Source:   counting.\n    ", []),
    ],
)
def test_a_private_formula_without_headings_is_found(docstring: str, lacking: list[str]) -> None:
    body = "b = 2 * a\n    b /= 3\n    return b"
    text = f'def _cost(a):\n    """{docstring}"""\n    {body}'
    assert private_formulas(f"{text} * a\n") == {"_cost": lacking}
    assert private_formulas(f"{text} // a % 2\n") == {}, "two factors, and index arithmetic"
    assert private_formulas(f"{text} * a\n".replace("_cost", "cost")) == {}, "public ones have five"


def test_formulas_name_tests_that_exist() -> None:
    named = {
        f"{f.module}.{f.name}": f.sections["Checked"] for f in FUNCTIONS if "Checked" in f.sections
    }
    lines = [
        f"cost/{name}: {fault}" for name, text in named.items() for fault in faults_of_checked(text)
    ]
    assert not lines, "\n".join(lines)


def faults_of_checked(text: str) -> list[str]:
    """Say what is wrong with `tests/cost/test_x.py::test_y`, or with the words that stand there
    instead."""
    places = re.findall(r"tests/[\w/]+\.py(?:::\w+)?", text)
    faults = [] if places else [f"no test is named: {text}"]
    for place in places:
        path, _, name = place.partition("::")
        if not (ROOT / path).is_file():
            faults.append(f"{path} does not exist")
        elif name and not re.search(
            rf"^def {name}\b", (ROOT / path).read_text(encoding="utf-8"), flags=re.MULTILINE
        ):
            faults.append(f"{path} has no {name}")
    return faults


def anchors(page: Path) -> set[str]:
    """Return what a link can point at inside a page, as GitHub makes it of headings."""
    headings = re.findall(
        r"^#+ +(.*)$", without_code(page.read_text(encoding="utf-8")), flags=re.MULTILINE
    )
    return {
        re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings
    }


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", without_code(page.read_text(encoding="utf-8")))
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


def commands_in(text: str) -> list[str]:
    """Return the lines of bash blocks that run meshwright; of `a && b` the part that does."""
    blocks = re.findall(r"^```(?:bash|console|sh)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    parts = [
        part.strip().removeprefix("$ ")
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()
        for part in line.split("&&")
    ]
    return [
        part.removeprefix(".venv/bin/")
        for part in parts
        if part.removeprefix(".venv/bin/").startswith("meshwright ")
    ]


def shown() -> list[str]:
    """Return every command line of the pages, the help's own among them, each once."""
    pages = [page.read_text(encoding="utf-8") for page in PAGES if page.name != "CHANGELOG.md"]
    return list(dict.fromkeys(command for text in pages for command in commands_in(text)))


SLOW = pytest.mark.slow
"""Of an example that searches dozens of clusters."""


ZERO = {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3},
    "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": 8,
}
TRL = """model_name_or_path: meta-llama/Llama-3.1-8B
max_length: 2048
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
gradient_checkpointing: true
bf16: true
use_peft: true
lora_r: 16
"""
TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 8192
[parallelism]
tensor_parallel_degree = 2
"""
LAUNCHED = """#!/bin/bash
TP=8
torchrun --nproc-per-node 8 --nnodes 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 \\
    --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 50257 \\
    --tensor-model-parallel-size $TP --sequence-parallel --use-distributed-optimizer --bf16 \\
    --micro-batch-size 1 --global-batch-size 128 --save $1
"""
"""A launch script that `fix` edits."""


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the examples name."""
    folder = tmp_path_factory.mktemp("examples")
    for name in ("path/to", "tables", "truth", "docs"):
        (folder / name).mkdir(parents=True)
    for name in ("config.json", "path/to/config.json"):
        (folder / name).write_text(json.dumps(CONFIGS["llama3-8b"]))
    sizes = [2**n for n in range(20, 33, 2)]
    (folder / "train.log").write_text(megatron_log([42_000, 9_100, *[8_600] * 8]))
    (folder / "nemo.log").write_text(nemo_log([40.0, *[12.6] * 9]))
    (folder / "all_reduce_8.txt").write_text(
        nccl_output({size: 40 + size / 2.2e5 for size in sizes})
    )
    (folder / "all_reduce_64.txt").write_text(
        nccl_output({size: 300 + size / 1.6e5 for size in sizes}, hosts=8, factor=2 * 63 / 64)
    )
    (folder / "here.npz").write_bytes(profile_to_bytes(ON_H100, form="npz"))
    row = {**LLAMA, **MEASURED}
    for name in ("runs.csv", "tables/a.csv", "truth/a.csv"):
        with (folder / name).open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, list(row))
            writer.writeheader()
            writer.writerow(row)
    (folder / "requests.csv").write_text("sent_s,input_len,output_len\n0,500,20\n0.5,700,30\n")
    (folder / "conversation.jsonl").write_text(MOONCAKE)
    for name in ("served.csv", "inference_a.csv"):
        with (folder / name).open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, list(SERVED))
            writer.writeheader()
            writer.writerow(SERVED)
    (folder / "train.sh").write_text(LAUNCHED)
    (folder / "llama3_8b.toml").write_text(TITAN)
    (folder / "ds_config.json").write_text(json.dumps(ZERO))
    (folder / "sft.yaml").write_text(TRL)
    return folder


def made_first(command: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Make the files that other commands would have written."""
    makers = {
        "plans.json": [
            "plan",
            "llama3-8b",
            "--cluster",
            "h100:16",
            "--seq",
            "8192",
            "--gbs",
            "64",
            "--json",
        ],
        "earlier.json": ["validate", "truth/a.csv", "--json"],
        "predictions.csv": ["predict", "runs.csv", "-o", "predictions.csv"],
        "serving_plans.json": [
            "serving",
            "plan",
            "llama3.1-70b",
            "--cluster",
            "h100:8",
            "--mode",
            "aggregated",
            "--json",
        ],
        "serving_predictions.csv": [
            "serving",
            "predict",
            "served.csv",
            "-o",
            "serving_predictions.csv",
        ],
        "calibration.yaml": [
            "calibrate",
            "train.log",
            "--cluster",
            "h100:16",
            "-o",
            "calibration.yaml",
        ],
    }
    for name, maker in makers.items():
        if any(word.partition("#")[0] == name for word in command) and not (folder / name).exists():
            run(maker)
            out = capsys.readouterr().out
            if name.endswith(".json"):
                (folder / name).write_text(out)


@pytest.mark.parametrize(
    "example", [pytest.param(line, marks=SLOW) if "--pareto" in line else line for line in shown()]
)
def test_example_runs(
    example: str, sandbox: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(sandbox)
    words = shlex.split(example.split(" > ", maxsplit=1)[0].split(" | ", maxsplit=1)[0])[1:]
    expanded = [
        found for word in words for found in (sorted(glob.glob(word)) if "*" in word else [word])
    ]
    for command in (words[0], " ".join(words[:2])):
        if command in NOT_HERE:
            pytest.skip(f"`meshwright {command}` {NOT_HERE[command]}")
    made_first(expanded, sandbox, capsys)
    code = run(expanded)
    streams = capsys.readouterr()
    assert code == 0, streams.err
    if " > " in example:
        (sandbox / example.split(" > ")[1].strip()).write_text(streams.out)
