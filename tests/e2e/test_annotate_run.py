"""Pictures and sound in one pass: real files, the real command, a real TorchServe with both trained models."""

import json
import random
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import av
import jiwer
import numpy as np
import pytest

from compare_with_truth import scenes_with_captions, sources_with_transcripts, word_error_rate
from e2e.conftest import ROOT, read_records, run_with_curl, wait_until
from phrases import SAMPLE_RATE, recording
from reelscribe.client.endpoint import Server
from reelscribe.client.models import SpeechClient
from reelscribe.errors import OutputError
from reelscribe.results.ledger import LedgerReader
from reelscribe.run.bulk import BulkRun
from reelscribe.run.transcribing import TranscriptTrack
from support.sounds import write


@pytest.fixture(scope="module")
def annotated(both, media, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("annotated")
    result = both.run("annotate", media, "--out", out, "--format", "vtt")
    assert result.exit_code == 0, result.output
    return out


@pytest.fixture(scope="module")
def talk(tmp_path_factory) -> Path:
    """Two minutes of phrases with half a minute of silence between them."""
    path = tmp_path_factory.mktemp("talk") / "talk.flac"
    samples = recording(random.Random(3), 60, held_out=True).samples
    sound = np.concatenate([samples, np.zeros(30 * SAMPLE_RATE, np.int16), samples])
    write(path, sound.astype(np.float32) / 32768, SAMPLE_RATE, "flac")
    return path


def record_of(out: Path, name: str) -> dict:
    return next(record for record in read_records(out) if record["source"]["path"].endswith(name))


def test_captions_and_words_are_true(annotated):
    records = read_records(annotated)
    frames = sum(record["media"]["frames"] for record in records if record["media"])
    assert sum(captions[scene["caption"]] for scene, captions in scenes_with_captions(records)) / frames >= 0.95
    texts = sources_with_transcripts(records)
    assert {name for name, *_ in texts} == {"spoken.mp4", "phrases.ogg"}
    assert word_error_rate(texts) <= 0.1  # 136 words; scripts/bench speech_accuracy measures with thousands


def test_captions_are_those_of_a_run_without_sound(both, media, annotated, tmp_path):
    assert both.run("caption", media / "spoken.mp4", "--out", tmp_path).exit_code == 0
    (captioned,) = read_records(tmp_path)
    one = record_of(annotated, "spoken.mp4")
    assert {name: one[name] for name in captioned} == captioned


def test_the_transcript_is_that_of_a_run_without_pictures_whatever_the_requests(both, media, annotated, tmp_path):
    assert both.run("transcribe", media, "--out", tmp_path, "--chunks-per-request", "1").exit_code == 0
    for record in read_records(tmp_path):
        one = record_of(annotated, record["source"]["path"])
        assert {name: one[name] for name in record} == record


def test_pictures_without_sound_and_sound_without_pictures_are_fine(annotated):
    mute, sound = record_of(annotated, "old.avi"), record_of(annotated, "phrases.ogg")
    assert (mute["status"], mute["audio"], mute["transcript"]) == ("ok", None, [])
    assert (sound["status"], sound["media"], sound["captions"]) == ("ok", None, [])
    assert (sound["audio"]["codec"], sound["audio"]["channels"]) == ("opus", 1)


def test_each_phrase_is_on_the_timeline_where_it_was_said(annotated, media):
    lines = [json.loads(line) for line in (media / "truth.jsonl").read_text().splitlines()]
    said = [line for line in lines if line["source"] == "phrases.ogg"]
    heard = record_of(annotated, "phrases.ogg")["transcript"]
    found = [
        abs(utterance["start"] - phrase["start"])
        for phrase in said
        for utterance in heard
        if utterance["text"] == phrase["words"]
    ]
    assert len(found) >= 0.6 * len(said)  # others share a segment, or a word was misheard
    assert max(found) <= 0.3


def test_subtitles_hold_both(annotated):
    (text,) = [path.read_text() for path in (annotated / "vtt").rglob("spoken.mp4.vtt")]
    one = record_of(annotated, "spoken.mp4")
    assert all(segment["text"] in text for segment in one["segments"])
    assert all(utterance["text"] in text for utterance in one["transcript"])


def test_a_second_run_does_nothing_and_gives_the_same_bytes(both, media, annotated, tmp_path):
    out = shutil.copytree(annotated, tmp_path / "out")
    result = both.run("annotate", media, "--out", out)
    assert "; nothing new" in result.output
    assert (out / "annotations.jsonl").read_bytes() == (annotated / "annotations.jsonl").read_bytes()


def test_what_was_captioned_before_is_only_transcribed(both, media, tmp_path):
    for command in ("caption", "annotate", "transcribe"):
        result = both.run(command, media / "spoken.mp4", "--out", tmp_path)
        assert ("captions made" in result.output) == (command == "caption")
        assert ("s of sound heard" in result.output) == (command == "annotate")


def test_every_sample_is_heard_or_silent(both, talk, tmp_path):
    assert both.run("transcribe", talk, "--out", tmp_path, "--word-times").exit_code == 0
    (record,) = read_records(tmp_path)
    with av.open(str(talk)) as container:
        samples = sum(frame.samples for frame in container.decode(audio=0))
    assert record["audio"]["seconds"] == samples / SAMPLE_RATE
    (silence,) = record["silences"]
    assert 10 <= silence["end"] - silence["start"] <= 30
    assert all(not silence["start"] < u["end"] < silence["end"] for u in record["transcript"])
    words = [word for utterance in record["transcript"] for word in utterance["words"]]
    assert " ".join(word["text"] for word in words) == " ".join(u["text"] for u in record["transcript"])
    assert [word["start"] for word in words] == sorted(word["start"] for word in words)


def heard_parts(out: Path) -> int:
    with suppress(OutputError), LedgerReader(out) as ledger:
        return len(list(ledger.audio_results(1)))
    return 0  # it is just being made


def test_a_run_that_is_killed_goes_on_inside_the_file(both, talk, tmp_path):
    quiet, out = tmp_path / "quiet", tmp_path / "out"
    both.run("transcribe", talk, "--out", quiet, "--chunks-per-request", "1")
    command = both.command(talk, "--out", out, "--model", "speech", "--chunks-per-request", "1", name="transcribe")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        wait_until(lambda: heard_parts(out), run)
        run.send_signal(signal.SIGKILL)
    assert not (out / "annotations.jsonl").exists()
    (heard,) = re.findall(r"(\d+) s of sound heard", both.run("transcribe", talk, "--out", out).output)
    assert 0 < int(heard) < read_records(out)[0]["audio"]["seconds"] - 5  # one part at least was not heard again
    assert (out / "annotations.jsonl").read_bytes() == (quiet / "annotations.jsonl").read_bytes()


def test_bad_sources_say_why_and_cost_the_others_nothing(both, media, tmp_path):
    (tmp_path / "text.mp4").write_text("this is text\n" * 100)
    (tmp_path / "empty.wav").touch()
    (tmp_path / "cut.flac").write_bytes(b"fLaC" + bytes(100))
    shutil.copy(media / "phrases.ogg", tmp_path / "good.mp3")  # mislabelled
    spoken = (media / "spoken.mp4").read_bytes()
    (tmp_path / "half.mp4").write_bytes(spoken[: len(spoken) // 2])
    result = both.run("annotate", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 3, result.output
    errors = {Path(r["source"]["path"]).name: r.get("error") for r in read_records(tmp_path / "out")}
    assert errors["good.mp3"] is None
    assert "the file is empty" in errors["empty.wav"]["message"]
    assert all(errors[name]["message"] for name in ("text.mp4", "cut.flac", "half.mp4"))


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--language", "xx"], "language: got"),
        (["--task", "sing"], "task: expected one that"),
        (["--silence-db", "3"], "silence-db"),
        (["--search-seconds", "60"], "search"),
        (["--speech-model", "captioner"], "one for speech"),
        (["--cues", "words"], "--cues: expected one of captions, transcript, both"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_done(both, media, tmp_path, options, advice):
    result = both.run("annotate", media, "--out", tmp_path / "out", *options)
    assert result.exit_code in (1, 2)
    assert advice in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_a_file_sent_with_curl_has_the_transcript_of_a_run(both, media, annotated, tmp_path):
    (block,) = re.findall(r"```sh\n([^`]*predictions/speech\n.+?)```", (ROOT / "docs/http-api.md").read_text(), re.S)
    header = tmp_path / "header"
    header.write_text(f"Authorization: Bearer {both.token}\n")
    script = block.replace("http://127.0.0.1:8080", both.url).replace(".server/header", str(header))
    answers = run_with_curl(script, tmp_path).replace("\n}\n{", "\n},\n{")
    plain, timed = json.loads(f"[{answers}]")
    said = " ".join(utterance["text"] for utterance in record_of(annotated, "phrases.ogg")["transcript"])
    assert jiwer.wer(said, plain["text"]) <= 0.05  # the same sound, cut at the same points, resampled elsewhere
    assert timed["text"] == plain["text"]
    assert all(segment["words"] for segment in timed["segments"])


async def test_a_transcript_in_a_program(both, media, tmp_path):
    texts = []

    def on_record(record):
        texts.extend(utterance.text for utterance in record.transcript_result.utterances())

    async with SpeechClient([Server(both.url, both.token)], "speech") as client:
        run = BulkRun([TranscriptTrack(client)], tmp_path, on_record=on_record)
        summary = await run.run([str(media / "spoken.mp4")])
    assert summary.failed == 0
    assert texts == [utterance["text"] for utterance in read_records(tmp_path)[0]["transcript"]]
