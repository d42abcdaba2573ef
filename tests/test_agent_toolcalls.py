"""Tool calls: written as the release writes them, read as models write them, never guessed."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unify_agent.agent.toolcalls import MAX_QUERY, TOOLS, ToolCall, parse_calls, render_call, tools_block

CALL = ToolCall("text_search", {"q": "brass owl", "hl": "en", "top_k": 5})
letters = st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t")
queries = st.text(letters, min_size=1, max_size=60).filter(lambda q: q.strip() and "tool_call>" not in q.lower())
PIECES = [
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<text_search>", "<invoke name='text_search'>", "```json",
    "```", "{", "}", "[", "]", "(", ")", ":", ",", '"', "'", "\\", "“", "：", "｛", "//", "/*", "\n", "\x00", "\ud800",
    "9" * 5000, '"name"', '"text_search"', "text_search", '"arguments"', '"parameters"', '"q"', "q", '"owl"', "null",
    "NaN", "1e999",
]  # fmt: skip
calls = st.one_of(
    st.builds(
        lambda q, hl, k: ToolCall("text_search", {"q": q.strip(), "hl": hl, "top_k": k}),
        queries, st.sampled_from(["en", "zh"]), st.integers(1, 20)),
    st.builds(lambda q, n: ToolCall("search_image", {"q": q.strip(), "num": n}), queries, st.integers(1, 20)),
)  # fmt: skip


def test_a_call_is_written_as_the_release_writes_it():
    assert render_call(CALL) == (
        '<tool_call>\n{"name": "text_search", "arguments": {"q": "brass owl", "hl": "en", "top_k": 5}}\n</tool_call>'
    )


def test_the_tools_block_holds_the_schemas_of_both_tools():
    block = tools_block()
    schemas = json.loads(block.removeprefix("<tools>\n").removesuffix("\n</tools>"))
    assert [schema["function"]["name"] for schema in schemas] == list(TOOLS)
    assert set(schemas[1]["function"]["parameters"]["properties"]) == {"q", "location", "hl", "num"}


@settings(deadline=None, max_examples=200)
@given(st.lists(calls, min_size=1, max_size=3), st.text(max_size=30).filter(lambda s: "<" not in s))
def test_what_is_written_is_read_back_unmended(made, prose):
    text = prose + "\n" + "\n".join(render_call(call) for call in made)
    parsed = parse_calls(text)
    assert parsed.error is None and parsed.mended == ()
    assert list(parsed.calls) == made


@settings(deadline=None, max_examples=300)
@given(st.text(max_size=120))
def test_any_text_is_read_without_a_crash(text):
    parse_calls(text)
    parsed = parse_calls(f"<tool_call>{text}</tool_call>")
    assert parsed.calls or parsed.error


@settings(deadline=None, max_examples=400)
@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_any_heap_of_the_pieces_of_calls_is_read_without_a_crash(text):
    for each in (text, f"<tool_call>{text}", f'<tool_call>{{"name": "text_search", "arguments": {{{text}</tool_call>'):
        parsed = parse_calls(each)
        for call in parsed.calls:
            assert call.name in TOOLS and call.arguments["q"].strip()
            json.dumps(call.arguments, ensure_ascii=False).encode()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 50_000, "{" * 3000 + '"', "'" * 20_000, "{'" * 5000])
def test_depth_and_length_are_no_trouble(text):
    assert parse_calls(f"<tool_call>{text}</tool_call>").calls == ()


@settings(deadline=None, max_examples=150)
@given(calls, st.data())
def test_a_call_cut_anywhere_is_read_rightly_or_not_at_all(call, data):
    text = render_call(call)
    cut = text[: data.draw(st.integers(0, len(text)))]
    for read in parse_calls(cut).calls:
        assert read.name == call.name and call.arguments["q"].startswith(read.arguments["q"])


BODY = '"name": "text_search", "arguments": {"q": "brass owl", "hl": "en", "top_k": 5}'


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        (f"<tool_call>{{{BODY}}}</tool_call>", None),
        (f"<tool_call>\n```json\n{{{BODY}}}\n```\n</tool_call>", "code fence"),
        (f"<tool_call>{{{BODY}}}", "missing </tool_call>"),
        (f"<tool_call>{{{BODY},}}</tool_call>", "trailing comma"),
        (f"<tool_call>{{{BODY}</tool_call>", "missing closing brace"),
        (f"<tool_call>{{{BODY}}}}}</tool_call>", "text after the call"),
        (f"<tool_call>call: {{{BODY}}}</tool_call>", "text before the call"),
        ("<tool_call>{'name': 'text_search', 'arguments': {'q': 'brass owl', 'hl': 'en', 'top_k': 5}}</tool_call>",
         "single quotes"),
        (f"<tool_call>{{{BODY.replace('arguments', 'parameters')}}}</tool_call>", "'parameters' for 'arguments'"),
        ('<tool_call>{"name": "text_search", "arguments": "{\\"q\\": \\"brass owl\\", \\"hl\\": \\"en\\",'
         ' \\"top_k\\": 5}"}</tool_call>', "arguments as a string"),
        (f"<tool_call>{{{BODY.replace('q', 'query', 1)}}}</tool_call>", "'query' for 'q'"),
        ("<tool_call>{" + BODY.replace('5', '"5"') + "}</tool_call>", "top_k as a string"),
        ("<tool_call>{" + BODY.replace('"', "“") + "}</tool_call>", "typographic quotes"),
        (f'<tool_call>{{"function": {{{BODY}}}}}</tool_call>', "call inside 'function'"),
        (f"```json\n{{{BODY}}}\n```", "missing <tool_call>"),
        (f"I will search. {{{BODY}}}", "missing <tool_call>"),
        (f"<tool_call>\n<tool_call>{{{BODY}}}</tool_call>", "<tool_call> twice"),
        ('<text_search>{"q": "brass owl", "hl": "en", "top_k": 5}</text_search>', "the tool's name as a tag"),
        ('<invoke name="text_search"><parameter name="q">brass owl</parameter><parameter name="hl">en</parameter>'
         '<parameter name="top_k">5</parameter></invoke>', "<invoke> for <tool_call>"),
        ('<tool_call>text_search(q="brass owl", hl="en", top_k=5)</tool_call>', "a call in brackets"),
        ('<tool_call>{"name": "text_search", "q": "brass owl", "hl": "en", "top_k": 5}</tool_call>',
         "arguments beside the name"),
        ('<tool_call>{"text_search": {"q": "brass owl", "hl": "en", "top_k": 5}}</tool_call>',
         "the tool's name as a key"),
        (f'<tool_call>{{"tool_calls": [{{{BODY}}}]}}</tool_call>', "calls inside 'tool_calls'"),
        (f"<tool_call>{{{BODY.replace('text_search', 'functions.Text_Search')}}}</tool_call>",
         "the name 'functions.Text_Search'"),
        (f"<tool_call>{{{BODY.replace('arguments', 'args')}}}</tool_call>", "'args' for 'arguments'"),
        (f"<tool_call>{{{BODY}, // look it up\n}}</tool_call>", "comment"),
        ('<tool_call>{name: "text_search", arguments: {q: "brass owl", hl: "en", top_k: 5}}</tool_call>',
         "keys without quotes"),
        ("<tool_call>｛" + BODY.replace(":", "：").replace(", ", "，") + "｝</tool_call>", "full-width punctuation"),
    ],
)  # fmt: skip
def test_what_models_write_is_mended_and_said(text, mended):
    parsed = parse_calls(text)
    assert parsed.error is None and parsed.calls == (CALL,)
    assert parsed.mended == (() if mended is None else parsed.mended) and (mended is None or mended in parsed.mended)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "empty"),
        ("search for owls", "not valid JSON"),
        ('{"name": "txt_search", "arguments": {"q": "owl"}}', "did you mean 'text_search'"),
        ('{"arguments": {"q": "owl"}}', "no name"),
        ('{"name": "text_search"}', "not a JSON object"),
        ('{"name": "text_search", "arguments": {"hl": "en"}}', "needs a query"),
        ('{"name": "text_search", "arguments": {"q": " "}}', "needs a query"),
        ('{"name": "text_search", "arguments": {"q": 5}}', "must be a string"),
        ('{"name": "search_image", "arguments": {"q": "owl", "num": true}}', "whole number"),
        ('{"name": "search_image", "arguments": "owl"}', "not a JSON object"),
        ('{"name": "search_image", "arguments": ["owl"]}', "not a JSON object"),
        ("{'name': 'text_search', 'arguments': {'q': 'owl's nest'}}", "not valid JSON"),
        ('text_search("owl")', "not valid JSON"),
        (f"[0x{'f' * 5000}]", "A tool call is an object"),
    ],
)
def test_what_is_not_plain_is_an_error_that_says_why(body, said):
    parsed = parse_calls(f"<tool_call>{body}</tool_call>")
    assert parsed.calls == () and said in parsed.error


def test_numbers_and_queries_are_bounded_and_that_is_said():
    call = ToolCall("search_image", {"q": "x" * 400, "num": 900, "colour": "red"})
    parsed = parse_calls(render_call(call))
    assert parsed.calls[0].arguments == {"q": "x" * MAX_QUERY, "num": 20}
    assert set(parsed.mended) == {
        "num brought to 20", "unknown argument 'colour' left out", f"query cut to {MAX_QUERY} characters"}  # fmt: skip


def test_what_cannot_be_written_or_shown_is_taken_out_of_a_query_and_that_is_said():
    parsed = parse_calls('<tool_call>{"name": "text_search", "arguments": {"q": "\\ud800owl\\u0000"}}</tool_call>')
    assert parsed.calls[0].arguments == {"q": "owl"} and parsed.mended == ("unprintable characters in q",)
    long = parse_calls(render_call(ToolCall("search_image", {"q": "owl", "location": "x" * 300})))
    assert long.calls[0].arguments == {"q": "owl"} and long.mended == ("location left out: too long",)


def test_a_word_in_angle_brackets_is_no_call():
    assert parse_calls("I could use <text_search> here, or {not}.").error is None


def test_a_call_inside_a_thought_is_only_a_thought():
    text = f"<think>I could call {render_call(CALL)}</think>\n<recaption>An owl.</recaption>"
    assert parse_calls(text).calls == () and parse_calls(text).error is None


def test_several_calls_in_one_turn_are_all_read():
    two = ToolCall("search_image", {"q": "owl"})
    assert parse_calls(render_call(CALL) + "\n" + render_call(two)).calls == (CALL, two)
    inside = json.dumps([{"name": c.name, "arguments": c.arguments} for c in (CALL, two)])
    assert parse_calls(f"<tool_call>{inside}</tool_call>").calls == (CALL, two)
