"""Speakers in subtitles, plain text, tables and RTTM, and their names in speakers.toml."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from pyarrow import parquet

from reelscribe.errors import UsageError
from reelscribe.export.beside import write_beside
from reelscribe.export.cue_rules import CueRules
from reelscribe.export.formats import export
from reelscribe.export.speakers import NameChange, change_speaker_names
from support.exporting import annotations, rows, spoken_by, transcript_record, utterance

CALL = spoken_by(
    transcript_record("/calls/17.wav", segments=[utterance(0, 4, "How may I help?"), utterance(3, 5, "Hello.")]),
    "channel 1",
    "channel 2",
)
"""A call in which the second speaks before the first is done."""


def exported(folder, *formats, records=(CALL,), names="", **options):
    (folder / "speakers.toml").write_text(names, encoding="utf-8-sig")
    export(annotations(folder, records), folder / "out", formats, CueRules(**options))
    return folder / "out"


def content(folder, suffix, **options):
    out = exported(folder, suffix, **options)
    return (out / suffix / f"17.wav.{suffix}").read_text()


def test_webvtt_has_a_voice_for_each_speaker_and_keeps_overlaps(tmp_path):
    assert content(tmp_path, "vtt").strip().split("\n\n")[1:] == [
        "1\n00:00:00.000 --> 00:00:04.000\n<v channel 1>How may I help?",
        "2\n00:00:03.000 --> 00:00:05.000\n<v channel 2>Hello.",
    ]


def test_a_name_that_looks_like_markup_is_escaped(tmp_path):
    vtt = content(tmp_path, "vtt", names='[speakers]\n"channel 1" = "A > B & <c>"')
    assert "<v A &gt; B &amp; &lt;c&gt;>How" in vtt


def test_subrip_shows_who_speaks_at_once_in_one_cue_and_names_by_option(tmp_path):
    assert content(tmp_path, "srt").split("\n\n")[:2] == [
        "1\n00:00:00,000 --> 00:00:03,000\nHow may I help?",
        "2\n00:00:03,000 --> 00:00:04,000\nHow may I help?\nHello.",
    ]
    named = content(tmp_path, "srt", speaker_names=True)
    assert "00:00:03,000 --> 00:00:04,000\nchannel 1: How may I help?\nchannel 2: Hello." in named


def test_plain_text_has_names_by_option(tmp_path):
    assert content(tmp_path, "txt") == "How may I help?\nHello.\n"
    assert content(tmp_path, "txt", speaker_names=True) == "channel 1: How may I help?\nchannel 2: Hello.\n"


def test_nobody_pauses_while_another_speaks(tmp_path):
    spoken = [utterance(0, 9, "a"), utterance(1, 2, "b"), utterance(8, 9, "c"), utterance(11, 12, "d")]
    text = content(tmp_path, "txt", records=[transcript_record("/calls/17.wav", segments=spoken)])
    assert text == "a\nb\nc\n\nd\n"


def test_rttm_has_a_line_for_each_segment_with_a_speaker(tmp_path):
    nobody = transcript_record("/calls/18.wav", "Hello.")
    names = '[speakers]\n"channel 1" = "Ms Okafor"'
    out = exported(tmp_path, "rttm", records=[CALL, nobody], names=names)
    assert [path.name for path in (out / "rttm").iterdir()] == ["17.wav.rttm"]
    assert (out / "rttm/17.wav.rttm").read_text().splitlines() == [
        "SPEAKER 17 1 0.000 4.000 <NA> <NA> Ms_Okafor <NA> <NA>",
        "SPEAKER 17 1 3.000 2.000 <NA> <NA> channel_2 <NA> <NA>",
    ]


def test_rttm_without_any_speakers_says_how_to_get_some(tmp_path):
    with pytest.raises(UsageError, match=r"expected records with speakers.* --speakers auto"):
        exported(tmp_path, "rttm", records=[transcript_record("a.wav", "Hello.")])


def test_tables_have_a_column_of_speakers(tmp_path):
    names = '[sources."/calls/17.wav"]\n"channel 1" = "=1"'
    out = exported(tmp_path, "csv", "parquet", names=names)
    assert [row[-2] for row in rows(out / "transcript.csv")] == ["speaker", "'=1", "channel 2"]
    assert parquet.read_table(out / "parquet/transcript")["speaker"].to_pylist() == ["=1", "channel 2"]


def test_the_names_of_a_source_come_before_those_of_all(tmp_path):
    other = CALL | {"source": CALL["source"] | {"path": "b/18.wav", "absolute_path": "/calls/b/18.wav"}}
    names = '[speakers]\n"channel 1" = "Agent"\n[sources."b/18.wav"]\n"channel 1" = "Ms Okafor"'
    out = exported(tmp_path, "txt", records=[CALL, other], names=names, speaker_names=True)
    assert (out / "txt/17.wav.txt").read_text() == "Agent: How may I help?\nchannel 2: Hello.\n"
    assert (out / "txt/b/18.wav.txt").read_text() == "Ms Okafor: How may I help?\nchannel 2: Hello.\n"


def test_a_source_whose_path_is_not_utf_8_is_named_by_the_path_in_its_record(tmp_path):
    path = "/calls/\\udce9.wav"
    call = CALL | {"source": CALL["source"] | {"path": path, "absolute_path": path}}
    change_speaker_names(tmp_path, (path, path), [NameChange("channel 1", False, "", "Ms Okafor")])
    out = exported(tmp_path, "rttm", records=[call], names=(tmp_path / "speakers.toml").read_text())
    assert "Ms_Okafor" in (out / "rttm/\udce9.wav.rttm").read_text()


def test_subtitles_beside_sources_have_the_same_names(tmp_path):
    film = tmp_path / "films/a.wav"
    film.parent.mkdir()
    film.touch()
    value = CALL | {"source": CALL["source"] | {"absolute_path": str(film)}}
    (tmp_path / "speakers.toml").write_text('[speakers]\n"channel 2" = "Caller"')
    write_beside(annotations(tmp_path, [value]), tmp_path, ["srt", "vtt"], CueRules(speaker_names=True))
    assert "Caller: Hello." in (film.parent / "a.srt").read_text()
    assert "<v Caller>Hello." in (film.parent / "a.vtt").read_text()


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ('[speakers]\n"chanel 1" = "A"', "no record has the speaker 'chanel 1'; they have 'channel 1', 'channel 2'"),
        ('[sources."/calls/18.wav"]\n"channel 1" = "A"', "no source with a transcript has the path '/calls/18.wav'"),
        ('[sources."/calls/17.wav"]\n"channel 9" = "A"', "no record has the speaker 'channel 9' of /calls/17.wav"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "html"])
def test_names_that_belong_to_nothing_are_told(tmp_path, names, line, kind):
    (tmp_path / "speakers.toml").write_text(names)
    told = []
    export(annotations(tmp_path, [CALL]), tmp_path / "out", [kind], tell=told.append)
    assert any(line in each for each in told)


@pytest.mark.parametrize(
    ("names", "rule"),
    [
        ('"channel 1" = "A"', r"expected the tables \[speakers\] and \[sources.PATH\], got 'channel 1'"),
        ("speakers = 3", "expected a table of names by speakers, got 3"),
        ('[speakers]\n"channel 1" = ""', "'channel 1': expected a name of one line in quotes"),
        ("[speakers", r"speakers.toml: cannot be read: .*; correct it, or remove it"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "html"])
def test_a_file_of_names_that_is_not_as_it_should_be_is_an_error(tmp_path, names, rule, kind):
    with pytest.raises(UsageError, match=rule):
        exported(tmp_path, kind, names=names)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('# a\r\n[speakers]\r\nx = "1"  # b', '# a\r\n[speakers]\r\nx = "2"  # b\ny = "3"\n'),
        (
            '[sources.a]\n\n# a\n[speakers]\nx = "1"\n\n# b\n[sources.b]\nz = "0"\n',
            '[sources.a]\n\n# a\n[speakers]\nx = "2"\ny = "3"\n\n# b\n[sources.b]\nz = "0"\n',
        ),
    ],
)
def test_changing_a_name_leaves_the_rest_of_the_file_as_it_is(tmp_path, before, after):
    path = tmp_path / "speakers.toml"
    path.write_text(before, newline="")
    path.chmod(0o640)
    change_speaker_names(tmp_path, ("b", "/b"), [NameChange("x", True, "1", "2"), NameChange("y", True, "", "3")])
    assert (path.read_bytes().decode(), path.stat().st_mode & 0o777) == (after, 0o640)


def test_names_that_are_saved_at_once_are_all_there(tmp_path):
    speakers = [f"channel {k}" for k in range(20)]
    with ThreadPoolExecutor(8) as threads:
        changes = [[NameChange(each, False, "", "Ann")] for each in speakers]
        list(threads.map(change_speaker_names, [tmp_path] * 20, [("a", "/a")] * 20, changes))
    assert (tmp_path / "speakers.toml").read_text().count('" = "Ann"') == 20
