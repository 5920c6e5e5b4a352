"""Sorts the recordings of Debian packages: read sentences, announcements, single words, and sounds without words.

Five sentences of LibriVox, read by one voice, come with pocketsphinx. Tux Paint has stamps, small pictures with a text
in many languages; people recorded the text of many stamps, and there are sounds of the things themselves:

    penguin.txt             "A penguin." and then lines such as "fr.utf8=Un manchot."
    penguin_desc.ogg        the English word, without its article
    penguin_desc_fr.ogg     the French text
    penguin.ogg             the sound of a penguin

Asterisk has hundreds of announcements for the telephone, read by another voice, and a file with their texts.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile

TEXTS = "texts.json"
"""The file of a folder of recordings that has the text of each."""

_SENTENCES = Path("usr/share/pocketsphinx/test/data/librivox")
_STAMPS = Path("usr/share/tuxpaint/stamps")

_SENTENCE = re.compile(r"<s> (?P<text>.*) </s> \((?P<name>.*)\)")
_ANNOUNCEMENTS = Path("usr/share/asterisk/sounds/en_US_f_Allison")
_ANNOUNCED = Path("usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz")

_ANNOUNCEMENT = re.compile(r"(?P<name>[^;:]+):(?P<text>[^\[<(]+)")
"""A line of the texts; what is in brackets describes a sound."""

_NUMBER = re.compile(r"\d\d")
"""Part of a number that can be read in more than one way."""

_SPELLED = ("letters/", "digits/", "phonetic/", "spy-")
"""Beginnings of the names of announcements that are letters, numbers and abbreviations."""

_ARTICLE = re.compile(r"^(An?|The) ")
_RECORDED = re.compile(r"_desc_([a-z]+)(\.ogg)+$")

_SLIP = ("a more a amiable", "a more amiable")
"""A place where the transcription has a hesitation, which is neither in the book nor in what any model writes."""

SPOKEN_FOLDERS = ("symbols", "seasonal/hanukkah", "town")
"""Folders of stamps whose own sounds are spoken: letters, numbers, moods, and signs that are read out."""

SPOKEN_SOUNDS = ("apollo_lander", "santahat", "final-roll-call")
"""Other sounds with a voice in them, or of which this is not certain."""

_HEARD = {
    "chimp": "chimp",
    "hen": None,
    "kangaroo": "kangaroo",
    "mountaingoat": "mountain goat",
    "nandou": None,
    "wildboar": "wild boar",
}
"""English words that are recorded otherwise than they are written now, as recognition tells; None if it does not."""


def copy_sentences(target: Path, unpacked: Path) -> None:
    """Copy the sentences as WAV files; the text of each is in lower case, without punctuation."""
    target.mkdir()
    texts = {}
    for match in _SENTENCE.finditer((unpacked / _SENTENCES / "transcription").read_text()):
        name = f"{match['name']}.wav"
        shutil.copy(unpacked / _SENTENCES / name, target / name)
        texts[name] = match["text"].replace(*_SLIP)
    _write_texts(target, texts)


def copy_announcements(target: Path, texts: Path, sounds: Path) -> None:
    """Write the announcements as WAV files of 16 kHz; their texts are without the last full stop."""
    target.mkdir()
    written = {}
    for line in gzip.decompress((texts / _ANNOUNCED).read_bytes()).decode().splitlines():
        match = _ANNOUNCEMENT.fullmatch(line)
        if match is None or match["name"].startswith(_SPELLED) or _NUMBER.search(match["text"]):
            continue
        recorded = sounds / _ANNOUNCEMENTS / f"{match['name']}.g722"
        if not recorded.exists():  # some texts have no recording
            continue
        name = f"{match['name'].replace('/', '-')}.wav"
        with av.open(str(recorded)) as file:
            samples = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
        soundfile.write(target / name, samples, 16_000)
        written[name] = match["text"].strip(" .")
    _write_texts(target, written)


def copy_words(target: Path, unpacked: Path) -> None:
    """Copy the English words; the text of each is without article and full stop, such as "penguin"."""
    target.mkdir()
    found = []
    for path in sorted((unpacked / _STAMPS).rglob("*_desc.ogg")):
        stamp = path.name.removesuffix("_desc.ogg")
        written = _ARTICLE.sub("", _texts(path.with_name(f"{stamp}.txt")).get("en", "")).rstrip(".").lower()
        if text := _HEARD.get(stamp, written):
            found.append((path, f"{stamp}.ogg", text))
    _copy_distinct(target, found)


def copy_words_of_other_languages(target: Path, unpacked: Path) -> None:
    """Copy the words of other languages into a folder for each.

    The text of each is {"language": the code, "text": the text as written}. Recordings of texts that are in English are
    left out: whoever spoke them may have translated them.
    """
    target.mkdir()
    found = []
    for path in sorted((unpacked / _STAMPS).rglob("*_desc_*.ogg")):
        match = _RECORDED.search(path.name)
        if match is None:
            continue
        texts = _texts(path.with_name(f"{path.name[: match.start()]}.txt"))
        language = match[1]
        if (text := texts.get(language)) and text != texts.get("en"):
            place = path.relative_to(unpacked / _STAMPS).parent / f"{path.name[: match.start()]}.ogg"
            found.append((path, f"{language}/{'-'.join(place.parts)}", {"language": language, "text": text}))
    _copy_distinct(target, found)


def copy_sounds(target: Path, unpacked: Path) -> None:
    """Copy the sounds of animals and things, which hold no words.

    A sound is a recording without "_desc" in its name. Those in SPOKEN_FOLDERS and SPOKEN_SOUNDS are left out.
    """
    target.mkdir()
    stamps = unpacked / _STAMPS
    found = [
        (path, path.name, None)
        for path in sorted(stamps.rglob("*.ogg"))
        if "_desc" not in path.name
        and path.stem not in SPOKEN_SOUNDS
        and not any(path.is_relative_to(stamps / folder) for folder in SPOKEN_FOLDERS)
    ]
    for path, name, _ in _distinct(found):
        shutil.copy(path, target / name)


def _texts(path: Path) -> dict[str, str]:
    """The texts of a stamp by their language; none if it has no such file."""
    if not path.exists():
        return {}
    english, *others = path.read_text().splitlines() or [""]
    pairs = (line.partition(".utf8=") for line in others)
    return {**{language: text.strip() for language, _, text in pairs if text}, "en": english.strip()}


def _copy_distinct(target: Path, found: Sequence[tuple[Path, str, Any]]) -> None:
    """Copy recordings under new names, and write their texts."""
    texts = {}
    for path, name, text in _distinct(found):
        (target / name).parent.mkdir(exist_ok=True)
        shutil.copy(path, target / name)
        texts[name] = text
    _write_texts(target, texts)


def _distinct(found: Sequence[tuple[Path, str, Any]]) -> Iterator[tuple[Path, str, Any]]:
    """Yield the first recording of those with the same samples, but none if their texts differ: one of them is wrong.

    The same samples may be in files of other bytes, but of one size, as each Ogg stream has a serial number.
    """
    sizes = Counter(path.stat().st_size for path, _, _ in found)
    same = defaultdict(list)
    for path, name, text in found:
        key = _digest(path) if sizes[path.stat().st_size] > 1 else name
        same[key].append((path, name, text))
    for (path, name, text), *others in same.values():
        if all(other == text for _, _, other in others):
            yield path, name, text


def _digest(path: Path) -> str:
    """The SHA-256 of a recording's samples."""
    samples, _ = soundfile.read(path, dtype="int16")
    return hashlib.sha256(samples.tobytes()).hexdigest()


def _write_texts(folder: Path, texts: dict[str, Any]) -> None:
    (folder / TEXTS).write_text(json.dumps(texts, ensure_ascii=False, indent=1) + "\n")
