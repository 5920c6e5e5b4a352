"""Columns of a list choose options for single sources, and mean what the options of a run mean."""

import asyncio
import json
import shutil
import tarfile
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from aiohttp import web

from reelscribe._track_specs import ModelSpec
from reelscribe.client.endpoint import Server
from reelscribe.cluster.session import RemoteNodes
from reelscribe.contract.clips import ClipDescription
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment, TranscriptionOptions
from reelscribe.decode.clips import ClipCutting
from reelscribe.decode.sampling import Sampling
from reelscribe.run.driver import Run
from reelscribe.run.source_list import SourceList
from reelscribe.run.tracks.captions import CaptionOptions
from reelscribe.run.tracks.clips import ClipOptions
from reelscribe.run.tracks.medium import Options
from reelscribe.run.tracks.shots import ShotOptions, ShotTrack
from reelscribe.run.tracks.transcripts import SpeechOptions
from reelscribe.server.server_discovery import FoundServer
from support.fake_torchserve import CLIPS, SPEECH, FakeTorchServe, refused
from support.local_cluster import LocalCluster
from support.patience import PATIENCE

WINDOWS = ClipCutting("windows", window_seconds=4.0)
CAPTIONS = CaptionOptions(Sampling(fps=1), decode_workers=1)
DESCRIPTIONS = ClipOptions(WINDOWS, decode_workers=1)
TRANSCRIPTS = SpeechOptions(audio_workers=1)


async def in_its_language(request) -> web.Response:
    """The transcript of each chunk says in which language it was asked for."""
    language = request.tree.get("language", "en")
    said = ChunkTranscript(f"in {language}", language, (SpeechSegment(0.0, 1.0, f"in {language}"),))
    return web.json_response([said.to_json() for _ in request.names()])


async def as_asked(request) -> web.Response:
    """The description of each clip is the question about it."""
    prompts = [clip.get("prompt", "its own prompt") for clip in request.clips]
    return web.json_response([ClipDescription(prompt, "complete", 3).to_json() for prompt in prompts])


@dataclass(frozen=True)
class Runs:
    """Runs with three models, on this machine or, if `elsewhere`, on another one, over copies of a video."""

    folder: Path
    servers: dict[type[Options], FakeTorchServe]
    elsewhere: bool = False

    def table(self, *rows: dict) -> SourceList:
        """A list with a source in each row, by its name."""
        lines = (json.dumps({**row, "path": str(self.folder / row["path"])}) for row in rows)
        (self.folder / "films.jsonl").write_text("".join(f"{line}\n" for line in lines))
        return SourceList(str(self.folder / "films.jsonl"))

    async def do(self, what: str, out: str, names: list, *options: Options):
        """Run, or plan, into a folder, with a track for each options."""
        specs = []
        for each in options or (CAPTIONS, DESCRIPTIONS, TRANSCRIPTS):
            server = self.servers[type(each)]
            specs.append(ModelSpec(each, [FoundServer(Server(server.url))], server.model, 8))
        async with AsyncExitStack() as stack:
            local = not self.elsewhere
            tracks = [await spec.open(stack) for spec in specs] if local else RemoteNodes(specs, LocalCluster("a"))
            run = Run(tracks, self.folder / out, thumbnails=0)
            return await asyncio.wait_for(getattr(run, what)(names), PATIENCE)

    async def run(self, out: str, names: list, *options: Options) -> dict[str, dict]:
        """Run; return the records by the names of the sources, without what lists say of them besides."""
        await self.do("run", out, names, *options)
        lines = (self.folder / out / "annotations.jsonl").read_text().splitlines()
        records = [{**json.loads(line), "extra": None} for line in lines]
        return {record["source"]["path"].rpartition("/")[2]: record for record in records}

    def take_sent(self) -> set[str]:
        """The models that were asked since this was called last."""
        asked = {server.model for server in self.servers.values() if server.received}
        for server in self.servers.values():
            server.received.clear()
        return asked


