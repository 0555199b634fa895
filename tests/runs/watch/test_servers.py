"""What `watch` tells servers of others: events for a webhook, metrics by OTLP."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runs.watch.receiver import Receiver, receiver
from tests.software.logs.forms import megatron_line

from meshwright.cli import run
from meshwright.runs.post import read_address
from meshwright.runs.watch.alarms import Alarm, RunFacts
from meshwright.runs.watch.follow import Follower, Output, watched
from meshwright.runs.watch.notify import Notifier, events_between
from meshwright.runs.watch.otlp import MetricsSender, headers_of, metrics_request
from meshwright.runs.watch.status import RunStatus
from meshwright.values.errors import ConfigError

SECRET = "T0PS3CRET"


@pytest.fixture
def server() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text("".join(megatron_line(step, 2000, loss=2.5) for step in range(1, 21)))
    return path


def status_of(log: Path) -> RunStatus:
    return Follower(path=log).poll(now_s=log.stat().st_mtime)


def fail(line: str) -> None:
    raise AssertionError(line)


def test_a_webhook_hears_of_an_alarm_its_end_and_the_run(server: Receiver, log: Path) -> None:
    """Four looks: all is well, a loss is no number, it is mended, the last step."""
    further = iter(
        [
            megatron_line(21, 2000, loss=None, nan=1),
            "".join(megatron_line(step, 2000, loss=2.4) for step in range(22, 30)),
            megatron_line(30, 2000, loss=2.3),
        ]
    )

    def sleep(_: float) -> None:
        with log.open("a") as file:
            file.write(next(further))

    address = read_address(f"{server.url}/services/{SECRET}", option="--notify")
    watched(
        Follower(path=log, facts=RunFacts(total_steps=30)),
        every_s=1,
        output=Output(takers=(Notifier(address, warn=fail),)),
        show=lambda status: None,
        sleep=sleep,
    )
    path, headers, first = server.got[0]
    assert (path, headers["Content-Type"]) == (f"/services/{SECRET}", "application/json")
    assert [(one["event"], one["kind"]) for one in server.objects] == [
        ("alarm", "nan"),
        ("cleared", "nan"),
        ("done", None),
    ]
    assert first["text"].startswith("train.log: nan at step 21: ")
    assert (first["run"], first["status"]["state"]) == ("train.log", "stopped")
    assert server.objects[2]["text"] == "train.log has done all its steps at step 30."
    assert server.objects[2]["status"]["step"] == 30


def test_the_first_look_tells_of_alarms_alone(log: Path) -> None:
    now = status_of(log)
    assert list(events_between(None, now)) == []
    assert list(events_between(now, now)) == []
    alarmed = replace(now, alarms=(Alarm(kind="slow", message="1.3 times as long"),))
    assert [one.text for one in events_between(None, alarmed)] == [
        "train.log: slow: 1.3 times as long"
    ]


def test_starts_are_counted_in_words(log: Path) -> None:
    now = status_of(log)
    waiting = replace(now, step=None, state="waiting")
    assert [one.text for one in events_between(waiting, now)] == ["train.log trains: step 20."]
    for number, word in ((1, "1st"), (2, "2nd"), (11, "11th"), (103, "103rd")):
        [event] = events_between(now, replace(now, restarts=number))
        assert event.text == f"train.log started again, for the {word} time."
    [event] = events_between(now, replace(now, is_given_up=True, notes=("stopped: twice alike",)))
    assert (event.event, event.text) == (
        "given_up",
        "train.log was given up: stopped: twice alike.",
    )


def test_what_did_not_arrive_is_sent_again(server: Receiver, log: Path) -> None:
    server.answers = [503, 503, 200]
    lines: list[str] = []
    address = read_address(f"{server.url}/{SECRET}?key={SECRET}", option="--notify")
    notifier = Notifier(address, warn=lines.append, sleep=lambda seconds: None)
    now = status_of(log)
    alarmed = replace(now, alarms=(Alarm(kind="slow", message="1.3 times as long"),))
    notifier.take(alarmed)
    notifier.take(alarmed)
    assert server.got == []
    notifier.take(now)
    assert [one["event"] for one in server.objects] == ["alarm", "cleared"]
    assert lines == [f"--notify {server.url}/***: it answered 503; it is tried again"]


def test_the_end_is_tried_three_times(server: Receiver, log: Path) -> None:
    server.answers = [500, 429]
    waits: list[float] = []
    address = read_address(server.url, option="--notify")
    notifier = Notifier(address, warn=lambda line: None, sleep=waits.append)
    notifier.take(replace(status_of(log), state="done"))
    assert [one["event"] for one in server.objects] == ["done"]
    assert len(waits) == 2


@pytest.mark.parametrize("code", [302, 400, 404])
def test_an_answer_that_will_not_change_is_not_asked_again(
    server: Receiver, log: Path, code: int
) -> None:
    """A redirected POST would arrive as a GET without its words."""
    server.answers = [code]
    lines: list[str] = []
    notifier = Notifier(read_address(server.url, option="--notify"), warn=lines.append)
    for _ in range(2):
        notifier.take(replace(status_of(log), state="done"))
    assert lines == [f"--notify {server.url}: it answered {code} to the event done"]
    assert server.got == []


def test_nobody_there_stops_no_watch_and_shows_no_secret(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        hook = tmp_path / "hook"
        hook.write_text(f"{url}/services/{SECRET}\n")
        with log.open("a") as file:
            file.write(megatron_line(21, 2000, loss=None, nan=1))
        words = ["--notify", str(hook), "--otlp", f"http://user:{SECRET}@{url[7:]}/{SECRET}"]
        assert run(["watch", str(log), "--once", *words]) == 1  # of the alarm
    streams = capsys.readouterr()
    assert f"warning: --notify {url}/***: Connection refused; it is tried again" in streams.err
    assert f"warning: --otlp {url}/***: Connection refused; this look is not there" in streams.err
    assert "Step      21" in streams.out
    assert SECRET not in streams.out + streams.err


@pytest.mark.parametrize(
    "text",
    [
        *(f"ftp://example.org/{SECRET}", f"http:///{SECRET}", f"https://a b/{SECRET}"),
        *(f"http://example.org:99999/{SECRET}", f"https://[::1/{SECRET}", f"http://ä/{SECRET}"),
        "file:///etc/hosts",
    ],
)
def test_a_broken_address_is_refused_and_not_shown(
    text: str, tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["watch", str(log), "--once", "--notify", text]) == 2
    said = capsys.readouterr().err
    assert "--notify: expected a URL such as https://example.org/hook" in said
    assert SECRET not in said
    (tmp_path / "hook").write_text(text)
    assert run(["watch", str(log), "--once", "--otlp", str(tmp_path / "hook")]) == 2
    assert SECRET not in capsys.readouterr().err
    assert run(["watch", str(log), "--once", "--otlp", str(tmp_path / "none")]) == 2
    assert "neither a URL nor a file with one (No such file" in capsys.readouterr().err


def test_a_user_and_a_password_are_basic_authentication(server: Receiver, log: Path) -> None:
    url = server.url.replace("http://", "http://Aladdin:open%20sesame@")
    address = read_address(url, option="--otlp")
    assert "sesame" not in f"{address.shown}{address!r}"
    MetricsSender(address, warn=fail, environment={}).take(status_of(log))
    # the example of RFC 7617, section 2
    assert server.got[0][1]["Authorization"] == "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="


def test_metrics_arrive_at_the_path_of_the_protocol(server: Receiver, log: Path) -> None:
    environment = {
        "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, x=1",
        "OTEL_EXPORTER_OTLP_METRICS_HEADERS": "x=2",
        "OTEL_SERVICE_NAME": "cluster-7",
    }
    for base in ("", "/", "/otlp", "/otlp/v1/metrics"):
        address = read_address(server.url + base, option="--otlp")
        MetricsSender(address, warn=fail, environment=environment).take(status_of(log))
    assert [path for path, _, _ in server.got] == [
        *("/v1/metrics", "/v1/metrics", "/otlp/v1/metrics", "/otlp/v1/metrics")
    ]
    _, headers, content = server.got[0]
    sent = {name.lower(): value for name, value in headers.items()}
    assert (sent["api-key"], sent["x"]) == ("a b", "2")
    [resource] = content["resourceMetrics"]
    assert resource["resource"]["attributes"] == [
        {"key": "service.name", "value": {"stringValue": "cluster-7"}}
    ]
    [scope] = resource["scopeMetrics"]
    found = {metric["name"]: metric for metric in scope["metrics"]}
    [point] = found["meshwright_step"]["gauge"]["dataPoints"]
    assert point["asDouble"] == 20
    assert point["attributes"] == [{"key": "run", "value": {"stringValue": "train.log"}}]
    assert point["timeUnixNano"].isdecimal()  # 64 bits are text in the JSON of protobuf
    assert found["meshwright_step_seconds"]["unit"] == "s"
    assert len(found["meshwright_alarm"]["gauge"]["dataPoints"]) == 6
    assert "meshwright_mfu_ratio" not in found  # without a plan nobody knows


def test_a_loss_that_is_no_number_is_no_point(log: Path) -> None:
    status = replace(status_of(log), loss=float("nan"))
    content = metrics_request(status, now_s=1.5, service="s")
    names = [
        metric["name"] for metric in content["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    ]
    assert "meshwright_loss" not in names
    assert "meshwright_gradient_norm" in names
    assert '"timeUnixNano": "1500000000"' in json.dumps(content, allow_nan=False)


@pytest.mark.parametrize("text", ["novalue", "a b=1", "x=1%0ay: 2", "=1"])
def test_broken_headers_are_refused_unseen(text: str) -> None:
    with pytest.raises(ConfigError, match="expected NAME=VALUE") as caught:
        headers_of({"OTEL_EXPORTER_OTLP_HEADERS": f"key={SECRET},{text}"})
    assert SECRET not in str(caught.value)


def test_a_collector_that_is_away_is_one_warning_until_it_is_back(
    server: Receiver, log: Path
) -> None:
    server.answers = [503, 404, 200, 500]
    lines: list[str] = []
    sender = MetricsSender(
        read_address(server.url, option="--otlp"), warn=lines.append, environment={}
    )
    for _ in range(5):
        sender.take(status_of(log))
    assert [line.partition(": ")[2] for line in lines] == [
        "it answered 503; this look is not there",
        "it answered 500; this look is not there",
    ]
    assert len(server.got) == 2
