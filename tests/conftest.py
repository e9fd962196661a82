"""Settings of all tests: CPU, cut into eight devices so that meshes can be tried anywhere."""

import os

import hypothesis

# JAX reads the first when it is imported and the second when it first asks for devices; both are later than this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
flags = os.environ.get("XLA_FLAGS", "")
if "xla_force_host_platform_device_count" not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=8".strip()

hypothesis.settings.register_profile("agentjax", deadline=None)  # the first call of a jitted function compiles it
hypothesis.settings.load_profile("agentjax")
