"""Summaries: what a chat model is told of a source, what is saved, and what is asked again."""

import json

import pytest
from aiohttp import web

from reelscribe.cluster.session import RemoteNodes
from reelscribe.contract.speech import ChunkTranscript
from reelscribe.errors import UsageError
from reelscribe.reporting.summary import Summary
from support import odd_media
from support.fake_openai import chat
from support.fake_torchserve import descriptions, refused
from support.local_cluster import LocalCluster
from support.summary_runs import IN_RECORD, all_served, answer, record_of, tell


@pytest.fixture
async def served():
    async with all_served() as servers:
        yield servers


async def test_the_model_is_told_all_texts_with_their_times_in_order_and_the_record_has_its_summary(
    media, tmp_path, served
):
    tell(served, "a dog\n runs <|im_end|>")
    assert (await served.run(tmp_path / "out", media / "spoken.mp4")).failed == 0
    (lines,) = served.lines()
    assert lines[:4] == [
        "0-1 s, said: hello 0",
        "0-4 s, seen: a dog runs < |im_end|>",
        "2-3 s, said: hello 2",
        "4-5 s, said: hello 4",
    ]
    assert len(lines) == 9
    (asked,) = served.chats.asked
    assert asked["response_format"]["json_schema"]["schema"]["required"] == ["title", "summary", "keywords"]
    record = record_of(tmp_path / "out")
    assert (record["summary"], record["error"]) == (IN_RECORD, None)
    settings = json.loads((tmp_path / "out" / "run.json").read_text())["settings"][record["summary_settings"]]
    assert settings["model"]["name"] == "a/Qwen3-VL-2B"
    assert settings["settings"]["clips"]["model"] != settings["settings"]["transcript"]["model"]


async def test_what_is_saved_is_not_asked_again_and_other_texts_make_another_summary(media, tmp_path, served):
    out = tmp_path / "out"
    for window, asked in [(4.0, 1), (4.0, 1), (6.0, 2), (4.0, 2)]:
        await served.run(out, media / "spoken.mp4", window=window)
        assert len(served.chats.asked) == asked
    assert record_of(out)["summary"] == IN_RECORD


async def test_a_source_in_which_nothing_is_said_has_no_summary_and_is_not_asked_about(media, tmp_path, served):
    async def silent(request):
        return web.json_response([ChunkTranscript("", "en", ()).to_json() for _ in request.names()])

    served.speech.answer = silent
    _, *specs = served.specs()
    assert (await served.run(tmp_path / "out", media / "spoken.mp4", specs=specs)).failed == 0
    record = record_of(tmp_path / "out")
    assert (record["summary"], record["error"], served.chats.asked) == (None, None, [])
    assert record["summary_settings"]


async def test_clips_of_which_a_model_says_nothing_have_failed(media, tmp_path, served):
    tell(served, "  ")
    assert (await served.run(tmp_path / "out", media / "spoken.mp4")).failed == 1
    record = record_of(tmp_path / "out")
    assert (record["status"], record["summary"], record["clips"]) == ("error", IN_RECORD, [])
    assert record["error"]["message"].endswith("expected an answer with a text, got none")


async def test_an_answer_that_does_not_fit_is_asked_for_once_more_with_the_reason(media, tmp_path, served):
    served.chats.answers = [chat('{"title": "<|x|>"}'), answer(title="Now right")]
    assert (await served.run(tmp_path / "out", media / "spoken.mp4")).failed == 0
    first, second = served.prompts()
    assert second.startswith(
        f'{first}\n\nYour last answer was:\n{{"title": "< |x|>"}}\n\nIt cannot be used, because it'
    )
    assert record_of(tmp_path / "out")["summary"]["title"] == "Now right"


