"""The script that reads recipes from a repository, on made-up trees of each form."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from scripts.recipes.bridge import read_recipes
from scripts.recipes.bridge_table import containers, rows_of_release
from scripts.recipes.builtins import COMMON_EXTERNALS
from scripts.recipes.evaluate import Evaluator
from scripts.recipes.trees import Tree, read_tree, release_tags
from scripts.recipes.values import Raised, Record

LIBRARY = {
    "src/megatron/bridge/recipes/toy.py": """
from megatron.bridge import AutoBridge
from megatron.core import DistributedConfig
from megatron.bridge.training.config import ConfigContainer

def toy_pretrain_config(mock=False, **named):
    cfg = ConfigContainer(model=AutoBridge.from_hf("toy").to_provider(), ddp=DistributedConfig())
    cfg.model.seq_length = 2048
    cfg.model.context_parallel_size = 1
    cfg.model.pipeline_model_parallel_layout = [
        ["embedding"] + ["decoder"] * 3, ["decoder"] * 4, ["decoder"] * 4, ["decoder"] * 4, ["loss"]
    ]
    return cfg
""",
    "src/megatron/bridge/training/config.py": """
from dataclasses import dataclass, field
from megatron.core import TrainConfig

@dataclass
class ConfigContainer:
    model: object
    ddp: object
    train: TrainConfig = field(default_factory=TrainConfig)
    comm_overlap: object = None
""",
}
MATRIX = {
    **LIBRARY,
    "scripts/performance/argument_parser.py": """
def parse_cli_args():
    parser = make_parser()
    parser.add_argument("-m", "--model_name", default="other")
    parser.add_argument("--use_tokendrop", type=bool, default=None)
    return parser.parse_known_args()
""",
    "scripts/performance/run_script.py": """
from argument_parser import parse_cli_args
from omegaconf import OmegaConf
from megatron.bridge.recipes.toy import toy_pretrain_config
from megatron.bridge.training.pretrain import pretrain
from utils.helpers import apply

def main():
    args, overrides = parse_cli_args()
    if args.model_name == "toy" and args.model_size == "1b":
        recipe = toy_pretrain_config(mock=True)
    else:
        raise ValueError(f"{args.model_name} not supported")
    if args.use_tokendrop:
        recipe.model.moe_expert_capacity_factor = 1.0
    root = OmegaConf.load(args.config_file)
    apply(recipe, root["perf_matrix"][args.gpu][f"num_gpus_{args.num_gpus}"], args)
    pretrain(config=recipe, forward_step_func=None)
""",
    "scripts/performance/utils/helpers.py": """
from omegaconf import OmegaConf

def apply(recipe, block, args):
    dtype = args.compute_dtype
    dtype = dtype if dtype == "bf16" else f"{dtype}_{args.fp8_recipe}"
    merged = OmegaConf.merge(block["common"], block[dtype] or {})
    held = OmegaConf.to_container(merged, resolve=True)
    recipe.model.tensor_model_parallel_size = held.get("tp", 1)
    recipe.model.pipeline_model_parallel_size = held.get("pp", 1)
    recipe.train.global_batch_size = held["gbs"]
    recipe.train.micro_batch_size = held["mbs"]
    recipe.model.enable_cuda_graph = held.get("cuda_graphs", False)
    layers = held.get("recompute_num_layers", None)
    if layers is not None:
        recipe.model.recompute_granularity = "full"
        recipe.model.recompute_num_layers = layers
""",
    "scripts/performance/configs/toy/toy_1b_llm_pretrain.yaml": """
perf_matrix:
  h100:
    num_gpus_16:
      common: {mbs: 1, gbs: 32, tp: 2, cuda_graphs: true}
      bf16:
      fp8_cs: {tp: 4, recompute_num_layers: 3}
      fp8_ds: {tp: 1}
""",
}
CONSTANTS = {
    **LIBRARY,
    "scripts/performance/argument_parser.py": """
def parse_cli_args():
    parser = make_parser()
    parser.add_argument("--config_variant", type=str, default="v2")
    parser.add_argument("--moe_flex_dispatcher_backend", default=-1)
    return parser
