from __future__ import annotations

import math
import re

import pytest
from tests.software.logs.forms import megatron_line

from meshwright.platforms.executor import JobState, JobStatus
from meshwright.runs.measured.cells import read_rules
from meshwright.runs.outcome import (
    FAILURE_CLASSES,
    START_LIMIT_S,
    TIERS,
    EvidenceReader,
    Failure,
    classify,
    hang_limit_s,
)
from meshwright.software.log import whole_lines
from meshwright.software.log_reader import read_log

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
WATCHDOG = (
    "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE,"
    " NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600024 milliseconds before timing out."
)
TORCHRUN = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
TRACEBACK = (
    'Traceback (most recent call last):\n  File "pretrain_gpt.py", line 264, in <module>\n   '
    " pretrain(\n"
)


def ended(state: JobState = "failed", exit_code: int | None = 1, reason: str = "") -> JobStatus:
    return JobStatus(state=state, exit_code=exit_code, reason=reason)


def failure_of(text: str, status: JobStatus | None = None, **more: float) -> Failure:
    reader = EvidenceReader()
    for block in whole_lines([text]):
        reader.feed(block)
    found = classify(status or ended(), evidence=reader.evidence(), reading=read_log(text), **more)
    assert found is not None
    return found


LINES = {
    OOM: "cuda_oom",
    "RuntimeError: HIP out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 191.98 GiB": (  # noqa: E501
        "cuda_oom"
    ),
    "RuntimeError: NPU out of memory. Tried to allocate 512.00 MiB (NPU 0; 60.96 GiB total capacity)": (  # noqa: E501
        "cuda_oom"
    ),
    "socket.gaierror: [Errno -2] Name or service not known": "unresolved_node",
    'srun: error: Unable to resolve "n5": Unknown host': "unresolved_node",
    "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 7.81 GiB.": "cuda_oom",
    "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::469762048 (448)MB": (  # noqa: E501
        "cuda_oom"
    ),
    "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.": (  # noqa: E501
        "cuda_oom"
    ),
    "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": (
        "cuda_oom"
    ),
    "n1:77:99 [0] init.cc:1 NCCL WARN Cuda failure 2 'out of memory'": "cuda_oom",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0. Some of the step tasks have been OOM Killed.": (  # noqa: E501
        "host_oom"
    ),
    "slurmstepd: error: Detected 3 oom-kill event(s) in StepId=77.batch. Some of your processes may have been killed": (  # noqa: E501
        "host_oom"
    ),
    "[12.5] Out of memory: Killed process 4321 (python) total-vm:123456kB, anon-rss:1234kB": (
        "host_oom"
    ),
    "Last State: Terminated  Reason: OOMKilled  Exit Code: 137": "host_oom",
    "RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory": (  # noqa: E501
        "host_oom"
    ),
    "RuntimeError: DataLoader worker (pid 4321) is killed by signal: Killed. ": "host_oom",
    WATCHDOG: "collective_timeout",
    "[../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete": (  # noqa: E501
        "collective_timeout"
    ),
    "RuntimeError: Application timeout caused pair closure": "collective_timeout",
    "error: rank 1: another rank is lost, or behind by more than 50 s; [gloo/transport/tcp/pair.cc:553]": (  # noqa: E501
        "collective_timeout"
    ),
    "EI0002: The wait execution of the Notify register times out. Reason: The Notify register has not received": (  # noqa: E501
        "collective_timeout"
    ),
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, remote process exited": (  # noqa: E501
        "collective_timeout"
    ),
    "AssertionError: number of layers should be divisible by the pipeline parallel size": (
        "config_error"
    ),
    "pretrain_gpt.py: error: unrecognized arguments: --tensor-parallel 2": "config_error",
    "pretrain_gpt.py: error: argument --bf16: expected no value": "config_error",
    "pydantic_core._pydantic_core.ValidationError: 1 validation error for Config": "config_error",
    "Could not override 'trainer.nodes'. ": "config_error",
    "hydra.errors.ConfigCompositionException": "config_error",
    "╭─ Unrecognized options ─────────────╮": "config_error",
    "ValueError: parallel degrees do not multiply to the world size": "config_error",
    "error: heads=40 is not divisible by tp=16; tp may be 1, 2, 4, 5, 8": "config_error",
    "RuntimeError: Rank 3, iteration 12: Unexpected result nan (message='found NaN in local forward loss calculation')": (  # noqa: E501
        "nan_loss"
    ),
    "error: step 3: the loss is nan, the gradient norm 2.5; nothing of this step was kept": (
        "nan_loss"
    ),
    "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.": (  # noqa: E501
        "nan_loss"
    ),
    "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME LIMIT ***": (
        "time_limit"
    ),
    "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-03-01T10:00:00 DUE TO PREEMPTION ***": (  # noqa: E501
        "preempted"
    ),
    "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2026-03-01T10:00:00 DUE TO NODE FAILURE ***": (  # noqa: E501
        "node_failure"
    ),
    "srun: error: Node failure on n2": "node_failure",
    "NVRM: Xid (PCI:0000:18:00): 79, pid=4321, name=python, GPU has fallen off the bus.": (
        "node_failure"
    ),
    "python: can't open file '/opt/train.py': [Errno 2] No such file or directory": (
        "launcher_error"
    ),
    "bash: line 1: torchrun: command not found": "launcher_error",
    "ModuleNotFoundError: No module named 'megatron'": "launcher_error",
    "[E socket.cpp:922] The client socket has timed out after 60000ms while trying to connect to (n1, 29500).": (  # noqa: E501
        "launcher_error"
    ),
    "RuntimeError: The server socket has failed to listen on any local network address. port: 29500": (  # noqa: E501
        "launcher_error"
    ),
    'Failed to pull image "nvcr.io/none": rpc error': "launcher_error",
    "KeyError: 'lr'": "unknown",
}


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "3: "])
def test_each_line_is_known(line: str, prefix: str) -> None:
    found = failure_of(f"starting\n{prefix}{line}\n")
    assert found.failure_class == LINES[line]
    assert found.evidence == f"{prefix}{line}".strip()[:300]


