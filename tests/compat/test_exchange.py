from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest

from meshwright.compat.llmacc import Meeting, agree
from meshwright.values.errors import ConfigError

WORDS = ["--tensor-model-parallel-size", "8", "a b", "größer"]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def meeting(*, size: int, limit_s: float = 20.0) -> Meeting:
    return Meeting(
        rank=0,
        world_size=size,
        address="127.0.0.1",
        port=free_port(),
        run_words=("pretrain_gpt.py", "--bf16"),
        limit_s=limit_s,
    )


def all_ranks(
    first: Meeting,
    decide: Callable[[], Sequence[str]],
    *,
    words: dict[int, tuple[str, ...]] | None = None,
) -> list[Future[list[str]]]:
    """Start every rank at once; all but rank 0 must never decide."""

    def never() -> list[str]:
        raise AssertionError("only rank 0 decides")

    with ThreadPoolExecutor(first.world_size) as pool:
        ranks = [
            replace(first, rank=rank, run_words=(words or {}).get(rank, first.run_words))
            for rank in range(first.world_size)
        ]
        return [
            pool.submit(agree, one, decide if one.rank == 0 else never) for one in reversed(ranks)
        ][::-1]


@pytest.mark.parametrize("size", [1, 2, 17])
def test_all_ranks_get_what_rank_0_decided_once(size: int) -> None:
    asked: list[int] = []

    def decide() -> list[str]:
        asked.append(1)
        time.sleep(0.3)  # the others ask meanwhile
        return WORDS

    found = [future.result() for future in all_ranks(meeting(size=size), decide)]
    assert found == [WORDS] * size
    assert asked == [1]


def test_an_error_of_rank_0_ends_every_rank() -> None:
    def decide() -> list[str]:
        raise ConfigError("nothing fits")

    found = [future.exception() for future in all_ranks(meeting(size=4), decide)]
    assert [type(error) for error in found] == [ConfigError] * 4
    assert all("nothing fits" in str(error) for error in found)


def test_a_rank_with_other_arguments_is_told_so() -> None:
    first = meeting(size=3, limit_s=2.0)
    found = [
        future.exception()
        for future in all_ranks(first, lambda: WORDS, words={2: ("pretrain_gpt.py", "--fp16")})
    ]
    assert found[1] is None
    assert "other arguments" in str(found[2])
    assert "1 of 3 processes never asked rank 0 (ranks 2)" in str(found[0])


def test_a_rank_without_rank_0_gives_up_with_the_port() -> None:
    alone = replace(meeting(size=2, limit_s=0.5), rank=1)
    with pytest.raises(ConfigError, match=rf"no answer of rank 0 at 127.0.0.1:{alone.port}"):
        agree(alone, lambda: WORDS)


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("", 0)) as other:
        taken = replace(meeting(size=2), port=other.getsockname()[1])
        with pytest.raises(ConfigError, match="--exchange-port"):
            agree(taken, lambda: WORDS)


@pytest.mark.parametrize(
    "text",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\n",
        b"[]\n",
        b"{}\n",
        b'{"digest": 1, "rank": null}\n',
        b"[" * 100_000 + b"\n",
        b"",
    ],
)
def test_strangers_at_the_port_change_nothing(text: bytes) -> None:
    first = meeting(size=2)

    def stranger() -> None:
        while True:
            try:
                with socket.create_connection((first.address, first.port)) as connection:
                    connection.sendall(text)
                return
            except ConnectionRefusedError:
                time.sleep(0.02)
            except OSError:
                return

    def decide() -> list[str]:
        threading.Thread(target=stranger).start()
        time.sleep(0.1)
        return WORDS

    assert [future.result() for future in all_ranks(first, decide)] == [WORDS, WORDS]
