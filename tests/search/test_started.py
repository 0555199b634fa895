"""A release of a training software starts a model by its own recipe."""

from __future__ import annotations

from typing import Any

import pytest

from meshwright.api import problem_of
from meshwright.search.mixed.problem import resolve_mixed
from meshwright.search.plan import search_problem
from meshwright.search.request import PlanRequest
from meshwright.search.started import Started, started
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import find_chip
from meshwright.values.models.catalogue import find_model
from meshwright.values.recipes import Task
from meshwright.values.stack import find_stack
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


def test_another_model_starts_as_the_nearest_of_its_kind() -> None:
    """mixtral-8x7b activates 13 B: gpt-oss, qwen3 or DeepSeek stand nearest, no dense model."""
    experts = start("26.04", "mixtral-8x7b", "gb300", "bf16")
    assert "as its recipe of" in experts.words
    assert find_model(experts.words.split(" of ")[1].split(" on ")[0]).moe is not None
    dense = start("26.04", "llama2-70b", "gb300", "bf16")
    assert "as its recipe of llama3-70b on gb300 in bf16" in dense.words


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
    with pytest.raises(ConfigError, match="alone have recipes; leave @24"):
        problem_of(PlanRequest(cluster="h100:8", stack="nemo@24.09", **asked))
    with pytest.raises(ConfigError, match="one kind of chip; leave @26"):
        resolve_mixed(PlanRequest(cluster="h100:8,b200:8", stack="megatron-bridge@26.04", **asked))


def test_a_plan_says_which_recipe_starts_it() -> None:
    request = PlanRequest(
        model="llama3-8b", cluster="h100:8", seq_len=8192, gbs=128, stack="megatron-bridge@26.04"
    )
    best = search_problem(problem_of(request)).plans[0]
    assert best.provenance["started_by"].startswith("megatron-bridge v0.4.0, its recipe of llama3")
    plain = search_problem(problem_of(request.model_copy(update={"stack": "nemo"}))).plans[0]
    assert "started_by" not in plain.provenance
