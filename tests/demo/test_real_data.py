"""How scripts/real_data sorts and converts what it has fetched, without fetching anything."""

import gzip
import json
import struct
from dataclasses import dataclass, field
from pathlib import Path

import av
import numpy as np
import pytest
import soundfile
import torch
from ctranslate2.converters import TransformersConverter
from transformers import AutoProcessor, AutoTokenizer, WhisperForConditionalGeneration

from real import prepare, recordings
from real.ctranslate2_model import read_variables
from real.packages import FetchError
from real.whisper_checkpoint import convert, state_dict
from support.tiny_models import save_whisper


@pytest.fixture
def english_only(tmp_path, demo_speech) -> Path:
    """A tiny English-only Whisper of transformers."""
    processor = AutoProcessor.from_pretrained(demo_speech)
    return Path(save_whisper(tmp_path / "whisper.en", processor, 10, is_multilingual=False, lang_to_id=None))


@pytest.fixture
def converted(english_only, tmp_path) -> Path:
    """The same as CTranslate2 has it."""
    converter = TransformersConverter(str(english_only), copy_files=["tokenizer.json"])
    return Path(converter.convert(str(tmp_path / "converted")))


def test_weights_come_back_from_ctranslate2_as_they_were(english_only, converted):
    model = WhisperForConditionalGeneration.from_pretrained(english_only)
    torch.testing.assert_close(state_dict(read_variables(converted / "model.bin", "WhisperSpec")), model.state_dict())


def test_a_checkpoint_has_the_sizes_the_tokens_and_the_settings_of_the_model(english_only, converted, tmp_path):
    content = json.loads((converted / "tokenizer.json").read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if "." not in token["content"]]
    (converted / "tokenizer.json").write_text(json.dumps(content))
    convert(converted, tmp_path / "checkpoint")
    before, after = (
        WhisperForConditionalGeneration.from_pretrained(path) for path in (english_only, tmp_path / "checkpoint")
    )
    torch.testing.assert_close(after.state_dict(), before.state_dict())
    sizes = ("d_model", "encoder_layers", "decoder_layers", "decoder_attention_heads", "max_source_positions")
    assert [getattr(after.config, name) for name in sizes] == [getattr(before.config, name) for name in sizes]
    ids = ("decoder_start_token_id", "no_timestamps_token_id", "alignment_heads", "is_multilingual")
    assert [getattr(after.generation_config, name) for name in ids] == [
        getattr(before.generation_config, name) for name in ids
    ]
    tokenizers = [AutoTokenizer.from_pretrained(path) for path in (english_only, tmp_path / "checkpoint")]
    assert tokenizers[1].get_vocab() == tokenizers[0].get_vocab()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (struct.pack("<IH", 6, 5) + b"Bert\0", "expected WhisperSpec in version 6, got Bert in version 6"),
        (
            struct.pack("<IH", 5, 12) + b"WhisperSpec\0",
            "expected WhisperSpec in version 6, got WhisperSpec in version 5",
        ),
        (struct.pack("<IH12sIIIB", 6, 12, b"WhisperSpec\0", 3, 0, 0, 1), "got 1 bytes more"),
    ],
)
def test_a_file_that_is_not_understood_is_refused(tmp_path, content, reason):
    (tmp_path / "model.bin").write_bytes(content)
    with pytest.raises(ValueError, match=reason):
        read_variables(tmp_path / "model.bin", "WhisperSpec")


