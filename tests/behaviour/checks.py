"""The checks. Each runs commands of a tree and writes text files, which are equal if the behaviour is equal.

The files contain no sentences for people, such as help and usage errors, and nothing that differs from run to run.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import threading
import time
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

from checkout import REELSCRIBE, SOURCES, VARIANTS, Checkout, free_port
from recorder import recorder

ONE_BY_ONE = ("--requests-in-flight", "1", "--chunks-per-request", "1")
HALF_DONE_ROWS = 12
"""With this many rows in the ledger of a run with ONE_BY_ONE, both frames and audio are partly done."""

JOBS = """
    SELECT sha256, value, opened, total, done, error FROM jobs JOIN settings ON settings.id = settings ORDER BY 1, 2
"""
BATCHES = """
    SELECT sha256, value, first, stop, anchor, results FROM batches
    JOIN jobs ON jobs.id = job JOIN settings ON settings.id = settings ORDER BY 1, 2, 3
"""


def check_demo(tree: Checkout, out: Path) -> None:
    """The demo media and models have the same bytes. All other checks use those of the other commit."""
    files = [path for path in sorted(tree.root.glob("demo/m*/**/*")) if path.is_file() and path.suffix != ".md"]
    digests = {path.relative_to(tree.root): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    write(out / "digests", *(f"{path} {digest}" for path, digest in digests.items()))


def check_help(tree: Checkout, out: Path) -> None:
    """Commands, arguments and options have the same names, types and defaults."""
    write(out / "options", tree.probe("print_options"))


def check_config(tree: Checkout, out: Path) -> None:
    """The config files have the same settings; comments and the path of the handlers may change."""
    for path in tree.root.glob("config*.properties"):
        lines = [line for line in path.read_text().splitlines() if line[:1].isalpha()]
        write(out / path.name, *(line for line in lines if not line.startswith("metrics_config=")))


def check_wire(tree: Checkout, out: Path) -> None:
    """Request bodies have the same bytes, and both trees read the bodies of the other commit in the same way."""
    bodies = out / "bodies"
    bodies.mkdir()
    tree.probe("pack_bodies", bodies)
    reference = tree.reference / "wire" / "bodies"
    write(out / "unpacked", tree.probe("print_unpacked", reference if reference.exists() else bodies))


def check_archives(tree: Checkout, out: Path) -> None:
    """Archives have the same settings; the files of the handlers may change."""
    for path in tree.store.glob("*.mar"):
        with zipfile.ZipFile(path) as archive:
            write(out / path.stem, archive.read("model-config.yaml").decode())


def check_annotate(tree: Checkout, out: Path) -> None:
    """Records have the same bytes, with several options, and with one of the models."""
    for name, folder in tree.runs.items():
        shutil.copy(folder / "annotations.jsonl", out / name)


def check_ledger(tree: Checkout, out: Path) -> None:
    """Ledgers have the same schema, settings, jobs and batches. The tables `files` and `run` differ from run to run."""
    for name, folder in tree.runs.items():
        queries = ("SELECT sql FROM sqlite_master ORDER BY name", "PRAGMA user_version", "SELECT * FROM settings")
        rows = [row for query in (*queries, JOBS, BATCHES) for row in select(folder, query)]
        write(out / name, *(" ".join(map(str, row)) for row in rows))


def check_exports(tree: Checkout, out: Path) -> None:
    """Subtitles and CSV have the same bytes, and Parquet the same schema and rows."""
    formats = [word for name in ("vtt", "srt", "csv", "parquet") for word in ("--format", name)]
    for cues in ("captions", "transcript", "both"):
        folder = out / cues
        folder.mkdir()
        shutil.copy(tree.quiet / "annotations.jsonl", folder)
        tree.reelscribe("export", folder, *formats, "--cues", cues)
        tree.probe("parquet_to_text", folder)


def check_describe(tree: Checkout, out: Path) -> None:
    """`reelscribe models describe` prints the same JSON, except for process ids and memory."""
    for name in ("captioner", "speech"):
        description = describe(tree, name)
        for worker in description["workers"]:
            for key in ("id", "pid", "memory"):
                del worker[key]
        write(out / name, json.dumps(description, indent=1, sort_keys=True))


def check_server(tree: Checkout, out: Path) -> None:
    """The server's directory has the same files and settings, and its metrics have the same names."""
    assert tree.quiet  # some metrics do not exist before the first request
    directory = tree.server
    files = sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))
    options = sorted(json.loads((directory / "started-with.json").read_text()))
    settings = (directory / "config.properties").read_text().replace(str(tree.scratch), "")
    settings = re.sub(r"(?<=127.0.0.1:)\d+|(?<=port=)\d+|(?<=metrics_config=).*", "", settings)
    write(out / "directory", *(name for name in files if "tmp/" not in name), *options, settings)
    text = fetch(tree.address("metrics"), "/metrics")
    write(out / "metrics", *sorted({*re.findall("^# TYPE .*", text, re.MULTILINE), *metric_names(text)}))


