"""Google Cloud Storage on this machine, as far as a run in a bucket needs it.

Of https://cloud.google.com/storage/docs/json_api what gcsfs asks for: to read, write,
list, move and delete objects.
"""

import contextlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

ROUTE = re.compile(
    r"(?:/upload|/download)?/storage/v1/b/bucket"
    r"(?P<objects>/o(?:/(?P<name>[^/]+)(?:/moveTo/o/(?P<target>[^/]+))?)?)?"
)


def as_json(value, status=200):
    return status, json.dumps(value).encode(), {}


class Bucket:
    """gs://bucket.

    objects: from names to bytes. refuses: a pattern of what it answers with `status`,
    from the start of "METHOD NAME", or "METHOD PATH" where there is no name.
    """

    def __init__(self, url):
        self.url = url
        self.objects = {}
        self.refuses, self.status = "(?!)", 403  # nothing
        self.lock = threading.Lock()

    def env(self):
        """What leads a command here, without credentials."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "FSSPEC_GS_TOKEN": "anon",
            # Else gcsfs asks over gRPC whether the bucket is of a newer kind.
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",
        }

    def answer(self, method, url, headers, body):
        """Status, content and headers."""
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        route = ROUTE.fullmatch(parts.path)
        if not route:
            return 404, b"", {}
        name = unquote(route["name"] or query.get("name", ""))
        if re.match(self.refuses, f"{method} {name or parts.path}"):
            return as_json({"error": {"message": "no permission"}}, self.status)
        if not route["objects"]:
            return as_json({"name": "bucket"})
        if not name:
            return self._list(**query)
        if method == "GET":
            return self._read(name, query, headers)
        if route["name"] is None:
            if query["uploadType"] == "resumable" and "upload_id" not in query:
                query = urlencode({**query, "upload_id": 1})  # then all comes in a part
                place = f"{self.url}/upload/storage/v1/b/bucket/o?{query}"
                return 200, b"", {"Location": place}
            return self._put(name, body)
        content = self.objects.pop(name, None)
        if content is None:
            return 404, b"", {}
        if method == "DELETE":
            return 204, b"", {}
        return self._put(unquote(route["target"]), content)

    def _describe(self, name):
        return {"name": name, "size": str(len(self.objects[name]))}

    def _list(self, prefix="", delimiter="", **_):
        found = {}  # names, those of folders once, and whether it is one
        for name in sorted(self.objects):
            if name.startswith(prefix):
                end = delimiter and name.find(delimiter, len(prefix)) + 1
                found[name[:end] if end else name] = bool(end)
        answer = {
            "kind": "storage#objects",
            "items": [
                self._describe(name) for name, folder in found.items() if not folder
            ],
            "prefixes": [name for name, folder in found.items() if folder],
        }
        return as_json(answer)

    def _read(self, name, query, headers):
        if name not in self.objects:
            return 404, b"", {}
        if query.get("alt") != "media":
            return as_json(self._describe(name))
        content = self.objects[name]
        if "Range" not in headers:
            return 200, content, {}
        first, last = map(int, headers["Range"].removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        place = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
        return 206, part, {"Content-Range": place}

    def _put(self, name, content):
        self.objects[name] = content
        return as_json(self._describe(name))


@contextlib.contextmanager
def serve():
    """Yields an empty Bucket that can be reached at its url."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits for 40 ms

        def handle(self):
            with contextlib.suppress(ConnectionError):  # of a command that is killed
                super().handle()

        def do_GET(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with bucket.lock:
                status, content, headers = bucket.answer(
                    self.command, self.path, self.headers, body
                )
            self.send_response(status)
            for key, value in {**headers, "Content-Length": len(content)}.items():
                self.send_header(key, str(value))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_DELETE = do_GET  # noqa: N815 - the server's names

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        bucket = Bucket(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield bucket
        finally:
            server.shutdown()
            thread.join()
