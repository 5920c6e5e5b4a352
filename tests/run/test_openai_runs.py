"""Runs with a server that has OpenAI's API: whatever is killed, and whatever it answers, what is saved is right."""

import asyncio
import json
import re
import sqlite3
from contextlib import AsyncExitStack, closing
from pathlib import Path

import pytest

from reelscribe._track_specs import ModelSpec
from reelscribe.client.credentials import ApiKey
from reelscribe.client.endpoint import Server
from reelscribe.client.models import ClipClient
from reelscribe.client.openai_forms import OpenAISettings
from reelscribe.cluster.session import RemoteNodes
from reelscribe.contract.outcomes import ClipFailure
from reelscribe.errors import OutputError, ServerError
from reelscribe.results.ledger_reader import LedgerReader
from reelscribe.run.driver import Run
from reelscribe.run.tracks.clips import ClipTrack
from reelscribe.server.server_discovery import FoundServer
from support.clip_runs import options_of, write_clips
from support.commands import reelscribe
from support.fake_openai import chat, pictures, serving
from support.local_cluster import LocalCluster
from support.patience import PATIENCE
from support.sending import no_waiting

STEP = 5
FILES = 12
CLIPS = 4
KILLS = 4
WORDS = ("--clips", "windows", "--clip-seconds", 1, "--requests-in-flight", 3, "--decode-workers", 1, "--quiet")


def name_of(request) -> int:
    """The grey level of a clip, which is its name: no other clip of the library has it."""
    return STEP * round(float(pictures(request)[0].mean()) / STEP)


def described(request):
    return chat(f"clip {name_of(request)}")


@pytest.fixture
def library(tmp_path) -> Path:
    folder = tmp_path / "library"
    folder.mkdir()
    for k in range(FILES):
        write_clips(folder / f"{k:02}.mkv", [STEP * (CLIPS * k + n + 1) for n in range(CLIPS)])
    return folder


def saved(out: Path) -> set[int]:
    """The names of the clips that the ledger has descriptions of."""
    try:
        with LedgerReader(out) as ledger:
            results = [result for job in range(1, FILES + 1) for result in ledger.clip_results(job)]
    except OutputError:
        return set()
    return {int(result.text.removeprefix("clip ")) for result in results}


async def test_a_client_that_is_killed_again_and_again_asks_nothing_again_that_is_saved(library, tmp_path):
    def command(out: Path) -> list[str]:
        return reelscribe("caption", library, *WORDS, "--server", server.url, "--out", out)

    async def run(out: Path, answers: int | None = None) -> None:
        """Run the command, and kill it after so many answers."""
        process = await asyncio.create_subprocess_exec(*command(out))
        if answers is None:
            assert await process.wait() == 0
            return
        for _ in range(answers):
            await asyncio.wait_for(server.arrivals.get(), PATIENCE)
        process.kill()
        await process.wait()

    async with serving() as server:
        server.answer = described
        await run(tmp_path / "quiet")
        out, done = tmp_path / "out", set[int]()
        for kill in range(KILLS + 1):
            server.asked.clear()
            server.arrivals = asyncio.Queue()
            await run(out, None if kill == KILLS else 9)
            assert done.isdisjoint(map(name_of, server.asked))
            done = saved(out)
    assert len(done) == FILES * CLIPS
    assert (out / "annotations.jsonl").read_bytes() == (tmp_path / "quiet" / "annotations.jsonl").read_bytes()


def summarised(request):
    """Describe a clip, or make a summary of a source whose title is the time and the text of its first line."""
    if "response_format" not in request:
        return described(request)
    title = re.search(" seen: (.*)", request["messages"][0]["content"][0]["text"])[1]
    return chat(json.dumps({"title": title, "summary": "One. Two. Three.", "keywords": []}))


def saved_titles(out: Path) -> set[str]:
    """The titles of the summaries that the ledger has."""
    with closing(sqlite3.connect(out / "ledger.sqlite")) as database:
        rows = database.execute("SELECT results FROM batches WHERE results LIKE '%One. Two. Three.%'").fetchall()
    return {json.loads(results)[0][0][0] for (results,) in rows}


