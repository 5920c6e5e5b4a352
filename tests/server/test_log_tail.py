"""Logs are shown from their end on, and go on in the next one."""

import os

from reelscribe.server.launcher import logs as log_tail


def test_a_log_is_followed_into_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(log_tail, "POLL_SECONDS", 0)
    log = tmp_path / "access_log.log"
    log.write_text("long before\nbefore\n")
    lines = log_tail.follow(log, 1)
    assert next(lines) == "before"
    with log.open("a") as file:
        file.write("after\n")
    assert next(lines) == "after"
    log.write_text("in a new log\n")
    assert next(lines) == "in a new log"


def test_what_is_written_while_a_log_is_shown_comes_once_and_whole(tmp_path, monkeypatch):
    log = tmp_path / "model_log.log"
    log.write_bytes(b"first\nsecond\nthi")
    parts = iter(["rd: \u00e4".encode()[:-1], "\u00e4\n".encode()[1:]])

    def write_more(_: float) -> None:
        with log.open("ab") as file:
            file.write(next(parts))

    monkeypatch.setattr(log_tail.time, "sleep", write_more)
    lines = log_tail.follow(log, 5)
    assert [next(lines) for _ in range(3)] == ["first", "second", "third: \u00e4"]


def test_the_last_words_of_a_log_are_shown_before_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr(log_tail, "POLL_SECONDS", 0)
    log = tmp_path / "model_log.log"
    log.write_text("before\n")
    lines = log_tail.follow(log, 5)
    assert next(lines) == "before"
    with log.open("a") as file:
        file.write("last words\n")
    os.replace(log, tmp_path / "model_log.1.log")
    log.write_text("of the next log, which is longer than the one before\n")
    assert [next(lines), next(lines)] == ["last words", "of the next log, which is longer than the one before"]
