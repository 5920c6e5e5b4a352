"""What an operator asks of a server, what it answers, and what is said when it refuses."""

import asyncio
import ssl
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from aiohttp import web
from typer.testing import CliRunner

from reelscribe.cli import app
from reelscribe.client.credentials import Credentials
from reelscribe.errors import (
    AccessRefused,
    ModelApiOff,
    ModelConflict,
    ServerError,
    ServerOutOfMemory,
    ServerUnreachable,
    StartupError,
    UnknownModel,
    UsageError,
)
from reelscribe.management.client import ManagementClient, ServerAddresses
from reelscribe.management.model_version import ModelVersion, Worker
from support.fake_management import KEY_REFUSED, FakeManagement, FakeVersion, refused
from support.fake_torchserve import write_key_file


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeManagement]:
    async with FakeManagement() as server:
        captioner = FakeVersion("captioner.mar", response_seconds=120, gpu_usage="gpuId::3 utilization.gpu [%]::0 %")
        server.add("captioner", "1.0", captioner)
        yield server


@pytest_asyncio.fixture
async def client(server) -> AsyncIterator[ManagementClient]:
    async with ManagementClient(ServerAddresses(server.url, server.url, server.url)) as client:
        yield client


def changes(server: FakeManagement) -> list[str]:
    return [line for line in server.asked if not line.startswith("GET")]


async def test_a_model_is_described(client):
    described = await client.describe("captioner")
    assert (described.name, described.version, described.archive) == ("captioner", "1.0", "captioner.mar")
    assert described.workers == (Worker("9000", "READY", 100, gpu=3, memory=2**20),)
    assert (described.min_workers, described.max_workers) == (1, 1)
    assert (described.queue_pending, described.queue_capacity) == (0, 16)
    assert (described.response_seconds, described.startup_seconds, described.device_ids) == (120, 600, (2, 3))
    assert (described.batch_size, described.batch_delay_ms) == (1, 1)


async def test_all_versions_of_all_models_are_listed_page_by_page(server, client):
    server.add("captioner", "2.0", FakeVersion("captioner-2.0.mar"))
    for k in range(100):
        server.add(f"other{k}", "1.0", FakeVersion(f"{k}.mar"))
    models = await client.models()
    assert len(models) == 102
    assert [(m.version, m.is_default) for m in models if m.name == "captioner"] == [("1.0", True), ("2.0", False)]


async def test_versions_are_in_the_order_of_their_numbers(server, client):
    for version in ("10.0", "9.0"):
        server.add("captioner", version, FakeVersion(f"captioner-{version}.mar"))
    assert [described.version for described in await client.versions("captioner")] == ["1.0", "9.0", "10.0"]


async def test_a_model_that_is_unregistered_while_models_are_listed_is_left_out(server, client):
    server.gone = {"another"}
    assert [model.name for model in await client.models()] == ["captioner"]


async def test_one_version_of_several_is_described(server, client):
    server.add("captioner", "2.0", FakeVersion("captioner-2.0.mar", ready=[False]))
    assert (await client.describe("captioner")).version == "1.0"
    second = await client.describe("captioner", "2.0")
    assert (second.archive, second.is_default, second.ready) == ("captioner-2.0.mar", False, False)


async def test_the_handler_describes_itself(client):
    assert await client.handler_description("captioner") == {"name": "a/b"}


async def test_ping_says_whether_it_is_healthy(server, client):
    assert await client.ping()
    server.healthy = False
    assert not await client.ping()


async def test_metrics_are_text(client):
    assert "ts_inference_requests_total" in await client.metrics()


async def test_an_address_that_was_not_given_is_said(server):
    async with ManagementClient(server.url) as client:
        with pytest.raises(UsageError, match="no address of the inference API"):
            await client.ping()


