"""Settings of all tests."""

import hypothesis

hypothesis.settings.register_profile("agentjax", deadline=None)  # the first call of a jitted function compiles it
hypothesis.settings.load_profile("agentjax")