""",
    "scripts/performance/run_script.py": """
from argument_parser import parse_cli_args
from megatron.bridge.training.pretrain import pretrain
from utils.utils import build

def main():
    parser = parse_cli_args()
    args, overrides = parser.parse_known_args()
    words = (args.model_family_name, args.model_recipe_name, args.gpu)
    recipe = build(*words, args.compute_dtype, args.config_variant)
    if args.moe_flex_dispatcher_backend is None:
        recipe.model.moe_token_dispatcher_type = "alltoall"
    pretrain(config=recipe, forward_step_func=None)
""",
    "scripts/performance/utils/utils.py": """
import importlib
from dataclasses import dataclass

@dataclass
class WorkloadBaseConfig:
    num_gpus: int = 1
    tensor_model_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    global_batch_size: int = 1
    moe_flex_dispatcher_backend: str | None = None
    cuda_graph_scope: list | None = None

    @property
    def sequence_parallel(self):
        return self.tensor_model_parallel_size > 1

def build(family, model, gpu, dtype, variant):
    module = importlib.import_module(f"configs.{family}")
    return getattr(module, f"{model}_pretrain_config_{gpu}")(dtype, variant)
""",
    "scripts/performance/configs/toy/__init__.py": """
from .toy_llm_pretrain import *
""",
    "scripts/performance/configs/toy/toy_workload_base_configs.py": """
from dataclasses import replace
from utils.utils import WorkloadBaseConfig

BASE = WorkloadBaseConfig(num_gpus=64, expert_model_parallel_size=8, global_batch_size=256)
TOY_MOE_PRETRAIN_CONFIG_B200_BF16_V1 = replace(BASE, moe_flex_dispatcher_backend="deepep")
TOY_MOE_PRETRAIN_CONFIG_B200_BF16_V2 = replace(
    TOY_MOE_PRETRAIN_CONFIG_B200_BF16_V1, tensor_model_parallel_size=2, cuda_graph_scope=["attn"]
)
TOY_MOE_PRETRAIN_CONFIG_B200_BF16_LARGE_SCALE = replace(
    TOY_MOE_PRETRAIN_CONFIG_B200_BF16_V2, global_batch_size=64
)
TOY_MOE_PRETRAIN_CONFIG_B200_FP8_MX_V1 = BASE
TOY_MOE_PRETRAIN_CONFIG_H100_NVFP4_V1 = BASE
""",
    "scripts/performance/configs/toy/toy_llm_pretrain.py": """
from megatron.bridge.recipes.toy import toy_pretrain_config
from megatron.bridge.training.flex import apply_flex
from . import toy_workload_base_configs as bases

def toy_moe_pretrain_config_b200(precision="bf16", config_variant="v1"):
    name = f"toy_moe_pretrain_config_b200_{precision}_{config_variant}".upper()
    base = getattr(bases, name, None)
    if base is None:
        base = getattr(bases, name.removesuffix("V2") + "V1")
    cfg = toy_pretrain_config()
    cfg.model.sequence_parallel = base.sequence_parallel
    cfg.model.tensor_model_parallel_size = base.tensor_model_parallel_size
    cfg.model.expert_model_parallel_size = base.expert_model_parallel_size
    cfg.train.global_batch_size = base.global_batch_size
    cfg.model.cuda_graph_impl = "transformer_engine" if base.cuda_graph_scope else "none"
    cfg.model.cuda_graph_scope = base.cuda_graph_scope
    apply_flex(cfg.model, base.moe_flex_dispatcher_backend)
    return cfg
""",
    "src/megatron/bridge/models/toy/toy_provider.py": """
class ToyProvider:
    moe_token_dispatcher_type: str = "alltoall"
""",
    "src/megatron/bridge/training/flex.py": """
import torch

def apply_flex(model, backend=None):
    device = torch.cuda.get_device_properties(0)
    if backend != "deepep" or not (device.major in [8, 9] or device.name == "NVIDIA B200"):
        return
    model.moe_token_dispatcher_type = "flex"
    model.moe_flex_dispatcher_backend = backend
