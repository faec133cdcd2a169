"""For all tests."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is no fault of the code: what is slow is seen in tests/bench.
settings.register_profile("pdguard", deadline=None)
settings.load_profile("pdguard")
