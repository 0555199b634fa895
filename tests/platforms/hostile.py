"""Values that would run a program if any shell, reader of YAML or Python took them for more than
text, and stand-ins for platforms that evaluate what they are handed as the real ones do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ATTACKS", "Bench", "attack"]

ATTACKS: Mapping[str, str] = {
    "substitution": "$(RUN)",
    "backticks": "`RUN`",
    "substitution, twice": "$$(RUN)",
    "substitution, escaped": "\\$(RUN)",
    "semicolons": "; RUN ;",
    "ampersands": "& RUN &",
    "and": "a && RUN && b",
    "or": "|| RUN || :",
    "pipe": "| RUN |",
    "single quotes": "'; RUN; '",
    "double quotes": '"; RUN; "',
    "both quotes": "'\"; RUN; \"'",
    "double then single quotes": "\"'; RUN; '\"",
    "quote in ANSI-C quotes": "$'\\''; RUN; '",
    "backslash and quote": "\\'; RUN; \\'",
    "backslash at the end": "; RUN; \\",
    "braces": "a; }; RUN; { true",
    "parentheses": "a); RUN; (true",
    "arithmetic": "$((a[$(RUN)]))",
    "index": "a[$(RUN)]",
    "default": "${unset-$(RUN)}",
    "substitution of a process": "<(RUN)",
    "redirection": "> CANARY",
    "redirection, appending": "x >>CANARY",
    "comment": "# '\nRUN\n# '",
    "lines": "a\nRUN\nb",
    "lines of Windows": "a\r\nRUN\r\nb",
    "end of a here document": "a\nEND\nRUN\n<<'END'\n",
    "option": "-eRUN",
    "option of a remote shell": "--rsh=RUN",
    "option of ssh": "-oProxyCommand=RUN",
    "tag of YAML": "!!python/object/apply:os.system ['RUN']",
    "tag of YAML on its own line": "a\nb: !!python/object/apply:os.system ['RUN']",
    "tag of YAML in an item": "a\n- !!python/object/apply:os.system ['RUN']",
    "end of YAML's quotes": "': !!python/object/apply:os.system ['RUN'] #",
    "Python": "__import__('os').system('RUN')",
    "Python, single quotes": "' + str(__import__('os').system('RUN')) + '",
    "Python, double quotes": '" + str(__import__("os").system("RUN")) + "',
    "Python, three quotes": '"""\n__import__("os").system("RUN")\n"""',
    "Python, lines": "a\n__import__('os').system('RUN')\n",
    "Python, backslash": "\\\\' + str(__import__('os').system('RUN')) #",
    "Python, formatted": "{__import__('os').system('RUN')}",
}
"""By how each would get out of its place; RUN makes the file CANARY."""


def attack(name: str, canary: Path) -> str:
    """Return one value whose program would make a file."""
    return ATTACKS[name].replace("RUN", f"touch {canary}").replace("CANARY", str(canary))


_RECORD = '#!/bin/bash\nprintf "%s\\0" "$0" "$@" >> "$RAN"\n'
_INSIDE = "#!/bin/bash\nwhile (($#)); do\n"
STUBS: Mapping[str, str] = {
    **dict.fromkeys(("torchrun", "trainer", "kubectl", "accelerate", "deepspeed"), _RECORD),
    **dict.fromkeys(
        ("sky", "aliyun", "vllm", "trtllm-serve", "helm", "sbatch", "jupyter"), _RECORD
    ),
    **dict.fromkeys(("meshwright", "nvidia-smi", "primus-cli"), _RECORD),
    "srun": "#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\n"
    'SLURM_NODEID=2 SLURM_PROCID=19 SLURM_LOCALID=3 exec "$@"\n',
    "apptainer": "#!/bin/bash\nshift\nwhile [[ $1 == --* ]]; do\n"
    '  [[ $1 == --bind || $1 == --pwd ]] && shift\n  shift\ndone\nshift\nexec "$@"\n',
    "python3": f"{_RECORD}[[ $1 == -c ]] && echo a-line\nexit 0\n",
    "scontrol": '#!/bin/bash\nprintf "%s\\n" node-a node-b\n',
    # Base Command hands its line to a shell, and bcprun to one on every node.
    "ngc": f'{_INSIDE}  [[ $1 == --commandline ]] && exec sh -c "$2"\n  shift\ndone\n',
    "bcprun": "#!/bin/bash\nexport RANK=2 LOCAL_RANK=0 MASTER_ADDR=node-a MASTER_PORT=29500\n"
    f'{_INSIDE[12:]}  [[ $1 == --cmd ]] && exec sh -c "$2"\n  shift\ndone\n',
    "lep": f'{_INSIDE}  [[ $1 == --command ]] && exec bash -c "$2"\n  shift\ndone\n',
    "runai": f'{_INSIDE}  [[ $1 == --command ]] && shift 2 && exec "$@"\n  shift\ndone\n',
    "mpirun": "#!/bin/bash\nwhile [[ $1 != bash ]]; do shift; done\n"
    'OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_LOCAL_RANK=1 exec "$@"\n',
    # What stands behind these options is a program to them, and ssh joins words for another shell.
    "rsync": f'{_INSIDE}  [[ $1 == -e* ]] && sh -c "${{1#-e}}"\n'
    '  [[ $1 == --rsh=* ]] && sh -c "${1#--rsh=}"\n  shift\ndone\n',
    "ssh": f'{_INSIDE}  [[ $1 == -oProxyCommand=* ]] && sh -c "${{1#*=}}"\n'
    '  [[ $1 != -* ]] && shift && exec sh -c "$*"\n  shift\ndone\n',
}
SURROUNDINGS: Mapping[str, str] = {
    **{"RANK": "2", "NODE_RANK": "2", "MASTER_ADDR": "node-a", "MASTER_PORT": "29500"},
    **{"SLURM_JOB_ID": "71", "SLURM_JOB_NODELIST": "x", "JOB_COMPLETION_INDEX": "2"},
    **{"PET_NODE_RANK": "2", "PET_MASTER_ADDR": "node-a", "PET_MASTER_PORT": "29500"},
    **{"LEPTON_JOB_WORKER_INDEX": "2", "LEPTON_JOB_WORKER_PREFIX": "w", "LEPTON_SUBDOMAIN": "s"},
    **{"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": "2", "HOME": "/root"},
    **{"HF_TOKEN": "a", "LC_ALL": "C.UTF-8"},
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """A folder with stand-ins, and one in which canaries would appear."""

    folder: Path

    @staticmethod
    def at(folder: Path) -> Bench:
        """Put the stand-ins into a new folder."""
        for name in ("bin", "canaries", "work"):
            (folder / name).mkdir()
        for name, text in STUBS.items():
            path = folder / "bin" / name
            path.write_text(text)
            path.chmod(0o755)
        return Bench(folder=folder)

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def canary(self, field: str) -> Path:
        """Return the file that an injection by a field would make."""
        return self.folder / "canaries" / field.replace(" ", "-")

    def run(self, *words: str, cwd: Path | None = None) -> tuple[int, str]:
        """Run words; return the code, and what was said on stderr."""
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        env = {**SURROUNDINGS, "PATH": path, "RAN": str(self.folder / "ran")}
        env["PRIMUS_PATH"] = f"{self.folder}/bin"
        done = subprocess.run(
            words,
            cwd=cwd or self.work,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        return done.returncode, done.stderr.decode("utf-8", "replace")

    def ran(self) -> list[str]:
        """Return the words of every call of a stand-in that starts nothing, and forget them."""
        path = self.folder / "ran"
        words = path.read_bytes().decode().split("\0")[:-1] if path.exists() else []
        path.unlink(missing_ok=True)
        return words

    def injected(self) -> list[str]:
        """Return the fields whose values ran, and forget them."""
        found = sorted((self.folder / "canaries").iterdir())
        for path in found:
            path.unlink()
        return [path.name for path in found]