@pytest.fixture
def stamps(tmp_path) -> Path:
    """An unpacked package of stamps; recordings of the same words have the same samples."""
    folder = tmp_path / "package/usr/share/tuxpaint/stamps"
    files = {
        "animals/owl.txt": "An owl.\nfr.utf8=Une chouette.\nnl.utf8=An owl.\n",
        "animals/owl2.txt": "An owl.\nfr.utf8=Un hibou.\n",
        "animals/penguin.txt": "A penguin.\nfr.utf8=Un manchot.\nnl.utf8=Een pinguïn.\n",
        "animals/hen.txt": "A brown hen.\n",
        "animals/hen_desc.ogg": "hen",
        "animals/owl_desc.ogg": "owl",
        "animals/owl2_desc.ogg": "owl",
        "animals/owl_desc_fr.ogg": "une chouette",
        "animals/owl2_desc_fr.ogg": "une chouette",
        "animals/owl_desc_nl.ogg": "een uil",
        "animals/owl.ogg": "hoot",
        "animals/owl2.ogg": "hoot",
        "animals/penguin_desc.ogg": "penguin",
        "animals/penguin_desc_fr.ogg": "un manchot",
        "animals/penguin_desc_nl.ogg": "een pinguïn",
        "animals/penguin.ogg": "squawk",
        "animals/wallaby_desc.ogg": "wallaby",
        "space/apollo_lander.ogg": "one small step",
        "symbols/math/7_fr.ogg": "sept",
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".txt":
            path.write_text(content)
        else:
            samples = np.random.default_rng([*content.encode()]).normal(0, 0.1, 800)
            soundfile.write(path, samples, 8000, format="OGG")
    return tmp_path / "package"


def names(folder: Path) -> set[str]:
    """The names of the recordings."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*.ogg")}


def test_words_are_those_whose_text_is_certain(stamps, tmp_path):
    recordings.copy_words(tmp_path / "words", stamps)
    texts = json.loads((tmp_path / "words" / recordings.TEXTS).read_text())
    assert sorted(texts.values()) == ["owl", "penguin"]
    assert texts.keys() == names(tmp_path / "words")


def test_announcements_are_those_whose_text_is_certain_and_that_were_recorded(tmp_path):
    lines = ["; Sounds", "vm-no: no", "lost: Not recorded.", "letters/a: a", "beep: [a beep]", "agent: Dial 8500."]
    texts = tmp_path / "texts/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
    texts.parent.mkdir(parents=True)
    texts.write_bytes(gzip.compress("\n".join([*lines, "dictate/help: Please try again."]).encode()))
    for name in ("vm-no", "letters/a", "beep", "agent", "dictate/help"):
        path = tmp_path / f"sounds/usr/share/asterisk/sounds/en_US_f_Allison/{name}.g722"
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(path, "w") as file:
            stream = file.add_stream("g722", rate=16_000, layout="mono")
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 3200), np.int16), format="s16", layout="mono")
            frame.rate = 16_000
            file.mux([*stream.encode(frame), *stream.encode(None)])
    recordings.copy_announcements(tmp_path / "announcements", tmp_path / "texts", tmp_path / "sounds")
    written = json.loads((tmp_path / "announcements" / recordings.TEXTS).read_text())
    assert written == {"vm-no.wav": "no", "dictate-help.wav": "Please try again"}
    assert [soundfile.info(tmp_path / "announcements" / name).duration for name in written] == [0.2, 0.2]


def test_other_languages_have_a_folder_each_without_what_is_not_translated(stamps, tmp_path):
    recordings.copy_words_of_other_languages(tmp_path / "words", stamps)
    assert json.loads((tmp_path / "words" / recordings.TEXTS).read_text()) == {
        "fr/animals-penguin.ogg": {"language": "fr", "text": "Un manchot."},
        "nl/animals-penguin.ogg": {"language": "nl", "text": "Een pinguïn."},
    }
    assert names(tmp_path / "words") == {"fr/animals-penguin.ogg", "nl/animals-penguin.ogg"}


def test_sounds_hold_no_words(stamps, tmp_path):
    recordings.copy_sounds(tmp_path / "sounds", stamps)
    assert names(tmp_path / "sounds") == {"owl.ogg", "penguin.ogg"}


@dataclass
class FakePackage:
    """A package of one file, whose content is its name; it counts downloads."""

    name: str
    origin: str = "nowhere"
    there: bool = True
    downloads: list[Path] = field(default_factory=list)

    def fetch(self, folder: Path) -> str:
        if not self.there:
            raise FetchError(f"{self.name}: no such package")
        self.downloads.append(folder)
        (folder / self.name).write_text(self.name)
        return "1.0"


def copied(target: Path, *packages: Path) -> None:
    target.mkdir()
    for package in packages:
        (target / package.name).write_text((package / package.name).read_text())


def test_a_folder_is_prepared_once_and_what_is_missing_is_said_and_made_later(tmp_path, monkeypatch):
    one, two = FakePackage("one"), FakePackage("two", there=False)
    parts = [
        prepare.Part(name, packages, copied, "CC0", "here") for name, packages in (("a", (one,)), ("b", (one, two)))
    ]
    monkeypatch.setattr(prepare, "PARTS", parts)
    folder = tmp_path / "data"
    assert prepare.prepare(folder) == ["two: no such package"]
    assert sorted(path.name for path in folder.iterdir()) == ["a", prepare.SOURCES]
    (folder / "a" / "mark").touch()
    two.there = True
    assert prepare.prepare(folder) == []
    assert {path.name for path in (folder / "a").iterdir()} == {"one", "mark"}
    assert {path.name for path in (folder / "b").iterdir()} == {"one", "two"}
    sources = json.loads((folder / prepare.SOURCES).read_text())
    packages = [{"name": name, "version": "1.0", "from": "nowhere"} for name in ("one", "two")]
    assert sources["b"] == {"packages": packages, "licence": "CC0", "origin": "here"}
    assert prepare.prepare(folder) == []
    assert (len(one.downloads), len(two.downloads)) == (2, 1)
