"""A release of a training software starts a model by its own recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from meshwright.api import problem_of
from meshwright.search.mixed.problem import resolve_mixed
from meshwright.search.plan import search_problem
from meshwright.search.request import PlanRequest
from meshwright.search.started import Started, runnable, started
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.layout import Layout, parse_layout
from meshwright.values.models.catalogue import find_model
from meshwright.values.recipes import Task
from meshwright.values.stack import find_stack
from meshwright.values.start import Start
from meshwright.values.workload import Precision


def start(
    release: str, model: str, chip: str, precision: Precision, *, task: Task = "pretrain"
) -> Started:
    return started(
        find_stack(f"megatron-bridge@{release}"),
        model=find_model(model),
        chip=find_chip(chip),
        precision=precision,
        num_chips=64,
        task=task,
    )


@pytest.mark.parametrize(
    ("release", "model", "chip", "precision", "features"),
    [
        # Megatron-Bridge v0.1.0: NCCL's exchange; graphs of whole layers for this model alone
        ("25.09", "qwen3-30b-a3b", "b200", "fp8", ("alltoall", 0.0, 1.0)),
        ("25.09", "qwen3-235b-a22b", "h100", "fp8", ("alltoall", 0.0, 0.0)),
        # v0.2.0: graphs of router and preprocessing; an exchange beside another micro batch
        ("25.11", "qwen3-30b-a3b", "b200", "mxfp8", ("alltoall", 0.0, 0.2)),
        ("25.11", "qwen3-235b-a22b", "b200", "mxfp8", ("alltoall", 0.8, 0.0)),
        # v0.3.0 and v0.4.0: HybridEP for DeepSeek on every chip
        ("26.02", "deepseek-v3", "h100", "fp8", ("flex", 0.0, 0.0)),
        ("0.4.0", "deepseek-v3", "gb200", "bf16", ("flex", 0.0, 0.5)),
        # v0.5.0: one graph of the whole step
        ("26.06", "gpt-oss-120b", "gb300", "mxfp8", ("flex", 0.8, 1.0)),
        ("26.04", "gpt-oss-120b", "gb300", "bf16", ("alltoall", 0.0, 0.5)),
    ],
)
def test_features_are_those_of_the_release_s_recipe(
    release: str, model: str, chip: str, precision: Precision, features: tuple[str, float, float]
) -> None:
    stack = start(release, model, chip, precision).stack
    assert (stack.dispatcher, stack.ep_overlap, stack.launch_hidden) == features


def test_moments_are_in_the_recipes_format() -> None:
    """DeepSeek-V3's recipes set exp_avg_dtype and exp_avg_sq_dtype to bfloat16."""
    assert start("0.4.0", "deepseek-v3", "gb200", "bf16").stack.moment_bytes == 2 * 2
    assert start("26.06", "gpt-oss-120b", "gb300", "mxfp8").stack.moment_bytes == 2 * 4


def test_a_recipe_says_what_it_is() -> None:
    words = start("0.4.0", "deepseek-v3", "gb200", "bf16").words
    assert words.startswith("megatron-bridge v0.4.0, its recipe of deepseek-v3 on gb200 in bf16: ")
    assert "experts through hybridep" in words and "attn moe_router moe_preprocess" in words


def test_a_model_without_a_recipe_starts_as_the_library_does() -> None:
    """No graphs, and experts through NCCL, as NeMo 2.0's recipes have them; it is said."""
    found, nemo = start("26.04", "mixtral-8x7b", "gb300", "bf16"), find_stack("nemo")
    assert "no recipe of mixtral-8x7b on gb300: as its library's own" in found.words
    assert replace(found.stack, name="nemo", source=nemo.source) == nemo
    assert found.start == Start(tp_comm_overlap=True)


def test_a_model_is_known_by_its_dims_whatever_it_is_called() -> None:
    mine = replace(find_model("llama3-70b"), name="mine")
    found = started(
        find_stack("megatron-bridge@26.04"),
        model=mine,
        chip=find_chip("gb300"),
        precision="bf16",
        num_chips=64,
    )
    assert "its recipe of llama3-70b on gb300 in bf16" in found.words
    assert "no recipe of" in start("26.04", "llama2-70b", "gb300", "bf16").words


