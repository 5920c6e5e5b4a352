"""What the driver has with one node: its version, its calls of the ledger, its holds, and its end."""

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from reelscribe._tasks import Reservations
from reelscribe.cluster import session
from reelscribe.cluster.mail import Call
from reelscribe.cluster.remote_node import NodeSpec, version
from reelscribe.cluster.session import NodeSession
from reelscribe.contract.source import Source
from reelscribe.errors import NodeRefused, OutputError
from reelscribe.results.ledger import Ledger
from reelscribe.run import messages
from reelscribe.run.lost_nodes import NodeLost
from reelscribe.run.node import Destination
from support.patience import PATIENCE

SPEC = NodeSpec((), "/")


class ScriptedNode:
    """A node that says what the test tells it to say."""

    name = "a"

    def __init__(self, its_version: str | None = None) -> None:
        self._version = its_version or version()
        self._says: asyncio.Queue[list] = asyncio.Queue()
        self.told: asyncio.Queue = asyncio.Queue()

    def say(self, *mail) -> None:
        self._says.put_nowait([*mail])

    async def version(self) -> str:
        return self._version

    async def begin(self, spec) -> None:
        assert spec == SPEC

    async def tell(self, letters) -> None:
        for message in letters:
            self.told.put_nowait(message)

    async def listen(self) -> list:
        said = await self._says.get()
        if isinstance(said[0], Exception):
            raise said[0]
        return said

    async def end(self) -> None:
        pass

    async def answers(self, count: int = 1) -> list:
        """The next answers to calls."""
        found: list = []
        while len(found) < count:
            found += (await asyncio.wait_for(self.told.get(), PATIENCE)).values
        return found


class Sessions:
    """Sessions of scripted nodes with one ledger."""

    def __init__(self, ledger: Ledger, out: Path) -> None:
        self.ledger, self._destination, self._reservations = ledger, Destination(ledger, out), Reservations()
        self.heard: asyncio.Queue = asyncio.Queue()
        self.broken: list[BaseException] = []

    @asynccontextmanager
    async def of(self, node: ScriptedNode):
        """A session while the block runs. The block gets the task that runs it."""
        one = NodeSession(node, SPEC, self._destination, self._reservations, lambda _: None)
        running = asyncio.create_task(one.run(self.heard.put_nowait, self.broken.append))
        try:
            yield one, running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def sessions(tmp_path):
    async with Ledger(tmp_path) as ledger:
        yield Sessions(ledger, tmp_path)


async def test_a_node_with_another_version_is_refused_and_told_nothing(sessions):
    node = ScriptedNode("reelscribe 0.1, Python 3.9")
    async with sessions.of(node) as (one, running):
        one.send(messages.Share(1))
        with pytest.raises(NodeRefused, match=r"expected reelscribe .*, got reelscribe 0\.1, Python 3\.9; install"):
            await asyncio.wait_for(running, PATIENCE)
    assert node.told.empty()


async def test_a_node_that_says_nothing_is_lost(sessions, monkeypatch):
    monkeypatch.setattr(session, "SILENCE_SECONDS", 0.01)
    async with sessions.of(ScriptedNode()) as (_, running):
        with pytest.raises(NodeLost, match="has not answered for 0 s"):
            await asyncio.wait_for(running, PATIENCE)


async def test_a_node_that_takes_no_messages_is_lost(sessions, monkeypatch):
    monkeypatch.setattr(session, "SILENCE_SECONDS", 0.01)

    class Deaf(ScriptedNode):
        async def tell(self, letters) -> None:
            await asyncio.Event().wait()

        async def listen(self) -> list:
            await asyncio.sleep(0)
            return []

    async with sessions.of(Deaf()) as (one, running):
        one.send(messages.Share(1))
        with pytest.raises(NodeLost):
            await asyncio.wait_for(running, PATIENCE)


