import os

from hypothesis import HealthCheck, settings

# The same examples on every run of CI, so that a red run can be repeated; a fresh search when one asks for it.
settings.register_profile("repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", parent=settings.get_profile("repeatable"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
