"""What of a job is put into its run's directory."""

from __future__ import annotations

from pathlib import Path

from meshwright.errors import LauncherError
from meshwright.exports.jobs import Job, JobText

__all__ = ["put_job", "put_whole"]


def put_job(run: Path, job: Job, text: JobText) -> Path:
    """Write the script or manifest and the files that the job names into `job/`; return that
    folder."""
    folder = run / "job"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in [
            (text.file_name, text.text),
            *((file.name, file.text) for file in job.files),
        ]:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content, encoding="utf-8", newline="")
        for file in job.files:
            if file.executable:
                (folder / file.name).chmod(0o755)
    except OSError as error:
        raise LauncherError(
            f"{folder}: the job could not be written: {error.strerror or error}"
        ) from None
    return folder


def put_whole(path: Path, text: str) -> None:
    """Write a file that others see whole or not at all; LauncherError where it cannot be written,
    and what stood there stays."""
    new = path.with_name(f"{path.name}.new")
    try:
        new.write_text(text, encoding="utf-8", newline="")
        new.rename(path)
    except OSError as error:
        raise LauncherError(f"{path} could not be written: {error.strerror or error}") from None
