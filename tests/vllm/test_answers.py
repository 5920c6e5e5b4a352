"""A real vLLM answers as our handlers do on TorchServe, and reads the times that frames have."""

import asyncio
import json
import random
import subprocess
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from transformers import AutoTokenizer

from clips.describer import ClipSettings, Describer
from compare_with_truth import clips_with_descriptions
from servers.torchserve import CAPTIONER, CLIPS, ROOT
from servers.vllm import OUR_CLIPS, captioner_template, serve_vllm
from support.commands import reelscribe
from support.servers import read_records, serve_demo_models
from synthetic.event_clips import random_event_clip
from training.clip_captioner.evaluate import BATCH, CLIP_SECONDS, HEIGHT, SEED, WIDTH, describe, encode, read

HELD_OUT = 200
"""Number of clips that training has not used."""

WINDOWS = ("--clips", "windows", "--clip-seconds", str(CLIP_SECONDS))


def caption(url: str, out: Path, *words: object) -> list[dict]:
    """Run `reelscribe caption` with a server, and return the records."""
    done = subprocess.run(
        reelscribe("caption", *words, "--server", url, "--out", out), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return read_records(out)


def test_demo_clips_are_described_as_they_are(clips, tmp_path):
    records = caption(clips.url, tmp_path, ROOT / "demo" / "clips", "--clips", "shots", *OUR_CLIPS)
    pairs = clips_with_descriptions(records)
    assert sum(clip["description"] == text for clip, text in pairs) >= len(pairs) - 1
    assert {clip["status"] for record in records for clip in record["clips"]} == {"complete"}


def test_held_out_clips_are_described_as_our_handler_does(clips, tmp_path):
    rng = random.Random(SEED)
    events = [random_event_clip(rng, WIDTH / HEIGHT) for _ in range(HELD_OUT)]
    describer, ours = Describer(ClipSettings(str(CLIPS)), torch.device("cpu")), list[str]()
    folder = tmp_path / "library"
    folder.mkdir()
    for at in range(0, HELD_OUT, BATCH):
        path = folder / f"{at:03}.mp4"
        encode(events[at : at + BATCH], path)
        ours += describe(read(path, describer), describer)
    records = caption(clips.url, tmp_path / "out", folder, *WINDOWS, *OUR_CLIPS, "--frame-format", "png")
    theirs = [clip["text"] for record in records for clip in record["clips"]]
    exact = [sum(event.caption == text for event, text in zip(events, texts, strict=True)) for texts in (ours, theirs)]
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    print(f"exact: handler {exact[0]}, vLLM {exact[1]} of {HELD_OUT}; {same} have the same text")
    assert abs(exact[0] - exact[1]) <= 0.005 * HELD_OUT


def test_all_frames_get_the_captions_of_torchserve(vllm_folder, media, tmp_path):
    words = (media, "--all-frames")
    with serve_vllm(vllm_folder, CAPTIONER, "captioner", tmp_path, *captioner_template(tmp_path)) as server:
        theirs = caption(server.url, tmp_path / "vllm", *words, "--family", "blip2", "--frame-format", "png")
    with serve_demo_models(tmp_path / "server") as server:
        key = ("--key-file", server.instance.key_file, "--model", "captioner")
        ours = caption(server.url, tmp_path / "torchserve", *words, *key)
    texts = [
        [
            (caption["frame_index"], caption["pts_seconds"], caption["text"])
            for each in records
            for caption in each["captions"]
        ]
        for records in (ours, theirs)
    ]
    same = sum(a == b for a, b in zip(*texts, strict=True))
    print(f"{same} of {len(texts[0])} captions are equal")
    assert same == len(texts[0]) == 802


class Recorder:
    """Passes requests on to a vLLM, has it return the tokens of its prompts, and keeps requests and answers."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.exchanges: list[tuple[dict, dict]] = []

    def app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/{path:.*}", self._pass_on)
        app.router.add_post("/v1/chat/completions", self._ask)
        return app

    async def _pass_on(self, request: web.Request) -> web.Response:
        async with ClientSession() as session, session.get(self._address + request.path) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type=answer.content_type)

    async def _ask(self, request: web.Request) -> web.Response:
        asked = await request.json() | {"return_token_ids": True}
        async with ClientSession() as session, session.post(self._address + request.path, json=asked) as answer:
            answered = await answer.json()
        self.exchanges.append((asked, answered))
        return web.json_response(answered, status=answer.status)


def presentation_times(path: Path) -> np.ndarray:
    """The presentation time of each frame of a video, in seconds, as PyAV reads them."""
    with av.open(str(path)) as container:
        return np.array(sorted(frame.time for frame in container.decode(video=0)))


@pytest.mark.parametrize("name", ["variable-rate.mp4", "late-start.mkv"])
async def test_the_prompt_of_vllm_has_the_presentation_times(clips, tmp_path, name):
    recorder = Recorder(clips.address)
    async with TestServer(recorder.app()) as passing:
        run = await asyncio.create_subprocess_exec(
            *reelscribe("caption", ROOT / "demo" / "clips" / name, *WINDOWS, *OUR_CLIPS, "--clip-fps", "5"),
            *("--server", f"openai+{passing.make_url('/v1')}", "--out", str(tmp_path)),
        )
        assert await run.wait() == 0
    true = presentation_times(ROOT / "demo" / "clips" / name)
    tokenizer = AutoTokenizer.from_pretrained(CLIPS)
    assert recorder.exchanges
    for asked, answered in recorder.exchanges:
        sent = [number / 1000 for number in asked["media_io_kwargs"]["video"]["frames_indices"]]
        assert max(np.abs(true - each).min() for each in sent) <= 0.001
        assert all(a < b for a, b in pairwise(sent))
        # A Qwen3-VL sees two frames as one, and reads the mean of their times in tenths of a second.
        read = [f"<{(a + b) / 2:.1f} seconds>" for a, b in zip(sent[::2], sent[1::2], strict=True)]
        prompt = tokenizer.decode(answered["prompt_token_ids"])
        assert [f"<{part.split('>')[0]}>" for part in prompt.split("<") if "seconds>" in part] == read
    print(f"{name}: {len(recorder.exchanges)} clips, all times right; the last prompt: {json.dumps(prompt[:200])}")
