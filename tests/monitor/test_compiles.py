"""The compile counter hears each compilation once, and nothing when a program is found compiled."""

import jax
import jax.numpy as jnp

from agentjax.monitor import CompileCounter


def test_a_new_shape_compiles_and_a_known_one_does_not():
    double = jax.jit(lambda x: x * 2)
    inputs = [jnp.ones(3), jnp.ones(5)]
    with CompileCounter() as compiles:
        double(inputs[0])
        first = compiles.count
        double(inputs[0])
        again = compiles.count
        double(inputs[1])
        assert (first, again, compiles.count) == (1, 1, 2)
        assert compiles.seconds > 0
    double(jnp.ones(7))
    assert compiles.count == 2