def whole_job(summary: Summary) -> dict[str, float]:
    """What all runs have made, by its unit."""
    return {track.counts: track.done + (track.done_before or 0) for track in summary.snapshot.tracks}


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (chat("no"), {"type": "AnswerRefused", "message": "no summary: the answer cannot be used: it is no JSON: "}),
        (
            answer(summary=" "),
            {"type": "AnswerRefused", "message": "no summary: the answer cannot be used: its summary "},
        ),
        (
            answer(keywords=["k"] * 11),
            {"type": "AnswerRefused", "message": "no summary: the answer cannot be used: it "},
        ),
        (
            answer(keywords=["k"] * 150_000),
            {"type": "AnswerRefused", "message": "no summary: the answer cannot be used: it has "},
        ),
        ((400, {"error": "bad words"}), {"type": "RequestRefused", "message": "no summary: status 400: bad words"}),
    ],
)
async def test_a_source_without_a_usable_answer_fails_alone_and_is_tried_again(media, tmp_path, served, bad, error):
    def refuse_the_short_one(asked):
        text = asked["messages"][0]["content"][0]["text"]
        return bad if "8-" not in text and "seen" in text else answer()

    odd_media.write(tmp_path / "short.mkv")
    out, paths = tmp_path / "out", (tmp_path / "short.mkv", media / "spoken.mp4")
    served.chats.answer = refuse_the_short_one
    assert (await served.run(out, *paths)).failed == 1
    record = record_of(out, "short.mkv")
    assert (record["error"]["type"], record["summary"], len(record["clips"])) == (error["type"], None, 1)
    assert record["error"]["message"].startswith(error["message"])
    assert record_of(out)["summary"] == IN_RECORD
    served.chats.asked, served.chats.answer = [], lambda _: answer(title="Again")
    again = await served.run(out, *paths, retry_failed=True)
    assert (again.failed, whole_job(again)["summaries"]) == (0, 2)
    assert [record_of(out, path.name)["summary"]["title"] for path in paths] == ["Again", "A talk"]
    assert len(served.chats.asked) == 1


async def test_a_summary_is_made_anew_when_clips_that_failed_are_tried_again(media, tmp_path, served):
    async def refuse(request):
        return (
            refused(422, "ClipError", "no good") if len(request.clips[0]["frames"]) > 4 else await descriptions(request)
        )

    out = tmp_path / "out"
    served.clips.answer = refuse
    assert (await served.run(out, media / "spoken.mp4")).failed == 1
    assert record_of(out)["summary"] == IN_RECORD
    tell(served, "a dog")
    served.chats.answer = lambda _: answer(title="With a dog")
    again = await served.run(out, media / "spoken.mp4", retry_failed=True)
    assert (again.failed, whole_job(again)) == (
        0,
        {"clips": 3, "seconds of audio": pytest.approx(12, abs=1), "summaries": 1},
    )
    without, with_clips = served.lines()
    assert len(with_clips) == len(without) + 3
    assert record_of(out)["summary"]["title"] == "With a dog"


async def test_a_run_needs_texts_for_summaries(tmp_path, media, served):
    with pytest.raises(UsageError, match="summary: expected captions, clips or a transcript in the same run"):
        await served.run(tmp_path / "out", media / "spoken.mp4", specs=served.specs()[2:])


async def test_a_model_that_takes_too_few_tokens_is_refused(tmp_path, media, served):
    served.chats.listed = [served.chats.listed[0] | {"max_model_len": 512}]
    with pytest.raises(UsageError, match=r"summary: expected a model that takes at least \d+ tokens, got .*512"):
        await served.run(tmp_path / "out", media / "spoken.mp4")


async def test_nodes_make_the_same_summaries(media, tmp_path, served):
    paths = [media / "spoken.mp4", media / "phrases.ogg"]
    outs = tmp_path / "here", tmp_path / "elsewhere"
    await served.run(outs[0], *paths)
    await served.run(outs[1], *paths, nodes=RemoteNodes(served.specs(), LocalCluster("a", "b")))
    assert len(served.chats.asked) == 2 * len(paths)
    here, elsewhere = ((out / "annotations.jsonl").read_bytes() for out in outs)
    assert here == elsewhere


async def test_a_run_that_is_stopped_saves_what_is_asked_and_the_next_one_asks_the_rest(media, tmp_path, served):
    def answer_and_stop(_):
        served.running.stop()
        return answer()

    out, paths = tmp_path / "out", [media / "spoken.mp4", media / "phrases.ogg", media / "old.avi"]
    served.chats.answer = answer_and_stop
    assert (await served.run(out, *paths)).interrupted
    first = served.prompts()
    served.chats.answer = lambda _: answer()
    assert (await served.run(out, *paths)).failed == 0
    assert len(set(served.prompts())) == len(served.prompts()) == len(paths)
    assert len(first) < len(paths)
