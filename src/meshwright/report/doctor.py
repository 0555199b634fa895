"""What this installation and this machine have; slow programs are waited for together."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import yaml

from meshwright import __version__
from meshwright.platforms.given import cluster_of_listing
from meshwright.trust.calibration import Calibration, check_profile
from meshwright.values.errors import ConfigError, install_words
from meshwright.values.hardware.profile import Profile
from meshwright.values.hardware.profile_chip import profile_words
from meshwright.values.units import counted

__all__ = [
    "PATIENCE_S",
    "Finding",
    "Health",
    "Requirement",
    "Room",
    "State",
    "calibration_finding",
    "examine",
    "gpu_finding",
    "health_lines",
    "installed_version",
    "kubernetes_finding",
    "ngc_finding",
    "package_findings",
    "profile_finding",
    "read_requirement",
    "slurm_finding",
    "torch_finding",
]

State = Literal["ok", "absent", "broken"]
"""`absent` is a part that the user may not need; `broken` is one that is here and does not work."""
Room = Literal["software", "extras", "machine", "launchers", "own figures"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing, how it is, and what to do where it is not well."""

    room: Room
    name: str
    state: State
    words: str
    """What is there, in a phrase or a sentence."""
    remedy: str | None = None
    """A command or a sentence that mends it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Health:
    """Everything that was looked at."""

    findings: tuple[Finding, ...]

    @property
    def broken(self) -> tuple[Finding, ...]:
        """What is here and does not work."""
        return tuple(finding for finding in self.findings if finding.state == "broken")

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "healthy": not self.broken,
            "findings": [asdict(finding) for finding in self.findings],
        }


@dataclass(frozen=True, slots=True)
class _Part:
    """One thing that is looked at, and what may be found of it."""

    room: Room
    name: str

    def ok(self, words: str) -> Finding:
        return Finding(room=self.room, name=self.name, state="ok", words=words)

    def absent(self, words: str, remedy: str | None = None) -> Finding:
        return replace(self.ok(words), state="absent", remedy=remedy)

    def broken(self, words: str, remedy: str | None = None) -> Finding:
        return replace(self.ok(words), state="broken", remedy=remedy)


_NO_CALIBRATION = (
    "none given: predictions stand on the package's figures; --calibration FILE takes what"
    " `meshwright calibrate` wrote"
)
_NO_PROFILE = (
    "none given: operators stand on the package's tables; --profile FILE takes what `meshwright"
    " profile` wrote"
)


def calibration_finding(fitted: Calibration | None, measured: Profile | None) -> Finding:
    """Return what a calibration was fitted on, and whether it goes with the profile."""
    part = _Part("own figures", "calibration")
    if fitted is None:
        return part.absent(_NO_CALIBRATION)
    fit = f"{counted(len(fitted.runs), 'run')}, {counted(len(fitted.factors), 'factor')}"
    words = f"{fitted.chip}, stack {fitted.stack}, {fit}, by meshwright {fitted.version}"
    try:
        check_profile(fitted, profile="" if measured is None else profile_words(measured.machine))
    except ConfigError as error:
        return part.broken(str(error))
    if fitted.version not in ("", __version__):
        remedy = (
            f"its factors multiply the constants of {fitted.version}, and this is {__version__}:"
            " fit it again with meshwright calibrate"
        )
        return part.broken(words, remedy)
    return part.ok(words)


def profile_finding(measured: Profile | None) -> Finding:
    """Return what a profile was measured on, and whether it is complete."""
    part = _Part("own figures", "profile")
    if measured is None:
        return part.absent(_NO_PROFILE)
    words = f"{profile_words(measured.machine)}, {measured.num_measured} shapes"
    if not measured.complete:
        return part.broken(
            f"{words}; partial", "the same `meshwright profile` again measures the rest"
        )
    return part.ok(words)


_NO_EXTRAS = "no record of an installation names them, so nobody can say what they lack"
_LINE = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)\s*(?:>=\s*(?P<least>[0-9][0-9.]*))?[^;]*(?:;(?P<marker>.*))?$"
)
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_BELOW = re.compile(r"python_version\s*<\s*['\"]([0-9.]+)['\"]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Requirement:
    """One line of what the distribution requires."""

    name: str
    least: str | None
    """Version from which on it does."""
    extra: str | None
    """None is the core."""
    applies: bool
    """Whether this version of Python needs it."""


def read_requirement(line: str) -> Requirement:
    """Read `torch>=2.5; extra == 'train'`, the form that this package's own requirements have."""
    match = _LINE.match(line.strip())
    assert match is not None, f"requirement {line!r}"
    marker = match["marker"] or ""
    extra, below = _EXTRA.search(marker), _BELOW.search(marker)
    return Requirement(
        name=match["name"],
        least=match["least"],
        extra=None if extra is None else extra[1],
        applies=below is None or sys.version_info[:2] < tuple(_numbers(below[1])),
    )


