"""Tokenizer laws: nothing is lost, nothing is injected, training is deterministic, numbers are cut into pairs."""

import json

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from agentjax.chat import SPECIAL_TOKENS, Tokenizer, train_tokenizer

SCAFFOLD = '<|im_start|>assistant\n<tool_call>\n{"name": "python", "arguments": {"code": "print('
TRANSCRIPTS = [f'{SCAFFOLD}{n}*{n + 7})"}}}}\n</tool_call><|im_end|>\n' for n in range(10, 60)]
TOKENIZER = train_tokenizer(TRANSCRIPTS, vocab_size=512)
SPECIAL_IDS = set(TOKENIZER.specials.values())

texts = st.lists(st.sampled_from(SPECIAL_TOKENS) | st.text(max_size=8), max_size=6).map("".join)


@given(texts)
def test_decoding_gives_the_text_back_and_no_text_makes_a_special_token(text):
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert not SPECIAL_IDS & set(ids)


@given(texts)
def test_cutting_a_text_at_any_token_loses_no_byte(text):
    ids = TOKENIZER.encode(text)
    byte_of = {symbol: byte for byte, symbol in enumerate(_byte_symbols())}
    spelled = (TOKENIZER._all_tokens.id_to_token(token) for token in ids)
    data = [bytes(byte_of[symbol] for symbol in token) for token in spelled]
    for cut in range(len(ids) + 1):
        assert TOKENIZER.decode(ids[:cut]) == b"".join(data[:cut]).decode("utf-8", "replace")


def _byte_symbols() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def test_a_lone_surrogate_becomes_a_question_mark():
    assert TOKENIZER.decode(TOKENIZER.encode("a\ud800b")) == "a?b"


def test_special_tokens_decode_to_their_names_and_only_control_tokens_are_skipped():
    ids = [TOKENIZER.special(name) for name in SPECIAL_TOKENS]
    assert TOKENIZER.decode(ids) == "".join(SPECIAL_TOKENS)
    assert TOKENIZER.decode(ids, skip_special=True) == "".join(SPECIAL_TOKENS[3:])


@pytest.mark.parametrize("transcripts", [TRANSCRIPTS, ["no number in here"] * 3, []])
def test_every_digit_and_pair_of_digits_is_one_token(transcripts):
    tokenizer = train_tokenizer(transcripts, vocab_size=400)
    numbers = [str(digit) for digit in range(10)] + [f"{pair:02}" for pair in range(100)]
    assert [len(tokenizer.encode(number)) for number in numbers] == [1] * 110
    assert [tokenizer.decode([token]) for token in tokenizer.encode("x1234567")] == ["x", "12", "34", "56", "7"]


def test_constant_scaffolding_becomes_one_token():
    assert len(TOKENIZER.encode('\n{"name": "python", "arguments": {"code": "print(')) == 1


def test_a_pattern_isolates_grid_symbols():
    grids = ["PGO__\n_XG√\n"] * 4
    tokenizer = train_tokenizer(grids, vocab_size=400, pattern="[0-9]{1,2}|[PXGO_√]")
    assert [tokenizer.decode([token]) for token in tokenizer.encode("_XG√\n")] == ["_", "X", "G", "√", "\n"]


def test_a_pattern_that_splits_numbers_wastes_no_token_on_pairs():
    tokenizer = train_tokenizer(["ab 12"], vocab_size=300, pattern="[0-9]")
    assert "12" not in tokenizer._all_tokens.get_vocab()


def test_the_same_transcripts_give_the_same_bytes_in_any_order(tmp_path):
    TOKENIZER.save(tmp_path / "first.json")
    train_tokenizer(reversed(TRANSCRIPTS), vocab_size=512).save(tmp_path / "second.json")
    assert (tmp_path / "first.json").read_bytes() == (tmp_path / "second.json").read_bytes()


def test_a_loaded_tokenizer_is_the_saved_one(tmp_path):
    path = tmp_path / "tokenizer.json"
    TOKENIZER.save(path)
    loaded = Tokenizer.load(path)
    assert (loaded.fingerprint, loaded.specials) == (TOKENIZER.fingerprint, TOKENIZER.specials)
    assert loaded.encode(SCAFFOLD) == TOKENIZER.encode(SCAFFOLD)
    assert loaded.vocab_size == TOKENIZER.vocab_size == max(loaded.specials.values()) + 1
    assert train_tokenizer(["another text"], vocab_size=512).fingerprint != TOKENIZER.fingerprint


def test_a_tokenizer_whose_merges_make_a_special_token_is_refused():
    content = json.loads(TOKENIZER._all_tokens.to_str())
    ids = content["model"]["vocab"]
    ids["<|"], ids["<|im_end|>"] = 600, TOKENIZER.special("<|im_end|>")
    content["model"]["ignore_merges"] = True
    with pytest.raises(ValueError, match="special token <|im_end|> out of ordinary text"):
        Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(content)))


def test_errors_name_what_is_wrong(tmp_path):
    with pytest.raises(ValueError, match=r"tokenizer.vocab_size must be >= 365"):
        train_tokenizer(TRANSCRIPTS, vocab_size=300)
    with pytest.raises(ValueError, match=r"tokenizer.pattern '\(' is not a regex"):
        train_tokenizer(TRANSCRIPTS, vocab_size=512, pattern="(")
    with pytest.raises(ValueError, match=r"no special token '<\|im_endl\|>'. Did you mean <\|im_end\|>"):
        TOKENIZER.special("<|im_endl|>")
    with pytest.raises(FileNotFoundError):
        Tokenizer.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match=r"bad.json is not a tokenizer.json"):
        Tokenizer.load(tmp_path / "bad.json")
