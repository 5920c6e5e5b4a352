"""The options of a start are kept for a restart."""

from pathlib import Path

import pytest

from reelscribe.errors import StartupError, UsageError
from reelscribe.server.start_options import StartOptions


def test_options_are_remembered_with_whole_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = StartOptions(Path("c"), Path("store"), 5.0, True, False, Path("cert"), Path("key"), ("A",), {"a": "b"})
    options.save(tmp_path / "saved")
    whole = {name: tmp_path / getattr(options, name) for name in ("config", "model_store", "certificate")}
    assert StartOptions.load(tmp_path / "saved") == StartOptions(
        **whole,
        private_key=tmp_path / "key",
        load_seconds=5.0,
        model_api=True,
        pass_environment=("A",),
        overrides={"a": "b"},
    )


def test_a_certificate_without_a_key_is_refused():
    with pytest.raises(UsageError, match="belong together"):
        StartOptions(certificate=Path("c"))


def test_remembered_options_that_are_damaged_are_said(tmp_path):
    (tmp_path / "saved").write_text("{}")
    with pytest.raises(StartupError, match="not the options of a server"):
        StartOptions.load(tmp_path / "saved")