def test_every_pattern_is_complete_and_used() -> None:
    rules = read_rules("failure_patterns", folder="runs").rules
    for rule in rules:
        assert rule["failure_class"] in FAILURE_CLASSES and rule["tier"] in TIERS
        assert rule["message"] and rule["source"]
        assert rule["words"] == rule["words"].lower()
    named = {
        next(
            rule["failure_class"]
            for rule in rules
            if rule.pattern.search(re.sub(r"^\[rank3\]: ", "", line.lower()))
        )
        for line in LINES
    }
    assert named >= {rule["failure_class"] for rule in rules}


CAUSES = {
    OOM: "cuda_oom",
    "AssertionError: hidden size": "config_error",
    "error: step 3: the loss is nan, the gradient norm 1": "nan_loss",
}


@pytest.mark.parametrize("early", CAUSES)
@pytest.mark.parametrize("order", ["first", "last"])
@pytest.mark.parametrize("state", ["failed", "timed_out", "cancelled"])
def test_the_cause_wins_over_its_echoes(early: str, order: str, state: JobState) -> None:
    """Rank 3's error lets the others wait in vain; which of both is written first is chance."""
    echoes = "\n".join(
        [f"[rank{rank}]:{WATCHDOG}" for rank in (0, 1, 2)]
        + [
            "[rank0]: torch.distributed.DistBackendError: NCCL error in: x",
            TORCHRUN,
            "srun: error: n1: task 3: Exited with exit code 1",
        ]
        + [
            "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-03-01T10:00:00 DUE TO TIME"
            " LIMIT ***"
        ]
    )
    cause = f"[rank3]: {TRACEBACK}[rank3]: {early}"
    text = f"{cause}\n{echoes}\n" if order == "first" else f"{echoes}\n{cause}\n"
    found = failure_of(text, ended(state=state))
    assert (found.failure_class, found.evidence) == (CAUSES[early], f"[rank3]: {early}"[:300])


def test_of_two_causes_the_earlier_holds() -> None:
    kill = "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0."
    assert failure_of(f"{OOM}\n{kill}\n").failure_class == "cuda_oom"
    assert failure_of(f"{kill}\n{OOM}\n").failure_class == "host_oom"