async def test_a_client_that_is_killed_asks_for_no_summary_again_that_is_saved(library, tmp_path):
    async def run(out: Path, summaries: int | None = None) -> None:
        """Run the command, and kill it when it has asked for so many summaries."""
        command = reelscribe("caption", library, *WORDS, "--summary", "--server", server.url, "--out", out)
        process = await asyncio.create_subprocess_exec(*command)
        if summaries is None:
            assert await process.wait() == 0
            return
        while len(titles(server.asked)) < summaries:
            await asyncio.wait_for(server.arrivals.get(), PATIENCE)
        process.kill()
        await process.wait()

    def titles(requests) -> set[str]:
        made = [summarised(request) for request in requests if "response_format" in request]
        return {json.loads(each["choices"][0]["message"]["content"])["title"] for each in made}

    async with serving() as server:
        server.answer = summarised
        await run(tmp_path / "quiet")
        assert len(titles(server.asked)) == FILES
        out, done = tmp_path / "out", set[str]()
        for summaries in (4, 3, 2, None):
            server.asked.clear()
            server.arrivals = asyncio.Queue()
            await run(out, summaries)
            assert done.isdisjoint(titles(server.asked))
            done = saved_titles(out)
    assert len(done) == FILES
    assert (out / "annotations.jsonl").read_bytes() == (tmp_path / "quiet" / "annotations.jsonl").read_bytes()


async def describe(server, library: Path, out: Path, **options) -> None:
    with no_waiting():
        async with asyncio.timeout(PATIENCE), ClipClient([Server(server.url)], "m") as client:
            await Run([ClipTrack(client, options_of(**options))], out).run([str(library)])


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ({"choices": [7], "system_fingerprint": "one"}, "choices: expected"),
        (chat(system_fingerprint="another"), "expected the server as it was when the run began"),
        ((403, {"error": "no"}), "status 403"),
    ],
)
async def test_a_lie_ends_the_run_and_the_next_one_goes_on_where_it_was(library, tmp_path, lie, words):
    def answer(request):
        return described(request) | {"system_fingerprint": "one"} if len(server.asked) <= 2 * CLIPS else lie

    out = tmp_path / "out"
    async with serving() as server:
        server.answer = answer
        with pytest.raises(ServerError, match=words) as error:
            await describe(server, library, out)
        before = saved(out)
        server.asked, server.answer = [], described
        await describe(server, library, out)
        assert before.isdisjoint(map(name_of, server.asked))
    assert str(error.value).isprintable()
    assert before
    assert len(saved(out)) == FILES * CLIPS


async def test_a_storm_of_429_costs_no_clip(library, tmp_path):
    def answer(request):
        storm = len(server.asked) % 3
        return (429, {"error": "slow down"}, {"Retry-After": "0.001"}) if storm else described(request)

    async with serving() as server:
        server.answer = answer
        await describe(server, library, tmp_path / "out")
    assert len(saved(tmp_path / "out")) == FILES * CLIPS


@pytest.mark.parametrize(
    ("lie", "words"),
    [
        ((400, {"error": {"message": "This model's maximum context length is 9 tokens"}}), "maximum context length"),
        ({"choices": [{"message": {"content": None, "refusal": "No!"}, "finish_reason": "stop"}]}, "refuses: No!"),
        ({"choices": [{"message": {"reasoning_content": "hm"}, "finish_reason": "stop"}]}, "thoughts alone"),
    ],
)
async def test_a_clip_that_is_not_answered_costs_itself_alone_and_is_tried_again(library, tmp_path, lie, words):
    def failures() -> list[str]:
        with LedgerReader(tmp_path / "out") as ledger:
            results = [result for job in range(1, FILES + 1) for result in ledger.clip_results(job)]
        return [result.error for result in results if isinstance(result, ClipFailure)]

    async with serving() as server:
        server.answer = lambda request: lie if name_of(request) == 2 * STEP else described(request)
        await describe(server, library, tmp_path / "out")
        (failure,) = failures()
        assert words in failure
        server.answer = described
        await describe(server, library, tmp_path / "out", retry_failed=True)
    assert failures() == []


async def test_nodes_ask_a_server_with_openais_api_with_its_key_and_settings(library, tmp_path):
    (tmp_path / "key").write_text("secret")
    (tmp_path / "key").chmod(0o600)
    outs = tmp_path / "here", tmp_path / "elsewhere"
    async with serving() as server:
        server.answer = described
        settings = OpenAISettings(frame_format="png", max_tokens=99)
        found = FoundServer(Server(server.url, ApiKey(tmp_path / "key"), openai=settings))
        spec = ModelSpec(options_of(), [found], "m", 3)
        for out in outs:
            async with AsyncExitStack() as stack:
                here = out.name == "here"
                nodes = [await spec.open(stack)] if here else RemoteNodes([spec], LocalCluster("a"))
                await asyncio.wait_for(Run(nodes, out).run([str(library)]), PATIENCE)
    assert server.keys == {"Bearer secret"}
    assert {asked["max_tokens"] for asked in server.asked} == {99}
    assert len(server.asked) == 2 * FILES * CLIPS
    here, elsewhere = ((out / "annotations.jsonl").read_bytes() for out in outs)
    assert here == elsewhere
