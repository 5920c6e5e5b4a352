"""Makes files that are odd but healthy, and tells which frames they hold.

Each picture shows its number in black and white blocks, so that a decoded frame tells which one it is. Everything is
made with the FFmpeg inside PyAV; what FFmpeg cannot write is patched into the bytes.
"""

import re
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

from support import videos
from support.audio import RATE, frames, tone

FPS = 25
WIDTH, HEIGHT = 64, 48
BLOCK = 16
"""Width of a block; a picture has two rows of four, one for each bit of its number."""

NUMBERS = range(2 * FPS)

_FRAME = b"\0\0\1\xb6"
"""Start code of an MPEG-4 frame. The first two bits behind it are its kind: 0 for I, 1 for P, 2 for B."""

NOT_CODED = _FRAME + bytes.fromhex("504f")
"""An MPEG-4 frame that is not coded, ISO/IEC 14496-2, section 6.2.5, of 25 ticks per second."""

PACKED = b"\0\0\1\xb2DivX503b1393p"
"""User data by which decoders know that B-frames are packed."""


def picture(number: int) -> np.ndarray:
    """The picture with a number below 256, (48, 64, 3) uint8."""
    bits = np.array([number >> bit & 1 for bit in range(8)], np.uint8).reshape(2, 4)
    blocks = (30 + 190 * bits).repeat(HEIGHT // 2, 0).repeat(BLOCK, 1)
    return np.repeat(blocks[:, :, None], 3, 2)


def number_of(image: np.ndarray) -> int:
    """The number of a decoded picture."""
    blocks = image[HEIGHT // 4 :: HEIGHT // 2, BLOCK // 2 :: BLOCK, 1] > 125
    return int((blocks.flatten() << np.arange(8)).sum())


def write(
    path: Path,
    codec: str | None = "mpeg4",
    numbers: Sequence[int] = NUMBERS,
    *,
    start: float = 0,
    audio: str | None = None,
    audio_start: float | None = None,
    options: dict[str, str] | None = None,
    container: dict[str, str] | None = None,
    file_format: str | None = None,
    rate: int = FPS,
    title: str | None = None,
) -> Path:
    """Write pictures with a number each: the first is shown at `start`, and the others follow by
    their numbers, `rate` of them a second. `audio` is a tone of the same length, from `audio_start` or `start` on."""
    keep_start = {"avoid_negative_ts": "disabled"} if start < 0 else {}
    with av.open(str(path), "w", format=file_format, options=keep_start | (container or {})) as file:
        streams, pending = [], []
        if title:
            file.metadata["title"] = title
        if codec:
            video = file.add_stream(codec, rate=rate, options={"g": "12", "bf": "0"} | (options or {}))
            video.width, video.height, video.pix_fmt, video.bit_rate = WIDTH, HEIGHT, "yuv420p", 2_000_000
            streams.append(video)
            pending += [(video, _frame(number, start - numbers[0] / rate, rate)) for number in numbers]
        if audio:
            sound_rate = 48_000 if audio in ("libopus", "mp2", "aac", "ac3") else RATE
            sound = file.add_stream(audio, rate=sound_rate, layout="mono")
            sound.codec_context.time_base = Fraction(1, sound_rate)
            streams.append(sound)
            samples = tone(440, (numbers[-1] + 1 - numbers[0]) / rate, sound_rate)
            pieces = [(start if audio_start is None else audio_start, samples)]
            pending += [(sound, f) for f in frames(pieces, sound_rate, "mono", sound.codec_context.format.name)]
        for stream, frame in sorted(pending, key=lambda item: item[1].time):
            file.mux(stream.encode(frame))
        for stream in streams:
            file.mux(stream.encode())
    return path


def _frame(number: int, start: float, rate: int) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(picture(number), format="rgb24")
    frame.pts, frame.time_base = number + round(start * rate), Fraction(1, rate)
    return frame


def write_segments(folder: Path, seconds: float) -> list[Path]:
    """A Matroska file in pieces of `seconds`, as FFmpeg's segment muxer writes them: they keep their times."""
    write(folder / "%d.mkv", audio="aac", container={"segment_time": str(seconds)}, file_format="segment")
    return sorted(folder.glob("?.mkv"))


def state_length(path: Path, seconds: float) -> Path:
    """Make a Matroska file state how long it is, as mkvmerge does, and not when it ends, as FFmpeg does."""
    content = bytearray(re.sub(rb"Lavf[\d.]+", lambda match: b"libebml".ljust(len(match[0])), path.read_bytes()))
    at = content.index(b"\x44\x89\x88") + 3  # Duration, RFC 9559, section 5.1.2.10, in milliseconds
    content[at : at + 8] = struct.pack(">d", 1000 * seconds)
    path.write_bytes(content)
    return path


def write_packed(path: Path) -> Path:
    """MPEG-4 in AVI whose first B-frame after another frame is in the packet of that frame, as Xvid packs it.

    A frame that is not coded follows the B-frames, so that there are as many packets as frames.
    """
    return pack(write(path.with_suffix(".m4v"), options={"bf": "2", "b_strategy": "0"}), path)


def write_packed_still(path: Path) -> Path:
    """The same of 50 frames that show one picture, whose B-frames have under 20 bytes."""
    plain = path.with_suffix(".m4v")
    pictures = [picture(5)] * 50
    videos.write_pictures(plain, "mpeg4", pictures, options={"bf": "2", "b_strategy": "0", "g": "12"})
    return pack(plain, path)


def pack(plain: Path, path: Path) -> Path:
    """Pack the B-frames of an MPEG-4 stream, as `write_packed` says."""
    with av.open(str(plain)) as file:
        pictures = [bytes(packet) for packet in file.demux(video=0) if packet.size]
    at = pictures[0].index(_FRAME)
    packets, behind_b = [pictures[0][:at] + PACKED + pictures[0][at:]], False
    for content in pictures[1:]:
        is_b = content[content.index(_FRAME) + 4] >> 6 == 2
        if is_b and not behind_b:
            packets[-1] += content
        else:
            packets += [NOT_CODED] * (behind_b and not is_b) + [content]
        behind_b = is_b
    packets += [NOT_CODED] * behind_b
    with av.open(str(path), "w") as file:
        stream = file.add_stream("mpeg4", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number, content in enumerate(packets):
            packet = av.Packet(content)
            packet.stream, packet.time_base, packet.pts, packet.dts = stream, Fraction(1, FPS), number, number
            packet.is_keyframe = number == 0
            file.mux(packet)
    return path


def drop_fragments(path: Path, count: int) -> Path:
    """Take the first fragments of a fragmented MP4 file off, as a player does who joins a live stream late."""
    content = path.read_bytes()
    fragments = boxes(content, b"moof")
    path.write_bytes(content[: fragments[0].start] + content[fragments[count].start :])
    return path


def boxes(content: bytes, kind: bytes) -> list[range]:
    """Where the boxes of a type are in an MP4 file, among those that are in no other box (ISO/IEC 14496-12, 4.2)."""
    found, at = [], 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 4])
        if content[at + 4 : at + 8] == kind:
            found.append(range(at, at + size))
        at += size
    return found


def crop(path: Path, left: int, top: int, right: int, bottom: int) -> Path:
    """Make the header of a file of H.264 crop the frames: by a clean aperture in MP4, by Matroska's own crop in a
    Matroska file, which must be written with the option `live`."""
    content = bytearray(path.read_bytes())
    if path.suffix == ".mp4":
        with av.open(str(path)) as file:
            video = file.streams.video[0]
            width, height = video.width - left - right, video.height - top - bottom
        # ISO/IEC 14496-12, section 12.1.4: the centre lies right of, and below, that of the frame by two fractions.
        values = (width, 1, height, 1, left - right, 2, top - bottom, 2)
        added, entry = struct.pack(">I4s8i", 40, b"clap", *values), content.index(b"avc1", content.index(b"stsd")) - 4
        sizes = [entry, *(content.index(kind) - 4 for kind in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd"))]
        end = entry + int.from_bytes(content[entry : entry + 4])
    else:
        # RFC 9559, section 5.1.4.1.28: the IDs of PixelCropBottom, Top, Left and Right, each of two bytes.
        margins = ((0x54AA, bottom), (0x54BB, top), (0x54CC, left), (0x54DD, right))
        added = b"".join(struct.pack(">HBH", name, 0x82, margin) for name, margin in margins)
        tracks = content.index(b"\x16\x54\xae\x6b", content.index(b"\x16\x54\xae\x6b") + 1)
        track = content.index(b"\xae\x01\0\0", tracks)
        end = content.index(b"\xb0\x81", track)  # the width, with which the size of "Video" ends
        sizes = [tracks + 2, track + 5, end - 4]  # whose last bytes are those of sizes
    for at in sizes:
        content[at : at + 4] = (int.from_bytes(content[at : at + 4]) + len(added)).to_bytes(4)
    content[end:end] = added
    path.write_bytes(content)
    return path


def cut_beginning(path: Path, share: float, unit: int) -> Path:
    """Take off the first `share` of the bytes of a recording, up to a whole number of units of the container."""
    content = path.read_bytes()
    path.write_bytes(content[int(len(content) * share) // unit * unit :])
    return path


def begin_at_keyframe(path: Path, which: int) -> Path:
    """Take off everything before a keyframe of a recording, so that frames before it that need others stay behind."""
    with av.open(str(path)) as file:
        at = [packet.pos for packet in file.demux(video=0) if packet.is_keyframe and packet.size][which]
    path.write_bytes(path.read_bytes()[at:])
    return path


def join(path: Path, *parts: Path) -> Path:
    """Write files one behind the other, as `cat` does."""
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    return path


def telecine(path: Path) -> Path:
    """Mark the fields of an MPEG-2 stream that players repeat to show 24 film frames a second as 60 fields."""
    content = bytearray(path.read_bytes())
    extensions = [match.start() for match in re.finditer(b"\0\0\1\xb5", content)]
    for at in (at for at in extensions if content[at + 4] >> 4 == 1):
        content[at + 5] &= ~0x08  # progressive_sequence, ISO/IEC 13818-2, section 6.2.2.3
    for number, at in enumerate(at for at in extensions if content[at + 4] >> 4 == 8):
        top_first, repeated = ((1, 1), (0, 0), (0, 1), (1, 0))[number % 4]  # section 6.2.3.1
        content[at + 7] = content[at + 7] & ~0x82 | top_first << 7 | repeated << 1
        content[at + 8] |= 0x80  # progressive_frame
    path.write_bytes(content)
    return path


def write_pauses(path: Path) -> Path:
    """Speech-like tones and two seconds without any, in AMR with discontinuous transmission."""
    rustle = 1e-4 * np.random.default_rng(0).standard_normal(2 * 8000).astype(np.float32)
    sound = np.concatenate([tone(440, 1, 8000), rustle, tone(440, 1, 8000)])
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libopencore_amrnb", rate=8000, layout="mono", options={"dtx": "1"})
        stream.bit_rate = 12_200
        stream.codec_context.time_base = Fraction(1, 8000)
        for frame in frames([(0, sound)], 8000, "mono", stream.codec_context.format.name):
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


def hole(path: Path, first: float, last: float) -> Path:
    """Overwrite a part of a file with zeros, from one share of its bytes to another, as a download leaves it that was
    given its whole size at its beginning."""
    content = path.read_bytes()
    start, stop = round(first * len(content)), round(last * len(content))
    path.write_bytes(content[:start] + bytes(stop - start) + content[stop:])
    return path


def write_times(path: Path, codec: str, numbers: Sequence[int]) -> Path:
    """Write pictures and a tone at the times of `numbers`, FPS of them a second, which may have gaps of hours.

    Each picture shows its number modulo 251.
    """
    with av.open(str(path), "w") as file:
        video, sound = file.add_stream(codec, rate=FPS, options={"g": "25", "bf": "2", "b_strategy": "0"}), None
        video.width, video.height, video.pix_fmt, video.bit_rate = WIDTH, HEIGHT, "yuv420p", 2_000_000
        sound = file.add_stream("mp2", rate=48_000, layout="mono")
        packets = []
        for number in numbers:
            frame = _frame(number % 251, 0, FPS)
            frame.pts = number
            packets += video.encode(frame)
            samples = tone(440, 1 / FPS, 48_000)
            for each in frames([(number / FPS, samples)], 48_000, "mono", sound.codec_context.format.name):
                packets += sound.encode(each)
        packets += [*video.encode(), *sound.encode()]
        for packet in sorted(packets, key=lambda packet: packet.dts * packet.time_base):
            file.mux(packet)
    return path


def scramble_ts(path: Path, pids: set[int], *, first: float = 0, key: int = 0x5A) -> Path:
    """Scramble streams of a transport stream, from a share of its packets on; with `key` 0, only mark them as such."""
    content = np.frombuffer(bytearray(path.read_bytes()), np.uint8).reshape(-1, 188)
    for packet in content[int(first * len(content)) :]:
        if int(packet[1] & 0x1F) << 8 | int(packet[2]) in pids:
            packet[3] |= 0x80  # transport_scrambling_control, ISO/IEC 13818-1, section 2.4.3.2
            start = 5 + int(packet[4]) if packet[3] & 0x20 else 4  # behind the adaptation field
            packet[start:] ^= key
    path.write_bytes(content.tobytes())
    return path


def scramble_ps(path: Path) -> Path:
    """Scramble the packets of a program stream behind their first 128 bytes, as DVDs do."""
    content = bytearray(path.read_bytes())
    for match in re.finditer(rb"\0\0\x01[\xbd\xc0-\xef]..[\x80-\xbf]", content, re.DOTALL):
        at = match.start()
        content[at + 6] |= 0x10  # PES_scrambling_control, ISO/IEC 13818-1, section 2.4.3.6
        for k in range(at + 128, at + 6 + int.from_bytes(content[at + 4 : at + 6])):
            content[k] ^= 0x5A
    path.write_bytes(content)
    return path


def encrypt_webm(path: Path) -> Path:
    """Say in the header of a WebM file of unknown length that all its tracks are encrypted (RFC 9559, 5.1.4.1.31)."""
    encryption = _element("5035", _element("47e1", b"\5") + _element("47e2", b"key"))
    encoding = _element("5031", b"\0") + _element("5032", b"\1") + _element("5033", b"\1") + encryption
    content = path.read_bytes()
    tracks = [match.start() for match in re.finditer(bytes.fromhex("1654ae6b"), content)][-1] + 4
    at, stop = _size(content, tracks)
    entries, end = b"", at + stop
    while at < end:
        start, size = _size(content, at + 1)
        entry = content[start : start + size]
        is_track = content[at] == 0xAE
        entries += _element("ae", entry + _element("6d80", _element("6240", encoding))) if is_track else b""
        at = start + size
    path.write_bytes(content[: tracks - 4] + _element("1654ae6b", entries) + content[end:])
    return path


def _element(name: str, content: bytes) -> bytes:
    return bytes.fromhex(name) + (1 << 56 | len(content)).to_bytes(8) + content


def _size(content: bytes, at: int) -> tuple[int, int]:
    """Where the content of an EBML element begins whose size is here, and how long it is."""
    length = 9 - content[at].bit_length()
    return at + length, int.from_bytes(content[at : at + length]) & (1 << 7 * length) - 1