""",
}
FUNCTIONS = {
    **LIBRARY,
    "scripts/performance/utils/utils.py": """
_DEFAULT_GPU_COUNT_OVERRIDES = {("toy", "pretrain", "gb200", "fp8mx", None): 8}
""",
    "src/megatron/bridge/perf_recipes/toy/gb200/toy.py": """
from megatron.bridge.perf_recipes.toy.common import ConfigContainer, _large, toy_pretrain_config

def toy_pretrain_8gpu_gb200_fp8mx_config() -> ConfigContainer:
    cfg = toy_pretrain_config()
    cfg.train.global_batch_size = 16
    cfg.model.cuda_graph_impl = "full_iteration"
    return cfg

def toy_pretrain_64gpu_gb200_fp8mx_config() -> ConfigContainer:
    cfg = toy_pretrain_8gpu_gb200_fp8mx_config()
    _large(cfg, tensor=4)
    return cfg

def toy_pretrain_64gpu_gb200_fp8mx_offload_dev_config() -> ConfigContainer:
    cfg = toy_pretrain_64gpu_gb200_fp8mx_config()
    cfg.model.fine_grained_activation_offloading = True
    cfg.model.offload_modules = ["core_attn"]
    cfg.train.global_batch_size *= 2
    return cfg

def toy_peft_8gpu_gb200_bf16_config() -> ConfigContainer:
    cfg = toy_pretrain_config()
    cfg.peft.target_modules = ["linear_qkv", "linear_proj"]
    return cfg
""",
    "src/megatron/bridge/perf_recipes/toy/common.py": """
from megatron.bridge.recipes.toy import toy_pretrain_config
from megatron.bridge.training.config import ConfigContainer

def _large(cfg, *, tensor):
    cfg.model.tensor_model_parallel_size = tensor
