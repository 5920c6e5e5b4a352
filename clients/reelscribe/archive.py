"""Model archives for TorchServe: a handler's files and its YAML, made with torch-model-archiver."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from reelscribe.errors import StartupError, UsageError

_SHARED = ["model_handler.py", "model_settings.py", "request_batch.py", "device_batches.py"]

HANDLER_FILES = {
    "caption": [*_SHARED, "frame_requests.py", "still_image.py", "frame_transform.py"],
    "speech": [
        *_SHARED,
        *("speech_requests.py", "speech_chunks.py", "sound_file.py", "speech_settings.py"),
        *("whisper_model.py", "whisper_decoding.py", "whisper_segments.py", "whisper_thresholds.py"),
        *("word_alignment.py", "spoken_words.py", "ctc_model.py"),
    ],
}
"""For each kind of handler, the files beside `<kind>_handler.py` that it imports."""


def build(name: str, kind: str, weights: str, model_store: Path, *, handlers: Path = Path("handlers")) -> Path:
    """Write `<model_store>/<name>.mar` and return its path.

    `weights` is a directory, which the archive refers to by its absolute path, or a hub name. The other settings are
    those of `<handlers>/<kind>.yaml`.
    """
    if kind not in HANDLER_FILES:
        raise UsageError(f"handler: expected one of {', '.join(HANDLER_FILES)}, got {kind!r}")
    settings: dict[str, Any] = yaml.safe_load((handlers / f"{kind}.yaml").read_text())
    settings["handler"]["model"] = _weights(weights)
    model_store.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=model_store) as directory:
        config = Path(directory) / "model-config.yaml"
        config.write_text(yaml.safe_dump(settings, sort_keys=False))
        command = [
            *(sys.executable, "-m", "model_archiver.model_packaging"),
            *("--model-name", name, "--version", "1.0"),
            *("--handler", str(handlers / f"{kind}_handler.py")),
            *("--extra-files", ",".join(str(handlers / file) for file in HANDLER_FILES[kind])),
            *("--config-file", str(config), "--export-path", directory),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise StartupError(f"torch-model-archiver: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
        # Renamed when it is whole: a server that starts meanwhile never sees half an archive.
        return (Path(directory) / f"{name}.mar").replace(model_store / f"{name}.mar")


def _weights(weights: str) -> str:
    directory = Path(weights)
    if not directory.exists():
        if weights.count("/") == 1 and not weights.startswith((".", "/")):
            return weights  # a hub name
        raise UsageError(f"weights: {weights} is neither a directory nor a hub name like Salesforce/blip2-opt-2.7b")
    if not list(directory.glob("*.safetensors")):
        raise UsageError(
            f"weights: {weights} holds no *.safetensors file; other formats can run code and are not loaded"
        )
    return str(directory.resolve())
