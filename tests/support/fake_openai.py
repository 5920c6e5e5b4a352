"""A server with OpenAI's API that answers as a test says."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


def chat(text="a cat", ended="stop", **fields):
    """The answer of vLLM 0.32.0, as far as it is read."""
    logprobs = {"content": [{"token": "a", "logprob": -0.5}, {"token": "", "logprob": 0.0}]}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": ended}
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    return {"model": "m", "choices": [choice | {"logprobs": logprobs}], "usage": usage, **fields}


class FakeVLLM:
    """Lists one model, and answers every request as a test says."""

    def __init__(self):
        self.answers = []
        self.asked = []
        self.keys = set()
        self.listed = [{"id": "m", "root": "a/Qwen3-VL-2B", "owned_by": "vllm"}]

    def __call__(self):
        app = web.Application(client_max_size=2**24)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/version", self._version)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/{path:.*}", self._answer)
        return app

    async def _models(self, request):
        self.keys.add(request.headers.get("Authorization"))
        return web.json_response({"data": self.listed})

    async def _version(self, _):
        return web.json_response({"version": "0.32.0"})

    async def _metrics(self, _):
        return web.Response(text='vllm:num_requests_waiting{engine="0",model_name="m"} 3.0\n')

    async def _answer(self, request):
        is_form = request.content_type == "multipart/form-data"
        self.asked.append(dict(await request.post()) if is_form else await request.json())
        answer = self.answers.pop(0) if self.answers else chat()
        status, headers = 200, {}
        if isinstance(answer, tuple):
            status, answer, *rest = answer
            headers = rest[0] if rest else {}
        return web.json_response(answer, status=status, headers=headers)


@asynccontextmanager
async def serving() -> AsyncIterator[FakeVLLM]:
    """Run a fake on a free port; its `url` is for `--server`."""
    fake = FakeVLLM()
    runner = web.AppRunner(fake())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"openai+http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/v1"
    try:
        yield fake
    finally:
        await runner.cleanup()
