"""Calls of the clients of OpenAI and LangChain: `text_calls.py DIRECT PROXY KIND MODEL [LIMIT [STATUS]]`.

KIND is embeddings, langchain, completions, completion_streams, chat or chat_streams. Each caller has an API key of its own if KIND ends in `+keys`,
and the last one a key that the server refuses. If LIMIT is a number of characters that is above that of the server, two callers send such a text, and
STATUS (400) is expected.
"""

import contextlib
import sys

import loopback

loopback.end_with_the_test()

import compare
import openai
from langchain_openai import OpenAIEmbeddings

CALLERS, CALLS, TOKENS = 24, 2, 6
KIND, _, KEYS = sys.argv[3].partition("+")
MODEL = sys.argv[4]
UNKNOWN = "sk-unknown"
LIMIT = int(sys.argv[5]) if len(sys.argv) > 5 else 0
REFUSED = int(sys.argv[6]) if len(sys.argv) > 6 else 400


def call(at, turn):
    """Returns a call with one text, or with three from some callers."""
    mark = f"parcel {at}.{turn}."
    bad = LIMIT and (at, turn) in ((3, 1), (17, 0))
    # Embeddings of the debug engine of infinity depend on the length alone.
    texts = [f"{'x' * (at * CALLS + turn)} {n} of {mark}{chr(97 + at)}" for n in range(3 if at % 8 == 5 and KIND[:4] != "chat" else 1)]
    if bad:
        texts[0] = mark + "x" * LIMIT
    status = REFUSED if bad else 401 if KEYS and at == CALLERS - 1 else 200
    return compare.Call({"texts": texts}, mark, status)


def text_or_list(call):
    texts = call.arguments["texts"]
    return texts if len(texts) > 1 else texts[0]


def embeddings(client, url, call):
    answer = client.embeddings.create(model=MODEL, input=text_or_list(call), encoding_format="float")
    return [[item.index, item.embedding] for item in answer.data], answer


def langchain(client, url, call):
    made = OpenAIEmbeddings(
        model=MODEL, base_url=f"{url}/v1", api_key=client.api_key, check_embedding_ctx_length=False, max_retries=0,
        model_kwargs={"encoding_format": "float"},
    )
    answer = made.embed_documents(call.arguments["texts"])
    return answer, answer


def completions(client, url, call):
    answer = client.completions.create(model=MODEL, prompt=text_or_list(call), max_tokens=TOKENS, temperature=0)
    return [[choice.index, choice.text, choice.finish_reason] for choice in answer.choices], answer


def completion_streams(client, url, call):
    texts, chunks = {}, []
    for chunk in client.completions.create(model=MODEL, prompt=text_or_list(call), max_tokens=TOKENS, temperature=0, stream=True):
        chunks.append(chunk)
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
    assert len({chunk.id for chunk in chunks}) == 1, "the chunks of a stream have one id"
    return sorted(texts.items()), chunks


def messages(call):
    return [{"role": "user", "content": call.arguments["texts"][0]}]


def chat(client, url, call):
    answer = client.chat.completions.create(model=MODEL, messages=messages(call), max_tokens=TOKENS, temperature=0)
    return [answer.choices[0].message.content, answer.choices[0].finish_reason], answer


def chat_streams(client, url, call):
    text, chunks = "", []
    for chunk in client.chat.completions.create(model=MODEL, messages=messages(call), max_tokens=TOKENS, temperature=0, stream=True):
        chunks.append(chunk)
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    return text, chunks


send = {f.__name__: f for f in (embeddings, langchain, completions, completion_streams, chat, chat_streams)}[KIND]


@contextlib.contextmanager
def client(url, at):
    key = f"sk-caller-{at}" if KEYS else "sk-caller-0"
    # No retries: they would hide failures.
    with openai.OpenAI(base_url=f"{url}/v1", api_key=UNKNOWN if KEYS and at == CALLERS - 1 else key, max_retries=0, timeout=60) as made:

        def one(call):
            try:
                value, answer = send(made, url, call)
            except openai.APIStatusError as error:
                return compare.Answer(error.status_code, error.response.text)
            return compare.Answer(200, value, repr(answer))

        yield one


callers = [[call(at, turn) for turn in range(CALLS)] for at in range(CALLERS)]
compare.run(sys.argv[1], sys.argv[2], callers, client, ["openai"] + ["langchain-openai"] * (KIND == "langchain"))
