"""No word of a work flow or of a data job runs anything where its jobs run."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.platforms.hostile import ATTACKS, Bench, attack

from meshwright.data.pipeline import recipe_job
from meshwright.platforms.job import JobText
from meshwright.runs.workflows.render import workflow
from meshwright.runs.workflows.spec import WorkflowSpec, plain_spec
from meshwright.values.errors import ConfigError
from meshwright.values.text import write_yaml

FIELDS: Mapping[str, Callable[[dict[str, Any], str], None]] = {
    "name": lambda spec, value: spec.update(name=value),
    "title": lambda spec, value: spec.update(title=value),
    "folder": lambda spec, value: spec.update(folder=f"{spec['folder']}{value}"),
    "corpus": lambda spec, value: spec.update(corpus=value),
    "vocabulary": lambda spec, value: spec["vocabulary"].update(vocab_file=f"https://a/{value}"),
    "merges": lambda spec, value: spec["vocabulary"].update(merge_file=value),
    "account": lambda spec, value: spec["job"].update(account=value),
    "instance": lambda spec, value: spec["job"].update(instance=value),
    "image": lambda spec, value: spec["job"].update(image=value),
    "mount": lambda spec, value: spec["job"].update(mounts=[f"workspace={value}:/mount"]),
    "target": lambda spec, value: spec["job"].update(mounts=[f"workspace=a:/mount{value}"]),
    "log_dir": lambda spec, value: spec["job"].update(log_dir=f"/out{value}"),
    "option": lambda spec, value: spec["job"].update(words=[f"--a={value}"]),
}
"""Every text of a work flow but `data.setup`, which is bash."""


def _run(text: JobText, bench: Bench) -> tuple[int, str]:
    (bench.work / text.file_name).write_text(text.text)
    return bench.run("bash", "-c", text.submit)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench.at(tmp_path)


@pytest.mark.slow
def test_no_word_of_a_work_flow_runs_anything(bench: Bench) -> None:
    """Each job ends well, or with 2 where what the one before it makes is not there."""
    ran = set()
    for name in ATTACKS:
        for field, change in FIELDS.items():
            given = plain_spec("slimpajama-8b", words=[("train", None)])
            given["job"] = {
                **given.get("job", {}),
                **{"mounts": ["workspace=a:/mount"], "instance": "i"},
            }
            given |= {"folder": str(bench.folder / "data"), "shards": 1}
            change(given, attack(name, bench.canary(field)))
            try:
                spec = WorkflowSpec.of(str(given.pop("name")), given)
                jobs = workflow(spec, launcher="bcp").jobs
            except ConfigError:
                continue
            for job in jobs if field in ("folder", "vocabulary") else jobs[:1]:
                code, said = _run(job.text, bench)
                assert code in (0, 2), (field, name, job.stage, said)
                assert "syntax error" not in said.lower()
                assert bench.injected() == [], (field, name, job.stage)
            ran |= {field} if bench.ran() else set()
    assert {"title", "folder", "vocabulary", "account", "image", "log_dir", "option"} <= ran
    for path in Path("/tmp").glob("slimpajama-8b-*"):
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("launcher", ["slurm", "bcp"])
def test_no_word_of_a_data_job_runs_anything(launcher: str, bench: Bench) -> None:
    recipe = write_yaml(
        {"pipeline": "custom", "folder": "/a", "steps": [{"verify": {"output_prefix": "/a/b"}}]}
    )
    needed = {"image": "a", "instance": "i"} if launcher == "bcp" else {}
    for name in ATTACKS:
        path = Path(f"{bench.folder}/{attack(name, bench.canary('recipe'))}.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(recipe)
        text = recipe_job(path, launcher=launcher, nodes=1, options=needed)
        code, said = _run(text, bench)
        if launcher == "slurm":
            code, said = bench.run("bash", str(bench.work / text.file_name))
        assert code == 0, said
        assert bench.injected() == []
        assert str(path) in bench.ran()
