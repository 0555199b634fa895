"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]

# Wall-clock deadlines say more about the machine's other work than about the code under test.
settings.register_profile("meshwright", deadline=None)
settings.load_profile("meshwright")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first: a process takes a whole file, and none should be left with a
    long one at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)


class _Failures:
    """Says each failing test's name when it fails, since -q prints dots until the end."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name behind the dots."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.write_line(f"\nfailed: {report.nodeid} ({report.when})")


def pytest_configure(config: pytest.Config) -> None:
    """Report in the process that shows results; a worker of pytest-xdist shows none."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Failures(config))


@pytest.fixture(scope="session")
def truth_dir() -> Path:
    """Folder of published measured runs: MESHWRIGHT_TRUTH, else the project's own."""
    folder = Path(os.environ.get("MESHWRIGHT_TRUTH") or ROOT / "truth")
    assert folder.is_dir(), f"MESHWRIGHT_TRUTH={folder}: no such folder"
    return folder
