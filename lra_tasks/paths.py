"""Local folders, and the one that holds all data unless a user names another."""

import os
from pathlib import Path

from lra_tasks.errors import DataError
from nystromformer.validation import is_in_bucket

PathLike = str | os.PathLike[str]


def local_path(path: PathLike) -> Path:
    """Makes the path of a local folder absolute.

    Raises:
      DataError: for the url of a bucket, such as gs://data.
    """
    if is_in_bucket(path):
        raise DataError(f"{path} is not a local or mounted folder; name one")
    return Path(path).expanduser().absolute()


def get_root(data_dir: PathLike | None = None) -> Path:
    """Returns the folder of all data: `data_dir`, $LRA_DATA_DIR or the usual cache.

    Raises:
      DataError: if it is the url of a bucket.
    """
    folder = data_dir or os.environ.get("LRA_DATA_DIR") or "~/.cache/lra_tasks"
    return local_path(folder)