async def test_messages_arrive_in_order_both_ways(sessions):
    node = ScriptedNode()
    async with sessions.of(node) as (one, _):
        one.send(messages.Share(1), messages.Share(2))
        one.send(messages.Share(3))
        assert [await node.told.get() for _ in range(3)] == [messages.Share(number) for number in (1, 2, 3)]
        node.say(messages.GivenBack("1"), messages.GivenBack("2"))
        node.say(messages.GivenBack("3"))
        assert [(await sessions.heard.get()).paths for _ in range(3)] == ["1", "2", "3"]


async def test_calls_of_the_ledger_are_made_in_order_and_answered(sessions):
    node, source = ScriptedNode(), Source("a.mp4", 3, "ab" * 32)
    async with sessions.of(node):
        node.say(Call(0, "settings_id", ({"model": "m"},)))
        ((_, settings),) = await node.answers()
        calls = [
            Call(1, "save_digest", ("a.mp4", "3 0", source)),
            Call(2, "job", (source.sha256, settings)),
            Call(3, "forget", (1,)),
            Call(4, "job", (source.sha256, settings)),
        ]
        node.say(*calls)
        answers = await node.answers(4)
    assert [number for number, _ in answers] == [1, 2, 3, 4]
    assert answers[1][1].id == 1
    assert await sessions.ledger.find_digest("a.mp4", "3 0") == source.sha256  # it is saved when it is answered


async def test_a_content_is_held_by_one_node_at_a_time(sessions):
    first, second = ScriptedNode(), ScriptedNode()
    async with sessions.of(first), sessions.of(second):
        first.say(Call(7, "hold", ("ab",)))
        assert await first.answers() == [(7, None)]
        second.say(Call(1, "hold", ("cd",)), Call(2, "hold", ("ab",)), Call(3, "settings_id", ({},)))
        assert {number for number, _ in await second.answers(2)} == {1, 3}
        assert second.told.empty()
        first.say(Call(8, "release", (7,)))
        assert await second.answers() == [(2, None)]


@pytest.mark.parametrize("holds", [True, False])
async def test_what_a_lost_node_holds_or_waits_for_is_free(sessions, holds):
    lost, other = ScriptedNode(), ScriptedNode()
    async with sessions.of(other):
        async with sessions.of(lost) as (_, running):
            if not holds:
                other.say(Call(1, "hold", ("ab",)))
                await other.answers()
            lost.say(Call(1, "hold", ("ab",)), messages.GivenBack(["asked"]))
            await (lost.answers() if holds else sessions.heard.get())
            lost.say(NodeLost("it died"))
            with pytest.raises(NodeLost):
                await asyncio.wait_for(running, PATIENCE)
        if not holds:
            other.say(Call(2, "release", (1,)))
        other.say(Call(3, "hold", ("ab",)))
        assert await other.answers() == [(3, None)]


async def test_what_a_node_says_after_it_was_given_up_is_not_heard(sessions):
    node = ScriptedNode()
    async with sessions.of(node) as (_, running):
        node.say(NodeLost("it does not answer"))
        with pytest.raises(NodeLost):
            await asyncio.wait_for(running, PATIENCE)
        node.say(Call(0, "save_unreadable", ("a.mp4", ("MediaError", "no"))), messages.GivenBack(["late"]))
        await asyncio.sleep(0)
    assert sessions.heard.empty()


@pytest.mark.parametrize("call", [Call(0, "save_run_state", ({},)), Call(0, "__init__", ()), Call(0, "release", (9,))])
async def test_a_call_that_no_node_may_make_ends_the_session(sessions, call):
    node = ScriptedNode()
    async with sessions.of(node) as (_, running):
        node.say(call)
        with pytest.raises(NodeLost, match=call.method):
            await asyncio.wait_for(running, PATIENCE)
    assert sessions.broken == []


async def test_an_error_of_the_ledger_is_that_of_the_run_and_no_answer(sessions):
    full = OutputError("ledger.sqlite: the disk is full")
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(full)
    sessions.ledger.reopen = lambda job: failed
    node = ScriptedNode()
    async with sessions.of(node):
        node.say(Call(0, "reopen", (1,)), Call(1, "settings_id", ({},)))
        assert [number for number, _ in await node.answers()] == [1]
    assert sessions.broken == [full]
