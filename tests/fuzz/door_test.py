"""Any config: one that runs, or one error that a person can mend."""

import contextlib
import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import listops, retrieval
from lra_tasks.task import TASKS
from nystromformer.attention import ATTENTIONS
from nystromformer.config import Config, ConfigError
from nystromformer.experiments.workdir import read_config, read_result
from tests.fuzz.json_values import values

MAPPINGS = [
    module.get_config(arg).to_dict()
    for module in (listops, retrieval)
    for arg in ("nystrom", "softmax,quick")
]
KEYS = sorted({key for m in MAPPINGS for group in m.values() for key in group})
odd_keys = st.sampled_from([*KEYS, "options", ""]) | st.text(max_size=5) | st.integers()
odd_values = values | st.sampled_from([*TASKS, *ATTENTIONS, "float32", b"x", {1}])


@given(
    st.sampled_from(MAPPINGS),
    st.lists(st.tuples(st.sampled_from(sorted(MAPPINGS[0])), odd_keys, odd_values)),
    st.dictionaries(st.text() | st.integers() | st.none(), odd_values, max_size=1),
)
def test_a_changed_mapping_is_a_config_or_one_error(mapping, changes, more):
    candidate = {**copy.deepcopy(mapping), **more}
    for group, key, value in changes:
        if isinstance(candidate.get(group), dict):
            candidate[group][key] = value
    with contextlib.suppress(ConfigError):
        assert Config.from_mapping(candidate).to_mapping().keys() == mapping.keys()


@pytest.mark.parametrize("read", [read_config, read_result])
@given(data=st.binary(max_size=50) | values.map(lambda x: json.dumps(x).encode()))
def test_any_bytes_for_a_file_of_a_run_are_one_error(tmp_path_factory, read, data):
    workdir = tmp_path_factory.getbasetemp()
    for name in ("config.json", "result.json"):
        (workdir / name).write_bytes(data)
    with pytest.raises(ConfigError):
        read(workdir)
