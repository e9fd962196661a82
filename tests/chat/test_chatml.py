"""ChatML-Hermes against an independent Jinja template, and the laws of rendering and parsing."""

import itertools
import json

import jinja2
import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from agentjax.chat import SPECIAL_TOKENS, ChatMLHermes, ChatMLHermesShort, get_chat_format, train_tokenizer
from agentjax.envs.api import Message, ToolCall, ToolSpec
from agentjax.trajectory import Source

TEMPLATE = """
{%- set rest = messages %}
{%- if tools %}<|im_start|>system
{% if messages and messages[0].role == 'system' %}{{ messages[0].content }}

{% set rest = messages[1:] %}{% endif %}# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{% for tool in tools %}{{ tool }}
{% endfor %}</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call><|im_end|>
{% endif %}
{%- for message in rest %}
{%- if message.role == 'tool' %}
{%- if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ message.role }}
{% if message.reasoning is not none %}<think>
{{ message.reasoning }}
</think>

{% endif %}
{{- message.content }}
{%- for call in message.tool_calls %}
{%- if message.content or not loop.first %}
{% endif %}<tool_call>
{"name": "{{ call.name }}", "arguments": {{ call.arguments }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}<|im_start|>assistant
"""
RENDER = jinja2.Environment(keep_trailing_newline=True).from_string(TEMPLATE).render

TOOLS = (
    ToolSpec("python", "Runs Python.", {"type": "object", "properties": {"code": {"type": "string"}}}),
    ToolSpec("søk", "Finds <things>.", {"type": "object", "properties": {}}),
)
CALL = ToolCall("0", "python", '{"code": "print(12*345)"}')
CHAT = (
    Message("system", "Be exact."),
    Message("user", "What is 12*345?"),
    Message("assistant", "", tool_calls=(CALL,)),
    Message("tool", "4140\n", tool_call_id="0"),
    Message("assistant", "4140"),
)
TOKENIZER = train_tokenizer([ChatMLHermes.transcript(CHAT, TOOLS)] * 3, vocab_size=700)
FORMAT = ChatMLHermes(TOKENIZER)
SPECIAL_IDS = np.array(sorted(TOKENIZER.specials.values()))
END = TOKENIZER.special("<|im_end|>")


