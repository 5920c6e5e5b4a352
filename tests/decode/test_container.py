"""Only containers and streams of video and audio are opened, and nothing that they or their names refer to."""

import bz2
import gzip
import lzma
import re
import shutil
from collections.abc import Callable
from fractions import Fraction
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
        (
            b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\x02" + bytes(2000),
            '"webp_pipe", which is not read; it is an animated or a still picture$',
        ),
        (b"1\n00:00:01,000 --> 00:00:02,000\nhi\n\n", '"srt", which is not read$'),
        (
            gzip.compress(bytes(9000), mtime=0),
            "got a compressed file; unpack it; .* in a .tar that is not compressed$",
        ),
        (bz2.compress(bytes(9000)), "got a compressed file"),
        (lzma.compress(bytes(9000)), "got a compressed file"),
    ],
)
def test_only_a_playlist_is_taken_for_one(tmp_path, content, got):
    path = tmp_path / "named"
    path.write_bytes(content + bytes(2000) * content.startswith(b"\xff"))
    with pytest.raises(MediaError, match=got):
        READERS["frames"](path)


VIDEOS = {
    "apng": ("apng", "352x288 rgb24", ".apng"),
    "asf": ("msmpeg4", "352x288 yuv420p", ".asf .dvr-ms .wm .wmv"),
    "avi": ("mpeg4", "352x288 yuv420p", ".amv .avi .divx .xvid"),
    "dv": ("dvvideo", "720x576 yuv420p", ".dif .dv"),
    "flv": ("flv", "352x288 yuv420p", ".flv"),
    "gif": ("gif", "352x288 rgb8", ".gif"),
    "gxf": ("mpeg2video", "720x576 yuv420p", ".gxf"),
    "h263": ("h263", "352x288 yuv420p", ".h263"),
    "h264": ("libx264", "352x288 yuv420p", ".264 .avc .h264 .h26l"),
    "hevc": ("libx265", "352x288 yuv420p", ".265 .h265 .hevc"),
    "ivf": ("libvpx", "352x288 yuv420p", ".ivf"),
    "matroska": ("mpeg4", "352x288 yuv420p", ".mk3d .mkv .webm"),
    "mov": (
        "mpeg4",
        "352x288 yuv420p",
        ".360 .3g2 .3gp .3gp2 .3gpp .3gpp2 .cmfv .f4v .hdmov .insv .ismv .lrv .m4v .mj2 .mov .mp4 .mp4v .mqv .osv .qt",
    ),
    "mpeg1video": ("mpeg1video", "352x288 yuv420p", ".m1v .mpv"),
    "mpeg2video": ("mpeg2video", "352x288 yuv420p", ".m2v .mp2v"),
    "mpegts": ("mpeg2video", "352x288 yuv420p", ".m2t .m2ts .mts .tp .trp .ts"),
    "mxf": ("mpeg2video", "352x288 yuv420p", ".mxf"),
    "nut": ("mpeg4", "352x288 yuv420p", ".nut"),
    "ogg": ("libvpx", "352x288 yuv420p", ".ogm .ogv .ogx"),
    "rm": ("rv10", "352x288 yuv420p", ".rm .rmvb .rv"),
    "vob": ("mpeg2video", "352x288 yuv420p", ".m2p .mod .mpe .mpeg .mpg .tod .vob .vro"),
    "wtv": ("mpeg2video", "352x288 yuv420p", ".wtv"),
    "yuv4mpegpipe": ("wrapped_avframe", "352x288 yuv420p", ".y4m"),
}
"""Formats with a codec, a kind of frames, and the suffixes of files in that format."""

AUDIO = {
    "ac3": ("ac3", ".a52 .ac3"),
    "adts": ("aac", ".aac .adts"),
    "aiff": ("pcm_s16be", ".aif .aifc .aiff"),
    "amr": ("libopencore_amrnb", ".amr .awb"),
    "asf": ("mp2", ".wma"),
    "au": ("pcm_s16be", ".au .snd"),
    "caf": ("pcm_s16le", ".caf"),
    "eac3": ("eac3", ".eac3 .ec3"),
    "flac": ("flac", ".flac"),
    "latm": ("aac", ".latm .loas"),
    "matroska": ("libopus", ".mka .weba"),
    "mp2": ("mp2", ".m1a .m2a .mp1 .mp2 .mpa"),
    "mp3": ("libmp3lame", ".mp3 .mpga"),
    "mp4": ("aac", ".3ga .cmfa .f4a .f4b .isma .m4a .m4b .m4r"),
    "ogg": ("libopus", ".oga .ogg .opus .spx"),
    "rm": ("ac3", ".ra"),
    "tta": ("tta", ".tta"),
    "voc": ("pcm_u8", ".voc"),
    "w64": ("pcm_s16le", ".w64"),
    "wav": ("pcm_s16le", ".bwf .rf64 .wav .wave"),
    "wv": ("wavpack", ".wv"),
}

NOT_WRITTEN = {
    ".266",
    ".ape",
    ".av1",
    ".dts",
    ".dtshd",
    ".h266",
    ".mlp",
    ".obu",
    ".sph",
    ".tak",
    ".thd",
    ".vc1",
    ".vvc",
}
"""Suffixes of formats that PyAV reads, but does not write."""


@pytest.mark.parametrize("kind", VIDEOS)
def test_videos_of_all_formats_that_a_run_looks_for_are_read(tmp_path, kind):
    codec, frames, suffixes = VIDEOS[kind]
    size, pixels = frames.split()
    with av.open(str(tmp_path / "file"), "w", format=kind) as file:
        video = file.add_stream(codec, rate=25)
        video.width, video.height = map(int, size.split("x"))
        video.pix_fmt = pixels
        for number in range(25):
            frame = av.VideoFrame(video.width, video.height, "rgb24")
            frame.planes[0].update(bytes([number]) * frame.planes[0].buffer_size)
            frame.pts, frame.time_base = number, Fraction(1, 25)
            file.mux(video.encode(frame))
        file.mux(video.encode())
    path = (tmp_path / "file").rename(tmp_path / f"file{suffixes.split()[0]}")
    assert videos.info_of(path).frames == 25


@pytest.mark.parametrize("kind", AUDIO)
def test_audio_of_all_formats_that_a_run_looks_for_is_read(tmp_path, kind):
    codec, suffixes = AUDIO[kind]
    path = tmp_path / f"file{suffixes.split()[0]}"
    rate = 8000 if kind == "amr" else 48_000
    audio.write(path, audio.tone(440, 1, rate), rate, codec, file_format=kind)
    assert len(audio.read(path).samples) == pytest.approx(audio.RATE, rel=0.1)


def test_a_run_looks_for_files_of_formats_that_are_read_and_no_others():
    written = {suffix for *_, suffixes in VIDEOS.values() for suffix in suffixes.split()}
    heard = {suffix for _, suffixes in AUDIO.values() for suffix in suffixes.split()}
    assert written | heard | NOT_WRITTEN == MEDIA_SUFFIXES
    assert written <= VIDEO_SUFFIXES


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
