"""What a request names and the machine holds: a cluster (its file, or `local`, which is this
machine), a profile, a model's config.json."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from meshwright.platforms.files import read_input
from meshwright.values.errors import ConfigError, UnknownNameError
from meshwright.values.hardware.catalogue import default_node
from meshwright.values.hardware.cluster import Cluster, Pool
from meshwright.values.hardware.parse import LOCAL, is_cluster_file, parse_cluster
from meshwright.values.hardware.profile import Profile, profile_from_bytes
from meshwright.values.models.catalogue import find_preset
from meshwright.values.models.huggingface import HfReading, hf_reading
from meshwright.values.models.said_size import model_notes

__all__ = [
    "LOCAL",
    "ask_nvidia_smi",
    "cluster_from_flag",
    "cluster_of_listing",
    "find_local_cluster",
    "load_cluster",
    "load_profile",
    "local_cluster",
    "read_hf_config",
]

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


def load_cluster(text_or_path: str | Path, *, gpus_per_node: int | None = None) -> Cluster:
    """Read a cluster file where the text ends in .yaml or .yml, else the short form."""
    text = str(text_or_path)
    if not is_cluster_file(text):
        return parse_cluster(text, gpus_per_node=gpus_per_node)
    from meshwright.values.hardware.cluster_file import read_cluster

    try:
        content = read_input(Path(text)).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text in UTF-8"
        raise ConfigError(
            f"cluster file {text!r}: {reason}; give a YAML file, or the short form such as h100:256"
        ) from None
    return read_cluster(content, source=text, gpus_per_node=gpus_per_node)


def local_cluster() -> Cluster:
    """Return this machine's accelerators as one node; ConfigError where it has none."""
    try:
        listing = ask_nvidia_smi("name")
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"cluster 'local': nvidia-smi failed ({error}); name a cluster such as h100:8"
        ) from None
    if listing is None:
        raise ConfigError(_NO_GPU)
    return cluster_of_listing(listing)


def ask_nvidia_smi(fields: str, *, form: str = "csv,noheader") -> str | None:
    """Return what nvidia-smi says of each GPU, one a line; None where there is no nvidia-smi.

    Raises OSError or SubprocessError where it fails.
    """
    words = ["nvidia-smi", f"--query-gpu={fields}", f"--format={form}"]
    try:
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=True,
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        ).stdout
    except FileNotFoundError:
        return None


def find_local_cluster() -> Cluster | None:
    """Return this machine's accelerators, or None where there is no nvidia-smi."""
    return None if shutil.which("nvidia-smi") is None else local_cluster()


def cluster_of_listing(listing: str) -> Cluster:
    """Make a cluster of nvidia-smi's answer, one GPU's name a line."""
    counts = Counter(line.strip() for line in listing.splitlines() if line.strip())
    if not counts:
        raise ConfigError("cluster 'local': nvidia-smi lists no GPU; name a cluster such as h100:8")
    pools = (
        Pool(node=default_node(name, gpus_per_node=n), num_chips=n) for name, n in counts.items()
    )
    return Cluster(pools=tuple(pools))


def load_profile(path: Path, /) -> Profile:
    """Read a profile's file; ConfigError where it is absent or broken."""
    try:
        content = read_input(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: {error.strerror or error}; `meshwright profile -o {path}` writes it"
        ) from None
    return profile_from_bytes(content, source=str(path))


_TAKES = "--hf takes a config.json, or the folder that holds one"


def read_hf_config(path: Path, *, name: str | None = None) -> HfReading:
    """Read a config.json, or a folder's; the folder names the model unless `name` does. Where no
    file is, a known model's name does as well: `Qwen/Qwen3-8B`."""
    if not path.exists() and path.suffix != ".json":
        return _known_by_name(path)
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(read_input(file).decode("utf-8"))
    except FileNotFoundError as error:
        raise ConfigError(f"{file}: no such file; {_TAKES}") from error
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{file}: no JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from error
    except (ValueError, RecursionError) as error:
        # Not UTF-8, a number of thousands of digits, or brackets without end.
        raise ConfigError(f"{file}: no JSON: {str(error)[:80]}") from error
    if isinstance(config, dict) and not config:
        raise ConfigError(f"{file}: missing model_type; expected a config.json of Hugging Face")
    stem = file.resolve().parent.name if file.name == "config.json" else file.stem
    return hf_reading(config, name=name or stem or "model")


def _known_by_name(path: Path) -> HfReading:
    """Return the catalogue's model of that name; else say what to type, as the hub may have it."""
    name = str(path)
    try:
        preset = find_preset(name)
    except UnknownNameError as error:
        is_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None
        fetch = f"fetch it first: hf download {name} config.json --local-dir ."
        how = fetch if is_hub else _TAKES
        raise ConfigError(f"{name}: no file here, and {error}; {how}") from None
    said = f"{name}: no file here; the shape is {preset.spec.name}'s of `meshwright models`"
    return HfReading(spec=preset.spec, notes=(said, *model_notes(preset.spec)))
