"""Models: token ids in, logits out: one decoder for all families, and how it attends."""
