"""Jobs that the tests of job scripts share."""

from __future__ import annotations

from dataclasses import replace

from meshwright.platforms.job import Job, Mount
from meshwright.software.contract import EnvVar, ExportedFile

NASTY = [
    "two words",
    "it's",
    'say "no"',
    "$HOME",
    "$(id)",
    "`id`",
    "$$",
    "$$(HOME)$",
    "a\nb",
    "trailing\n",
    "\ttab",
    "back\\slash",
    "*?[a-z]{1,2}",
    "!history",
    "#comment",
    "~",
    "",
    "-n",
    "größer ≥ 層 🚀",
    "a;b&c|d<e>f",
    "\x1b[0m\r",
    "END",
    "next\x85line\u2028para\u2029graph\ufeff",
    "\nEND\n",
    "'\"'",
    "%x %j",
]
"""Words that a careless script would break on."""

PROGRAM = (
    *(
        "pretrain_gpt.py",
        "--tensor-model-parallel-size",
        "4",
        "--pipeline-model-parallel-size",
        "2",
        "--bf16",
    ),
    *("--lr", "-1e-4", "--data-path", "30", "/data/my corpus", "70", "/data/$USER's"),
)
ENVIRONMENT = (
    EnvVar(
        name="CUDA_DEVICE_MAX_CONNECTIONS",
        value="1",
        why="communication is launched before the compute that hides it",
    ),
    EnvVar(name="NCCL_DEBUG_FILE", value="/tmp/nccl $(HOME) %h.log", why="where NCCL\n  writes"),
)
SMALL = Job(name="llama3-8b", command=PROGRAM, nodes=1, gpus_per_node=8, environment=ENVIRONMENT)
LARGE = replace(SMALL, name="llama3-70b", nodes=4, time_limit_s=5 * 24 * 3600)
IMAGE = "nvcr.io/nvidia/pytorch:25.04-py3"
PATHS = (
    Mount(source="/lustre/data", target="/data", read_only=True),
    Mount(source="/lustre/out", target="/out"),
)
CLAIMS = (
    Mount(kind="pvc", source="datasets", target="/data"),
    Mount(source="/scratch", target="/out"),
)
INSIDE = replace(LARGE, image=IMAGE, workdir="/opt/Megatron-LM")
ON_KUBERNETES = replace(
    INSIDE, mounts=(*CLAIMS, PATHS[0]), partition="research", instance="p5.48xlarge"
)

FILES = (
    ExportedFile(name="config.toml", text="[job]\nname = 'a $(b) \\' # c'\n"),
    ExportedFile(name="data/blend.txt", text="no last line"),
)
WITH_FILES = replace(
    LARGE,
    command=("-m", "torchtitan.train", "--job.config_file", "config.toml"),
    files=FILES,
    image=IMAGE,
)
"""A program that reads files of the export."""
ON_NODES = replace(LARGE, command=("bash", "run.sh", "--nodes", "4"), runs_on="node")
"""A program that starts its ranks itself."""

