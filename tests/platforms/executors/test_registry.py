from __future__ import annotations

import pytest

from meshwright.platforms.registry import executor, find_runner, runners
from meshwright.values.errors import ConfigError, UnknownNameError


@pytest.mark.parametrize("name", runners())
def test_each_executor_by_its_name(name: str) -> None:
    assert executor(name).name == name


def test_options_reach_the_executor() -> None:
    assert executor("slurm", account="team").options.account == "team"  # type: ignore[attr-defined]


def test_an_unknown_launcher() -> None:
    with pytest.raises(
        UnknownNameError, match="'slrum' is no known launcher; did you mean 'slurm'"
    ):
        executor("slrum")


@pytest.mark.parametrize("name", runners())
def test_an_unknown_option(name: str) -> None:
    near = find_runner(name).option_names[0]
    with pytest.raises(
        UnknownNameError,
        match=f"'{near}s' is no known option of the launcher {name}; did you mean '{near}'",
    ):
        executor(name, **{f"{near}s": 1})


@pytest.mark.parametrize(
    ("name", "options"),
    [("local", {"cores": 0}), ("local", {"stop_grace_s": -1}), ("slurm", {"array_at_once": 0})],
)
def test_a_broken_option(name: str, options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        executor(name, **options)
