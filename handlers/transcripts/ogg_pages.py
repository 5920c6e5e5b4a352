"""Checks the pages of an Ogg file before libsndfile reads it.

libogg looks for the next page wherever one does not follow, and computes a checksum of up to 65 KB for each place that
looks like one. A megabyte of such places takes it seconds. So each page must follow the one before it, and be whole;
what programs append, such as a tag, looks like no page. RFC 3533 has the format.
"""

from __future__ import annotations

import zlib

from reelscribe.errors import UnsupportedFormat, WireError

_HEADER_BYTES = 27
_FIRST_PAGE = 2  # a bit of the byte 5 of a page: a stream begins with it; all streams of a recording begin together
_REVERSED = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def check_pages(body: bytes | bytearray) -> None:
    """Check that a body is a row of whole pages of Ogg with one recording, which libsndfile reads to its end.

    Args:
        body: The bytes of the file.

    Raises:
        WireError: The file is cut short, or something else than a page is before its last one.
        UnsupportedFormat: It is a chain of recordings, of which libsndfile would read one.
    """
    view = memoryview(body)
    start, first_pages_end = 0, False
    while body.find(b"OggS", start) >= 0:
        header = view[start : start + _HEADER_BYTES]
        segments = view[start + _HEADER_BYTES : start + _HEADER_BYTES + header[-1]]
        end = start + _HEADER_BYTES + header[-1] + sum(segments)
        if bytes(header[:4]) != b"OggS" or len(header) < _HEADER_BYTES or end > len(view):
            raise WireError("audio: expected a whole Ogg file, got one that is cut short or damaged between its pages")
        if checksum(bytes(header[:22]) + bytes(4) + view[start + 26 : end]) != int.from_bytes(header[22:26], "little"):
            raise WireError("audio: expected a whole Ogg file, got one with a damaged page")
        is_first_page = bool(header[5] & _FIRST_PAGE)
        if is_first_page and first_pages_end:
            raise UnsupportedFormat(
                "audio: expected one recording, got a chain of several in one Ogg file; use `reelscribe transcribe`"
            )
        start, first_pages_end = end, not is_first_page
    # What is left is no page, but may be a tag or zeros that a program has appended.


def checksum(page: bytes) -> int:
    """Compute the checksum of a page: zlib's, but from 0 on, and with the bits of bytes and result in reverse order.

    Args:
        page: The bytes of the page, with 0 in the place of its checksum.

    Returns:
        32 bits.
    """
    reverse = zlib.crc32(page.translate(_REVERSED), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{reverse:032b}"[::-1], 2)