JOBS: dict[str, tuple[str, Job]] = {
    "torchrun-small": ("torchrun", SMALL),
    "torchrun-large": (
        "torchrun",
        replace(LARGE, workdir="/opt/my code", log_dir="logs", words=("--max-restarts=1",)),
    ),
    "torchrun-files": ("torchrun", replace(WITH_FILES, image=None)),
    "slurm-small": ("slurm", SMALL),
    "slurm-ranks": (
        "slurm",
        replace(
            LARGE,
            launch="ranks",
            account="team a",
            partition="gpu",
            log_dir="logs",
            words=("--qos=high",),
        ),
    ),
    "slurm-node": ("slurm", ON_NODES),
    "slurm-pyxis": ("slurm", replace(INSIDE, mounts=PATHS, instance="h100&ib")),
    "slurm-files": ("slurm", WITH_FILES),
    "slurm-apptainer-files": ("slurm", replace(WITH_FILES, image="/images/pytorch.sif")),
    "slurm-apptainer": (
        "slurm",
        replace(INSIDE, image="/images/pytorch 25.sif", mounts=PATHS, vendor="AMD"),
    ),
    "k8s-trainjob": ("k8s-trainjob", ON_KUBERNETES),
    "k8s-trainjob-small": ("k8s-trainjob", replace(SMALL, image=IMAGE)),
    "k8s-pytorchjob": ("k8s-pytorchjob", ON_KUBERNETES),
    "k8s-pytorchjob-small": ("k8s-pytorchjob", replace(SMALL, image=IMAGE, vendor="AMD")),
    "k8s-jobset": ("k8s-jobset", ON_KUBERNETES),
    "k8s-jobset-files": ("k8s-jobset", WITH_FILES),
    "k8s-jobset-small": ("k8s-jobset", replace(SMALL, image=IMAGE)),
    "k8s-jobset-node": ("k8s-jobset", replace(ON_NODES, image=IMAGE)),
    "k8s-mpijob": ("k8s-mpijob", ON_KUBERNETES),
    "k8s-mpijob-small": ("k8s-mpijob", replace(SMALL, image=IMAGE)),
    "bcp-small": (
        "bcp",
        replace(
            SMALL,
            image=IMAGE,
            instance="dgxa100.80g.8.norm",
            log_dir="/out",
            time_limit_s=4 * 3600 + 30 * 60,
        ),
    ),
    "bcp-large": (
        "bcp",
        replace(
            INSIDE,
            instance="dgxa100.80g.8.norm",
            account="nemo",
            partition="ace-1",
            mounts=(
                Mount(kind="workspace", source="Ws1", target="/ws"),
                Mount(kind="dataset", source="77", target="/data"),
            ),
            words=("--preempt", "RUNONCE"),
        ),
    ),
    "pai-dlc-quota": (
        "pai-dlc",
        replace(
            INSIDE,
            account="12345",
            partition="quota1abc",
            cpus=96,
            memory="1000Gi",
            shared_memory="256Gi",
            priority="5",
            mounts=(
                Mount(kind="dataset", source="d-77", target="/data", read_only=True),
                Mount(source="oss://b.oss.com/p/", target="/out"),
            ),
        ),
    ),
    "pai-dlc-public": (
        "pai-dlc",
        replace(
            SMALL, image=IMAGE, account="12345", instance="ecs.gn7e-c16g1.16xlarge", time_limit_s=90
        ),
    ),
    "bcprun": ("bcprun", LARGE),
    "bcprun-node": ("bcprun", replace(ON_NODES, time_limit_s=3600)),
    "bcprun-files": ("bcprun", replace(WITH_FILES, image=None)),
    "bcp-port": ("bcp", replace(SMALL, image=IMAGE, instance="dgxa100.80g.8.norm", port=8888)),
    "k8s-jobset-port": ("k8s-jobset", replace(SMALL, image=IMAGE, port=8888)),
    "runai-port": ("runai", replace(SMALL, image=IMAGE, port=8888)),
    "lepton-port": ("lepton", replace(SMALL, image=IMAGE, instance="gpu.8xh100-sxm", port=8888)),
    "sky-port": ("sky", replace(SMALL, instance="H100", port=8888)),
    "bcp-node": ("bcp", replace(ON_NODES, image=IMAGE, instance="dgxa100.80g.8.norm")),
    "runai-small": ("runai", replace(SMALL, image=IMAGE)),
    "runai-large": (
        "runai",
        replace(
            INSIDE, mounts=(*CLAIMS, PATHS[0]), account="team-a", partition="h100", instance="dgx"
        ),
    ),
    "runai-files": ("runai", WITH_FILES),
    "lepton-small": ("lepton", replace(SMALL, image=IMAGE, instance="gpu.8xh100-sxm")),
    "lepton-large": (
        "lepton",
        replace(
            INSIDE,
            instance="gpu.8xh100-sxm",
            partition="my-group",
            mounts=(
                Mount(source="/scratch", target="/out"),
                Mount(kind="node-nfs:shared", source="/data", target="/data"),
            ),
        ),
    ),
    "sky-files": ("sky", replace(WITH_FILES, instance="H100")),
    "sky-small": ("sky", replace(SMALL, instance="H100")),
    "sky-large": (
        "sky",
        replace(
            INSIDE,
            instance="H100",
            partition="aws/us-east-1",
            mounts=(
                Mount(source="s3://corpora", target="/data"),
                Mount(source="./configs", target="/configs"),
            ),
        ),
    ),
}
"""Each platform, with little and with much said."""