async def test_a_registration_waits_until_it_is_ready(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar"))
    made = await client.register("new.mar")
    assert (made.name, made.version, made.ready, made.is_default) == ("new", "1.0", True, True)
    assert changes(server) == ["POST /models?url=new.mar&initial_workers=0&synchronous=false"]


async def test_workers_that_are_asked_for_replace_those_of_the_archive(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", wanted=1, most=4))
    assert len((await client.register("new.mar", workers=2)).workers) == 2
    assert changes(server)[1] == "PUT /models/new/1.0?min_worker=2&max_worker=2"


async def test_a_registration_that_cannot_load_leaves_nothing_and_says_why(server, client):
    server.archives["captioner-2.0.mar"] = ("captioner", "2.0", FakeVersion("captioner-2.0.mar", ready=[False]))
    reasons = {("captioner", "2.0"): "StartupError: no weights"}
    with pytest.raises(StartupError, match=r"^captioner 2\.0 cannot be loaded: StartupError: no weights$"):
        await client.register("captioner-2.0.mar", why=lambda *version: reasons.get(version))
    assert list(server.models["captioner"]) == ["1.0"]


async def test_a_registration_that_takes_too_long_leaves_nothing(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", ready=[False]))
    with pytest.raises(StartupError, match="0 of 1 workers ready after 0 s"):
        await client.register("new.mar", seconds=0)
    assert "new" not in server.models


async def test_a_registration_without_workers_leaves_nothing(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", wanted=0, ready=[]))
    with pytest.raises(StartupError, match="has no workers: give minWorkers"):
        await client.register("new.mar")
    assert "new" not in server.models


async def test_a_registration_whose_workers_are_refused_leaves_nothing(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", most=4))
    server.refuse["PUT"] = refused(507, "OutOfMemoryError", "no room for workers")
    with pytest.raises(ServerOutOfMemory, match="no room for workers"):
        await client.register("new.mar", workers=2)
    assert "new" not in server.models


async def test_a_registration_that_is_given_up_leaves_nothing(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", ready=[False]))
    waits = asyncio.Event()
    registering = asyncio.ensure_future(client.register("new.mar", why=lambda *_: waits.set()))
    await waits.wait()
    registering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await registering
    assert "new" not in server.models


async def test_a_version_that_cannot_be_taken_back_does_not_hide_why(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", ready=[False]))
    server.refuse["DELETE"] = refused(408, "RequestTimeoutException", "still ending workers")
    with pytest.raises(StartupError, match="cannot be loaded: OSError: no weights"):
        await client.register("new.mar", why=lambda *_: "OSError: no weights")


async def test_a_registration_need_not_wait(server, client):
    server.archives["new.mar"] = ("new", "1.0", FakeVersion("new.mar", ready=[False]))
    assert not (await client.register("new.mar", seconds=None)).ready
    assert "new" in server.models


async def test_waiting_ends_when_all_workers_are_ready(server, client):
    server.models["captioner"]["1.0"] = FakeVersion("captioner.mar", wanted=2, ready=[True, False])
    asked = []

    def when_asked_why(*version: str) -> None:
        asked.append(version)
        server.models["captioner"]["1.0"].ready = [True, len(asked) == 2]

    assert (await client.wait_ready("captioner", why=when_asked_why)).ready
    assert asked == [("captioner", "1.0")] * 2


async def test_scaling_sets_both_bounds_and_waits(server, client):
    assert len((await client.scale("captioner", 3)).workers) == 3
    assert len((await client.scale("captioner", 1, 2)).workers) == 2
    assert (await client.scale("captioner", 0)).workers == ()
    assert changes(server) == [
        "PUT /models/captioner?min_worker=3&max_worker=3",
        "PUT /models/captioner?min_worker=1&max_worker=2",
        "PUT /models/captioner?min_worker=0&max_worker=0",
    ]


@pytest.mark.parametrize("numbers", [(-1, None), (2, 1)])
async def test_numbers_of_workers_that_cannot_be_are_refused(server, client, numbers):
    with pytest.raises(UsageError, match="0 <= minimum <= maximum"):
        await client.scale("captioner", *numbers)
    assert server.asked == []


async def test_another_version_becomes_the_default(server, client):
    server.add("captioner", "2.0", FakeVersion("captioner-2.0.mar"))
    await client.set_default("captioner", "2.0")
    assert (await client.describe("captioner")).version == "2.0"


async def test_before_a_version_is_unregistered_it_answers_what_waits(server, client):
    server.add("captioner", "2.0", FakeVersion("captioner-2.0.mar"))
    await client.unregister("captioner", "2.0")
    path = "/models/captioner/2.0"
    assert [line for line in server.asked if "?" in line or not line.startswith("GET")] == [
        "POST /models",  # whether models can be unregistered at all
        f"GET {path}?customized=true",
        f"DELETE {path}",
    ]


async def test_several_workers_are_left_alone_for_as_long_as_they_may_compute(server, client):
    server.models["captioner"]["1.0"] = FakeVersion("c.mar", wanted=2, most=2, ready=[True, True], response_seconds=900)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(client.unregister("captioner"), 0.5)
    assert not any(line.startswith(("PUT", "DELETE")) for line in server.asked)


async def test_where_the_model_api_is_off_a_version_keeps_its_workers_and_nobody_waits(server, client):
    several = FakeVersion("c.mar", wanted=4, most=4, ready=[True] * 4, response_seconds=900)
    server.models["captioner"]["1.0"] = several
    server.refuse["POST"] = refused(405, "MethodNotAllowedException", "Requested method is not allowed")
    with pytest.raises(ModelApiOff, match="--model-api"):
        await client.unregister("captioner")
    assert changes(server) == ["POST /models"]
    assert (several.wanted, several.ready) == (4, [True] * 4)


async def test_an_unregistration_that_is_refused_in_the_end_costs_no_worker(server, client):
    several = FakeVersion("c.mar", wanted=4, most=4, ready=[True] * 4)
    server.models["captioner"]["1.0"] = several
    server.refuse["DELETE"] = refused(408, "RequestTimeoutException", "still ending workers")
    with pytest.raises(ServerError, match="still ending workers"):
        await client.unregister("captioner")
    assert (several.wanted, several.ready) == (4, [True] * 4)


async def test_a_version_can_be_unregistered_at_once(server, client):
    await client.unregister("captioner", drain_seconds=0)
    assert server.models == {}
    assert not any("customized" in line for line in server.asked)


async def test_the_default_version_keeps_its_workers_while_there_are_others(server, client):
    server.add("captioner", "2.0", FakeVersion("captioner-2.0.mar"))
    await client.scale("captioner", 2)
    await client.unregister("captioner", "1.0")  # TorchServe refuses it; the fake does not
    assert changes(server)[1:] == ["DELETE /models/captioner/1.0"]


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
    (503, "ServiceUnavailableException", ServerError, "no worker takes it"),
    (507, "OutOfMemoryError", ServerOutOfMemory, "unregister or scale down"),
    (302, "", ServerError, "is it a TorchServe"),
]


@pytest.mark.parametrize(("status", "kind", "error", "advice"), REFUSALS)
async def test_every_refusal_says_what_came_and_what_to_do(server, client, status, kind, error, advice):
    server.answer = lambda: refused(status, kind, "what TorchServe says")
    with pytest.raises(
        error, match=rf"/models/captioner/2.*: status {status}: what TorchServe says; .*{advice}"
    ) as told:
        await client.scale("captioner", 1, version="2")
    assert type(told.value) is error


async def test_an_archive_that_is_not_there_is_told_from_a_model_that_is_not(client):
    with pytest.raises(UnknownModel, match=r"Model not found at: new\.mar; expected the file name of an archive"):
        await client.register("new.mar")


async def test_certificates_that_the_environment_names_have_to_be_there(monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with pytest.raises(UsageError, match=r"SSL_CERT_FILE: expected a PEM file .*none\.pem"):
        ManagementClient(ServerAddresses("http://127.0.0.1:8081", "https://127.0.0.1:8080"))
    async with ManagementClient("https://127.0.0.1:8081", ssl_context=ssl.create_default_context()):
        pass  # they are not asked for


async def test_a_missing_key_is_said(server, client):
    server.key = "secret"
    with pytest.raises(AccessRefused, match="no key was given: name the server's --key-file"):
        await client.models()


async def test_a_wrong_key_is_said_and_not_shown(server):
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
    assert len(server.asked) == 1


async def test_the_key_does_not_follow_a_redirection(server):
    async with FakeManagement() as other, ManagementClient(server.url, "secret") as client:
        server.answer = lambda: web.Response(status=307, headers={"Location": f"{other.url}/models/captioner"})
        with pytest.raises(ServerError, match="status 307"):
            await client.describe("captioner")
        assert other.asked == []


@pytest.mark.parametrize("text", ["", "<html>", "[]", "5", '{"a": 1}', '[{"modelName": "captioner"}]', "[{}, {}]"])
async def test_what_is_no_answer_of_torchserve_is_said(server, client, text):
    server.answer = lambda: web.Response(text=text)
    for asked in (client.models, lambda: client.describe("captioner"), lambda: client.versions("captioner")):
        with pytest.raises(ServerError, match="is it a TorchServe"):
            await asked()


async def test_a_server_that_is_not_there_is_said():
    async with ManagementClient("http://127.0.0.1:9") as client:
        with pytest.raises(ServerUnreachable, match="is the server running"):
            await client.models()


async def test_an_answer_that_does_not_come_is_said():
    hung: list[asyncio.StreamWriter] = []
    listener = await asyncio.start_server(lambda _, writer: hung.append(writer), "127.0.0.1", 0)
    async with ManagementClient(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}") as client:
        with pytest.raises(ServerUnreachable, match="no answer within 0 s"):
            await client.handler_description("captioner", seconds=0.05)
    for writer in hung:
        writer.close()
    listener.close()
    await listener.wait_closed()


async def test_an_address_must_be_one():
    with pytest.raises(UsageError, match=r"expected an address like http://127\.0\.0\.1:8081"):
        ManagementClient("localhost")


async def test_an_address_that_is_wrong_leaves_no_session_of_another_open():
    with pytest.raises(UsageError, match="got 'localhost'"):
        ManagementClient(ServerAddresses("http://127.0.0.1:8081", metrics="localhost"))


@pytest.mark.parametrize("name", ["", "../models", "a/b"])
async def test_names_that_would_be_other_addresses_are_refused(server, client, name):
    with pytest.raises(UsageError, match="expected names without a slash"):
        await client.describe(name)
    assert server.asked == []


async def test_names_and_archives_travel_as_they_are(server, client):
    with pytest.raises(UnknownModel):
        await client.describe("a b?c#d%2F", "..")
    with pytest.raises(UnknownModel):
        await client.register("../a&b=c.mar")
    assert "GET /models/a%20b%3Fc%23d%252F" in server.asked
    assert "url=..%2Fa%26b%3Dc.mar" in server.asked[-1]


def test_who_takes_the_only_version_away_is_told_that_the_model_is_gone(monkeypatch):
    async def unregister(*_: object, **__: object) -> ModelVersion:
        return ModelVersion.from_json(FakeVersion("captioner.mar").to_json("captioner", "1.0"), "1.0")

    monkeypatch.setattr(ManagementClient, "unregister", unregister)
    result = CliRunner().invoke(app, ["models", "unregister", "captioner", "--management", "http://127.0.0.1:9"])
    assert result.output == "unregistered captioner 1.0; it was the only version, and requests for captioner fail now\n"


def test_commands_say_which_server_they_expect(tmp_path):
    for words, told in [
        (["--directory", str(tmp_path)], "no server was started there"),
        (["--key-file", str(tmp_path / "keys")], "expected the --management address"),
        (["--management", "localhost"], "expected an address like http://127.0.0.1:8081"),
    ]:
        result = CliRunner().invoke(app, ["models", "list", *words])
        assert (result.exit_code, told in result.output) == (2, True)
