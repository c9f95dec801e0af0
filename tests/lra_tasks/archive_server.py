"""A server of HTTP, archives, files and TFDS folders to read."""

import contextlib
import functools
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pytest
import tensorflow_datasets as tfds

from lra_tasks.storage import OFFLINE


@contextlib.contextmanager
def serve(
    content: bytes, protocol: str = "HTTP/1.0"
) -> Iterator[tuple[str, list[str]]]:
    """Serves the content under any path, and yields its URL and the requested paths."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = protocol

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
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("no_proxy", "127.0.0.1")
                yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


def tar_of(files: dict[str, bytes], mode: Literal["w", "w:gz"] = "w:gz") -> bytes:
    """A tar archive of name -> bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def write(folder: Path, files: dict[str, bytes | None]) -> None:
    """Writes name -> bytes below a folder. A file of None is left out."""
    for name, content in files.items():
        if content is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def write_tfds(
    folder: Path,
    name: str,
    features: dict[str, Any],
    splits: dict[str, list[dict[str, Any]]],
) -> Path:
    """Prepares a small TFDS dataset.

    Args:
      folder: the TFDS folder.
      name: of the dataset and its config, as "glue/sst2".
      features: the TFDS features of an example.
      splits: the examples of each split.

    Returns:
      The folder of the prepared files.
    """
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
    # TFDS would ask a bucket what it knows of the published dataset of this name.
    builder.info.initialize_from_bucket = lambda: None
    builder.download_and_prepare(download_config=OFFLINE)
    return Path(builder.data_path)
