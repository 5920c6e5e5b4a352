"""Views as the server fills them, of a folder with the demo media, and a folder with the pages of them."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

from PIL import Image, ImageDraw

from reelscribe.contract.outcomes import SourceSummary
from reelscribe.viewer.pages.parameters import LibraryQuery, SearchQuery
from reelscribe.viewer.pages.render import STATIC, Renderer
from reelscribe.viewer.pages.views import (
    Card,
    Choice,
    Counts,
    Fact,
    FailureExample,
    FailureGroup,
    Figure,
    Hit,
    LibraryView,
    Line,
    NamedSpeaker,
    NodeRow,
    Part,
    Playback,
    Rate,
    RunView,
    SearchView,
    Section,
    Settings,
    Share,
    Site,
    SourceView,
    Speaker,
    Track,
    Word,
)

MEDIA = Path(__file__).parents[2] / "demo" / "media"

HOSTILE = '<script>document.title="ran"</script><img src=x onerror=alert(1)>"\'{{ 7*7 }}\x1b[31m\u202egpj.exe\ud800'
"""A text that tries everything."""

SPOKEN, MUTE, OLD, TALK, BROKEN = ("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc", "d" * 16, "e" * 16)
"""Ids of sources: a video with speech, one without, one that no browser plays, a recording, and a damaged file."""

SITE = Site("out/demo", running="A run is going on: 34 of 120 sources are done.")


FILES = {SPOKEN: "spoken.mp4", MUTE: "same-640x360.webm", OLD: "old.avi", TALK: "phrases.ogg"}


class FileLinks:
    """Addresses of files, as an export has them; `served` is as the pages of a server have it."""

    def __init__(self, *, served: bool = True) -> None:
        self.served = served

    def library(self, query: LibraryQuery) -> str:
        return "library.html"

    def search(self, query: SearchQuery, form: str = "html") -> str:
        return f"search.{form}"

    def source(self, source: str, seconds: float | None = None) -> str:
        return f"source/{source}.html" + ("" if seconds is None else f"#t={seconds:.3f}")

    def run(self) -> str:
        return "run.html"

    def thumbnail(self, source: str, seconds: float) -> str:
        return f"thumbnail/{round(seconds * 1000)}.webp"

    def media(self, source: str) -> str:
        return (MEDIA / FILES.get(source, "missing")).as_uri()

    def preview(self, source: str) -> str:
        return (MEDIA / "portrait-odd.webm").as_uri()

    def static(self, name: str) -> str:
        return f"static/{name}"


CARDS = (
    Card(
        SPOKEN,
        "spoken.mp4",
        "",
        12.0,
        "ok",
        counts=Counts(12, 3, 4, 3),
        languages=("en",),
        thumbnail=0.0,
        flags=("near-duplicate",),
        title="Shapes that move and speak",
    ),
    Card(MUTE, "same-640x360.webm", "shapes/same", 8.0, "ok", counts=Counts(8, failures=1), thumbnail=2.0),
    Card(OLD, "old.avi", "old", 7.5, "ok", counts=Counts(captions=8), thumbnail=0.0, missing=True),
    Card(TALK, "phrases.ogg", "", 78.4, "ok", counts=Counts(segments=31), languages=("en", "de")),
    Card(
        BROKEN,
        "broken.mp4",
        "",
        None,
        "error",
        error_type="MediaError",
        error="broken.mp4 cannot be opened: expected a media file, found no stream. Is it complete? Copy it again.",
    ),
    Card("f" * 16, "a" * 120 + " العربية.mp4", "b" * 200 + "/shapes", 4711.0, "ok", counts=Counts(4711), thumbnail=0.0),
    Card(
        "0" * 16,
        HOSTILE,
        HOSTILE,
        3.0,
        "error",
        error_type=HOSTILE,
        error=HOSTILE,
        languages=(HOSTILE,),
        flags=(HOSTILE,),
        title=HOSTILE,
    ),
)

LIBRARY = LibraryView(
    SITE,
    LibraryQuery(),
    CARDS,
    total=7,
    all_sources=7,
    pages=3,
    folders=(Choice("old", "old", 1), Choice("shapes", "shapes", 2), Choice(HOSTILE, HOSTILE, 1)),
    folders_hidden=12,
    states=(Choice("ok", "done", 5), Choice("error", "failed", 2)),
    languages=(Choice("en", "en", 2), Choice("de", "de", 1)),
    errors=(Choice("MediaError", "MediaError", 1),),
    flags=(Choice("near-duplicate", "near-duplicate", 1),),
    durations=(
        Choice("0-60", "under 1 minute", 5),
        Choice("60-600", "1 to 10 minutes", 1),
        Choice("3600-", "over an hour", 1),
    ),
)

SEARCH = SearchView(
    Site("out/demo"),
    SearchQuery('"red circle" sta*'),
    hits=(
        Hit(
            SPOKEN,
            "spoken.mp4",
            "captions",
            4.0,
            6.0,
            (Part("a large "), Part("red circle", True), Part(" to the left of a small blue "), Part("star", True)),
            4.0,
        ),
        Hit(SPOKEN, "spoken.mp4", "transcript", 1.5, 3.0, (Part("look at the "), Part("red circle", True)), 0.0),
        Hit(OLD, HOSTILE, "clips", 2.0, 4.0, (Part(HOSTILE), Part(HOSTILE, True)), missing=True),
    ),
    total=10_000,
    more=True,
    pages=500,
    named=CARDS[:3] + CARDS[-1:],
    named_total=17,
)


def _spoken() -> SourceView:
    captions = [
        Line(2.0 * k, 2.0 * k + 2, text, flags=("near-duplicate",) if k == 3 else ())
        for k, text in enumerate(
            [
                "a large black star on a green background",
                "a large black circle on a white background",
                "a large red circle to the left of a small blue star",
                "a large red circle to the left of a small blue star",
            ]
        )
    ] + [Line(8.0, 8.04, "The frame cannot be decoded.", failed=True), Line(8.04, 12.0, HOSTILE + " " + "w" * 300)]
    said = [(0.5, ["stop"]), (3.0, ["look", " at", " the", " red", " circle"]), (7.0, ["and", " now", " the", " end"])]
    speech = [
        Line(
            start,
            start + 0.5 * len(words),
            "".join(words),
            words=tuple(Word(start + 0.5 * k, start + 0.5 * k + 0.5, word) for k, word in enumerate(words)),
            speaker=Speaker("channel 1", 0) if start < 5 else Speaker(HOSTILE, 1),
        )
        for start, words in said
    ] + [Line(9.5, 11.0, "מה שנאמר כאן בעברית (RTL) 123")]
    shots = [Line(0.0, 4.0), Line(4.0, 8.0), Line(8.0, 12.0)]
    clips = [Line(0.0, 6.0, "A star and then a circle are shown. " * 4), Line(4.0, 12.0, "Shapes move.")]
    return SourceView(
        SITE,
        replace(CARDS[0], counts=Counts(12, 3, 4, 3, 1)),
        "demo/media/spoken.mp4",
        Playback("video", type="video/mp4"),
        0.0,
        12.0,
        summary=SourceSummary(
            "Shapes that move and speak",
            "Stars and circles of many colours are shown. Somebody names them. At the end they are gone.",
            ("shapes", "star", "red circle", "colours", HOSTILE),
        ),
        tracks=(
            Track("transcript", tuple(speech), 4),
            Track("captions", tuple(captions), 6),
            Track("clips", tuple(clips), 2),
            Track("shots", tuple(shots), 3),
        ),
        thumbnails=tuple(float(k) for k in range(12)),
        facts=(
            Fact("Video", "640 x 360, h264, 25 frames a second"),
            Fact("Audio", "aac, 48,000 Hz, 2 channels"),
            Fact("Size", "312,450 bytes"),
        ),
        settings=(
            Settings(
                "captions",
                "demo/captioner",
                "sha256:0123456789abcdef",
                (Fact("sampling", '{"fps": 1}'), Fact("dtype", "float32")),
            ),
            Settings("transcript", "demo/speech", "sha256:fedcba9876543210", (Fact("word_times", "true"),)),
        ),
        retry="reelscribe annotate demo/media --out out/demo --retry-failed",
        speakers=(NamedSpeaker("channel 1", 0, "", "Agent"), NamedSpeaker(HOSTILE, 1, "Ms Okafor " * 9, HOSTILE)),
    )


SOURCE = _spoken()
UNPLAYABLE = replace(
    SOURCE,
    card=CARDS[2],
    path="demo/media/old.avi",
    end=8.0,
    sections=(Section(0, 8, True), Section(8, 12, False)),
    playback=Playback(
        "none", "No browser plays the container AVI. With --transcode, reelscribe browse makes a small preview of it."
    ),
    thumbnails=tuple(float(k) for k in range(8)),
    refusal=f"{HOSTILE}: expected a name of one line.",
    typed={("channel 1", True): HOSTILE},
)
AUDIO = replace(
    SOURCE,
    card=CARDS[3],
    path="demo/media/phrases.ogg",
    end=78.449,
    playback=Playback("audio", type="audio/ogg"),
    thumbnails=(),
    retry="",
    speakers=tuple(NamedSpeaker(f"channel {k + 1}", k % 8, "", "") for k in range(8)),
    tracks=(
        Track(
            "transcript",
            tuple(
                Line(2.5 * k, 2.5 * k + 2, f"phrase {k}", speaker=Speaker(f"channel {k % 8 + 1}", k % 8))
                for k in range(31)
            ),
            31,
        ),
    ),
)

RUN = RunView(
    SITE,
    "running, process 4711",
    goes_on=True,
    done=34,
    sources=120,
    failed=3,
    share=0.28,
    speed="12.3 times real time",
    time_left="25 ± 4 min",
    bottleneck="inference is the limit",
    as_of="14:03",
    figures=(
        Figure("sources", "24", "34 of 120"),
        Figure("frames", "3,214", "4,567"),
        Figure("audio", "12 min", "25 min"),
        Figure("time", "8 min 03 s", ""),
    ),
    shares=(Share("Decoding", 0.31), Share("Inference", 0.97)),
    rates=tuple(Rate(10.0 * k, 12 + (k * 7919 % 13) / 4) for k in range(60)),
    failures=(
        FailureGroup(
            "MediaError",
            2,
            "The file cannot be read: it is missing, empty, damaged or not a media file.",
            (FailureExample(BROKEN, "broken.mp4", CARDS[4].error), FailureExample("0" * 16, HOSTILE, HOSTILE)),
        ),
        FailureGroup("DecoderStalled", 1),
    ),
    retry="reelscribe annotate demo/media --out out/demo --retry-failed",
    nodes=(
        NodeRow("gpu-07", "lost: no message for 30 s", False, 3, 0, "0.0x"),
        NodeRow("gpu-01", "ready; decoding is the limit", True, 31, 4, "12.3x"),
    ),
)

DONE_RUN = replace(
    RUN,
    site=Site("out/demo"),
    state="done: all sources succeeded",
    goes_on=False,
    done=120,
    failed=0,
    time_left="",
    rates=(),
    failures=(),
    retry="",
    nodes=(),
    shares=(),
)


def write_pages(folder: Path, *, served: bool = True) -> dict[str, Path]:
    """Write all pages and what they refer to below a folder, and return the files of the pages by a name of each.

    They do not ask for what is new, because no server would answer.
    """
    renderer = Renderer(FileLinks(served=served))
    views = {SPOKEN: SOURCE, OLD: UNPLAYABLE, TALK: AUDIO}
    texts = {
        "library": renderer.library(LIBRARY),
        "search": renderer.search(SEARCH),
        "run": renderer.run(RUN),
        **{f"source/{source}": renderer.source(view) for source, view in views.items()},
    }
    shutil.copytree(STATIC, folder / "static")
    (folder / "source").mkdir()
    (folder / "thumbnail").mkdir()
    for second in range(12):
        image = Image.new("RGB", (320, 180), ((37 * second) % 200, (91 * second + 60) % 200, 120))
        ImageDraw.Draw(image).ellipse((100 + 5 * second, 40, 200 + 5 * second, 140), fill="white")
        image.save(folder / "thumbnail" / f"{1000 * second}.webp")
    paths = {name: folder / f"{name}.html" for name in texts}
    for name, path in paths.items():
        path.write_text(re.sub(' data-live-seconds="[0-9]+"', "", texts[name]))
    return paths
