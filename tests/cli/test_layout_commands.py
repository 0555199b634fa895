from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.values.models.hf_configs import CONFIGS

from meshwright.cli import run

ASKED = ["llama3-8b", "--cluster", "h100:16", "--seq", "8192", "--gbs", "64"]
LAYOUT = "tp=4,pp=2,mbs=1"


def answer(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, object]:
    assert run([*args, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("command", [["explain", "--tables"], ["why-oom"]], ids=" ".join)
def test_answers_in_words(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, *ASKED, "--layout", LAYOUT]) == 0
    out = capsys.readouterr().out
    assert "layout tp=4,sp=1,pp=2,dp=2,sharding=zero1,mbs=1,gbs=64" in out
    assert "Memory, GiB" in out


def test_explain_answers_in_fifteen_lines(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["explain", *ASKED, "--layout", LAYOUT]
    assert run(asked) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= 15
    assert re.search(r"^step \S+ s, likely \S+ to \S+ \(\d+ published runs", short, re.MULTILINE)
    for part, heading in {
        "--tables": "Time of one step",
        "--rivals": "Nearest rivals",
        "--sources": "What this stands on",
    }.items():
        assert heading not in short
        assert run([*asked, part]) == 0
        whole = capsys.readouterr().out
        assert heading in whole
        assert whole.startswith(short.partition("time:")[0])


def test_a_layout_that_does_not_fit_answers_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", *ASKED, "--layout", "mbs=4"]) == 0
    out = capsys.readouterr().out
    assert "fits: no" in out
    assert "Binding: Memory of stage 0" in out
    assert run(["why-oom", *ASKED, "--layout", "mbs=4"]) == 0
    assert "GiB too much; its largest term is" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["explain", "why-oom"])
def test_a_layout_that_ran_is_answered_as_it_must_have_run(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [command, *ASKED, "--layout", "mbs=4", "--ran"]
    record = answer(capsys, *asked)
    ran = record["ran"]
    assert isinstance(ran, dict) and ran["taken"]
    layout, gib = record["layout"], record["peak_memory_gib"]
    assert isinstance(layout, dict) and isinstance(gib, list)
    assert layout["mbs"] == 4 and max(gib) < ran["as_told_gib"]
    assert record["fits"] != "no"
    assert run(asked) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith(ran["words"]) and "fits: no" not in out


def test_one_term_and_json_are_not_asked_together(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", *ASKED, "--layout", LAYOUT, "--term", "bubble", "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and len(err.splitlines()) == 1 and "drop one" in err


def test_explain_agrees_with_plan(capsys: pytest.CaptureFixture[str]) -> None:
    plans = answer(capsys, "plan", *ASKED, "--top", "3")["plans"]
    assert isinstance(plans, list)
    for best in plans:
        words = ",".join(
            _word(key, value) for key, value in best["layout"].items() if value not in (None, [])
        )
        found = answer(capsys, "explain", *ASKED, "--layout", words)
        assert found["layout"] == best["layout"]
        assert found["step_s"] == pytest.approx(best["step_s"])
        assert found["peak_memory_gib"] == pytest.approx(best["peak_memory_gib"])
        assert (found["fits"], found["mfu"]) == (best["fits"], pytest.approx(best["mfu"]))


def _word(key: str, value: object) -> str:
    text = (
        "+".join(map(str, value))
        if isinstance(value, list)
        else str(int(value) if isinstance(value, bool) else value)
    )
    return f"{key}={text}"


def test_json_sums(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "explain", *ASKED, "--layout", LAYOUT)
    assert sum(found["time"].values()) == pytest.approx(found["step_s"])  # type: ignore[attr-defined]
    assert sum(found["memory"].values()) == pytest.approx(max(found["peak_memory_gib"]))  # type: ignore[attr-defined, call-overload]
    ladder = answer(capsys, "why-oom", *ASKED, "--layout", LAYOUT)
    assert ladder["step_s"] == found["step_s"]
    assert len(ladder["ladder"]) >= 4  # type: ignore[arg-type]


def test_a_rung_explained_by_itself_has_the_same_numbers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rungs = answer(capsys, "why-oom", *ASKED, "--layout", "mbs=4")["ladder"]
    rung = next(r for r in rungs if r["kinds"] == ["tp"])  # type: ignore[attr-defined]
    words = ",".join(
        _word(key, value) for key, value in rung["layout"].items() if value not in (None, [])
    )
    found = answer(capsys, "explain", *ASKED, "--layout", words)
    assert found["step_s"] == pytest.approx(rung["step_s"])
    assert max(found["peak_memory_gib"]) == pytest.approx(rung["peak_memory_gib"])  # type: ignore[call-overload]


def test_trace_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "step.json"
    assert run(["explain", *ASKED, "--layout", LAYOUT, "--trace", str(path)]) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().err
    events = [
        e
        for e in json.loads(path.read_text())["traceEvents"]
        if e.get("cat") in ("forward", "backward")
    ]
    assert len(events) == 2 * 2 * 32  # forward and backward of 64 / 2 micro batches on 2 stages


def test_diff_of_plan_files_prices_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plans = answer(capsys, "plan", *ASKED, "--top", "2")
    path = tmp_path / "plans.json"
    path.write_text(json.dumps(plans))
    found = answer(capsys, "diff", f"{path}#1", f"{path}#2")
    assert [price["step_s"] for price in found["prices"]] == pytest.approx(  # type: ignore[attr-defined]
        [plan["step_s"] for plan in plans["plans"]]  # type: ignore[attr-defined]
    )
    assert answer(capsys, "diff", str(path), f"{path}#1")["differences"] == []
    path.with_name("plan.json").write_text(json.dumps(plans["plans"][1]))  # type: ignore[index]
    assert (
        answer(capsys, "diff", str(path.with_name("plan.json")), f"{path}#2")["differences"] == []
    )


def test_diff_with_a_model_fills_in_what_follows(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "diff", "tp=4,pp=2", "tp=2,pp=2", "--model", *ASKED)
    assert {d["field"]: d["b"] for d in found["differences"]} == {"tp": 2, "dp": 4}  # type: ignore[attr-defined]
    assert found["labels"] == ["reshard the checkpoint", "changes data order"]


BAD = {
    "unknown model": ["explain", "llama9", *ASKED[1:], "--layout", LAYOUT],
    "no model": ["explain", *ASKED[1:], "--layout", LAYOUT],
    "no cluster": ["explain", "llama3-8b", "--seq", "8192", "--layout", LAYOUT],
    "rule": ["explain", *ASKED, "--layout", "tp=3"],
    "heads": ["why-oom", *ASKED, "--layout", "tp=16,pp=1,sp=0,cp=5"],
    "key": ["why-oom", *ASKED, "--layout", "tpp=4"],
    "empty": ["explain", *ASKED, "--layout", ""],
    "batch": ["explain", *ASKED[:5], "--layout", LAYOUT],
    "headroom": ["explain", *ASKED, "--layout", LAYOUT, "--headroom", "-1"],
    "side": ["diff", "tp=x", "tp=2"],
    "file": ["diff", "nowhere.json", "tp=2"],
    "rank": ["diff", "{plans}#9", "tp=2"],
    "rank word": ["diff", "{plans}#best", "tp=2"],
    "one side": ["diff", "tp=2"],
    "broken": ["diff", "{broken}", "tp=2"],
    "no object": ["diff", "{list}", "tp=2"],
    "strange key": ["diff", "{strange}", "tp=2"],
    "strange value": ["diff", "{value}", "tp=2"],
    "needless word": ["diff", "tp=1", "tp=2", "--precision", "fp8"],
    "needless": ["diff", "tp=1", "tp=2", "--seq", "8"],
    "no cluster of prices": ["diff", "tp=1", "tp=2", "--model", "llama3-8b"],
}
FILES = {
    "plans": '{"plans": [{"layout": {"tp": 2}}]}',
    "broken": '{"plans": [\n  oops',
    "list": "[1, 2]",
    "strange": '{"layout": {"tpp": 2}}',
    "value": '{"layout": {"tp": "two", "recompute_modules": 3}}',
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_input_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    args = [
        arg.format(**{file: tmp_path / file for file in FILES}) if "{" in arg else arg
        for arg in BAD[name]
    ]
    assert run(args) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("error: ")
    assert streams.err.count("\n") == 1


def test_broken_json_names_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.json").write_text(FILES["broken"])
    run(["diff", str(tmp_path / "plan.json"), "tp=2"])
    assert "line 2, column 3" in capsys.readouterr().err


keys = st.sampled_from(
    [
        "tp",
        "pp",
        "vpp",
        "cp",
        "ep",
        "etp",
        "mbs",
        "dp",
        "gbs",
        "sp",
        "sharding",
        "recompute",
        "recompute_modules",
    ]
)
keys |= st.sampled_from(
    [
        "recompute_layers",
        "recompute_method",
        "schedule",
        "layers_per_stage",
        "shard_size",
        "zero",
        "?",
    ]
)
words = st.sampled_from(
    [
        "1",
        "2",
        "4",
        "8",
        "0",
        "-1",
        "3",
        "none",
        "full",
        "selective",
        "block",
        "zero3",
        "hybrid",
        "mlp",
        "2+2",
        "x",
        "",
    ]
)
layouts = st.lists(st.tuples(keys, words), max_size=5).map(
    lambda pairs: ",".join(f"{key}={word}" for key, word in pairs)
)


sizes = st.sampled_from(["1", "2", "4"])
plausible = st.fixed_dictionaries(
    {"tp": sizes, "pp": st.sampled_from(["1", "2"])},
    optional={
        **{"cp": sizes, "ep": sizes, "vpp": sizes, "mbs": sizes},
        "recompute": st.sampled_from(["none", "full", "selective"]),
        "sharding": st.sampled_from(["none", "zero1", "zero3"]),
        "schedule": st.sampled_from(["1f1b", "gpipe", "zero-bubble"]),
    },
).map(lambda fields: ",".join(f"{key}={value}" for key, value in fields.items()))


@settings(max_examples=60)
@example(model="llama3-8b", words="pp=16,vpp=4,schedule=zero-bubble")
@example(model="mixtral-8x7b", words="tp=2,etp=4,ep=2")
@example(model="t5-3b", words="pp=2,recompute=selective")
@given(
    model=st.sampled_from(
        ["llama3-8b", "mixtral-8x7b", "t5-3b", "deepseek-v2-lite", "nemotron-h-8b"]
    ),
    words=layouts | plausible,
)
def test_any_layout_answers_or_is_refused(model: str, words: str) -> None:
    for command in ("explain", "why-oom"):
        assert run(
            [
                command,
                model,
                "--cluster",
                "a100-80:16",
                "--seq",
                "2048",
                "--gbs",
                "32",
                "--layout",
                words,
                "--json",
            ]
        ) in (0, 2)
    assert run(["diff", "tp=2", words, "--json"]) in (0, 2)


def test_hugging_face_config_is_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS["llama3-8b"]))
    named = answer(capsys, "explain", *ASKED, "--layout", LAYOUT)
    read = answer(
        capsys, "explain", "--hf", str(tmp_path / "config.json"), *ASKED[1:], "--layout", LAYOUT
    )
    assert read["step_s"] == named["step_s"]
    assert read["memory"] == named["memory"]
