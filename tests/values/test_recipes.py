"""Recipes of Megatron-Bridge, against its repository read by hand."""

from __future__ import annotations

import pytest

from meshwright.values.errors import ConfigError
from meshwright.values.recipes import Recipe, find_recipe, recipes, releases
from meshwright.values.workload import Precision


def deepseek(release: str, gpu: str, precision: Precision = "bf16") -> Recipe:
    found = find_recipe(release=release, model="deepseek-v3", gpu=gpu, precision=precision)
    assert found is not None
    return found


def test_deepseek_on_gb200_in_v040() -> None:
    # scripts/performance/configs/deepseek/deepseek_workload_base_configs.py, GB200_BF16_V2
    found = deepseek("v0.4.0", "gb200")
    assert (found.pp, found.vpp, found.ep, found.etp, found.gbs) == (4, 4, 64, 1, 4096)
    assert (found.dispatcher, found.a2a_overlap) == ("hybridep", False)
    assert found.cuda_graph_impl == "transformer_engine"
    assert found.cuda_graph_scope == ("attn", "moe_router", "moe_preprocess")
    assert (found.recompute, found.recompute_modules) == ("selective", ("mla_up_proj",))
    # set_deepseek_v3_pipeline_model_parallel_layout for pp 4 and vpp 4
    assert found.pp_layout == "Et*4|(t*4|)*14tmL"
    # set_deepseek_v3_common_configs
    assert (found.seq_len, found.router_fusion, found.grad_reduce_in_fp32) == (4096, True, False)
    assert (found.variant, found.container) == ("v2", "26.04")


def test_dispatchers_that_a_gpu_lacks_are_not_taken() -> None:
    """v0.2.0 has HybridEP for NVL72 alone, and DeepEP for H100; its B200 recipe names neither."""
    assert deepseek("0.2.0", "gb200").dispatcher == "hybridep"
    assert deepseek("0.2.0", "h100").dispatcher == "deepep"
    assert deepseek("0.2.0", "h100").a2a_overlap
    assert deepseek("0.2.0", "b200").dispatcher == "alltoall"
    assert deepseek("0.3.0", "b200").dispatcher == "hybridep"


def test_v010_drops_tokens_of_deepseek_on_b200() -> None:
    """use_tokendrop of scripts/performance/run_script.py."""
    found = deepseek("25.09", "b200", "mxfp8")
    assert (found.dispatcher, found.expert_capacity_factor) == ("alltoall", 1.0)
    assert deepseek("25.09", "h100", "fp8").expert_capacity_factor is None


def test_v010_matrix_of_llama() -> None:
    """configs/llama3/llama3_70b_llm_pretrain.yaml: B200, fp8_cs."""
    found = find_recipe(release="v0.1.0", model="llama3-70b", gpu="b200", precision="fp8")
    assert found is not None
    assert (found.tp, found.pp, found.megatron_fsdp) == (1, 1, True)
    assert (found.recompute, found.recompute_num_layers) == ("full", 5)
    graphs = find_recipe(release="v0.1.0", model="llama3-70b", gpu="b200", precision="bf16")
    assert graphs is not None
    assert (graphs.cuda_graph_impl, graphs.tp_comm_overlap) == ("local", True)


def test_v060_functions() -> None:
    """perf_recipes/deepseek/gb200/deepseek_v3.py with _enable_deepseek_full_iteration_mxfp8."""
    found = deepseek("26.08", "gb200", "mxfp8")
    assert (found.release, found.cuda_graph_impl) == ("v0.6.0", "full_iteration")
    assert (found.a2a_overlap, found.op_fuser, found.dispatcher) == (True, True, "hybridep")


def test_lora_targets() -> None:
    """llama3_llm_finetune.py gives LoRA to the first product of attention alone."""
    found = find_recipe(
        release="26.04", model="llama3_70b", gpu="gb200", precision="bf16", task="lora"
    )
    assert found is not None
    assert (found.lora_targets, found.seq_len) == (("linear_qkv",), 2048)


def test_a_number_of_gpus_picks_its_recipe() -> None:
    """v0.6.0 has Llama 3 8B on GB200 for 8 GPUs, its default, and for 128."""
    for wanted, num_gpus in ((None, 8), (8, 8), (512, 8)):
        found = find_recipe(
            release="0.6.0", model="llama3-8b", gpu="gb200", precision="bf16", num_gpus=wanted
        )
        assert found is not None
        assert found.num_gpus == num_gpus


@pytest.mark.parametrize(
    ("asked", "release"),
    [
        ("26.02", "v0.3.0"),
        ("26.02.01", "v0.3.1"),
        ("0.3", "v0.3.0"),
        ("0.3.1", "v0.3.1"),
        ("0.4.1", "v0.4.0"),
    ],
)
def test_releases_by_either_name(asked: str, release: str) -> None:
    # v0.3.1 changed how this model's stages are cut: its line is its own
    found = find_recipe(release=asked, model="qwen3-30b-a3b", gpu="h100", precision="bf16")
    assert found is not None
    assert found.release == release


def test_an_older_release_fills_in() -> None:
    """v0.4.2 left DeepSeek on GB200 as v0.4.0 has it."""
    assert deepseek("0.4.2", "gb200").release == "v0.4.0"
    assert deepseek("0.4.2", "b300").release == "v0.4.2"


def test_what_no_release_has() -> None:
    assert find_recipe(release="0.1", model="kimi-k2", gpu="gb200", precision="bf16") is None
    assert find_recipe(release="25.01", model="llama3-70b", gpu="h100", precision="bf16") is None
    with pytest.raises(ConfigError, match="expected a version"):
        find_recipe(release="newest", model="llama3-70b", gpu="h100", precision="bf16")


def test_every_recipe_has_one_default() -> None:
    seen: set[tuple[str, ...]] = set()
    for recipe in recipes():
        key = (recipe.release, recipe.model, recipe.task, recipe.gpu, recipe.precision)
        assert not (recipe.is_default and key in seen), key
        if recipe.is_default:
            seen.add(key)
    assert list(releases()) == sorted(releases())


def test_layouts_multiply_to_their_gpus() -> None:
    for recipe in recipes():
        replica = recipe.tp * recipe.pp * recipe.cp
        assert recipe.num_gpus % replica == 0, recipe
        assert recipe.gbs % recipe.mbs == 0, recipe
        assert (recipe.dispatcher is None) <= (recipe.ep == 1), recipe
