"""Pieces of a chat: texts with their authors in, token segments out. Only the template's text holds special tokens."""

import itertools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from agentjax.chat.tokenizer import Tokenizer
from agentjax.trajectory import Segment, Source


class Piece(NamedTuple):
    """A text and who wrote it. The name of a special token means that token in `TEMPLATE` text, and text elsewhere."""

    source: Source
    text: str


def encode_pieces(pieces: Iterable[Piece], tokenizer: Tokenizer) -> tuple[Segment, ...]:
    """Encodes consecutive pieces.

    Text between two special tokens is encoded in one go, as a render of the whole conversation would be: tokens may
    cross from template to content. Such a stretch counts as template only if nobody else wrote any of it.

    Returns:
        Segments in order; neighbours differ in source.
    """
    segments = []
    for source, run in itertools.groupby(_stretches(pieces, tokenizer), key=lambda stretch: stretch[0]):
        ids = [token for _, stretch in run for token in stretch]
        segments.append(Segment(source, np.asarray(ids, np.int32)))
    return tuple(segments)


def _stretches(pieces: Iterable[Piece], tokenizer: Tokenizer) -> Iterator[tuple[Source, list[int]]]:
    atoms = itertools.chain.from_iterable(_cut_at_specials(piece, tokenizer) for piece in pieces if piece.text)
    for is_text, run in itertools.groupby(atoms, key=lambda atom: isinstance(atom, Piece)):
        if not is_text:
            yield Source.TEMPLATE, [atom for atom in run if isinstance(atom, int)]
            continue
        texts = [atom for atom in run if isinstance(atom, Piece)]
        authors = {text.source for text in texts} - {Source.TEMPLATE}
        yield (authors.pop() if authors else Source.TEMPLATE), tokenizer.encode("".join(text.text for text in texts))


def _cut_at_specials(piece: Piece, tokenizer: Tokenizer) -> list[Piece | int]:
    if piece.source is not Source.TEMPLATE:
        return [piece]
    parts = tokenizer.special_pattern.split(piece.text)  # names of special tokens stand at the odd places
    return [
        tokenizer.special(part) if place % 2 else Piece(Source.TEMPLATE, part)
        for place, part in enumerate(parts)
        if part
    ]
