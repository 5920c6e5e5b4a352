"""Frames that no other frame needs are decoded only if wanted, and all other pictures stay the same, bit for bit."""

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reelscribe.decode.bitstream import DisposableFrameDetector
from reelscribe.decode.video import OpenVideo
from support.videos import write_pictures

FRAMES = 100
DEMO = sorted(path for path in (Path(__file__).parents[2] / "demo" / "media").iterdir() if path.suffix[1] in "mw")


def x264(**options: object) -> tuple[str, dict[str, str]]:
    shared = {"keyint": 100, "scenecut": 0, "bframes": 3, "b-adapt": 0, "ref": 4}
    return "libx264", {"x264-params": _joined({**shared, **options})}


def x265(**options: object) -> tuple[str, dict[str, str]]:
    shared = {"log-level": "none", "keyint": 100, "min-keyint": 10, "scenecut": 0, "bframes": 4, "b-adapt": 0}
    return "libx265", {"x265-params": _joined({**shared, **options})}


def _joined(options: dict[str, object]) -> str:
    return ":".join(f"{name}={value}" for name, value in options.items())


ENCODES = {
    "plain.mp4": x264(**{"b-pyramid": "none"}),
    "pyramid.mkv": x264(bframes=7, **{"b-pyramid": "normal"}),
    "pyramid.ts": x264(slices=3, **{"b-pyramid": "strict", "open-gop": 1, "keyint": 20}),
    "short-groups.mp4": x264(keyint=10, **{"b-pyramid": "normal", "open-gop": 1}),
    "temporal-direct.mp4": x264(cabac=0, direct="temporal", weightp=2),
    "repeated-headers.mkv": x264(aud=1, **{"repeat-headers": 1}),
    "interlaced.ts": x264(tff=1),
    "hevc.mp4": x265(**{"b-pyramid": 0}),
    "hevc-pyramid.mkv": x265(bframes=8),
    "hevc-open-gop.ts": x265(keyint=20, **{"open-gop": 1}),
    "hevc-two-layers.ts": x265(**{"temporal-layers": 2, "repeat-headers": 1, "aud": 1}),
}


def moving(number: int) -> np.ndarray:
    """A picture of blurred noise that moves and has grain, (48, 64, 3) uint8, so that every frame needs others."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (60, 320, 3)).repeat(2, 0).repeat(2, 1)
    left, grain = 3 * number, np.random.default_rng(number).normal(0, 5, (48, 64, 1))
    return (noise[number % 20 :][:48, left : left + 64] + grain).clip(0, 255).astype(np.uint8)


def read(path: Path, wanted: Sequence[int] | None = None) -> tuple[dict[int, bytes], int]:
    """The planes of the wanted frames, by default of all, and how many frames were decoded for them."""
    with OpenVideo(str(path)) as video:
        pictures = video.decode(range(len(video.times)) if wanted is None else wanted)
        return {index: b"".join(map(bytes, picture.planes)) for index, picture in pictures}, video.decoded


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clips")
    for name, (codec, options) in ENCODES.items():
        write_pictures(folder / name, codec, map(moving, range(FRAMES)), options=options)
    return folder


@pytest.fixture(scope="module")
def whole(clips) -> dict[str, dict[int, bytes]]:
    return {name: read(clips / name)[0] for name in ENCODES}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(ENCODES)), wanted=st.sets(st.integers(0, FRAMES - 1), min_size=1, max_size=20))
def test_any_frames_are_those_that_decoding_everything_gives(clips, whole, name, wanted):
    assert len(whole[name]) == FRAMES
    assert read(clips / name, sorted(wanted))[0] == {index: whole[name][index] for index in wanted}


@pytest.mark.parametrize("path", DEMO, ids=lambda path: path.name)
def test_frames_of_the_demo_media_are_those_that_decoding_everything_gives(path):
    whole = read(path)[0]
    wanted = range(3, len(whole), 11)
    assert read(path, wanted)[0] == {index: whole[index] for index in wanted}


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("plain.mp4", 91 / 4 + 5),
        ("pyramid.mkv", 91 / 2 + 9),
        ("hevc.mp4", 91 / 5 + 5),
        ("hevc-pyramid.mkv", 91 / 2 + 9),
        ("hevc-two-layers.ts", 91 / 2 + 9),
        ("interlaced.ts", FRAMES),
    ],
)
def test_only_references_are_decoded_on_the_way_to_a_wanted_frame(clips, name, most):
    decoded = read(clips / name, [91])[1]
    assert decoded <= most
    assert decoded > 90 or name != "interlaced.ts"  # of the fields of a frame, one may need the other


def disposable(path: Path, changed: bytes = b"", to: bytes = b"") -> int:
    """How many packets can be dropped, after some bytes of the packets of disposable frames were replaced."""
    with av.open(str(path)) as container:
        frames = DisposableFrameDetector(container.streams.video[0].codec_context)
        packets = [packet for packet in container.demux(video=0) if packet.size]
        droppable = [packet for packet in packets if frames.is_disposable(packet)]
        return sum(frames.is_disposable(av.Packet(bytes(packet).replace(changed, to))) for packet in droppable)


def test_a_frame_of_a_lower_layer_may_be_needed_by_a_higher_one(clips):
    highest = b"\0\0\1\x04\x02"  # a slice of type TSA_N in the second layer, H.265, section 7.3.1.2
    assert disposable(clips / "hevc-two-layers.ts") > FRAMES / 4
    assert disposable(clips / "hevc-two-layers.ts", highest, b"\0\0\1\x00\x01") == 0


def test_a_packet_with_parameters_or_a_reference_is_kept(clips):
    slice_of_no_reference = b"\0\0\1\x01"  # H.264, section 7.3.1
    assert disposable(clips / "pyramid.ts") > FRAMES / 4
    for unit in (b"\0\0\1\x68", b"\0\0\1\x21"):
        assert disposable(clips / "pyramid.ts", slice_of_no_reference, unit + slice_of_no_reference) == 0


def test_what_is_behind_a_damaged_picture_is_shown_as_if_nothing_were_dropped(clips, tmp_path):
    path, damaged = clips / "temporal-direct.mp4", tmp_path / "damaged.mp4"
    with av.open(str(path)) as container:
        reference = sorted((p.pts, p.pos, p.size) for p in container.demux(video=0) if p.size)[40]
    content = bytearray(path.read_bytes())
    content[reference[1] + 40 : reference[1] + 60] = bytes(range(200, 220))
    damaged.write_bytes(content)
    whole = read(damaged)[0]
    assert 40 in read(path)[0].keys() - whole.keys()
    frames, decoded = read(damaged, [20, 40, 43, 90])
    assert frames == {index: whole[index] for index in (20, 40, 43, 90) if index in whole}
    assert decoded > 90


def test_empty_units_between_start_codes_end_nothing(tmp_path):
    plain, path = tmp_path / "plain.h264", tmp_path / "empty-units.h264"
    write_pictures(plain, "libx264", map(moving, range(FRAMES)), options={"g": "10"})
    path.write_bytes(plain.read_bytes().replace(b"\0\0\1\x65", b"\0\0\1\0\0\1\x65"))
    assert len(read(path)[0]) > FRAMES / 2  # FFmpeg takes keyframes behind an empty unit for parts of other frames