def check_progress(tree: Checkout, out: Path) -> None:
    """The lines of --json-log have the same keys, and --metrics-port serves metrics of the same names."""
    port, names, log = free_port(), set[str](), list[str]()
    options = ("--json-log", "--metrics-port", str(port), *ONE_BY_ONE)
    with tree.start("annotate", SOURCES, "--out", tree.scratch / "progress", *options, *tree.access()) as run:
        reader = threading.Thread(target=lambda: log.extend(run.stderr or ()))
        reader.start()
        while run.poll() is None:
            try:
                names |= metric_names(fetch(f"http://127.0.0.1:{port}", "/metrics"))
            except OSError:  # the run does not listen yet, or has just ended
                time.sleep(0.05)
        reader.join()
    events = [event for event in map(json.loads, log) if event["event"] != "message"]
    keys = {
        f"{event['event']}: {sorted(event)} {[sorted(track) for track in event.get('tracks', [])]}" for event in events
    }
    write(out / "names", *sorted(keys), *sorted(names))


def check_requests(tree: Checkout, out: Path) -> None:
    """Clients send the same requests, and handlers return the same bytes."""
    with recorder(tree.address("inference")) as (url, lines):
        for name, words in {"quiet": ["annotate"], "every": VARIANTS["every"], "words": VARIANTS["words"]}.items():
            folder = tree.scratch / f"recorded-{name}"
            tree.reelscribe(*words, SOURCES, "--out", folder, *tree.access(url))
            write(out / name, *sorted(lines))
            lines.clear()


def check_half_done(tree: Checkout, out: Path) -> None:
    """A run that the other commit left half done can be continued: saved rows are kept, and records are equal."""
    half_done = tree.reference / "half-done"
    if not half_done.exists():
        shutil.copytree(interrupted_run(tree), half_done)
    folder = tree.scratch / "continued"
    folder.mkdir()
    shutil.copy(half_done / "ledger.sqlite", folder)
    tree.annotate(folder.name, "annotate", SOURCES)
    before, after = select(half_done, "SELECT * FROM batches"), select(folder, "SELECT * FROM batches")
    ((state,),) = select(folder, "SELECT state FROM run")
    ((jobs, settings),) = select(folder, "SELECT (SELECT count(*) FROM jobs), (SELECT count(*) FROM settings)")
    same = (folder / "annotations.jsonl").read_bytes() == (tree.quiet / "annotations.jsonl").read_bytes()
    write(
        out / "continued",
        f"{len(set(before) & set(after))} of {len(before)} rows kept, {len(after)} afterwards",
        f"{jobs} jobs, {settings} settings",
        *(f"done in the second run: {track['done']} {track['counts']}" for track in json.loads(state)["tracks"]),
        f"records are equal to those of a quiet run: {same}",
    )
    shutil.copy(folder / "annotations.jsonl", out)


def interrupted_run(tree: Checkout) -> Path:
    """Return the folder of a run that was interrupted with HALF_DONE_ROWS rows in its ledger."""
    out = tree.scratch / "interrupted"
    with tree.start("annotate", SOURCES, "--out", out, *tree.access(), *ONE_BY_ONE) as run:
        while run.poll() is None and batches_so_far(out) < HALF_DONE_ROWS:
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        _, log = run.communicate()
    if run.returncode != 130:
        raise RuntimeError(f"expected the exit status 130 of an interrupted run, got {run.returncode}: {log}")
    return out


def batches_so_far(out: Path) -> int:
    """Return the number of rows in a ledger that is being written; 0 before it has tables."""
    try:
        return len(select(out, "SELECT first FROM batches"))
    except sqlite3.OperationalError:
        return 0


