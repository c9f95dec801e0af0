"""More examples, and other ones each time: FUZZ_EXAMPLES=100000 pytest tests/fuzz."""

import os

import hypothesis

if wanted := os.environ.get("FUZZ_EXAMPLES"):
    hypothesis.settings.register_profile(
        "long",
        deadline=None,
        max_examples=int(wanted),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    hypothesis.settings.load_profile("long")
