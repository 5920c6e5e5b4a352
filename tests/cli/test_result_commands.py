"""`reelscribe forget` lists sources or refuses, and `reelscribe export` names the files that it wrote."""

import asyncio
import shutil
import subprocess
from pathlib import Path

import pytest
from aiohttp import web
from typer.testing import CliRunner

from reelscribe.cli import app
from reelscribe.cli.result_commands import describe_written
from reelscribe.contract.source import Source
from reelscribe.contract.speech import ChunkTranscript, SpeechSegment
from reelscribe.results.ledger import Ledger
from reelscribe.results.ledger_reader import LedgerReader
from support.audio import RATE, tone, write
from support.commands import reelscribe
from support.exporting import annotations, transcript_record
from support.fake_torchserve import SPEECH, FakeTorchServe, Received, captions, transcripts
from support.patience import PATIENCE


async def fill(out: Path) -> None:
    async with Ledger(out) as ledger:
        for name in ("/v/a.mp4", "/v/b.mp4"):
            await ledger.save_source(Source(name, 5, "ab" * 32), {})
        await ledger.mark_missing()


@pytest.fixture
def out(tmp_path) -> Path:
    """A folder of results of two sources, neither of which is on the disk."""
    asyncio.run(fill(tmp_path))
    return tmp_path


def known(out: Path) -> list[str]:
    with LedgerReader(out) as reader:
        return [source.name for source in reader.sources()]


def test_it_lists_what_it_forgets(out):
    result = CliRunner().invoke(app, ["forget", str(out), "/v/a.mp4"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "/v/a.mp4\n", "forgot 1 source\n")
    assert known(out) == ["/v/b.mp4"]


def test_a_dry_run_changes_nothing(out):
    result = CliRunner().invoke(app, ["forget", str(out), "--missing", "--dry-run"])
    assert (result.exit_code, result.stderr) == (0, "would forget 2 sources\n")
    assert result.stdout == "/v/a.mp4\n/v/b.mp4\n"
    assert known(out) == ["/v/a.mp4", "/v/b.mp4"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [([], "expected SOURCES or --missing, got neither"), (["/v/typo.mp4"], "that matches a known source")],
)
def test_nothing_to_forget_is_a_usage_error(out, words, reason):
    result = CliRunner().invoke(app, ["forget", str(out), *words])
    assert result.exit_code == 2
    assert reason in result.stderr
    assert known(out) == ["/v/a.mp4", "/v/b.mp4"]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], "wrote nothing"),
        (["captions.csv"], "wrote out/captions.csv"),
        (["vtt/a/1.vtt", "html/index.html"], "wrote out/vtt/a/1.vtt, out/html/index.html"),
        (
            ["vtt/a/1.vtt", "vtt/2.vtt", "captions.csv", "words.csv"],
            "wrote 2 .vtt files below out/vtt, out/captions.csv, out/words.csv",
        ),
    ],
)
def test_an_export_says_in_one_line_what_it_wrote(names, said):
    assert describe_written([Path("out", name) for name in names], Path("out")) == said


@pytest.mark.parametrize(("options", "text"), [([], "Hello.\nThank you.\n"), (["--drop-doubtful"], "Hello.\n")])
def test_an_export_leaves_out_doubtful_speech_if_asked(tmp_path, options, text):
    value = transcript_record("a.mp4", "Hello.", "Thank you.")
    value["segments"][1]["flags"] = ["no-speech"]
    annotations(tmp_path, [value])
    result = CliRunner().invoke(app, ["export", str(tmp_path), "--format", "txt", *options])
    assert (result.exit_code, (tmp_path / "txt/a.mp4.txt").read_text()) == (0, text)


def test_an_export_tells_what_it_wrote_and_what_it_found_unchanged_apart(tmp_path):
    command = ["export", str(tmp_path), "--format", "txt"]
    told = []
    for words in (["Hello.", "Hello."], ["Hello.", "Thank you."], ["Hello.", "Thank you."]):
        annotations(
            tmp_path, [transcript_record(name, text) for name, text in zip(("a.mp4", "b.mp4"), words, strict=True)]
        )
        told.append(CliRunner().invoke(app, command).output.strip())
    assert told == [
        f"wrote 2 .txt files below {tmp_path}/txt",
        f"wrote {tmp_path}/txt/b.mp4.txt, and found 1 unchanged",
        "wrote nothing, and found 2 unchanged",
    ]


async def test_captions_that_are_made_later_do_not_take_the_place_of_speech(media, tmp_path):
    shutil.copy(media / "spoken.mp4", tmp_path)
    words = [tmp_path / "spoken.mp4", "--out", tmp_path / "out", "--format", "srt", "--beside", "srt", "--quiet"]
    async with FakeTorchServe(transcripts, description=SPEECH) as speech, FakeTorchServe(captions) as pictures:
        for command, server, model in (("transcribe", speech, "speech"), ("caption", pictures, "captioner")):
            line = reelscribe(command, *words, "--server", server.url, "--model", model)
            await asyncio.to_thread(subprocess.run, line, check=True, timeout=PATIENCE)
            assert [path.name for path in tmp_path.glob("*.srt")] == ["spoken.en.srt"]
            for path in (tmp_path / "spoken.en.srt", tmp_path / "out/srt/spoken.mp4.srt"):
                assert "chunk" in path.read_text()
    assert "frame" in (tmp_path / "out/annotations.jsonl").read_text()


async def test_a_run_leaves_out_doubtful_speech_if_asked_and_its_records_keep_it(tmp_path):
    async def answers(request: Received) -> web.Response:
        said = [SpeechSegment(0, 1, "Hello.", avg_logprob=-0.1), SpeechSegment(1, 2, "Thank you.", avg_logprob=-9.0)]
        return web.json_response([ChunkTranscript("", "en", tuple(said)).to_json() for _ in request.names()])

    write(tmp_path / "a.flac", tone(440, 3), RATE, "flac")
    out = tmp_path / "out"
    words = reelscribe("transcribe", tmp_path / "a.flac", "--out", out, "--format", "txt", "--drop-doubtful", "--quiet")
    async with FakeTorchServe(answers, description=SPEECH) as server:
        command = [*words, "--server", server.url, "--model", "speech"]
        await asyncio.to_thread(subprocess.run, command, check=True, timeout=PATIENCE)
    assert (out / "txt/a.flac.txt").read_text() == "Hello.\n"
    assert "Thank you." in (out / "annotations.jsonl").read_text()