def test_without_a_release_the_newest_starts() -> None:
    """v0.6.0 runs DeepSeek-V3 in mxfp8 on B300 as one graph, its exchanges hidden."""
    plain = started(
        find_stack("megatron-bridge"),
        model=find_model("deepseek-v3"),
        chip=find_chip("b300"),
        precision="mxfp8",
        num_chips=256,
    )
    named = start("0.6.0", "deepseek-v3", "b300", "mxfp8")
    assert plain.words == named.words and plain.words.startswith("megatron-bridge v0.6.0")
    assert replace(plain.stack, release=named.stack.release) == named.stack


def test_a_chip_without_recipes_is_an_error_where_a_release_is_named_alone() -> None:
    found = started(
        find_stack("megatron-bridge"),
        model=find_model("llama3-8b"),
        chip=find_chip("a100-80"),
        precision="bf16",
        num_chips=64,
    )
    assert "newest release, which has no recipe of a100-80" in found.words
    with pytest.raises(ConfigError, match="has a recipe for a100-80"):
        start("26.04", "llama3-8b", "a100-80", "bf16")


def test_over_several_kinds_of_chips_no_recipe_starts() -> None:
    asked: dict[str, Any] = {"model": "llama3-8b", "seq_len": 8192, "gbs": 128}
    mixed = resolve_mixed(PlanRequest(cluster="h100:8,b200:8", stack="megatron-bridge", **asked))
    assert {part.setting.stack.launch_hidden for part in mixed.parts} == {0.0}
    assert {part.setting.start for part in mixed.parts} == {None}


@pytest.mark.parametrize(
    ("layout", "kept"),
    [
        ("ep=8,pp=2,vpp=2", True),
        ("ep=8,pp=2", False),  # one chunk a stage: no other micro batch is at hand
        ("pp=2,vpp=2", False),
        ("ep=8,recompute=full", False),
        ("ep=8,recompute=selective,recompute_modules=moe", False),
    ],
)
def test_an_exchange_hides_where_megatron_core_lets_it(layout: str, kept: bool) -> None:
    words = Layout(**parse_layout(layout))
    hidden = Start(a2a_overlap=True, dispatcher="hybridep")
    assert runnable(hidden, words, find_model("qwen3-30b-a3b")).a2a_overlap is kept


def test_what_has_no_recipe_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"has a recipe for a100-80; releases with recipes are v0\.1"
    ):
        start("26.04", "llama3-8b", "a100-80", "bf16")
    with pytest.raises(ConfigError, match="has a recipe for h100; releases"):
        start("24.01", "llama3-8b", "h100", "bf16")
    for later in ("99.01", "1.0", "v0.9.1"):
        with pytest.raises(ConfigError, match=r"newer than the recipes read, which end with v0\.6"):
            start(later, "llama3-8b", "h100", "bf16")
    with pytest.raises(ConfigError, match="expected a version of Megatron-Bridge"):
        start("newest", "llama3-8b", "h100", "bf16")
    with pytest.raises(UnknownNameError, match="megatron-bridge"):
        find_stack("megatron-bridg@26.04")
    with pytest.raises(ConfigError, match="expected a release after @"):
        find_stack("megatron-bridge@")
    asked: dict[str, Any] = {"model": "llama3-8b", "seq_len": 8192, "gbs": 128}
    with pytest.raises(ConfigError, match="no recipes of its releases are known; leave @0"):
        problem_of(PlanRequest(cluster="h100:8", stack="torchtitan@0.3", **asked))
    with pytest.raises(ConfigError, match="newer than the recipes read, which end with v2"):
        problem_of(PlanRequest(cluster="h100:8", stack="nemo@24.09", **asked))
    with pytest.raises(ConfigError, match="one kind of chip; leave @26"):
        resolve_mixed(PlanRequest(cluster="h100:8,b200:8", stack="megatron-bridge@26.04", **asked))


def test_a_plan_says_which_recipe_starts_it() -> None:
    request = PlanRequest(
        model="llama3-8b", cluster="h100:8", seq_len=8192, gbs=128, stack="megatron-bridge@26.04"
    )
    best = search_problem(problem_of(request)).plans[0]
    assert best.provenance["started_by"].startswith("megatron-bridge v0.4.0, its recipe of llama3")
    plain = search_problem(problem_of(request.model_copy(update={"stack": "torchtitan"}))).plans[0]
    assert "started_by" not in plain.provenance