def check_statuses(tree: Checkout, out: Path) -> None:
    """Commands end with the same exit statuses."""
    run, missing, server = f"{SOURCES} --out OUT", "SCRATCH/missing", "--directory SERVER"
    access = " ".join(tree.access()).replace(str(tree.server), "SERVER")
    shutil.copytree(tree.quiet, tree.scratch / "done")
    commands = [
        *("", "--version", "--help", "no-such-command", "caption", "archive", "server", "models list --help"),
        *(f"annotate {run} --no-such-option", f"annotate {run} --resize best", f"annotate {run} --format doc"),
        *(f"annotate {run} --quiet --json-log", f"annotate {run} --cues none", f"annotate {run} --every 0"),
        *(f"caption {run} ACCESS --every 2 --fps 2", f"caption {run} ACCESS --frames 5"),
        *(f"caption {run} ACCESS --start 5 --end 1", f"annotate {run} ACCESS --speech-key-file x"),
        *(f"transcribe {run} ACCESS --language xx", f"transcribe {run} ACCESS --task sing"),
        *(f"caption {run} --server http://127.0.0.1:9", f"caption {run} --server nonsense"),
        *(f"caption {run} ACCESS --model nobody", f"caption {run} --key-file {missing}"),
        *(f"annotate {missing}.mp4 --out SCRATCH/none ACCESS", f"annotate {run}/x --metrics-port 0"),
        *("status SCRATCH/done", f"status {missing}", f"export {missing} --format csv"),
        *("export SCRATCH/done --format doc", "export SCRATCH/done --format csv --cues all"),
        *(f"server status {server}", f"server status --directory {missing}", f"server stop --directory {missing}"),
        *(f"server restart --directory {missing}", f"server logs {server} --which x", f"server start {server}"),
        *(f"server logs {server}", f"models list {server}", f"models describe nobody {server}"),
        *(f"models list --directory {missing}", f"models unregister captioner {server}", "models list --key-file x"),
        *(f"models scale captioner -1 {server}", f"models register none.mar {server}"),
        *(f"archive x --weights {missing} --model-store {missing}", "archive x --weights y --gpus 1 --devices 2"),
    ]
    statuses = {}
    for command in commands:
        words = command.replace("ACCESS", access).replace("SERVER", str(tree.server))
        words = words.replace("SCRATCH", str(tree.scratch)).replace("OUT", f"{tree.scratch}/none")
        arguments = tree.process(*REELSCRIBE, *words.split(), cwd=tree.root)
        statuses[command] = subprocess.run(**arguments, capture_output=True).returncode
    write(out / "statuses", *(f"{status} {command}" for command, status in statuses.items()))


def check_torture(tree: Checkout, out: Path) -> None:
    """An odd library gives the same records, also if clients and a worker are killed during the run."""
    options: dict[str, Any] = {"python_path": (next(tree.root.glob("tests/**/misbehaving_decoder")),)}
    words = ("annotate", "library", "--stall-seconds", "4")
    quiet = tree.annotate("library", *words, statuses=(3,), **options)
    shutil.copy(quiet / "annotations.jsonl", out / "quiet")
    for seed in range(3):
        chance, folder = random.Random(seed), tree.scratch / f"seed-{seed}"
        for victim in chance.sample(["client", "client", "client", "worker"], 4):
            with tree.start(*words, "--out", folder, *tree.access(), "--quiet", **options) as run:
                time.sleep(chance.uniform(0.5, 3))
                if victim == "worker":
                    os.kill(describe(tree, "captioner")["workers"][0]["pid"], signal.SIGKILL)
                    time.sleep(chance.uniform(0.5, 3))
                run.kill()
        tree.annotate(folder.name, *words, statuses=(3,), **options)
        shutil.copy(folder / "annotations.jsonl", out / folder.name)


CHECKS = {
    name.removeprefix("check_").replace("_", "-"): check
    for name, check in list(globals().items())
    if name.startswith("check_")
}
"""The checks by name, in the order in which they run."""


def describe(tree: Checkout, model: str) -> dict[str, Any]:
    """Return the JSON that `reelscribe models describe` prints for a model."""
    answer = tree.reelscribe("models", "describe", model, "--json", "--directory", tree.server)
    description: dict[str, Any] = json.loads(answer)
    return description


def select(folder: Path, query: str) -> list[tuple[Any, ...]]:
    """Query the ledger in a folder."""
    with closing(sqlite3.connect(f"file:{folder / 'ledger.sqlite'}?mode=ro", uri=True)) as database:
        return database.execute(query).fetchall()


def fetch(address: str, path: str) -> str:
    """Return the body of a response. Raises OSError if nothing listens at the address."""
    with closing(http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read().decode()


def metric_names(text: str) -> set[str]:
    """Return names and labels of reelscribe's own metrics in a response for Prometheus."""
    lines = [line for line in text.splitlines() if line.startswith("reelscribe_")]
    return {re.sub(r'"[^"]*"', "", line.rpartition(" ")[0]) for line in lines}


def write(path: Path, *lines: str) -> None:
    """Write lines of text."""
    path.write_text("".join(f"{line}\n" for line in lines), errors="surrogateescape")
