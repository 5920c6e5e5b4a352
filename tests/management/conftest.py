"""A server with one captioner, and a client that is connected to it."""

from collections.abc import AsyncIterator

import pytest_asyncio

from reelscribe.management.management_client import ManagementClient
from reelscribe.management.torchserve_api import ServerAddresses
from support.fake_management import FakeManagement, FakeVersion


@pytest_asyncio.fixture
async def server() -> AsyncIterator[FakeManagement]:
    async with FakeManagement() as server:
        captioner = FakeVersion("captioner.mar", response_seconds=120, gpus=[3])
        server.add("captioner", "1.0", captioner)
        yield server


@pytest_asyncio.fixture
async def client(server) -> AsyncIterator[ManagementClient]:
    async with ManagementClient(ServerAddresses(server.url, server.url, server.url)) as client:
        yield client
