"""The errors that libraries raise for damaged, missing or foreign dataset files.

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