@pytest.fixture
async def runs(media, tmp_path):
    for name in "abcde":
        shutil.copy(media / "spoken.mp4", tmp_path / f"{name}.mp4")
    captioner, speech = FakeTorchServe(), FakeTorchServe(in_its_language, description=SPEECH)
    async with captioner, speech, FakeTorchServe(as_asked, description=CLIPS) as clips:
        yield Runs(tmp_path, {CaptionOptions: captioner, SpeechOptions: speech, ClipOptions: clips})


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_row_gives_what_a_run_with_its_options_gives(runs, elsewhere):
    runs, prompt = replace(runs, elsewhere=elsewhere), "What follows {start} and {transcript}?"
    table = runs.table(
        {"path": "a.mp4", "language": "fr"},
        {"path": "b.mp4", "start": "1", "end": 3},
        {"path": "c.mp4", "language": "fr", "prompt": prompt},
        {"path": "d.mp4", "language": "", "start": None},
    )
    listed = await runs.run("listed", [table])
    french = replace(TRANSCRIPTS, transcription=TranscriptionOptions("fr"))
    part = replace(CAPTIONS, sampling=Sampling(fps=1, start=1.0, end=3.0))
    for name, chosen in {
        "a.mp4": (CAPTIONS, DESCRIPTIONS, french),
        "b.mp4": (part, DESCRIPTIONS, TRANSCRIPTS),
        "c.mp4": (CAPTIONS, replace(DESCRIPTIONS, prompt=prompt), french),
        "d.mp4": (CAPTIONS, DESCRIPTIONS, TRANSCRIPTS),
    }.items():
        one_by_one = await runs.run("one by one", [str(runs.folder / name)], *chosen)
    assert one_by_one == listed
    assert listed["a.mp4"]["segments"][0]["text"] == "in fr"
    assert [1 <= caption["pts_seconds"] < 3 for caption in listed["b.mp4"]["captions"]] == [True, True]
    assert listed["c.mp4"]["clips"][0]["text"] == "What follows 0 and in fr?"
    assert listed["d.mp4"]["clips"][0]["text"] == "its own prompt"
    runs.take_sent()
    assert await runs.run("one by one", [table]) == listed
    assert await runs.run("listed", [table]) == listed
    assert runs.take_sent() == set()  # the jobs are the same


async def test_a_changed_cell_makes_anew_what_it_affects(runs):
    rows = [{"path": "a.mp4", "language": "fr", "prompt": "Who?"}, {"path": "b.mp4"}]
    before = await runs.run("out", [runs.table(*rows)])
    runs.take_sent()
    rows[0]["prompt"] = "Where?"
    after = await runs.run("out", [runs.table(*rows)])
    assert runs.take_sent() == {"clips"}
    assert {name for name in before if before[name] != after[name]} == {"a.mp4"}
    rows[0]["language"] = None
    again = await runs.run("out", [runs.table(*rows)])
    assert runs.take_sent() == set()  # b.mp4 has the same content, and was transcribed like this
    assert again["a.mp4"]["segments"] == again["b.mp4"]["segments"] != after["a.mp4"]["segments"]


UNUSABLE = [
    ({"language": "xx"}, "language: expected one that a/whisper knows, got 'xx'"),
    ({"language": 5}, "language: expected str | None, got 5"),
    ({"start": "a minute"}, "start: expected a number of seconds, got 'a minute'; correct the list"),
    ({"start": True}, "start: expected a number of seconds, got <bool>"),
    ({"start": "nan"}, "start: expected 0 seconds or more, got nan"),
    ({"end": -1}, "end: expected more seconds than the start, 0.0, got -1.0"),
    ({"start": 10**400}, "start: expected a number of seconds, got "),
    ({"prompt": "  "}, "prompt: expected a text that is not empty"),
    ({"prompt": ["Who?"]}, "prompt: expected str | None, got <list>"),
    ({"prompt": "As {schema}"}, "prompt: {schema} needs a JSON schema"),
]
"""Cells that cannot be used, and the reasons."""


async def test_a_cell_that_cannot_be_used_is_the_error_of_its_source_until_it_is_mended(runs):
    names = [f"{number}.mp4" for number in range(len(UNUSABLE))]
    for name in names:
        shutil.copy(runs.folder / "a.mp4", runs.folder / name)
    good = {"path": "b.mp4", "language": "fr"}
    bad = [{"path": name, **cells} for name, (cells, _) in zip(names, UNUSABLE, strict=True)]
    records = await runs.run("out", [runs.table(good, *bad)])
    assert records["b.mp4"]["status"] == "ok"
    for line, (name, (_, reason)) in enumerate(zip(names, UNUSABLE, strict=True), 2):
        assert records[name]["error"]["message"].startswith(f"{runs.folder}/films.jsonl:{line}: {reason}")
    records = await runs.run("out", [runs.table(good, *({"path": name} for name in names))])
    assert {name: record["status"] for name, record in records.items()} == dict.fromkeys(["b.mp4", *names], "ok")


async def test_a_prompt_of_a_row_needs_a_transcript_in_the_same_run(runs):
    table = runs.table({"path": "a.mp4", "prompt": "Who says {transcript}?"})
    (record,) = (await runs.run("out", [table], DESCRIPTIONS)).values()
    assert "prompt: {transcript} needs a transcript" in record["error"]["message"]


