"""The Python API is exactly what `__all__` names: loaded when asked for, typed, documented, with
examples that run."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, assert_type

import pytest

import meshwright
from meshwright.report.doctor import Health
from meshwright.search.diff import Comparison
from meshwright.search.explain import Explanation
from meshwright.search.result import PlanResult
from meshwright.serving.result import ServingPlan

ROOT = Path(__file__).resolve().parents[1]
FUNCTIONS = [
    "anchor",
    "apss",
    "calibrate",
    "ckpt_plan",
    "describe_chip",
    "describe_model",
    "diff",
    "doctor",
    "estimate",
    "explain",
    "export",
]
FUNCTIONS += [
    "list_chips",
    "list_models",
    "list_servers",
    "plan",
    "plan_front",
    "predict",
    "profile",
    "validate",
]
FUNCTIONS += ["size", "train", "tune", "ui", "watch_run", "why_oom", "workflow", "write_report"]
OTHERS = ["ConfigError", "MeshwrightError", "PlanRequest", "__version__", "data", "serving"]
STEPS = [
    "blend",
    "check",
    "concat",
    "download",
    "extract",
    "merge",
    "plan",
    "run",
    "stats",
    "tokenize",
    "train_sentencepiece",
    "verify",
    "wiki",
]
SERVING = [
    "ServingRequest",
    "export_serving",
    "measure_server",
    "plan",
    "plan_fleet",
    "predict",
    "read_results",
    "read_traffic",
    "simulate_load",
    "tune",
]
ROOMS: list[tuple[ModuleType, list[str]]] = [
    (meshwright, FUNCTIONS + OTHERS),
    (meshwright.data, [*STEPS, "EncoderSpec", "TokenizeRequest"]),
    (
        meshwright.serving,
        SERVING,
    ),
]
BLOCKS = re.findall(
    r"^```python\n(.*?)^```",
    (ROOT / "docs" / "api.md").read_text(encoding="utf-8"),
    flags=re.MULTILINE | re.DOTALL,
)


def typed_names(module: ModuleType) -> set[str]:
    """What a type checker sees: the imports of `if TYPE_CHECKING`, and what is defined in the
    file."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    blocks = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {
        alias.name
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize(("room", "names"), ROOMS, ids=lambda found: getattr(found, "__name__", ""))
def test_names_are_exactly_these_and_a_type_checker_sees_them(
    room: ModuleType, names: list[str]
) -> None:
    assert sorted(room.__all__) == sorted(names)
    assert dir(room) == room.__all__
    assert typed_names(room) == set(names) - {"__version__"}


@pytest.mark.parametrize(("room", "names"), ROOMS, ids=lambda found: getattr(found, "__name__", ""))
def test_every_name_is_there_typed_and_documented(room: ModuleType, names: list[str]) -> None:
    for name in names:
        found = getattr(room, name)
        if inspect.isfunction(found):
            signature = inspect.signature(found)
            assert found.__doc__, name
            assert signature.return_annotation not in (inspect.Signature.empty, "Any"), name
            assert all(
                parameter.annotation is not inspect.Parameter.empty
                for parameter in signature.parameters.values()
            ), name


@pytest.mark.parametrize("room", [room for room, _ in ROOMS], ids=lambda room: room.__name__)
def test_another_name_is_an_attribute_error(room: ModuleType) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'plann'"):
        _ = room.plann


def test_a_type_checker_knows_what_comes_back() -> None:
    """Checked by mypy in scripts/check; here the calls alone."""
    result = meshwright.plan(model="tiny-llama", cluster="h100:8", seq_len=512, gbs=8, top=1)
    assert_type(result, PlanResult)
    assert_type(
        meshwright.explain("tp=1", model="tiny-llama", cluster="h100:8", seq_len=512, gbs=8),
        Explanation,
    )
    assert_type(meshwright.diff("tp=1", "tp=2"), Comparison)
    served = meshwright.serving.plan(
        model="llama3-8b", cluster="h100:1", input_len=100, output_len=10
    )
    assert_type(served, ServingPlan)
    assert_type(meshwright.doctor(), Health)


def test_a_model_and_a_cluster_need_no_names() -> None:
    named = meshwright.plan(model="tiny-llama", cluster="h100:8", seq_len=512, gbs=8, top=2)
    short = meshwright.plan("tiny-llama", "h100:8", seq=512, gbs=8, top=2)
    assert short.request == named.request
    assert short.best == named.best
    why = meshwright.explain("tp=1", "tiny-llama", "h100:8", seq=512, gbs=8)
    assert why.quote.layout.tp == 1
    with pytest.raises(meshwright.MeshwrightError, match="h100:2: nothing fits"):
        _ = meshwright.plan("llama3-70b", "h100:2", seq=8192, gbs=64).best


@pytest.mark.parametrize(
    ("words", "fields", "message"),
    [
        (("tiny-llama",), {"model": "llama3-8b"}, "plan: model is given twice"),
        (("tiny-llama", "h100:8"), {"seq": 1, "seq_len": 2}, "plan: seq and seq_len are one"),
        (("tiny-llama", "h100:8"), {}, "seq_len: not given"),
    ],
)
def test_what_is_given_twice_or_not_at_all_is_said(
    words: tuple[str, ...], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(meshwright.ConfigError, match=message):
        meshwright.plan(*words, **fields)


def test_importing_the_package_loads_no_room() -> None:
    code = (
        "import sys, meshwright; print([name for name in sys.modules if"
        " name.startswith('meshwright.') or name == 'numpy'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "[]\n"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model": "llama3-8b", "cluster": "h100:8"},
            "a serving request needs input_len and output_len, such as input_len=1000",
        ),
        (
            {"model": "llama3-8b", "cluster": "h100:8", "input": 1},
            "'input' is no known field of a serving request",
        ),
        (
            {"model": "llama3-9b", "cluster": "h100:8", "input_len": 1, "output_len": 1},
            "'llama3-9b' is no known model",
        ),
        (
            {
                "model": "llama3-8b",
                "cluster": "h100:8",
                "input_len": 1,
                "output_len": 1,
                "engine": "vlm",
            },
            "'vlm' is no known",
        ),
    ],
)
def test_a_serving_request_of_wrong_words_is_one_sentence(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(meshwright.ConfigError) as error:
        meshwright.serving.plan(**fields)
    assert str(error.value).startswith(message)


def test_blocks_of_the_page_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    assert len(BLOCKS) > 5
    for block in BLOCKS:
        exec(compile(block, "docs/api.md", "exec"), names)


def test_counts_are_read_as_on_the_command_line() -> None:
    asked = meshwright.plan("tiny-llama", "h100:8", seq="2k", gbs="1k", top=1).request
    assert (asked.seq_len, asked.gbs) == (2048, 1024)
    with pytest.raises(meshwright.ConfigError, match="seq_len 8x: expected a whole number"):
        meshwright.plan("tiny-llama", "h100:8", seq="8x", gbs=8)
