"""Proxies of the environment: servers of models are asked over them by the same rules as web servers with sources."""

import asyncio

import numpy as np
import pytest

from reelscribe._web_addresses import proxy_of
from reelscribe.client.endpoint import Server
from reelscribe.client.models import CaptionClient, ClipClient
from reelscribe.contract.clips import Clip
from reelscribe.errors import MediaError, ServerError, UsageError
from reelscribe.management.management_client import ManagementClient
from reelscribe.storage.web import WebStore
from support.fake_management import FakeManagement, FakeVersion
from support.fake_openai import serving
from support.lying_server import LyingServer, response
from support.sending import FRAMES, no_waiting

NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """An environment without proxies."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


async def test_a_server_that_only_the_proxy_knows_is_asked_over_it(environment):
    async with serving() as proxy:
        environment.setenv("http_proxy", proxy.url.removeprefix("openai+"))
        async with ClipClient([Server("openai+http://models.invalid:8000/v1", "key")], "m") as client:
            await client.describe()
            (described,) = await client.describe_clips([Clip(np.zeros((2, 8, 8, 3), np.uint8), [0.0, 0.5])])
    assert described.text == "a cat"
    assert proxy.keys == {"Bearer key"}


async def test_the_management_of_a_server_is_asked_over_the_proxy(environment):
    async with FakeManagement() as proxy:
        proxy.add("captioner", "1.0", FakeVersion("captioner.mar"))
        environment.setenv("all_proxy", proxy.url)
        async with ManagementClient("http://models.invalid:8081") as client:
            assert [each.name for each in await client.models()] == ["captioner"]


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_proxy_that_refuses_is_named_without_its_password(environment, scheme):
    async with LyingServer(response("no", status="407 Proxy Authentication Required")) as proxy:
        environment.setenv(f"{scheme}_proxy", f"http://me:secret@127.0.0.1:{proxy.port}")
        client = ClipClient([Server(f"openai+{scheme}://models.invalid/v1")], "m")
        async with client:
            with pytest.raises(ServerError, match=r"asked over the proxy of .* name its host in no_proxy") as error:
                await client.describe()
    assert "secret" not in str(error.value)
    assert "Proxy-Authorization: Basic bWU6c2VjcmV0" in proxy.heads[0]


@pytest.mark.parametrize("status", ["403 Forbidden", "502 Bad Gateway", "503 Unavailable", "504 Timeout"])
async def test_what_a_proxy_may_have_answered_is_told_as_such(environment, status):
    over_proxy = pytest.raises(ServerError, match=rf"{status[:3]}\b.* over the proxy of .*in no_proxy .*<html>ERR")
    async with LyingServer(response("<html>ERR", status=status)) as proxy:
        environment.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        with no_waiting(2):
            async with ClipClient([Server("openai+http://models.invalid/v1")], "m") as client:
                with over_proxy:
                    await client.describe()
            async with CaptionClient([Server("http://models.invalid")], "captioner") as client:
                await client.describe()
                with over_proxy:
                    await client.caption(FRAMES[:1])
        async with ManagementClient("http://models.invalid:8081") as management:
            with over_proxy:
                await management.models()
        with pytest.raises(MediaError, match=rf"status {status[:3]}\b.* over the proxy of .*in no_proxy"):
            await asyncio.to_thread(WebStore(5.0).info, "http://films.invalid/one.mp4")


async def test_what_the_server_behind_a_proxy_says_itself_is_not_told_as_the_proxys(environment):
    async with LyingServer(response('{"error": {"message": "no key"}}', status="403 Forbidden")) as proxy:
        environment.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        async with ClipClient([Server("openai+http://models.invalid/v1")], "m") as client:
            with pytest.raises(ServerError, match="no key") as error:
                await client.describe()
    assert "proxy" not in str(error.value)


async def test_a_proxy_that_cannot_be_used_is_an_error_only_of_what_would_be_asked_over_it(environment):
    environment.setenv("all_proxy", "socks5://me:secret@h:1")
    environment.setenv("no_proxy", "direct.invalid")
    assert proxy_of("http", "direct.invalid", None) is None
    environment.setenv("https_proxy", "http://h:2")
    assert proxy_of("https", "models.invalid", None).url == "http://h:2/"
    async with ClipClient([Server("openai+http://models.invalid/v1")], "m") as client:
        with pytest.raises(UsageError, match=r"^all_proxy: expected the address of a proxy.* SOCKS is not") as error:
            await client.describe()
    assert "secret" not in str(error.value)
    with pytest.raises(UsageError, match=r"^all_proxy: "):
        await asyncio.to_thread(WebStore(5.0).info, "http://films.invalid/one.mp4")


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
async def test_this_machine_is_asked_without_a_proxy(environment, proxy):
    environment.setenv("all_proxy", proxy)
    async with serving() as server, ClipClient([Server(server.url)], "m") as client:
        await client.describe()
        address = f"{server.url.removeprefix('openai+').removesuffix('v1')}version"
        assert (await asyncio.to_thread(WebStore(5.0).info, address)).size == len('{"version": "0.32.0"}')


@pytest.mark.parametrize(
    ("scheme", "host", "port", "proxy"),
    [
        ("http", "a.example", None, "http://one:3128/"),
        ("https", "a.example", 8443, "http://two:3128/"),
        *(
            ("http", host, 80, None)
            for host in ("127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "localhost", "a.localhost")
        ),
        ("http", "models.internal", 8000, None),
        ("http", "b.example", 8000, None),
        ("http", "b.example", 8001, "http://one:3128/"),
        ("http", "10.0.0.7", None, "http://one:3128/"),
    ],
)
def test_the_environment_says_which_proxy_is_asked(environment, scheme, host, port, proxy):
    values = ("one:3128", "", "http://two:3128", ".internal,b.example:8000")
    for name, value in zip(NAMES, values, strict=True):
        environment.setenv(name, value)
    found = proxy_of(scheme, host, port)
    assert (found and found.url) == proxy
