"""`--cluster`: the short form, a file, or `local`, which is this machine."""

from __future__ import annotations

import shutil
import subprocess

from meshwright.values.errors import ConfigError
from meshwright.values.hardware.catalogue import default_node
from meshwright.values.hardware.cluster import Cluster, Pool
from meshwright.values.hardware.parse import LOCAL, load_cluster

__all__ = [
    "LOCAL",
    "cluster_from_flag",
    "cluster_of_listing",
    "find_local_cluster",
    "local_cluster",
]

_QUERY = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
_NO_GPU = (
    "cluster 'local': no nvidia-smi here, so no accelerator was found; name a cluster such as"
    " h100:8, or plan for this processor: `meshwright profile -o here.npz` measures it, then add"
    " --profile here.npz --precision fp32"
)
_SECONDS = 20.0
"""nvidia-smi answers within a second; one that hangs is a broken driver."""


def cluster_from_flag(text: str, *, gpus_per_node: int | None = None) -> Cluster:
    """Read the value of `--cluster`."""
    if text.strip().lower() != LOCAL:
        return load_cluster(text, gpus_per_node=gpus_per_node)
    if gpus_per_node is not None:
        raise ConfigError(
            "--gpus-per-node has no effect with --cluster local, which is what this machine holds;"
            " drop one of them"
        )
    return local_cluster()


def local_cluster() -> Cluster:
    """Return this machine's accelerators as a cluster of one node; ConfigError where it has
    none."""
    try:
        answer = subprocess.run(
            _QUERY,
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        raise ConfigError(_NO_GPU) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"cluster 'local': nvidia-smi failed ({error}); name a cluster such as h100:8"
        ) from None
    return cluster_of_listing(answer.stdout)


def find_local_cluster() -> Cluster | None:
    """Return this machine's accelerators, or None where there is no nvidia-smi that could know of
    any."""
    return None if shutil.which(_QUERY[0]) is None else local_cluster()


def cluster_of_listing(listing: str) -> Cluster:
    """Make a cluster of nvidia-smi's answer, one GPU's name a line."""
    counts: dict[str, int] = {}
    for line in listing.splitlines():
        if line.strip():
            counts[line.strip()] = counts.get(line.strip(), 0) + 1
    if not counts:
        raise ConfigError("cluster 'local': nvidia-smi lists no GPU; name a cluster such as h100:8")
    return Cluster(
        pools=tuple(
            Pool(node=default_node(name, gpus_per_node=n), num_chips=n)
            for name, n in counts.items()
        )
    )
