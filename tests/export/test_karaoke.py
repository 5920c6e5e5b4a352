"""Karaoke: each format marks a word while it is spoken, as other programs read it."""

import base64

import av
import pysubs2
import pytest
from typer.testing import CliRunner

from reelscribe.cli import app
from support.browser import open_browser
from support.exporting import both, exported, record, said, transcript_record, utterance

SPOKEN = said("Go <left>, now", pauses={"<left>,": 0.2})
RECORD = transcript_record("a.mp4", segments=[SPOKEN])

READ_TRACK = """url => new Promise((resolve, reject) => {
    const video = document.createElement("video"), track = document.createElement("track");
    track.src = url;
    video.append(track);
    track.track.mode = "hidden";
    track.onerror = reject;
    track.onload = () => resolve([...track.track.cues].map(cue => {
        const shown = cue.getCueAsHTML();
        const times = [...shown.childNodes].filter(node => node.target === "timestamp").map(node => node.data);
        return [cue.startTime, cue.endTime, cue.line, shown.textContent, times];
    }));
})"""
"""Returns the cues of a WebVTT file, as a browser takes them."""


def test_webvtt_has_the_time_of_each_word_that_starts_later_than_its_cue(tmp_path):
    content = (exported(tmp_path, [RECORD], "vtt", karaoke=True) / "vtt/a.mp4.vtt").read_text()
    assert content.split("\n\n")[1:3] == [
        "STYLE\n::cue(:future) {\n  color: #a0a0a0;\n}",
        "1\n00:00:00.000 --> 00:00:01.100\n<c>Go</c> <00:00:00.300><c>&lt;left&gt;,</c> <00:00:00.800><c>now</c>",
    ]


def test_a_browser_takes_cues_and_times_of_words_as_they_are_meant(tmp_path):
    text = "one two & three four <five> six seven eight nine"
    value = both(record("a.mp4", "a dog"), transcript_record("a.mp4", segments=[said(text, seconds=0.5)]))
    content = (exported(tmp_path, [value], "vtt", karaoke=True) / "vtt/a.mp4.vtt").read_bytes()
    with open_browser() as browser:
        found = browser.new_page().evaluate(READ_TRACK, f"data:text/vtt;base64,{base64.b64encode(content).decode()}")
    times = [f"00:00:0{k // 2}.{k % 2 * 5}00" for k in range(1, 10)]
    assert sorted(found) == [
        [0, 1, 0, "[a dog]", []],
        [0, 5, "auto", "one two & three four\n<five> six seven eight nine", times],
    ]


def test_subrip_underlines_the_word_in_a_cue_of_its_own(tmp_path):
    out = exported(tmp_path, [RECORD], "srt", karaoke=True)
    assert (out / "srt/a.mp4.srt").read_text().replace("\u2060", "").split("\n\n")[:-1] == [
        "1\n00:00:00,000 --> 00:00:00,300\n<u>Go</u> <left>, now",
        "2\n00:00:00,300 --> 00:00:00,600\nGo <u><left>,</u> now",
        "3\n00:00:00,600 --> 00:00:00,800\nGo <left>, now",
        "4\n00:00:00,800 --> 00:00:01,100\nGo <left>, <u>now</u>",
    ]
    with av.open(str(out / "srt/a.mp4.srt")) as container:
        packets = [packet for packet in container.demux() if packet.size]
        assert [packet.pts for packet in packets] == [0, 300, 600, 800]


def test_ass_has_the_durations_of_words_and_of_the_pauses_between_them(tmp_path):
    out = exported(tmp_path, [RECORD], "ass", karaoke=True)
    (event,) = pysubs2.load(str(out / "ass/a.mp4.ass"))
    assert (event.start, event.end, event.text) == (0, 1100, r"{\k30}Go {\k30}<left>, {\k20}{\k30}now")
    assert event.plaintext == "Go <left>, now"


def test_words_in_the_second_cue_count_from_its_start(tmp_path):
    text = "The quick brown fox jumps over the lazy dog. " * 3
    out = exported(tmp_path, [transcript_record("a.mp4", segments=[said(text.strip(), 1.004)])], "ass", karaoke=True)
    assert [
        (event.start, event.end, event.text.count(r"{\k30}")) for event in pysubs2.load(str(out / "ass/a.mp4.ass"))
    ] == [
        (1000, 3700, 9),
        (3700, 6400, 9),
        (6400, 9100, 9),
    ]


@pytest.mark.parametrize("kind", ["vtt", "srt", "ass"])
def test_without_times_of_words_nothing_is_marked(tmp_path, kind):
    value = [transcript_record("a.mp4", segments=[utterance(0, 2, "go left")])]
    (tmp_path / "plain").mkdir()
    marked, plain = exported(tmp_path, value, kind, karaoke=True), exported(tmp_path / "plain", value, kind)
    assert (marked / kind / f"a.mp4.{kind}").read_bytes() == (plain / kind / f"a.mp4.{kind}").read_bytes()


def test_a_run_that_records_no_times_of_words_is_refused(tmp_path):
    result = CliRunner().invoke(app, ["transcribe", "a.mp4", "-o", str(tmp_path / "out"), "--karaoke"])
    assert result.exit_code == 2
    assert "--karaoke: expected --word-times or --align-model with it" in result.stderr
    assert not (tmp_path / "out").exists()