@pytest.fixture(scope="module")
def whole_text_ids(tmp_path_factory):
    """Encodes a text with added tokens on, as inference engines do with a rendered template."""
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    TOKENIZER.save(path)
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def _schemas(tools):
    functions = ({"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools)
    return [json.dumps({"type": "function", "function": f}, ensure_ascii=False) for f in functions]


words = st.text(alphabet=st.sampled_from('ab 0123456789\n\t{}"<>:é🧪'), max_size=12)
injected = st.lists(st.sampled_from(SPECIAL_TOKENS) | words, max_size=4).map("".join)
objects = st.dictionaries(words, st.integers() | words | st.lists(words, max_size=2), max_size=3)
arguments = st.builds(json.dumps, objects, indent=st.none() | st.just(2), ensure_ascii=st.booleans())
calls = st.builds(ToolCall, st.just("0"), st.sampled_from(["python", "søk", 'quo"te']), arguments)


def assistants(text):
    some_calls = st.lists(calls, max_size=3).map(tuple)
    return st.builds(Message, st.just("assistant"), text, tool_calls=some_calls, reasoning=st.none() | text)


def observations(text):
    answers = st.lists(st.builds(Message, st.sampled_from(["tool", "user"]), text), min_size=1, max_size=3)
    return answers.map(tuple)


def openings(text):
    system = st.lists(st.builds(Message, st.just("system"), text), max_size=1).map(tuple)
    return st.tuples(system, observations(text)).map(lambda parts: parts[0] + parts[1])


plain_calls = calls.filter(lambda call: '"' not in call.name)


@given(openings(words), st.lists(st.tuples(assistants(words), observations(words)), max_size=3), st.booleans())
def test_prompt_sampled_and_delta_equal_the_whole_render(whole_text_ids, opening, rounds, with_tools):
    tools = TOOLS if with_tools else ()
    stream = list(FORMAT.prompt(opening, tools))
    chat = list(opening)
    for said, seen in rounds:
        stream += list(FORMAT.render_assistant(said))
        stream += [token for segment in FORMAT.delta(seen, stream[-1]) for token in segment.ids]
        chat += [said, *seen]
    text = RENDER(messages=[_escaped(message) for message in chat], tools=_schemas(tools))
    assert stream == whole_text_ids(text)
    assert stream == list(FORMAT.prompt(chat, tools))
    assert FORMAT.transcript(chat, tools) + "<|im_start|>assistant\n" == text


def _escaped(message):
    """The oracle's template writes names as they are, so quotes must have been escaped."""
    renamed = (ToolCall(c.id, json.dumps(c.name, ensure_ascii=False)[1:-1], c.arguments) for c in message.tool_calls)
    return Message(message.role, message.content, tuple(renamed), message.tool_call_id, message.reasoning)


@given(assistants(injected))
def test_parse_is_the_inverse_of_render_assistant(message):
    ids = FORMAT.render_assistant(message)
    turn = FORMAT.parse(ids)
    assert (turn.text, turn.reasoning, turn.error) == (message.content, message.reasoning, None)
    assert [(c.name, c.arguments) for c in turn.tool_calls] == [(c.name, c.arguments) for c in message.tool_calls]
    assert FORMAT.parse(ids[:-1]) == turn
    for call in turn.tool_calls:
        start, stop = call.span
        assert TOKENIZER.decode(ids[start:stop]).startswith("<tool_call>\n")
        assert TOKENIZER.decode(ids[start:stop]).endswith("\n</tool_call>")


@given(openings(injected), injected)
def test_no_text_of_a_message_or_schema_makes_a_special_token(opening, description):
    blank = [Message(message.role, "x") for message in opening]
    hostile = ToolSpec("f", description, {"type": "object", "description": description})
    harmless = ToolSpec("f", "x", {"type": "object", "description": "x"})
    assert _specials(FORMAT.prompt(opening, (hostile,))) == _specials(FORMAT.prompt(blank, (harmless,)))
    seen = [segment for segment in FORMAT.delta(opening, END) if segment.source is Source.ENVIRONMENT]
    assert not any(_specials(segment.ids) for segment in seen)
    assert _specials(_joined(FORMAT.delta(opening, END))) == _specials(_joined(FORMAT.delta(blank, END)))


def _joined(segments):
    return np.concatenate([segment.ids for segment in segments])


def _specials(ids):
    return [token for token in np.asarray(ids).tolist() if token in SPECIAL_IDS]


def test_a_delta_names_the_author_of_its_tokens_and_several_answers_share_a_turn():
    segments = FORMAT.delta([Message("tool", "1"), Message("tool", "2")], END)
    authors = [(segment.source, TOKENIZER.decode(segment.ids)) for segment in segments]
    assert authors == [
        (Source.TEMPLATE, "\n<|im_start|>user\n<tool_response>"),
        (Source.ENVIRONMENT, "\n1\n"),
        (Source.TEMPLATE, "</tool_response>\n<tool_response>"),
        (Source.ENVIRONMENT, "\n2\n"),
        (Source.TEMPLATE, "</tool_response><|im_end|>\n<|im_start|>assistant\n"),
    ]
    assert all(segment.logprobs is None and segment.ids.dtype == np.int32 for segment in segments)


def test_a_delta_closes_a_turn_that_was_cut_off():
    seen = [Message("user", "go on")]
    stopped, cut = _joined(FORMAT.delta(seen, END)), _joined(FORMAT.delta(seen, 65))
    assert cut.tolist() == [END, *stopped]
    assert _joined(FORMAT.delta(seen, TOKENIZER.special("<|endoftext|>"))).tolist() == stopped.tolist()


def ids_of(text):
    """Ids a policy might sample: here the names of special tokens mean the tokens."""
    parts = TOKENIZER.special_pattern.split(text)
    encode = (lambda part: [TOKENIZER.special(part)], TOKENIZER.encode)
    return list(itertools.chain.from_iterable(encode[place % 2 == 0](part) for place, part in enumerate(parts)))


GOOD = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("sampled", "error"),
    [
        ('<tool_call>{"name": "f", "arguments": {}</tool_call>', r"tool call 1: not valid JSON \(Expecting ',' "),
        ('<tool_call>{"arguments": {}}</tool_call>', '"name" must be the name of a tool'),
        ('<tool_call>{"name": 7, "arguments": {}}</tool_call>', '"name" must be the name of a tool'),
        ('<tool_call>{"name": "f"}</tool_call>', '"arguments" must be a JSON object'),
        ('<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', '"arguments" must be a JSON object'),
        ('<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "NaN is not JSON"),
        ("<tool_call>[]</tool_call>", "not a JSON object"),
        ("<tool_call></tool_call>", "not valid JSON"),
        ("<tool_call>" + "[" * 200_000 + "</tool_call>", "nested too deeply"),
        ('<tool_call>{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}</tool_call>", "not valid JSON"),
        ('<tool_call>\n{"name": "f", "arguments": {}}\n', "<tool_call> is never closed"),
        (f"<tool_call>\n{GOOD}", "not valid JSON"),
        ('{"name": "f", "arguments": {}}\n</tool_call>', "</tool_call> closes nothing"),
        (f"<think>\nI could\n{GOOD}", "<think> is never closed"),
        (f"hm</think>{GOOD}", "</think> closes nothing"),
        (f"{GOOD}\n<tool_call>?</tool_call>", "tool call 2: not valid JSON"),
    ],
)
def test_a_faulty_turn_runs_no_call_and_says_why(sampled, error):
    turn = FORMAT.parse([*ids_of(sampled), END])
    assert turn.tool_calls == ()
    assert turn.error is not None
    with pytest.raises(ValueError, match=error):
        raise ValueError(turn.error)


def test_a_call_in_a_closed_think_block_is_only_a_thought():
    turn = FORMAT.parse(ids_of(f"<think>\nmaybe {GOOD}\n</think>\n\nNo need."))
    assert (turn.tool_calls, turn.error, turn.text) == ((), None, "No need.")
    assert turn.reasoning == f"maybe {GOOD}"


def test_text_that_spells_a_call_is_text():
    turn = FORMAT.parse(TOKENIZER.encode(GOOD))
    assert (turn.text, turn.tool_calls, turn.error) == (GOOD, (), None)


def test_raw_arguments_keep_their_spelling_and_the_text_around_calls_is_kept():
    call = '<tool_call>{ "id": [1, {"a": "}"}],"arguments" :{"x" :  1.50 , "y":"\\u00e9,}" } , "name":"f"}</tool_call>'
    turn = FORMAT.parse(ids_of(f"before\n{call}\nafter"))
    assert [c.arguments for c in turn.tool_calls] == ['{"x" :  1.50 , "y":"\\u00e9,}" }']
    assert turn.text == "before\nafter"


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1) | st.sampled_from(SPECIAL_IDS.tolist()), max_size=30))
def test_parse_takes_any_ids(ids):
    turn = FORMAT.parse(np.array(ids, np.int32))
    assert turn.error is None or turn.tool_calls == ()


def test_the_short_variant_tells_the_schemas_only():
    text = ChatMLHermesShort.transcript(CHAT[:2], TOOLS[:1])
    schema = _schemas(TOOLS[:1])[0]
    assert text.startswith(f"<|im_start|>system\nBe exact.\n\n{schema}<|im_end|>\n<|im_start|>user\n")
    assert ChatMLHermesShort.transcript(CHAT[2:], ()) == ChatMLHermes.transcript(CHAT[2:], ())


def test_content_in_parts_is_joined_and_other_media_are_refused():
    parts = Message("user", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
    assert FORMAT.transcript([parts]) == FORMAT.transcript([Message("user", "ab")])
    with pytest.raises(ValueError, match="part of type 'image'"):
        FORMAT.prompt([Message("user", [{"type": "image", "url": "x"}])])


def test_a_format_is_found_by_name():
    assert isinstance(get_chat_format("chatml_hermes_short", TOKENIZER), ChatMLHermesShort)
    with pytest.raises(ValueError, match=r"Unknown chat.format 'chatml_hermez'. Did you mean 'chatml_hermes'\?"):
        get_chat_format("chatml_hermez", TOKENIZER)
