"""The page of a source shows all lines of its record, also of one that is odd, long, or not what it should be."""

import json
import re

import aiohttp
import pytest

from reelscribe.contract.outcomes import SourceSummary
from reelscribe.viewer.content.source_page import LINES_A_SECTION, SourcePage
from reelscribe.viewer.index.saved_record import read_record
from reelscribe.viewer.index.source_row import read_line
from reelscribe.viewer.media.media_files import MediaFiles, playback_of_format
from reelscribe.viewer.pages.views import Site, Speaker
from support.browsing import browsing, count_hits, names, open_index, segments, write_annotations
from support.exporting import audio, record, spoken_by, transcript_record, video, with_summary


@pytest.fixture
def view_of(tmp_path, thumbnails):
    """Return a function that returns the page of the only source of a folder at a time."""
    with open_index(tmp_path) as index:

        def view(value: dict, seconds: float = 0.0):
            write_annotations(tmp_path, value)
            index.refresh()
            with index.reader() as reader:
                ((id_,),) = reader.library.execute("SELECT id FROM sources")
            return SourcePage(tmp_path, index, thumbnails, MediaFiles(tmp_path)).view(Site("out"), id_, seconds, "")

        yield view


def span(start: float) -> dict:
    return {"start": start, "end": start + 1.0, "text": f"line at {start:g}"}


def lines(view) -> list[str]:
    return [line.text for track in view.tracks for line in track.lines]


def test_each_line_is_in_one_section_also_before_the_beginning_of_the_source(view_of):
    value = record("a.mp4", start=100.0, caption_spans=[span(k) for k in range(5000)])
    sections = view_of(value).sections
    shown = [lines(view_of(value, section.start)) for section in sections]
    assert [len(some) for some in shown] == [2000, 2000, 1000]
    assert sorted(line for some in shown for line in some) == sorted(f"line at {k}" for k in range(5000))
    assert [(one.start, one.end) for one in sections] == [(0.0, 2000.0), (2000.0, 4000.0), (4000.0, 5000.0)]


def test_lines_have_the_speakers_with_the_names_of_speakers_toml(view_of, tmp_path):
    value = transcript_record("a.mp4", "Hello.", "Yes?", "Good morning.")
    value = spoken_by(value, "channel 2", "channel 1")
    value["speech_failures"] = [{"start": 5.0, "end": 6.0, "error": "x", "speaker": "channel 2"}]
    (tmp_path / "speakers.toml").write_text('[speakers]\n"channel 2" = "Agent"\n"channel 7" = "Nobody"')
    assert [line.speaker for line in view_of(value).tracks[0].lines] == [
        *(Speaker("Agent", 1), Speaker("channel 1", 0), Speaker("Agent", 1), Speaker("Agent", 1))
    ]


def test_without_a_transcript_turns_are_a_track(view_of):
    turns = [{"start": 0.5, "end": 2.0, "speaker": "speaker 1"}, {"start": 1.5, "end": 3.0, "speaker": "speaker 2"}]
    told = {"speaker_settings": "c0", "turns": turns}
    (track,) = view_of(record("a.mp4", caption_settings=None) | told).tracks
    assert (track.kind, [(line.start, line.end) for line in track.lines]) == ("speakers", [(0.5, 2.0), (1.5, 3.0)])
    assert [line.speaker for line in track.lines] == [Speaker("speaker 1", 0), Speaker("speaker 2", 1)]
    (said,) = view_of(transcript_record("a.mp4", "Hello.") | told).tracks
    assert said.kind == "transcript"


def test_a_translation_is_a_track_beside_the_transcript(view_of):
    value = spoken_by(transcript_record("a.mp4", "Guten Morgen."), "channel 1")
    english = {"start": 0.5, "end": 1.0, "text": "Good morning.", "flags": ["no-speech"], "speaker": "channel 1"}
    said, translated = view_of(value | {"translations": [english]}).tracks
    assert (said.kind, translated.kind, translated.total) == ("transcript", "translations", 1)
    (line,) = translated.lines
    assert (line.start, line.text, line.flags, line.speaker) == (
        0.5,
        "Good morning.",
        ("no-speech",),
        Speaker("channel 1", 0),
    )


def test_a_page_tells_that_speakers_toml_cannot_be_read(view_of, tmp_path):
    (tmp_path / "speakers.toml").write_text("[speakers")
    view = view_of(spoken_by(transcript_record("a.mp4", "Hello."), "channel 1"))
    assert "speakers.toml: cannot be read" in view.site.notices[0]
    assert view.tracks[0].lines[0].speaker == Speaker("channel 1", 0)


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ({"width": 1920, "height": 1080}, "1920 x 1080, "),
        ({"width": 1920, "height": 1080, "rotation": 90}, "1080 x 1920 (stored as 1920 x 1080), "),
        ({"width": 720, "height": 576, "pixel_aspect": 16 / 15}, "768 x 576 (stored as 720 x 576), "),
        ({"width": 9, "height": 16, "pixel_aspect": 1e308}, "9 x 16, "),  # a record may say anything
    ],
)
def test_the_size_of_a_video_is_the_one_that_players_show(view_of, stored, shown):
    assert view_of(record("a.mp4", media=video() | stored)).facts[0].value.startswith(shown)


