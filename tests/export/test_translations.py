"""Exports of a transcript with its translation into English: files of their own beside the original ones."""

import pytest

from reelscribe.export.beside import write_beside
from reelscribe.export.cue_rules import CueRules
from reelscribe.export.formats import export
from support.exporting import annotations, exported, files, record, rows, spoken_by, transcript_record, utterance


def translated(path="talk.mp4", *texts, language="de", **changes):
    """A record of a transcript in German, with its translation; the texts are those in English."""
    value = transcript_record(path, "Guten Morgen.", "Danke.")
    value["segments"] = [segment | {"language": language} for segment in value["segments"]]
    english = [utterance(k + 0.25, k + 1, text) | {"language": language} for k, text in enumerate(texts)]
    return value | {"translations": english} | changes


TALK = translated("talk.mp4", "Good morning.", "Thanks.")


def test_subtitles_and_texts_in_english_are_beside_the_original_ones(tmp_path):
    out = exported(tmp_path, [TALK], "srt", "vtt", "ass", "txt", cues="auto")
    names = ("talk.mp4", "talk.mp4.en")
    assert set(files(out)) == {f"{kind}/{name}.{kind}" for name in names for kind in ("srt", "vtt", "ass", "txt")}
    assert (out / "txt/talk.mp4.txt").read_text() == "Guten Morgen.\nDanke.\n"
    assert (out / "txt/talk.mp4.en.txt").read_text() == "Good morning.\nThanks.\n"
    for name, first in zip(
        names, ("00:00:00,000 --> 00:00:01,000\nGuten", "00:00:00,250 --> 00:00:01,250\nGood"), strict=True
    ):
        assert (out / f"srt/{name}.srt").read_text().startswith(f"1\n{first}")


def test_the_original_files_are_those_of_a_transcript_alone(tmp_path):
    (tmp_path / "alone").mkdir()
    formats, alone = (
        ("srt", "vtt", "txt", "rttm"),
        {name: value for name, value in TALK.items() if name != "translations"},
    )
    said = spoken_by(alone, "speaker 1")
    both = files(exported(tmp_path, [said | {"translations": TALK["translations"]}], *formats))
    assert {name: both[name] for name in both if ".en." not in name} == files(
        exported(tmp_path / "alone", [said], *formats)
    )


@pytest.mark.parametrize(("cues", "value"), [("captions", TALK), ("auto", translated())])
def test_there_is_no_english_file_where_cues_show_no_translation(tmp_path, cues, value):
    seen = record("talk.mp4", "a dog")
    value = value | {name: seen[name] for name in ("captions", "caption_spans", "caption_settings", "media")}
    assert set(files(exported(tmp_path, [value], "srt", cues=cues))) == {"srt/talk.mp4.srt"}


def test_a_source_that_is_named_like_a_translation_has_files_of_its_own(tmp_path):
    out = exported(tmp_path, [TALK, translated("talk.mp4.en", "Other.")], "txt")
    assert set(files(out)) == {f"txt/talk.mp4{name}.txt" for name in ("", ".en", ".en~2", ".en~2.en")}


def test_doubtful_segments_and_names_of_speakers_are_those_of_translations_too(tmp_path):
    value = spoken_by(TALK, "channel 1")
    english = [segment | {"speaker": "channel 1"} for segment in value["translations"]]
    english[1]["flags"] = ["no-speech"]
    (tmp_path / "speakers.toml").write_text('[speakers]\n"channel 1" = "Agent"')
    path = annotations(tmp_path, [value | {"translations": english}])
    export(path, tmp_path, ["txt"], CueRules(speaker_names=True), drop_doubtful=True)
    assert (tmp_path / "txt/talk.mp4.en.txt").read_text() == "Agent: Good morning.\n"


def test_a_table_has_a_row_for_each_segment_of_a_translation(tmp_path):
    out = exported(tmp_path, [transcript_record("a.mp4", "Hallo."), TALK], "csv")
    assert [row[:5] for row in rows(out / "translations.csv")] == [
        ["source", "start", "end", "text", "language"],
        ["talk.mp4", "0.25", "1.0", "Good morning.", "de"],
        ["talk.mp4", "1.25", "2.0", "Thanks.", "de"],
    ]
    assert [row[3] for row in rows(out / "transcript.csv")[1:]] == ["Hallo.", "Guten Morgen.", "Danke."]


@pytest.mark.parametrize(
    ("language", "names"),
    [
        ("de", {"talk.de.srt": "Guten", "talk.en.srt": "Good"}),
        ("en", {"talk.en.srt": "Guten"}),
        (None, {"talk.srt": "Guten", "talk.en.srt": "Good"}),
    ],
)
def test_beside_a_source_each_language_has_a_file(tmp_path, language, names):
    (tmp_path / "films").mkdir()
    (tmp_path / "out").mkdir()
    value = translated(str(tmp_path / "films/talk.mp4"), "Good morning.", "Thanks.", language=language)
    write_beside(annotations(tmp_path / "out", [value]), tmp_path / "out", ["srt"])
    assert {path.name: path.read_text().split()[4] for path in (tmp_path / "films").iterdir()} == names
