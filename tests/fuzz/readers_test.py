"""Any bytes for what is downloaded: data, or one error that names what is wrong."""

import contextlib
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lra_tasks import archives, image, listops, pathfinder, retrieval
from lra_tasks.listops_language import VOCABULARY
from lra_tasks.split import DataError
from tests.archive_server import tar_of
from tests.cifar_batches import changed

pytestmark = pytest.mark.slow
words = st.sampled_from([*VOCABULARY, "(", ")", "10", "[FIRST", "\t", "\x00"])
sources = st.lists(words, max_size=30).map(" ".join)


@st.composite
def mutated(draw, originals: list[bytes]) -> bytes:
    """A good file with a few bytes replaced, put in or left out."""
    content = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(content)))
        content[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=4))
    return bytes(content)


RELEASED = [b"Source\tTarget\n( ( [MAX 3 ) 4 ) ]\t4\n[MIN 1 2 ]\t1\n"]
AAN = [b"1.0\tP1\tP2\tone text\tanother\n0\tP1\tP3\tone text\t\xff\xfe\r\n"]


@given(mutated(RELEASED) | st.binary() | sources.map(str.encode))
def test_any_released_listops_is_read_or_one_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "basic_train.tsv"
    path.write_bytes(content)
    with contextlib.suppress(DataError):
        split = listops.read_released(path, 17)
        assert split.lengths.min() > 0
        assert split.inputs.max() < len(VOCABULARY)


@given(mutated(AAN) | st.binary())
def test_any_pairs_are_read_or_one_error(content):
    with contextlib.suppress(DataError):
        pairs = retrieval._read_file(io.BytesIO(content), "x.tsv", "train", 5)
        assert all(0 < len(document) <= 5 for document in pairs.documents)
        assert len(pairs.rows) == len(pairs.labels)
        assert {row for pair in pairs.rows for row in pair} == set(
            range(len(pairs.documents))
        )


PICKLES = [  # hardly any pictures: what is mutated is what numpy reads
    changed(labels=[], data=np.zeros((0, 3072), np.uint8)),
    changed(labels=[1], data=np.zeros((1, 3072), np.uint8, order="F")),
    changed(labels=[1], data=None),
]


@given(mutated(PICKLES) | st.binary())
def test_any_pickle_is_pictures_or_one_error(content):
    said = ""
    try:
        rgb, labels = image.parse_pickle(content)
        assert (rgb.dtype, rgb.shape[1:]) == (np.uint8, (3072,))
        assert labels.ndim == 1
    except DataError as error:
        said = str(error)
    assert len(said) < 150
    assert said == "" or said.isprintable()


TARS = [
    tar_of({"toy/a/1.txt": b"one" * 400, "toy/a/2.txt": b"two"}, mode)
    for mode in ("w", "w:gz", "w:xz", "w:bz2")
]


@given(mutated(TARS) | st.binary())
def test_any_archive_is_members_or_one_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "toy.tar"
    path.write_bytes(content)
    with (
        contextlib.suppress(DataError),
        archives.open_members(path, r"a/(\d)\.txt$") as members,
    ):
        for _, file in members:
            archives.read_whole(file, "it", 2000)


LISTED = [b"imgs/0 sample_0.png 0 1 x\nimgs/0 sample_1.png 1 0 x\n"]


@given(
    mutated(LISTED) | st.binary(),
    mutated([b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(30)]) | st.binary(),
)
def test_any_released_pictures_are_read_or_one_error(
    tmp_path_factory, metadata, picture
):
    folder = tmp_path_factory.getbasetemp() / "curv"
    for place in ("metadata", "imgs/0"):
        (folder / place).mkdir(parents=True, exist_ok=True)
    (folder / "metadata" / "0.npy").write_bytes(metadata)
    for name in ("sample_0.png", "sample_1.png"):
        (folder / "imgs" / "0" / name).write_bytes(picture)
    with contextlib.suppress(DataError):
        pathfinder.read_released(folder, 32)