def test_the_launchers_word() -> None:
    said = ended(state="out_of_memory", exit_code=0, reason="OUT_OF_MEMORY")
    assert failure_of("", said) == Failure(
        failure_class="host_oom",
        message="the launcher says that memory ran out, which is the host's",
        evidence="OUT_OF_MEMORY",
    )
    assert failure_of(OOM + "\n", said).failure_class == "cuda_oom"
    assert (
        failure_of(WATCHDOG + "\n", ended(state="node_failed", reason="NODE_FAIL")).failure_class
        == "node_failure"
    )
    assert failure_of("x\n", ended(state="preempted")).failure_class == "preempted"
    assert (
        failure_of("", ended(state="never_started", reason="Unschedulable")).evidence
        == "Unschedulable"
    )
    assert failure_of("x\n", ended(state="timed_out", exit_code=0)).failure_class == "time_limit"
    assert (
        failure_of(WATCHDOG + "\n", ended(state="timed_out", exit_code=0)).failure_class
        == "collective_timeout"
    )


def test_a_kill_without_words_is_told_as_such() -> None:
    for code in (137, -9):
        found = failure_of(megatron_line(7, 2500), ended(exit_code=code))
        assert (found.failure_class, found.step) == ("unknown", 7)
        assert found.message.startswith(
            "killed by SIGKILL, and neither kernel nor launcher says why"
        )
    assert (
        failure_of("", ended(exit_code=3)).message
        == "it ended with exit code 3, and no line of its log says why"
    )
    assert failure_of("", ended(exit_code=139)).message == "killed by SIGSEGV, and nothing says why"
    assert failure_of(f"{TORCHRUN}\n", ended()).evidence == TORCHRUN.strip()


def test_hang() -> None:
    """2.5 s a report: 20 times that is 50 s, so two minutes hold; 30 s a report: ten minutes; none
    yet: half an hour."""
    assert hang_limit_s(2.5) == 120
    assert hang_limit_s(30.0) == 600
    assert hang_limit_s(None) == START_LIMIT_S
    text = megatron_line(6, 2500) + megatron_line(7, 2500)
    running = ended(state="running", exit_code=None)
    assert classify(running, reading=read_log(text), silent_s=119, usual_s=2.5) is None
    found = failure_of(text, running, silent_s=121, usual_s=2.5)
    assert (found.failure_class, found.step) == ("hang", 7)
    assert found.message == "no progress for 121 s where a report usually takes 2.5 s"
    assert failure_of("", ended(state="cancelled"), silent_s=1801).failure_class == "hang"
    assert (
        failure_of(f"{text}{WATCHDOG}\n", running, silent_s=700, usual_s=2.5).failure_class
        == "collective_timeout"
    )
    assert (
        failure_of(text, ended(state="timed_out"), silent_s=700, usual_s=2.5).failure_class
        == "hang"
    )


def test_what_goes_on_or_ended_well_has_no_failure() -> None:
    for state in ("queued", "running", "unknown"):
        assert classify(ended(state=state), silent_s=5.0) is None
    benign = f"WARNING: caught {OOM}, trying a smaller batch\n" + megatron_line(7, 2500)
    reader = EvidenceReader()
    reader.feed(benign)
    assert (
        classify(
            ended(state="succeeded", exit_code=0),
            evidence=reader.evidence(),
            reading=read_log(benign),
        )
        is None
    )


def test_a_loss_that_is_no_number() -> None:
    text = (
        megatron_line(1, 2500)
        + megatron_line(2, 2500, loss=math.nan, nan=1)
        + megatron_line(3, 2500, loss=math.nan, nan=1)
    )
    for status in (ended(state="succeeded", exit_code=0), ended(), ended(state="timed_out")):
        found = failure_of(text, status)
        assert (found.failure_class, found.step, found.evidence) == (
            "nan_loss",
            2,
            "loss nan at step 2",
        )
    recovered = text + megatron_line(4, 2500)
    assert classify(ended(state="succeeded", exit_code=0), reading=read_log(recovered)) is None


def test_words_in_configurations_and_warnings_are_no_failures() -> None:
    quiet = (
        "  check_for_nan_in_loss_and_grad .................. True\n  distributed_timeout_minutes"
        " ..... 10\n \nNCCL INFO cudaDriverVersion 12040\n[I] ProcessGroupNCCL initialization"
        " options: TIMEOUT(ms): 600000\nUserWarning: expandable_segments not supported\nWARNING:"
        " flash_attn is not installed: ImportError: no module, falling back\n number of nan"
        " iterations:   0 |\nslurmstepd: info: gloo interface eth0\n"
    )
    reader = EvidenceReader()
    reader.feed(quiet)
    assert reader.evidence() == ()
