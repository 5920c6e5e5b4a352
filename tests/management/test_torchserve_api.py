"""Refusals, tokens, addresses and unexpected answers: each error says what to do."""

import asyncio
import ssl

import pytest
from aiohttp import web

from reelscribe.client.credentials import Credentials
from reelscribe.errors import (
    AccessRefused,
    ModelApiOff,
    ModelConflict,
    ServerError,
    ServerOutOfMemory,
    ServerUnreachable,
    UnknownModel,
    UsageError,
)
from reelscribe.management.management_client import ManagementClient
from reelscribe.management.torchserve_api import ServerAddresses
from support.fake_management import KEY_REFUSED, FakeManagement, refused
from support.fake_torchserve import write_key_file

REFUSALS = [
    (400, "BadRequestException", UsageError, "check the names"),
    (403, "InvalidModelVersionException", ModelConflict, "make another version the default"),
    (404, "ModelNotFoundException", UnknownModel, "what is registered"),
    (404, "ModelVersionNotFoundException", UnknownModel, "which versions there are"),
    (404, "ResourceNotFoundException", ServerError, "is that the management address"),
    (404, "", ServerError, "is it a TorchServe"),
    (405, "MethodNotAllowedException", ModelApiOff, "reelscribe server restart --model-api"),
    (408, "RequestTimeoutException", ServerError, "try again"),
    (409, "ConflictStatusException", ModelConflict, "give the archive another"),
    (500, "InternalServerException", ServerError, "server's log"),
    (503, "ServiceUnavailableException", ServerError, "no worker accepts the request"),
    (507, "OutOfMemoryError", ServerOutOfMemory, "unregister or scale down"),
    (302, "", ServerError, "is it a TorchServe"),
]


@pytest.mark.parametrize(("status", "kind", "error", "advice"), REFUSALS)
async def test_every_refusal_says_what_came_and_what_to_do(server, client, status, kind, error, advice):
    server.answer = lambda: refused(status, kind, "what TorchServe says")
    with pytest.raises(
        error, match=rf"/models/captioner/2.*: status {status}: what TorchServe says; .*{advice}"
    ) as raised:
        await client.scale("captioner", 1, version="2")
    assert type(raised.value) is error


async def test_a_missing_archive_is_distinguished_from_a_missing_model(client):
    with pytest.raises(UnknownModel, match=r"Model not found at: new\.mar; expected the file name of an archive"):
        await client.register("new.mar")


async def test_certificates_that_the_environment_names_must_exist(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(UsageError, match=r"SSL_CERT_FILE: expected a PEM file .*none\.pem"):
        ManagementClient(ServerAddresses("http://127.0.0.1:8081", "https://127.0.0.1:8080"))
    async with ManagementClient("https://127.0.0.1:8081", ssl_context=ssl.create_default_context()):
        pass  # they are not asked for


async def test_a_missing_key_is_reported(server, client):
    server.key = "secret"
    with pytest.raises(AccessRefused, match="no key was given: give the server's --key-file"):
        await client.models()


async def test_a_wrong_key_is_reported_but_not_shown(server):
    server.key = "secret"
    async with ManagementClient(server.url, "wrong-key") as client:
        with pytest.raises(AccessRefused, match="keys expire, and a restart makes new ones") as error:
            await client.models()
        assert "wrong-key" not in f"{error.value!r}{error.value.__cause__!r}{client!r}{client.__dict__!r}"


async def test_a_key_that_was_replaced_is_read_again(server, tmp_path):
    server.key = "new"
    credentials = Credentials(write_key_file(tmp_path / "keys", "old"), api="management")
    async with ManagementClient(server.url, credentials) as client:
        write_key_file(tmp_path / "keys", "new")
        assert len(await client.models()) == 1


async def test_a_key_that_is_still_the_same_is_not_tried_again(server, tmp_path):
    server.key = "new"
    credentials = Credentials(write_key_file(tmp_path / "keys", "old"), api="management")
    async with ManagementClient(server.url, credentials) as client:
        with pytest.raises(AccessRefused, match=KEY_REFUSED[1]):
            await client.models()
    assert len(server.requests) == 1


async def test_the_key_does_not_follow_a_redirection(server):
    async with FakeManagement() as other, ManagementClient(server.url, "secret") as client:
        server.answer = lambda: web.Response(status=307, headers={"Location": f"{other.url}/models/captioner"})
        with pytest.raises(ServerError, match="status 307"):
            await client.describe("captioner")
        assert other.requests == []


@pytest.mark.parametrize("text", ["", "<html>", "[]", "5", '{"a": 1}', '[{"modelName": "captioner"}]', "[{}, {}]"])
async def test_an_answer_that_is_not_torchserves_is_reported(server, client, text):
    server.answer = lambda: web.Response(text=text)
    for asked in (client.models, lambda: client.describe("captioner"), lambda: client.versions("captioner")):
        with pytest.raises(ServerError, match="is it a TorchServe"):
            await asked()


async def test_a_server_that_does_not_listen_is_reported():
    async with ManagementClient("http://127.0.0.1:9") as client:
        with pytest.raises(ServerUnreachable, match="is the server running"):
            await client.models()


async def test_a_server_that_never_answers_is_reported():
    hung: list[asyncio.StreamWriter] = []
    listener = await asyncio.start_server(lambda _, writer: hung.append(writer), "127.0.0.1", 0)
    async with ManagementClient(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(ServerUnreachable, match="no answer within 0 s"):
            await client.handler_description("captioner", seconds=0.05)
    for writer in hung:
        writer.close()
    listener.close()
    await listener.wait_closed()


async def test_an_address_needs_a_scheme():
    with pytest.raises(UsageError, match=r"expected an address like http://127\.0\.0\.1:8081"):
        ManagementClient("localhost")


async def test_a_malformed_address_leaves_no_session_open():
    with pytest.raises(UsageError, match="got 'localhost'"):
        ManagementClient(ServerAddresses("http://127.0.0.1:8081", metrics="localhost"))


@pytest.mark.parametrize("name", ["", "../models", "a/b"])
async def test_names_that_would_change_the_path_are_refused(server, client, name):
    with pytest.raises(UsageError, match="expected names without a slash"):
        await client.describe(name)
    assert server.requests == []


async def test_names_and_archives_are_encoded(server, client):
    with pytest.raises(UnknownModel):
        await client.describe("a b?c#d%2F", "..")
    with pytest.raises(UnknownModel):
        await client.register("../a&b=c.mar")
    assert "GET /models/a%20b%3Fc%23d%252F" in server.requests
    assert "url=..%2Fa%26b%3Dc.mar" in server.requests[-1]


@pytest.mark.parametrize("names", [0, 100])
async def test_a_list_of_models_without_end_is_refused(server, client, names):
    page = {"models": [{"modelName": "captioner", "modelUrl": "captioner.mar"}] * names, "nextPageToken": "1"}
    server.answer = lambda: web.json_response(page)
    with pytest.raises(ServerError, match=r"a list of models without an end, .*is it a TorchServe"):
        await client.models()
