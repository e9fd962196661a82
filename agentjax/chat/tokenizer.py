"""Tokenizer: text in, token ids out, and back. Special tokens are ids of their own that no text can produce."""

import difflib
import functools
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAG_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
SPECIAL_TOKENS = CONTROL_TOKENS + TAG_TOKENS

DIGIT_PAIRS = "[0-9]{1,2}"
"""Cuts numbers into pairs of digits, left to right, and leaves all other text whole: constant text, such as a tool's
schema, may then merge across spaces and newlines into a few long tokens."""

_ROLE_LINE = r"\A(?:system|user|assistant)\n"
_PAIRS = tuple((tens, ones) for tens in "0123456789" for ones in "0123456789")


class Tokenizer:
    """Encodes text that nobody vouches for: `encode` gives ordinary ids only, whatever the text spells.

    Attributes:
        specials: Id of each special token, by name.
        special_pattern: Matches the name of any special token, as one regex group.
        vocab_size: Rows an embedding needs: the highest id plus one.
        fingerprint: Identifies the tokenizer by its content.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer):
        """Wraps a `tokenizers` tokenizer.

        Args:
            tokenizer: Its added tokens become the special tokens.

        Raises:
            ValueError: If ordinary text can produce the id of one of `SPECIAL_TOKENS`.
        """
        content = tokenizer.to_str()
        self._all_tokens = tokenizer
        self._text_only = tokenizers.Tokenizer.from_str(json.dumps(json.loads(content) | {"added_tokens": []}))
        self.specials: Mapping[str, int] = {
            added.content: token for token, added in sorted(tokenizer.get_added_tokens_decoder().items())
        }
        self.special_pattern = _any_of(self.specials)
        self.vocab_size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.fingerprint = hashlib.sha256(content.encode()).hexdigest()[:16]
        for name in self.specials.keys() & set(SPECIAL_TOKENS):
            if self.specials[name] in self.encode(name):
                raise ValueError(
                    f"The tokenizer makes special token {name} out of ordinary text; it cannot be trusted."
                )

    def encode(self, text: str) -> list[int]:
        """Ids of a text; the names of special tokens in it are text like any other. A lone surrogate becomes "?"."""
        return self._text_only.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids

    def decode(self, ids: Sequence[int] | np.ndarray, *, skip_special: bool = False) -> str:
        """Text of some ids; bytes that are no UTF-8, such as half a character, become U+FFFD.

        Args:
            ids: Any ids of the vocabulary.
            skip_special: Leave out the control tokens. Tags such as <tool_call> stay: they belong to the text.

        Returns:
            The text, special tokens by name. `decode(encode(text)) == text`.
        """
        return self._all_tokens.decode([int(token) for token in ids], skip_special_tokens=skip_special)

    def special(self, name: str) -> int:
        """Id of a special token.

        Raises:
            ValueError: If the tokenizer has no such token.
        """
        if name not in self.specials:
            near = difflib.get_close_matches(name, self.specials, n=1)
            hint = f" Did you mean {near[0]}?" if near else f" It has: {', '.join(self.specials) or 'none'}."
            raise ValueError(f"The tokenizer has no special token {name!r}.{hint}")
        return self.specials[name]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a `tokenizer.json`; the same tokenizer gives the same bytes."""
        pathlib.Path(path).write_text(self._all_tokens.to_str(pretty=True), encoding="utf-8")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Reads a `tokenizer.json`.

        Raises:
            FileNotFoundError: If there is none at the path.
            ValueError: If the file is not a tokenizer.
        """
        content = pathlib.Path(path).read_text(encoding="utf-8")
        try:
            tokenizer = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # tokenizers raises bare Exception
            raise ValueError(f"{os.fspath(path)} is not a tokenizer.json: {error}") from error
        return cls(tokenizer)


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else re.compile("((?!))")


def train_tokenizer(transcripts: Iterable[str], *, vocab_size: int, pattern: str = DIGIT_PAIRS) -> Tokenizer:
    """Trains a byte-level BPE tokenizer. The same transcripts, in any order, give the same bytes.

    Role lines ("assistant" and its newline) are always tokens of their own, so that a prompt which ends with one can be
    continued. All ten digits are single tokens; so are all hundred pairs of digits if the pattern keeps pairs whole.

    Args:
        transcripts: Chats as `ChatFormat.transcript` writes them; special tokens in them are cut out.
        vocab_size: Most tokens there may be, special tokens included; short transcripts give fewer.
        pattern: Regex; each match becomes a piece of its own, and so does the text between two matches. Tokens never
            cross the border of a piece.

    Returns:
        The tokenizer, special tokens last: 256 bytes, then digit pairs, then merges by how often they occur.

    Raises:
        ValueError: If the vocabulary is too small for bytes, digits and special tokens, or the pattern is no regex.
    """
    pre_tokenizer = _pre_tokenizer(pattern)
    pairs = [pair for pair in _PAIRS if len(pre_tokenizer.pre_tokenize_str("".join(pair))) == 1]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    room = vocab_size - len(alphabet) - len(SPECIAL_TOKENS)
    if room < len(pairs):
        least = vocab_size - room + len(pairs)
        raise ValueError(f"tokenizer.vocab_size must be >= {least} to hold bytes, digits and tags, got {vocab_size}.")
    learned = _learn_merges(transcripts, pre_tokenizer, vocab_size=len(alphabet) + room)
    merges = (pairs + [merge for merge in learned if merge not in pairs])[:room]
    tokens = alphabet + ["".join(merge) for merge in merges]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    return Tokenizer(_assemble(models.BPE(vocab=vocab, merges=merges), pre_tokenizer))


def _pre_tokenizer(pattern: str) -> pre_tokenizers.PreTokenizer:
    try:
        cut = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"tokenizer.pattern {pattern!r} is not a regex: {error}") from error
    role_line = pre_tokenizers.Split(tokenizers.Regex(_ROLE_LINE), "isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([role_line, cut, bytes_only])


def _learn_merges(
    transcripts: Iterable[str], pre_tokenizer: pre_tokenizers.PreTokenizer, *, vocab_size: int
) -> list[tuple[str, str]]:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(_between_specials(transcripts), trainer)
    return [tuple(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]]


def _between_specials(transcripts: Iterable[str]) -> Iterator[str]:
    cut = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    for transcript in transcripts:
        yield from filter(None, cut.split(transcript))


def _assemble(model: models.BPE, pre_tokenizer: pre_tokenizers.PreTokenizer) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    added = functools.partial(tokenizers.AddedToken, normalized=False)
    tokenizer.add_tokens([added(name, special=name in CONTROL_TOKENS) for name in SPECIAL_TOKENS])
    return tokenizer
