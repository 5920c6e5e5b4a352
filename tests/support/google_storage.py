"""A strict server of Google Cloud Storage's JSON API, for want of a real one that runs on every machine.

It knows only the requests that https://cloud.google.com/storage/docs/json_api documents and reelscribe needs: whatever
else comes is an error of its own, as are keys that are not encoded, contents that do not have their checksum, and
requests without the token that the token server has given for a signed assertion.
"""

import base64
import json
import re
import threading
from email.parser import BytesParser
from itertools import count
from urllib.parse import parse_qs, unquote

import google_crc32c
import jwt
from werkzeug.wrappers import Request, Response

TOKEN = "ya29.secret-of-the-store"
PUBLIC = "public"
"""The bucket that everybody may read."""

PAGE = 20
"""Number of objects on a page of a list. A store may put fewer on it than it is asked for."""

_FIELDS = ["name", "size", "generation", "updated"]
_ALWAYS = {"prettyPrint", "alt", "projection", "fields"}


class Refused(Exception):
    """An answer that is no success, as its status."""


class GoogleStorage:
    """An application of WSGI."""

    def __init__(self, public_key) -> None:
        self._public_key, self._lock = public_key, threading.Lock()
        self._generations = count(1_700_000_000_000_000)
        self._uploads: dict[str, tuple[str, str, dict, bytes]] = {}
        self.buckets: dict[str, dict[str, tuple[int, bytes]]] = {}
        """The generation and the content of each object, by its key, in each bucket."""

    def put(self, bucket: str, key: str, content: bytes) -> int:
        """Put an object, and return its generation."""
        generation = next(self._generations)
        self.buckets[bucket][key] = (generation, content)
        return generation

    def tokens(self, environ, start_response):
        """Give a token, as an application of WSGI."""
        form = parse_qs(Request(environ).get_data(as_text=True))
        options = {"verify_aud": False}
        claims = jwt.decode(form["assertion"][0], self._public_key, algorithms=["RS256"], options=options)
        assert "https://www.googleapis.com/auth/devstorage.read_write" in claims["scope"].split()
        answer = _json({"access_token": TOKEN, "expires_in": 3599, "token_type": "Bearer"})
        return answer(environ, start_response)

    def __call__(self, environ, start_response):
        request = Request(environ)
        with self._lock:
            try:
                answer = self._answer(request, environ["REQUEST_URI"].partition("?")[0])
            except Refused as refused:
                status = refused.args[0]
                answer = Response(_error(status), status, content_type="application/json")
        return answer(environ, start_response)

    def _answer(self, request: Request, path: str) -> Response:
        found = re.fullmatch(r"(/upload|/download)?/storage/v1/b/([^/]+)/o(?:/([^/]+))?", path)
        if not found:
            raise Refused(404)
        service, bucket, key = found[1] or "", found[2], unquote(found[3] or "")
        self._check_login(request, bucket)
        if bucket not in self.buckets:
            raise Refused(404)
        match service, request.method, bool(key):
            case "", "GET", False:
                return self._list(bucket, _arguments(request, "prefix", "pageToken", "maxResults"))
            case "", "GET", True:
                _arguments(request)
                return self._described(bucket, key)
            case "", "DELETE", True:
                _arguments(request)
                self._find(bucket, key)
                del self.buckets[bucket][key]
                return Response(status=204)
            case "/download", "GET", True:
                return self._content(request, bucket, key)
            case "/upload", "POST", False:
                return self._upload(request, bucket)
            case "/upload", "PUT", False:
                return self._go_on(request)
        raise Refused(405)

    def _check_login(self, request: Request, bucket: str) -> None:
        token = request.headers.get("Authorization")
        if token is None and (bucket != PUBLIC or request.method != "GET"):
            raise Refused(401)
        if token not in (None, f"Bearer {TOKEN}"):
            raise Refused(401)

    def _find(self, bucket: str, key: str) -> tuple[int, bytes]:
        if key not in self.buckets[bucket]:
            raise Refused(404)
        return self.buckets[bucket][key]

    def _check(self, bucket: str, key: str, wanted: str | None) -> None:
        """Check the condition `ifGenerationMatch`; 0 stands for no object."""
        there = self.buckets[bucket].get(key, (0, b""))[0]
        if wanted is not None and int(wanted) != there:
            raise Refused(412)

    def _resource(self, bucket: str, key: str) -> dict:
        generation, content = self.buckets[bucket][key]
        return {
            "kind": "storage#object",
            "bucket": bucket,
            "name": key,
            "size": str(len(content)),
            "generation": str(generation),
            "metageneration": "1",
            "updated": "2026-01-02T03:04:05.678Z",
            "crc32c": _crc32c(content),
        }

    def _described(self, bucket: str, key: str) -> Response:
        self._find(bucket, key)
        return _json(self._resource(bucket, key))

    def _list(self, bucket: str, arguments: dict) -> Response:
        if arguments["fields"] != f"items({','.join(_FIELDS)}),nextPageToken":
            raise Refused(400)
        after = base64.urlsafe_b64decode(arguments.get("pageToken", "")).decode()
        keys = [key for key in self.buckets[bucket] if key.startswith(arguments.get("prefix", "")) and key > after]
        keys.sort(key=lambda key: key.encode("utf-8", "surrogatepass"))
        page = {"items": [{name: self._resource(bucket, key)[name] for name in _FIELDS} for key in keys[:PAGE]]}
        if keys[PAGE:]:
            page["nextPageToken"] = base64.urlsafe_b64encode(keys[PAGE - 1].encode()).decode()
        return _json(page if keys else {})

    def _content(self, request: Request, bucket: str, key: str) -> Response:
        arguments = _arguments(request, "ifGenerationMatch")
        if arguments.get("alt") != "media":
            raise Refused(400)
        generation, content = self._find(bucket, key)
        self._check(bucket, key, arguments.get("ifGenerationMatch"))
        first, last = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers["Range"]).groups()
        part = content[int(first) : int(last) + 1]
        if not part:
            raise Refused(416)
        headers = {
            "Content-Range": f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}",
            "X-Goog-Generation": str(generation),
            "X-Goog-Hash": f"crc32c={_crc32c(content)}",
        }
        return Response(part, 206, headers, content_type="application/octet-stream")

    def _upload(self, request: Request, bucket: str) -> Response:
        arguments = _arguments(request, "uploadType", "ifGenerationMatch", "name")
        wanted = arguments.get("ifGenerationMatch")
        if arguments["uploadType"] == "multipart":
            head = f"Content-Type: {request.headers['Content-Type']}\r\n\r\n".encode()
            described, content = BytesParser().parsebytes(head + request.get_data()).get_payload()
            resource = json.loads(described.get_payload())
            return self._store(bucket, resource, wanted, content.get_payload(decode=True))
        if arguments["uploadType"] != "resumable":
            raise Refused(400)
        resource = json.loads(request.get_data())
        self._check(bucket, resource["name"], wanted)
        number = f"upload-{len(self._uploads)}"
        self._uploads[number] = (bucket, wanted, resource, b"")
        location = f"{request.base_url}?uploadType=resumable&upload_id={number}"
        return Response(status=200, headers={"Location": location})

    def _go_on(self, request: Request) -> Response:
        bucket, wanted, resource, sent = self._uploads[request.args["upload_id"]]
        first, total = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", request.headers["Content-Range"]).groups()
        if int(first) != len(sent):
            raise Refused(400)
        sent += request.get_data()
        if total == str(len(sent)):
            return self._store(bucket, resource, wanted, sent)
        self._uploads[request.args["upload_id"]] = (bucket, wanted, resource, sent)
        return Response(status=308, headers={"Range": f"bytes=0-{len(sent) - 1}"})

    def _store(self, bucket: str, resource: dict, wanted: str | None, content: bytes) -> Response:
        if resource.get("crc32c", _crc32c(content)) != _crc32c(content):
            raise Refused(400)
        self._check(bucket, resource["name"], wanted)
        self.put(bucket, resource["name"], content)
        return self._described(bucket, resource["name"])


def _arguments(request: Request, *known: str) -> dict[str, str]:
    if not {*request.args} <= {*known, *_ALWAYS}:
        raise Refused(400)
    return request.args.to_dict()


def _json(value) -> Response:
    return Response(json.dumps(value), content_type="application/json; charset=UTF-8")


def _error(status: int) -> str:
    """Return the body of an error, with a secret in the message, which nobody may see."""
    return json.dumps({"error": {"code": status, "message": "secret-of-the-store", "errors": []}})


def _crc32c(content: bytes) -> str:
    return base64.b64encode(google_crc32c.Checksum(content).digest()).decode()
