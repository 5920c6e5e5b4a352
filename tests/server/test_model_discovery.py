"""Nobody needs to name the only captioner or speech model of a server."""

from collections.abc import Collection
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from reelscribe.client.endpoint import Server
from reelscribe.contract.descriptions import (
    CaptionerDescription,
    ModelDescription,
    ShotModelDescription,
    SpeechDescription,
)
from reelscribe.errors import AccessRefused, ServerUnreachable, UsageError
from reelscribe.server.model_discovery import find_model
from reelscribe.server.server_discovery import FoundServer, ManagedServer
from support.fake_management import FakeManagement, FakeVersion
from support.fake_torchserve import DESCRIPTION, SPEECH, FakeTorchServe
from support.shot_runs import SHOTS


@asynccontextmanager
async def serving(models: dict[str, ModelDescription | None], died: Collection[str] = ()):
    """Address of a server of models by their names; None is a model that is not one of reelscribe's.

    Of the models in `died`, the idle worker has died, as the first request tells.
    """
    died = list(died)

    async def describe(request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in models:
            return web.json_response({"code": 404, "message": f"Model not found: {name}"}, status=404)
        if name in died:
            died.remove(name)
            return web.json_response({"code": 507, "message": "Worker died."}, status=507)
        model = models[name]
        return web.json_response(model.to_json()) if model else web.json_response({"code": 500}, status=500)

    app = web.Application()
    app.router.add_post("/predictions/{name}", describe)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def find(
    models: dict[str, ModelDescription | None], kind: type[ModelDescription], *, listed: bool, name: str | None = None
) -> str:
    async with serving(models) as url, FakeManagement() as management:
        for each in models:
            management.add(each, "1.0", FakeVersion(f"{each}.mar"))
        found = FoundServer(Server(url), ManagedServer(management.url) if listed else None)
        return await find_model(found, kind, name)


async def test_a_name_that_no_model_has_is_told_with_those_that_there_are():
    models = {"ours": DESCRIPTION, "words": SPEECH}
    assert await find(models, SpeechDescription, listed=True, name="words") == "words"
    with pytest.raises(UsageError, match=r"expected the name of a model there, got 'whisper'; it has ours, words$"):
        await find(models, SpeechDescription, listed=True, name="whisper")
    assert await find(models, SpeechDescription, listed=False, name="whisper") == "whisper"  # its server tells


async def test_whatever_the_only_model_is_called_it_is_found_in_the_list():
    models = {"ours": DESCRIPTION, "theirs": None, "words": SPEECH}
    assert await find(models, CaptionerDescription, listed=True) == "ours"
    assert await find(models, SpeechDescription, listed=True) == "words"


async def test_a_worker_that_has_died_is_not_the_end_of_the_search():
    async with serving({"speech": SPEECH}, died=["speech"]) as url:
        assert await find_model(FoundServer(Server(url)), SpeechDescription) == "speech"


async def test_where_models_cannot_be_listed_usual_names_are_tried():
    models = {"blip2": DESCRIPTION, "whisper": SPEECH, "transnetv2": SHOTS}
    assert await find(models, CaptionerDescription, listed=False) == "blip2"
    assert await find(models, ShotModelDescription, listed=False) == "transnetv2"
    assert await find(models, SpeechDescription, listed=False) == "whisper"


@pytest.mark.parametrize(
    ("models", "kind", "listed", "message"),
    [
        (
            {"a": DESCRIPTION, "b": DESCRIPTION, "c": SPEECH},
            CaptionerDescription,
            True,
            "expected one captioner, got a, b; choose one with --model NAME",
        ),
        (
            {"captioner": DESCRIPTION, "blip2": DESCRIPTION},
            CaptionerDescription,
            False,
            "expected one captioner, got captioner, blip2; choose one with --model NAME",
        ),
        (
            {"a": DESCRIPTION},
            SpeechDescription,
            True,
            "expected a speech model there, but it has a; build one",
        ),
        ({}, SpeechDescription, True, "but it has no models"),
        (
            {"a": SPEECH},
            ShotModelDescription,
            True,
            "expected a shot model there, but it has a; build one ",
        ),
        (
            {"ours": DESCRIPTION},
            CaptionerDescription,
            False,
            "under a usual name there, but none is called captioner, blip2, blip or git; name it with --model NAME",
        ),
    ],
)
async def test_where_none_or_several_fit_the_message_says_which_there_are(models, kind, listed, message):
    with pytest.raises(UsageError, match=message):
        await find(models, kind, listed=listed)


async def test_a_server_that_refuses_the_key_is_named_without_the_model_that_was_tried():
    async with FakeTorchServe(key="secret") as server:
        with pytest.raises(AccessRefused, match=f"^{server.url}: status 400: Token Authorization failed"):
            await find_model(FoundServer(Server(server.url)), CaptionerDescription)


async def test_a_server_that_does_not_answer_is_not_one_without_models():
    with pytest.raises(ServerUnreachable, match="Connection refused; is the server running"):
        await find_model(FoundServer(Server("http://127.0.0.1:9")), CaptionerDescription)
    with pytest.raises(ServerUnreachable, match=r"No server runs in \.server of this folder; name one with --server"):
        await find_model(FoundServer(Server("http://127.0.0.1:9"), assumed=True), CaptionerDescription)
