"""An http server, archives and TFDS folders to read, and disks that are full."""

import contextlib
import functools
import io
import resource
import signal
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import tensorflow_datasets as tfds

from lra_tasks.storage import OFFLINE


@contextlib.contextmanager
def serve(content):
    """Serves `content` under any path; yields the url and the requested paths."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


def tar_of(files, mode="w:gz"):
    """A tar archive of name -> bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in files.items():
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


def write_tfds(folder, name, features, splits):
    """Prepares a TFDS dataset, "glue/sst2", of split -> examples in a folder."""
    dataset, _, config = name.partition("/")

    class Builder(tfds.core.ShardBasedBuilder, skip_registration=True):
        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features_dict = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=features_dict)

        def _shard_iterators_per_split(self, dl_manager):
            return {
                split: [functools.partial(enumerate, examples)]
                for split, examples in splits.items()
            }

    Builder.name = dataset
    builder_config = None
    if config:
        builder_config = tfds.core.BuilderConfig(name=config, version="1.0.0")
    builder = Builder(
        config=builder_config, data_dir=folder, file_format="array_record"
    )
    # TFDS would ask a bucket for what is known of a published data set.
    builder.info.initialize_from_bucket = lambda: None
    builder.download_and_prepare(download_config=OFFLINE)
    return builder.data_path


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
    """The train, validation and test splits, and further ones."""
    return [task.load(split, data_dir) for split in task.splits]


def hashes(task, data_dir):
    return [split.content_hash for split in load_all(task, data_dir)]


def texts_of(task, split):
    """The decoded text of each row, and its label."""
    rows = zip(split.inputs[:], split.lengths, split.labels, strict=True)
    return [(task.decode(row[:n]), int(label)) for row, n, label in rows]
