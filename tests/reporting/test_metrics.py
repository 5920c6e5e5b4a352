"""What a run tells Prometheus."""

import socket
import urllib.request
from dataclasses import replace

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from reelscribe.cli import app
from reelscribe.errors import UsageError
from reelscribe.reporting.metrics import metrics_served
from reelscribe.reporting.progress import Progress, Silent
from support.snapshots import BAD, FRAMES, GOOD, ON_NODES, PLAN, SNAPSHOT, SOUND, free_port


def scrape(port: int) -> dict[tuple[str, ...], float]:
    """The figures of a run, by name and values of labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_a_run_that_goes_on_is_told_of_as_it_is_now():
    port = free_port()
    with metrics_served(Silent(), port) as metrics:
        assert scrape(port) == {}
        metrics.show(SNAPSHOT)
        metrics.finished(GOOD.source.path, GOOD.error)
        metrics.finished(BAD.source.path, BAD.error)
        calls = replace(FRAMES, requests_in_flight=24, requests_wanted=256, call_items=83.2, full_call=512)
        metrics.show(replace(SNAPSHOT, tracks=(calls, SOUND), sources_done=3))
        figures = scrape(port)
    assert figures["reelscribe_run_sources",] == 5
    assert figures["reelscribe_run_sources_done_total",] == 3
    assert figures["reelscribe_run_sources_failed_total",] == 1
    assert figures["reelscribe_run_errors_total", "MediaError"] == 1
    assert figures["reelscribe_run_frames_total",] == 1200
    assert figures["reelscribe_run_audio_seconds_total",] == 5400.4
    assert figures["reelscribe_run_decode_busy_seconds_total", "frames"] == 0.5 * 60
    assert figures["reelscribe_run_server_busy_seconds_total", "audio"] == 0.9 * 60
    assert figures["reelscribe_run_request_time_ratio", "queue", "frames"] == 0.2
    assert figures["reelscribe_run_requests_total", "frames"] == 40
    assert figures["reelscribe_run_retries_total", "frames"] == 2
    limits = [figures["reelscribe_run_requests_in_flight_limit", kind, "frames"] for kind in ("now", "wanted")]
    items = [figures["reelscribe_run_call_items", kind, "frames"] for kind in ("mean", "full")]
    assert (limits, items) == ([24, 256], [83.2, 512])


def test_of_each_node_it_is_told_whether_it_works_and_what_it_has_done():
    port = free_port()
    with metrics_served(Silent(), port) as metrics:
        metrics.show(SNAPSHOT)
        assert not any("node" in name for name, *_ in scrape(port))
        metrics.show(ON_NODES)
        figures = {key: value for key, value in scrape(port).items() if "node" in key[0]}
    names = ("store-1", "store-2", "store-3")
    assert [figures["reelscribe_run_node_up", name] for name in names] == [1, 0, 0]
    assert [figures["reelscribe_run_node_sources_done_total", name] for name in names] == [1030, 7, 0]
    assert [figures["reelscribe_run_node_sources_open", name] for name in names] == [12, 0, 0]
    assert [figures["reelscribe_run_node_speed_ratio", name] for name in names] == [41.25, 0, 0]
    assert figures["reelscribe_run_nodes_lost_total",] == 2
    assert len(figures) == 4 * len(names) + 1  # no label but the name of the node


def test_scraping_twice_counts_nothing_twice():
    port = free_port()
    with metrics_served(Silent(), port) as metrics:
        metrics.show(SNAPSHOT)
        metrics.finished(BAD.source.path, BAD.error)
        assert scrape(port) == scrape(port)


def test_who_watches_the_run_sees_all_of_it():
    class Watching(Progress):
        def __init__(self) -> None:
            self.seen = []

        def __enter__(self) -> Progress:
            self.seen.append("begins")
            return self

        def announce(self, plan) -> None:
            self.seen.append(plan)

        def show(self, snapshot) -> None:
            self.seen.append(snapshot)

        def finished(self, path, error) -> None:
            self.seen.append((path, error))

        def message(self, text) -> None:
            self.seen.append(text)

        def __exit__(self, kind, error, trace) -> None:
            self.seen.append("ends")

    watching = Watching()
    with metrics_served(watching, free_port()) as metrics, metrics:
        metrics.announce(PLAN)
        metrics.show(SNAPSHOT)
        metrics.finished(GOOD.source.path, GOOD.error)
        metrics.message("hello")
    assert watching.seen == ["begins", PLAN, SNAPSHOT, (GOOD.source.path, GOOD.error), "hello", "ends"]


def test_after_the_run_nobody_listens():
    port = free_port()
    with metrics_served(Silent(), port):
        pass
    with socket.create_server(("127.0.0.1", port)) as free_again:
        assert free_again.getsockname()[1] == port


def test_a_taken_port_is_an_error_before_the_run(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 cannot be used"),
            metrics_served(Silent(), port),
        ):
            pass
        arguments = ["a.mp4", "--out", str(tmp_path / "out"), "--model", "speech", "--metrics-port", str(port)]
        result = CliRunner().invoke(app, ["transcribe", *arguments])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"reelscribe: --metrics-port: port {port}")
    assert not (tmp_path / "out").exists()
