"""Settings of all tests: CPU, cut into eight devices so that meshes can be tried anywhere."""

import os

import hypothesis

# JAX reads both when it first asks for devices, which is later than this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

hypothesis.settings.register_profile("agentjax", deadline=None)  # the first call of a jitted function compiles it
hypothesis.settings.load_profile("agentjax")
