"""What is installed with Meshwright: its licences, its bill of materials, what a build holds."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def supply() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("supply", str(ROOT / "scripts" / "supply"))
    spec = importlib.util.spec_from_loader("supply", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["supply"] = module
    loader.exec_module(module)
    return module


def test_every_dependency_has_its_licence_on_the_page(supply: ModuleType) -> None:
    page = (ROOT / "docs" / "licences.md").read_text()
    for names in supply.asked_for().values():
        for name in names:
            assert f"\n| {name} | " in page, f"{name}: run scripts/supply licences"
    assert "not installed" not in page


def test_the_bill_lists_what_is_installed_and_what_needs_what(supply: ModuleType) -> None:
    bill = supply.bill()
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    names = {one["name"]: one for one in bill["components"]}
    assert {"numpy", "pydantic", "pyyaml", "rich", "typer"} <= set(names)
    assert all(one["purl"] == f"pkg:pypi/{name}@{one['version']}" for name, one in names.items())
    known = {one["ref"] for one in bill["dependencies"]}
    assert len(known) == len(bill["dependencies"]) == len(names) + 1
    assert all(set(one["dependsOn"]) <= known for one in bill["dependencies"])
    needs = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert "pypi:pydantic-core" in needs["pypi:pydantic"]
    assert supply.bill() == bill


def test_what_could_not_be_looked_up_is_said(
    supply: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("# exact\na==1\nb==2 ; python_version < '4'\nc==3\n")
    known = {"a": [], "b": [{"id": "PYSEC-1", "fix_versions": ["3"]}]}
    monkeypatch.setattr(supply, "_looked_up", lambda _: (known, "no answer"))
    assert supply.audit(requirements) == 1
    said = capsys.readouterr().out
    assert "b==2: PYSEC-1; mended in 3" in said
    assert "c==3: could not be looked up: no answer" in said
    assert "3 packages: 2 looked up, 1 with known vulnerabilities, 1 not looked up" in said
    monkeypatch.setattr(supply, "_looked_up", lambda _: ({"a": []}, "no network"))
    assert supply.audit(requirements) == 3
    monkeypatch.setattr(supply, "_looked_up", lambda _: ({"a": [], "b": [], "c": []}, ""))
    assert supply.audit(requirements) == 0


@pytest.mark.slow
def test_a_build_holds_what_it_needs(tmp_path: Path) -> None:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, the build's backend, is not installed")
    words = ["-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True, capture_output=True)
    [wheel], [source] = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    data = {".csv", ".toml", ".yaml", ".json", ".npz", ".typed", ".html", ".css", ".js", ".py"}
    wanted = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "meshwright").rglob("*")
        if path.suffix in data or path.name == "py.typed"
    }
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert wanted <= held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    assert not any(name.startswith(("tests/", "truth/")) for name in held)
    with tarfile.open(source) as packed:
        inside = {name.partition("/")[2] for name in packed.getnames()}
    assert {f"src/{name}" for name in wanted} <= inside
    assert {"LICENSE", "README.md", "SECURITY.md", "pyproject.toml", "CHANGELOG.md"} <= inside