def package_findings(
    lines: Iterable[str] | None, *, version_of: Callable[[str], str | None] | None = None
) -> list[Finding]:
    """Return versions of Python, the package and what `lines`, or the installation, require."""
    look = version_of or installed_version
    named = lines if lines is not None else _own_lines()
    found = [read_requirement(line) for line in named or ()]
    required = [requirement for requirement in found if requirement.applies]
    python = f"{platform.python_version()} on {platform.platform(terse=True)}"
    findings = [
        _Part("software", "meshwright").ok(__version__),
        _Part("software", "python").ok(python),
        *(_core_finding(one, look(one.name)) for one in required if one.extra is None),
    ]
    extras = dict.fromkeys(one.extra for one in found if one.extra is not None)
    for extra in extras:
        findings.append(_extra_finding(extra, [r for r in required if r.extra == extra], look))
    if not extras:
        findings.append(_Part("extras", "extras").absent(_NO_EXTRAS, "pip install ."))
    return findings


def _own_lines() -> list[str] | None:
    try:
        return importlib.metadata.requires("meshwright") or []
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_version(name: str) -> str | None:
    """Return the version of an installed package, None where it is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _core_finding(requirement: Requirement, version: str | None) -> Finding:
    part = _Part("software", requirement.name)
    least = "" if requirement.least is None else f">={requirement.least}"
    line = f"pip install '{requirement.name}{least}'"
    if version is None:
        return part.broken("is not installed, and every command needs it", line)
    if _is_older(version, requirement.least):
        words = f"{version} is older than the {requirement.least} that is needed"
        return part.broken(words, line)
    return part.ok(version)


def _extra_finding(
    extra: str, requirements: list[Requirement], look: Callable[[str], str | None]
) -> Finding:
    part = _Part("extras", extra)
    versions = {requirement.name: look(requirement.name) for requirement in requirements}
    missing = [name for name, version in versions.items() if version is None]
    needed = {requirement.name: requirement.least for requirement in requirements}
    present = {name: version for name, version in versions.items() if version is not None}
    old = [
        f"{name} {version} is older than {needed[name]}"
        for name, version in present.items()
        if _is_older(version, needed[name])
    ]
    remedy = install_words(extra)
    if old:
        return part.broken("; ".join(old), remedy)
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        return part.absent(f"{', '.join(missing)} {verb} not installed", remedy)
    return part.ok(", ".join(f"{name} {version}" for name, version in versions.items()))


def _is_older(version: str, least: str | None) -> bool:
    return least is not None and _numbers(version) < _numbers(least)


def _numbers(version: str) -> list[int]:
    """The release of a version, `2.13.0+cpu` as [2, 13, 0]; trailing zeros count for nothing."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    numbers = [int(word) for word in match[0].split(".")] if match else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers


PATIENCE_S = 5.0
"""Programs that are well answer within a second."""
_SLURM = ("sbatch", "squeue", "scancel", "scontrol")
_NO_CONFIGURATION = "Could not establish a configuration source"
"""Slurm's own words where there is neither a slurm.conf nor a server of one."""
_NO_GPU = (
    "no nvidia-smi here, so no accelerator was found; plans name a cluster such as h100:8, and tune"
    " runs on this machine's cores"
)
_CLIENT_LINE = install_words("k8s")


