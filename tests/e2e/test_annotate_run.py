"""Frames and audio in one pass: real files, the real command, a real TorchServe with both trained models."""

import json
import random
import re
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import pytest
from typer.testing import CliRunner

from compare_with_truth import sources_with_transcripts, word_error_rate
from reelscribe import OutputError, Run, Server, SpeechClient, TranscriptTrack
from reelscribe._values import SavedRecord
from reelscribe.cli import app
from reelscribe.results.ledger_reader import LedgerReader
from servers.torchserve import ROOT
from support.alike import assert_alike
from support.audio import write
from support.servers import assert_same_records, read_records, record_of, run_with_curl, wait_until
from synthetic.phrases import SAMPLE_RATE, recording

TALK_OPTIONS = ("--word-times", "--chunks-per-request", "1")


@pytest.fixture(scope="module")
def talk(tmp_path_factory) -> Path:
    """Two minutes of phrases with half a minute of silence between them."""
    path = tmp_path_factory.mktemp("talk") / "talk.flac"
    samples = recording(random.Random(3), 60, held_out=True).samples
    audio = np.concatenate([samples, np.zeros(30 * SAMPLE_RATE, np.int16), samples])
    write(path, audio.astype(np.float32) / 32768, SAMPLE_RATE, "flac")
    return path


@pytest.fixture(scope="module")
def transcribed_talk(server, talk, tmp_path_factory) -> Path:
    """The output folder of an undisturbed run over the talk."""
    out = tmp_path_factory.mktemp("transcribed")
    assert server.run("transcribe", talk, "--out", out, *TALK_OPTIONS).exit_code == 0
    return out


def kinds_of(record: dict, *beginnings: str) -> dict:
    """The fields of a record whose names begin like this."""
    return {name: value for name, value in record.items() if name.startswith(beginnings)}


def test_words_are_true(annotated):
    texts = sources_with_transcripts(read_records(annotated))
    assert {name for name, *_ in texts} == {"spoken.mp4", "phrases.ogg"}
    assert word_error_rate(texts) <= 0.1  # 136 words; scripts/bench speech_accuracy measures with thousands


def test_captions_are_those_of_a_run_without_audio(server, media, annotated, tmp_path):
    assert server.run("caption", media / "spoken.mp4", "--out", tmp_path).exit_code == 0
    (captioned,) = read_records(tmp_path)
    one = record_of(annotated, "spoken.mp4")
    assert_alike(kinds_of(one, "media", "caption"), kinds_of(captioned, "media", "caption"))


def test_the_transcript_is_that_of_a_run_without_frames_and_with_other_requests(server, media, annotated, tmp_path):
    assert server.run("transcribe", media, "--out", tmp_path, "--chunks-per-request", "1").exit_code == 0
    for record in read_records(tmp_path):
        one = record_of(annotated, record["source"]["path"])
        # The settings name the size of requests, as it decides about an unsure language.
        speech = ("source", "audio", "segments", "silences", "speech_failures")
        assert_alike(kinds_of(one, *speech), kinds_of(record, *speech))


def test_words_have_the_times_of_a_model_that_aligns_them(server, media, annotated, tmp_path):
    options = ("--align-model", "aligner", "--out", tmp_path)
    assert server.run("transcribe", media / "phrases.ogg", *options).exit_code == 0
    (record,) = read_records(tmp_path)
    segments = record["segments"]
    assert [segment["text"] for segment in segments] == [
        segment["text"] for segment in record_of(annotated, "phrases.ogg")["segments"]
    ]
    assert all(" ".join(word["text"] for word in segment["words"]) == segment["text"] for segment in segments)
    times = [time for segment in segments for word in segment["words"] for time in (word["start"], word["end"])]
    assert times == sorted(times)
    first = (tmp_path / "annotations.jsonl").read_bytes()
    assert server.run("transcribe", media / "phrases.ogg", *options).exit_code == 0
    assert (tmp_path / "annotations.jsonl").read_bytes() == first
    models = ("--model", "speech", "--align-model", "speech")
    refused = server.run("transcribe", media / "phrases.ogg", *models, "--out", tmp_path / "no")
    assert (refused.exit_code, "expected one with a CTC head" in refused.stderr) == (2, True)