def test_streams_that_were_not_read_are_counted_and_a_preview_plays_the_one_that_was(view_of):
    value = record("a.mp4", media=video(), audio=audio() | {"stream_index": 2, "other_streams": 3})
    shown, heard, *_ = view_of(value).facts
    assert (shown.label, heard.label) == ("Video", "Audio")
    assert "not read" not in shown.value
    assert heard.value.endswith("; 3 other streams of the file not read")
    line = json.dumps(value).encode()
    row, saved = read_line(line, doc=0, file=0, start=0).row, read_record(line)
    assert playback_of_format(row, saved, previews=False).player == "video"
    assert playback_of_format(row, saved, previews=True).player == "preview"


def test_of_lines_that_begin_together_the_first_are_shown_and_the_others_counted(view_of):
    view = view_of(record("a.mp4", caption_spans=[span(7.0)] * 50_000))
    assert view.sections == ()
    assert len(lines(view)) == 2 * LINES_A_SECTION
    assert view.site.notices[0].startswith("46,000 lines that begin at the same time")


def test_a_page_of_very_many_words_shows_them_without_their_times(view_of):
    word = {"start": 0.0, "end": 1.0, "text": "a"}
    spoken = [each | {"words": [word] * 1000} for each in segments(*["a" * 1000] * 101)]
    view = view_of(record("a.mp4", segments=spoken[:100]))
    assert len(view.tracks[0].lines[0].words) == 1000
    view = view_of(record("a.mp4", segments=spoken))
    assert view.tracks[0].lines[0].words == ()
    assert lines(view) == ["a" * 1000] * 101


def test_a_text_without_its_time_is_in_no_library(tmp_path):
    write_annotations(tmp_path, record("a.mp4", caption_spans=[{"text": "word"}]), record("b.mp4", "word"))
    with open_index(tmp_path) as index:
        assert names(index) == ["b.mp4"]
        assert count_hits(index, "word") == 1
        assert "1 " in " ".join(index.notices)


async def test_a_record_that_has_not_what_it_should_says_so_on_its_page(tmp_path):
    write_annotations(tmp_path, record("a.mp4", "a caption", shots=[{"start": "soon"}]))
    with browsing(tmp_path) as address:
        async with aiohttp.ClientSession() as client:
            async with client.get(address) as response:
                (id_,) = set(re.findall(r"source/([0-9a-f]{16})", await response.text()))
            async with client.get(f"{address}source/{id_}") as response:
                assert response.status == 200
                assert "The record of this source cannot be read: Expected `float`, got `str`" in await response.text()


def test_the_summary_and_its_title_are_those_of_the_record(view_of):
    view = view_of(with_summary(record("a.mp4", "a dog"), "A dog", "It runs.", ["dog"]))
    assert (view.summary, view.card.title) == (SourceSummary("A dog", "It runs.", ("dog",)), "A dog")
    view = view_of(record("a.mp4", "a dog"))
    assert (view.summary, view.card.title) == (None, "")


async def test_a_served_page_shows_the_summary_as_text(tmp_path):
    write_annotations(tmp_path, with_summary(record("a.mp4", "a dog"), "<b>Dogs</b> & cats"))
    with browsing(tmp_path) as address:
        async with aiohttp.ClientSession() as session, session.get(address) as response:
            library = await response.text()
            (page,) = set(re.findall(r'href="\./(source/[^"#]+)"', library))
            async with session.get(address + page) as response:
                source = await response.text()
    assert "&lt;b&gt;Dogs&lt;/b&gt; &amp; cats" in library
    assert "&lt;b&gt;Dogs&lt;/b&gt; &amp; cats" in source


async def test_a_summary_is_at_the_top_of_the_page_escaped_and_found_by_search(tmp_path):
    texts = "<b>Zebras</b>", "They graze. They run. They sleep.", ["savanna", "<i>"]
    write_annotations(tmp_path, with_summary(record("a.mp4", "x"), *texts))
    with open_index(tmp_path) as index:
        assert [count_hits(index, word) for word in ("zebras", "graze", "savanna", "lion")] == [1, 1, 1, 0]
        with index.reader() as reader:
            ((id_,),) = reader.library.execute("SELECT id FROM sources")
    with browsing(tmp_path) as address:
        async with aiohttp.ClientSession() as session, session.get(f"{address}source/{id_}") as page:
            text = await page.text()
        async with aiohttp.ClientSession() as session, session.get(f"{address}search?q=savanna") as hits:
            found = await hits.text()
    assert "&lt;b&gt;Zebras&lt;/b&gt;" in text
    assert "<b>Zebras" not in text
    assert text.index("They graze.") < text.index("Captions")
    assert "Summary" in found
    assert "<mark>savanna</mark>" in found
