"""AgentJAX: agentic RL for language models, native to JAX and TPU pods."""
