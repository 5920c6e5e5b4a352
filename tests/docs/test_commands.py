"""The commands and programs in the documents run, against a real server, and answer what the documents say."""

import os
import re
import shutil
import subprocess
import tarfile
from itertools import chain

import pytest

from reelscribe import Credentials
from support.clone import Clone
from support.documents import DOCUMENTS, ROOT, Block, blocks
from support.fake_torchserve import write_key_file
from support.stores import s3_server

BEFORE = {
    ("docs/operations.md", "Start and stop"): "rm model_store/whisper.mar model_store/qwen3-vl.mar",
}
"""What a reader has done before a block, by document and heading, where the document says it in words. Some models are
taken away, because each start loads all of them, and starts and stops show as much with one.
"""

NOT_RUN = {
    "export SSL_CERT_FILE": "needs a certificate for another machine; tests/e2e/test_security.py uses TLS",
    "pip install '.[client,ray]'": "needs three machines, as the next three; tests/test_deploy_ray.py parses them",
    "export RAY_AUTH_MODE": "needs three machines",
    "ray start": "needs three machines",
    "reelscribe shots /videos --out first --ray": "needs three machines",
    "vllm serve": "needs a GPU and the hub; tests/vllm runs a vLLM on the CPU",
    "echo '{{ bos_token }}": "needs the same; tests/vllm/test_answers.py serves BLIP-2 with this template",
    "python3 -m sglang": "needs a GPU and the hub",
    "pip install 'transformers[serving]'": "needs the hub",
    "export OPENAI_API_KEY": "needs a hosted service",
    "docker build --file deploy/ray": "needs Kubernetes; tests/test_deploy_ray.py checks the files",
}
"""Blocks that do not run, by how they begin, and why."""

RUNNABLE = ("sh", "python")


ONE_READER = ("docs/http-api.md", "docs/cli.md", "docs/python.md")
"""Documents that are read one after the other: the first one starts the server that the others assume."""


def runs(block: Block) -> bool:
    return block.language in RUNNABLE and not block.code.startswith(tuple(NOT_RUN))


def readers() -> list:
    """The documents with code that each reader reads, in order."""
    documents = [path for path in DOCUMENTS if any(map(runs, blocks(path)))]
    names = [str(path.relative_to(ROOT)) for path in documents]
    assert {*ONE_READER} <= {*names}
    alone = [(name,) for name in names if name not in ONE_READER]
    return [pytest.param(each, id=" ".join(each)) for each in (ONE_READER, *alone)]


@pytest.fixture
def library(tmp_path_factory, monkeypatch):
    """The bucket of a reader, with two films and a shard, and the credentials in the environment."""
    bucket = tmp_path_factory.mktemp("bucket")
    (films := bucket / "films").mkdir()
    (shards := bucket / "shards").mkdir()
    for name in ("old.avi", "spoken.mp4"):
        shutil.copy(ROOT / "demo" / "media" / name, films)
    with tarfile.open(shards / "000.tar", "w") as shard:
        shard.add(ROOT / "demo" / "media" / "same-480x270.mp4", "000.mp4")
    with s3_server(monkeypatch, bucket, "library"):
        yield


@pytest.fixture
def clone(tmp_path, library):
    clone = Clone(tmp_path)
    yield clone
    clone.stop()


@pytest.mark.slow
@pytest.mark.parametrize("documents", readers())
def test_the_commands_of_documents(clone, documents):
    prepared = set()
    for block in chain.from_iterable(blocks(ROOT / document) for document in documents):
        if not runs(block):
            continue
        place = block.document, block.heading
        if place in BEFORE and place not in prepared:
            clone.sh(BEFORE[place])
            prepared.add(place)
        output = clone.sh(block.code) if block.language == "sh" else clone.python(block.code)
        for answer in answers(block.code):
            assert re.search(answer, without_spaces(output)), f"{block.code}\n{output}"


def answers(code: str) -> list[str]:
    """What the comments after `curl` and `print` say is printed, as patterns: `...` stands for anything."""
    comments = re.findall(r"^ *(?:curl .*?'\\n'|print\(.*\)) +# (.+)$", code, re.M)
    return [".*".join(map(re.escape, without_spaces(comment).split("..."))) for comment in comments]


def without_spaces(text: str) -> str:
    return re.sub(r"\s", "", text)


SSH = """#!/bin/sh
[ "$*" = "-o BatchMode=yes -o ConnectTimeout=10 gpu-machine cat reelscribe/.server/key_file.json" ] && cat server_keys
"""


def test_the_line_for_cron_copies_the_key_of_each_new_server_and_nothing_else(tmp_path, monkeypatch):
    (line,) = [
        block.code.removeprefix("* * * * * cd reelscribe && ")
        for block in blocks(ROOT / "docs/operations.md")
        if block.heading == "Keys"
    ]
    (ssh := tmp_path / "ssh").write_text(SSH)
    ssh.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    write_key_file(tmp_path / "server_keys", "of the first")
    subprocess.run(["sh", "-c", line], check=True)
    credentials = Credentials("key_file.json")  # which refuses a file that others may read
    (tmp_path / "server_keys").unlink()  # the server restarts
    subprocess.run(["sh", "-c", line], check=False)
    assert not credentials.reload()
    write_key_file(tmp_path / "server_keys", "of the second")
    subprocess.run(["sh", "-c", line], check=True)
    assert credentials.reload_after_refusal("of the first")
    assert credentials.token == "of the second"


def test_every_exception_is_of_use():
    every = [block for path in DOCUMENTS for block in blocks(path)]
    assert {block.language for block in every} <= {"", "ini", "toml", *RUNNABLE}
    assert [start for start in NOT_RUN if not any(block.code.startswith(start) for block in every)] == []
    assert BEFORE.keys() <= {(block.document, block.heading) for block in every}