def test_a_language_is_detected_among_all_or_some_or_given(server, media, tmp_path):
    def languages(*options: str) -> list[tuple[str, float | None]]:
        out = tmp_path / "-".join(("out", *options))
        assert server.run("transcribe", media / "phrases.ogg", "--out", out, *options).exit_code == 0
        return [(each["language"], each["language_probability"]) for each in read_records(out)[0]["segments"]]

    of_all, of_two = languages(), languages("--language", "de,en")
    assert {language for language, _ in of_all + of_two} == {"en"}
    assert all(0.5 < one <= other <= 1 for (_, one), (_, other) in zip(of_all, of_two, strict=True))
    assert set(languages("--language", "en")) == {("en", None)}


def test_a_row_of_a_list_gives_what_the_options_of_a_command_give(server, media, tmp_path):
    table, spoken = tmp_path / "films.csv", media / "spoken.mp4"
    table.write_text(f"path,language,start,end\n{spoken},en,2,5\n{media / 'old.avi'},xx,,\n")
    listed = server.run("annotate", "--from", table, "--out", tmp_path / "listed")
    assert listed.exit_code == 3, listed.output
    chosen = ("--language", "en", "--start", "2", "--end", "5")
    assert server.run("annotate", spoken, "--out", tmp_path / "chosen", *chosen).exit_code == 0
    (expected,) = read_records(tmp_path / "chosen")
    expected["extra"] = {"language": "en", "start": "2", "end": "5"}
    assert_alike(record_of(tmp_path / "listed", "spoken.mp4"), expected)
    refused = record_of(tmp_path / "listed", "old.avi")["error"]["message"]
    assert refused.startswith(f"{table}:3: language: expected one that ")


def test_video_without_audio_and_audio_without_video_are_fine(annotated):
    mute, audio = record_of(annotated, "old.avi"), record_of(annotated, "phrases.ogg")
    assert (mute["status"], mute["audio"], mute["segments"]) == ("ok", None, [])
    assert (audio["status"], audio["media"], audio["captions"]) == ("ok", None, [])
    assert (audio["audio"]["codec"], audio["audio"]["channels"]) == ("opus", 1)


def test_each_phrase_is_at_its_time_in_the_transcript(annotated, media):
    lines = [json.loads(line) for line in (media / "truth.jsonl").read_text().splitlines()]
    phrases = [line for line in lines if line["source"] == "phrases.ogg"]
    transcript = record_of(annotated, "phrases.ogg")["segments"]
    found = [
        abs(utterance["start"] - phrase["start"])
        for phrase in phrases
        for utterance in transcript
        if utterance["text"] == phrase["words"]
    ]
    assert len(found) >= 0.6 * len(phrases)  # others share a segment, or a word was misheard
    assert max(found) <= 0.3


def test_subtitles_hold_both(annotated):
    (text,) = [" ".join(path.read_text().split()) for path in (annotated / "vtt").rglob("spoken.mp4.vtt")]
    one = record_of(annotated, "spoken.mp4")
    assert all(segment["text"] in text for segment in one["caption_spans"])
    assert all(utterance["text"] in text for utterance in one["segments"])


def test_a_second_run_does_nothing_and_gives_the_same_bytes(server, media, annotated, tmp_path):
    out = shutil.copytree(annotated, tmp_path / "out")
    result = server.run("annotate", media, "--out", out)
    assert "nothing new" in result.output
    assert (out / "annotations.jsonl").read_bytes() == (annotated / "annotations.jsonl").read_bytes()


def test_a_captioned_source_is_only_transcribed(server, media, tmp_path):
    for command in ("caption", "annotate", "transcribe"):
        result = server.run(command, media / "spoken.mp4", "--out", tmp_path)
        assert ("captions made" in result.output) == (command == "caption")
        assert ("of audio transcribed" in result.output) == (command == "annotate")


def test_the_folder_of_a_server_tells_its_address_its_key_and_its_only_model(server, joining, media, tmp_path):
    words = ["caption", str(media / "old.avi"), "--frames", "1", "--out", str(tmp_path), "--directory"]
    done = CliRunner().invoke(app, [*words, str(joining.instance.directory)])
    assert done.exit_code == 0, done.output
    several = CliRunner().invoke(app, [*words, str(server.instance.directory)])
    assert several.exit_code == 2
    assert "expected one captioner, got bundled, captioner, dynamic, slow; choose one with --model" in several.output


