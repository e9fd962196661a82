"""Observations: messages and a limit of tokens in, messages that keep to it and say where they were cut out."""

import dataclasses
from collections.abc import Callable, Sequence

from agentjax.chat.format import message_text
from agentjax.envs.api import Message


def cut_observation(messages: Sequence[Message], limit: int, count: Callable[[str], int]) -> tuple[Message, ...]:
    """Keep the texts of an observation, together, within a limit.

    Short messages stay whole, longer ones share what is left equally. What was cut ends in "… [cut: N of M tokens]",
    N tokens of M missing; the notice counts. Where it does not fit, "… [cut]" or "…" says so.

    Args:
        messages: The observation of one step.
        limit: Tokens of all texts together; the chat format's own tokens do not count.
        count: Number of tokens of a text.

    Returns:
        As many messages, in the same order.
    """
    texts = [message_text(message.content) for message in messages]
    shares = _shares([count(text) for text in texts], limit)
    return tuple(
        dataclasses.replace(message, content=cut_text(text, share, count))
        for message, text, share in zip(messages, texts, shares, strict=True)
    )


def cut_text(text: str, limit: int, count: Callable[[str], int]) -> str:
    """The longest beginning of a text that fits into `limit` tokens together with a notice of the cut."""
    total = count(text)
    if total <= limit:
        return text
    longest = _notice(total, total)
    if 2 * count(longest) <= limit:
        kept = _longest_prefix(text, lambda prefix: count(prefix + longest) <= limit)
        return kept + _notice(total - count(kept), total)
    short = "… [cut]" if 2 * count("… [cut]") <= limit else "…"
    return _longest_prefix(text, lambda prefix: count(prefix + short) <= limit) + short


def _notice(missing: int, total: int) -> str:
    return f"… [cut: {missing} of {total} tokens]"


def _longest_prefix(text: str, fits: Callable[[str], bool]) -> str:
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(text[:middle]) else (low, middle - 1)
    return text[:low]


def _shares(lengths: Sequence[int], limit: int) -> list[int]:
    """Split a limit so that short messages get all they need and the others the same."""
    shares, left = [0] * len(lengths), limit
    order = sorted(range(len(lengths)), key=lambda index: lengths[index])
    for rank, index in enumerate(order):
        shares[index] = min(lengths[index], left // (len(lengths) - rank))
        left -= shares[index]
    return shares
