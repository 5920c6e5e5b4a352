"""A process that writes beside sources may be killed at any moment: files are whole, and those of others stay."""

import random
import signal
import subprocess
import time
from pathlib import Path

from support.commands import reelscribe
from support.exporting import annotations, transcript_record

SOURCES, KILLS = 300, 20
FOREIGN = [f"{number:03}.en.srt" for number in range(0, SOURCES, 50)]
TEXT = {"old": ("before", "then"), "new": ("after", *"abcdefghijklmnopqrstuvwxyz")}


def prepare(folder: Path, made: str) -> Path:
    """Make the output folder of a run over films in a folder; return it."""
    (folder / "films").mkdir(exist_ok=True, parents=True)
    (folder / "out").mkdir(exist_ok=True)
    names = [str(folder / f"films/{number:03}.mp4") for number in range(SOURCES)]
    annotations(folder / "out", [transcript_record(name, *TEXT[made]) for name in names])
    return folder / "out"


def command(out: Path) -> list[str]:
    return reelscribe("export", out, "--beside", "srt,json")


def contents(folder: Path) -> dict[str, bytes]:
    """The content of each file in the folder of films, with the path of the folder in records taken out."""
    return {path.name: content_of(path) for path in (folder / "films").iterdir()}


def content_of(path: Path) -> bytes:
    return path.read_bytes().replace(bytes(path.parent), b"") if path.exists() else b""


def undisturbed(folder: Path, made: str) -> dict[str, bytes]:
    subprocess.run(command(prepare(folder, made)), check=True, capture_output=True)
    return contents(folder)


def test_after_any_kill_every_file_is_whole_and_the_next_run_completes_them(tmp_path):
    """Older and newer results replace one another in turn; a kill waits for a file that is drawn by chance."""
    whole = {made: undisturbed(tmp_path / made, made) for made in TEXT}
    folder, chance = tmp_path / "killed", random.Random(1)
    (folder / "films").mkdir(parents=True)
    foreign = dict.fromkeys(FOREIGN, b"mine")
    for name, content in foreign.items():
        (folder / "films" / name).write_bytes(content)
    killed = 0
    for number in range(KILLS):
        made = ("old", "new")[number % 2]
        out, last = prepare(folder, made), folder / f"films/{chance.randrange(1, SOURCES - 1):03}.reelscribe.json"
        with subprocess.Popen(command(out), stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and content_of(last) != whole[made][last.name]:
                time.sleep(chance.random() / 100)
            process.send_signal(signal.SIGKILL)
        killed += process.returncode == -signal.SIGKILL
        for name, content in contents(folder).items():
            if not name.startswith(".reelscribe-"):
                assert content == foreign.get(name) or content in (whole["old"][name], whole["new"][name])
    assert killed > KILLS / 2
    subprocess.run(command(prepare(folder, "new")), check=True, capture_output=True)
    assert contents(folder) == whole["new"] | foreign
