"""Makes reference.npz: colours of HDR video, and what FFmpeg's filters zscale and tonemap make of them.

    python tests/data/hdr_colours/make_reference.py

It needs the program ffmpeg with zscale; that of FFmpeg 5.1 has made the file. For each kind of video, such as
"pq yuv420p10le tv", the file has arrays of (colours, 3): "<kind> yuv", the values of Y, U and V as stored, and
"<kind> rgb", the levels of 255 of R, G and B that the filters give. They put white at 203 cd/m2, where productions put
it (ITU-R BT.2408). The operator mobius keeps what is darker than 30 % of that. With hable, white would become a grey
of level 157, and a red of (200, 29, 30) on a usual screen one of (129, 20, 20).
"""

import subprocess
from itertools import product
from pathlib import Path

import numpy as np

OUT = Path(__file__).with_name("reference.npz")
FILTERS = (
    "setparams=color_primaries=bt2020:color_trc={transfer}:colorspace=bt2020nc:range={levels},"
    "zscale=transfer=linear:npl=203,format=gbrpf32le,zscale=primaries=bt709,tonemap=mobius:desat=0,"
    "zscale=transfer=bt709:matrix=bt709:range=tv,format=yuv444p,"
    "scale=in_color_matrix=bt709:flags=accurate_rnd+full_chroma_int"
)
TRANSFERS = {"pq": "smpte2084", "hlg": "arib-std-b67"}
SIDE = 4
"""Width and height of the square of each colour, in pixels."""

SKIN = [(255, 219, 172), (241, 194, 125), (224, 172, 105), (198, 134, 66), (141, 85, 36), (80, 48, 28)]
SATURATED = [(200, 29, 30), *product((20, 230), repeat=3)]
GREYS = [(level, level, level) for level in range(0, 256, 15)]
TO_BT2020 = np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]])


def signals(transfer):
    """Return signals from 0 to 1 of usual colours, as they are, twice and five times as bright, and of all others."""
    light = 203 * (np.array([*SKIN, *SATURATED, *GREYS]) / 255) ** 2.4 @ TO_BT2020.T
    usual = np.concatenate([light, 2 * light, 5 * light])
    if transfer == "pq":
        power = (usual / 10_000) ** (2610 / 16384)
        usual = ((3424 / 4096 + 2413 / 128 * power) / (1 + 2392 / 128 * power)) ** (2523 / 32)
    else:
        scene = (usual / 1000).clip(0, 1) ** (1 / 1.2)
        bright = 0.17883277 * np.log(12 * scene.clip(1 / 12) - 0.28466892) + 0.55991073
        usual = np.where(scene <= 1 / 12, (3 * scene) ** 0.5, bright)
    return np.concatenate([usual, [*product(np.linspace(0, 0.8 if transfer == "pq" else 1, 6), repeat=3)]])


def yuv(rgb, pixel_format, levels):
    """Return the values of Y, U and V that are stored for signals, by the equations of ITU-R BT.2100."""
    bits = 10 if "10" in pixel_format else 8
    y = rgb @ (0.2627, 0.6780, 0.0593)
    u, v = (rgb[:, 2] - y) / 1.8814, (rgb[:, 0] - y) / 1.4746
    black, luma, chroma = (16, 219, 224) if levels == "tv" else (0, 255, 255)
    scale = (2**bits - 1) / 255 if levels == "pc" else 2 ** (bits - 8)
    values = [scale * (black + luma * y), *(2 ** (bits - 1) + scale * chroma * each for each in (u, v))]
    return np.rint(values).clip(0, 2**bits - 1).astype(np.uint16 if bits == 10 else np.uint8).T


def filtered(values, pixel_format, transfer, levels):
    """Return the levels of R, G and B that the filters give for values of Y, U and V."""
    planes = values.T[:, None].repeat(SIDE, 1).repeat(SIDE, 2)
    frame = planes[0].tobytes() + planes[1:, ::2, ::2].tobytes()
    size = f"{SIDE * len(values)}x{SIDE}"
    filters = FILTERS.format(transfer=TRANSFERS[transfer], levels=levels)
    raw = ["-f", "rawvideo", "-pix_fmt", pixel_format, "-s", size, "-i", "-"]
    command = ["ffmpeg", "-v", "error", *raw, "-vf", filters, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    result = subprocess.run(command, input=frame, capture_output=True, check=True).stdout
    return np.frombuffer(result, np.uint8).reshape(SIDE, -1, 3)[SIDE // 2, SIDE // 2 :: SIDE]


if __name__ == "__main__":
    arrays = {}
    for transfer, pixel_format, levels in product(TRANSFERS, ("yuv420p10le", "yuv420p"), ("tv", "pc")):
        kind, values = f"{transfer} {pixel_format} {levels}", yuv(signals(transfer), pixel_format, levels)
        arrays |= {f"{kind} yuv": values, f"{kind} rgb": filtered(values, pixel_format, transfer, levels)}
    np.savez_compressed(OUT, **arrays)