def gpu_finding() -> Finding:
    """Return the GPUs that nvidia-smi lists, and whether the catalogue knows them."""
    part = _Part("machine", "gpus")
    if shutil.which("nvidia-smi") is None:
        return part.absent(_NO_GPU)
    said, failure = _ask("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    if said is None:
        words, remedy = (
            f"nvidia-smi {failure}",
            "look at the driver: nvidia-smi must list the GPUs before anything can use them",
        )
        return part.broken(words, remedy)
    rows = [line.rsplit(",", 1) for line in said.splitlines() if line.strip()]
    names = [row[0].strip() for row in rows]
    listed = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    driver = rows[0][1].strip() if rows and len(rows[0]) == 2 else "unknown"
    try:
        cluster = cluster_of_listing("\n".join(names))
    except ConfigError as error:
        return part.broken(f"{listed or 'none'}: {error}")
    kinds = ", ".join(f"{pool.node.chip.name}:{pool.num_chips}" for pool in cluster.pools)
    return part.ok(f"{listed}, driver {driver}; --cluster local is {kinds}")


def torch_finding(version: str | None, *, gpus: Finding) -> Finding | None:
    """Return whether torch can use the GPUs that are here; None without GPUs or torch."""
    part = _Part("machine", "torch")
    if version is None or gpus.state != "ok":
        return None
    if version.endswith("+cpu"):
        words = f"{version} is a build for processors, and trains and profiles on none of the GPUs"
        remedy = "pip uninstall torch, then install the build for CUDA (pytorch.org/get-started)"
        return part.broken(words, remedy)
    return part.ok(version)


def slurm_finding() -> Finding:
    """Return whether Slurm's commands are here and its controller answers."""
    part = _Part("launchers", "slurm")
    missing = [program for program in _SLURM if shutil.which(program) is None]
    if len(missing) == len(_SLURM):
        return part.absent("sbatch is not on the PATH; --launcher slurm needs a login node")
    if missing:
        return part.broken(f"{', '.join(missing)} not on the PATH, though others of Slurm are")
    said, failure = _ask("scontrol", "ping")
    if said is None and _NO_CONFIGURATION in failure:
        words = (
            "its commands are here, and no cluster is configured for them (no slurm.conf);"
            " --launcher slurm needs one"
        )
        return part.absent(words)
    version, _ = _ask("sbatch", "--version")
    name = (version or "slurm of an unknown version").strip()
    if said is None:
        return part.broken(f"{name}, but its controller does not answer: scontrol ping {failure}")
    return part.ok(f"{name}; {' '.join(said.split())}")


def kubernetes_finding(
    *, client_version: str | None, environ: Any = os.environ, home: Path | None = None
) -> Finding:
    """Return which cluster the client's configuration names; the cluster itself is not asked."""
    part = _Part("launchers", "kubernetes")
    paths = [Path(word) for word in environ.get("KUBECONFIG", "").split(os.pathsep) if word] or [
        (home or Path.home()) / ".kube" / "config"
    ]
    inside = "KUBERNETES_SERVICE_HOST" in environ
    path = next((path for path in paths if path.is_file()), None)
    if path is None and not inside:
        words = f"no configuration at {paths[0]}; --launcher k8s needs one"
        return part.absent(words)
    where, failure = ("inside a pod", None) if path is None else _context_of(path)
    if failure is not None:
        return part.broken(failure)
    if client_version is None:
        words = f"{where}, but its Python client is not installed"
        return part.absent(words, _CLIENT_LINE)
    return part.ok(f"{where}, client {client_version}; not asked whether it answers")


def _context_of(path: Path) -> tuple[str, str | None]:
    """The current context of a configuration, or what is wrong with the file."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        return "", f"{path} can't be read: {' '.join(str(error).split())}"
    context = found.get("current-context") if isinstance(found, dict) else None
    if not context:
        return "", f"{path} names no current context: kubectl config use-context NAME chooses one"
    return f"context {context} of {path}", None


def ngc_finding() -> Finding:
    """Return the version of NGC CLI, which starts jobs on Base Command."""
    part = _Part("launchers", "base command")
    if shutil.which("ngc") is None:
        return part.absent("ngc is not on the PATH; --launcher bcp needs NGC CLI")
    said, failure = _ask("ngc", "--version")
    if said is None:
        return part.broken(f"ngc --version {failure}")
    return part.ok(" ".join(said.split()))


def _ask(*words: str) -> tuple[str | None, str]:
    """What a program said, or None and why it said nothing."""
    try:
        answer = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            stdin=subprocess.DEVNULL,
            check=False,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return None, f"gave no answer in {PATIENCE_S:.0f} s"
    except OSError as error:
        return None, f"can't be started: {error.strerror or error}"
    if answer.returncode != 0:
        return None, f"ended with {answer.returncode}{_last_line(answer.stderr or answer.stdout)}"
    return str(answer.stdout), ""


def _last_line(text: str) -> str:
    lines: Sequence[str] = [line.strip() for line in text.splitlines() if line.strip()]
    return f": {lines[-1]}" if lines else ""


def examine(*, calibration: Calibration | None = None, profile: Profile | None = None) -> Health:
    """Return what this installation and this machine have."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        asked = [
            pool.submit(look) for look in (gpu_finding, slurm_finding, _kubernetes, ngc_finding)
        ]
        packages = package_findings(None)
        found = [future.result() for future in asked]
    torch = torch_finding(installed_version("torch"), gpus=found[0])
    machine = [found[0], *([torch] if torch is not None else []), *found[1:]]
    return Health(
        findings=(
            *packages,
            *machine,
            calibration_finding(calibration, profile),
            profile_finding(profile),
        )
    )


def _kubernetes() -> Finding:
    return kubernetes_finding(client_version=installed_version("kubernetes"))


_MARKS = {"ok": "ok", "absent": "-", "broken": "BROKEN"}
INDENT = 24
"""Letters before the words of a finding."""


def health_lines(found: Health) -> list[str]:
    """Return a paragraph per room, and a sentence that sums up."""
    lines: list[str] = []
    for room, findings in groupby(found.findings, key=lambda finding: finding.room):
        lines += [room, *(_line(finding) for finding in findings), ""]
    return [*lines, _summary(found)]


def _line(finding: Finding) -> str:
    remedy = "" if finding.remedy is None else f": {finding.remedy}"
    return f"  {finding.name:<12}  {_MARKS[finding.state]:<8}{finding.words}{remedy}"


def _summary(found: Health) -> str:
    if not found.broken:
        return (
            "nothing is broken; what has a - is not here, and only the commands that name it"
            " need it"
        )
    names = ", ".join(finding.name for finding in found.broken)
    return f"broken: {names}"
