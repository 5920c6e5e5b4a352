"""Only containers and streams of video and audio are opened, and nothing that they or their names refer to."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import av
import pytest
from PIL import Image

import reelscribe
from reelscribe.contract.frames import InputSize
from reelscribe.contract.source import MEDIA_SUFFIXES, VIDEO_SUFFIXES
from reelscribe.decode_pool.child_main import read_header
from reelscribe.errors import MediaError
from reelscribe.viewer.media.preview_maker import make_preview
from reelscribe.viewer.media.thumbnail_maker import make_thumbnails
from support import audio, odd_media, videos

SIZE = InputSize(64, 48)

READERS: dict[str, Callable[[Path], object]] = {
    "frames": lambda path: videos.read(path, SIZE),
    "audio": audio.read,
    "header": lambda path: read_header(str(path)),
    "thumbnails": lambda path: list(make_thumbnails(path)),
    "preview": lambda path: make_preview(path, path.with_suffix(".webm")),
}


@pytest.fixture
def clip(tmp_path):
    path = tmp_path / "clip.mp4"
    videos.write(path, "libx264", range(40, 240, 10))
    return path


@pytest.fixture
def playlist(clip):
    """A playlist of a file that FFmpeg would open: one that this process has open itself."""
    with clip.open("rb") as file:
        path = clip.with_name("playlist.mp4")
        path.write_text(f"ffconcat version 1.0\nfile {file.fileno()}\n")
        yield path


@pytest.mark.parametrize("reader", READERS)
def test_a_playlist_is_refused_with_the_reason_wherever_files_are_opened(playlist, reader):
    with pytest.raises(MediaError, match=r'the format that FFmpeg calls "concat", which is not read; if it is a play'):
        READERS[reader](playlist)


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (
            b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\na.ts\n#EXT-X-ENDLIST\n",
            r'"hls", .* if it is a playlist, name',
        ),
        (
            b"\xff\xd8\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0\xff\xdb\0C",
            '"jpeg_pipe", which is not read; it is a still picture$',
        ),
        (b"1\n00:00:01,000 --> 00:00:02,000\nhi\n\n", '"srt", which is not read$'),
    ],
)
def test_only_a_playlist_is_taken_for_one(tmp_path, content, got):
    path = tmp_path / "named"
    path.write_bytes(content + bytes(2000) * content.startswith(b"\xff"))
    with pytest.raises(MediaError, match=got):
        READERS["frames"](path)


CODECS = {".3gp": "mpeg4", ".ogv": "libvpx", ".wma": "mp2"}
"""Where the one that FFmpeg chooses needs more settings."""


@pytest.mark.parametrize("suffix", sorted(MEDIA_SUFFIXES))
def test_files_of_all_suffixes_that_a_run_looks_for_are_read(tmp_path, suffix):
    path = tmp_path / f"file{suffix}"
    with av.open(str(tmp_path / f"empty{suffix}"), "w") as file:
        video, audio_codec = file.default_video_codec, file.default_audio_codec
    if suffix in VIDEO_SUFFIXES:
        odd_media.write(path, CODECS.get(suffix, video))
        assert videos.info_of(path).frames == 50
    else:
        rate = 8000 if suffix == ".amr" else 48_000
        audio.write(path, audio.tone(440, 1, rate), rate, CODECS.get(suffix, audio_codec))
        assert len(audio.read(path).samples) == pytest.approx(audio.RATE, rel=0.1)


NO_MEDIA = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\nclip.mp4\n#EXT-X-ENDLIST\n",
    "dash": '<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period></Period></MPD>\n',
    "rtp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    "pipes": "ffconcat version 1.0\nfile 0\nfile 1\n",
    "metadata": ";FFMETADATA1\ntitle=x\n",
    "subtitles": "1\n00:00:00,000 --> 00:00:01,000\nwords\n",
}


@pytest.mark.parametrize("kind", NO_MEDIA)
def test_text_that_ffmpeg_takes_for_media_is_refused(clip, kind):
    path = clip.with_name("list.mp4")
    path.write_text(NO_MEDIA[kind])
    with pytest.raises(MediaError, match=r"not a media file|which is not read"):
        videos.read(path, SIZE)


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".avi"])
@pytest.mark.parametrize("reader", READERS)
def test_a_title_that_is_not_utf8_is_no_damage(tmp_path, suffix, reader):
    path = odd_media.write(tmp_path / f"file{suffix}", audio="mp2", title="The cafe")
    content = path.read_bytes()
    assert b"The cafe" in content
    path.write_bytes(content.replace(b"The cafe", b"The caf\xe9"))
    READERS[reader](path)


def test_a_picture_is_refused(tmp_path):
    Image.new("RGB", (64, 48)).save(tmp_path / "picture.png")
    with pytest.raises(MediaError, match='FFmpeg calls "png_pipe"'):
        videos.read(tmp_path / "picture.png", SIZE)


NAMES = [
    "concat:clip.mp4|clip.mp4",
    "http:x.mp4",
    "-i",
    "%03d.mp4",
    "pipe:0",
    "data:video,x",
    "subfile,,start,0,:x.mp4",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_like_that_of_a_protocol_is_only_a_name(clip, monkeypatch, name):
    monkeypatch.chdir(clip.parent)
    shutil.copy(clip, name)
    assert len(videos.read(Path(name), SIZE)) == 20


def test_files_are_opened_in_one_place():
    package = Path(reelscribe.__file__).parent
    reading = re.compile(r'av\.open\((?!.*"w")')
    places = [path.name for path in package.rglob("*.py") if reading.search(path.read_text())]
    assert places == ["container.py"]
