"""Files of a checkpoint that name code and weights elsewhere, which are refused before transformers follows them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import OfflineModeIsEnabled
from transformers import AutoConfig, AutoTokenizer

import caption_handler
from reelscribe.errors import StartupError
from runtime.model_settings import ModelSettings
from runtime.pretrained import from_pretrained
from support.fake_context import FakeContext
from transcripts.whisper.ctranslate2_conversion import convert

KERNEL = "somebody/attention"


@pytest.fixture
def folder(tmp_path, demo_model) -> Path:
    return Path(shutil.copytree(demo_model, tmp_path / "model"))


def add(path: Path, settings: dict[str, Any]) -> None:
    """Add settings to a file, in a part of it too if they have one."""
    value = json.loads(path.read_text()) if path.exists() else {}
    for name, setting in settings.items():
        value[name] = {**value[name], **setting} if isinstance(value.get(name), dict) else setting
    path.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("config.json", {"_attn_implementation": KERNEL}, "_attn_implementation: expected one of eager, "),
        ("config.json", {"attn_implementation": f"{KERNEL}@main:forward"}, "for which no code is fetched, got 'some"),
        ("config.json", {"text_config": {"attn_implementation": KERNEL}}, "attn_implementation: expected one of"),
        ("config.json", {"attn_implementation": {"": "eager", "text_config": KERNEL}}, "got <dict>; remove it"),
        ("config.json", {"attn_implementation": 5}, "got 5; remove it from the file"),
        ("config.json", {"experts_implementation": "sonicmoe"}, "expected one of batched_mm, eager, grouped_mm"),
        ("generation_config.json", {"attn_implementation": KERNEL}, "generation_config.json, attn_implementation"),
        ("adapter_config.json", {"base_model_name_or_path": "somebody/model"}, "with the adapter merged into them"),
        ("processor_config.json", {"audio_tokenizer": {"a": 1}}, "expected no audio_tokenizer, which is another"),
        ("audio_tokenizer_config.json", {"audio_tokenizer_class": "DacModel"}, "expected a model without a tokenizer"),
    ],
)
def test_a_checkpoint_that_names_something_elsewhere_does_not_load(folder, name, settings, reason):
    add(folder / name, settings)
    with pytest.raises(StartupError) as error:
        caption_handler.handle(None, FakeContext({"model": str(folder)}))
    assert reason in str(error.value)
    with pytest.raises(StartupError):
        convert(str(folder), str(folder / "converted"), "int8")
    assert not (folder / "converted").exists()


@pytest.mark.parametrize("value", ["eager", "sdpa", None, {"": "eager", "text_config": "sdpa"}])
def test_implementations_of_transformers_itself_are_used(folder, value):
    add(folder / "config.json", {"attn_implementation": value})
    config = from_pretrained(AutoConfig, ModelSettings(str(folder)))
    assert config._attn_implementation == (value[""] if isinstance(value, dict) else value)


@pytest.mark.parametrize("kind", [AutoConfig, AutoTokenizer])
def test_code_beside_the_weights_is_not_run(folder, kind):
    (folder / "code.py").write_text("raise SystemExit('it was run')")
    for name in ("config.json", "tokenizer_config.json"):
        add(folder / name, {"auto_map": {"AutoConfig": "code.Config", "AutoTokenizer": ["code.Slow", "code.Fast"]}})
    assert from_pretrained(kind, ModelSettings(str(folder)))
    add(folder / "config.json", {"model_type": "unheard-of"})
    with pytest.raises(
        ValueError, match=r"contains custom code which must be executed|[Pp]lease set .*trust_remote_code"
    ):
        from_pretrained(AutoConfig, ModelSettings(str(folder)))


def test_no_hub_is_reached_while_a_folder_is_loaded(folder, monkeypatch):
    class Curious:
        """A class of transformers that asks a hub for more."""

        @staticmethod
        def from_pretrained(*_: object, **__: object) -> object:
            return HfApi(endpoint="http://127.0.0.1:9").model_info("some/model")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(OfflineModeIsEnabled):
        from_pretrained(Curious, ModelSettings(str(folder)))
    assert not constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("text", ["{", "[" * 100_000, "\x00"])
def test_a_damaged_file_of_settings_is_named(folder, text):
    (folder / "preprocessor_config.json").write_text(text)
    with pytest.raises(StartupError, match=r"preprocessor_config\.json: expected JSON, got something else"):
        from_pretrained(AutoConfig, ModelSettings(str(folder)))
