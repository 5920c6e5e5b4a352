"""Notebooks show records and captions with pictures."""

import json
import shutil
from html.parser import HTMLParser

import numpy as np
import pytest

from reelscribe import Results
from reelscribe.contract.outcomes import Caption, DescribedClip, Failure, SourceError, Utterance
from reelscribe.contract.source import Source
from reelscribe.results.records import CaptionResult, Model, ModelSettings, Record
from reelscribe.thumbnails.pictures import to_webp
from reelscribe.thumbnails.store import ThumbnailStore

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e&\"'" + "x" * 10**6
SHA256 = "ab" * 32


class Shown(HTMLParser):
    """The content of HTML: its tags, its pictures and its text."""

    def __init__(self, value: object) -> None:
        super().__init__()
        self.tags, self.sources, self.text = set(), [], ""
        self.feed(value._repr_html_())

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.sources += [value for name, value in attributes if name == "src"]

    def handle_data(self, data):
        self.text += data


def record(path, captions, **fields) -> Record:
    settings = ModelSettings(json.dumps({}), Model("model", "1"), {})
    result = CaptionResult(settings, results=lambda: captions)
    return Record(Source(str(path), None, SHA256), result, absolute_path=str(path), **fields)


def captions_at(*times: float) -> list[Caption]:
    return [Caption(k, time, f"at {time}") for k, time in enumerate(times)]


def test_a_caption_is_shown_as_time_and_text():
    shown = Shown(Caption(7, 3725.5, "a <b> dog"))
    assert shown.text == "1:02:05.500 a <b> dog"
    assert shown.tags == {"small", "bdi"}


def utterance(start: float, text: str) -> Utterance:
    return Utterance(start, start + 1, text, "en", None)


@pytest.mark.parametrize(
    "made",
    [
        lambda time: Caption(0, time, f"at {time}"),
        lambda time: DescribedClip(time, time + 1, 4, f"at {time}", "complete", 3),
        lambda time: utterance(time, f"at {time}"),
    ],
    ids=["captions", "clips", "utterances"],
)
def test_the_results_of_a_file_are_a_list_and_shown_with_pictures(media, made):
    results = [made(1.0), made(5.0), Failure(9, 6.0, "no <b>")]
    shown = Results(results, str(media / "spoken.mp4"))
    assert shown == results
    assert str(shown) == "0:00:01.000 at 1.0\n0:00:05.000 at 5.0\n0:00:06.000 no caption: no <b>"
    html = Shown(shown)
    assert len(html.sources) == 2
    assert all(source.startswith("data:image/webp;base64,") for source in html.sources)
    assert "1 failure; the first one: 0:00:06.000 no caption: no <b>" in html.text
    assert "at 1.0" in html.text
    assert "at 5.0" in html.text


def test_results_of_an_array_are_shown_as_text_and_of_many_the_first():
    html = Shown(Results([utterance(float(k), f"word {k}") for k in range(1007)]))
    assert html.sources == []
    assert html.text.startswith("0:00:00.000 word 0")
    assert html.text.endswith("word 4and 1,002 more")


def test_a_record_is_shown_with_the_thumbnails_of_its_run(tmp_path):
    store = ThumbnailStore(tmp_path)
    for time in (1.0, 2.0):
        store.write(SHA256, time, to_webp(np.zeros((18, 32, 3), np.uint8)))
    shown = Shown(record("/gone/dog.mp4", captions_at(1.0, 1.5, 2.1), folder=tmp_path))
    assert len(shown.sources) == 2
    assert shown.text == "/gone/dog.mp40:00:01.000 at 1.00:00:02.000 at 2.1"


def test_a_record_whose_file_is_gone_is_text_alone(tmp_path):
    error = SourceError("MediaError", "it is <gone>")
    shown = Shown(record(tmp_path / "gone.mp4", captions_at(1.0), folder=tmp_path, unreadable=error))
    assert not shown.sources
    assert "MediaError: it is <gone>" in shown.text
    assert "There are no pictures, because the file is gone." in shown.text
    assert "at 1.0" in shown.text


def test_a_record_of_a_source_in_a_store_is_text_alone_if_its_run_kept_no_thumbnails(tmp_path):
    shown = Shown(record("s3://bucket/dog.mp4", captions_at(1.0), folder=tmp_path))
    assert not shown.sources
    assert "the run kept none, and the source is in a store." in shown.text
    assert "at 1.0" in shown.text


@pytest.mark.parametrize("name", ["spoken.mp4", "phrases.ogg"])
def test_pictures_are_made_where_the_run_kept_none(media, tmp_path, name):
    shutil.copy(media / name, tmp_path / name)
    shown = Shown(record(tmp_path / name, captions_at(1.0, 2.0), folder=tmp_path))
    assert len(shown.sources) == (2 if name == "spoken.mp4" else 0)


def test_hostile_text_is_shown_as_text_and_shortened(tmp_path):
    shown = Shown(record(tmp_path / "<img src=x onerror=alert(1)>.mp4", [Caption(0, 0.0, HOSTILE)]))
    assert "script" not in shown.tags
    assert "img" not in shown.tags
    assert "<script>alert(1)</script>\\x1b[31m\\u202e" in shown.text
    assert len(shown.text) < 1000


def test_of_very_many_captions_twelve_are_shown(tmp_path):
    shown = Shown(record(tmp_path / "gone.mp4", captions_at(*map(float, range(10**5)))))
    assert shown.text.count("at ") == 12
