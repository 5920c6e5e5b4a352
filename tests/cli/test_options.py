"""The options that runs share: their defaults, and how they reach a run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from reelscribe.cli import app
from reelscribe.cli.options.audio import TranscriptOptions
from reelscribe.cli.options.run import RunOptions
from reelscribe.cli.options.subtitles import SubtitleOptions
from reelscribe.cli.options.video import ClipOptions, FrameOptions, VideoOptions
from reelscribe.contract.speech import TranscriptionOptions
from reelscribe.contract.voices import SpeakerBounds
from reelscribe.decode.shots import ShotDetection
from reelscribe.export.cue_rules import CueRules
from reelscribe.run.tracks.captions import CaptionOptions
from reelscribe.run.tracks.shots import LearnedShotOptions, ShotOptions
from reelscribe.run.tracks.speakers import SpeakerOptions
from reelscribe.run.tracks.transcripts import SpeechOptions
from support.fake_torchserve import CLIPS, DESCRIPTION

RUN = RunOptions(sources=["a.mp4"], out="out")


def test_defaults_of_the_commands_are_those_of_the_library():
    assert FrameOptions().caption_options(RUN, VideoOptions()) == CaptionOptions()
    assert TranscriptOptions().speech_options(RUN) == SpeechOptions()
    assert SubtitleOptions().rules() == CueRules()


def test_options_of_the_command_line_and_the_environment_reach_the_run(started, monkeypatch):
    monkeypatch.setenv("REELSCRIBE_DECODE_WORKERS", "3")
    words = ["annotate", "a.mp4", "b.mp4", "--out", "x", "--format", "vtt", "--format", "csv", "--cues", "captions"]
    words += [
        "--server",
        "http://127.0.0.1:1",
        "--fps",
        "0.5",
        "--language",
        "en",
        "--stall-seconds",
        "5",
        "--model",
        "blip2",
        "--speech-model",
        "whisper",
        *("--max-lines", "3", "--karaoke", "--word-times"),
    ]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    run, captioner, speech_model = started["run"], started["captions"], started["transcripts"]
    captions, speech = captioner.options, speech_model.options
    assert (run.sources, run.out, run.formats) == (["a.mp4", "b.mp4"], "x", ["vtt", "csv"])
    assert started["cues"] == "captions"
    assert (started["subtitles"].max_lines, started["subtitles"].karaoke) == (3, True)
    assert captioner.servers == speech_model.servers
    assert (captioner.name, speech_model.name) == ("blip2", "whisper")
    assert (captions.sampling.fps, captions.decode_workers) == (0.5, 3)
    assert (captions.stall_seconds, speech.stall_seconds) == (5, 5)


def test_a_vocabulary_is_given_as_it_is_or_in_files(started, tmp_path):
    (tmp_path / "names.txt").write_text("Zürich\nUster\n", encoding="utf-8-sig")
    words = ["transcribe", "a.mp4", "-o", "out", "--hotwords", f"@{tmp_path}/names.txt", "--initial-prompt", "So."]
    result = CliRunner().invoke(app, [*words, "--beams", "5"])
    assert result.exit_code == 0, result.output
    asked = started["transcripts"].options.transcription
    assert asked == TranscriptionOptions(initial_prompt="So.", hotwords="Zürich\nUster", beams=5)
    result = CliRunner().invoke(app, ["transcribe", "a.mp4", "-o", "out", "--hotwords", "@/none.txt"])
    assert "--hotwords: expected a text file after the @, got /none.txt" in " ".join(result.output.split())


@pytest.fixture
def sampling(started) -> Callable[..., str]:
    """The frames that a command with these words would caption, described, or its message if it refuses them."""

    def sampling(*words: str) -> str:
        result = CliRunner().invoke(app, ["caption", "a.mp4", "-o", "out", "--model", "captioner", *words])
        return started["captions"].options.sampling.describe() if result.exit_code == 0 else result.output

    return sampling


def test_one_frame_a_second_is_captioned_unless_an_option_chooses_others(sampling):
    assert sampling() == "one frame a second"
    assert sampling("--all-frames") == "every frame"
    assert sampling("--frames", "3") == "3 frames of each video"
    assert sampling("--per-shot", "1") == "the middle frame of each shot"


def test_two_ways_of_choosing_frames_contradict_each_other(sampling):
    assert "--all-frames and --every: expected one of them, got both" in sampling("--all-frames", "--every", "2")
    assert "expected one of every, fps, frames, keyframes and per_shot" in sampling("--all-frames", "--fps", "2")


def test_what_counts_as_a_cut_reaches_the_run(started):
    CliRunner().invoke(app, ["shots", "a.mp4", "-o", "out", "--decode-workers", "4"])
    assert started["shots"].options == ShotOptions(ShotDetection(), decode_workers=4)
    cut = ["--shot-threshold", "0.5"]
    CliRunner().invoke(app, ["shots", "a.mp4", "-o", "out", *cut])
    assert started["shots"].options == ShotOptions(ShotDetection(0.5))
    CliRunner().invoke(app, ["caption", "a.mp4", "-o", "out", "--model", "captioner", "--per-shot", "2", *cut])
    assert started["captions"].options.detection == ShotDetection(0.5)


def test_a_shot_model_is_asked_where_its_detector_is_chosen(started):
    learned = ["shots", "a.mp4", "-o", "out", "--shot-detector", "transnetv2", "--server", "http://gpu:1"]
    CliRunner().invoke(app, [*learned, "--shot-model", "mine", "--decode-workers", "3"])
    assert started["shots"].options == LearnedShotOptions(decode_workers=3)
    assert (started["shots"].name, started["shots"].found[0].server.url) == ("mine", "http://gpu:1")
    CliRunner().invoke(app, [*learned, "--shot-threshold", "0.25", "--deinterlace"])
    assert started["shots"].options == LearnedShotOptions(0.25, deinterlace=True)


def test_a_server_in_the_environment_is_for_other_commands(started):
    CliRunner().invoke(app, ["shots", "a.mp4", "-o", "out"], env={"REELSCRIBE_SERVER": "http://gpu:1"})
    assert started["shots"].servers == ()


def test_clips_and_frames_are_of_the_shots_of_the_model_that_is_chosen(started):
    learned = ["a.mp4", "-o", "out", "--shot-detector", "transnetv2", "--shot-threshold", "0.25"]
    CliRunner().invoke(app, ["caption", *learned, "--model", "captioner", "--per-shot", "1"])
    assert started["captions"].options.needs_shots
    assert started["captions"].options.detection == ShotDetection()
    assert started["shots"].options == LearnedShotOptions(0.25)
    started.clear()
    CliRunner().invoke(app, ["annotate", *learned, "--clips", "shots"])
    assert started["clips"].options.needs_shots
    assert {"shots", "transcripts"} <= started.keys()
    CliRunner().invoke(app, ["annotate", *learned, "--clips", "windows"])
    assert not started["clips"].options.needs_shots


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        *(
            ([name, value], f"{name}: expected --shot-detector transnetv2 with it")
            for name, value in (
                ("--shot-model", "mine"),
                ("--server", "http://gpu:1"),
                ("--key-file", "key"),
                ("--directory", "gpu"),
                ("--requests-in-flight", "2"),
            )
        ),
        (["--shot-detector", "other"], "'other' is not one of 'reelscribe', 'transnetv2'"),
        (["--shot-detector", "transnetv2", "--shot-threshold", "1"], "shot threshold: expected a probability"),
    ],
)
def test_options_of_shots_that_do_not_go_together_are_refused(started, words, reason):
    result = CliRunner().invoke(app, ["shots", "a.mp4", "-o", "out", *words], env={"COLUMNS": "200"})
    assert (result.exit_code, started) == (2, {})
    assert reason in result.output


@pytest.mark.parametrize("command", ["transcribe", "annotate"])
def test_speakers_are_told_apart_on_request_as_the_audio_is_cut(started, command):
    words = [command, "a.mp4", "-o", "out", "--server", "http://gpu:1"]
    CliRunner().invoke(app, words)
    assert "speakers" not in started
    CliRunner().invoke(app, [*words, "--speakers", "2..4", "--speaker-model", "mine", "--silence-db", "-50"])
    assert started["speakers"].options == SpeakerOptions(SpeakerBounds(2, 4), silence_db=-50.0)
    assert (started["speakers"].name, started["transcripts"].options.silence_db) == ("mine", -50.0)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--speakers", "auto", "--channels", "separate"], "--speakers: expected it without --channels separate"),
        (["--speaker-model", "mine"], "--speaker-model: expected --speakers with it"),
        (["--speakers", "many"], "speakers: expected auto, a number such as 2, or a range such as 2..4"),
    ],
)
def test_options_of_speakers_that_do_not_go_together_are_refused(started, words, reason):
    result = CliRunner().invoke(app, ["transcribe", "a.mp4", "-o", "out", *words], env={"COLUMNS": "200"})
    assert (result.exit_code, started) == (2, {})
    assert reason in " ".join(result.output.split())


@pytest.mark.parametrize("given", [(), ("--deinterlace",)])
def test_deinterlacing_reaches_frames_clips_and_shots_and_is_in_their_settings(started, given):
    CliRunner().invoke(app, ["shots", "a.mp4", "-o", "out", *given])
    CliRunner().invoke(app, ["caption", "a.mp4", "-o", "out", "--model", "captioner", *given])
    video = VideoOptions(deinterlace=bool(given))
    clips = ClipOptions().clip_options(RUN, video, "fast")
    options = [started["shots"].options, started["captions"].options, clips]
    assert [each.deinterlace for each in options] == [bool(given)] * 3
    assert clips.task("a.mp4", CLIPS, None).deinterlace == bool(given)
    settings = [started["captions"].options.settings(DESCRIPTION), clips.settings(CLIPS)]
    assert [each["deinterlace"] for each in settings] == [bool(given)] * 2


def test_a_threshold_of_cuts_out_of_range_is_refused(started):
    result = CliRunner().invoke(app, ["shots", "a.mp4", "-o", "out", "--shot-threshold", "0"])
    assert (result.exit_code, started) == (2, {})
    assert "shot threshold: expected a number over 0, got 0.0" in result.output


@pytest.mark.parametrize(
    ("wrong", "named"),
    [(["--fsp", "2"], "--fsp"), (["--decode-workers", "none"], "--decode-workers"), ([], "--out")],
)
def test_with_json_log_an_option_that_is_wrong_is_told_as_json_too(wrong, named):
    refused = CliRunner().invoke(app, ["caption", "a.mp4", "--json-log", *wrong])
    event = json.loads(refused.stderr)
    assert (refused.exit_code, event["event"], event["exit_status"]) == (2, "error", 2)
    assert named in event["text"]


@pytest.fixture
def clips(started) -> Callable[..., str]:
    """The clips of a command with these words, described, or its message if it refuses them."""

    def clips(command: str, *words: str) -> str:
        started.clear()
        result = CliRunner().invoke(app, [command, "a.mp4", "-o", "out", *words], env={"COLUMNS": "200"})
        if result.exit_code:
            return f"{result.exit_code}: {result.output}"
        # Without --clips, `caption` asks the server which of the two it can make.
        return (
            started["clips"].options.cutting.describe() if started.keys() & {"captions", "clips"} == {"clips"} else ""
        )

    return clips


@pytest.mark.parametrize("command", ["caption", "annotate"])
def test_every_option_that_decides_something_about_clips_means_clips(clips, tmp_path, command):
    (tmp_path / "schema.json").write_text("{}")
    assert clips(command) == clips(command, "--clips-per-request", "4") == ""
    assert clips(command, "--clip-seconds", "2") == "a clip of each 2 seconds"
    assert clips(command, "--clip-overlap", "1") == "a clip of each 10 seconds"
    for words in (
        ["--clips", "shots"],
        ["--clip-seconds-min", "0"],
        ["--clip-seconds-max", "60"],
        ["--clip-fps", "1"],
        ["--prompt", "?"],
        ["--json-schema", str(tmp_path / "schema.json")],
    ):
        assert clips(command, *words) == "a clip for each shot"


def test_a_length_of_other_clips_is_refused(clips):
    assert clips("caption", "--clips", "shots", "--clip-seconds", "2").startswith(
        "2: reelscribe: clip seconds: expected windows with it, got clips that are shots"
    )
    assert "clip overlap: expected windows" in clips("annotate", "--clips", "shots", "--clip-overlap", "0")
    assert "clip seconds max: expected shots" in clips("caption", "--clip-seconds", "2", "--clip-seconds-max", "9")


def test_clips_on_the_command_line_replace_a_length_of_others_in_a_file(clips, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("reelscribe.toml").write_text('[shared]\nclips = "windows"\nclip-seconds = 5\n')
    assert clips("caption") == "a clip of each 5 seconds"
    assert clips("caption", "--clips", "windows") == "a clip of each 5 seconds"
    assert clips("caption", "--clips", "shots") == "a clip for each shot"
    assert clips("caption", "--clip-seconds-max", "9") == "a clip for each shot"
    Path("reelscribe.toml").write_text('[shared]\nclips = "shots"\n')
    assert clips("caption", "--clip-seconds", "2") == "a clip of each 2 seconds"
    Path("reelscribe.toml").write_text('[shared]\nclips = "shots"\nclip-seconds = 5\n')
    assert "clip seconds: expected windows" in clips("caption")
    assert CliRunner().invoke(app, ["transcribe", "a.mp4", "-o", "out"]).exit_code == 0  # it has no clips


@pytest.mark.parametrize("command", ["caption", "annotate"])
@pytest.mark.parametrize(("given", "thumbnails"), [((), None), (("--thumbnails", "0"), 0), (("--thumbnails", "5"), 5)])
def test_the_number_of_thumbnails_reaches_the_run(started, command, given, thumbnails):
    result = CliRunner().invoke(app, [command, "a.mp4", "--out", "out", "--server", "http://127.0.0.1:1", *given])
    assert result.exit_code == 0, result.output
    assert started["thumbnails"] == thumbnails