def test_every_sample_is_transcribed_or_silent(talk, transcribed_talk):
    (record,) = read_records(transcribed_talk)
    with av.open(str(talk)) as container:
        samples = sum(frame.samples for frame in container.decode(audio=0))
    assert record["audio"]["seconds"] == samples / SAMPLE_RATE
    (silence,) = record["silences"]
    assert 10 <= silence["end"] - silence["start"] <= 30
    assert all(not silence["start"] < u["end"] < silence["end"] for u in record["segments"])
    words = [word for utterance in record["segments"] for word in utterance["words"]]
    assert " ".join(word["text"] for word in words) == " ".join(u["text"] for u in record["segments"])
    assert [word["start"] for word in words] == sorted(word["start"] for word in words)


CALL_OPTIONS = (*TALK_OPTIONS, "--channels", "separate", "--language", "en")


@pytest.fixture(scope="module")
def call(tmp_path_factory) -> Path:
    """A folder with a call, in which both sides often speak at once, and with a recording of each side."""
    folder = tmp_path_factory.mktemp("call")
    sides = [recording(random.Random(seed), 12, held_out=True).samples for seed in (3, 4)]
    sides = [side[: min(map(len, sides))].astype(np.float32) / 32768 for side in sides]
    write(folder / "call.flac", np.stack(sides), SAMPLE_RATE, "flac", "stereo")
    for k, side in enumerate(sides, 1):
        write(folder / f"{k}.flac", side, SAMPLE_RATE, "flac")
    return folder


@pytest.fixture(scope="module")
def transcribed_call(server, call, tmp_path_factory) -> Path:
    """The output folder of an undisturbed run over the call."""
    out = tmp_path_factory.mktemp("transcribed-call")
    result = server.run("transcribe", call, "--out", out, *CALL_OPTIONS, "--format", "vtt", "--format", "rttm")
    assert result.exit_code == 0, result.output
    return out


def of_speaker(values: list[dict], speaker: str) -> list[dict]:
    """What is of a speaker, as a record without speakers has it."""
    own = [{**value} for value in values if value.pop("speaker") == speaker]
    for value in own:
        assert {word.pop("speaker") for word in value.get("words") or []} <= {speaker}
    return own


def test_each_channel_has_the_transcript_of_a_recording_of_its_own(call, transcribed_call):
    alone = [record_of(transcribed_call, f"{k}.flac") for k in (1, 2)]
    for k, side in enumerate(alone, 1):
        both = record_of(transcribed_call, "call.flac")
        assert_alike(of_speaker(both["segments"], f"channel {k}"), side["segments"])
        assert len(side["segments"]) > 3
        assert both["audio"]["seconds"] == side["audio"]["seconds"]
    segments = record_of(transcribed_call, "call.flac")["segments"]
    assert [segment["start"] for segment in segments] == sorted(segment["start"] for segment in segments)
    assert "<v channel 2>" in (transcribed_call / "vtt/call.flac.vtt").read_text()
    assert "<v " not in (transcribed_call / "vtt/1.flac.vtt").read_text()
    assert len((transcribed_call / "rttm/call.flac.rttm").read_text().splitlines()) == len(segments)
    for line in (transcribed_call / "annotations.jsonl").read_bytes().splitlines():
        assert SavedRecord.from_line(line).to_dict() == json.loads(line)


def test_a_call_whose_run_is_killed_is_resumed_exactly(server, call, transcribed_call, tmp_path):
    command = server.with_model("speech").command(call, "--out", tmp_path, *CALL_OPTIONS, name="transcribe")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        wait_until(lambda: saved_chunks(tmp_path), run)
        run.send_signal(signal.SIGKILL)
    rest = server.run("transcribe", call, "--out", tmp_path, *CALL_OPTIONS, "--chunks-per-request", "3")
    assert rest.exit_code == 0, rest.output
    assert_same_records(tmp_path, transcribed_call)


def saved_chunks(out: Path) -> int:
    with suppress(OutputError), LedgerReader(out) as ledger:
        return len(list(ledger.audio_results(1)))
    return 0  # the ledger is being created


def test_a_run_that_is_killed_resumes_inside_the_file(server, talk, transcribed_talk, tmp_path):
    speech = server.with_model("speech")
    command = speech.command(talk, "--out", tmp_path, *TALK_OPTIONS, name="transcribe")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        wait_until(lambda: saved_chunks(tmp_path), run)
        run.send_signal(signal.SIGKILL)
    assert not (tmp_path / "annotations.jsonl").exists()
    rest = server.run("transcribe", talk, "--out", tmp_path, *TALK_OPTIONS)
    assert rest.exit_code == 0, rest.output
    with LedgerReader(tmp_path) as ledger:
        seconds = ledger.run_state()["tracks"][0]["done"]
    # At least one chunk was not transcribed again.
    assert 0 < seconds < read_records(tmp_path)[0]["audio"]["seconds"] - 5
    assert_same_records(tmp_path, transcribed_talk)


