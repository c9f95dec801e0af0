"""Google Cloud Storage on this machine, as far as a run in a bucket needs it.

Of https://cloud.google.com/storage/docs/json_api what gcsfs, tensorstore and
google-cloud-storage ask for: to read, write, list, move and delete objects.
"""

import contextlib
import itertools
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

PAGE = 7  # names in one answer to a listing: so few that there are more answers
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
        self.numbers = itertools.count(1)
        self.generations = {}  # a new number with every write
        self.parts = {}  # of uploads that are not yet whole

    def env(self):
        """What leads a command here, without credentials."""
        return {
            "STORAGE_EMULATOR_HOST": self.url,  # gcsfs, google-cloud-storage
            "FSSPEC_GS_TOKEN": "anon",
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any",  # tensorstore
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
            return self._write(name, query, headers, body)
        content = self.objects.pop(name, None)
        if content is None:
            return 404, b"", {}
        if method == "DELETE":
            return 204, b"", {}
        return self._put(unquote(route["target"]), content)

    def _describe(self, name):
        return {
            "name": name,
            "size": str(len(self.objects[name])),
            "generation": str(self.generations[name]),
        }

    def _list(self, delimiter, maxResults, prefix="", pageToken="0"):  # noqa: N803
        found = {}  # names, those of folders once, and whether it is one
        for name in sorted(self.objects):
            if name.startswith(prefix):
                end = delimiter and name.find(delimiter, len(prefix)) + 1
                found[name[:end] if end else name] = bool(end)
        start, stop = int(pageToken), int(pageToken) + min(int(maxResults), PAGE)
        page = list(found.items())[start:stop]
        answer = {
            "kind": "storage#objects",
            "items": [self._describe(name) for name, folder in page if not folder],
            "prefixes": [name for name, folder in page if folder],
            "nextPageToken": str(stop) if stop < len(found) else None,
        }
        return as_json(answer)

    def _read(self, name, query, headers):
        if name not in self.objects:
            return 404, b"", {}
        if query.get("alt") != "media":
            return as_json(self._describe(name))
        content, generation = self.objects[name], str(self.generations[name])
        answer = {"X-Goog-Generation": generation}
        if query.get("ifGenerationNotMatch") == generation:
            return 304, b"", answer
        if "Range" not in headers:
            return 200, content, answer
        first, last = map(int, headers["Range"].removeprefix("bytes=").split("-"))
        part = content[first : last + 1]
        end = first + len(part) - 1
        answer["Content-Range"] = f"bytes {first}-{end}/{len(content)}"
        return 206, part, answer

    def _write(self, name, query, headers, body):
        if query["uploadType"] == "resumable":
            if "upload_id" not in query:
                query = urlencode({**query, "upload_id": next(self.numbers)})
                place = f"{self.url}/upload/storage/v1/b/bucket/o?{query}"
                return 200, b"", {"Location": place}
            body = self.parts.pop(query["upload_id"], b"") + body
            if headers["Content-Range"].endswith("/*"):  # there is more to come
                self.parts[query["upload_id"]] = body
                return 308, b"", {"Range": f"bytes=0-{len(body) - 1}"}
        there = str(self.generations[name] if name in self.objects else 0)
        if query.get("ifGenerationMatch", there) != there:
            return 412, b"", {}
        return self._put(name, body)

    def _put(self, name, content):
        self.objects[name], self.generations[name] = content, next(self.numbers)
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
