"""What libraries raise for a dataset's files: damaged, missing, or of another dataset.

Other errors, such as a missing library or permission, are no reason to delete data.
"""

from google.protobuf import json_format
from tensorflow_datasets.core.dataset_info import DatasetInfoFileError

DAMAGE = (
    RuntimeError,  # that of array_record
    ValueError,
    KeyError,
    FileNotFoundError,
    json_format.ParseError,
    DatasetInfoFileError,
)
