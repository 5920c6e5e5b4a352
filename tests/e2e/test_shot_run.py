"""Shots and speakers by models: real files, and a real TorchServe with a tiny random TransNetV2 and voice encoder."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import reelscribe
from reelscribe.archive import build as archive
from reelscribe.errors import OutputError
from reelscribe.results.ledger_reader import LedgerReader
from servers.torchserve import HANDLERS
from shots.transnetv2 import TransNetV2
from support.audio import RATE, write
from support.servers import RunningServer, assert_same_records, read_records, serve, wait_until
from support.shot_models import film, middles, save_transnetv2, transnetv2_weights, windows_of
from support.speaker_models import save_encoder, talk
from synthetic.video_files import empty_box

LEARNED = ("--shot-detector", "transnetv2")


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[RunningServer]:
    directory = tmp_path_factory.mktemp("shots")
    weights = save_transnetv2(directory / "weights")
    archive.build("shots", "shot", weights, directory / "store", bundle=True, handlers=HANDLERS)
    encoder = save_encoder(directory / "encoder")
    archive.build("speakers", "speaker", encoder, directory / "store", bundle=True, handlers=HANDLERS)
    with serve(directory, "shots") as running:
        yield running


def probabilities_of(path: Path) -> np.ndarray:
    """What the network predicts of a film as a whole, (N, 2)."""
    frames = film(path)
    with torch.inference_mode():
        return middles(TransNetV2(transnetv2_weights())(torch.from_numpy(windows_of(frames))).numpy(), len(frames))


def threshold_among(probabilities: np.ndarray) -> float:
    """A number that some probabilities exceed, and that is far from each."""
    values = np.sort(probabilities[:, 0])
    widest = len(values) // 2 + np.diff(values[len(values) // 2 : -1]).argmax()
    return round(float(values[widest : widest + 2].mean()), 6)


def test_shots_are_those_that_the_network_finds_in_the_whole_film(server, media, tmp_path):
    probabilities = probabilities_of(media / "old.avi")
    threshold = threshold_among(probabilities)
    result = server.run("shots", media / "old.avi", *LEARNED, "--shot-threshold", str(threshold), "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "90 frames searched for shots" in " ".join(result.output.split())
    (record,) = read_records(tmp_path)
    ends = np.flatnonzero(probabilities[:, 0] > threshold)
    starts = [end + 1 for end in ends if end + 1 not in ends and end + 1 < len(probabilities)]
    assert [shot["start_frame"] for shot in record["shots"]] == [0, *starts]
    assert len(starts) > 0


def saved(out: Path) -> int:
    """How many frames the ledger of a run has."""
    try:
        with LedgerReader(out) as reader:
            state = reader.run_state()
    except OutputError:
        return 0
    return int(sum(track["done"] + track["done_before"] for track in state["tracks"])) if state else 0


def test_after_a_kill_the_same_command_leaves_the_records_of_a_quiet_run(server, media, tmp_path):
    library = tmp_path / "library"
    library.mkdir()
    content = (media / "same-480x270.mp4").read_bytes()
    for k in range(8):
        (library / f"{k}.mp4").write_bytes(content + empty_box(k))
    quiet, out = tmp_path / "quiet", tmp_path / "out"
    assert server.run("shots", library, *LEARNED, "--out", quiet).exit_code == 0
    command = server.command(library, *LEARNED, "--out", out, name="shots")
    with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as run:
        wait_until(lambda: saved(out) > 0, run)
        run.kill()
    assert server.run("shots", library, *LEARNED, "--out", out).exit_code == 0
    assert_same_records(out, quiet)


def test_a_recording_has_turns_where_somebody_speaks(server, tmp_path):
    write(tmp_path / "talk.flac", talk((0, 1.0), (120, 4.0), (0, 3.0), (310, 4.0), (0, 1.0)), RATE, "flac")
    bounds = reelscribe.SpeakerOptions(reelscribe.SpeakerBounds(1, 2))
    (record,) = reelscribe.annotate(
        tmp_path / "talk.flac",
        tmp_path / "out",
        server=reelscribe.Server(server.url, server.token),
        captions=False,
        transcript=False,
        speakers=True,
        speaker_options=bounds,
    )
    assert (record.status, record.audio.seconds, record.segments) == ("ok", 13.0, ())
    assert {turn.speaker for turn in record.turns} <= {"speaker 1", "speaker 2"}
    assert record.turns[0].start == pytest.approx(1, abs=0.1)
    assert record.turns[-1].end == pytest.approx(12, abs=0.1)
    assert not [turn for turn in record.turns if turn.start < 6 < turn.end]
