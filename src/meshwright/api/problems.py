"""Requests with the names looked up and the files read that they name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.platforms.files import read_input
from meshwright.values.errors import ConfigError

if TYPE_CHECKING:
    from meshwright.search.mixed.problem import MixedProblem
    from meshwright.search.problem import Files, Problem
    from meshwright.search.request import PlanRequest
    from meshwright.trust.calibration import Calibration

__all__ = [
    "cluster_file_of",
    "files_of",
    "mixed_problem_of",
    "one_request",
    "problem_of",
    "read_calibration",
    "read_text",
    "request_fields",
]


def one_request(
    name: str, asked: PlanRequest | str | None, cluster: str | None, fields: Mapping[str, Any]
) -> PlanRequest:
    """Return what a function `name` was asked: a request, or a model, a cluster and fields."""
    from meshwright.search.request import PlanRequest

    if isinstance(asked, PlanRequest) and not fields and cluster is None:
        return asked
    return PlanRequest.of(request_fields(name, asked, cluster, fields))


def request_fields(
    name: str, asked: PlanRequest | str | None, cluster: str | None, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of what was asked, with `seq` by its name `seq_len`; ConfigError for
    anything given twice."""
    named = {"model": asked, "cluster": cluster}
    given = {key: value for key, value in named.items() if value is not None}
    if asked is not None and not isinstance(asked, str):
        if fields or cluster is not None:
            more = [*fields, *(["cluster"] if cluster is not None else [])]
            raise ConfigError(f"{name}: give a request or fields ({', '.join(more)}), not both")
        return asked.to_dict()
    if twice := given.keys() & fields.keys():
        raise ConfigError(f"{name}: {', '.join(sorted(twice))} is given twice")
    if "seq" in fields and "seq_len" in fields:
        raise ConfigError(f"{name}: seq and seq_len are one; give either")
    return given | {"seq_len" if key == "seq" else key: value for key, value in fields.items()}


def problem_of(request: PlanRequest) -> Problem:
    """Return a request with its names looked up and its files read."""
    from meshwright.search.problem import resolve

    return resolve(request, files=files_of(request))


def mixed_problem_of(request: PlanRequest) -> MixedProblem | None:
    """Return a request over several kinds of chips, or of chips that may idle, with its names
    looked up; None for any other."""
    from meshwright.search.mixed.problem import is_mixed, resolve_mixed

    known = cluster_file_of(request)
    return resolve_mixed(request, files=known) if is_mixed(request, files=known) else None


def read_text(path: Path, what: str) -> str:
    """Return what a file holds; ConfigError for one that can't be read, or is no text."""
    try:
        return read_input(path).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a text in UTF-8"
        raise ConfigError(f"{what}: {reason}") from None


def read_calibration(path: str | Path) -> Calibration:
    """Return what `meshwright calibrate` wrote."""
    from meshwright.trust.calibration_file import parse_calibration

    what = f"calibration {str(path)!r}"
    return parse_calibration(read_text(Path(path), what), source=what)


def files_of(request: PlanRequest) -> Files:
    """Return what a request's files hold, and what this machine is where its cluster is `local`."""
    from meshwright.platforms.given import cluster_from_flag, load_profile
    from meshwright.search.problem import Files
    from meshwright.values.hardware.parse import LOCAL

    is_local = request.cluster.strip().lower() == LOCAL
    return Files(
        calibration=None if request.calibration is None else read_calibration(request.calibration),
        profile=None if request.profile is None else load_profile(Path(request.profile)),
        cluster=(
            cluster_from_flag(LOCAL, gpus_per_node=request.gpus_per_node)
            if is_local and request.profile is None
            else cluster_file_of(request).cluster
        ),
    )


def cluster_file_of(request: PlanRequest) -> Files:
    """Return what the request's cluster file holds, and nothing where the short form says all."""
    from meshwright.platforms.given import load_cluster
    from meshwright.search.problem import Files
    from meshwright.values.hardware.parse import is_cluster_file

    if not is_cluster_file(request.cluster):
        return Files()
    return Files(cluster=load_cluster(request.cluster, gpus_per_node=request.gpus_per_node))
