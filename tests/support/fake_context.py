"""A stand-in for the context that TorchServe passes to a handler, and a reader of what the handler answers."""

import json
from collections.abc import Sequence
from typing import Any


def parsed(responses: Sequence[str] | None) -> list[Any]:
    """The values of the responses of a call, which are JSON."""
    return [json.loads(response) for response in responses or ()]


class NoMetrics:
    """The metrics of a TorchServe whose metrics_config declares none of the handlers'."""

    def cache_keys(self) -> list[str]:
        return []


class FakeContext:
    def __init__(self, config: dict[str, Any] | None = None, headers: list[dict[str, str]] | None = None) -> None:
        self.model_yaml_config = {"handler": config} if config is not None else {}
        self.system_properties: dict[str, Any] = {"gpu_id": None, "model_dir": ".", "batch_size": 8}
        self.manifest = {"model": {"modelName": "captioner", "modelVersion": "1.0"}}
        self.metrics: Any = NoMetrics()
        self.headers = headers or []
        self.statuses: dict[int, int] = {}
        self.content_types: dict[int, str] = {}
        self.response_headers: dict[int, dict[str, str]] = {}

    def get_all_request_header(self, idx: int) -> dict[str, str]:
        return self.headers[idx] if idx < len(self.headers) else {}

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.content_types[idx] = value

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        self.response_headers.setdefault(idx, {})[key] = value

    def set_response_status(self, code: int, phrase: str, idx: int) -> None:
        self.statuses[idx] = code