async def test_a_source_has_one_choice_of_options(runs):
    french, english = {"path": "a.mp4", "language": "fr"}, {"path": "a.mp4", "language": "en"}
    records = await runs.run("out", [runs.table(french, french, english), str(runs.folder)], TRANSCRIPTS)
    refused = records.pop("films.jsonl:3")
    assert "expected one choice of options for each source" in refused["error"]["message"]
    assert records["a.mp4"]["segments"][0]["text"] == "in fr"
    assert {record["status"] for record in records.values()} == {"ok"}
    records = await runs.run("folder first", [str(runs.folder), runs.table(french)], TRANSCRIPTS)
    assert [name for name, record in records.items() if record["status"] != "ok"] == ["films.jsonl:1"]


async def test_columns_that_no_track_has_as_options_only_go_into_the_record(runs):
    rows = {"path": "a.mp4", "start": "0:01", "language": "fr"}, {"path": "a.mp4", "start": "0:02", "language": "en"}
    run = Run([ShotTrack(ShotOptions(decode_workers=1))], runs.folder / "out")
    await asyncio.wait_for(run.run([runs.table(*rows)]), PATIENCE)
    (line,) = (runs.folder / "out" / "annotations.jsonl").read_text().splitlines()
    assert json.loads(line)["extra"] == {"start": "0:01", "language": "fr"}


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_dry_run_counts_what_rows_choose(runs, elsewhere):
    runs = replace(runs, elsewhere=elsewhere)
    table = runs.table({"path": "a.mp4", "start": 1, "end": 3}, {"path": "b.mp4", "end": "4"}, {"path": "c.mp4"})
    (choice,) = (await runs.do("plan", "out", [table], CAPTIONS)).choices
    seconds = (await runs.do("plan", "out", [str(runs.folder / "c.mp4")], CAPTIONS)).media_seconds
    assert choice.count == pytest.approx(2 + 4 + seconds, abs=1)
    await runs.do("run", "out", [table], CAPTIONS)
    assert str(await runs.do("plan", "out", [table], CAPTIONS)).endswith("all done before")


async def test_a_request_is_in_one_language(runs, media):
    rows = [{"path": f"{number}.ogg", "language": ("fr", "en", None)[number % 3]} for number in range(9)]
    for number, row in enumerate(rows):
        (runs.folder / row["path"]).write_bytes((media / "phrases.ogg").read_bytes() + bytes(number))
    records = await runs.run("out", [runs.table(*rows)], TRANSCRIPTS)
    chunks = Counter()
    for request in runs.servers[SpeechOptions].received:
        chunks[request.tree.get("language")] += len(request.names())
    assert [chunks["fr"], chunks["en"]] == [chunks[None]] * 2
    assert chunks[None] >= 3
    languages = [records[row["path"]]["segments"][0]["text"] for row in rows]
    assert languages == ["in fr", "in en", "in en"] * 3


async def test_hot_words_that_the_model_refuses_are_an_error_of_their_source_alone(runs):
    async def answer(request) -> web.Response:
        hotwords = request.tree.get("hotwords", "")
        if "," in hotwords:
            return refused(422, "PromptError", "hotwords: expected at most 223 tokens together, got 300")
        said = ChunkTranscript(hotwords, "en", (SpeechSegment(0.0, 1.0, hotwords or "none"),))
        return web.json_response([said.to_json() for _ in request.names()])

    speech = runs.servers[SpeechOptions]
    speech.answer, speech.description = answer, replace(SPEECH, prompt_tokens=223)
    rows = {"path": "a.mp4", "hotwords": "Uster"}, {"path": "b.mp4", "hotwords": "Uster,Wil"}, {"path": "c.mp4"}
    (runs.folder / "b.mp4").write_bytes((runs.folder / "b.mp4").read_bytes() + b"b")
    records = await runs.run("out", [runs.table(*rows)], TRANSCRIPTS)
    assert [records[name]["segments"][0]["text"] for name in ("a.mp4", "c.mp4")] == ["Uster", "none"]
    assert records["a.mp4"]["speech_settings"] != records["c.mp4"]["speech_settings"]
    assert "at most 223 tokens together, got 300" in records["b.mp4"]["error"]["message"]


async def test_the_members_of_an_archive_have_the_options_of_its_row(runs):
    with tarfile.open(runs.folder / "shard.tar", "w") as shard:
        for name in ("a.mp4", "b.mp4"):
            shard.add(runs.folder / name, name)
    table = runs.table({"path": "shard.tar", "language": "fr"})
    for _ in range(2):
        records = await runs.run("out", [table], TRANSCRIPTS)
    assert [record["segments"][0]["text"] for record in records.values()] == ["in fr", "in fr"]
    assert len(runs.servers[SpeechOptions].received) == 1
