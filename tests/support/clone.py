"""A folder like a clone of the project, in which the commands of the documents run as a reader would run them."""

import os
import random
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from support.documents import ROOT

STAND_INS = {
    "scripts/setup": ":  # It would install packages.",
    "scripts/test": ":  # It would run these tests.",
    "scripts/bench": ":  # It takes minutes; tests/bench runs every benchmark with small sizes.",
    "scripts/docs": ":  # tests/docs/test_site.py runs it.",
    "bin/pip": ":  # It would change the packages of these tests.",
    ".venv/bin/pip": ":  # So would it.",
    "bin/ssh": ":  # There is no other machine, and the server can be reached without a tunnel.",
    "bin/scp": 'cp "${1#*:reelscribe/}" "$2"  # There is no other machine: its files are here.',
}
"""Programs that do not run themselves, and a line of bash with the reason for each."""

REPLACED = {
    "Salesforce/blip2-opt-2.7b": "demo/models/captioner",  # needs a hub
    "openai/whisper-large-v3-turbo": "demo/models/speech",
    "Qwen/Qwen3-VL-2B-Instruct": "demo/models/clips",
    "/videos": "videos",
    "vmargs=": "vmargs=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC ",  # Java starts in half the time
}
"""What a reader has and these tests have not, and what stands in for it."""

VIDEOS = ("old.avi", "same-640x360.webm", "spoken.mp4")
"""The demo media that are the library of a reader."""

LINKED = ("clients", "demo", "docs", "handlers", "pyproject.toml")


class Clone:
    """A clone whose server has a loopback address of its own, so that it may use the usual ports.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"127.{random.randint(1, 254)}.{random.randint(1, 254)}.{random.randint(1, 254)}"
        with socket.create_server(("127.0.0.1", 0)) as free:  # where a run serves its metrics
            self._replaced = {**REPLACED, "127.0.0.1": self.address, "9108": str(free.getsockname()[1])}
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)
        (folder / "videos").mkdir()
        for name in VIDEOS:
            (folder / "videos" / name).symlink_to(ROOT / "demo" / "media" / name)
        for config in ROOT.glob("*.properties"):
            (folder / config.name).write_text(self.replaced(config.read_text()))
        for name in ("bin", "model_store", "scripts", ".venv/bin"):
            (folder / name).mkdir(parents=True)
        for script in (ROOT / "scripts").iterdir():
            (folder / "scripts" / script.name).symlink_to(script)
        self._add_programs()

    def _add_programs(self) -> None:
        curl = shlex.quote(shutil.which("curl") or str(Path(__file__).with_name("curl")))
        python = shlex.quote(sys.executable)
        programs = {
            **STAND_INS,
            ".venv/bin/python": f'exec {python} "$@"',
            ".venv/bin/reelscribe": f'exec {python} -m reelscribe.cli "$@"',
            "bin/reelscribe": 'exec .venv/bin/reelscribe "$@"',
            "bin/curl": f'exec {curl} "$@"',
        }
        for name, script in programs.items():
            path = self.folder / name
            path.unlink(missing_ok=True)
            path.write_text(f"#!/usr/bin/env bash\n{script}\n")
            path.chmod(0o755)

    def replaced(self, text: str) -> str:
        """Text of a document, with what stands in for what these tests have not."""
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        return text

    def sh(self, code: str) -> str:
        """Run commands of a document in bash, and return what they print. The first one that fails ends them."""
        return self._run(["bash", "-euo", "pipefail", "-c", self.replaced(code)])

    def python(self, code: str) -> str:
        """Run Python code of a document, and return what it prints."""
        return self._run([sys.executable, "-c", self.replaced(code)])

    def stop(self) -> None:
        """Stop every server that the commands have started."""
        for directory in self.folder.glob(".server*"):
            self.sh(f"reelscribe server stop --directory {directory.name}")

    def _run(self, command: list[str]) -> str:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "PATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout
