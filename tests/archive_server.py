"""An http server that can also break off, and archives and folders to read."""

import contextlib
import hashlib
import io
import resource
import signal
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from lra_tasks.archives import Archive
from lra_tasks.base import SPLITS


@contextlib.contextmanager
def serve(content, break_off_after=None, ranges=True):
    """Serves `content` under any path; yields the url and the Range headers it saw."""
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers["Range"])
            start = int(seen[-1].removeprefix("bytes=").removesuffix("-"))
            start = start if ranges else 0
            self.send_response(206 if ranges else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:break_off_after])

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


def archive_at(url, content):
    md5 = hashlib.md5(content).hexdigest()
    return Archive(f"{url}/toy.tar.gz", num_bytes=len(content), md5=md5)


def tar_of(files, mode="w:gz"):
    """A tar archive of name -> bytes, or of TarInfo objects for what is no file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
                continue
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def write(folder, files):
    """Writes name -> bytes below a folder; those of None are left out."""
    for name, content in files.items():
        if content is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


@contextlib.contextmanager
def full_disk(num_bytes):
    """No file of this process may grow beyond a limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def load_all(task, data_dir):
    """The train, validation and test splits."""
    return [task.load(split, data_dir) for split in SPLITS]


def hashes(task, data_dir):
    return [split.content_hash for split in load_all(task, data_dir)]