""",
}


def rows(tree: Tree) -> dict[tuple[str, str, str, str], dict[str, str]]:
    """The rows by task, precision, variant and number of GPUs; none may be left out."""
    found, failed = read_recipes(tree)
    assert not failed
    made = rows_of_release(found, release="v0.1.0", container="")
    return {(r["task"], r["precision"], r["variant"], r["num_gpus"]): r for r in made}


def test_matrices() -> None:
    found = rows(MATRIX)
    plain = found["pretrain", "bf16", "", "16"]
    assert (plain["model"], plain["gpu"], plain["tp"], plain["gbs"]) == (
        "toy_1b",
        "h100",
        "2",
        "32",
    )
    assert (plain["cuda_graph_impl"], plain["recompute"], plain["seq_len"]) == ("local", "", "2048")
    assert plain["pp_layout"] == "Et*3|(t*4|)*3L"
    scaled = found["pretrain", "fp8", "", "16"]
    assert (scaled["tp"], scaled["recompute"], scaled["recompute_num_layers"]) == ("4", "full", "3")
    delayed = found["pretrain", "fp8", "delayed_scaling", "16"]
    assert (delayed["tp"], delayed["is_default"], scaled["is_default"]) == ("1", "", "1")


def test_constants() -> None:
    found, failed = read_recipes(CONSTANTS)
    table = {
        (r["precision"], r["variant"]): r
        for r in rows_of_release(found, release="v0.3.0", container="26.02")
    }
    wide = table["bf16", "v2"]
    assert (wide["tp"], wide["ep"], wide["dispatcher"]) == ("2", "8", "deepep")
    assert (wide["cuda_graph_impl"], wide["cuda_graph_scope"]) == ("transformer_engine", "attn")
    assert (wide["is_default"], table["bf16", "v1"]["is_default"]) == ("1", "")
    assert table["mxfp8", "v1"]["dispatcher"] == "alltoall", (
        "the provider's, as the recipe has none"
    )
    assert table["mxfp8", "v1"]["is_default"] == "1", "there is no v2"
    assert ("bf16", "large_scale") not in table, "differs from the default in the batch alone"
    assert len(failed) == 1, "no function builds the recipe for H100"
    assert "toy_moe pretrain h100 nvfp4" in failed[0]


def test_functions() -> None:
    found = rows(FUNCTIONS)
    small = found["pretrain", "mxfp8", "", "8"]
    assert (small["cuda_graph_impl"], small["tp"], small["is_default"]) == (
        "full_iteration",
        "",
        "1",
    )
    assert found["pretrain", "mxfp8", "", "64"]["tp"] == "4"
    assert found["pretrain", "mxfp8", "", "64"]["is_default"] == ""
    moved = found["pretrain", "mxfp8", "offload_dev", "64"]
    assert (moved["offload_modules"], moved["gbs"], moved["tp"]) == ("core_attn", "32", "4")
    assert found["lora", "bf16", "", "8"]["lora_targets"] == "linear_qkv linear_proj"


def evaluated(source: str, name: str = "answer") -> object:
    evaluator = Evaluator({"m.py": source}, roots=("",), externals=COMMON_EXTERNALS)
    module = evaluator.module("m")
    assert module is not None
    return evaluator.resolve(module.values[name])


def test_nothing_of_a_source_runs(tmp_path: Path) -> None:
    target = tmp_path / "written"
    evaluated(f"answer = open({str(target)!r}, 'w').write('x')")
    evaluated(f"answer = __import__('pathlib').Path({str(target)!r}).touch()")
    evaluated(f"import os\nanswer = os.mkdir({str(target)!r})")
    evaluated(f"answer = (0).__class__.__base__.__subclasses__()\nx = {str(target)!r}")
    assert not target.exists()


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("answer = [x * 2 for x in range(4) if x % 2]", [2, 6]),
        (
            "def f(a, *b, c=3, **d): return (a, b, c, d)\nanswer = f(1, 2, c=4, e=5)",
            (1, (2,), 4, {"e": 5}),
        ),
        ("answer = {**{'a': 1}, 'b': 2}.get('c', 7)", 7),
        ("from x import y\nanswer = 1 if y.z > 3 else 2", 2),
        ("try:\n    raise ValueError('no')\nexcept ValueError:\n    answer = 5", 5),
        ("a, b = (1, 2)\na += b\nanswer = f'{a}-{b}'", "3-2"),
        ("def f(n): return 0 if n == 0 else n + f(n - 1)\nanswer = f(4)", 10),
    ],
)
def test_what_is_understood(source: str, answer: object) -> None:
    assert evaluated(source) == answer


def test_what_is_not_known_stays_unknown() -> None:
    record = evaluated("from x import Config\nanswer = Config(a=1)\nanswer.b.c = answer.d")
    assert isinstance(record, Record)
    assert record.known["a"] == 1
    assert isinstance(record.known["b"].known["c"], Record)


def test_a_call_that_raises() -> None:
    evaluator = Evaluator({"m.py": "def f(n):\n    raise KeyError(n)"}, roots=("",))
    with pytest.raises(Raised, match="KeyError"):
        evaluator.call(evaluator.member("m", "f"), 1)


def test_containers_are_paired_by_the_newest_page() -> None:
    names = [
        {"name": "0.2.0 (latest) · 26.02.01"},
        {"version": "nightly"},
        {"name": "0.1.0 · 25.09"},
    ]
    trees = {"v0.1.0rc4": {}, "v0.1.1": {}, "v0.2.0": {"docs/versions1.json": json.dumps(names)}}
    assert containers(trees) == {"v0.1.0rc4": "25.09", "v0.1.1": "", "v0.2.0": "26.02.01"}


def test_a_repository_at_its_tags(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "kept").mkdir()
    for tag, text in (("v0.1.0rc1", "a"), ("v0.1.0rc2", "b"), ("v0.2.0rc1", "c"), ("v0.2.0", "d")):
        (tmp_path / "kept" / "one.py").write_text(text)
        (tmp_path / "kept" / "two.bin").write_text(text)
        git("add", "-A")
        git("commit", "-q", "-m", tag)
        git("tag", tag)
    assert release_tags(tmp_path) == ("v0.1.0rc2", "v0.2.0")
    assert read_tree(tmp_path, "v0.1.0rc2", folders=("kept", "absent")) == {"kept/one.py": "b"}