def test_a_translation_is_beside_the_transcript(server, media, annotated, tmp_path):
    source = shutil.copy(media / "phrases.ogg", tmp_path)
    options = ("--task", "both", "--format", "txt", "--beside", "srt")
    result = server.run("transcribe", source, "--out", tmp_path / "out", *options)
    assert result.exit_code == 0, result.output
    (record,) = read_records(tmp_path / "out")
    assert_alike(record["segments"], record_of(annotated, "phrases.ogg")["segments"])
    assert len(record["translations"]) > 5
    assert {path.name for path in (tmp_path / "out/txt").iterdir()} == {"phrases.ogg.txt", "phrases.ogg.en.txt"}
    english = "".join(f"{segment['text']}\n" for segment in record["translations"])
    assert (tmp_path / "out/txt/phrases.ogg.en.txt").read_text().replace("\n\n", "\n") == english
    assert (tmp_path / "phrases.en.srt").exists()  # this speech is English, so one name is that of both


def test_bad_sources_say_why_and_cost_the_others_nothing(server, media, tmp_path):
    (tmp_path / "text.mp4").write_text("this is text\n" * 100)
    (tmp_path / "empty.wav").touch()
    (tmp_path / "cut.flac").write_bytes(b"fLaC" + bytes(100))
    shutil.copy(media / "phrases.ogg", tmp_path / "good.mp3")  # mislabelled
    spoken = (media / "spoken.mp4").read_bytes()
    (tmp_path / "half.mp4").write_bytes(spoken[: len(spoken) // 2])
    result = server.run("annotate", tmp_path, "--out", tmp_path / "out")
    assert result.exit_code == 3, result.output
    errors = {Path(r["source"]["path"]).name: r["error"] for r in read_records(tmp_path / "out")}
    assert errors["good.mp3"] is None
    assert "the file is empty" in errors["empty.wav"]["message"]
    assert all(errors[name]["message"] for name in ("text.mp4", "cut.flac", "half.mp4"))


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (["--language", "xx"], "language: expected one that"),
        (["--task", "sing"], "task: expected one that"),
        (["--silence-db", "3"], "silence-db"),
        (["--channels", "left"], "--channels: expected one of mix, separate, got 'left'"),
        (["--search-seconds", "60"], "search"),
        (["--speech-model", "captioner"], "expected a speech model, got the caption model"),
        (["--cues", "words"], "--cues: expected one of auto, captions, clips, transcript, both"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(server, media, tmp_path, options, advice):
    result = server.run("annotate", media, "--out", tmp_path / "out", *options)
    assert result.exit_code in (1, 2)
    assert advice in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_a_file_sent_with_curl_has_the_transcript_of_a_run(server, media, annotated, tmp_path):
    document = (ROOT / "docs" / "http-api.md").read_text()
    (block,) = re.findall(r"```sh\n([^`]*predictions/speech\n.+?)```", document, re.S)
    header = tmp_path / "header"
    header.write_text(f"Authorization: Bearer {server.token}\n")
    script = block.replace("http://127.0.0.1:8080", server.url).replace(".server/header", str(header))
    plain, timed = map(json.loads, run_with_curl(script, tmp_path).splitlines())  # each answer is one line
    expected = " ".join(utterance["text"] for utterance in record_of(annotated, "phrases.ogg")["segments"])
    assert plain["text"] == expected
    assert timed["text"] == plain["text"]
    assert all(segment["words"] for segment in timed["segments"])
    assert all(-1 < segment["avg_logprob"] < 0 for segment in timed["segments"])
    assert all(0 <= word["probability"] <= 1 for segment in timed["segments"] for word in segment["words"])


async def test_a_transcript_in_a_program(server, media, tmp_path):
    texts = []

    def on_record(record):
        texts.extend(utterance.text for utterance in record.transcript_result.utterances())

    async with SpeechClient([Server(server.url, server.token)], "speech") as client:
        run = Run([TranscriptTrack(client)], tmp_path, on_record=on_record)
        summary = await run.run([str(media / "spoken.mp4")])
    assert summary.failed == 0
    assert texts == [utterance["text"] for utterance in read_records(tmp_path)[0]["segments"]]
